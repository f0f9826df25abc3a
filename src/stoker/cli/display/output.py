"""Forms in which a command prints its answer: table, wide table, JSON or YAML.

`-o table|wide|json|yaml` is on every command that prints data, `--json` for short. JSON and YAML carry what the server
answered, whole; tables pick what fits a line. Every command prints its answer through one of the functions here.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import click

from stoker.cli.display.safe_text import visible, width
from stoker.cli.display.table import Column, Row, cell_text, painted, show_table
from stoker.cli.display.terminal import is_terminal, paints, size
from stoker.cli.options import with_options

FOLD_MIN = 20
"""Cells below which a text is left to the terminal to fold."""
Pairs = Iterable[tuple[str, object]]


class Form(StrEnum):
    """Form of an answer, as `-o` names it."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


output_options: Final = with_options(
    click.option(
        "-o",
        "--format",
        "form",
        type=click.Choice([form.value for form in Form]),
        default=Form.TABLE.value,
        show_default=True,
        help="How to print it.",
    ),
    click.option("--json", "form", flag_value=Form.JSON.value, help="The same as -o json."),
)
"""Options `-o/--format` and `--json` of a command, which receives `form`."""


def for_people(form: str) -> bool:
    """Return whether a table or lines are wanted, and not a text for programs."""
    return form in (Form.TABLE, Form.WIDE)


def show_rows(
    form: str, columns: Sequence[Column[Row]], rows: Sequence[Row], value: object, below: Pairs | None = None
) -> None:
    """Print `rows` as a table with the pairs `below` it, or `value` (whatever msgspec encodes) as JSON or YAML."""
    if not for_people(form):
        show_value(form, value)
        return
    show_table(columns, rows, wide=form == Form.WIDE)
    if below is not None:
        click.echo()
        show_pairs(form, below, value)


def show_pairs(form: str, pairs: Pairs, value: object) -> None:
    """Print `key  value` lines, values below each other, or `value` as JSON or YAML.

    A key that begins with `state` has its value coloured as in a table.
    """
    room = size().columns if is_terminal() else None
    show_lines(form, pair_lines(pairs, paint=paints(), room=room), value)


def pair_lines(pairs: Pairs, *, paint: bool, room: int | None = None) -> list[str]:
    """Return a line for each pair; within a `room` of so many cells a long value goes on below itself."""
    lines = [(visible(key), cell_text(value)) for key, value in pairs]
    margin = max((len(key) for key, _ in lines), default=0) + 2
    shown = []
    for key, text in lines:
        first, *rest = _folded(text, None if room is None else room - margin)
        shown.append(f"{key:{margin}}{painted(first) if paint and key.strip() == 'state' else first}")
        shown += [" " * margin + line for line in rest]
    return shown


def _folded(text: str, room: int | None) -> list[str]:
    if room is None or room < FOLD_MIN or width(text) <= room:
        return [text]
    from textwrap import wrap

    return wrap(text, room, break_on_hyphens=False)


def folded(lines: Iterable[str]) -> Iterable[str]:
    """Yield the lines, on a terminal folded between words where they are wider; what goes on is indented."""
    if not is_terminal():
        yield from lines
        return
    from textwrap import wrap

    for line in lines:
        yield from wrap(line, max(size().columns, FOLD_MIN), subsequent_indent="  ", break_on_hyphens=False) or [line]


def show_lines(form: str, lines: Iterable[str], value: object) -> None:
    """Print a few words for people, or `value` as JSON or YAML. The lines hold nothing that acts on a terminal."""
    if not for_people(form):
        show_value(form, value)
        return
    for line in lines:
        click.echo(line, color=paints())


def show_value(form: str, value: object) -> None:
    """Print one value as JSON or YAML, as UTF-8 whatever the terminal's encoding is."""
    click.echo(value_text(form, value).encode(), nl=False)


def value_text(form: str, value: object) -> str:
    """One value as JSON or YAML, ending in a newline."""
    import msgspec

    if form == Form.YAML:
        from stoker.cli.display.yaml_text import yaml_text

        return yaml_text(msgspec.to_builtins(value))
    from stoker.cli.display.safe_text import safe_json

    return safe_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()) + "\n"
