"""Client of a container engine on this machine: Docker's Engine API over its Unix socket.

Podman's service understands the calls that are made here. They name no version of the API: each engine answers in its
newest, and refuses those that it finds too old. They speak HTTP/1.0: an answer is over when the connection is, so there
is nothing to be told apart in it. Why not `http.client`: it brings the parser of e-mail, which costs each container 7
MiB of memory and 20 ms of CPU.
Source: docs.docker.com/reference/api/engine, RFC 1945.
"""

from __future__ import annotations

import json
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_READ_BYTES: Final = 64 * 1024
_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""An engine lists a container in some 2 KB."""
_HEAD_BYTES_MAX: Final = 64 * 1024
_WORDS_MAX: Final = 600
"""Characters of what an engine says that are repeated."""


class EngineGone(OSError):
    """An engine that can't be reached, that broke off, or that took too long. The message says which."""


class NoEngine(EngineGone):
    """Nobody listens at the socket: there is no engine that could do anything."""


class EngineRefused(Exception):
    """A refusal of the engine: its status and its words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Engine:
    """The engine at a socket. Each call is a connection of its own."""

    def __init__(self, path: str) -> None:
        self._path = path

    def ask(self, method: str, path: str, body: object = None, timeout_s: float | None = None) -> object:
        """Return the JSON of an answer; None = it has no body. Raises EngineGone, EngineRefused.

        `timeout_s` bounds each wait for bytes; None = for as long as it takes.
        """
        connection, status, received = self._asked(method, path, body, timeout_s)
        with connection:
            return self._answer(connection, method, path, status, received)

    def _answer(self, connection: socket.socket, method: str, path: str, status: int, received: bytes) -> object:
        """Return the JSON of an answer of which some was received. Raises EngineGone, EngineRefused."""
        try:
            while part := connection.recv(_READ_BYTES):
                received += part
                if len(received) > _ANSWER_BYTES_MAX:
                    raise EngineGone(f"it answered {method} {path} with more than {_ANSWER_BYTES_MAX} bytes")
        except TimeoutError as error:
            raise _late(method, path, connection.gettimeout()) from error
        except OSError as error:
            if isinstance(error, EngineGone):
                raise
            raise EngineGone(f"it broke off its answer to {method} {path}: {error.strerror or error}") from error
        try:
            answer = json.loads(received) if received.strip() else None
        except ValueError as error:
            if status < 400:
                raise EngineGone(f"its answer to {method} {path} is no JSON: {received[:80]!r}") from error
            answer = {"message": received.decode("utf-8", "replace")}
        if status >= 400:
            raise EngineRefused(status, _words(answer))
        return answer

    def stream(self, method: str, path: str, timeout_s: float, body: object = None) -> tuple[socket.socket, bytes]:
        """Return the connection of a call whose answer goes on, and what came of it. Raises as `ask`.

        Reading from it isn't bounded in time.
        """
        connection, status, received = self._asked(method, path, body, timeout_s)
        if status >= 400:
            with connection:
                self._answer(connection, method, path, status, received)
        connection.settimeout(None)
        return connection, received

    def _asked(self, method: str, path: str, body: object, timeout_s: float | None) -> tuple[socket.socket, int, bytes]:
        """Return the connection, the status of the answer and the beginning of its body. Raises EngineGone."""
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.0\r\nHost: engine\r\nContent-Type: application/json\r\n"
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            connection.connect(self._path)
            connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            received = b""
            while b"\r\n\r\n" not in received:
                part = connection.recv(_READ_BYTES)
                if not part or len(received) > _HEAD_BYTES_MAX:
                    raise EngineGone(f"it closed the connection without an answer to {method} {path}")
                received += part
        except (FileNotFoundError, ConnectionRefusedError) as error:
            connection.close()
            raise NoEngine(f"nobody listens at {self._path} ({error.strerror})") from error
        except TimeoutError as error:
            connection.close()
            raise _late(method, path, timeout_s) from error
        except OSError as error:
            connection.close()
            if isinstance(error, EngineGone):
                raise
            raise EngineGone(f"{self._path} can't be spoken to: {error.strerror or error}") from error
        first, _, rest = received.partition(b"\r\n\r\n")
        words = first.split(b"\r\n")[0].split()
        if len(words) < 2 or not words[1].isdigit():
            connection.close()
            raise EngineGone(f"what listens at {self._path} speaks no HTTP: {first[:80]!r}")
        return connection, int(words[1]), rest


def _late(method: str, path: str, timeout_s: float | None) -> EngineGone:
    return EngineGone(f"it left {method} {path.partition('?')[0]} unanswered for {timeout_s:g} s")


def _words(answer: object) -> str:
    """Return what an engine says in the body of a refusal, as one line."""
    said = answer.get("message") or answer.get("cause") if isinstance(answer, dict) else None
    return " ".join(str(said or answer).split())[:_WORDS_MAX]
