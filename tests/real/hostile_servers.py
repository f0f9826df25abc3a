"""Servers that answer as no control plane does, each on a port of its own, in one thread."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

EVIL: Final = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\u202e" + "W" * 90
MOST: Final = 10**12
FIGURES: Final[dict[str, object]] = {
    **dict.fromkeys(("total_gpus", "available_gpus", "busy_gpus", "offline_gpus", "total_nodes", "online_nodes"), MOST),
    **dict.fromkeys(("total_jobs", "pending_jobs", "running_jobs", "epoch", "position", "longest_wait_s"), MOST),
    "last_pass_age_s": 1.5,
    "jobs": {EVIL: MOST},
    "nodes": {EVIL: MOST, "ready": MOST},
    "simulated": False,
    "cluster_id": EVIL,
    "version": EVIL,
    "free_by_model": [{"model": f"{EVIL}{at}", "free_gpus": MOST, "most_on_node": MOST} for at in range(30)],
}
Pieces = Callable[[bytes], AsyncIterator[bytes]]
_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def answering(body: bytes, head: bytes = _HEAD) -> Pieces:
    """A whole answer."""

    async def pieces(request: bytes) -> AsyncIterator[bytes]:
        yield head + b"Content-Length: %d\r\n\r\n" % len(body) + body

    return pieces


def endless(first: bytes, piece: bytes, pause_s: float = 0.0) -> Pieces:
    """An answer that goes on for as long as somebody reads."""

    async def pieces(request: bytes) -> AsyncIterator[bytes]:
        yield first
        while True:
            yield piece
            await asyncio.sleep(pause_s)

    return pieces


async def _mirror(request: bytes) -> AsyncIterator[bytes]:
    """A refusal that has the token in it."""
    shown = next(line for line in request.split(b"\r\n") if line.lower().startswith(b"authorization")).decode()
    words = dict.fromkeys(("type", "title", "detail", "message", "hint", "error"), f"{shown} {EVIL}")
    told = {**words, "status": 403, "code": "no_sight", "facts": {}}
    body = json.dumps(told).encode()
    head = b"HTTP/1.1 403 No\r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\n\r\n" % len(body)
    yield head + body


SAID: Final[Mapping[str, tuple[Pieces, str]]] = {
    "deep": (answering(b"[" * 60_000), "not a Stoker control plane"),
    "big": (answering(b" " * (10 << 20)), "longer than 65536 bytes"),
    "chunks": (
        endless(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 4_000),
        "longer than 65536 bytes",
    ),
    "impossible": (answering(json.dumps({**FIGURES, "busy_gpus": 10**13}).encode()), "its answer can't be true"),
    "negative": (answering(json.dumps({**FIGURES, "jobs": {"x": -1}}).encode()), "its answer can't be true"),
    "beyond": (answering(json.dumps({**FIGURES, "busy_gpus": 10**400}).encode()), "its answer can't be true"),
    "long": (answering(json.dumps({**FIGURES, "version": "9" * 9_000}).encode()), "more or longer names"),
    "html": (answering(f"<html>{EVIL}</html>".encode(), b"HTTP/1.1 200 OK\r\n"), "not a Stoker control plane"),
    "binary": (answering(bytes(range(256)), b"HTTP/1.1 200 OK\r\n"), "not a Stoker control plane"),
    "headers": (endless(_HEAD, b"a: b\r\n" * 1_000), "no control plane answers"),
    "interim": (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000), "no control plane answers"),
    "drip": (endless(_HEAD, b"a", 0.1), "no answer within 5 s"),
    "mirror": (_mirror, "_... <script>"),
}
"""By name: what a server answers, and what is said of it."""


class HostileServers:
    """A server for each of these, while it is entered."""

    def __init__(self, kinds: Mapping[str, Pieces]) -> None:
        self._kinds = kinds
        self._loop = asyncio.new_event_loop()
        self._stop, self._ready = asyncio.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.urls: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30), "they didn't come up"
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        servers = []
        for name, pieces in self._kinds.items():
            server = await asyncio.start_server(self._answering(pieces), "127.0.0.1", 0)
            self.urls[name] = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            servers.append(server)
        self._ready.set()
        await self._stop.wait()
        for server in servers:
            server.close()

    @staticmethod
    def _answering(pieces: Pieces) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                request = await reader.readuntil(b"\r\n\r\n")
                async for piece in pieces(request):
                    writer.write(piece)
                    await writer.drain()
            writer.close()

        return answer
