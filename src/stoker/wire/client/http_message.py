"""What is one request, what is one answer, and what may come instead?

Nothing is sent here. What a lost or a bad answer leads to is in `retry`.
"""

import os
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import SplitResult

import msgspec

from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.wire.client.staleness import ACTIVE, FRESH_ONLY, ROLE_HEADER, STALE_HEADER
from stoker.wire.rest.problem import MEDIA_TYPE, Problem
from stoker.wire.token import HEADER, bearer, is_token
from stoker.wire.versions import API_PREFIX, USER_AGENT

CONNECT_S: Final = 5.0
ANSWER_S: Final = 60.0
"""Longer than any answer takes that doesn't wait for a person."""
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""A longer answer isn't one of ours."""
LOOK_FIRST_S: Final = 0.5
LOOK_MAX_S: Final = 1.0
"""While an answer doesn't come, the other servers are asked whether one of them is active now. A process that was
stopped, or whose network was cut, takes a request and never answers it."""
PROBE_S: Final = 1.0
"""How long one of them may take to say so."""
MIDST_S: Final = 10.0
"""Where there are several servers, the rest of an answer that has begun doesn't take longer to go on."""

_NO_HEADERS: Final[Mapping[str, str]] = {}


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


PROBE: Final = Request("GET", f"{API_PREFIX}/health", headers={STALE_HEADER: FRESH_ONLY})
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
    """Does the answer to a PROBE say that it is one of several control planes, and the active one?"""
    return status == 200 and headers.get(ROLE_HEADER.lower()) == ACTIVE


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


def refusal_in(reply: Reply) -> Refusal | None:
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
    seen = reply.body[:80].decode(errors="replace")
    return StokerError(
        refuse(
            "bad_answer",
            f"what answers there is not a Stoker control plane of this version: status {reply.status}, {seen!r}",
            "check --server, and that client and server are of neighbouring versions",
            status=reply.status,
        )
    )


def answer_too_long(status: int) -> StokerError:
    return bad_answer(Reply(status, _NO_HEADERS, b"longer than 64 MiB"))
