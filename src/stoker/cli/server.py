"""Servers that a command asks, the options that name them, and the clients that ask.

Several stand with commas between them, an active control plane and its standbys. `credentials` says whose token goes
with the requests.

Rules: V1  they are named, the nearest first, by `--server`, after the command or before it; by the context of
           `--context`; by STOKER_SERVER; by the context of STOKER_CONTEXT; by the present context; by the default
       V2  `--server` beside `--context` chooses among that context's servers: any other is refused, since its token
           would not go there
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from stoker.cli.contexts import VARIABLE as CONTEXT_VARIABLE
from stoker.cli.contexts import chosen_context, context_names, context_was_spoken, remember_context
from stoker.cli.credentials import credentials_for, is_among, remember_file, remember_token, server_in_file
from stoker.cli.display.output import output_options, table_options
from stoker.cli.options import with_options

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from stoker.wire.client import Client
    from stoker.wire.client.staleness import Notice
    from stoker.wire.client.transport import Transport
    from stoker.wire.client.trust import Credentials

_KEY: Final = "stoker.server"
_SPOKEN: Final = "stoker.server.spoken"
_CLIENT: Final = "stoker.client"
PATIENCE_S: Final = 15.0
"""More than twice as long as a standby takes to take over. A server that never answered isn't waited for."""
FOLLOW_PATIENCE_S: Final = 120.0
"""For commands that follow a job: an upgrade of the control plane takes less; a person waits no longer."""
LOOK_PATIENCE_S: Final = 2.5
"""For commands that look again and again and say themselves that they wait: just long enough for a standby's answer."""


def _remember(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
    """What stands on the command line is nearer than the environment, which both places read."""
    spoken = ctx.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
    if value is not None and (spoken or _KEY not in ctx.meta):
        ctx.meta[_KEY] = value
    if spoken:
        ctx.meta[_SPOKEN] = True


token_options: Final = with_options(
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
"""Options `--token` and `--token-file`, which `credentials` remembers."""
ca_option: Final = click.option(
    "--ca",
    "ca_file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Certificates of the authority to trust, as PEM; they are copied. "
    "[default: the one that the token names, or the system's]",
)
"""Option `--ca` of a command that keeps whom to trust."""


def complete_context(ctx: click.Context, option: click.Parameter, begun: str) -> "list[CompletionItem[str]]":
    """Return the contexts whose names begin so."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in context_names() if name.startswith(begun)]


context_option: Final = click.option(
    "--context",
    metavar="NAME",
    envvar=CONTEXT_VARIABLE,
    expose_value=False,
    callback=remember_context,
    shell_complete=complete_context,
    help="Which of the clusters that `stoker context` knows. [env: STOKER_CONTEXT; default: the present one]",
)
"""Option `--context`, which `contexts` remembers."""
server_option: Final = with_options(
    click.option(
        "--server",
        metavar="URL[,URL]",
        envvar="STOKER_SERVER",
        expose_value=False,
        callback=_remember,
        help="Which control plane to ask; or the active one and its standbys, in any order. "
        "[env: STOKER_SERVER; default: that of the context, or http://127.0.0.1:8080]",
    ),
    context_option,
    token_options,
)
"""Options that name servers and the token for them, of a command, which calls `connect()` to use them."""
answer_options: Final = with_options(output_options, server_option)
"""Options of a command that asks a server and prints the answer: its form, and `server_option`."""
table_answer_options: Final = with_options(table_options, server_option)
"""The same of a command whose answer is a table."""


def server_was_spoken() -> bool:
    """Return whether `--server` stands on the command line, and not only in the environment."""
    return _SPOKEN in click.get_current_context().meta


def connect(
    patience_s: float = PATIENCE_S, notify: "Callable[[Notice], object] | None" = None, *, private: bool = False
) -> "Client":
    """Return the command's client of the chosen servers, closed when the command ends; it remembers which is active.

    Its notices are printed on stderr, or given to `notify`. `private`: what it sends is itself a secret.
    Raises: StokerError `bad_server`.
    """
    ctx = click.get_current_context()
    client: Client | None = ctx.meta.get(_CLIENT)
    if client is None:
        client = ctx.meta[_CLIENT] = ctx.find_root().with_resource(client_of(ctx, notify, private=private))
    client.patience_s = patience_s
    return client


def transport() -> "Transport":
    """Return a transport to the chosen servers, for an answer too long to be held. Raises: StokerError `bad_server`."""
    from stoker.cli.display.messages import NoticePrinter
    from stoker.wire.client.transport import Transport

    ctx = click.get_current_context()
    shown = credentials_of(ctx)
    return Transport(servers_of(ctx), credentials=shown, patience_s=PATIENCE_S, notify=NoticePrinter())


def servers_of(ctx: click.Context) -> str:
    """Return the chosen addresses, with commas between them (V1). Raises: StokerError `bad_settings`."""
    from stoker.wire.client.servers import DEFAULT_SERVER

    chosen: str | None = ctx.meta.get(_KEY)
    if chosen is None or not context_was_spoken(ctx):
        return chosen if chosen is not None else server_in_file(ctx) or DEFAULT_SERVER
    of_context = server_in_file(ctx) or DEFAULT_SERVER
    if _SPOKEN not in ctx.meta:
        return of_context
    if not is_among(chosen, of_context):
        name = chosen_context(ctx)
        raise click.UsageError(f"--server and --context name two clusters: context {name} is {of_context}", ctx)  # V2
    return chosen


def credentials_of(ctx: click.Context) -> "Credentials":
    """Return what the chosen servers are shown, and by what they prove who they are.

    Raises: StokerError `bad_token`, `bad_token_file` or `bad_settings`.
    """
    return credentials_for(ctx, servers_of(ctx))


def client_of(
    ctx: click.Context, notify: "Callable[[Notice], object] | None" = None, *, private: bool = False
) -> "Client":
    """Return a client of the chosen servers that the caller closes."""
    _import_msgspec_alone()
    from stoker.cli.display.messages import NoticePrinter
    from stoker.wire.client import Client

    shown = credentials_of(ctx)
    return Client(
        servers_of(ctx),
        token=shown.token,
        ca_file=shown.ca_file,
        insecure=shown.insecure,
        private=private,
        patience_s=PATIENCE_S,
        notify=notify or NoticePrinter(),
    )


def _import_msgspec_alone() -> None:
    """Import msgspec without typing_extensions, which it imports where installed, although typing serves it as well.

    That saves a twelfth of the time that `stoker list` takes (8 of 100 ms, measured with msgspec 0.22 on Python 3.11).
    """
    if "msgspec" not in sys.modules and "typing_extensions" not in sys.modules:
        sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # None is how an import is told to fail
        try:
            import msgspec  # noqa: F401  # for what importing does
        finally:
            del sys.modules["typing_extensions"]
