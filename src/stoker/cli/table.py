"""How do rows become a table for people?

On a terminal rich draws it, with colour for states and shortened to the window; into a pipe go plain aligned columns,
one line per row, so that `grep` and `awk` see what a person sees. rich is imported only in the first case.

Rules: B1  a cell never holds a raw control character: `safe_text.visible` has seen every one
       B2  into a pipe nothing is cut and nothing is coloured
       B3  a row is one line, in both cases, whatever its texts hold
       B4  a narrow terminal shortens elastic columns only, the widest first, and shows that it did; what is wider
           even then is left to the terminal to fold, for a row without its id is of no use
"""

import sys
from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import click

from stoker.cli.safe_text import cut, visible, width

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


def show_table(columns: Sequence[Column[Row]], rows: Sequence[Row], *, wide: bool) -> None:
    """Print the rows; with none only the titles, so that a script's `tail -n +2` stays right."""
    shown = [column for column in columns if wide or not column.wide]
    cells = [[cell_text(column.cell(row)) for column in shown] for row in rows]
    if sys.stdout.isatty():
        _draw(shown, cells)
    else:
        for line in plain_lines(shown, cells):
            click.echo(line)


def cell_text(value: object) -> str:
    """`-` stands for what isn't there."""
    if value is None or value == "":
        return "-"
    return visible(str(value))


def plain_lines(columns: Sequence[Column[Row]], cells: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns, two blanks apart, without trailing blanks."""
    table = [[column.title for column in columns], *cells]
    widths = _widths(table)
    return [(" " * GAP).join(map(_aligned, row, widths, columns)).rstrip() for row in table]


def _widths(table: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(width, texts)) for texts in zip(*table, strict=True)]


def _aligned(text: str, size: int, column: Column[Row]) -> str:
    room = " " * (size - width(text))
    return room + text if column.right else text + room


def fit(columns: Sequence[Column[Row]], cells: Sequence[Sequence[str]], room: int) -> list[list[str]]:
    """The same cells, with elastic ones cut so that a line takes `room`, if cutting down to ELASTIC_MIN is enough."""
    needs = _widths([[column.title for column in columns], *cells])
    elastic = [need for need, column in zip(needs, columns, strict=True) if column.elastic]
    left = room - GAP * (len(columns) - 1) - (sum(needs) - sum(elastic))
    levels = range(max(elastic, default=0), ELASTIC_MIN, -1)
    longest = next((level for level in levels if sum(min(need, level) for need in elastic) <= left), ELASTIC_MIN)
    return [
        [cut(text, longest) if column.elastic else text for text, column in zip(row, columns, strict=True)]
        for row in cells
    ]


def _draw(columns: Sequence[Column[Row]], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    shown = fit(columns, cells, console.width)
    titles = [column.title for column in columns]
    widths = _widths([titles, *shown])
    for row, is_head in ((titles, True), *((row, False) for row in shown)):
        line = Text()
        for text, size, column in zip(row, widths, columns, strict=True):
            line.append(_aligned(text, size, column), "bold" if is_head else _style(column, text)).append(" " * GAP)
        line.rstrip()  # blanks beyond the last column would fold into a line of their own
        # A terminal too narrow even so wraps the line itself, as it does with everything else.
        console.print(line, soft_wrap=True)


def _style(column: Column[Row], text: str) -> str:
    return COLOURS.get(text.split()[0], "red") if column.coloured and text != "-" else ""
