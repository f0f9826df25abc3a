"""Command `stoker logs`: output of a task."""

import click

from stoker.cli.completion import ANY_JOB
from stoker.cli.job_end import goes_on
from stoker.cli.log_reader import LogReader
from stoker.cli.options import OnceCommand
from stoker.cli.server import FOLLOW_PATIENCE_S, connect, server_option


@click.command(cls=OnceCommand)
@click.argument("job_id", metavar="ID", type=ANY_JOB)
@click.option("-f", "--follow", is_flag=True, help="Go on as the task writes, until the job ends.")
@click.option("--tail", type=click.IntRange(0, 1_000_000), help="Begin with the last N lines.", metavar="N")
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True, help="Which task of the gang.")
@click.option("--attempt", type=click.IntRange(1), help="Which attempt. [default: the newest]")
@server_option
def logs(job_id: str, follow: bool, tail: int | None, rank: int, attempt: int | None) -> None:
    """Print what a task wrote to stdout and stderr.

    \b
    Examples:
      stoker logs 7
      stoker logs -f --tail 20 7
      stoker logs --rank 3 --attempt 1 7
    """
    if not follow:
        LogReader(connect(), job_id, rank).copy(attempt or 0, tail)
        return
    with goes_on(job_id):
        LogReader(connect(FOLLOW_PATIENCE_S), job_id, rank).follow(attempt, tail)
