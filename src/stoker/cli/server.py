"""Which server does a command ask?

`--server` after the command, or before it, or STOKER_SERVER, or the default. Several stand with commas between them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from stoker.cli.quick_msgspec import quick_msgspec

if TYPE_CHECKING:
    from stoker.wire.client import Client

Command = TypeVar("Command", bound=Callable[..., Any])

_KEY: Final = "stoker.server"


def server_option(command: Command) -> Command:
    """Give a command `--server`; it calls `connect()` to use it."""
    option = click.option(
        "--server",
        metavar="URL[,URL]",
        envvar="STOKER_SERVER",
        expose_value=False,
        callback=_remember,
        help="Which control plane to ask. [env: STOKER_SERVER; default: http://127.0.0.1:8080]",
    )
    return option(command)


def _remember(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
    """What stands on the command line is nearer than the environment, which both places read."""
    spoken = ctx.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
    if value is not None and (spoken or _KEY not in ctx.meta):
        ctx.meta[_KEY] = value


def connect() -> "Client":
    """A client of the chosen server, closed when the command ends. Raises: StokerError `bad_server`."""
    quick_msgspec()
    from stoker.wire.client import DEFAULT_SERVER, Client

    ctx = click.get_current_context()
    return ctx.with_resource(Client(ctx.meta.get(_KEY, DEFAULT_SERVER)))
