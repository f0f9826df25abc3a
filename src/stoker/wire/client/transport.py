"""Blocking transport of the client: sends a request to one of several servers over one keep-alive connection.

Standard library only, without its HTTP client, so that a command line starts quickly. `retry` says what a lost or a bad
answer leads to.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import SplitResult

from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.wire.client import http_message as http
from stoker.wire.client.backoff import mono_s
from stoker.wire.client.retry import RequestSender, SendTo, Wait
from stoker.wire.client.servers import Servers, local_server
from stoker.wire.client.trust import ServerProof

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

LONG_ANSWER_S = 600.0
"""How long the next bytes of an answer without end are waited for: before the first ones much may have to be copied."""

Wanted = TypeVar("Wanted")
Given = TypeVar("Given")
Result = TypeVar("Result")


def drive(steps: Generator[Wanted, Given, Result], do: Callable[[Wanted], Given]) -> Result:
    """Run a generator to its end: do what it asks for, and tell it what came of that."""
    try:
        wanted = next(steps)
        while True:
            try:
                given = do(wanted)
            except (StokerError, http.Unreachable, http.AnswerLost) as fault:
                wanted = steps.throw(fault)
            else:
                wanted = steps.send(given)
    except StopIteration as end:
        result: Result = end.value
        return result


class Connection:
    """One keep-alive connection to a server."""

    def __init__(self, server: SplitResult, timeout_s: float, proof: ServerProof) -> None:
        """`proof`: what is wanted of the server before the connection is used.

        Raises: Unreachable, NotProved; StokerError `bad_ca_file`.
        """
        self.server = server
        self._socket = _dialled(server, timeout_s, proof)
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def set_timeout(self, seconds: float) -> None:
        """Wait no longer than that for the next bytes."""
        self._socket.settimeout(seconds)

    def begins(self, within_s: float) -> bool:
        """Wait for something to read. What can be read from while it is quiet was closed by the other side."""
        if self.server.scheme == "https":
            return self._decrypts(within_s)
        return self._can_be_read(within_s)

    def _decrypts(self, within_s: float) -> bool:
        """TLS has records of its own, which are no part of an answer. Raises: OSError."""
        import ssl

        give_up_s, timeout_s = mono_s() + within_s, self._socket.gettimeout()
        self._socket.settimeout(0)
        try:
            while True:
                with suppress(ssl.SSLWantReadError):
                    self._file.peek(1)  # what comes is kept for `read`
                    return True
                if not self._can_be_read(max(0.0, give_up_s - mono_s())):
                    return False
        finally:
            self._socket.settimeout(timeout_s)

    def _can_be_read(self, within_s: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(within_s * 1_000))

    def send(self, request: http.Request, token: str) -> bool:
        """Send a request; false where it was refused before it was whole: the answer is there. Raises: OSError."""
        try:
            self._socket.sendall(http.request_bytes(self.server, request, token))
        except OSError:
            if not self.begins(0.0):
                raise
            return False
        return True

    def read(self, size: int) -> bytes:
        """Read so many bytes, fewer at the end only, or a line. Raises: OSError."""
        return self._file.readline(http.LINE_BYTES_MAX) if size == http.LINE else self._file.read(size)


class Transport(RequestSender):
    """A keep-alive connection to one of several servers. Not for use by several threads at once."""

    _connection: Connection | None = None

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(self, method: str, target: str) -> http.Reply:
        """Send a request without a body, which may be sent twice if it is a GET."""
        return self.send(http.Request(method, target, repeatable=method == "GET"))

    def send(self, request: http.Request) -> http.Reply:
        """Send one request, and return its answer if it is one of success.

        Raises: StokerError with the server's refusal, or `no_server`, `no_answer`, `not_active` or `bad_answer`.
        """
        return drive(self._sending(request), self._carry_out)

    def run(self, call: Generator[http.Request | Wait, http.Reply | None, Result]) -> Result:
        """Send the requests of a call and make its pauses, to its end. Raises: StokerError as `send`."""
        return drive(call, self._perform)

    def _perform(self, action: http.Request | Wait) -> http.Reply | None:
        return self._carry_out(action) if isinstance(action, Wait) else self.send(action)

    @contextmanager
    def opened(self, target: str) -> Iterator[LongAnswer]:
        """Open the answer to a GET that is too long to be held, to be read within the block.

        Raises: StokerError as `send`.
        """
        found: list[LongAnswer] = []

        def read(connection: Connection, head: http.Head) -> bytes:
            if head.status >= 300:
                return _whole(connection, head)
            self._connection = None  # it is the answer's now
            found.append(LongAnswer(connection, head))
            return b""

        def carry_out(action: SendTo | Wait) -> http.Reply | None:
            if isinstance(action, SendTo):
                return self._exchange(action, LONG_ANSWER_S, read)
            return self._carry_out(action)

        try:
            drive(self._sending(http.Request("GET", target, repeatable=True, waits=True)), carry_out)
            yield found[0]
        finally:
            for each in found:
                each.close()
            self.close()

    # --- one try ------------------------------------------------------------------------------------------------

    def _carry_out(self, action: SendTo | Wait) -> http.Reply | None:
        if isinstance(action, SendTo):
            return self._exchange(action, min(self._answer_s, action.answer_s), _whole)
        self._pause(action.seconds)
        return None

    def _exchange(self, turn: SendTo, answer_s: float, read: Callable[[Connection, http.Head], bytes]) -> http.Reply:
        """Raises: Unreachable, NotProved or AnswerLost."""
        connection, keep = self._connected(turn), False
        try:
            connection.set_timeout(answer_s)
            sent = connection.send(turn.request, self._proof.token)
            if self._servers.several:
                self._await_beginning(connection, answer_s)
                if not turn.request.waits:
                    connection.set_timeout(min(answer_s, http.MIDST_S))
            head = drive(http.read_head(), connection.read)
            reply = http.Reply(head.status, head.headers, read(connection, head))
            keep = sent and head.keep
        except OSError as fault:
            kind = http.AnswerLate if isinstance(fault, TimeoutError) else http.AnswerLost
            raise kind(str(fault) or type(fault).__name__) from fault
        finally:
            if not keep:
                self.close()
        return reply

    def _connected(self, turn: SendTo) -> Connection:
        kept = self._connection
        if kept is not None and kept.server == turn.server and not kept.begins(0.0):
            return kept
        self.close()
        self._connection = Connection(turn.server, turn.connect_s, self._proof)
        return self._connection

    # --- who is active meanwhile --------------------------------------------------------------------------------

    def _await_beginning(self, connection: Connection, answer_s: float) -> None:
        def look(wanted: float | SplitResult) -> bool:
            return connection.begins(wanted) if isinstance(wanted, float) else self._says_active(wanted)

        drive(self._watching(connection.server, answer_s), look)

    def _says_active(self, server: SplitResult) -> bool:
        try:
            connection = Connection(server, http.PROBE_S, self._proof)
        except (http.Unreachable, StokerError):
            return False
        try:
            connection.send(http.PROBE, "")
            head = drive(http.read_head(), connection.read)
            return http.is_active(head.status, head.headers)
        except (OSError, http.AnswerLost, StokerError):
            return False
        finally:
            connection.close()


class LongAnswer:
    """Answer that is read as it comes."""

    def __init__(self, connection: Connection, head: http.Head) -> None:
        self._connection = connection
        self._body = http.AnswerBody(head)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def read(self, size: int, /) -> bytes:
        """Read the next bytes, `size` at most; none are left when it is empty.

        Raises: StokerError `no_answer` when it is broken off.
        """
        try:
            return drive(self._body.read(size), self._connection.read)
        except (OSError, http.AnswerLost) as fault:
            why = str(fault) or type(fault).__name__
            broken = f"{self._connection.server.geturl()} broke off its answer: {why}"
            raise refusal_error("no_answer", broken, "ask again") from fault


class SocketTransport(Transport):
    """Transport to the control plane on this machine that listens on a Unix socket. It asks no other."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._servers = Servers([local_server(str(path))])


