"""Reading of task output for many followers at the cost of one read of its node.

A tail is the newest part of what a task wrote, read once for all followers that wait at its end.

Rules: T1  more is asked for only while somebody waits for it; then once, however many wait
       T2  a follower within the tail is served from it; one that fell behind reads from the node at its own offset, and
           holds nobody
       T3  each follower gets the bytes after its own offset, in order and once; where the node dropped some, the answer
           begins after them
       T4  while the node can't answer, a follower waits on within its time, and only then learns why
       T5  after `close` nobody waits: each is answered with what there is
Limits: `FOLLOWERS_MAX` wait at a time, one more is refused. A tail keeps `TAIL_BYTES_MAX`, all of them together keep
        `TAILS_BYTES_MAX`: beyond it those without news for longest forget first, and their followers read alone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from stoker.brain.domain.errors import Refusal, StokerError, refusal_error
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.report import LogChunk
from stoker.brain.state.cluster import ClusterState
from stoker.control.control_ports import LogPlace
from stoker.ports import Clock

FOLLOWERS_MAX: Final = 1_000
TAILS_MAX: Final = 1_000
"""Tasks followed at a time, with those that were followed a moment ago."""
TAIL_BYTES_MAX: Final = 1 << 20
"""Seconds of a busy task: who lags by less costs the node nothing."""
TAILS_BYTES_MAX: Final = 64 << 20
CREDIT_BYTES: Final = 256 * 1024
"""What the node may send at a time."""
ASK_WAIT_MS: Final = 15_000
"""How long the node waits before it says that nothing came; a wait that nobody needs any more lasts no longer."""
GATHER_S: Final = 0.1
"""Between two asks: a task that writes without pause reaches twenty followers by ten answers a second to each. A person
doesn't notice a tenth of a second."""
LINGER_S: Final = 5.0
"""How long a tail is kept for followers who are busy with what they got."""
RETRY_S: Final = 0.25
"""Between two tries to reach a node that can't answer."""
WITHOUT_OUTPUT: Final = frozenset({EndCause.NEVER_STARTED, EndCause.ACCOUNT_REFUSED, EndCause.PORT_TAKEN})
"""Causes of the end of a task of which its node keeps no output, not even an empty one."""

_PASSING: Final = frozenset({"node_unreachable", "too_many_streams"})
"""Refusals that time may lift."""
_PASSING_AT_FIRST: Final = "log_unavailable"
"""One that time lifts while the attempt isn't over: it may have yet to begin."""


ReadLog = Callable[[LogPlace, int, int, int], Awaitable[LogChunk]]
"""Place, offset, limit, milliseconds to wait."""


def attempt_is_over(state: ClusterState, key: TaskKey) -> bool:
    """Return whether this attempt will write no more, as far as its record knows."""
    job = state.jobs.get(key.job)
    attempts = job.attempts if job is not None else ()
    return all(attempt.outcome is not None for attempt in attempts if attempt.number == key.attempt)


