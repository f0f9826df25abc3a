"""Shell completion of job ids, names and signals, and the parameter types of commands that take them.

The shell runs `stoker` at each Tab, so whatever goes wrong is silent, and no answer is waited for longer than WAIT_S.
What an id may look like is decided by the server; here only that there is one: `stoker cancel "$id"` with nothing in
`id` must not ask for everything or for nothing.

Rules: N1  ids that are on the line already are not offered again
       N2  without a server, or with a slow one, nothing is offered and nothing is said
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from stoker.cli.display.messages import refused
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
    """The server gave no answer within WAIT_S."""


def _offering(ask: "Callable[[Client], _Offers]") -> Completer:
    """Return the completer that offers those of the words from `ask` that begin as the typed one does."""

    def complete(ctx: click.Context, parameter: click.Parameter, begun: str) -> "list[CompletionItem[str]]":
        try:
            with _at_most(WAIT_S), client_of(ctx, lambda notice: None) as client:
                offers = ask(client)
        except (refused(), _TooSlow):  # N2
            return []
        return _matching(offers, ctx, parameter, begun)

    return complete


def _matching(
    offers: _Offers, ctx: click.Context, parameter: click.Parameter, begun: str
) -> "list[CompletionItem[str]]":
    """Return those that begin so and aren't on the line already (N1)."""
    from click.shell_completion import CompletionItem

    given = ctx.params.get(parameter.name or "") or ()
    taken = {given} if isinstance(given, str) else set(given)
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


def _jobs(client: "Client", state: str) -> _Offers:
    from stoker.wire.client import JobListQuery

    page = client.jobs(JobListQuery(state=state, limit=OFFERED_MAX))
    return [(job.id, visible(f"{job.state.value} {job.name}")) for job in page.jobs]


_open_jobs: Final = _offering(lambda client: _jobs(client, _OPEN))
nodes: Final = _offering(lambda client: [(node.name, node.state.value) for node in client.nodes()])
partitions: Final = _offering(lambda client: [(each.name, visible(each.comment)) for each in client.partitions()])
tenants: Final = _offering(lambda client: [(each.name, visible(each.comment)) for each in client.tenants()])


def _jobs_then_signal(ctx: click.Context, parameter: click.Parameter, begun: str) -> "list[CompletionItem[str]]":
    """Offer ids and names of signals on one line: a word that begins with a letter can only be a signal."""
    if begun[:1].isalpha():
        return _matching([(name, "") for name in SIGNALS], ctx, parameter, begun.upper().removeprefix("SIG"))
    return _open_jobs(ctx, parameter, begun)


class _Named(click.ParamType[str]):
    """Parameter type of a text that is not empty, with the completer for it."""

    def __init__(self, name: str, offer: Completer) -> None:
        self.name = name
        self._offer = offer

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value.strip():
            self.fail(f"an empty {self.name} names nothing", param, ctx)
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem[str]]":
        return self._offer(ctx, param, incomplete)


ANY_JOB: Final = _Named("id", _offering(lambda client: _jobs(client, "")))
OPEN_JOB: Final = _Named("id", _open_jobs)
JOBS_THEN_SIGNAL: Final = _Named("id or signal", _jobs_then_signal)
NODE: Final = _Named("name", nodes)
