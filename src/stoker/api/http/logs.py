"""REST routes for a task's output: bytes from a place, or the last lines; now, or once there are more, or as they come.

Rules: G1  with `wait_s` the answer comes as soon as there are bytes beyond `offset`, or the output has ended, or the
           time is up; whoever hangs up meanwhile waits no longer
       G2  an attempt that may yet begin is waited for within the same time
       G3  an answer is given to whose token is still good when it is there; whose is revoked meanwhile is told at once
       G4  a task that never had a process has written nothing, and its output has ended: its node isn't asked
       G5  an answer that its reader doesn't take holds up nobody else; the more is held for such readers, the less a
           new answer brings, but never nothing
       W1  the answer ends with the attempt asked for, or else with the job, after its last byte
       W2  a reader is sent what it takes: one that reads slowly, or not at all, is waited for by nobody
       W3  what isn't output stands in a line of its own that begins with `[stoker: `: that another attempt begins, that
           bytes were not kept, why it can't go on
       W4  an answer that can't go on is broken off and not ended, so that no reader takes the output for whole
       W5  whose token is revoked, or expires, is sent no more at once (by W4); nor is what was read for somebody who
           no longer sees the job in full
Limits: `STREAMS_MAX` readers follow, as by `curl -N .../logs?follow=true`; one more is refused. A connection that takes
nothing is closed by `connections`.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stoker.api.http.connections import break_off
from stoker.api.http.guard import is_head
from stoker.api.http.responses import EndlessResponse, StreamLimit, caller_of, lookup_seen_job_at, query_of
from stoker.api.http.routing import LOOKUP, Routes
from stoker.brain.domain.access import Caller
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import Attempt, Job
from stoker.brain.domain.reason import describe
from stoker.brain.domain.report import LogChunk
from stoker.brain.domain.sight import Sight
from stoker.control.access import Access, check_read, token_unknown
from stoker.control.control_plane import ControlPlane
from stoker.control.control_ports import LogPlace
from stoker.control.output_reader import FOLLOWERS_MAX, WITHOUT_OUTPUT, LogTails
from stoker.control.queries.event_visibility import drop
from stoker.control.queries.job_details import job_details
from stoker.ports import Clock
from stoker.wire import endpoints
from stoker.wire.rest.job import JobDetails
from stoker.wire.rest.log import (
    ATTEMPT_HEADER,
    ENDED_HEADER,
    LOG_LIMIT_MAX,
    LOG_WAIT_MAX_S,
    OFFSET_HEADER,
    SIZE_HEADER,
    TAIL_FIRST_BYTES,
    LogQuery,
    last_lines,
)

UNTAKEN_BYTES_MAX: Final = 64 << 20
"""Held for readers who don't take their answers; beyond it a new answer brings one piece."""
PIECE_BYTES: Final = 64 * 1024
"""What is handed to a connection at a time; no more is read until it is taken."""
STREAMS_MAX: Final = 256
WAIT_S: Final = 15.0
"""Of one wait for more; then it is seen whether more can come."""
UNREACHABLE_S: Final = 60.0
"""How long a node is waited for that has the output of an attempt which is over."""
LOST: Final = frozenset({"log_unavailable"})
"""What no time changes once an attempt is over."""
MEDIA_TYPE: Final = "text/plain; charset=utf-8"
YET_TO_BEGIN: Final = frozenset({"not_started", "attempt_unknown"})
"""Refusals of an attempt that isn't there."""
LOOK_FIRST_S: Final = 0.05
LOOK_MAX_S: Final = 0.25
"""Between two looks at whether an attempt has begun: a look costs a microsecond, a person doesn't notice it."""

_REFUSALS = (*LOOKUP, "not_started", "attempt_unknown", "node_unreachable", "log_unavailable", "too_many_streams")
_STREAM_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_TEXT = {"text/plain": {"schema": {"type": "string", "format": "binary"}}}

T = TypeVar("T")


def routes(control: ControlPlane) -> Routes:
    router = Routes()
    unsent_bytes = UnsentBytes()
    followers = StreamLimit(STREAMS_MAX, "follow output", "ask with `wait_s` instead, again and again")
    waiters = StreamLimit(FOLLOWERS_MAX, "wait for output", "close some, or try again in a second")

    @router.serve(endpoints.LOGS, *_REFUSALS, content=_TEXT)
    async def logs(request: Request) -> Response:
        """Read a task's output. Where the bytes lie is in the headers."""
        query = query_of(request, LogQuery)
        reading = LogReading(control, request, query)
        if query.follow:
            await reading.check()
            if is_head(request):
                return Response(media_type=MEDIA_TYPE, headers=_STREAM_HEADERS)
            return _LogStream(followers, reading, control.clock)
        wait_s = 0 if is_head(request) else min(query.wait_s, LOG_WAIT_MAX_S)
        until_s = control.clock.mono() + wait_s
        if not wait_s:
            return await _answer(reading, unsent_bytes, until_s)
        with waiters.counted(reading.caller):
            return await _while_there(request, control.access, _answer(reading, unsent_bytes, until_s))

    return router


