"""Transport of the client for event loops: sends requests to one of several servers over asyncio's streams.

`retry` says what a lost or a bad answer leads to.

Limits: CONNECTIONS_MAX requests are on their way at once, and WAITING_MAX of those that the server is asked to answer
only when there is something to say; more wait for their turn. So those who follow output hold up nobody else.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Final, TypeVar
from urllib.parse import SplitResult

from stoker.brain.domain.errors import StokerError
from stoker.wire.client import http_message as http
from stoker.wire.client.backoff import sleep_async
from stoker.wire.client.exec_session import SessionConnection, handshake, handshake_key
from stoker.wire.client.retry import RequestSender, SendTo, Wait, no_answer, no_server
from stoker.wire.client.servers import DEFAULT_SERVER, server_label
from stoker.wire.client.staleness import Notice, ignore_notice
from stoker.wire.client.trust import NO_CREDENTIALS, Credentials, ServerProof
from stoker.wire.websocket import accept_of

CONNECTIONS_MAX: Final = 32
WAITING_MAX: Final = 256
GOODBYE_S: Final = 1.0
"""How long the end of a connection with TLS may take: a server that hangs never says goodbye."""

Wanted = TypeVar("Wanted")
Given = TypeVar("Given")
Result = TypeVar("Result")


async def drive(steps: Generator[Wanted, Given, Result], do: Callable[[Wanted], Awaitable[Given]]) -> Result:
    """Run a generator to its end: do what it asks for, and tell it what came of that."""
    try:
        wanted = next(steps)
        while True:
            try:
                given = await do(wanted)
            except (StokerError, http.Unreachable, http.AnswerLost) as fault:
                wanted = steps.throw(fault)
            else:
                wanted = steps.send(given)
    except StopIteration as end:
        result: Result = end.value
        return result


class AsyncConnection:
    """One keep-alive connection to a server."""

    def __init__(self, server: SplitResult, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self._reader = reader
        self._writer = writer
        self.begun = False
        """Whether the answer that is due has begun."""

    @property
    def alive(self) -> bool:
        """Whether the other side has not hung up, as far as is known."""
        return not (self._reader.at_eof() or self._writer.is_closing())

    @property
    def raw(self) -> socket.socket:
        """For questions about it."""
        found: socket.socket = self._writer.get_extra_info("socket")
        return found

    @property
    def tls(self) -> ssl.SSLObject:
        """Of a connection with TLS."""
        found: ssl.SSLObject = self._writer.get_extra_info("ssl_object")
        return found

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        """Hang up at once."""
        self._writer.transport.abort()

    async def closed(self) -> None:
        """Hang up, and wait until that is done."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def exchange(
        self, request: http.Request, token: str, bytes_max: int = http.ANSWER_BYTES_MAX
    ) -> tuple[http.Reply, bool]:
        """Send a request, and return its answer and whether the connection may be kept.

        Raises: AnswerLost; StokerError `bad_answer` where it has more bytes.
        """
        self.begun = False
        try:
            self._writer.write(http.request_bytes(self.server, request, token))
            await self._drained()
            head = await drive(http.read_head(), self._read)
            self.begun = True
            body = await drive(http.read_body(head, bytes_max), self._read)
            return http.Reply(head.status, head.headers, body), head.keep
        except OSError as fault:
            raise http.AnswerLost(str(fault) or type(fault).__name__) from fault

    async def begin(self, request: http.Request, token: str) -> "PortConnection":
        """Send the head of a request with an endless body, and return the connection once it is answered with success.

        Raises: AnswerLost, StokerError.
        """
        try:
            self._writer.write(http.endless_request_bytes(self.server, request, token))
            await self._writer.drain()
            head = await drive(http.read_head(), self._read)
            if head.status != 200:
                reply = http.Reply(head.status, head.headers, await drive(http.read_body(head), self._read))
                refusal = http.refusal_in(reply)
                raise http.bad_answer(reply) if refusal is None else StokerError(refusal)
        except OSError as fault:
            raise http.AnswerLost(str(fault) or type(fault).__name__) from fault
        return PortConnection(self._reader, self._writer)

    async def begin_session(self, request: http.Request, token: str, key: str) -> "SessionConnection":
        """Send the handshake of a WebSocket with this key, and return the connection once it is answered so.

        Raises: AnswerLost, StokerError.
        """
        try:
            self._writer.write(http.request_bytes(self.server, request, token))
            await self._writer.drain()
            head = await drive(http.read_head(), self._read)
            if head.status != http.SWITCHING:
                reply = http.Reply(head.status, head.headers, await drive(http.read_body(head), self._read))
                refusal = http.refusal_in(reply)
                raise http.bad_answer(reply) if refusal is None else StokerError(refusal)
        except OSError as fault:
            raise http.AnswerLost(str(fault) or type(fault).__name__) from fault
        if head.headers.get("sec-websocket-accept") != accept_of(key):
            raise http.bad_answer(http.Reply(head.status, head.headers, b""))
        return SessionConnection(self._reader, self._writer)

    async def _drained(self) -> None:
        try:
            await self._writer.drain()
        except ConnectionError:
            # Whoever refuses a body needn't read it: the answer may be there before the request is sent.
            if self._reader.at_eof():
                raise

    async def _read(self, size: int) -> bytes:
        """Read so many bytes, fewer at the end only, or a line; nothing instead of a line that is too long."""
        try:
            return await (self._reader.readuntil(b"\n") if size == http.LINE else self._reader.readexactly(size))
        except asyncio.IncompleteReadError as fault:
            return fault.partial
        except asyncio.LimitOverrunError:
            return b""


