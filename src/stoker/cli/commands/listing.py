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
from stoker.cli.completion import ANY_JOB
from stoker.cli.display.canvas import open_canvas
from stoker.cli.display.job_details import job_columns
from stoker.cli.display.messages import NoticeBuffer, refused
from stoker.cli.display.output import Form, columns_chosen, for_people, show_rows, value_text
from stoker.cli.display.safe_text import visible
from stoker.cli.display.table import csv_text, table_lines
from stoker.cli.display.terminal import is_dumb, is_terminal, paints, size
from stoker.cli.job_selection import filter_options, gather
from stoker.cli.options import FiniteRange, OnceCommand
from stoker.cli.server import LOOK_PATIENCE_S, connect, table_answer_options

if TYPE_CHECKING:
    from stoker.brain.domain.errors import StokerError
    from stoker.cli.display.table import Column
    from stoker.wire.client import Client
    from stoker.wire.rest.job import JobListView, JobView

LIMIT: Final = 50
_SORTED_AS: Final = {"prio": "priority", "exit": "exit_code"}
"""Columns whose titles are shorter than their names in REST."""
_PLANNED: Final = ("ID", "NAME", "STATE", "GPUS", "PRIO", "TENANT", "WAITED", "START", "PLANNED NODES")
"""Columns of a list by planned start; with `-o wide` it has all."""
LIMIT_MAX: Final = 1_000_000
WATCH_S: Final = 2.0
WATCH_MIN_S: Final = 0.1
WATCH_MAX_S: Final = 86_400.0
Refresh = Callable[[], tuple[Sequence[str], str]]
"""What there is to see now, as lines without line ends, and what to say of it; mostly nothing. Raises: StokerError."""


@click.command("list", cls=OnceCommand)
@click.argument("array_id", metavar="[ARRAY_ID]", required=False, type=ANY_JOB)
@filter_options
@click.option("--class", "job_class", type=click.Choice(["online", "batch"]), help="Only jobs of this class.")
@click.option("--since", metavar="MOMENT", help="Only jobs that hadn't ended before: `7d` ago, a date or a time.")
@click.option("--until", metavar="MOMENT", help="Only jobs that were submitted before.")
@click.option("--members", is_flag=True, help="A row for each member of an array, instead of one for the array.")
@click.option(
    "--start",
    "planned",
    is_flag=True,
    help="Only jobs and members that have a reservation: when they start at the latest, and where. The earliest first.",
)
@click.option(
    "--sort",
    metavar="COLUMN",
    callback=lambda ctx, option, given: given and _sort_word(given),
    help="By this column, such as gpus or ended; `-COLUMN` = the largest first; `-id` = the newest first. [default: "
    "live]",
)
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), help=f"At most this many. [default: {LIMIT}]")
@click.option("--all", "every", is_flag=True, help="Every job that matches, however many.")
@click.option(
    "--watch",
    "watch_s",
    type=FiniteRange(WATCH_MIN_S, WATCH_MAX_S),
    is_flag=False,
    flag_value=WATCH_S,
    metavar="[SECONDS]",
    help=f"Look again every SECONDS ({WATCH_S:g}), until Ctrl-C.",
)
@table_answer_options
def list_jobs(
    form: str,
    array_id: str | None,
    every: bool,
    planned: bool,
    limit: int | None,
    watch_s: float | None,
    **given: Any,  # noqa: ANN401  # click gives each option its own type
) -> None:
    """Show jobs: what runs, then what waits, then what ended, each newest first. `ps` is the same.

    With ARRAY_ID the members of that array. Times are those of your zone, in JSON and CSV ISO 8601 in UTC.

    \b
    Examples:
      stoker list
      stoker list --mine --state pending,running -o wide
      stoker list --name 'train-*' --label team=nlp --sort -gpus
      stoker list 9 --state failed
      stoker list --start
      stoker list --all --columns id,name,state,ended -o csv
      stoker list --watch --state running
    """
    if every and limit is not None:
        raise click.UsageError("give --all or --limit, not both")
    if planned and given.get("sort"):
        raise click.UsageError("give --start or --sort, not both: the earliest start is first")
    order = {"planned": True} if planned else {"sort": "live"}
    wanted = order | with_timestamps(given, "since", "until")
    if array_id is not None:
        wanted["array"] = array_id
    most = None if every else limit or LIMIT
    if watch_s is not None:
        kept = NoticeBuffer()
        watched = connect(LOOK_PATIENCE_S, kept)
        watch(lambda: (_lines(watched, wanted, most, form), kept.take()), watch_s, _title(wanted))
    page = gather(connect(), wanted, most)
    show_rows(form, _columns(wanted), page.jobs, page, empty=_none_found(wanted))
    if page.next is not None and for_people(form):
        click.echo(_left_out(page), err=True)


def _columns(wanted: dict[str, Any]) -> "list[Column[JobView]]":
    """Return the columns of the list: of one by planned start these stand beside the few that tell which job it is."""
    columns = job_columns(now_ms())
    if not wanted.get("planned"):
        return columns
    return [each._replace(wide=each.title not in _PLANNED) for each in columns]


def _none_found(wanted: dict[str, Any]) -> str:
    """Return what is said of an empty list."""
    if wanted.get("planned"):
        return "no waiting job has a reservation; `stoker why ID` says what a job waits for"
    if wanted.keys() > {"sort"}:
        return "no jobs match; `stoker list` alone shows every one"
    return "no jobs yet; `stoker submit -- COMMAND` makes one"


def _sort_word(text: str) -> str:
    """Return the word of REST for a column as it is titled: `-PRIO` is `-priority`."""
    word = text.strip().lower().replace(" ", "_")
    minus, column = ("-", word[1:]) if word.startswith("-") else ("", word)
    column = column.replace("-", "_")
    return minus + _SORTED_AS.get(column, column)


def _lines(client: "Client", wanted: dict[str, Any], most: int | None, form: str) -> Sequence[str]:
    page = gather(client, wanted, most)
    columns, wide = columns_chosen(_columns(wanted), form)
    if form == Form.CSV:
        return csv_text(columns, page.jobs).splitlines()
    if not for_people(form):
        return value_text(form, page).splitlines()
    room = size().columns if is_terminal() else None
    lines = table_lines(columns, page.jobs, wide=wide, room=room, paint=paints())
    return [*lines, _left_out(page)] if page.next is not None and is_terminal() else lines


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
