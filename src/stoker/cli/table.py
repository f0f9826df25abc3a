"""How do rows become a table for people?

On a terminal rich draws it, with colour for states and folded to the window; into a pipe go plain aligned columns, one
line per row, so that `grep` and `awk` see what a person sees. rich is imported only in the first case.

Rules: B1  a cell never holds a raw control character: `safe_text.visible` has seen every one
       B2  into a pipe nothing is cut and nothing is coloured
       B3  a row is one line, in both cases, whatever its texts hold
"""

import sys
from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import click

from stoker.cli.safe_text import visible, width

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
    widths = [max(width(row[place]) for row in table) for place in range(len(columns))]
    return ["  ".join(map(_aligned, row, widths, columns)).rstrip() for row in table]


def _aligned(text: str, size: int, column: Column[Row]) -> str:
    room = " " * (size - width(text))
    return room + text if column.right else text + room


def _draw(columns: Sequence[Column[Row]], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(columns):
        longest = max((width(row[place]) for row in cells), default=0)
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=None if column.elastic else max(longest, len(column.title)),
        )
    for row in cells:
        table.add_row(*(Text(text, style=_style(column, text)) for column, text in zip(columns, row, strict=True)))
    Console(highlight=False).print(table)


def _style(column: Column[Row], text: str) -> str:
    return COLOURS.get(text.split()[0], "red") if column.coloured and text != "-" else ""
