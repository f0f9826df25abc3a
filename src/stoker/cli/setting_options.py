"""Options that name data folders, settings files and single settings on this machine.

A setting of a daemon is given as `--set KEY=VALUE`: it reaches every key, wins over file and environment, and is named
as the origin of a value.
"""

from pathlib import Path
from typing import Final

import click

from stoker.cli.options import AddOption

VALUE_CHARS_MAX: Final = 64 * 1024


def data_dir_option(help_text: str) -> AddOption:
    """Return the option `--data-dir`, the path of a folder on this machine; the command receives `data_dir`."""
    return click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help=help_text)


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


set_option: Final[AddOption] = click.option(
    "--set",
    "flags",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_pairs,
    help="One setting, such as http.port=18080. It wins over the file and the environment; may be repeated.",
)
"""Option `--set`; the command receives `flags`, dotted keys with their text."""
config_option: Final[AddOption] = click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="Settings file. [default: none; defaults and STOKER__SECTION__KEY hold]",
)
"""Option `-c` of a daemon; the command receives `path`."""
asked_there_option: Final = data_dir_option(
    "Data folder of a control plane on this machine, running or not: it is asked there, and wants no token."
)
