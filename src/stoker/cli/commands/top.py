"""`stoker top`: watch the cluster and act on it."""

import sys

import click

from stoker.cli.display.terminal import is_dumb
from stoker.cli.server import server_option, servers_of, token_of


@click.command()
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
    from stoker.cli.top.app import run_top

    ctx.exit(run_top(servers_of(ctx), token_of(ctx)))
