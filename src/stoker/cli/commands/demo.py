"""`stoker demo`: a cluster of real processes on this machine that runs jobs and checks them, in half a minute."""

from pathlib import Path

import click

from stoker.cli.options import OnceCommand


@click.command(cls=OnceCommand)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo-out"),
    show_default=True,
    help="Folder for the picture.",
)
@click.pass_context
def demo(ctx: click.Context, out: Path) -> None:
    """Run a small cluster and some real jobs on this machine, and report.

    Two nodes of four simulated GPUs, each a process; ten jobs, each a process of this account. Then a timeline of
    the GPUs in the terminal and as an SVG file, a table of the jobs, and what was checked. Exit status 0 when every
    job ended as it should. Needs no GPU, takes no fixed port and leaves no process.

    \b
    Examples:
      stoker demo
      stoker demo --out /tmp
    """
    from stoker.cli.demo.run import run_demo

    ctx.exit(run_demo(out))
