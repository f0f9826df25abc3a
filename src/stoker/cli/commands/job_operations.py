"""`stoker cancel`, `hold`, `release`, `requeue` and `signal`: what is said to jobs by their ids.

Rules: J1  every id is tried, whatever became of those before it; the exit status is that of the first refusal
       J2  an id may name a job, a member of an array, or some of them: `7`, `7_3`, `7_[0-4,9]`
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from stoker.cli.display.formatting import members_text
from stoker.cli.display.output import for_people, output_options, show_value
from stoker.cli.display.problem import refused, show_problem
from stoker.cli.display.safe_text import visible
from stoker.cli.id_types import ANY_JOB, JOBS_THEN_SIGNAL, OPEN_JOB
from stoker.cli.server import connect, server_option

if TYPE_CHECKING:
    from stoker.wire.rest.job import JobsToldView, JobView

Command = TypeVar("Command", bound=Callable[..., Any])
SendOperation = Callable[[str], "JobsToldView"]
LINES_MAX: Final = 20
"""Beyond that the members of one answer are counted, not listed."""


def _ids(of: click.ParamType[str]) -> Callable[[Command], Command]:
    """Ids of jobs, the forms of the answer, and a server. `of` knows which ids a shell may offer."""

    def add(command: Command) -> Command:
        argument = click.argument("job_ids", metavar="ID...", nargs=-1, required=True, type=of)
        return argument(output_options(server_option(command)))

    return add


@click.command()
@_ids(OPEN_JOB)
@click.pass_context
def cancel(ctx: click.Context, job_ids: tuple[str, ...], form: str) -> None:
    """Cancel jobs: terminate, wait a grace time, kill.

    A job is `cancelled` once its processes are gone; until then it is `stopping`. An ID may name members of an array:
    7_3, or 7_[0-4,9]. Every id is tried; the exit status is that of the first refusal.

    \b
    Examples:
      stoker cancel 7
      stoker cancel 7 8 '9_[0-499]'
    """
    give(ctx, form, job_ids, connect().cancel)


@click.command()
@_ids(OPEN_JOB)
@click.pass_context
def hold(ctx: click.Context, job_ids: tuple[str, ...], form: str) -> None:
    """Keep waiting jobs from starting, until they are released.

    What runs isn't touched: a running job is refused, and of an array those members are held that have not started.

    \b
    Examples:
      stoker hold 7
      stoker hold '9_[100-199]'
    """
    give(ctx, form, job_ids, connect().hold)


@click.command()
@_ids(OPEN_JOB)
@click.pass_context
def release(ctx: click.Context, job_ids: tuple[str, ...], form: str) -> None:
    """Let held jobs start.

    \b
    Examples:
      stoker release 7
    """
    give(ctx, form, job_ids, connect().release)


@click.command()
@_ids(ANY_JOB)
@click.pass_context
def requeue(ctx: click.Context, job_ids: tuple[str, ...], form: str) -> None:
    """Run jobs once more, under their own ids.

    What is live is stopped first; what has ended waits again. Of an array its failed members are taken.

    \b
    Examples:
      stoker requeue 7
      stoker requeue 9_3
    """
    give(ctx, form, job_ids, connect().requeue)


@click.command()
@click.argument("words", metavar="ID... SIGNAL", nargs=-1, required=True, type=JOBS_THEN_SIGNAL)
@output_options
@server_option
@click.pass_context
def signal(ctx: click.Context, words: tuple[str, ...], form: str) -> None:
    """Send a signal to the processes of running jobs.

    SIGNAL is a name or a number: USR1, SIGUSR1, 10. It reaches every process of every task; what ends by it is no
    cancelled job, but one that ended by a signal.

    \b
    Examples:
      stoker signal 7 USR1
      stoker signal 7 8 9_3 TERM
    """
    *job_ids, name = words
    if not job_ids:
        raise click.UsageError("give the ids of jobs, and then a signal")
    client = connect()
    give(ctx, form, job_ids, lambda job_id: client.signal(job_id, name.upper()))


def give(ctx: click.Context, form: str, job_ids: Sequence[str], order: SendOperation) -> None:
    """Say it to each, and print what each is now (J1)."""
    done: list[JobView] = []
    worst = 0
    for job_id in job_ids:
        try:
            answered = order(job_id)
        except refused() as fault:
            status = show_problem(fault)
            worst = worst or status
            continue
        done += answered.jobs
        if for_people(form):
            for line in _lines(job_id, answered):
                click.echo(line)
        elif answered.total > len(answered.jobs):
            click.echo(f"only {len(answered.jobs)} of the {answered.total} jobs of {job_id} are shown", err=True)
    if not for_people(form):
        show_value(form, done)
    ctx.exit(worst)


def _lines(asked: str, told: "JobsToldView") -> Iterator[str]:
    if told.total <= LINES_MAX:
        yield from map(now, told.jobs)
        return
    untouched = told.total - told.changed
    rest = f"; to {untouched} it made no difference" if untouched else ""
    yield f"{told.changed} of the {told.total} jobs of {visible(asked)} were told{rest}"


def now(job: "JobView") -> str:
    """What a job is after the order. An array is ended by the writer a moment after its last member is."""
    members = job.members
    if members is None:
        return f"job {job.id} is {job.state.value}"
    over = members.total == members.succeeded + members.failed + members.cancelled
    return f"job {job.id}{'' if over else f' is {job.state.value}'}: {members_text(members)}"
