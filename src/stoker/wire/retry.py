"""What becomes of a request that got no good answer?

Rules: C1  servers are tried in the order given; one that can't be reached is passed over, and the one that answered
           is asked first from then on
       C2  a request whose answer got lost may have been carried out: only one that is repeatable is sent again, once at
           once (a kept connection may have been closed meanwhile), then after pauses
       C3  a refusal that says that nothing was done, and that time may lift, is a reason to ask again for any request,
           not before the moment that it names; a token that is refused doesn't heal, and is never tried again
       C4  pauses grow from PAUSE_FIRST_S to PAUSE_MAX_S, each drawn by lot from around its length; together they last
           at most as long as the client's patience
       C5  where no server ever answered this client, that is said at once: a wrong address doesn't heal
       C6  whatever the answer is, the caller gets it whole or a StokerError

Repeatable are reads, submits (each carries a key of its own), and the orders that leave things as they are when they
come twice: cancel, hold, release, drain, resume, label, taint, put_partition. Not so `requeue`, which would stop what
it started, and `signal`, which would be felt twice.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

import msgspec

from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.wire.rest.problem import MEDIA_TYPE, Problem
from stoker.wire.token import HEADER, bearer, is_token
from stoker.wire.versions import USER_AGENT

DEFAULT_SERVER: Final = "http://127.0.0.1:8080"
LABEL_MAX: Final = 63
"""Characters between two dots of a host's name."""
CONNECT_S: Final = 5.0
ANSWER_S: Final = 60.0
"""Longer than any answer takes that doesn't wait for a person."""
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""A longer answer isn't one of ours."""
PATIENCE_S: Final = 15.0
"""As long as a control plane takes to come back."""
PAUSE_FIRST_S: Final = 0.1
PAUSE_MAX_S: Final = 3.0

_NO_HEADERS: Final[Mapping[str, str]] = {}
_NOTHING_DONE: Final = frozenset(
    {"overloaded", "stopping", "too_many_connections", "too_many_streams", "request_too_slow", "rate_limited"}
)
"""C3"""
_PERHAPS_DONE: Final = frozenset({"log_failed"})


class Request(NamedTuple):
    method: str
    target: str
    body: bytes | None = None
    headers: Mapping[str, str] = _NO_HEADERS
    """Beside our own."""
    repeatable: bool = False
    """C2"""
    done_code: str = ""
    """The refusal of a repeat that means that the first one was carried out. It is answered, not raised."""


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class Unreachable(Exception):
    """The server could not be reached: nothing was sent."""


class AnswerLost(Exception):
    """The request may have been received; no answer came."""


class Tries:
    """One request on its way."""

    def __init__(self, request: Request, patience_s: float, *, known: bool, spread: Callable[[float], float]) -> None:
        """`known`: some server has answered this client before. `spread` draws a pause from around a length."""
        self._request = request
        self._left_s = patience_s if known else 0.0
        self._patience_s = patience_s
        self._spread = spread
        self._pause_s = PAUSE_FIRST_S
        self._least_s = 0.0
        self._lost = 0
        self._faults: dict[str, str] = {}
        self._last: Refusal | None = None

    def unreachable(self, server: SplitResult, fault: Exception) -> None:
        self._faults[server.netloc] = str(fault)

    def lost(self, server: SplitResult, fault: Exception) -> bool:
        """May it be sent to the same server again at once? Raises: StokerError `no_answer` where it may not at all."""
        refusal = _no_answer(server, self._request, fault)
        if not self._request.repeatable:
            raise StokerError(refusal) from fault
        self._faults[server.netloc] = str(fault)
        # A read that got no answer did nothing: that there is no server is all there is to say.
        self._last = None if self._request.method == "GET" else refusal
        self._lost += 1
        self._left_s = self._left_s or self._patience_s
        return self._lost == 1

    def accepts(self, reply: Reply) -> bool:
        """Is this the answer? False: ask again. Raises: StokerError with the server's refusal."""
        refusal = _refusal_in(reply)
        if refusal is None or (self._lost and refusal.code == self._request.done_code):
            return True
        heals = refusal.code in _NOTHING_DONE or (self._request.repeatable and refusal.code in _PERHAPS_DONE)
        if not heals:
            raise StokerError(refusal)
        self._last = refusal
        self._left_s = self._left_s or self._patience_s
        after = reply.headers.get("retry-after", "")
        self._least_s = float(after) if after.isascii() and after.isdigit() and len(after) < 4 else 0.0
        return False

    def next_pause_s(self) -> float:
        """How long to wait before all servers are tried again (C4). Raises: StokerError when patience is over."""
        pause_s = max(self._spread(self._pause_s), self._least_s)
        if pause_s > self._left_s:
            raise StokerError(self._last or _no_server(self._faults))
        # Never zero before it is over: zero would be filled anew.
        self._left_s = max(self._left_s - pause_s, 1e-9)
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
        return pause_s


