"""A node that keeps output and waits when asked to, and readers who follow, stall or go: for tests of output."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from stoker.brain.domain.report import LogChunk, LogRequest
from tests.api.http.plane import Agent, Plane

LOGS: Final = "/api/v1/jobs/1/logs"


class Node:
    """An agent that keeps one output and waits for more of it when asked to, as the real one does."""

    def __init__(self, plane: Plane, agent: Agent) -> None:
        self.agent = agent
        self._plane = plane
        self._written = bytearray()
        self._kept_from = 0
        self._ended = False
        self._refusal = ""
        self._news = asyncio.Event()
        self._serving = asyncio.ensure_future(self._serve())
        self._answers: set[asyncio.Task[None]] = set()

    def write(self, data: bytes, *, drop_to: int = 0) -> None:
        self._written += data
        self._kept_from = drop_to
        self._tell()

    def end(self) -> None:
        self._ended = True
        self._tell()

    def refuse(self, why: str) -> None:
        """Keep nothing until another attempt begins."""
        self._refusal = why

    def begin(self) -> None:
        """Another attempt: its output is another."""
        self._refusal = ""
        self._written, self._kept_from, self._ended = bytearray(), 0, False

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _serve(self) -> None:
        sessions = self._plane.control.sessions
        async for request in sessions.opened(self.agent.stream.session).log.requests():
            answer = asyncio.ensure_future(self._answer(request))
            self._answers.add(answer)
            answer.add_done_callback(self._answers.discard)

    async def _answer(self, request: LogRequest) -> None:
        if self._refusal:
            refused = LogChunk(request=request.request, offset=0, data=b"", size=0, ended=True, error=self._refusal)
            self._plane.control.sessions.opened(self.agent.stream.session).log.answer(refused)
            return
        try:
            async with asyncio.timeout(request.wait_ms / 1_000):
                while request.wait_ms and not self._ended and len(self._written) <= request.offset:
                    await self._news.wait()
        except TimeoutError:
            pass
        size = len(self._written)
        begin = max(0, size + request.offset) if request.offset < 0 else min(request.offset, size)
        begin = max(begin, self._kept_from)
        data = bytes(self._written[begin : begin + request.limit])
        chunk = LogChunk(request=request.request, offset=begin, data=data, size=size, ended=self._ended)
        self._plane.control.sessions.opened(self.agent.stream.session).log.answer(chunk)

    def close(self) -> None:
        for each in (self._serving, *self._answers):
            each.cancel()


@asynccontextmanager
async def node_of(plane: Plane) -> AsyncIterator[Node]:
    node = Node(plane, await plane.join("n"))
    try:
        yield node
    finally:
        node.close()


class Reader:
    """Follows by an open connection."""

    def __init__(self, plane: Plane, query: str = "") -> None:
        self._plane = plane
        self.sent: list[Any] = []
        self.broken = asyncio.Event()
        self.reading = asyncio.ensure_future(
            stream(plane, f"{LOGS}?follow=true{query}", self.sent, asyncio.Event(), self.broken)
        )

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    async def until(self, size: int) -> None:
        await self._plane.until(lambda: len(self.body) == size)

    @property
    def is_whole(self) -> bool:
        return self.reading.done() and not self.sent[-1].get("more_body", False)


async def stream(
    plane: Plane, target: str, sent: list[Any], gone: asyncio.Event, broken: asyncio.Event | None = None
) -> None:
    """A GET whose answer is noted as it comes. `gone`: the client hangs up; `broken`: the server does."""

    async def send(message: Any) -> None:  # noqa: ANN401  # an ASGI message
        sent.append(message)

    await _serve(plane, target, send, gone, broken)


async def asgi_stuck(plane: Plane, target: str) -> None:
    """A GET by a client that takes the head of the answer and nothing more."""

    async def send(message: Any) -> None:  # noqa: ANN401  # an ASGI message
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    await _serve(plane, target, send, asyncio.Event(), None)


async def _serve(plane: Plane, target: str, send: Any, gone: asyncio.Event, broken: asyncio.Event | None) -> None:  # noqa: ANN401  # an ASGI send
    incoming = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in incoming:
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1:8080")],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8080),
        "state": {},
        "extensions": {"stoker.break": broken.set} if broken else {},
    }
    await plane.app(scope, receive, send)
