"""`stoker wait`: wait for jobs to end."""

import click

from stoker.cli.completion import ANY_JOB
from stoker.cli.display.output import for_people, show_value
from stoker.cli.job_end import exit_of, wait_for
from stoker.cli.options import OnceCommand
from stoker.cli.server import answer_options


@click.command(cls=OnceCommand)
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, type=ANY_JOB)
@answer_options
@click.pass_context
def wait(ctx: click.Context, job_ids: tuple[str, ...], form: str) -> None:
    """Wait until jobs have ended, and exit as they did.

    The exit status is the job's own: its exit code, or 128 + the signal that killed it; 124 for a time-out, 125 when
    its node was lost, 126 when it could not start, 137 for out of memory, 143 when it was cancelled; 1 for an array of
    which a member failed. Of several jobs the first that isn't 0 counts, in the order given. Ctrl-C stops waiting
    (130); the jobs go on.

    \b
    Examples:
      stoker wait 7
      stoker wait 7 8 && echo both succeeded
    """
    ended = []
    for job_id in job_ids:
        job = wait_for(job_id)
        ended.append(job)
        if for_people(form):
            click.echo(f"job {job.id} {job.state.value}")
    if not for_people(form):
        show_value(form, ended)
    ctx.exit(next((status for status in map(exit_of, ended) if status), 0))