def parsed_servers(servers: str) -> list[SplitResult]:
    """`servers` has commas between several. Raises: StokerError `bad_server`."""
    return [_parsed(text.strip()) for text in servers.split(",")]


def _parsed(text: str) -> SplitResult:
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = parts.hostname or ""
        if parts.scheme not in ("http", "https") or parts.path not in ("", "/") or not _names_host(host):
            raise ValueError
    except ValueError as fault:
        shown = text[:80]
        hint = f"write a scheme, a host and a port, such as {DEFAULT_SERVER}"
        raise StokerError(refuse("bad_server", f"{shown!r} is not a server's address", hint, server=shown)) from fault
    return SplitResult(parts.scheme, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", "", "", "")


def _names_host(host: str) -> bool:
    """What can't be looked up breaks in the resolver, and not as an OSError. Raises: ValueError for some that can't."""
    name = host.encode("idna").decode() if not host.isascii() else host
    labels = name.removesuffix(".").split(".")
    return name.isprintable() and " " not in name and all(0 < len(label) <= LABEL_MAX for label in labels)


def preferred(servers: Sequence[SplitResult], server: SplitResult) -> list[SplitResult]:
    """C1"""
    return [server, *(each for each in servers if each is not server)]


def checked_token(text: str) -> str:
    """A token as it is sent; empty for none. Raises: StokerError `bad_token`, which doesn't repeat it."""
    token = text.strip()
    if not token or is_token(token):
        return token
    hint = "give the whole line that `stoker token create` printed, or the empty text to send none"
    raise StokerError(refuse("bad_token", f"what is to be sent as token is none: it has {len(token)} characters", hint))


def headers_of(request: Request, token: str = "") -> dict[str, str]:
    """All that a request carries, but for what the connection adds."""
    about = {"User-Agent": USER_AGENT, "Accept": "application/json"}
    if token:
        about[HEADER] = bearer(token)
    if request.body is not None:
        about["Content-Type"] = "application/json"
    return {**about, **request.headers}


def _refusal_in(reply: Reply) -> Refusal | None:
    """None for success. Raises: StokerError `bad_answer`."""
    if reply.status < 300:
        return None
    if not reply.headers.get("content-type", "").startswith(MEDIA_TYPE):
        raise bad_answer(reply)
    try:
        told = msgspec.json.decode(reply.body, type=Problem)
    except msgspec.MsgspecError as fault:
        raise bad_answer(reply) from fault
    return Refusal(code=told.code, message=told.message, hint=told.hint, facts=told.facts)


def bad_answer(reply: Reply) -> StokerError:
    """An answer that should have been one of ours and isn't."""
    shown = reply.body[:80].decode(errors="replace")
    return StokerError(
        refuse(
            "bad_answer",
            f"what answers there is not a Stoker control plane of this version: status {reply.status}, {shown!r}",
            "check --server, and that client and server are of neighbouring versions",
            status=reply.status,
        )
    )


def answer_too_long(status: int) -> StokerError:
    return bad_answer(Reply(status, _NO_HEADERS, b"longer than 64 MiB"))


def _no_answer(server: SplitResult, request: Request, fault: Exception) -> Refusal:
    return refuse(
        "no_answer",
        f"{server.netloc} took the request {request.method} {request.target} and gave no answer: {fault}",
        "it may have been carried out: look with `stoker list` before you repeat it",
        server=server.netloc,
    )


def _no_server(faults: Mapping[str, str]) -> Refusal:
    said = "; ".join(f"{server}: {fault}" for server, fault in faults.items())
    return refuse(
        "no_server",
        f"no control plane answers ({said})",
        "start one with `stoker up`, or name another with --server or STOKER_SERVER",
        tried=len(faults),
    )
