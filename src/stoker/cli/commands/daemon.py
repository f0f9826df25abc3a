"""`stoker agent`: run the agent of a GPU node in the foreground.

It ends on SIGTERM and on Ctrl-C and leaves jobs running; what it prints are its log lines.
"""

import os
from pathlib import Path
from typing import Final

import click

from stoker.cli.quiet_grpc import quiet_grpc
from stoker.cli.setting_flags import set_option

CONFIG_OPTION: Final = click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="Settings file. [default: none; defaults and STOKER__SECTION__KEY hold]",
)


@click.command()
@CONFIG_OPTION
@set_option
def agent(path: Path | None, flags: dict[str, object]) -> None:
    """Run the agent of a GPU node.

    \b
    Examples:
      stoker agent -c agent.yaml
    """
    quiet_grpc()
    from stoker.agent.main import run_agent
    from stoker.agent.settings import AgentSettings
    from stoker.cli.until_signal import run_until_signal
    from stoker.cli.wiring.settings import load
    from stoker.live.settings.control import ControlSettings

    settings = load(AgentSettings, path, os.environ, flags, others=(ControlSettings,)).value
    run_until_signal(lambda stop: run_agent(settings, stop=stop))
