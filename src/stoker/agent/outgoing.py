"""What goes out on one stream, in which order, and when is it given up?

Rules: T1  reports leave in the order in which they were said, from one task: no later one overtakes the inventory
       T2  a stream that can't keep up is given up rather than waited for: the next inventory says it all
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, TypeVar

from stoker.agent.ports import LinkDown, LinkSession
from stoker.brain.domain.report import Report

_T = TypeVar("_T")

OUTGOING_MAX: Final = 10_000
"""Reports that wait for a slow stream. One more, and the stream is given up: the next inventory says it all."""


class Stream:
    """A session in use, and the reports that wait to go out on it, in order."""

    def __init__(self, session: LinkSession, first: Report) -> None:
        self.session = session
        self._outgoing: asyncio.Queue[Report] = asyncio.Queue(OUTGOING_MAX)
        self._cut = asyncio.Event()
        self._why = ""
        self.say(first)

    def say(self, report: Report) -> None:
        try:
            self._outgoing.put_nowait(report)
        except asyncio.QueueFull:
            self.cut(f"{OUTGOING_MAX} reports wait to be sent")

    def cut(self, why: str) -> None:
        """Give the stream up for a reason of ours."""
        self._why = self._why or why
        self._cut.set()

    @property
    def was_cut(self) -> bool:
        return self._cut.is_set()

    async def send(self) -> None:
        while True:
            await self.session.send(await self._outgoing.get())

    async def until_cut(self) -> None:
        await self._cut.wait()
        raise LinkDown(self._why)


async def first_failure(duties: list["asyncio.Future[None]"]) -> LinkDown:
    """Run until one of the endless duties finds the stream broken; the others have ended when this returns.

    Not a TaskGroup: Python 3.11's forgets that its owner was cancelled when a member fails in the same moment.
    """
    try:
        done, _ = await asyncio.wait(duties, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for duty in duties:
            duty.cancel()
            duty.add_done_callback(_looked_at)  # also when we are cancelled in the same moment, and nobody asks
        await asyncio.wait(duties)
    failures = [duty.exception() for duty in duties if not duty.cancelled()]
    for failure in failures:
        if not isinstance(failure, LinkDown):
            assert failure is not None, "a duty of the stream ended without saying why"
            raise failure
    first = next(duty for duty in duties if duty in done).exception()
    assert isinstance(first, LinkDown), f"a duty ended by itself: {done}"
    return first


def _looked_at(duty: "asyncio.Future[None]") -> None:
    """Or asyncio would complain that nobody did."""
    if not duty.cancelled():
        duty.exception()


@contextlib.asynccontextmanager
async def closing(iterator: AsyncIterator[_T]) -> AsyncIterator[AsyncIterator[_T]]:
    """End a generator when its reader is cancelled, here and now, and not whenever the collector finds it."""
    try:
        yield iterator
    finally:
        if isinstance(iterator, AsyncGenerator):
            await iterator.aclose()
