"""REST routes for a task's output: bytes from a place, or the last lines; now, or once there are more, or as they come.

Rules: G1  with `wait_s` the answer comes as soon as there are bytes beyond `offset`, or the output has ended, or the
           time is up; whoever hangs up meanwhile waits no longer
       G2  an attempt that may yet begin is waited for within the same time
       G3  an answer is given to whose token is still good when it is there; whose is revoked meanwhile is told at once
       G4  an answer that its reader doesn't take holds up nobody else; the more is held for such readers, the less a
           new answer brings, but never nothing
"""

import asyncio
from collections.abc import Coroutine
from typing import Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stoker.api.http.guard import is_head
from stoker.api.http.log_follow import PIECE_BYTES, LogStreams
from stoker.api.http.log_reading import LogReading
from stoker.api.http.responses import caller_of, query_of
from stoker.api.http.routing import JOB, Routes
from stoker.api.http.stream_limits import StreamLimit
from stoker.brain.domain.report import LogChunk
from stoker.control.access import Access
from stoker.control.control_plane import ControlPlane
from stoker.control.output_reader import FOLLOWERS_MAX
from stoker.wire import endpoints
from stoker.wire.rest.log import (
    ATTEMPT_HEADER,
    ENDED_HEADER,
    LOG_LIMIT_MAX,
    LOG_WAIT_MAX_S,
    OFFSET_HEADER,
    SIZE_HEADER,
    LogQuery,
)

UNTAKEN_BYTES_MAX: Final = 64 << 20
"""Held for readers who don't take their answers; beyond it a new answer brings one piece."""

_REFUSALS = (*JOB, "not_started", "attempt_unknown", "node_unreachable", "log_unavailable", "too_many_streams")
_TEXT = {"text/plain": {"schema": {"type": "string", "format": "binary"}}}

T = TypeVar("T")


def routes(control: ControlPlane) -> Routes:
    router = Routes()
    unsent_bytes, streams = UnsentBytes(), LogStreams(control)
    waiters = StreamLimit(FOLLOWERS_MAX, "wait for output", "close some, or try again in a second")

    @router.serve(endpoints.LOGS, *_REFUSALS, content=_TEXT)
    async def logs(request: Request) -> Response:
        """Read a task's output. Where the bytes lie is in the headers."""
        query = query_of(request, LogQuery)
        reading = LogReading(control, request, query)
        if query.follow:
            return streams.open(reading, head=is_head(request))
        wait_s = 0 if is_head(request) else min(query.wait_s, LOG_WAIT_MAX_S)
        until_s = control.clock.mono() + wait_s
        if not wait_s:
            return await _answer(reading, unsent_bytes, until_s)
        with waiters.counted(reading.caller):
            return await _while_there(request, control.access, _answer(reading, unsent_bytes, until_s))

    return router


async def _answer(reading: LogReading, unsent_bytes: "UnsentBytes", until_s: float) -> Response:
    """Return the answer once there are bytes, the output has ended or the time is up (G1, G2)."""
    place = await reading.begun(reading.query.attempt, until_s)
    chunk = await reading.first(place, unsent_bytes.limit(), until_s)
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


class UnsentBytes:
    """Bytes of answers that wait for their readers."""

    def __init__(self) -> None:
        self.bytes = 0

    def limit(self) -> int:
        """Return how much a new answer may bring: less the more waits for readers, but never nothing (G4)."""
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