async def _answer(reading: "LogReading", unsent_bytes: "UnsentBytes", until_s: float) -> Response:
    """Return the answer once there are bytes, the output has ended or the time is up (G1, G2)."""
    place = await reading.begun(reading.query.attempt, until_s)
    chunk = await reading.first(place, unsent_bytes.limit(), until_s)
    reading.check_sight()
    headers = {
        ATTEMPT_HEADER: str(place.key.attempt),
        OFFSET_HEADER: str(chunk.offset),
        SIZE_HEADER: str(chunk.size),
        ENDED_HEADER: "true" if chunk.ended else "false",
        # A browser mustn't guess that somebody's output is a page of ours.
        "X-Content-Type-Options": "nosniff",
    }
    return _LogResponse(chunk, headers, unsent_bytes)


async def _while_there(request: Request, access: Access, work: Coroutine[None, None, T]) -> T:
    """What `work` answers.

    Raises: ClientDisconnect when nobody is there any more to be answered, StokerError `token_unknown` (G3).
    """
    caller = caller_of(request)
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    over = asyncio.ensure_future(access.watch(caller))
    try:
        await asyncio.wait((working, gone, over), return_when=asyncio.FIRST_COMPLETED)
        access.check(caller)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for each in (working, gone, over):
            each.cancel()
        await asyncio.gather(working, gone, over, return_exceptions=True)  # looked at, whatever they came to


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class LogReading:
    """One request for output."""

    def __init__(self, control: ControlPlane, request: Request, query: LogQuery) -> None:
        """Raises: StokerError `not_supported_here` where this runtime can't read output."""
        if control.output is None:
            raise _not_supported_here()
        self._control = control
        self._request = request
        self.query = query
        self.tails: LogTails = control.output
        self._job: Job | None = None

    @property
    def caller(self) -> Caller:
        """The caller that reads."""
        return caller_of(self._request)

    async def watch(self) -> None:
        """Return once the caller may not read any more."""
        await self._control.access.watch(self.caller)

    async def job(self) -> Job:
        """Return the job, also one that only the history knows. Raises: StokerError, such as `job_forgotten`."""
        job, _ = await lookup_seen_job_at(self._request, self._control, Sight.FULL)
        self._job = job
        if job.members is not None:
            spec, _ = job.as_array
            hint = f"name one of them, such as `{job.id}_{spec.indexes[0][0]}`"
            raise refusal_error("several_jobs", f"job {job.id} is an array: each of its members writes", hint)
        return job

    def check_sight(self) -> None:
        """Refuse a caller who doesn't see the job in full any more (W5). Raises: StokerError `not_allowed`."""
        if self._job is not None:
            check_read(self._control.committer.state, self.caller, self._job, Sight.FULL)

    async def place(self, attempt: int) -> LogPlace:
        """Where an attempt's output is, 0 = the newest. Raises: StokerError `not_started` or `attempt_unknown`."""
        job = await self.job()
        if not job.attempts:
            raise _not_started(job, job_details(self._control, job))
        found = next((each for each in job.attempts if each.number == attempt), None) if attempt else job.attempts[-1]
        if found is None or self.query.rank >= len(found.tasks):
            raise _attempt_unknown(job, attempt or job.attempts[-1].number, self.query.rank)
        return _place(job, found, self.query.rank)

    async def check(self) -> None:
        """Check that what the request asks for is there, or may come to be. Raises: as `place`."""
        try:
            await self.place(self.query.attempt)
        except StokerError:
            if not await self._may_begin(self.query.attempt):
                raise

    async def begun(self, attempt: int, until_s: float) -> LogPlace:
        """The same, once the attempt has begun, if it may within that time. Raises: as `place`."""
        look_s = LOOK_FIRST_S
        while True:
            try:
                return await self.place(attempt)
            except StokerError:
                left_s = until_s - self._control.clock.mono()
                if left_s <= 0 or self.tails.closed or not await self._may_begin(attempt):
                    raise
            await self._control.clock.sleep(min(look_s, left_s))
            look_s = min(2 * look_s, LOOK_MAX_S)

    async def _may_begin(self, attempt: int) -> bool:
        job = await self.job()
        newest = job.attempts[-1].number if job.attempts else 0
        return not job.is_final and max(attempt, 1) > newest

    async def first(self, place: LogPlace, limit: int, until_s: float) -> LogChunk:
        """Return what the request asks for, once it is there."""
        wait_s = until_s - self._control.clock.mono()
        if not self.query.tail:
            return await self.read(place, self.query.offset, min(limit, self.query.limit), wait_s)
        # Most tails are short, so little is fetched first and the whole bound only if it must be.
        chunk = await self.read(place, -TAIL_FIRST_BYTES, TAIL_FIRST_BYTES, wait_s)
        tail = last_lines(chunk.data, self.query.tail)
        if len(tail) == len(chunk.data) and chunk.offset > 0:
            chunk = await self.read(place, -limit, limit, wait_s)
            tail = last_lines(chunk.data, self.query.tail)
        cut = len(chunk.data) - len(tail)
        return LogChunk(request=0, offset=chunk.offset + cut, data=tail, size=chunk.size, ended=chunk.ended)

    async def read(self, place: LogPlace, offset: int, limit: int, wait_s: float) -> LogChunk:
        """Return what comes after `offset`, once something does (G4). Raises: as `LogTails.read`."""
        if not self._had_no_process(place.key):
            try:
                return await self.tails.read(place, offset, limit, wait_s)
            except StokerError as fault:
                if fault.refusal.code not in LOST:
                    raise
                await self.job()  # it may have ended meanwhile
                if not self._had_no_process(place.key):
                    raise
        return LogChunk(request=0, offset=0, data=b"", size=0, ended=True)

    def _had_no_process(self, key: TaskKey) -> bool:
        attempts = self._job.attempts if self._job is not None else ()
        ends = (each.tasks[key.rank].end for each in attempts if each.number == key.attempt)
        return any(end is not None and end.cause in WITHOUT_OUTPUT for end in ends)