class AsyncTransport(RequestSender):
    """Keep-alive connections to one of several servers, for any number of tasks of one event loop."""

    def __init__(
        self,
        servers: str = DEFAULT_SERVER,
        *,
        credentials: Credentials = NO_CREDENTIALS,
        answer_s: float = http.ANSWER_S,
        patience_s: float = 0.0,
        pause: Callable[[float], Awaitable[object]] = sleep_async,
        notify: Callable[[Notice], object] = ignore_notice,
    ) -> None:
        """`servers` has commas between several. Raises: StokerError `bad_server` or `bad_token`."""
        super().__init__(
            *(servers,), credentials=credentials, answer_s=answer_s, patience_s=patience_s, pause=pause, notify=notify
        )
        self.answer_bytes_max = http.ANSWER_BYTES_MAX
        """A longer answer is refused as `bad_answer`."""
        self._idle: list[AsyncConnection] = []
        self._turns = asyncio.Semaphore(CONNECTIONS_MAX)
        self._waiting = asyncio.Semaphore(WAITING_MAX)

    async def close(self) -> None:
        """Hang up."""
        while self._idle:
            await self._idle.pop().closed()

    async def send(self, request: http.Request) -> http.Reply:
        """Send one request, and return its answer if it is one of success.

        Raises: StokerError with the server's refusal, or `no_server`, `no_answer`, `not_active` or `bad_answer`.
        """
        return await drive(self._sending(request), self._carry_out)

    async def connect(self, request: http.Request) -> "PortConnection":
        """Make a connection of a request whose body and answer go on side by side.

        Raises: StokerError with the server's refusal, or `no_server`, `not_active` or `no_answer`.
        """
        return await self._first(request, lambda connection: connection.begin(request, self._proof.token))

    async def connect_session(self, request: http.Request) -> "SessionConnection":
        """Make a WebSocket to a session in a job. Raises: StokerError as `connect`."""
        key = handshake_key()
        asked = request._replace(headers={**request.headers, **handshake(key)})
        return await self._first(asked, lambda connection: connection.begin_session(asked, self._proof.token, key))

    async def _first(self, request: http.Request, begin: Callable[[AsyncConnection], Awaitable[Result]]) -> Result:
        """Return what comes of a request at the first server that is active. Raises: StokerError as `connect`."""
        refusal = StokerError(no_server("none is named", 0, of_ones_own=self._servers.of_ones_own))
        for server in self._servers.in_turn:
            try:
                return await self._begun(server, begin)
            except http.Unreachable as fault:
                told = f"{server_label(server)}: {fault}"
                refusal = StokerError(no_server(told, 1, of_ones_own=self._servers.of_ones_own))
            except (TimeoutError, http.AnswerLost) as fault:
                raise StokerError(no_answer(server, request, fault)) from fault
            except StokerError as fault:
                if fault.refusal.code != "not_active":
                    raise
                refusal = fault
        raise refusal

    async def _begun(self, server: SplitResult, begin: Callable[[AsyncConnection], Awaitable[Result]]) -> Result:
        """Raises: Unreachable, AnswerLost, TimeoutError, StokerError."""
        connection = await self._dialled(server, http.CONNECT_S)
        try:
            async with asyncio.timeout(self._answer_s):
                begun = await begin(connection)
        except BaseException:
            connection.abort()
            raise
        self._servers.prefer(server)
        return begun

    async def run(self, call: Generator[http.Request | Wait, http.Reply | None, Result]) -> Result:
        """Send the requests of a call and make its pauses, to its end. Raises: StokerError as `send`."""
        return await drive(call, self._perform)

    async def _perform(self, action: http.Request | Wait) -> http.Reply | None:
        return await (self._carry_out(action) if isinstance(action, Wait) else self.send(action))

    async def _carry_out(self, action: SendTo | Wait) -> http.Reply | None:
        if isinstance(action, Wait):
            await self._pause(action.seconds)
            return None
        async with self._waiting if action.request.waits else self._turns:
            return await self._exchange(action)

    async def _exchange(self, turn: SendTo) -> http.Reply:
        connection = await self._connected(turn.server, turn.connect_s)
        kept = False
        try:
            async with asyncio.timeout(self._answer_s):
                reply, kept = await self._watched(connection, turn)
        except TimeoutError as fault:
            raise http.AnswerLate(f"nothing came for {self._answer_s:g} s") from fault
        finally:
            # Whoever is cancelled leaves half an answer behind.
            if kept:
                self._keep(connection)
            else:
                connection.close()
        return reply

    async def _watched(self, connection: AsyncConnection, turn: SendTo) -> tuple[http.Reply, bool]:
        """The answer, and whether the connection may be kept. Raises: AnswerLost, also as soon as another server says
        that it is active."""
        if not self._servers.several:
            return await connection.exchange(turn.request, self._proof.token, self.answer_bytes_max)
        exchange = asyncio.ensure_future(connection.exchange(turn.request, self._proof.token, self.answer_bytes_max))

        async def look(wanted: float | SplitResult) -> bool:
            if isinstance(wanted, float):
                return bool((await asyncio.wait({exchange}, timeout=wanted))[0]) or connection.begun
            return await self._says_active(wanted) and not (exchange.done() or connection.begun)

        try:
            await drive(self._watching(turn.server, turn.answer_s), look)
            return await exchange
        finally:
            exchange.cancel()
            await asyncio.wait({exchange})
            if not exchange.cancelled():
                exchange.exception()  # known, or of no interest any more

    async def _connected(self, server: SplitResult, connect_s: float) -> AsyncConnection:
        kept = self._kept(server)
        if kept is not None:
            return kept
        return await self._dialled(server, connect_s)

    def _kept(self, server: SplitResult) -> AsyncConnection | None:
        for each in self._idle:
            if not each.alive:
                each.close()
        self._idle = [each for each in self._idle if each.alive]
        found = next((each for each in reversed(self._idle) if each.server == server), None)
        if found is not None:
            self._idle.remove(found)
        return found

    def _keep(self, connection: AsyncConnection) -> None:
        self._idle.append(connection)
        if len(self._idle) > CONNECTIONS_MAX:
            self._idle.pop(0).close()

    async def _says_active(self, server: SplitResult) -> bool:
        try:
            async with asyncio.timeout(http.PROBE_S):
                connection = await self._dialled(server, http.PROBE_S)
                try:
                    reply, _ = await connection.exchange(http.PROBE, "", self.answer_bytes_max)
                finally:
                    connection.close()
        except (OSError, http.Unreachable, http.AnswerLost, StokerError):
            return False
        return http.is_active(reply.status, reply.headers)

    async def _dialled(self, server: SplitResult, connect_s: float) -> AsyncConnection:
        """Raises: Unreachable, NotProved; StokerError `bad_ca_file`."""
        proof = self._proof
        try:
            async with asyncio.timeout(connect_s):
                if server.scheme == "http":
                    return _proved(await _connected(server, None), proof)
                if proof.wants_root:
                    looking = await _connected(server, proof.looking_context())
                    try:
                        proof.learn_root(server, looking.tls)
                    finally:
                        looking.abort()
                return await _connected(server, proof.context())
        except OSError as fault:  # a TimeoutError is one
            raise proof.fault_of(server, fault) from fault