def _whole(connection: Connection, head: http.Head) -> bytes:
    return drive(http.read_body(head), connection.read)


def _dialled(server: SplitResult, timeout_s: float, proof: ServerProof) -> socket.socket:
    """Raises: Unreachable, NotProved; StokerError `bad_ca_file`."""
    try:
        if server.scheme == "unix":
            from pathlib import Path

            from stoker.wire.local_socket import connected

            return connected(Path(server.path), timeout_s)
        if server.scheme == "http":
            return _plain(server, timeout_s, proof)
        if proof.wants_root:
            with _secured(server, timeout_s, proof.looking_context()) as looking:
                proof.learn_root(server, looking)
        return _secured(server, timeout_s, proof.context())
    except OSError as fault:
        raise proof.fault_of(server, fault) from fault


def _plain(server: SplitResult, timeout_s: float, proof: ServerProof) -> socket.socket:
    """Raises: OSError, NotProved."""
    made = _tcp(server, timeout_s)
    try:
        proof.check_plain(server, made)
    except BaseException:
        made.close()
        raise
    return made


def _secured(server: SplitResult, timeout_s: float, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Raises: OSError."""
    made = _tcp(server, timeout_s)
    try:
        return context.wrap_socket(made, server_hostname=server.hostname)
    except BaseException:
        made.close()
        raise


def _tcp(server: SplitResult, timeout_s: float) -> socket.socket:
    """Raises: OSError."""
    made = socket.create_connection((server.hostname, server.port), timeout_s)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
    return made