def _not_supported_here() -> StokerError:
    return refusal_error(
        "not_supported_here",
        "this control plane has no agents, so it can't read the output of jobs",
        "read it where the system that runs the jobs keeps it",
    )


def _place(job: Job, attempt: Attempt, rank: int) -> LogPlace:
    return LogPlace(attempt.tasks[rank].placement.node, TaskKey(job.id, attempt.number, rank))


def _not_started(job: Job, now: JobDetails) -> StokerError:
    never = "never had a process" if job.is_final else "has written nothing"
    why = f": {describe(now.reason)}" if now.reason else ""
    return refusal_error(
        "not_started",
        f"job {job.label} is {now.state} and {never}{why}",
        f"`stoker why {job.label}` says what it waits for or what ended it",
        job_id=job.label,
        state=job.state.value,
    )


def _attempt_unknown(job: Job, attempt: int, rank: int) -> StokerError:
    newest = job.attempts[-1]
    return refusal_error(
        "attempt_unknown",
        f"job {job.label} has no rank {rank} of attempt {attempt}",
        f"attempts are {job.attempts[0].number} to {newest.number}, ranks 0 to {len(newest.tasks) - 1}",
        job_id=job.label,
        attempt=attempt,
        rank=rank,
    )


# -- an answer that is whole -------------------------------------------------------------------------------------------


class UnsentBytes:
    """Bytes of answers that wait for their readers."""

    def __init__(self) -> None:
        self.bytes = 0

    def limit(self) -> int:
        """Return how much a new answer may bring: less the more waits for readers, but never nothing (G5)."""
        return min(LOG_LIMIT_MAX, max(PIECE_BYTES, UNTAKEN_BYTES_MAX - self.bytes))


class _LogResponse(Response):
    """Sent piece by piece, so that a connection holds little of what isn't taken."""

    media_type = "text/plain; charset=utf-8"

    def __init__(self, chunk: LogChunk, headers: dict[str, str], unsent_bytes: UnsentBytes) -> None:
        super().__init__(chunk.data, headers=headers)
        self._unsent_bytes = unsent_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = memoryview(self.body)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._unsent_bytes.bytes += len(body)
        left = len(body)
        try:
            while left > PIECE_BYTES:
                piece = bytes(body[-left:][:PIECE_BYTES])
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                self._unsent_bytes.bytes -= PIECE_BYTES
                left -= PIECE_BYTES
            await send({"type": "http.response.body", "body": bytes(body[len(body) - left :])})
        finally:
            self._unsent_bytes.bytes -= left


# -- an answer that goes on --------------------------------------------------------------------------------------------


