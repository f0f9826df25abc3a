"""Tables for people.

On a terminal with colour for states and shortened to the window; into a pipe go plain aligned columns, one line per
row, so that `grep` and `awk` see what a person sees.

Rules: B1  a cell never holds a raw control character: `safe_text.visible` has seen every one
       B2  into a pipe nothing is cut and nothing is coloured
       B3  a row is one line, in both cases, whatever its texts hold
       B4  a narrow terminal shortens elastic columns only, the widest first, and shows that it did
       B5  one too narrow for that leaves out columns of numbers, the last first and the first column never, unless
           `-o wide` asks for all; what is wider even then is left to the terminal to fold, for a row without its id is
           of no use
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

import click

from stoker.cli.clock import local_text
from stoker.cli.display.safe_text import cut, visible, width
from stoker.cli.display.terminal import is_terminal, paints, size

Row = TypeVar("Row")

COLOURS: Final = {
    "pending": "yellow",
    "held": "magenta",
    "starting": "cyan",
    "running": "cyan",
    "stopping": "cyan",
    "succeeded": "green",
    "ready": "green",
    "idle": "green",
    "busy": "cyan",
    "draining": "yellow",
    "drained": "yellow",
    "quarantined": "yellow",
    "cancelled": "bright_black",
    "forgotten": "bright_black",
}
"""Any other word in a coloured column is bad news and red."""
GAP: Final = 2
"""Blanks between columns."""
ELASTIC_MIN: Final = 8
"""Below that a shortened text says nothing."""


class Column(NamedTuple, Generic[Row]):
    """One column: its title and how a row's cell is made."""

    title: str
    cell: Callable[[Row], object]
    wide: bool = False  # only with `-o wide`
    right: bool = False  # numbers
    coloured: bool = False
    elastic: bool = False  # what a narrow terminal shortens first
    instant: bool = False  # an instant as the server writes it, which people read in their own zone
    missing: str = ""  # what people read where there is none
    cells_max: int = 0  # what is longer is cut for people; 0 = nothing is

    def text(self, row: Row) -> str:
        """Return the cell as people read it."""
        value = self.cell(row)
        if not value and self.missing:
            return self.missing
        text = cell_text(local_text(value) if self.instant and isinstance(value, str) else value)
        return cut(text, self.cells_max) if self.cells_max else text


def fields(*titles: str, wide: bool = False, elastic: bool = False) -> "list[Column[Any]]":
    """Return columns that show a row's fields of the same names: `CREATED BY` shows `created_by`."""
    return [Column(each, attrgetter(each.lower().replace(" ", "_")), wide, elastic=elastic) for each in titles]


def csv_text(columns: Sequence[Column[Row]], rows: Iterable[Row]) -> str:
    """Return titles and rows as RFC 4180 has them, instants as ISO 8601, and an empty cell for what isn't there."""
    from csv import writer
    from io import StringIO

    text = StringIO()
    lines = writer(text)
    lines.writerow([column.title for column in columns])
    for row in rows:
        cells = [column.cell(row) for column in columns]
        lines.writerow(["" if cell is None else visible(str(cell)) for cell in cells])
    return text.getvalue()


def show_table(columns: Sequence[Column[Row]], rows: Sequence[Row], *, wide: bool) -> None:
    """Print the rows; with none only the titles, so that a script's `tail -n +2` stays right."""
    room = size().columns if is_terminal() else None
    for line in table_lines(columns, rows, wide=wide, room=room, paint=paints()):
        click.echo(line, color=paints())


def table_lines(
    columns: Sequence[Column[Row]], rows: Iterable[Row], *, wide: bool, room: int | None, paint: bool
) -> list[str]:
    """The titles and a line for each row. `room` None = as wide as it comes."""
    shown = [column for column in columns if wide or not column.wide]
    cells = [[column.text(row) for column in shown] for row in rows]
    if room is None:
        return plain_lines(shown, cells, paint=paint)
    if not wide:
        places = _places_shown(shown, cells, room)
        shown, cells = [shown[at] for at in places], [[row[at] for at in places] for row in cells]
    return plain_lines(shown, fit(shown, cells, room), paint=paint)


def cell_text(value: object) -> str:
    """`-` stands for what isn't there."""
    if value is None or value == "":
        return "-"
    return visible(str(value))


def plain_lines(columns: Sequence[Column[Row]], cells: Sequence[Sequence[str]], *, paint: bool = False) -> list[str]:
    """Aligned columns, two blanks apart, without trailing blanks."""
    titles = [column.title for column in columns]
    widths = _widths([titles, *cells])
    head = (click.style(title, bold=True) if paint else title for title in titles)
    lines = [_line(head, titles, widths, columns)]
    for row in cells:
        shown = (
            painted(text) if paint and column.coloured else text for text, column in zip(row, columns, strict=True)
        )
        lines.append(_line(shown, row, widths, columns))
    return lines


def _widths(table: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(width, texts)) for texts in zip(*table, strict=True)]


def _line(shown: Iterable[str], texts: Sequence[str], widths: Sequence[int], columns: Sequence[Column[Row]]) -> str:
    """`shown` are the texts as they are printed, with colours that take no room."""
    parts = []
    last = len(columns) - 1
    for at, (drawn, text, room, column) in enumerate(zip(shown, texts, widths, columns, strict=True)):
        blanks = " " * (room - width(text))
        parts.append(blanks + drawn if column.right else drawn if at == last else drawn + blanks)
    return (" " * GAP).join(parts)


def _places_shown(columns: Sequence[Column[Row]], cells: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the columns that fit; of numbers the last is left out first (B5)."""
    needs = _widths([[column.title for column in columns], *cells])
    least = [min(need, ELASTIC_MIN) if column.elastic else need for need, column in zip(needs, columns, strict=True)]
    places = list(range(len(columns)))
    for at in reversed(range(1, len(columns))):
        if sum(least[place] for place in places) + GAP * (len(places) - 1) <= room:
            break
        if columns[at].right:
            places.remove(at)
    return places


def fit(columns: Sequence[Column[Row]], cells: Sequence[Sequence[str]], room: int) -> list[list[str]]:
    """Return the cells, with elastic ones cut so that a line takes `room`, if cutting down to ELASTIC_MIN is enough."""
    needs = _widths([[column.title for column in columns], *cells])
    elastic = [need for need, column in zip(needs, columns, strict=True) if column.elastic]
    left = room - GAP * (len(columns) - 1) - (sum(needs) - sum(elastic))
    levels = range(max(elastic, default=0), ELASTIC_MIN, -1)
    longest = next((level for level in levels if sum(min(need, level) for need in elastic) <= left), ELASTIC_MIN)
    return [
        [cut(text, longest) if column.elastic else text for text, column in zip(row, columns, strict=True)]
        for row in cells
    ]


def painted(word: str) -> str:
    """A state in its colour; whatever isn't a known one is bad news."""
    return word if word == "-" else click.style(word, fg=COLOURS.get(word.split()[0], "red"))
