"""`stoker wait`: wait for jobs to end."""

import click

from stoker.cli.clock import mono_s
from stoker.cli.completion import ANY_JOB
from stoker.cli.display.output import for_people, show_value
from stoker.cli.job_end import EXIT_STILL_GOES_ON, exit_of, is_over, tell_end, wait_for
from stoker.cli.options import OnceCommand
from stoker.cli.server import answer_options


@click.command(cls=OnceCommand)
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, type=ANY_JOB)
@click.option(
    "--timeout", metavar="T", help="Wait at most so long: 90s, 10m, 2h; 10 is minutes. [default: as long as it takes]"
)
@answer_options
@click.pass_context
def wait(ctx: click.Context, job_ids: tuple[str, ...], timeout: str | None, form: str) -> None:
    """Wait until jobs have ended, and exit as they did.

    The exit status is the job's own: its exit code, or 128 + the signal that killed it; 124 for a time-out, 125 when
    its node was lost, 126 when it could not start, 137 for out of memory, 143 when it was cancelled; 1 for an array of
    which a member failed. Of several jobs the first that isn't 0 counts, in the order given. Once --timeout is over it
    is 75, and the jobs go on, as they do after Ctrl-C (130). How each ended is said on stderr.

    \b
    Examples:
      stoker wait 7
      stoker wait 7 8 && echo both succeeded
      stoker wait --timeout 10m 7
    """
    until_s = mono_s() + (_seconds(timeout) if timeout is not None else float("inf"))
    seen = []
    for job_id in job_ids:
        job = wait_for(job_id, max(0.0, until_s - mono_s()))
        seen.append(job)
        if for_people(form):
            click.echo(f"job {job.id} {job.state.value}")
        if is_over(job):
            tell_end(job)
        else:
            click.echo(f"job {job.id} has not ended within {timeout}: it is {job.state.value} and goes on", err=True)
    if not for_people(form):
        show_value(form, seen)
    statuses = [exit_of(job) if is_over(job) else EXIT_STILL_GOES_ON for job in seen]
    ctx.exit(next((status for status in statuses if status), 0))


def _seconds(text: str) -> float:
    """Return a time in seconds. Raises: StokerError `bad_time`."""
    from stoker.wire.text import parse_duration

    return parse_duration(text) / 1_000
