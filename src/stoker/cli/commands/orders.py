"""`stoker cancel`, and whatever else is said to jobs by their ids.

Rules: J1  every id is tried, whatever became of those before it; the exit status is that of the first refusal
       J2  an id may name a job, a member of an array, or some of them: `7`, `7_3`, `7_[0-4,9]`
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from stoker.cli.output import for_people, output_options, show_value
from stoker.cli.problem import refused, show_problem
from stoker.cli.server import connect, server_option

if TYPE_CHECKING:
    from stoker.wire.rest.job import JobView

Command = TypeVar("Command", bound=Callable[..., Any])
Order = Callable[[str], "list[JobView]"]
LINES_MAX: Final = 20
"""Beyond that the members of one answer are counted, not listed."""


def _ids(command: Command) -> Command:
    argument = click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
    return argument(output_options(server_option(command)))


@click.command()
@_ids
@click.pass_context
def cancel(ctx: click.Context, job_ids: tuple[str, ...], form: str) -> None:
    """Cancel jobs: terminate, wait a grace time, kill.

    A job is `cancelled` once its processes are gone; until then it is `stopping`. Every id is tried; the exit status
    is that of the first refusal.

    \b
    Examples:
      stoker cancel 7
      stoker cancel 7 8 9
    """
    client = connect()
    give(ctx, form, job_ids, lambda job_id: [client.cancel(job_id)])


def give(ctx: click.Context, form: str, job_ids: Sequence[str], order: Order) -> None:
    """Say it to each, and print what each is now (J1)."""
    done: list[JobView] = []
    worst = 0
    for job_id in job_ids:
        try:
            answered = order(job_id)
        except refused() as fault:
            worst = worst or show_problem(fault)
            continue
        done += answered
        if for_people(form):
            for line in _lines(job_id, answered):
                click.echo(line)
    if not for_people(form):
        show_value(form, done)
    ctx.exit(worst)


def _lines(asked: str, jobs: "Sequence[JobView]") -> Iterator[str]:
    if len(jobs) <= LINES_MAX:
        yield from (f"job {job.id} is {job.state.value}" for job in jobs)
        return
    states = Counter(job.state.value for job in jobs)
    counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
    yield f"{len(jobs)} jobs of {asked}: {counts}"
