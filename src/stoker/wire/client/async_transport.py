"""How does a request reach a server without blocking an event loop?

HTTP/1.1 over asyncio's streams, as much of it as a control plane and a proxy before it speak. The standard library has
no client for it, and a library would cost more to import than our whole command line. What a lost or a bad answer leads
to is in `retry`.

Limits: CONNECTIONS_MAX requests are on their way at once, and WAITING_MAX of those that the server is asked to answer
only when there is something to say; more wait for their turn. So those who follow output hold up nobody else.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final
from urllib.parse import SplitResult

from stoker.wire.client.backoff import mono_s, sleep_async
from stoker.wire.client.http_message import (
    ANSWER_BYTES_MAX,
    ANSWER_S,
    LOOK_FIRST_S,
    LOOK_MAX_S,
    PROBE,
    PROBE_S,
    AnswerLate,
    AnswerLost,
    NoHttp,
    Reply,
    Request,
    Unreachable,
    answer_too_long,
    checked_token,
    headers_of,
    is_active,
)
from stoker.wire.client.retry import LOOK, RequestRetry, SendTo, Wait, wants_look
from stoker.wire.client.servers import DEFAULT_SERVER, Servers, parsed_servers, server_label
from stoker.wire.client.staleness import Notice, ignore_notice

CONNECTIONS_MAX: Final = 32
WAITING_MAX: Final = 256
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
        self.begun = False
        """Is the answer on its way that is due?"""

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
        self.begun = False
        try:
            self._writer.write(_head(self.server, request, self._token) + (request.body or b""))
            await self._drained()
            return await self._answer(request)
        except ValueError as fault:
            raise NoHttp(str(fault)) from fault
        except (OSError, EOFError, asyncio.LimitOverrunError) as fault:
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
        self.begun = True
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
        pause: Callable[[float], Awaitable[object]] = sleep_async,
        notify: Callable[[Notice], object] = ignore_notice,
    ) -> None:
        """`servers` has commas between several. Raises: StokerError `bad_server` or `bad_token`."""
        self._servers = Servers(parsed_servers(servers))
        self._token = checked_token(token)
        self._answer_s = answer_s
        self.patience_s = patience_s
        self._pause = pause
        self._notify = notify
        self._idle: list[Connection] = []
        self._turns = asyncio.Semaphore(CONNECTIONS_MAX)
        self._waiting = asyncio.Semaphore(WAITING_MAX)

    @property
    def server(self) -> str:
        """The one that is asked first."""
        return self._servers.first.geturl()

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().closed()

    async def send(self, request: Request) -> Reply:
        """One request, answered with success.

        Raises: StokerError with the server's refusal, or `no_server`, `no_answer`, `not_active` or `bad_answer`.
        """
        if wants_look(request, self._servers, mono_s()):
            await self._answered(LOOK, ignore_notice)
        return await self._answered(request, self._notify)

    async def _answered(self, request: Request, notify: Callable[[Notice], object]) -> Reply:
        tries = RequestRetry(request, self._servers, self.patience_s, notify)
        while True:
            turn = tries.next()
            if isinstance(turn, Wait):
                await self._pause(turn.seconds)
                continue
            try:
                async with self._waiting if request.waits else self._turns:
                    reply = await self._exchange(turn)
            except Unreachable as fault:
                tries.unreachable(turn.server, fault)
            except AnswerLost as fault:
                tries.lost(turn.server, fault)
            else:
                if tries.accepts(turn.server, reply):
                    return reply

    async def _exchange(self, turn: SendTo) -> Reply:
        connection = await self._connected(turn.server, turn.connect_s)
        kept = False
        try:
            async with asyncio.timeout(self._answer_s):
                reply, kept = await self._watched(connection, turn)
        except TimeoutError as fault:
            raise AnswerLate(f"nothing came for {self._answer_s:g} s") from fault
        finally:
            # Whoever is cancelled leaves half an answer behind.
            if kept:
                self._keep(connection)
            else:
                connection.close()
        return reply

    async def _watched(self, connection: Connection, turn: SendTo) -> tuple[Reply, bool]:
        """The answer, and whether the connection may be kept. Raises: AnswerLost, also as soon as another server says
        that it is active."""
        if not self._servers.several:
            return await connection.exchange(turn.request)
        exchange = asyncio.ensure_future(connection.exchange(turn.request))
        give_up_s, look_s = mono_s() + turn.answer_s, LOOK_FIRST_S
        try:
            while not (await asyncio.wait({exchange}, timeout=min(look_s, max(0.0, give_up_s - mono_s()))))[0]:
                if connection.begun:
                    break
                if mono_s() >= give_up_s:
                    raise AnswerLate(f"nothing came for {turn.answer_s:g} s")
                for other in self._servers.others(turn.server):
                    if await self._says_active(other) and not (exchange.done() or connection.begun):
                        raise AnswerLost(f"{server_label(other)} is active now", elsewhere=other)
                look_s = min(look_s * 2, LOOK_MAX_S)
            return await exchange
        finally:
            exchange.cancel()
            await asyncio.wait({exchange})
            if not exchange.cancelled():
                exchange.exception()  # known, or of no interest any more

    async def _says_active(self, server: SplitResult) -> bool:
        try:
            async with asyncio.timeout(PROBE_S):
                connection = await _dialled(server, "")
                try:
                    reply, _ = await connection.exchange(PROBE)
                finally:
                    connection.close()
        except (TimeoutError, OSError, AnswerLost):
            return False
        return is_active(reply.status, reply.headers)

    async def _connected(self, server: SplitResult, connect_s: float) -> Connection:
        kept = self._kept(server)
        if kept is not None:
            return kept
        try:
            async with asyncio.timeout(connect_s):
                return await _dialled(server, self._token)
        except OSError as fault:  # a TimeoutError is one
            raise Unreachable(fault) from fault

    def _kept(self, server: SplitResult) -> Connection | None:
        for each in self._idle:
            if not each.alive:
                each.close()
        self._idle = [each for each in self._idle if each.alive]
        found = next((each for each in reversed(self._idle) if each.server == server), None)
        if found is not None:
            self._idle.remove(found)
        return found

    def _keep(self, connection: Connection) -> None:
        self._idle.append(connection)
        if len(self._idle) > CONNECTIONS_MAX:
            self._idle.pop(0).close()


async def _dialled(server: SplitResult, token: str) -> Connection:
    """Raises: OSError."""
    secure = ssl.create_default_context() if server.scheme == "https" else None
    reader, writer = await asyncio.open_connection(server.hostname, server.port, ssl=secure, limit=_HEAD_BYTES_MAX)
    return Connection(server, reader, writer, token)
