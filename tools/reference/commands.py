"""The reference page of commands, with the arguments and options of each.

Drawn from the command table itself, in the order in which `--help` shows it.
"""

import inspect
from collections.abc import Iterator

import click

import stoker.cli.main as face
from tools.reference.markdown import code, page, table


def commands() -> str:
    """The page of commands."""
    parts = (part for path, command in every() for part in _part(path, command))
    return page(
        "Commands",
        "`stoker COMMAND --help` says the same. Exit status: 0 done, 1 failed, 2 usage, 3 not found, 4 refused, "
        "5 no server; `submit --wait`, `--follow` and `wait` exit with the job's own.",
        *parts,
    )


def every() -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with the words that call it."""
    yield from _below("stoker", _root())


def _root() -> click.Group:
    (root,) = {id(value): value for value in vars(face).values() if isinstance(value, click.Group)}.values()
    return root


def _below(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if child is not None and not child.hidden:
            yield from _below(f"{path} {name}", child)


def _paragraph(text: str) -> str:
    """What `--help` shows line by line is an example: its lines become code."""
    if not text.startswith("\b\n"):
        return text
    title, *lines = text.removeprefix("\b\n").splitlines()
    return "\n".join((title, "", *(f"    {line.strip()}" for line in lines)))


def _part(path: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    yield f"## `{' '.join((path, *command.collect_usage_pieces(context)))}`"
    yield from (_paragraph(text) for text in inspect.cleandoc(command.help or "").split("\n\n"))
    rows = [record for parameter in command.get_params(context) if (record := parameter.get_help_record(context))]
    rows = [row for row in rows if "--help" not in row[0]]
    if rows:
        yield table(("option", "meaning"), ((code(flags), words) for flags, words in rows))