class LogTails:
    """Tails of all outputs that are followed now."""

    def __init__(self, read: ReadLog, is_over: Callable[[TaskKey], bool], clock: Clock) -> None:
        self._read = read
        self.is_over = is_over
        self._clock = clock
        self._tails: dict[LogPlace, _OutputTail] = {}
        """Those without news for longest first."""
        self._readers: set[asyncio.Task[None]] = set()
        self.held_bytes = 0
        """Of all tails together."""
        self._followers = 0
        self._closing = asyncio.Event()

    @property
    def closed(self) -> bool:
        return self._closing.is_set()

    async def read(self, place: LogPlace, offset: int, limit: int, wait_s: float) -> LogChunk:
        """Return what comes after `offset`, once something does; an empty chunk when nothing came in time or ever will.

        A negative offset counts from the end.
        Raises: StokerError `node_unreachable`, `log_unavailable` or `too_many_streams`.
        """
        if wait_s <= 0 or self._closing.is_set():
            return await self._read(place, offset, limit, 0)
        until_s = self._clock.mono() + wait_s
        with self._counted():
            while True:
                try:
                    return await self._wait(place, offset, limit, until_s)
                except StokerError as fault:
                    left_s = until_s - self._clock.mono()
                    if self._closing.is_set() or left_s <= 0 or not self._may_pass(fault.refusal, place):
                        raise
                await self._pause(min(RETRY_S, left_s))  # T4

    def close(self) -> None:
        """Answer every follower with what there is, and let none wait any more (T5)."""
        self._closing.set()
        for reader in self._readers:
            reader.cancel()
        for tail in self._tails.values():
            tail.close()

    async def _wait(self, place: LogPlace, offset: int, limit: int, until_s: float) -> LogChunk:
        while True:
            tail = self._tails.get(place)
            if tail is None or offset < tail.begin:
                chunk = await self._read(place, offset, limit, 0)
                if chunk.data or chunk.ended or self._closing.is_set():
                    return chunk
                tail = self._tail_at(place, chunk.offset)
                offset = max(offset, chunk.offset)
            found = await tail.beyond(offset, limit, lambda: until_s - self._clock.mono())
            if found is not None:
                return found

    def _tail_at(self, place: LogPlace, offset: int) -> "_OutputTail":
        """The tail of that output; a new one begins at an end that was just seen."""
        tail = self._tails.get(place)
        if tail is None:
            if len(self._tails) >= TAILS_MAX:
                raise _too_many(f"the output of {TAILS_MAX} tasks is followed already")
            tail = self._tails[place] = _OutputTail(offset)
            reader = asyncio.create_task(self._follow(place, tail), name=f"tail of {place.key}")
            self._readers.add(reader)
            reader.add_done_callback(self._readers.discard)
        return tail

    async def _follow(self, place: LogPlace, tail: "_OutputTail") -> None:
        """Read on (T1) until no follower has waited for a while, or the node can't answer: they try again then."""
        try:
            while await tail.is_wanted():
                chunk = await self._read(place, tail.end, CREDIT_BYTES, ASK_WAIT_MS)
                self.held_bytes += tail.take(chunk)
                self._tails[place] = self._tails.pop(place)
                self._make_room()
                if len(chunk.data) < CREDIT_BYTES:
                    await self._pause(GATHER_S)
        except StokerError as fault:
            tail.fail(fault.refusal)
        finally:
            del self._tails[place]
            self.held_bytes -= tail.forget()
            tail.close()

    def _make_room(self) -> None:
        for tail in self._tails.values():
            if self.held_bytes <= TAILS_BYTES_MAX:
                return
            self.held_bytes -= tail.forget()

    def _may_pass(self, refusal: Refusal, place: LogPlace) -> bool:
        return refusal.code in _PASSING or (refusal.code == _PASSING_AT_FIRST and not self.is_over(place.key))

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._closing.wait()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._followers >= FOLLOWERS_MAX:
            raise _too_many(f"{FOLLOWERS_MAX} followers wait for output already")
        self._followers += 1
        try:
            yield
        finally:
            self._followers -= 1


class _OutputTail:
    """The newest bytes of one output, from `begin`, and the followers that wait for more."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self._held = bytearray()
        self._size = begin
        self._ended = False
        self._waiting = 0
        self._wanted = asyncio.Event()
        self._news = asyncio.Event()
        self._fault: Refusal | None = None
        self._closed = False

    @property
    def end(self) -> int:
        return self.begin + len(self._held)

    def take(self, chunk: LogChunk) -> int:
        """Take the answer to a read from `end`; return by how many bytes more is held."""
        before = len(self._held)
        if chunk.offset > self.end:  # what lay between was dropped
            self._held.clear()
            self.begin = chunk.offset
        self._held += chunk.data[self.end - chunk.offset :] if chunk.offset < self.end else chunk.data
        beyond = len(self._held) - TAIL_BYTES_MAX
        if beyond > 0:
            del self._held[:beyond]
            self.begin += beyond
        self._size, self._ended = chunk.size, chunk.ended
        self._wake()
        return len(self._held) - before

    def forget(self) -> int:
        """Hold nothing; return how many bytes were held."""
        held = len(self._held)
        self.begin = self.end
        self._held.clear()
        return held

    def fail(self, refusal: Refusal) -> None:
        self._fault = refusal

    def close(self) -> None:
        """Let no follower wait any more."""
        self._closed = True
        self._wake()

    async def is_wanted(self) -> bool:
        """Return whether a follower waits for more, or comes to within a while."""
        if not self._waiting:
            self._wanted.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await self._wanted.wait()
        return self._waiting > 0 and not self._closed

    async def beyond(self, offset: int, limit: int, left_s: Callable[[], float]) -> LogChunk | None:
        """Return what comes after `offset`, or an empty chunk; None when it was here and is no more."""
        while self.begin <= offset:
            found = self._at(offset, limit)
            if found is not None:
                return found
            if self._fault is not None:
                raise StokerError(self._fault)
            if self._closed or left_s() <= 0:
                return LogChunk(request=0, offset=min(offset, self._size), data=b"", size=self._size, ended=False)
            await self._next(left_s())
        return None

    def _at(self, offset: int, limit: int) -> LogChunk | None:
        data = bytes(self._held[offset - self.begin : offset - self.begin + limit])
        if not data and not (self._ended and self.end >= self._size):
            return None
        return LogChunk(request=0, offset=min(offset, self._size), data=data, size=self._size, ended=self._ended)

    async def _next(self, seconds: float) -> None:
        """Wait until there is news, or the time is up."""
        self._waiting += 1
        self._wanted.set()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()
        finally:
            self._waiting -= 1

    def _wake(self) -> None:
        # Followers that wait hold the old event; later ones wait for the next news.
        self._news.set()
        self._news = asyncio.Event()


def _too_many(message: str) -> StokerError:
    return refusal_error("too_many_streams", message, "close some, or try again in a second")
