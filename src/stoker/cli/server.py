"""Which server does a command ask, and as whom?

`--server` after the command, or before it, or STOKER_SERVER, or the person's own file, or the default. Several stand
with commas between them. `who` says whose token goes with it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from stoker.cli.quick_msgspec import quick_msgspec
from stoker.cli.who import remember_file, remember_token, server_in_file, token_for

if TYPE_CHECKING:
    from stoker.wire.client import Client
    from stoker.wire.transport import Transport

Command = TypeVar("Command", bound=Callable[..., Any])

_KEY: Final = "stoker.server"
_SPOKEN: Final = "stoker.server.spoken"


_OPTIONS: Final = (
    click.option(
        "--token",
        metavar="TOKEN",
        expose_value=False,
        callback=remember_token,
        help="What to show it. Better kept in a file or in the environment. [env: STOKER_TOKEN]",
    ),
    click.option(
        "--token-file",
        metavar="F",
        type=click.Path(dir_okay=False),
        expose_value=False,
        callback=remember_file,
        help="File with the token, readable by its owner alone.",
    ),
)


def server_option(command: Command) -> Command:
    """Give a command `--server`, `--token` and `--token-file`; it calls `connect()` to use them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return click.option(
        "--server",
        metavar="URL[,URL]",
        envvar="STOKER_SERVER",
        expose_value=False,
        callback=_remember,
        help="Which control plane to ask. [env: STOKER_SERVER; default: http://127.0.0.1:8080]",
    )(command)


def _remember(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
    """What stands on the command line is nearer than the environment, which both places read."""
    spoken = ctx.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
    if value is not None and (spoken or _KEY not in ctx.meta):
        ctx.meta[_KEY] = value
    if spoken:
        ctx.meta[_SPOKEN] = True


def server_was_spoken() -> bool:
    """Does `--server` stand on the command line, and not only in the environment?"""
    return _SPOKEN in click.get_current_context().meta


def connect() -> "Client":
    """A client of the chosen server, closed when the command ends. Raises: StokerError `bad_server`."""
    ctx = click.get_current_context()
    return ctx.with_resource(client_of(ctx))


@contextmanager
def transport() -> "Iterator[Transport]":
    """A way to the chosen server for what has an answer too long to be held. Raises: StokerError `bad_server`."""
    from stoker.wire.transport import Transport

    ctx = click.get_current_context()
    made = Transport(servers_of(ctx), token=token_of(ctx))
    try:
        yield made
    finally:
        made.close()


def servers_of(ctx: click.Context) -> str:
    """The addresses that were chosen, with commas between them. Raises: StokerError `bad_settings`."""
    from stoker.wire.servers import DEFAULT_SERVER

    chosen: str | None = ctx.meta.get(_KEY)
    return chosen if chosen is not None else server_in_file(ctx) or DEFAULT_SERVER


def token_of(ctx: click.Context) -> str:
    """What to show them; empty = nothing. Raises: StokerError `bad_token`, `bad_token_file` or `bad_settings`."""
    return token_for(ctx, servers_of(ctx))


def client_of(ctx: click.Context) -> "Client":
    """The same for whoever closes it."""
    quick_msgspec()
    from stoker.wire.client import Client

    # A person sees at once that nobody answers; what is worth repeating, commands repeat themselves.
    return Client(servers_of(ctx), token=token_of(ctx), patience_s=0.0)
