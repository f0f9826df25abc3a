"""Limits on connections whose clients are slow to ask, or slow to take their answer.

uvicorn waits for them without end, and keeps whatever they send before a request is whole. This is its protocol of one
connection, with bounds.

Rules: N1  who owes us something for QUIET_S - a whole request, or room for more of an answer - is closed, and told why
           if it still can be
       N2  at `connections_max` a new client takes the place of the one who has owed us something for longest; none is
           closed while we owe it an answer, and if we owe one to all, the new one is turned away
       N3  the head of a request, up to its body, is bounded
       N4  what still comes of a request that was answered already (its body was too large) is thrown away, up to a
           bound, so that the client comes to read the answer
       N5  an answer can be broken off: what was sent arrives, and the reader sees that it isn't whole
       N6  whose connection it is, is asked once, when it is made; a request on one that may not ask is answered so
       N7  one address has at most half of all places. Beyond that N2 holds among its own connections
       N8  a connection takes its place when it is accepted, before its TLS handshake, which it owes us like a request
       N9  what is no request to a control plane (bytes that aren't HTTP, CONNECT) gets one answer, and a request to
           speak another protocol is answered as any other; nothing of them is logged as a defect
       N10 a request may change the protocol of its connection: bare bytes go both ways then, with UPGRADED_BYTES_MAX of
           them waiting here, and the client owes us nothing but room for more
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.wire.rest.problem import MEDIA_TYPE, problem_of

KEEP_ALIVE_S: Final = 75
"""Longer than most clients keep an idle connection, so that it is they who close it."""
QUIET_S: Final = 80.0
"""Above that, so that an idle connection is closed by uvicorn, in its gentler way. A request of 16 MiB comes in that
time at 200 KiB a second; of an answer 64 KiB must be taken in it."""
SWEEP_S: Final = 1.0
HEAD_BYTES_MAX: Final = 64 * 1024
DROPPED_BYTES_MAX: Final = 64 * 1024 * 1024
"""N4. Beyond it the connection is closed, which may take the answer with it."""
CONNECTIONS_MAX: Final = 10_000
"""Or half of the files that this process may open, if that is less: the rest is for agents and the store."""
FILES_PART: Final = 2
ADDRESSES: Final = 2
"""One address may have so large a part of the connections (N7)."""

UPGRADED_BYTES_MAX: Final = 64 * 1024
"""Unread of a connection that speaks another protocol; beyond it the client waits."""
_BREAK: Final = "stoker.break"
_UPGRADE: Final = "stoker.upgrade"
_DUPLEX: Final = "stoker.duplex"
_REFUSAL: Final = "stoker.refusal"
_BY_SOCKET: Final = "stoker.by_socket"
Admit = Callable[[socket.socket], Refusal | None]
"""Why whoever is at the other end may not ask anything; None when he may."""
_KEEP_ALIVE_OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)
"""A reader whose machine died while nothing was to be sent is noticed within two minutes."""


def break_off(scope: Scope) -> None:
    """Break an answer off, so that its reader sees that it isn't whole (N5).

    Raises: ConnectionAbortedError where the connection is none of these.
    """
    broken: Callable[[], None] | None = scope.get("extensions", {}).get(_BREAK)
    if broken is None:
        raise ConnectionAbortedError("the answer can't go on")
    broken()


def begin_duplex(scope: Scope) -> None:
    """Note that the body of this request goes on beside its answer, so that it isn't late however long it takes."""
    begun: Callable[[], None] | None = scope.get("extensions", {}).get(_DUPLEX)
    if begun is not None:
        begun()


def upgrade(scope: Scope, head: bytes) -> "UpgradedConnection":
    """Answer a request to speak another protocol, with this head, and return the bare connection (N10).

    Raises: ConnectionAbortedError where the connection is none of these.
    """
    begin: Callable[[bytes], UpgradedConnection] | None = scope.get("extensions", {}).get(_UPGRADE)
    if begin is None:
        raise ConnectionAbortedError("this connection can't change its protocol")
    return begin(head)


def check_peer(scope: Scope) -> None:
    """Refuse a request on a connection of another account (N6). Raises: StokerError `foreign_user`."""
    refusal = scope.get("extensions", {}).get(_REFUSAL)
    if refusal is not None:
        raise StokerError(refusal)


def came_by_socket(scope: Scope) -> bool:
    """Return whether a request came over the socket that only the control plane's own account and root can open."""
    return _BY_SOCKET in scope.get("extensions", {})


class AcceptedConnection(Protocol):
    """A connection that counts, of which TLS may still be to come."""

    address: str
    """Of the client; empty over the Unix socket."""
    loop: asyncio.AbstractEventLoop

    def abort(self) -> None:
        """Hang up at once."""

    def dismiss(self) -> None:
        """Hang up, and say why if that is possible (N1)."""