def _proved(connection: AsyncConnection, proof: ServerProof) -> AsyncConnection:
    """Raises: OSError, NotProved."""
    try:
        proof.check_plain(connection.server, connection.raw)
    except BaseException:
        connection.abort()
        raise
    return connection


async def _connected(server: SplitResult, secure: ssl.SSLContext | None) -> AsyncConnection:
    """Raises: OSError."""
    goodbye_s = None if secure is None else GOODBYE_S
    reader, writer = await asyncio.open_connection(
        *(server.hostname, server.port), limit=http.LINE_BYTES_MAX, ssl=secure, ssl_shutdown_timeout=goodbye_s
    )
    return AsyncConnection(server, reader, writer)


class PortConnection:
    """A connection to a port of a job: what is sent goes there, what is read comes from there."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def write(self, data: bytes) -> None:
        """Send bytes. Raises: OSError."""
        if data:
            self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await self._writer.drain()

    async def end(self) -> None:
        """Say that nothing more comes from here. Raises: OSError."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def read(self) -> bytes:
        """Return the next bytes; none at the end. Raises: OSError, if the connection was broken off."""
        try:
            size = int(await self._reader.readuntil(b"\n"), 16)
            data = await self._reader.readexactly(size + 2)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as fault:
            raise ConnectionError("the connection was broken off") from fault
        return data[:-2]

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
