"""Selection of jobs by what they have in common, for lists and for operations on many.

Rules: S1  an operation takes ids or filters, never both and never neither
       S2  what an operation would touch is shown first, and asked about; without a terminal `--yes` says that it is
           meant
       S3  with `--state` members of arrays are selected one by one, without it an array is selected as one
       S4  a job that has moved on since, so that the operation has nothing to do, is told and is no fault
Limits: `SELECTED_MAX` jobs at once; more are refused before the first is touched.
"""

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from stoker.cli.completion import tenants
from stoker.cli.options import joined, with_options

if TYPE_CHECKING:
    from stoker.wire.client import Client
    from stoker.wire.rest.job import JobListView, JobView

SELECTED_MAX: Final = 10_000
PREVIEW_ROWS: Final = 20
PREVIEW_COLUMNS: Final = ("ID", "NAME", "STATE", "GPUS", "TENANT", "USER", "ARRAY", "RAN")
MOVED_ON: Final = frozenset(
    {
        *("job_ended", "job_unknown", "member_unknown", "job_forgotten", "job_live", "job_waits"),
        *("not_held", "not_running", "nothing_failed"),
    }
)
"""Refusals of an operation whose job isn't any more as it was when it was selected (S4)."""
_FILTERS: Final = ("state", "name", "user", "mine", "tenant", "label", "array")


def _named_states(text: str | None) -> str | None:
    """Refuse an empty variable of a script, which must not mean all jobs. Raises: click.BadParameter."""
    if text is None or text.strip(", "):
        return text
    from stoker.brain.domain.lifecycle import JobState

    raise click.BadParameter(f"give one or more of {', '.join(JobState)}, with commas between")


def _not_empty(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Refuse the same of another filter. Raises: click.BadParameter."""
    if text is not None and not text.strip():
        raise click.BadParameter("it is empty; leave the option out, or say which jobs are meant")
    return text


filter_options: Final = with_options(
    click.option("--mine", is_flag=True, help="Only your own jobs."),
    click.option(
        "--state",
        metavar="STATE[,STATE]",
        # Without a value it is the empty text, so that both are refused with the words that there are.
        is_flag=False,
        flag_value="",
        multiple=True,
        callback=lambda *given: _named_states(joined(*given)),
        help="Only these, such as pending,running; any dialect is read.",
    ),
    click.option("--name", metavar="NAME", callback=_not_empty, help="Only jobs of this name, such as 'train-*'."),
    click.option("--user", callback=_not_empty, help="Only jobs of this user."),
    click.option("--tenant", callback=_not_empty, shell_complete=tenants, help="Only jobs of this tenant."),
    click.option(
        "--label",
        metavar="SEL",
        multiple=True,
        callback=joined,
        help="Only jobs with such labels: team=nlp, 'team in (a,b)', '!draft'.",
    ),
)
"""Options of a command that lists jobs or selects them."""
selection_options: Final = with_options(
    filter_options,
    click.option("--array", metavar="ID", callback=_not_empty, help="Only members of this array."),
    click.option("--yes", is_flag=True, help="Don't ask. Wanted where there is no terminal to ask at."),
)
"""Options of an operation that may select its jobs."""


class Selection(NamedTuple):
    """Jobs that an operation selects by filters where no state is given."""

    verb: str
    """What is done to them, for the question."""
    states: str
    """States that are asked for."""
    takes: "Callable[[JobView], bool]"
    """Whether the operation has something to do to a job of these; of an array by its members."""


def gather(client: "Client", wanted: "dict[str, Any]", most: int | None) -> "JobListView":
    """Return up to `most` jobs that match, in their order, as one page, however many are asked for. None = all."""
    from stoker.wire.client import JobListQuery
    from stoker.wire.rest.job import LIST_MAX, JobListView

    jobs: list[JobView] = []
    after: str | None = ""
    total = 0
    while after is not None and (most is None or len(jobs) < most):
        size = LIST_MAX if most is None else min(LIST_MAX, most - len(jobs))
        page = client.jobs(JobListQuery(**wanted, limit=size, after=after))
        jobs += page.jobs
        # Jobs that arrive while pages are asked for are on none of them.
        total, after = total or page.total, page.next
    return JobListView(jobs=jobs, total=max(total, len(jobs)), limit=most or len(jobs), next=after)


def select_jobs(client: "Client", selection: Selection, given: "dict[str, Any]", *, yes: bool) -> list[str]:
    """Return the ids of the jobs that the filters select, once a person has agreed.

    Raises: click.UsageError where nobody can be asked, or too many match.
    """
    asked = {name: given[name] for name in _FILTERS if given.get(name)}
    wanted = {"state": selection.states, "members": "state" in asked} | asked
    page = gather(client, wanted, SELECTED_MAX + 1)
    jobs = [job for job in page.jobs if "state" in asked or selection.takes(job)]
    if len(page.jobs) > SELECTED_MAX:
        raise click.UsageError(
            f"more than {SELECTED_MAX} jobs match, which is the most at once: narrow it, by --name or --state, or name "
            "arrays by their ids"
        )
    if not jobs:
        click.echo(f"no jobs match that could be {selection.verb}; `stoker list` shows those that there are", err=True)
        return []
    _preview(jobs)
    many = f"these {len(jobs)} jobs" if len(jobs) > 1 else "this job"
    if yes:
        click.echo(f"{many} will be {selection.verb}", err=True)
    elif not can_ask():
        raise click.UsageError(f"{many} would be {selection.verb}; without a terminal to ask at, say --yes")
    elif not click.confirm(f"shall {many} be {selection.verb}?", err=True):
        click.echo("nothing was done", err=True)
        return []
    return [job.id for job in jobs]


def can_ask() -> bool:
    """Return whether a person can be asked."""
    return sys.stdin.isatty()


def _preview(jobs: "list[JobView]") -> None:
    from stoker.cli.clock import now_ms
    from stoker.cli.display.job_details import job_columns
    from stoker.cli.display.table import table_lines
    from stoker.cli.display.terminal import size

    columns = job_columns(now_ms(), PREVIEW_COLUMNS)
    room = size().columns if sys.stderr.isatty() else None
    for line in table_lines(columns, jobs[:PREVIEW_ROWS], wide=True, room=room, paint=False):
        click.echo(line, err=True)
    if len(jobs) > PREVIEW_ROWS:
        click.echo(f"and {len(jobs) - PREVIEW_ROWS} more", err=True)


def check_chosen(job_ids: Iterable[str], given: "dict[str, Any]") -> bool:
    """Return whether filters select the jobs (S1). Raises: click.UsageError."""
    filters = [name for name in _FILTERS if given.get(name)]
    if any(True for _ in job_ids) and filters:
        raise click.UsageError(f"give ids, or filters such as --{filters[0]}, not both")
    if not filters and not any(True for _ in job_ids):
        raise click.UsageError("give the ids of jobs, or say which are meant: --mine, --name, --state, --label, ...")
    return bool(filters)
