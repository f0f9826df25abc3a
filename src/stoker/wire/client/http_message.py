"""Requests and answers of HTTP/1.1 as bytes, without the connection that carries them.

It speaks as much of HTTP/1.1 as a control plane and a proxy before it do. The standard library's client would cost a
command line more to import than its answer takes, and there is none for event loops. What reads is a generator that
yields how many bytes it wants next, LINE for a line, and is sent at most so many: fewer at the end only. `retry` says
what a lost or a bad answer leads to.

Limits: an answer has ANSWER_BYTES_MAX bytes, or as many as whoever asks wants at most, its head and its trailers
HEADERS_MAX lines each, and INTERIM_MAX that say that it isn't there yet come before it.
"""

import os
import signal
from collections.abc import Generator, Mapping
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import SplitResult

import msgspec

from stoker.brain.domain.errors import Refusal, StokerError, refusal_error, refuse
from stoker.wire.client.staleness import ACTIVE, FRESH_ONLY, ROLE_HEADER, STALE_HEADER
from stoker.wire.endpoints import HEALTH, JSON, USER_AGENT
from stoker.wire.rest.problem import MEDIA_TYPE, Problem
from stoker.wire.token import HEADER, bearer, is_token

CONNECT_S: Final = 5.0
ANSWER_S: Final = 60.0
"""Longer than any answer takes that doesn't wait for a person."""
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""A longer answer isn't one of ours."""
LOOK_FIRST_S: Final = 0.5
LOOK_MAX_S: Final = 1.0
"""While an answer doesn't come, the other servers are asked whether one of them is active now. A process that was
stopped, or whose network was cut, takes a request and never answers it."""
LINE: Final = 0
LINE_BYTES_MAX: Final = 64 * 1024
HEADERS_MAX: Final = 100
INTERIM_MAX: Final = 10
SWITCHING: Final = 101
"""Another protocol follows, which is no answer to go past."""
_EMPTY: Final = (204, 304)
"""Statuses of answers without a body."""
CLOSED: Final = "it closed the connection without a word"
"""What a server has done that ended, and one that speaks no HTTP."""
_NO_HTTP: Final = "what answers there doesn't speak HTTP"
_TLS_ALERT: Final = b"\x15\x03"
"""How a server of TLS begins that was asked without."""
PROBE_S: Final = 1.0
"""How long one of them may take to say so."""
MIDST_S: Final = 10.0
"""Where there are several servers, the rest of an answer that has begun doesn't take longer to go on."""

_NO_HEADERS: Final[Mapping[str, str]] = {}
_DECODERS: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}
Shape = TypeVar("Shape")


class Request(NamedTuple):
    method: str
    target: str
    body: bytes | None = None
    headers: Mapping[str, str] = _NO_HEADERS
    """Beside our own."""
    repeatable: bool = False
    """See `retry`, C2."""
    done_code: str = ""
    """The refusal of a repeat that means that the first one was carried out. It is answered, not raised."""
    waits: bool = False
    """The server is asked to answer only when there is something to say."""


PROBE: Final = Request(HEALTH.method, HEALTH.path, headers={STALE_HEADER: FRESH_ONLY})
"""Open to everybody: no token is shown."""


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class Unreachable(Exception):
    """The server could not be reached: nothing was sent."""

    def __init__(self, fault: OSError) -> None:
        # Some libraries put words of their own in the place of the system's; a look-up's errors are negative.
        system = os.strerror(fault.errno) if fault.errno and fault.errno > 0 else fault.strerror
        super().__init__(system or str(fault) or "timed out")
        self.in_vain = isinstance(fault, TimeoutError)
        """Nobody said no: it may only be slow."""


class NotProved(StokerError):
    """A server that isn't talked to: it hasn't proved who it is, or doesn't speak as it was asked to."""


class AnswerLost(Exception):
    """The request may have been received; no answer came."""

    def __init__(self, why: str, *, elsewhere: SplitResult | None = None) -> None:
        super().__init__(why)
        self.elsewhere = elsewhere
        """Another one says that it is active now."""


