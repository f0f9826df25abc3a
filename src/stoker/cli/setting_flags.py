"""Option `--set KEY=VALUE` of commands that read a daemon's settings.

It reaches every key, wins over file and environment, and is named as the origin of the value.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
VALUE_CHARS_MAX: Final = 64 * 1024


def set_option(command: Command) -> Command:
    """Give a command `--set`; it receives `flags`, dotted keys with their text."""
    option = click.option(
        "--set",
        "flags",
        metavar="KEY=VALUE",
        multiple=True,
        callback=_pairs,
        help="One setting, such as http.port=18080. It wins over the file and the environment; may be repeated.",
    )
    return option(command)


def _pairs(ctx: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise click.BadParameter(f"{text[:80]!r} is not KEY=VALUE, such as http.port=18080", ctx, option)
        if key in pairs:
            raise click.BadParameter(f"{key!r} is given twice", ctx, option)
        if len(value) > VALUE_CHARS_MAX:
            raise click.BadParameter(f"the value of {key!r} is longer than {VALUE_CHARS_MAX} characters", ctx, option)
        pairs[key] = value
    return pairs
