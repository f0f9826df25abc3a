"""Which servers does a command ask, and as whom?

`--server` after the command, or before it, or STOKER_SERVER, or the person's own file, or the default. Several stand
with commas between them, an active control plane and its standbys. `who` says whose token goes with it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from stoker.cli.credentials import remember_file, remember_token, server_in_file, token_for
from stoker.cli.quick_msgspec import quick_msgspec

if TYPE_CHECKING:
    from stoker.wire.client import Client
    from stoker.wire.client.staleness import Notice
    from stoker.wire.client.transport import Transport

Command = TypeVar("Command", bound=Callable[..., Any])

_KEY: Final = "stoker.server"
_SPOKEN: Final = "stoker.server.spoken"
_CLIENT: Final = "stoker.client"
PATIENCE_S: Final = 15.0
"""More than twice as long as a standby takes to take over. A server that never answered isn't waited for."""
FOLLOW_PATIENCE_S: Final = 120.0
"""Of what follows a job: an upgrade of the control plane takes less; a person waits no longer."""
LOOK_PATIENCE_S: Final = 2.5
"""Of what looks again and again, and says itself that it waits: just long enough for a standby's answer."""


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
        help="Which control plane to ask; or the active one and its standbys, in any order. "
        "[env: STOKER_SERVER; default: http://127.0.0.1:8080]",
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


def connect(patience_s: float = PATIENCE_S, notify: "Callable[[Notice], object] | None" = None) -> "Client":
    """The command's client of the chosen servers, closed when it ends; it remembers which of them is active. What it
    notices is said on stderr, or to `notify`. Raises: StokerError `bad_server`."""
    ctx = click.get_current_context()
    client: Client | None = ctx.meta.get(_CLIENT)
    if client is None:
        root = ctx.find_root()
        client = ctx.meta[_CLIENT] = root.with_resource(client_of(ctx, notify))
    client.patience_s = patience_s
    return client


@contextmanager
def transport() -> "Iterator[Transport]":
    """A way to the chosen servers for what has an answer too long to be held. Raises: StokerError `bad_server`."""
    from stoker.cli.display.notices import NoticePrinter
    from stoker.wire.client.transport import Transport

    ctx = click.get_current_context()
    made = Transport(servers_of(ctx), token=token_of(ctx), patience_s=PATIENCE_S, notify=NoticePrinter())
    try:
        yield made
    finally:
        made.close()


def servers_of(ctx: click.Context) -> str:
    """The addresses that were chosen, with commas between them. Raises: StokerError `bad_settings`."""
    from stoker.wire.client.servers import DEFAULT_SERVER

    chosen: str | None = ctx.meta.get(_KEY)
    return chosen if chosen is not None else server_in_file(ctx) or DEFAULT_SERVER


def token_of(ctx: click.Context) -> str:
    """What to show them; empty = nothing. Raises: StokerError `bad_token`, `bad_token_file` or `bad_settings`."""
    return token_for(ctx, servers_of(ctx))


def client_of(ctx: click.Context, notify: "Callable[[Notice], object] | None" = None) -> "Client":
    """The same for whoever closes it."""
    quick_msgspec()
    from stoker.cli.display.notices import NoticePrinter
    from stoker.wire.client import Client

    return Client(servers_of(ctx), token=token_of(ctx), patience_s=PATIENCE_S, notify=notify or NoticePrinter())
