"""Command `stoker agent`: the agent of a GPU node in the foreground.

It ends on SIGTERM and on Ctrl-C and leaves jobs running; what it prints are its log lines.
"""

import os
from pathlib import Path

import click

from stoker.cli.options import OnceCommand
from stoker.cli.setting_options import config_option, set_option


@click.command(cls=OnceCommand)
@config_option
@set_option
def agent(path: Path | None, flags: dict[str, object]) -> None:
    """Run the agent of a GPU node.

    \b
    Examples:
      stoker agent -c agent.yaml
    """
    from stoker.cli.foreground import quiet_grpc, run_until_signal

    quiet_grpc()
    from stoker.agent.main import run_agent
    from stoker.agent.settings import AgentSettings
    from stoker.cli.wiring.settings import load
    from stoker.live.settings.control import ControlSettings

    settings = load(AgentSettings, path, os.environ, flags, others=(ControlSettings,)).value
    run_until_signal(lambda stop: run_agent(settings, stop=stop))
