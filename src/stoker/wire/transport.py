"""How does a request reach a server, and what if none is there?

Standard library only, so that a command line starts quickly.

Rules: C1  servers are tried in the order given; one that can't be reached is passed over, and the one that answered
           is asked first from then on
       C2  a request that may have reached a server is repeated only if it is a GET
       C3  whatever the answer is, the caller gets it whole or a StokerError
"""

import http.client
import select
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

import msgspec

from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.wire.rest.problem import MEDIA_TYPE, Problem
from stoker.wire.versions import USER_AGENT

DEFAULT_SERVER: Final = "http://127.0.0.1:8080"
CONNECT_S: Final = 5.0
ANSWER_S: Final = 60.0
"""Longer than any answer takes that doesn't wait for a person."""
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""A longer answer isn't one of ours."""


_NO_HEADERS: Final[Mapping[str, str]] = {}


class Request(NamedTuple):
    method: str
    target: str
    body: bytes | None
    headers: Mapping[str, str]


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class Unreachable(Exception):
    """The server could not be reached: nothing was sent."""


class AnswerLost(Exception):
    """The request may have been received; no answer came."""


class Transport:
    """Keep-alive connections to one of several servers. Not for use by several threads at once."""

    def __init__(self, servers: str = DEFAULT_SERVER, *, answer_s: float = ANSWER_S) -> None:
        """`servers` has commas between several. Raises: StokerError `bad_server`."""
        self._servers = [_parsed(text.strip()) for text in servers.split(",")]
        self._answer_s = answer_s
        self._connection: http.client.HTTPConnection | None = None

    @property
    def server(self) -> str:
        """The one that is asked first."""
        return self._servers[0].geturl()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] = _NO_HEADERS
    ) -> Reply:
        """One request, answered with success. `headers` go beside our own.

        Raises: StokerError with the server's refusal, or `no_server`, `no_answer` or `bad_answer`.
        """
        faults: list[str] = []
        for server in list(self._servers):
            try:
                reply = self._ask_one(server, Request(method, target, body, headers))
            except Unreachable as fault:
                faults.append(f"{server.netloc}: {fault}")
                continue
            self._prefer(server)
            return _accepted(reply)
        raise StokerError(_no_server(faults))

    def _ask_one(self, server: SplitResult, request: Request) -> Reply:
        try:
            return self._exchange(server, request)
        except AnswerLost as fault:
            self.close()
            if request.method != "GET":
                raise StokerError(_no_answer(server, request, fault)) from fault
        try:
            return self._exchange(server, request)
        except AnswerLost as fault:
            self.close()
            raise Unreachable(str(fault)) from fault

    def _exchange(self, server: SplitResult, request: Request) -> Reply:
        connection = self._connected(server)
        headers = {"User-Agent": USER_AGENT, "Accept": "application/json", **request.headers}
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(request.method, request.target, request.body, headers)
            return _read(connection.getresponse())
        except (OSError, http.client.HTTPException) as fault:
            raise AnswerLost(str(fault) or type(fault).__name__) from fault

    def _connected(self, server: SplitResult) -> http.client.HTTPConnection:
        kept = self._connection
        if kept is not None and (kept.host, kept.port) == (server.hostname, server.port) and _alive(kept):
            return kept
        self.close()
        kind = http.client.HTTPSConnection if server.scheme == "https" else http.client.HTTPConnection
        made = kind(server.hostname or "", server.port, timeout=CONNECT_S)
        try:
            made.connect()
        except OSError as fault:
            raise Unreachable(fault.strerror or str(fault)) from fault
        made.sock.settimeout(self._answer_s)
        self._connection = made
        return made

    def _prefer(self, server: SplitResult) -> None:
        if self._servers[0] is not server:
            self._servers.remove(server)
            self._servers.insert(0, server)


def _parsed(text: str) -> SplitResult:
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
            raise ValueError
    except ValueError as fault:
        shown = text[:80]
        hint = f"write a scheme, a host and a port, such as {DEFAULT_SERVER}"
        raise StokerError(refuse("bad_server", f"{shown!r} is not a server's address", hint, server=shown)) from fault
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return SplitResult(parts.scheme, f"{host}:{port}", "", "", "")


def _alive(connection: http.client.HTTPConnection) -> bool:
    """A quiet connection that can be read from was closed by the other side."""
    if connection.sock is None:
        return False
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)


def _read(response: http.client.HTTPResponse) -> Reply:
    body = response.read(ANSWER_BYTES_MAX + 1)
    if len(body) > ANSWER_BYTES_MAX:
        raise StokerError(_bad_answer(response.status, b"longer than 64 MiB"))
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Reply(response.status, headers, body)


def _accepted(reply: Reply) -> Reply:
    if reply.status < 300:
        return reply
    if reply.headers.get("content-type", "").startswith(MEDIA_TYPE):
        try:
            told = msgspec.json.decode(reply.body, type=Problem)
        except msgspec.MsgspecError as fault:
            raise StokerError(_bad_answer(reply.status, reply.body)) from fault
        raise StokerError(Refusal(code=told.code, message=told.message, hint=told.hint, facts=told.facts))
    raise StokerError(_bad_answer(reply.status, reply.body))


def bad_answer(reply: Reply) -> StokerError:
    """An answer that should have been one of ours and isn't."""
    return StokerError(_bad_answer(reply.status, reply.body))


def _bad_answer(status: int, body: bytes) -> Refusal:
    shown = body[:80].decode(errors="replace")
    return refuse(
        "bad_answer",
        f"what answers there is not a Stoker control plane of this version: status {status}, {shown!r}",
        "check --server, and that client and server are of neighbouring versions",
        status=status,
    )


def _no_answer(server: SplitResult, request: Request, fault: Exception) -> Refusal:
    return refuse(
        "no_answer",
        f"{server.netloc} took the request {request.method} {request.target} and gave no answer: {fault}",
        "it may have been carried out: look with `stoker list` before you repeat it",
        server=server.netloc,
    )


def _no_server(faults: Sequence[str]) -> Refusal:
    return refuse(
        "no_server",
        f"no control plane answers ({'; '.join(faults)})",
        "start one with `stoker up`, or name another with --server or STOKER_SERVER",
        tried=len(faults),
    )
