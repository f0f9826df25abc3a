"""Reads of task output: many readers share one stream, and may wait for more of it.

Rules: L1  a read that needn't wait is answered at once, whatever else waits
       L2  a waiting read is answered once bytes beyond its offset exist, the output has ended, or its time is up
       L3  however many wait for one task, it is looked at once per pause; pauses double while nothing comes
       L4  a chunk is read when the stream takes it, so a thousand reads that become due cost the memory of one
       L5  when the stream breaks every wait ends
       L6  readers that follow a task which goes on writing are fed together, fifty times a second: each for itself, as
           fast as it asks, would be handed a line at a time, and twenty would keep a processor busy
Limits: `WAITS_MAX` reads wait on a stream, each for `WAIT_MS_MAX` at most; one more is answered at once. `DUE_MAX`
        answers wait for a slow stream; at that bound no request is taken from it.
"""

import asyncio
from contextlib import aclosing
from typing import Final, NamedTuple

from stoker.agent.outgoing import first_failure
from stoker.agent.ports import LinkDown, LinkSession, Runner
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.report import LogChunk, LogRequest
from stoker.ports import Clock

LOG_BYTES_MAX: Final = 1 << 20
"""One log request is answered with at most 1 MiB, whatever it asks for; the reader asks again from where it ended."""
WAIT_MS_MAX: Final = 30_000
"""Shorter than what lies between the reader and us takes for a dead connection."""
WAITS_MAX: Final = 1_000
DUE_MAX: Final = 1_000
LOOK_FIRST_S: Final = 0.02
"""Also L6."""
LOOK_CEILING_S: Final = 0.25
"""A person doesn't notice a quarter of a second; four looks a second, 50 us each, cost next to nothing."""


WORTHWHILE_BYTES: Final = 64 * 1024
"""As many are handed on however soon they came after others."""


class _LogWait(NamedTuple):
    request: LogRequest
    until_s: float


class LogReads:
    """Reads of output on one stream."""

    def __init__(self, session: LinkSession, runner: Runner, clock: Clock) -> None:
        self._session = session
        self._runner = runner
        self._clock = clock
        self._due: asyncio.Queue[LogRequest] = asyncio.Queue(DUE_MAX)
        self._waits: dict[TaskKey, list[_LogWait]] = {}
        self._looking: dict[TaskKey, asyncio.Task[None]] = {}
        self._fed_s: dict[TaskKey, float] = {}
        # When a waiting reader got some of a task's output.
        self._look_broke: asyncio.Future[None]

    async def serve(self) -> None:
        """Answer log requests until the stream breaks. Raises: LinkDown."""
        self._look_broke = asyncio.get_running_loop().create_future()
        duties = [asyncio.ensure_future(self._take()), asyncio.ensure_future(self._answer()), self._look_broke]
        try:
            raise await first_failure(duties)
        finally:
            looking = tuple(self._looking.values())  # L5
            for look in looking:
                look.cancel()
            if looking:
                await asyncio.wait(looking)

    async def _take(self) -> None:
        async with aclosing(self._session.log_requests()) as requests:
            async for request in requests:
                waiting = sum(map(len, self._waits.values()))
                if request.wait_ms == 0 or waiting >= WAITS_MAX or await self._is_due(request):
                    await self._due.put(request)
                else:
                    self._wait(request)
        raise LinkDown("the control plane closed the log stream")

    def _wait(self, request: LogRequest) -> None:
        until_s = self._clock.mono() + min(request.wait_ms, WAIT_MS_MAX) / 1_000
        self._waits.setdefault(request.key, []).append(_LogWait(request, until_s))
        if request.key not in self._looking:
            look = asyncio.create_task(self._look(request.key), name=f"look for output of {request.key}")
            look.add_done_callback(self._looked)
            self._looking[request.key] = look

    def _looked(self, look: "asyncio.Task[None]") -> None:
        """A defect ends the stream: its readers would wait for ever."""
        fault = None if look.cancelled() else look.exception()
        if fault is not None and not self._look_broke.done():
            self._look_broke.set_exception(fault)

    async def _look(self, key: TaskKey) -> None:
        """Look at the output of a task while any read waits for it (L2, L3)."""
        pause_s, known = LOOK_FIRST_S, 0
        while self._waits[key]:
            time_left_s = min(wait.until_s for wait in self._waits[key]) - self._clock.mono()
            await self._clock.sleep(max(0.0, min(pause_s, time_left_s)))
            size, ended = await self._state(key)
            pause_s, known = LOOK_FIRST_S if size > known else min(2 * pause_s, LOOK_CEILING_S), size
            for request in self._no_longer_waiting(key, size, ended=ended):
                await self._due.put(request)
        del self._waits[key], self._looking[key]

    def _no_longer_waiting(self, key: TaskKey, size: int, *, ended: bool) -> list[LogRequest]:
        now_s, over, on = self._clock.mono(), [], []
        for wait in self._waits[key]:
            if ended or size > _wanted(wait.request) or wait.until_s <= now_s:
                over.append(wait.request)
            else:
                on.append(wait)
        self._waits[key] = on
        return over

    async def _is_due(self, request: LogRequest) -> bool:
        """Whether a read can be answered now (L2, L6)."""
        size, ended = await self._state(request.key)
        more = size - _wanted(request)
        if ended or more >= min(max(1, request.limit), WORTHWHILE_BYTES):
            return True
        return more > 0 and self._clock.mono() - self._fed_s.get(request.key, -LOOK_FIRST_S) >= LOOK_FIRST_S

    async def _state(self, key: TaskKey) -> tuple[int, bool]:
        """Bytes ever written, and whether no more will come. Where nothing can be read, the answer will say why."""
        try:
            read = await self._runner.read_log(key, 0, 0)
        except OSError:
            return 0, True
        return read.size, read.ended

    async def _answer(self) -> None:
        while True:
            request = await self._due.get()
            await self._session.send_log(await self._read(request))  # L4
            if request.wait_ms:
                self._fed_s.pop(request.key, None)
                self._fed_s[request.key] = self._clock.mono()
                if len(self._fed_s) > WAITS_MAX:
                    del self._fed_s[next(iter(self._fed_s))]

    async def _read(self, request: LogRequest) -> LogChunk:
        limit = min(request.limit, LOG_BYTES_MAX)
        try:
            read = await self._runner.read_log(request.key, request.offset, limit)
        except OSError as error:
            why = str(error) or repr(error)
            return LogChunk(request=request.request, offset=0, data=b"", size=0, ended=True, error=why)
        return LogChunk(request=request.request, offset=read.offset, data=read.data, size=read.size, ended=read.ended)


def _wanted(request: LogRequest) -> int:
    """The offset beyond which bytes satisfy the reader. One counted from the end is met by any."""
    return max(0, request.offset)
