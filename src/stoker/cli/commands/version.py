"""`stoker version`: versions of this program and of the server."""

from typing import TYPE_CHECKING

import click

from stoker import __version__
from stoker.cli.display.messages import refused
from stoker.cli.display.output import show_pairs
from stoker.cli.options import OnceCommand
from stoker.cli.server import answer_options, connect

if TYPE_CHECKING:
    from stoker.wire.rest.cluster import HealthView


@click.command(cls=OnceCommand)
@answer_options
def version(form: str) -> None:
    """Show the version of this program and of the control plane.

    That none answers is no failure here: it is shown.

    \b
    Examples:
      stoker version
      stoker version --json
    """
    client = connect()
    server: HealthView | None = None
    silence = ""
    try:
        server = client.health()
    except refused() as fault:
        silence = fault.refusal.message
    shown = {
        "client": __version__,
        "server": server.version if server else None,
        "address": client.server,
        "cluster_id": server.cluster_id if server else None,
    }
    pairs = (
        (key.replace("_id", ""), silence if key == "server" and silence else value) for key, value in shown.items()
    )
    show_pairs(form, pairs, shown)
