"""Command `stoker top`: the full-screen live view of the cluster, which needs the extra `stoker[top]`."""

import sys
from typing import Final

import click

from stoker.cli.display.terminal import is_dumb
from stoker.cli.options import OnceCommand
from stoker.cli.server import credentials_of, server_option, servers_of

_LIBRARY: Final = "textual"


@click.command(cls=OnceCommand)
@server_option
@click.pass_context
def top(ctx: click.Context) -> None:
    """Watch nodes, GPUs and the queue in a terminal, and act on jobs.

    Looks again every second. Keys: arrows and tab move, enter shows one job or node close up, c cancels, h holds,
    r releases, w says why a job waits, / filters, ? explains, q quits.

    \b
    Examples:
      stoker top
      stoker top --server http://gpu-head:8080
    """
    if is_dumb() or not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise click.UsageError(
            "`stoker top` draws on a terminal, and this isn't one that can be drawn on.\n"
            "`stoker list --watch` shows the queue anywhere, also into a pipe."
        )
    try:
        from stoker.cli.top.app import run_top
    except ModuleNotFoundError as fault:
        if fault.name != _LIBRARY:
            raise
        from stoker.brain.domain.errors import StokerError, refuse

        message = f"`stoker top` draws with the library {_LIBRARY}, which is not installed"
        hint = "install it: pip install 'stoker[top]'. `stoker list --watch` shows the queue without it"
        raise StokerError(refuse("extra_missing", message, hint)) from fault
    ctx.exit(run_top(servers_of(ctx), credentials_of(ctx)))
