"""`stoker control` and `stoker agent`: run one of the two daemons in the foreground.

Both end on SIGTERM and on Ctrl-C and leave jobs running; what they print are their log lines.
"""

import os
from pathlib import Path
from typing import Final

import click

from stoker.cli.quiet_grpc import quiet_grpc
from stoker.cli.setting_flags import set_option

_FILE: Final = click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="Settings file. [default: none; defaults and STOKER__SECTION__KEY hold]",
)


@click.command()
@_FILE
@set_option
def control(path: Path | None, flags: dict[str, object]) -> None:
    """Run a control plane.

    It wants a token from people and from agents. `stoker token create --data-dir D` makes the first one.

    \b
    Examples:
      stoker control -c control.yaml
      STOKER__HTTP__PORT=18080 stoker control -c control.yaml
      stoker control --set data_dir=/tmp/stoker --set http.port=18080
    """
    quiet_grpc()
    from stoker.adapters.settings import load
    from stoker.agent.settings import AgentSettings
    from stoker.cli.until_signal import run_until_signal
    from stoker.live.main import run_control
    from stoker.live.settings import ControlSettings

    settings = load(ControlSettings, path, os.environ, flags, others=(AgentSettings,)).value
    run_until_signal(lambda stop: run_control(settings, stop=stop, on_ready=lambda: None))


@click.command()
@_FILE
@set_option
def agent(path: Path | None, flags: dict[str, object]) -> None:
    """Run the agent of a GPU node.

    \b
    Examples:
      stoker agent -c agent.yaml
    """
    quiet_grpc()
    from stoker.adapters.settings import load
    from stoker.agent.main import run_agent
    from stoker.agent.settings import AgentSettings
    from stoker.cli.until_signal import run_until_signal
    from stoker.live.settings import ControlSettings

    settings = load(AgentSettings, path, os.environ, flags, others=(ControlSettings,)).value
    run_until_signal(lambda stop: run_agent(settings, stop=stop))
