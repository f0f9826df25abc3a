"""How does a request reach a server, and what if none is there?

Standard library only, so that a command line starts quickly. What a lost or a bad answer leads to is in `retry`.
"""

import http.client
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import SplitResult

from stoker.brain.domain.errors import StokerError, refuse
from stoker.wire.local_socket import connected
from stoker.wire.pause import jittered, pause
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

if TYPE_CHECKING:
    from pathlib import Path

LONG_ANSWER_S = 600.0
"""How long the next bytes of an answer without end are waited for: before the first ones much may have to be copied."""

__all__ = ["DEFAULT_SERVER", "Reply", "Request", "Transport"]


class Transport:
    """A keep-alive connection to one of several servers. Not for use by several threads at once."""

    def __init__(
        self,
        servers: str = DEFAULT_SERVER,
        *,
        token: str = "",
        answer_s: float = ANSWER_S,
        patience_s: float = 0.0,
        pause: Callable[[float], object] = pause,
    ) -> None:
        """`servers` has commas between several. Raises: StokerError `bad_server` or `bad_token`."""
        self._servers = parsed_servers(servers)
        self._token = checked_token(token)
        self._answer_s = answer_s
        self._patience_s = patience_s
        self._pause = pause
        self._known = False
        self._connection: http.client.HTTPConnection | None = None

    @property
    def server(self) -> str:
        """The one that is asked first."""
        return self._servers[0].geturl()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(self, method: str, target: str) -> Reply:
        """A request without a body, which may be sent twice if it is a GET."""
        return self.send(Request(method, target, repeatable=method == "GET"))

    def send(self, request: Request) -> Reply:
        """One request, answered with success.

        Raises: StokerError with the server's refusal, or `no_server`, `no_answer` or `bad_answer`.
        """
        tries = Tries(request, self._patience_s, known=self._known, spread=jittered)
        while True:
            for server in self._servers:
                reply = self._try(server, request, tries)
                if reply is not None:
                    self._servers = preferred(self._servers, server)
                    return reply
            self._pause(tries.next_pause_s())

    @contextmanager
    def opened(self, target: str) -> Iterator["LongAnswer"]:
        """The answer to a GET that is too long to be held, to be read within the block.

        Raises: StokerError as `send` does.
        """
        request = Request("GET", target, repeatable=True)
        tries = Tries(request, self._patience_s, known=self._known, spread=jittered)
        try:
            yield LongAnswer(self._begun(request, tries), self.server)
        finally:
            self.close()

    def _begun(self, request: Request, tries: Tries) -> http.client.HTTPResponse:
        while True:
            for server in self._servers:
                response = self._head(server, request, tries)
                if response is not None:
                    self._servers = preferred(self._servers, server)
                    return response
            self._pause(tries.next_pause_s())

    def _head(self, server: SplitResult, request: Request, tries: Tries) -> http.client.HTTPResponse | None:
        try:
            connection = self._connected(server)
            connection.sock.settimeout(LONG_ANSWER_S)
            connection.request(request.method, request.target, None, headers_of(request, self._token))
            response = connection.getresponse()
            if response.status < 300:
                return response
            reply = _read(response)
        except Unreachable as fault:
            tries.unreachable(server, fault)
            return None
        except (OSError, http.client.HTTPException) as fault:
            self.close()
            tries.lost(server, _lost(fault))
            return None
        tries.accepts(reply)
        return None

    def _try(self, server: SplitResult, request: Request, tries: Tries) -> Reply | None:
        """The answer; None when another server, or this one later, should be asked."""
        while True:
            try:
                reply = self._exchange(server, request)
            except Unreachable as fault:
                tries.unreachable(server, fault)
                return None
            except AnswerLost as fault:
                self.close()
                if tries.lost(server, fault):
                    continue
                return None
            self._known = True
            return reply if tries.accepts(reply) else None

    def _exchange(self, server: SplitResult, request: Request) -> Reply:
        connection = self._connected(server)
        try:
            connection.request(request.method, request.target, request.body, headers_of(request, self._token))
        except OSError as fault:
            # Whoever refuses a body needn't read it: the answer may be there before the request is sent.
            return self._early_answer(connection, fault)
        except http.client.HTTPException as fault:
            raise _lost(fault) from fault
        return self._answer(connection)

    def _early_answer(self, connection: http.client.HTTPConnection, fault: OSError) -> Reply:
        if connection.sock is None or not _readable(connection):
            raise _lost(fault) from fault
        try:
            return self._answer(connection)
        finally:
            self.close()

    def _answer(self, connection: http.client.HTTPConnection) -> Reply:
        try:
            return _read(connection.getresponse())
        except (OSError, http.client.HTTPException) as fault:
            raise _lost(fault) from fault

    def _connected(self, server: SplitResult) -> http.client.HTTPConnection:
        kept = self._connection
        if kept is not None and (kept.host, kept.port) == (server.hostname, server.port) and _alive(kept):
            return kept
        self.close()
        made = self._made(server)
        try:
            made.connect()
        except OSError as fault:
            raise Unreachable(fault.strerror or str(fault)) from fault
        made.sock.settimeout(self._answer_s)
        self._connection = made
        return made

    def _made(self, server: SplitResult) -> http.client.HTTPConnection:
        """Not connected yet."""
        kind = http.client.HTTPSConnection if server.scheme == "https" else http.client.HTTPConnection
        return kind(server.hostname or "", server.port, timeout=CONNECT_S)


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
    """The same to the control plane on this machine that listens on a Unix socket."""

    def __init__(self, path: "Path") -> None:
        super().__init__()
        self._path = path

    def _made(self, server: SplitResult) -> http.client.HTTPConnection:
        return _SocketConnection(self._path, server)


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: "Path", server: SplitResult) -> None:
        super().__init__(server.hostname or "", server.port, timeout=CONNECT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = connected(self._path, CONNECT_S)


def _lost(fault: Exception) -> AnswerLost:
    if isinstance(fault, http.client.BadStatusLine) and not isinstance(fault, http.client.RemoteDisconnected):
        return AnswerLost("what answers there doesn't speak HTTP")
    return AnswerLost(str(fault) or type(fault).__name__)


def _alive(connection: http.client.HTTPConnection) -> bool:
    """A quiet connection that can be read from was closed by the other side."""
    return connection.sock is not None and not _readable(connection)


def _readable(connection: http.client.HTTPConnection) -> bool:
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _read(response: http.client.HTTPResponse) -> Reply:
    body = response.read(ANSWER_BYTES_MAX + 1)
    if len(body) > ANSWER_BYTES_MAX:
        raise answer_too_long(response.status)
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Reply(response.status, headers, body)
