"""Output that goes on over one connection to a reader that only reads: `curl -N .../logs?follow=true`.

Rules: W1  the answer ends with the attempt asked for, or else with the job, after its last byte
       W2  a reader is sent what it takes: one that reads slowly, or not at all, is waited for by nobody
       W3  what isn't output stands in a line of its own that begins with `[stoker: `: that another attempt begins, that
           bytes were not kept, why it can't go on
       W4  an answer that can't go on is broken off and not ended, so that no reader takes the output for whole
       W5  whose token is revoked, or expires, is sent no more at once (by W4)
Limits: `STREAMS_MAX` readers; one more is refused. A connection that takes nothing is closed by `connections`.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stoker.api.http.connections import break_off
from stoker.api.http.log_reading import LOOK_MAX_S, YET_TO_BEGIN, LogReading
from stoker.api.http.stream_limits import EndlessResponse, StreamLimit
from stoker.brain.domain.access import Caller
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.report import LogChunk
from stoker.control.access import token_unknown
from stoker.control.control_plane import ControlPlane
from stoker.control.control_ports import LogPlace
from stoker.control.output_reader import LogTails
from stoker.control.queries.event_visibility import drop
from stoker.ports import Clock

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


class LogStreams:
    """All readers who follow by an open connection."""

    def __init__(self, control: ControlPlane) -> None:
        self._clock = control.clock
        self.readers = StreamLimit(STREAMS_MAX, "follow output", "ask with `wait_s` instead, again and again")

    def open(self, reading: LogReading, *, head: bool) -> Response:
        """Raises: StokerError when there is nothing to follow, or `too_many_streams`."""
        reading.check()
        headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        if head:
            return Response(media_type=MEDIA_TYPE, headers=headers)
        return _LogStream(self.readers, reading.caller, _Output(reading, self._clock), headers)


class _LogStream(EndlessResponse):
    """The answer to one of them."""

    def __init__(self, readers: StreamLimit, caller: Caller, output: "_Output", headers: dict[str, str]) -> None:
        super().__init__(readers, caller, output.parts(), headers, MEDIA_TYPE)
        self._output = output

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._output.scope = scope
        await super().__call__(scope, receive, send)


class _Output:
    """The parts of output that one reader is sent."""

    def __init__(self, reading: LogReading, clock: Clock) -> None:
        self.scope: Scope = {}
        self._reading = reading
        self._clock = clock
        self._line_begins = True

    @property
    def _tails(self) -> LogTails:
        return self._reading.tails

    async def parts(self) -> AsyncGenerator[bytes, None]:
        over = asyncio.ensure_future(self._reading.watch())
        try:
            async for part in self._while_good(over):
                self._line_begins = part.endswith(b"\n")
                yield part
        except StokerError as fault:  # W4
            yield self._aside(f"{fault.refusal.message} [{fault.refusal.code}]")
            break_off(self.scope)
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
        return await self._patiently(place, lambda: self._tails.read(place, offset, PIECE_BYTES, wait_s))

    async def _patiently(self, place: LogPlace, read: Callable[[], Awaitable[LogChunk]]) -> LogChunk:
        """What is read, however long its node can't be asked, while more may come of it."""
        since_s = self._clock.mono()
        while True:
            self._check_open()
            try:
                return await read()
            except StokerError as fault:
                waited_s = self._clock.mono() - since_s
                if self._tails.is_over(place.key) and (waited_s > UNREACHABLE_S or fault.refusal.code in LOST):
                    raise
            await self._clock.sleep(LOOK_MAX_S)

    def _check_open(self) -> None:
        if self._tails.closed:
            hint = "ask again, from the offset up to which you have read"
            raise refusal_error("stopping", "this control plane stops", hint)

    def _aside(self, words: str) -> bytes:
        """Return a line that isn't output, which begins with `[stoker: ` (W3)."""
        begin = "" if self._line_begins else "\n"
        return f"{begin}[stoker: {words}]\n".encode()