class _LogStream(EndlessResponse):
    """The parts of output that one reader is sent."""

    def __init__(self, followers: StreamLimit, reading: LogReading, clock: Clock) -> None:
        """Raises: StokerError `too_many_streams`."""
        super().__init__(followers, reading.caller, self._parts(), _STREAM_HEADERS, MEDIA_TYPE)
        self._reading = reading
        self._clock = clock
        self._line_begins = True
        self._scope: Scope = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        await super().__call__(scope, receive, send)

    @property
    def _tails(self) -> LogTails:
        return self._reading.tails

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        over = asyncio.ensure_future(self._reading.watch())
        try:
            async for part in self._while_good(over):
                self._line_begins = part.endswith(b"\n")
                yield part
        except StokerError as fault:  # W4
            yield self._aside(f"{fault.refusal.message} [{fault.refusal.code}]")
            break_off(self._scope)
            await asyncio.Event().wait()  # until the reader is gone, which ends this
        finally:
            over.cancel()

    async def _while_good(self, over: "asyncio.Future[None]") -> AsyncGenerator[bytes, None]:
        """Yield parts until the reader's token is revoked or expires (W5). Raises: StokerError `token_unknown`."""
        attempts = self._attempts()
        while True:
            upcoming = asyncio.ensure_future(anext(attempts, None))
            try:
                await asyncio.wait((upcoming, over), return_when=asyncio.FIRST_COMPLETED)
                if over.done():
                    raise token_unknown()
                part = upcoming.result()
            finally:
                drop(upcoming)
            if part is None:
                return
            yield part

    async def _attempts(self) -> AsyncGenerator[bytes, None]:
        """Yield the output of the attempt asked for, or of all until the job ends (W1)."""
        query = self._reading.query
        place = await self._begun(query.attempt)
        if place is None:
            return
        chunk = await self._first(place)
        offset = chunk.offset if query.tail or query.offset < 0 else query.offset
        async for part in self._attempt(place, offset, chunk):
            yield part
        while query.attempt == 0 and (place := await self._begun(place.key.attempt + 1)) is not None:
            yield self._aside(f"attempt {place.key.attempt}")
            async for part in self._attempt(place, 0, await self._more(place, 0)):
                yield part

    async def _begun(self, attempt: int) -> LogPlace | None:
        """None = the job has ended without that attempt."""
        try:
            return await self._reading.begun(attempt, math.inf)
        except StokerError as fault:
            self._check_open()
            if fault.refusal.code in YET_TO_BEGIN:
                return None
            raise

    async def _attempt(self, place: LogPlace, offset: int, chunk: LogChunk) -> AsyncGenerator[bytes, None]:
        """From `offset`, beginning with the chunk that was read there."""
        was_over = False
        while True:
            if offset < chunk.offset:
                yield self._aside(f"{chunk.offset - offset} bytes were not kept")
            if chunk.data:
                yield chunk.data
            offset = chunk.offset + len(chunk.data)
            if chunk.ended and (offset >= chunk.size or not chunk.data):
                return
            if not chunk.data:
                if was_over:  # all that it wrote is here, although its node never said that it ended
                    return
                was_over = self._tails.is_over(place.key)
            chunk = await self._more(place, offset, 0 if was_over else WAIT_S)

    async def _first(self, place: LogPlace) -> LogChunk:
        return await self._patiently(
            place, lambda: self._reading.first(place, PIECE_BYTES, self._clock.mono() + WAIT_S)
        )

    async def _more(self, place: LogPlace, offset: int, wait_s: float = WAIT_S) -> LogChunk:
        return await self._patiently(place, lambda: self._reading.read(place, offset, PIECE_BYTES, wait_s))

    async def _patiently(self, place: LogPlace, read: Callable[[], Awaitable[LogChunk]]) -> LogChunk:
        """What is read, however long its node can't be asked, while more may come of it."""
        since_s = self._clock.mono()
        while True:
            self._check_open()
            try:
                chunk = await read()
            except StokerError as fault:
                waited_s = self._clock.mono() - since_s
                if self._tails.is_over(place.key) and (waited_s > UNREACHABLE_S or fault.refusal.code in LOST):
                    raise
            else:
                self._reading.check_sight()
                return chunk
            await self._clock.sleep(LOOK_MAX_S)

    def _check_open(self) -> None:
        if self._tails.closed:
            hint = "ask again, from the offset up to which you have read"
            raise refusal_error("stopping", "this control plane stops", hint)

    def _aside(self, words: str) -> bytes:
        """Return a line that isn't output, which begins with `[stoker: ` (W3)."""
        begin = "" if self._line_begins else "\n"
        return f"{begin}[stoker: {words}]\n".encode()
