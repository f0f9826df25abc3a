"""Forms in which a command prints its answer: table, wide table, JSON or YAML, and for tables CSV.

`-o table|wide|json|yaml` is on every command that prints data, `--json` for short. JSON and YAML carry what the server
answered, whole; tables pick what fits a line. `-o csv` and `--columns` are on those that print a table: CSV has every
column, or those that were chosen. Every command prints its answer through one of the functions here.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final, TypeVar

import click

from stoker.cli.display.messages import refused, show_problem
from stoker.cli.display.safe_text import visible, width
from stoker.cli.display.table import Column, Row, cell_text, csv_text, painted, show_table
from stoker.cli.display.terminal import is_terminal, paints, size
from stoker.cli.options import Command, with_options

FOLD_MIN = 20
"""Cells below which a text is left to the terminal to fold."""
Pairs = Iterable[tuple[str, object]]
Answer = TypeVar("Answer")


class Form(StrEnum):
    """Form of an answer, as `-o` names it."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    """Of tables only."""


_CHOSEN: Final = "stoker.columns"


def _form_options(*forms: Form) -> Callable[[Command], Command]:
    return with_options(
        click.option(
            "-o",
            "--format",
            "form",
            type=click.Choice([form.value for form in forms]),
            default=Form.TABLE.value,
            show_default=True,
            help="How to print it.",
        ),
        click.option("--json", "form", flag_value=Form.JSON.value, help="The same as -o json."),
    )


def _remember_columns(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_CHOSEN] = value


output_options: Final = _form_options(Form.TABLE, Form.WIDE, Form.JSON, Form.YAML)
"""Options `-o/--format` and `--json` of a command, which receives `form`."""
table_options: Final = with_options(
    _form_options(*Form),
    click.option(
        "--columns",
        metavar="A,B,C",
        expose_value=False,
        callback=_remember_columns,
        help="Only these columns, in this order; any of -o wide.",
    ),
)
"""The same of a command that prints a table, with `-o csv` and `--columns`, which `show_rows` heeds."""


def for_people(form: str) -> bool:
    """Return whether a table or lines are wanted, and not a text for programs."""
    return form in (Form.TABLE, Form.WIDE)


def show_rows(
    form: str,
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    value: object,
    below: Pairs | None = None,
    empty: str = "",
) -> None:
    """Print `rows` as a table with the pairs `below` it, or `value` (whatever msgspec encodes) as JSON or YAML.

    `empty` is said on stderr where a table has no row.
    """
    shown, wide = columns_chosen(columns, form)
    if form == Form.CSV:
        click.echo(csv_text(shown, rows).encode(), nl=False)
        return
    if not for_people(form):
        show_value(form, value)
        return
    show_table(shown, rows, wide=wide)
    if empty and not rows:
        click.echo(empty, err=True)
    if below is not None:
        click.echo()
        show_pairs(form, below, value)


def columns_chosen(columns: Sequence[Column[Row]], form: str) -> tuple[Sequence[Column[Row]], bool]:
    """Return the columns to show, and whether those that only a wide table has are among them.

    Raises: click.BadParameter for a name that no column has, with those that there are.
    """
    ctx = click.get_current_context(silent=True)
    words: str | None = ctx.meta.get(_CHOSEN) if ctx is not None else None
    if words is None:
        return columns, form in (Form.WIDE, Form.CSV)
    by_name = {_plain(column.title): column for column in columns}
    named = [word for word in map(_plain, words.split(",")) if word]
    unknown = [word for word in named if word not in by_name]
    if unknown or not named:
        said = f"there is no column {unknown[0]!r}" if unknown else "no column is named"
        known = ", ".join(_plain(column.title) for column in columns)
        raise click.BadParameter(f"{visible(said)}; there are {known}", param_hint="--columns")
    return [by_name[word] for word in named], True


def _plain(title: str) -> str:
    """Return a title as it is typed: `TIME LIMIT` is time_limit."""
    return title.strip().lower().replace(" ", "_").replace("-", "_")


def show_pairs(form: str, pairs: Pairs, value: object) -> None:
    """Print `key  value` lines, values below each other, or `value` as JSON or YAML.

    A key that begins with `state` has its value coloured as in a table.
    """
    room = size().columns if is_terminal() else None
    show_lines(form, pair_lines(pairs, paint=paints(), room=room), value)


def show_each(form: str, names: Sequence[str], ask: Callable[[str], Answer], show: Callable[[Answer], None]) -> None:
    """Show the answer about each name, with an empty line between; JSON and YAML of several are one list.

    Every name is asked about; the command ends with the exit status of the first refusal.
    """
    found: list[Answer] = []
    worst = 0
    for name in names:
        try:
            answer = ask(name)
        except refused() as fault:
            if len(names) == 1:
                raise
            status = show_problem(fault)
            worst = worst or status
            continue
        if for_people(form) and found:
            click.echo()
        found.append(answer)
        if for_people(form) or len(names) == 1:
            show(answer)
    if not for_people(form) and len(names) > 1:
        show_value(form, found)
    click.get_current_context().exit(worst)


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
