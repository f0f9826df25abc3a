"""Decorator that gives a command a set of options.

It is apart from the options themselves, since every command imports it and only some pay for paths.
"""

from collections.abc import Callable
from typing import Any, TypeVar

Command = TypeVar("Command", bound=Callable[..., Any])
AddOption = Callable[[Any], Any]
"""A decorator as `click.option` makes it."""


def with_options(*options: AddOption) -> Callable[[Command], Command]:
    """Return a decorator that gives a command these options, listed in this order by its help."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add
