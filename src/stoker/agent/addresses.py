"""Choice among the addresses of several control planes.

It is the same for every Link: what an address is, and how one is tried, is the caller's.

Rules: T1  addresses are tried from the last one that was good, the next at once when one refuses or can't be reached,
           and after `STAGGER_S` beside one that is silent: a process that is stopped still takes connections. Good is
           one that had something to say on the stream; one that only let us in is tried last
       T2  that only standbys answer is no refusal: LinkStandby
       T3  while one is silent, the rest are asked again every `AGAIN_S`, unless they refused: the silent one may be
           dead, and one of the rest takes over. It is waited for none the less: it may be active, and busy
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from stoker.agent.ports import LinkDown, LinkRefused, LinkStandby

STAGGER_S: Final = 0.3
"""A registration that is well takes some milliseconds."""
AGAIN_S: Final = 1.0
"""No jitter: rounds begin after pauses that have one."""


class Closable(Protocol):
    async def close(self) -> None: ...


S = TypeVar("S", bound=Closable)


class Addresses:
    """Addresses and the order in which they are tried (T1)."""

    def __init__(self, addresses: Sequence[str]) -> None:
        assert addresses, "no control plane is named"
        self.all = tuple(addresses)
        self._first = 0

    @property
    def in_order(self) -> tuple[str, ...]:
        """The addresses, the next one to be tried first."""
        return (*self.all[self._first :], *self.all[: self._first])

    def let_in(self, address: str) -> None:
        """Note that an address let us in: it is tried last, until it proves good."""
        self._first = (self.all.index(address) + 1) % len(self.all)

    def good(self, address: str) -> None:
        """Note that an address had something to say on the stream: it is tried first."""
        self._first = self.all.index(address)


async def first_of(addresses: Addresses, enter: Callable[[str], Awaitable[S]]) -> tuple[str, S]:
    """Return the first address that lets us in, in one round, and what `enter` returned for it.

    Raises: LinkStandby, LinkDown, LinkRefused; so does `enter`.
    """
    tries = _Round(enter)
    try:
        found = await tries.run(addresses.in_order)
    finally:
        await tries.give_up()
    addresses.let_in(found[0])
    return found


class _Round(Generic[S]):
    def __init__(self, enter: Callable[[str], Awaitable[S]]) -> None:
        self._enter = enter
        self._open: dict[asyncio.Task[S], str] = {}
        self._failures: dict[str, LinkDown | LinkRefused] = {}

    async def run(self, addresses: Sequence[str]) -> tuple[str, S]:
        """Try the addresses in turn, then wait for all of them. Raises: LinkStandby, LinkDown, LinkRefused."""
        for address in addresses:
            found = await self._first(STAGGER_S, self._start(address))
            if found is not None:
                return found
        while self._open:
            found = await self._first(AGAIN_S)
            if found is not None:
                return found
            self._ask_again()
        words = "; ".join(map(str, self._failures.values()))
        for kind in (LinkRefused, LinkStandby):
            if any(isinstance(failure, kind) for failure in self._failures.values()):
                raise kind(words)
        raise LinkDown(words)

    def _ask_again(self) -> None:
        """Ask the addresses anew that didn't refuse (T3)."""
        asked = [address for address, failure in self._failures.items() if not isinstance(failure, LinkRefused)]
        for address in asked:
            if self._open and address not in self._open.values():
                self._start(address)

    def _start(self, address: str) -> "asyncio.Task[S]":
        task = asyncio.ensure_future(self._enter(address))
        self._open[task] = address
        return task

    async def _first(self, within_s: float, newest: "asyncio.Task[S] | None" = None) -> tuple[str, S] | None:
        """The first success of the open tries. None = their time is up, or `newest` has failed, or all have."""
        until_s = _now_s() + within_s
        while self._open and (newest is None or newest in self._open):
            left_s = until_s - _now_s()
            await asyncio.wait(self._open, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in self._open if task.done()]:
                address = self._open.pop(task)
                try:
                    return address, task.result()
                except (LinkDown, LinkRefused) as failure:
                    self._failures[address] = failure
            if left_s <= 0:
                break
        return None

    async def give_up(self) -> None:
        """Cancel the tries that haven't been answered, and leave a second address that took us too."""
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)
        for task in self._open:
            if not task.cancelled() and task.exception() is None:
                await task.result().close()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
