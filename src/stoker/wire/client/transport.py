"""How does a request reach a server, and what if none is there?

Standard library only, so that a command line starts quickly. What a lost or a bad answer leads to is in `retry`.
"""

import http.client
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult

from stoker.brain.domain.errors import StokerError, refuse
from stoker.wire.client.backoff import mono_s, sleep_blocking
from stoker.wire.client.http_message import (
    ANSWER_BYTES_MAX,
    ANSWER_S,
    LOOK_FIRST_S,
    LOOK_MAX_S,
    MIDST_S,
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
from stoker.wire.client.servers import DEFAULT_SERVER, Servers, local_server, parsed_servers, server_label
from stoker.wire.client.staleness import Notice, ignore_notice
from stoker.wire.local_socket import connected

if TYPE_CHECKING:
    from pathlib import Path

LONG_ANSWER_S = 600.0
"""How long the next bytes of an answer without end are waited for: before the first ones much may have to be copied."""

__all__ = ["DEFAULT_SERVER", "Reply", "Request", "Transport"]


class _Begun(NamedTuple):
    """An answer of which the head is here. Its body is too unless somebody wants to read it as it comes."""

    reply: Reply
    response: http.client.HTTPResponse


class Transport:
    """A keep-alive connection to one of several servers. Not for use by several threads at once."""

    def __init__(
        self,
        servers: str = DEFAULT_SERVER,
        *,
        token: str = "",
        answer_s: float = ANSWER_S,
        patience_s: float = 0.0,
        pause: Callable[[float], object] = sleep_blocking,
        notify: Callable[[Notice], object] = ignore_notice,
    ) -> None:
        """`servers` has commas between several. Raises: StokerError `bad_server` or `bad_token`."""
        self._servers = Servers(parsed_servers(servers))
        self._token = checked_token(token)
        self._answer_s = answer_s
        self.patience_s = patience_s
        self._pause = pause
        self._notify = notify
        self._connection: http.client.HTTPConnection | None = None
        self._spoilt = False
        """Half a request was sent on it: nothing may follow."""

    @property
    def server(self) -> str:
        """The one that is asked first."""
        return self._servers.first.geturl()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection, self._spoilt = None, False

    def ask(self, method: str, target: str) -> Reply:
        """A request without a body, which may be sent twice if it is a GET."""
        return self.send(Request(method, target, repeatable=method == "GET"))

    def send(self, request: Request) -> Reply:
        """One request, answered with success.

        Raises: StokerError with the server's refusal, or `no_server`, `no_answer`, `not_active` or `bad_answer`.
        """
        if wants_look(request, self._servers, mono_s()):
            self._answered(LOOK, self._exchange, ignore_notice)
        return self._answered(request, self._exchange, self._notify).reply

    @contextmanager
    def opened(self, target: str) -> Iterator["LongAnswer"]:
        """The answer to a GET that is too long to be held, to be read within the block.

        Raises: StokerError as `send` does.
        """
        request = Request("GET", target, repeatable=True, waits=True)
        try:
            begun = self._answered(request, self._open, self._notify)
            yield LongAnswer(begun.response, self.server)
        finally:
            self.close()

    def _answered(
        self, request: Request, ask: Callable[[SendTo], _Begun], notify: Callable[[Notice], object]
    ) -> _Begun:
        tries = RequestRetry(request, self._servers, self.patience_s, notify)
        while True:
            turn = tries.next()
            if isinstance(turn, Wait):
                self._pause(turn.seconds)
                continue
            try:
                begun = ask(turn)
            except Unreachable as fault:
                tries.unreachable(turn.server, fault)
            except AnswerLost as fault:
                self.close()
                tries.lost(turn.server, fault)
            else:
                if tries.accepts(turn.server, begun.reply):
                    return begun

    # --- one try ------------------------------------------------------------------------------------------------

    def _open(self, turn: SendTo) -> _Begun:
        response = self._sent(turn, LONG_ANSWER_S)
        if response.status < 300:
            return _Begun(Reply(response.status, _headers(response), b""), response)
        return _Begun(_whole(response), response)

    def _exchange(self, turn: SendTo) -> _Begun:
        response = self._sent(turn, min(self._answer_s, turn.answer_s))
        return _Begun(_whole(response), response)

    def _sent(self, turn: SendTo, answer_s: float) -> http.client.HTTPResponse:
        """Raises: Unreachable or AnswerLost."""
        connection = self._connected(turn)
        connection.sock.settimeout(answer_s)
        request = turn.request
        try:
            connection.request(request.method, request.target, request.body, headers_of(request, self._token))
        except OSError as fault:
            # Whoever refuses a body needn't read it: the answer may be there before the request is sent.
            return self._early_answer(connection, fault)
        except http.client.HTTPException as fault:
            raise _lost(fault) from fault
        if self._servers.several:
            self._await_beginning(connection, turn.server, answer_s)
            if not turn.request.waits:
                connection.sock.settimeout(min(answer_s, MIDST_S))
        return _response(connection)

    def _early_answer(self, connection: http.client.HTTPConnection, fault: OSError) -> http.client.HTTPResponse:
        if connection.sock is None or not _readable(connection, 0.0):
            raise _lost(fault) from fault
        self._spoilt = True
        return _response(connection)

    def _connected(self, turn: SendTo) -> http.client.HTTPConnection:
        kept, server = self._connection, turn.server
        same = kept is not None and (kept.host, kept.port) == (server.hostname, server.port)
        if kept is not None and same and not self._spoilt and _alive(kept):
            return kept
        self.close()
        made = self._made(server, turn.connect_s)
        try:
            made.connect()
        except OSError as fault:
            raise Unreachable(fault) from fault
        self._connection = made
        return made

    def _made(self, server: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
        """Not connected yet."""
        kind = http.client.HTTPSConnection if server.scheme == "https" else http.client.HTTPConnection
        return kind(server.hostname or "", server.port, timeout=timeout_s)

    # --- who is active meanwhile --------------------------------------------------------------------------------

    def _await_beginning(self, connection: http.client.HTTPConnection, server: SplitResult, answer_s: float) -> None:
        """Returns when the answer begins. Raises: AnswerLost as soon as another server says that it is active."""
        give_up_s, look_s = mono_s() + answer_s, LOOK_FIRST_S
        while not _readable(connection, max(0.0, min(look_s, give_up_s - mono_s()))):
            if mono_s() >= give_up_s:
                raise AnswerLate(f"nothing came for {answer_s:g} s")
            for other in self._servers.others(server):
                if self._says_active(other):
                    raise AnswerLost(f"{server_label(other)} is active now", elsewhere=other)
            look_s = min(look_s * 2, LOOK_MAX_S)

    def _says_active(self, server: SplitResult) -> bool:
        connection = self._made(server, PROBE_S)
        try:
            connection.request(PROBE.method, PROBE.target, headers=headers_of(PROBE))
            response = connection.getresponse()
            return is_active(response.status, _headers(response))
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class LongAnswer:
    """An answer that is read as it comes."""

    def __init__(self, response: http.client.HTTPResponse, server: str) -> None:
        self._response = response
        self._server = server

    def read(self, size: int, /) -> bytes:
        """The next bytes; none are left when it is empty. Raises: StokerError `no_answer` when it is broken off."""
        try:
            piece = self._response.read(size)
        except (OSError, http.client.HTTPException) as fault:
            raise self._broken(str(fault) or type(fault).__name__) from fault
        if not piece and self._response.length:
            raise self._broken(f"{self._response.length} bytes are missing")
        return piece

    def _broken(self, why: str) -> StokerError:
        return StokerError(refuse("no_answer", f"{self._server} broke off its answer: {why}", "ask again"))


class SocketTransport(Transport):
    """The same to the control plane on this machine that listens on a Unix socket. It asks no other."""

    def __init__(self, path: "Path") -> None:
        super().__init__()
        self._servers = Servers([local_server(str(path))])
        self._path = path

    def _made(self, server: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
        return _SocketConnection(self._path, server, timeout_s)


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: "Path", server: SplitResult, timeout_s: float) -> None:
        super().__init__(server.hostname or "", server.port, timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = connected(self._path, self.timeout or PROBE_S)


def _lost(fault: Exception) -> AnswerLost:
    if isinstance(fault, http.client.BadStatusLine) and not isinstance(fault, http.client.RemoteDisconnected):
        return NoHttp("what answers there doesn't speak HTTP")
    kind = AnswerLate if isinstance(fault, TimeoutError) else AnswerLost
    return kind(str(fault) or type(fault).__name__)


def _alive(connection: http.client.HTTPConnection) -> bool:
    """A quiet connection that can be read from was closed by the other side."""
    return connection.sock is not None and not _readable(connection, 0.0)


def _readable(connection: http.client.HTTPConnection, within_s: float) -> bool:
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(within_s * 1_000))


def _response(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
    try:
        return connection.getresponse()
    except (OSError, http.client.HTTPException) as fault:
        raise _lost(fault) from fault


def _headers(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _whole(response: http.client.HTTPResponse) -> Reply:
    if (response.length or 0) > ANSWER_BYTES_MAX:
        raise answer_too_long(response.status)
    try:
        body = response.read(ANSWER_BYTES_MAX + 1)
    except (OSError, http.client.HTTPException) as fault:
        raise _lost(fault) from fault
    if len(body) > ANSWER_BYTES_MAX:
        raise answer_too_long(response.status)
    if response.length:
        raise AnswerLost(f"{response.length} bytes of the answer are missing")
    return Reply(response.status, _headers(response), body)
