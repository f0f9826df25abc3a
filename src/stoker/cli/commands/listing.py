"""Command `stoker list`: the jobs, as they are now or as they change, until Ctrl-C.

Rules: W1  on a terminal that can move its cursor the picture is redrawn in place; elsewhere each look is printed, with
           a blank line between two
       W2  a control plane that goes away is waited for: on a terminal below the last picture, elsewhere with one line
           on stderr; but the first look must succeed, for a wrong address never heals
       W3  a refusal that time doesn't lift ends it
       W4  a picture that comes from a standby is shown, and said to be one, in the same place
"""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from stoker.cli.clock import clock_text, now_ms, sleep_blocking, with_timestamps
from stoker.cli.completion import tenants
from stoker.cli.display.canvas import open_canvas
from stoker.cli.display.job_details import job_columns
from stoker.cli.display.messages import NoticeBuffer, refused
from stoker.cli.display.output import Form, for_people, show_rows, value_text
from stoker.cli.display.safe_text import visible
from stoker.cli.display.table import table_lines
from stoker.cli.display.terminal import is_dumb, is_terminal, paints, size
from stoker.cli.options import OnceCommand, joined
from stoker.cli.server import LOOK_PATIENCE_S, answer_options, connect

if TYPE_CHECKING:
    from stoker.brain.domain.errors import StokerError
    from stoker.wire.client import Client
    from stoker.wire.rest.job import JobListView, JobView

LIMIT: Final = 50
LIMIT_MAX: Final = 1_000_000
WATCH_S: Final = 2.0
WATCH_MIN_S: Final = 0.1
WATCH_MAX_S: Final = 86_400.0
Refresh = Callable[[], tuple[Sequence[str], str]]
"""What there is to see now, as lines without line ends, and what to say of it; mostly nothing. Raises: StokerError."""


@click.command("list", cls=OnceCommand)
@click.option(
    "--state",
    metavar="STATE[,STATE]",
    # Without a value it is the empty text, so that both are refused with the words that there are.
    is_flag=False,
    flag_value="",
    multiple=True,
    callback=lambda *given: _named_states(joined(*given)),
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
    wanted = with_timestamps(given, "since", "until")
    most = None if every else limit or LIMIT
    if watch_s is not None:
        kept = NoticeBuffer()
        watched = connect(LOOK_PATIENCE_S, kept)
        watch(lambda: (_lines(watched, wanted, most, form), kept.take()), watch_s, _title(wanted))
    page = gather(connect(), wanted, most)
    show_rows(form, job_columns(now_ms()), page.jobs, page)
    if page.next is not None and for_people(form):
        click.echo(_left_out(page), err=True)


def _named_states(text: str | None) -> str | None:
    """Refuse an empty variable of a script, which must not mean all jobs. Raises: click.BadParameter."""
    if text is None or text.strip(", "):
        return text
    from stoker.brain.domain.lifecycle import JobState

    raise click.BadParameter(f"give one or more of {', '.join(JobState)}, with commas between")


def _lines(client: "Client", wanted: dict[str, Any], most: int | None, form: str) -> Sequence[str]:
    page = gather(client, wanted, most)
    if not for_people(form):
        return value_text(form, page).splitlines()
    room = size().columns if is_terminal() else None
    columns = job_columns(now_ms())
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


def watch(look: Refresh, every_s: float, title: str) -> NoReturn:
    """Look every `every_s` seconds. `title` says at what, on a terminal."""
    first = look()
    if is_terminal() and not is_dumb():
        _redraw(look, every_s, title, first)
    _print_on(look, every_s, first)


def _redraw(look: Refresh, every_s: float, title: str, first: tuple[Sequence[str], str]) -> NoReturn:
    seen, trouble = first
    with open_canvas() as canvas:
        while True:
            head = f"{clock_text()}  {visible(title)}, every {every_s:g}s; Ctrl-C ends it"
            told = [_styled(visible(trouble), fg="red")] if trouble else []
            canvas.draw([_styled(head, dim=True), *told, *seen])
            sleep_blocking(every_s)
            try:
                seen, trouble = look()
            except refused() as fault:
                trouble = _waits(fault)


def _print_on(look: Refresh, every_s: float, first: tuple[Sequence[str], str]) -> NoReturn:
    seen: Sequence[str] | None
    (seen, told), said = first, ""
    while True:
        if told and _kind(told) != _kind(said):
            click.echo(visible(told), err=True)
        said = told
        if seen is not None:
            click.echo("\n".join([*seen, ""]))
            sys.stdout.flush()
        sleep_blocking(every_s)
        try:
            seen, told = look()
        except refused() as fault:
            seen, told = None, _waits(fault)


def _kind(told: str) -> str:
    """What is said once, whatever numbers are in it."""
    return told.partition(" ")[0]


def _waits(fault: "StokerError") -> str:
    """Why to wait. Raises: the fault again where waiting is of no use (W3)."""
    from stoker.wire.status import status_of

    if status_of(fault.refusal.code).http not in (503, 504):
        raise fault
    return f"waiting: {visible(fault.refusal.message)} [{fault.refusal.code}]"


def _styled(text: str, **style: Any) -> str:  # noqa: ANN401  # click types each
    return click.style(text, **style) if paints() else text