class AnswerLate(AnswerLost):
    """None came in time."""


class NoHttp(AnswerLost):
    """Something came that isn't HTTP."""


def is_active(status: int, headers: Mapping[str, str]) -> bool:
    """Return whether the answer to a PROBE says that the server is the active one of several control planes."""
    return status == 200 and headers.get(ROLE_HEADER.lower()) == ACTIVE


def checked_token(text: str) -> str:
    """A token as it is sent; empty for none. Raises: StokerError `bad_token`, which doesn't repeat it."""
    token = text.strip()
    if not token or is_token(token):
        return token
    hint = "give the whole line that `stoker token create` printed, or the empty text to send none"
    raise refusal_error("bad_token", f"what is to be sent as token is none: it has {len(token)} characters", hint)


def headers_of(request: Request, token: str = "") -> dict[str, str]:
    """Return the headers of a request, but for those that the connection adds."""
    about = {"User-Agent": USER_AGENT, "Accept": JSON, "Accept-Encoding": "identity"}
    if token:
        about[HEADER] = bearer(token)
    if request.body is not None:
        about["Content-Type"] = JSON
    return {**about, **request.headers}


def request_bytes(server: SplitResult, request: Request, token: str) -> bytes:
    """Return a request as it is sent."""
    host = server.netloc if server.netloc.isascii() else server.netloc.encode("idna").decode()
    headers = {"Host": host, **headers_of(request, token)}
    if request.body is not None or request.method != "GET":
        headers["Content-Length"] = str(len(request.body or b""))
    lines = [f"{request.method} {request.target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    assert not any("\r" in line or "\n" in line for line in lines), "a line break would begin another header"
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (request.body or b"")


def endless_request_bytes(server: SplitResult, request: Request, token: str) -> bytes:
    """Return the head of a request whose body follows in chunks, beside its answer."""
    host = server.netloc if server.netloc.isascii() else server.netloc.encode("idna").decode()
    headers = {"Host": host, **headers_of(request, token), "Transfer-Encoding": "chunked"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{request.method} {request.target} HTTP/1.1\r\n{lines}\r\n".encode()


class Head(NamedTuple):
    """Status line and headers of an answer."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    keep: bool
    """Whether the connection may be kept once the body is read."""


def read_head() -> Generator[int, bytes, Head]:
    """Read the head of an answer. Raises: AnswerLost; NoHttp where it is none; NotProved where it is of TLS."""
    status, protocol, interim = 100, "", -1
    headers: dict[str, str] = {}
    while status < 200 and status != SWITCHING:
        interim += 1
        if interim > INTERIM_MAX:
            raise NoHttp(_NO_HTTP)
        protocol, _, rest = (yield from _first_line()).partition(" ")
        if not protocol.startswith("HTTP/1."):
            raise NoHttp(_NO_HTTP)
        status, headers = _number(rest[:3]), {}
        for line in (yield from _lines()):
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
    ends = status in _EMPTY or "content-length" in headers or "transfer-encoding" in headers
    keep = ends and protocol != "HTTP/1.0" and headers.get("connection", "").lower() != "close"
    return Head(status, headers, keep)


class AnswerBody:
    """Body of an answer, read piece by piece."""

    def __init__(self, head: Head) -> None:
        """Raises: NoHttp where the length is no number."""
        self._chunked = head.headers.get("transfer-encoding", "").lower() == "chunked"
        size = head.headers.get("content-length")
        empty = self._chunked or head.status in _EMPTY
        self.left: int | None = 0 if empty else None if size is None else _number(size)
        """Bytes of the body, or of this chunk, that have not been read; None = it ends with the connection."""

    def read(self, most: int) -> Generator[int, bytes, bytes]:
        """Read the next bytes, `most` at most; none are left when it returns none. Raises: AnswerLost."""
        if self._chunked and not self.left:
            self.left = _number((yield from _line()).partition(";")[0], 16)
            if not self.left:
                self._chunked = False
                yield from _lines()  # trailers
        wanted = most if self.left is None else min(most, self.left)
        data = (yield wanted) if wanted else b""
        if self.left is not None:
            if len(data) < wanted:
                raise AnswerLost(f"{self.left - len(data)} bytes of the answer are missing")
            self.left -= wanted
            if self._chunked and not self.left:
                yield from _line()
        return data


def read_body(head: Head, bytes_max: int = ANSWER_BYTES_MAX) -> Generator[int, bytes, bytes]:
    """Read a body whole. Raises: AnswerLost; StokerError `bad_answer` where it is too long."""
    body = AnswerBody(head)
    pieces, room = list[bytes](), bytes_max
    if (body.left or 0) > room:
        raise answer_too_long(head.status, bytes_max)
    while piece := (yield from body.read(room + 1)):
        pieces.append(piece)
        room -= len(piece)
        if room < 0:
            raise answer_too_long(head.status, bytes_max)
    return b"".join(pieces)


def _first_line() -> Generator[int, bytes, str]:
    data = yield LINE
    if data.startswith(_TLS_ALERT):
        hint = "write https:// before its name; `stoker login https://HOST:PORT --token T` learns whom to trust"
        raise NotProved(refuse("tls_wanted", "what answers there speaks TLS, and http:// was asked for", hint))
    return _text_of(data)


def _lines() -> Generator[int, bytes, list[str]]:
    """Read the lines before an empty one."""
    lines = list[str]()
    while line := (yield from _line()):
        lines.append(line)
        if len(lines) > HEADERS_MAX:
            raise NoHttp(_NO_HTTP)
    return lines


def _line() -> Generator[int, bytes, str]:
    return _text_of((yield LINE))


def _text_of(data: bytes) -> str:
    if not data.endswith(b"\n"):
        raise AnswerLost("a line of the answer is cut off" if data else CLOSED)
    return data.decode("latin-1").rstrip("\r\n")


def _number(text: str, base: int = 10) -> int:
    try:
        found = int(text, base)
    except ValueError as fault:
        raise NoHttp(_NO_HTTP) from fault
    if found < 0:
        raise NoHttp(_NO_HTTP)
    return found


def refusal_in(reply: Reply) -> Refusal | None:
    """None for success. Raises: StokerError `bad_answer`."""
    if reply.status < 300:
        return None
    if not reply.headers.get("content-type", "").startswith(MEDIA_TYPE):
        raise bad_answer(reply)
    try:
        told = decoded(reply.body, Problem)
    except msgspec.MsgspecError as fault:
        raise bad_answer(reply) from fault
    return Refusal(code=told.code, message=told.message, hint=told.hint, facts=told.facts)


def decoded(body: bytes, shape: type[Shape]) -> Shape:
    """Return what a body holds. Raises: msgspec.MsgspecError."""
    if shape not in _DECODERS:
        _DECODERS[shape] = _decoder(shape)
    found: Shape = _DECODERS[shape].decode(body)
    return found


def _decoder(shape: type) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a shape.

    While msgspec finds out what a shape is, it asks enumerations and unions for things that they may lack, and takes
    whatever is raised for no: also the KeyboardInterrupt of a Ctrl-C, which so had no effect. It comes right after.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        return msgspec.json.Decoder(shape)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def bad_answer(reply: Reply) -> StokerError:
    """An answer that should have been one of ours and isn't."""
    seen = reply.body[:80].decode(errors="replace")
    why = f"what answers there is not a Stoker control plane of this version: status {reply.status}, {seen!r}"
    hint = "check --server, and that client and server are of neighbouring versions"
    return refusal_error("bad_answer", why, hint, status=reply.status)


def answer_too_long(status: int, bytes_max: int = ANSWER_BYTES_MAX) -> StokerError:
    return bad_answer(Reply(status, _NO_HEADERS, b"longer than %d bytes" % bytes_max))