class Connections:
    """All of one server."""

    def __init__(self, connections_max: int, admit: Admit = lambda connection: None) -> None:
        self.connections_max = connections_max
        self.admit = admit
        self._open: set[AcceptedConnection] = set()
        self._by_address: Counter[str] = Counter()
        self._owing: dict[AcceptedConnection, float] = {}
        """Since when each owes us something, the oldest first."""
        self._sweeper: asyncio.TimerHandle | None = None

    def add(self, connection: AcceptedConnection) -> Refusal | None:
        """Return why there is no place for one more; None where there is one (N2, N7)."""
        address = connection.address
        crowded = bool(address) and self._by_address[address] >= max(1, self.connections_max // ADDRESSES)
        if crowded or len(self._open) >= self.connections_max:
            oldest = next((each for each in self._owing if not crowded or each.address == address), None)
            if oldest is None:
                return _too_many(self._by_address[address] if crowded else len(self._open), address if crowded else "")
            self.remove(oldest)
            oldest.abort()
        self._open.add(connection)
        self._by_address[address] += 1
        return None

    def remove(self, connection: AcceptedConnection) -> None:
        if connection in self._open:
            self._open.remove(connection)
            self._by_address[connection.address] -= 1
            if not self._by_address[connection.address]:
                del self._by_address[connection.address]
        self._owing.pop(connection, None)

    def owes(self, connection: AcceptedConnection) -> None:
        """From now on, whatever was before."""
        if connection in self._open:
            self._owing.pop(connection, None)
            self._owing[connection] = connection.loop.time()
            if self._sweeper is None:
                self._sweeper = connection.loop.call_later(SWEEP_S, self._sweep, connection.loop)

    def owes_nothing(self, connection: AcceptedConnection) -> None:
        self._owing.pop(connection, None)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close connections that have owed something for QUIET_S (N1)."""
        late = loop.time() - QUIET_S
        while self._owing and next(iter(self._owing.values())) <= late:
            connection = next(iter(self._owing))
            self.remove(connection)
            connection.dismiss()
        self._sweeper = loop.call_later(SWEEP_S, self._sweep, loop) if self._owing else None


class UpgradedConnection:
    """Bytes both ways on a connection that speaks no HTTP any more (N10)."""

    def __init__(self, transport: asyncio.Transport, drain: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._drain = drain
        self._came = bytearray()
        self._news = asyncio.Event()
        self._over = False
        self._paused = False

    def take(self, data: bytes) -> None:
        """Take what came; empty = no more will."""
        self._came += data
        self._over = self._over or not data
        self._news.set()
        if len(self._came) > UPGRADED_BYTES_MAX and not self._paused and not self._over:
            self._paused = True
            self._transport.pause_reading()

    async def read(self) -> bytes:
        """Return what came, none at the end."""
        while not self._came and not self._over:
            self._news.clear()
            await self._news.wait()
        data = bytes(self._came)
        self._came.clear()
        if self._paused and not self._over:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes, as the client takes them. Raises: ConnectionError once it is gone."""
        if self._over:
            raise ConnectionResetError("the client hung up")
        self._transport.write(data)
        await self._drain()

    def close(self) -> None:
        """Hang up after what was sent."""
        self._transport.close()


class HttpConnection(HttpToolsProtocol):
    """One of them."""

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._all = connections
        self._in_head = True
        self._head_bytes = 0
        self._dropped_bytes = 0
        self._peer: dict[str, object] = {}
        self.address = ""
        self._duplex = False
        self._upgraded: UpgradedConnection | None = None
        self.instead_of: AcceptedConnection | None = None
        """The same connection before its TLS handshake (N8)."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.address = "" if self.client is None else self.client[0]
        connection = transport.get_extra_info("socket")
        if connection is not None:
            self._meet(connection)
        if self.instead_of is not None:
            self._all.remove(self.instead_of)
        refusal = self._all.add(self)
        if refusal is None:
            self._all.owes(self)
        else:
            self._turn_away(refusal)

    def _meet(self, connection: socket.socket) -> None:
        """Ask whose connection it is, once, when it is made (N6)."""
        refusal = self._all.admit(connection)
        if refusal is not None:
            self._peer[_REFUSAL] = refusal
        if connection.family == socket.AF_UNIX:
            self._peer[_BY_SOCKET] = True
        else:
            _keep_alive(connection)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.remove(self)
        if self._upgraded is not None:
            self._upgraded.take(b"")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._upgraded is not None:
            self._upgraded.take(data)
            return
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._turn_away(_head_too_large())
        elif not self._in_head and _is_answered(self.cycle):
            self._dropped_bytes += len(data)
            if self._dropped_bytes > DROPPED_BYTES_MAX:
                self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._duplex = False
        ours: dict[str, Any] = {_BREAK: self.transport.close, _DUPLEX: self._begin_duplex, _UPGRADE: self._upgrade}
        ours |= self._peer
        self.scope["extensions"] = ours
        self._weigh()

    def on_headers_complete(self) -> None:
        if self.parser.get_method() == b"CONNECT":  # its target is no path (N9)
            self._turn_away(_no_proxy(), retry_after_s=0)
            return
        self._in_head, self._head_bytes, self._dropped_bytes = False, 0, 0
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._turn_away(_no_request(), retry_after_s=0)

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: a request to speak another protocol is answered as if it hadn't been made (N9)."""

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True
        self._weigh()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._weigh()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._weigh()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._weigh()

    def abort(self) -> None:
        self.transport.abort()

    def dismiss(self) -> None:
        """Close a connection that owes a request or room for an answer, and say why if that is possible (N1)."""
        may_speak = not _is_answering(self.cycle) and not self.flow.write_paused and not self.transport.is_closing()
        if self._has_begun and may_speak and self._upgraded is None:
            self._turn_away(_too_slow())
            self.loop.call_later(SWEEP_S, self.transport.abort)
        else:
            # Not closed: that would first wait for what it doesn't take.
            self.transport.abort()

    @property
    def _has_begun(self) -> bool:
        """Is part of a request there?"""
        return self._head_bytes > 0 or not self._in_head

    def _upgrade(self, head: bytes) -> UpgradedConnection:
        cycle = self.cycle
        assert not cycle.response_started, "a protocol is changed instead of an answer"
        cycle.response_started = cycle.response_complete = True
        self._upgraded = UpgradedConnection(self.transport, self.flow.drain)
        self.transport.write(head)
        self._begin_duplex()
        return self._upgraded

    def _begin_duplex(self) -> None:
        self._duplex = True
        self._weigh()

    def _weigh(self) -> None:
        """Whose turn is it?"""
        if (_waits_for_us(self.cycle) or self._duplex) and not self.flow.write_paused:
            self._all.owes_nothing(self)
        else:
            self._all.owes(self)

    def _turn_away(self, refusal: Refusal, retry_after_s: int = 1) -> None:
        self.transport.write(last_answer(refusal, retry_after_s))
        self.transport.close()


def last_answer(refusal: Refusal, retry_after_s: int = 0) -> bytes:
    """Return a refusal as the whole answer on a connection that is closed after it; 0 = waiting doesn't help."""
    problem = problem_of(refusal)
    body = msgspec.json.encode(problem)
    later = f"retry-after: {retry_after_s}\r\n" if retry_after_s else ""
    head = f"HTTP/1.1 {problem.status} {problem.title}\r\ncontent-type: {MEDIA_TYPE}\r\n{later}"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


def _is_answered(cycle: RequestResponseCycle | None) -> bool:
    return cycle is not None and cycle.response_complete


def _waits_for_us(cycle: RequestResponseCycle | None) -> bool:
    return cycle is not None and not cycle.more_body and not cycle.response_complete


def _is_answering(cycle: RequestResponseCycle | None) -> bool:
    return cycle is not None and cycle.response_started and not cycle.response_complete


def _keep_alive(connection: socket.socket) -> None:
    for level, option, value in _KEEP_ALIVE_OPTIONS:
        connection.setsockopt(level, option, value)


def _too_many(limit: int, address: str) -> Refusal:
    """Refuse a connection beyond the bound of all, or where it is given, beyond that of its own address."""
    whose = f" of {address}" if address else ""
    part = "a quarter" if address else "half"
    return refuse(
        "too_many_connections",
        f"{limit} clients{whose} are being answered at this moment",
        f"try again in a second; the limit is {part} of the files that the control plane may open (`ulimit -n`)",
        connections_max=limit,
    )


def _no_proxy() -> Refusal:
    hint = "ask the control plane itself, and leave it out of the settings of proxies (`no_proxy`)"
    return refuse(
        "method_not_allowed", "this is a control plane, and no proxy: it has no CONNECT", hint, method="CONNECT"
    )


def _no_request() -> Refusal:
    hint = "ask it by HTTP/1.1; where it speaks TLS, its address begins with https"
    return refuse("bad_request", "what came is no request of HTTP", hint)


def _too_slow() -> Refusal:
    message = f"the request wasn't whole {QUIET_S:.0f} s after it began"
    return refuse("request_too_slow", message, "send it in one go, and large inputs as files", quiet_s=int(QUIET_S))


def _head_too_large() -> Refusal:
    message = f"the head of the request is longer than {HEAD_BYTES_MAX // 1024} KiB"
    return refuse("head_too_large", message, "send less in its path and headers", limit_bytes=HEAD_BYTES_MAX)
