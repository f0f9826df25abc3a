"""What could the word be that a person is typing?

The shell runs us at each Tab, so whatever goes wrong is silent, and no answer is waited for longer than WAIT_S.

Rules: N1  ids that are on the line already aren't offered again
       N2  without a server, or with a slow one, nothing is offered and nothing is said
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from stoker.cli.display.problem import refused
from stoker.cli.display.safe_text import visible
from stoker.cli.server import client_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from stoker.wire.client import Client

WAIT_S: Final = 1.0
OFFERED_MAX: Final = 200
_OPEN: Final = "pending,held,starting,running,stopping"
SIGNALS: Final = ("HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "TERM", "CONT", "STOP", "WINCH")
Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem[str]]"]
"""What a shell is offered for the beginning of a word."""
_Offers = list[tuple[str, str]]
"""Words, and what is said beside each where the shell shows it."""


class _TooSlow(Exception):
    """The person goes on typing."""


def open_jobs(ctx: click.Context, parameter: click.Parameter, begun: str) -> "list[CompletionItem[str]]":
    """Jobs that haven't ended."""
    return _items(ctx, parameter, begun, lambda client: _jobs(client, _OPEN))


def any_jobs(ctx: click.Context, parameter: click.Parameter, begun: str) -> "list[CompletionItem[str]]":
    """Jobs, the newest first."""
    return _items(ctx, parameter, begun, lambda client: _jobs(client, ""))


def nodes(ctx: click.Context, parameter: click.Parameter, begun: str) -> "list[CompletionItem[str]]":
    return _items(ctx, parameter, begun, lambda client: [(node.name, node.state.value) for node in client.nodes()])


def partitions(ctx: click.Context, parameter: click.Parameter, begun: str) -> "list[CompletionItem[str]]":
    return _items(ctx, parameter, begun, lambda client: _partitions(client))


def tenants(ctx: click.Context, parameter: click.Parameter, begun: str) -> "list[CompletionItem[str]]":
    return _items(ctx, parameter, begun, lambda client: _tenants(client))


def jobs_then_signal(ctx: click.Context, parameter: click.Parameter, begun: str) -> "list[CompletionItem[str]]":
    """Ids and names of signals on one line: a word that begins with a letter can only be a signal."""
    if begun[:1].isalpha():
        return _items(
            ctx, parameter, begun.upper().removeprefix("SIG"), lambda client: [(name, "") for name in SIGNALS]
        )
    return open_jobs(ctx, parameter, begun)


def _signal(name: str) -> "CompletionItem[str]":
    from click.shell_completion import CompletionItem

    return CompletionItem(name)


def _jobs(client: "Client", state: str) -> _Offers:
    from stoker.wire.client import JobListQuery

    page = client.jobs(JobListQuery(state=state, limit=OFFERED_MAX))
    return [(job.id, visible(f"{job.state.value} {job.name}")) for job in page.jobs]


def _partitions(client: "Client") -> _Offers:
    return [(each.name, visible(each.comment)) for each in client.partitions()]


def _tenants(client: "Client") -> _Offers:
    return [(each.name, visible(each.comment)) for each in client.tenants()]


def _items(
    ctx: click.Context, parameter: click.Parameter, begun: str, ask: "Callable[[Client], _Offers]"
) -> "list[CompletionItem[str]]":
    from click.shell_completion import CompletionItem

    given = ctx.params.get(parameter.name or "") or ()
    taken = {given} if isinstance(given, str) else set(given)
    try:
        with _at_most(WAIT_S), client_of(ctx, lambda notice: None) as client:
            offers = ask(client)
    except (refused(), _TooSlow):  # N2
        return []
    return [
        CompletionItem(word, help=said or None)
        for word, said in offers
        if word.startswith(begun) and word not in taken and visible(word) == word
    ]


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raises: _TooSlow, also out of a connect that nobody answers."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
