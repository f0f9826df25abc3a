"""Outgoing reports of one stream to the control plane, and which of its beats were answered.

Attempt leases are counted, by the runner, from when the newest answered beat was sent. That is never named later than
it was: a beat counts from when it was put on its way, and one that isn't noted here counts as the noted one before it.

Rules: T1  reports leave in the order in which they were said, from one task: no later one overtakes the inventory
       T2  a stream that can't keep up is given up rather than waited for: the next inventory says it all
       N1  an answer is for the beat of its number and for all before it
       N2  whatever comes down a stream answers the inventory that opened it: nothing comes before that was compared
       N3  an answer tells once; one that brings nothing newer tells nothing
Limits: `NOTED_MAX` beats without an answer are noted; later ones aren't, until an answer comes.
"""

import asyncio
from collections import deque
from typing import Final

from stoker.agent.ports import LinkDown, LinkSession
from stoker.brain.domain.report import Report
from stoker.brain.domain.units import Mono

OUTGOING_MAX: Final = 10_000
"""Reports that wait for a slow stream. One more, and the stream is given up: the next inventory says it all."""
NOTED_MAX: Final = 64
TOGETHER_MAX: Final = 64
"""Reports of one message."""
_INVENTORY: Final = -1
"""Before any beat of the stream."""


class Stream:
    """Session in use, and the reports that wait to go out on it, in order."""

    def __init__(self, session: LinkSession, first: Report) -> None:
        self.session = session
        self._outgoing: asyncio.Queue[Report] = asyncio.Queue(OUTGOING_MAX)
        self._cut = asyncio.Event()
        self._why = ""
        self.say(first)

    def say(self, report: Report) -> None:
        """Put a report behind those that wait."""
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
        """Whether it was given up for a reason of ours."""
        return self._cut.is_set()

    async def send(self) -> None:
        """Send what waits until the stream breaks. Raises: LinkDown."""
        while True:
            reports = [await self._outgoing.get()]
            while len(reports) < TOGETHER_MAX and not self._outgoing.empty():
                reports.append(self._outgoing.get_nowait())
            await self.session.send(*reports)

    async def until_cut(self) -> None:
        """Wait until the stream is given up. Raises: LinkDown."""
        await self._cut.wait()
        raise LinkDown(self._why)


class HeartbeatAcks:
    """Beats of one stream that wait for their answer."""

    def __init__(self, opened_at: Mono) -> None:
        self._waiting = deque([(_INVENTORY, opened_at)])

    def sent(self, sequence: int, at: Mono) -> None:
        """Note a beat."""
        if len(self._waiting) < NOTED_MAX:
            self._waiting.append((sequence, at))

    def answered(self, sequence: int) -> Mono | None:
        """Return when the newest of the beats that this answers was sent; None = that is known already (N1, N3)."""
        newest: Mono | None = None
        while self._waiting and self._waiting[0][0] <= sequence:
            newest = self._waiting.popleft()[1]
        return newest

    def spoken(self) -> Mono | None:
        """Return when the inventory was sent, which anything that comes answers; None = that is known already (N2)."""
        return self.answered(_INVENTORY)

    def waited_s(self, now: Mono) -> float:
        """Return how many seconds the oldest unanswered beat has been on its way; 0 = none is."""
        return now - self._waiting[0][1] if self._waiting else 0.0


async def first_failure(duties: list["asyncio.Future[None]"]) -> LinkDown:
    """Run endless duties until one of them finds the stream broken; all have ended when this returns.

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
