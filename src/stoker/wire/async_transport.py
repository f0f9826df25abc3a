"""How does a request reach a server without blocking an event loop?

HTTP/1.1 over asyncio's streams, as much of it as a control plane and a proxy before it speak. The standard library has
no client for it, and a library would cost more to import than our whole command line. What a lost or a bad answer leads
to is in `retry`.

Limits: CONNECTIONS_MAX requests are on their way at once; more wait for their turn.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final
from urllib.parse import SplitResult

from stoker.wire.pause import jittered, pause_async
from stoker.wire.retry import (
    ANSWER_BYTES_MAX,
    ANSWER_S,
    CONNECT_S,
    DEFAULT_SERVER,
    AnswerLost,
    Reply,
    Request,
    Tries,
    Unreachable,
    answer_too_long,
    checked_token,
    headers_of,
    parsed_servers,
    preferred,
)

CONNECTIONS_MAX: Final = 32
_HEAD_BYTES_MAX: Final = 64 * 1024


class Connection:
    """One keep-alive connection."""

    def __init__(
        self, server: SplitResult, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str = ""
    ) -> None:
        self.server = server
        self._token = token
        self._reader = reader
        self._writer = writer

    @property
    def alive(self) -> bool:
        """Has the other side not hung up, as far as is known?"""
        return not (self._reader.at_eof() or self._writer.is_closing())

    def close(self) -> None:
        self._writer.close()

    async def closed(self) -> None:
        """Hang up, and wait until that is done."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def exchange(self, request: Request) -> tuple[Reply, bool]:
        """The answer, and whether the connection may be kept. Raises: AnswerLost."""
        try:
            self._writer.write(_head(self.server, request, self._token) + (request.body or b""))
            await self._drained()
            return await self._answer(request)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as fault:
            raise AnswerLost(str(fault) or type(fault).__name__) from fault

    async def _drained(self) -> None:
        try:
            await self._writer.drain()
        except ConnectionError:
            # Whoever refuses a body needn't read it: the answer may be there before the request is sent.
            if self._reader.at_eof():
                raise

    async def _answer(self, request: Request) -> tuple[Reply, bool]:
        status, headers = 100, dict[str, str]()
        while status < 200:
            status, headers = _parsed_head(await self._reader.readuntil(b"\r\n\r\n"))
        chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        sized = status in (204, 304) or "content-length" in headers
        if status in (204, 304):
            body = b""
        elif chunked:
            body = await self._chunks(status)
        else:
            body = await self._sized(status, headers.get("content-length"))
        keep = (chunked or sized) and headers.get("connection", "").lower() != "close"
        return Reply(status, headers, body), keep

    async def _sized(self, status: int, size: str | None) -> bytes:
        if size is None:
            body = await self._reader.read(ANSWER_BYTES_MAX + 1)
            while not self._reader.at_eof() and len(body) <= ANSWER_BYTES_MAX:
                body += await self._reader.read(ANSWER_BYTES_MAX + 1)
        elif int(size) <= ANSWER_BYTES_MAX:
            return await self._reader.readexactly(int(size))
        else:
            raise answer_too_long(status)
        if len(body) > ANSWER_BYTES_MAX:
            raise answer_too_long(status)
        return body

    async def _chunks(self, status: int) -> bytes:
        parts, left = list[bytes](), ANSWER_BYTES_MAX
        while size := int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16):
            left -= size
            if left < 0:
                raise answer_too_long(status)
            parts.append(await self._reader.readexactly(size))
            await self._reader.readexactly(2)
        while await self._reader.readuntil(b"\r\n") != b"\r\n":
            pass  # trailers
        return b"".join(parts)


def _head(server: SplitResult, request: Request, token: str) -> bytes:
    headers = {"Host": server.netloc, **headers_of(request, token)}
    if request.body is not None or request.method != "GET":
        headers["Content-Length"] = str(len(request.body or b""))
    lines = [f"{request.method} {request.target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    assert not any("\r" in line or "\n" in line for line in lines), "a line break would begin another header"
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _parsed_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Raises: ValueError."""
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    protocol, _, rest = first.partition(" ")
    if not protocol.startswith("HTTP/1."):
        raise ValueError(f"{first[:40]!r} is no answer in HTTP")
    pairs = (line.partition(":") for line in lines)
    return int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs}


class AsyncTransport:
    """Connections to one of several servers."""

    def __init__(
        self,
        servers: str = DEFAULT_SERVER,
        *,
        token: str = "",
        answer_s: float = ANSWER_S,
        patience_s: float = 0.0,
        pause: Callable[[float], Awaitable[object]] = pause_async,
    ) -> None:
        """`servers` has commas between several. Raises: StokerError `bad_server` or `bad_token`."""
        self._servers = parsed_servers(servers)
        self._token = checked_token(token)
        self._answer_s = answer_s
        self._patience_s = patience_s
        self._pause = pause
        self._known = False
        self._idle: list[Connection] = []
        self._turns = asyncio.Semaphore(CONNECTIONS_MAX)

    @property
    def server(self) -> str:
        """The one that is asked first."""
        return self._servers[0].geturl()

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().closed()

    async def send(self, request: Request) -> Reply:
        """One request, answered with success.

        Raises: StokerError with the server's refusal, or `no_server`, `no_answer` or `bad_answer`.
        """
        tries = Tries(request, self._patience_s, known=self._known, spread=jittered)
        while True:
            for server in self._servers:
                reply = await self._try(server, request, tries)
                if reply is not None:
                    self._servers = preferred(self._servers, server)
                    return reply
            await self._pause(tries.next_pause_s())

    async def _try(self, server: SplitResult, request: Request, tries: Tries) -> Reply | None:
        """The answer; None when another server, or this one later, should be asked."""
        while True:
            try:
                async with self._turns:
                    reply = await self._exchange(server, request)
            except Unreachable as fault:
                tries.unreachable(server, fault)
                return None
            except AnswerLost as fault:
                if tries.lost(server, fault):
                    continue
                return None
            self._known = True
            return reply if tries.accepts(reply) else None

    async def _exchange(self, server: SplitResult, request: Request) -> Reply:
        connection = await self._connected(server)
        kept = False
        try:
            async with asyncio.timeout(self._answer_s):
                reply, kept = await connection.exchange(request)
        except TimeoutError as fault:
            raise AnswerLost(f"nothing came for {self._answer_s:g} s") from fault
        finally:
            # Whoever is cancelled leaves half an answer behind.
            if kept:
                self._idle.append(connection)
            else:
                connection.close()
        return reply

    async def _connected(self, server: SplitResult) -> Connection:
        while self._idle:
            kept = self._idle.pop()
            if kept.server.netloc == server.netloc and kept.alive:
                return kept
            kept.close()
        secure = ssl.create_default_context() if server.scheme == "https" else None
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    server.hostname, server.port, ssl=secure, limit=_HEAD_BYTES_MAX
                )
        except TimeoutError as fault:
            raise Unreachable("timed out") from fault
        except OSError as fault:
            raise Unreachable(fault.strerror or str(fault)) from fault
        return Connection(server, reader, writer, self._token)
