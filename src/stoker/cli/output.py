"""In which form does a command print what it found?

`-o table|wide|json|yaml` on every command that prints data, `--json` for short. JSON and YAML carry what the server
answered, whole; tables pick what fits a line.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, TypeVar

import click

from stoker.cli.table import Column, Row, show_table

Command = TypeVar("Command", bound=Callable[..., Any])


class Form(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


def output_options(command: Command) -> Command:
    """Give a command `-o/--output` and `--json`; it receives `form`."""
    short = click.option("--json", "form", flag_value=Form.JSON.value, help="The same as -o json.")
    full = click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice([form.value for form in Form]),
        default=Form.TABLE.value,
        show_default=True,
        help="How to print it.",
    )
    return full(short(command))


def show_rows(form: str, columns: Sequence[Column[Row]], rows: Sequence[Row], value: object) -> None:
    """Print `rows` as a table, or `value` (whatever msgspec encodes) as JSON or YAML."""
    if form in (Form.TABLE, Form.WIDE):
        show_table(columns, rows, wide=form == Form.WIDE)
    else:
        show_value(form, value)


def show_value(form: str, value: object) -> None:
    """Print one value as JSON or YAML."""
    import msgspec

    if form == Form.YAML:
        from stoker.cli.yaml_text import yaml_text

        click.echo(yaml_text(msgspec.to_builtins(value)), nl=False)
    else:
        click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))
