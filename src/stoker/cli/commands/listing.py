"""Command `stoker list`: the jobs, as they are now or as they change."""

from typing import TYPE_CHECKING, Any, Final

import click

from stoker.cli.completion import tenants
from stoker.cli.display.job_columns import job_columns
from stoker.cli.display.messages import NoticeBuffer
from stoker.cli.display.output import Form, for_people, show_rows, value_text
from stoker.cli.display.table import table_lines
from stoker.cli.display.terminal import is_terminal, paints, size
from stoker.cli.server import LOOK_PATIENCE_S, answer_options, connect
from stoker.cli.watch import WATCH_MAX_S, WATCH_MIN_S, WATCH_S, watch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stoker.wire.client import Client
    from stoker.wire.rest.job import JobListView, JobView

LIMIT: Final = 50
LIMIT_MAX: Final = 1_000_000


@click.command("list")
@click.option(
    "--state",
    metavar="STATE[,STATE]",
    # Without a value it is the empty text, so that both are refused with the words that there are.
    is_flag=False,
    flag_value="",
    callback=lambda ctx, option, text: _named_states(text),
    help="Only these, such as pending,running; any dialect is read.",
)
@click.option("--name", help="Only jobs of this name.")
@click.option("--user", help="Only jobs of this user.")
@click.option("--tenant", shell_complete=tenants, help="Only jobs of this tenant.")
@click.option("--class", "job_class", type=click.Choice(["online", "batch"]), help="Only jobs of this class.")
@click.option("--since", metavar="MOMENT", help="Only jobs that hadn't ended before: `7d` ago, a date or a time.")
@click.option("--until", metavar="MOMENT", help="Only jobs that were submitted before.")
@click.option("--members", is_flag=True, help="A row for each member of an array, instead of one for the array.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), help=f"At most this many. [default: {LIMIT}]")
@click.option("--all", "every", is_flag=True, help="Every job that matches, however many.")
@click.option(
    "--watch",
    "watch_s",
    type=click.FloatRange(WATCH_MIN_S, WATCH_MAX_S),
    is_flag=False,
    flag_value=WATCH_S,
    metavar="[SECONDS]",
    help=f"Look again every SECONDS ({WATCH_S:g}), until Ctrl-C.",
)
@answer_options
def list_jobs(form: str, every: bool, limit: int | None, watch_s: float | None, **given: Any) -> None:  # noqa: ANN401  # click gives each option its own type
    """Show jobs, newest first. `ps` is the same.

    \b
    Examples:
      stoker list
      stoker list --state pending,running -o wide
      stoker list --all --json
      stoker list --watch --state running
    """
    if every and limit is not None:
        raise click.UsageError("give --all or --limit, not both")
    wanted = _wanted(given)
    most = None if every else limit or LIMIT
    if watch_s is not None:
        kept = NoticeBuffer()
        watched = connect(LOOK_PATIENCE_S, kept)
        watch(lambda: (_lines(watched, wanted, most, form), kept.take()), watch_s, _title(wanted))
    page = gather(connect(), wanted, most)
    show_rows(form, job_columns(_now_ms(form)), page.jobs, page)
    if page.next is not None and for_people(form):
        click.echo(_left_out(page), err=True)


def _named_states(text: str | None) -> str | None:
    """Refuse an empty variable of a script, which must not mean all jobs. Raises: click.BadParameter."""
    if text is None or text.strip(", "):
        return text
    from stoker.brain.domain.lifecycle import JobState

    raise click.BadParameter(f"give one or more of {', '.join(JobState)}, with commas between")


def _wanted(given: dict[str, Any]) -> dict[str, Any]:
    wanted = {name: value for name, value in given.items() if value}
    for name in wanted.keys() & {"since", "until"}:
        from stoker.cli.clock import timestamp

        wanted[name] = timestamp(wanted[name])
    return wanted


def _lines(client: "Client", wanted: dict[str, Any], most: int | None, form: str) -> "Sequence[str]":
    page = gather(client, wanted, most)
    if not for_people(form):
        return value_text(form, page).splitlines()
    room = size().columns if is_terminal() else None
    columns = job_columns(_now_ms(form))
    lines = table_lines(columns, page.jobs, wide=form == Form.WIDE, room=room, paint=paints())
    return [*lines, _left_out(page)] if page.next is not None and is_terminal() else lines


def gather(client: "Client", wanted: "dict[str, Any]", most: int | None) -> "JobListView":
    """Return up to `most` jobs that match, newest first, as one page, however many pages are asked for. None = all."""
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


def _left_out(page: "JobListView") -> str:
    """Jobs of the history beyond the page are not counted: pages lead there, and `total` doesn't."""
    count = page.total - len(page.jobs)
    return f"at least {count} more; --all shows them" if count > 0 else "more that ended long ago; --all shows them"


def _title(wanted: dict[str, Any]) -> str:
    return " ".join(["jobs", *(f"{name.removeprefix('job_')}={value}" for name, value in wanted.items())])


def _now_ms(form: str) -> int:
    """The time in milliseconds since 1970; 0 where no table measures spans."""
    if not for_people(form):
        return 0
    from stoker.cli.clock import now_ms

    return now_ms()
