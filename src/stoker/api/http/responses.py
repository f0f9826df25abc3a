"""Reading of requests and writing of answers, shared by all routes.

Bodies and answers pass as bytes: msgspec reads and writes them, Starlette only routes.

Rules: V1  of readers that keep a request open for as long as they like there are at most so many of one kind; one more
           is refused
       V2  one principal has at most a quarter of them, so that nobody keeps all others out. The owner, where no token
           is wanted, has no neighbours
       V3  a reader counts from the instant at which he is let in: of many who come at once no more are let in
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final, NamedTuple, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from stoker.api.requests import BODY_BYTES_MAX, too_large
from stoker.brain.domain.access import Caller
from stoker.brain.domain.errors import Refusal, StokerError, refusal_error
from stoker.brain.domain.ids import Principal
from stoker.brain.domain.job import Job
from stoker.brain.domain.sight import Sight
from stoker.brain.state.commands import Command
from stoker.brain.state.events.union import Event
from stoker.control.access import check_read
from stoker.control.control_plane import ControlPlane
from stoker.control.queries.job_lookup import lookup_job
from stoker.control.submission import Key, Submitted, keyed
from stoker.ports import Clock
from stoker.wire.endpoints import JSON, KEY_HEADER, REPLAYED_HEADER
from stoker.wire.rest.decode import decode_body, decode_query
from stoker.wire.rest.problem import MEDIA_TYPE, problem_of

BODIES_BYTES_MAX: Final = 128 << 20
"""Of all bodies together that are still on their way; what goes beyond it is refused with `overloaded`."""
BODIES_SHARE_MAX: Final = BODIES_BYTES_MAX // 4
"""Of those of one tenant, or of one principal that has none."""
_MIB: Final = 1024 * 1024
FORM: Final = "application/x-www-form-urlencoded"
"""What curl says of any body unless it is told otherwise, as those who wrote for the seeds did. A browser that sends a
form says where it comes from too."""
ANSWER_BYTES_MAX: Final = 4 << 20
"""Of the rows of one answer: 1,000 usual jobs have 1 MiB."""
TURN_S: Final = 0.001
"""For so long rows are made before others get a turn, on a fast machine as on a slow one."""
BYTES_PER_TURN: Final = 256 << 10
"""As many bytes are read or sent before others get a turn: about a millisecond."""
REST_S: Final = 0.001
"""Between two turns at a long answer: without it the loop takes Python back before the log's thread has woken up."""
SHARES: Final = 4
"""One principal may have so large a part of the readers of one kind (V2)."""

CALLER: Final = "stoker.caller"
"""Where in a request's scope the guard says who asks."""

_CHALLENGE: Final = {"WWW-Authenticate": "Bearer"}
"""RFC 9110, section 15.5.2: a 401 says how to prove who asks."""

Shape = TypeVar("Shape", bound=msgspec.Struct)
_encode = msgspec.json.Encoder().encode


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return raw_json(_encode(value), status, headers)


def raw_json(content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(content, status_code=status, headers=headers, media_type="application/json")


def problem_response(refusal: Refusal) -> Response:
    problem = problem_of(refusal)
    answer = Response(_encode(problem), status_code=problem.status, media_type=MEDIA_TYPE)
    if problem.status == HTTPStatus.UNAUTHORIZED:
        answer.headers.update(_CHALLENGE)
    if "retry_after_s" in refusal.facts:
        answer.headers["Retry-After"] = str(refusal.facts["retry_after_s"])
    return answer


def caller_of(request: Request) -> Caller:
    """Return the caller of a request."""
    caller = request.scope[CALLER]
    assert isinstance(caller, Caller), f"{CALLER} is {caller!r}"
    return caller


async def carry_out(control: ControlPlane, request: Request, command: Command) -> tuple[Event, ...]:
    """As `Committer.ask`, for one whose token is still good: his body may have taken long to come.

    Raises: StokerError `token_unknown`, or as the brain refuses.
    """
    control.access.check(caller_of(request))
    return await control.committer.ask(command)


def query_of(request: Request, shape: type[Shape]) -> Shape:
    """Raises: StokerError `bad_parameter` or `unknown_parameter`."""
    if not request.scope["query_string"]:
        return shape()
    return decode_query(shape, request.query_params.multi_items())


async def read_body(request: Request, shape: type[Shape]) -> Shape:
    """Return the body in this shape. Raises: StokerError as `body_of` and `decode_body`."""
    return decode_body(shape, await body_of(request))


async def drawn_in_turns(clock: Clock, rows: Iterable[bytes], bytes_max: int | None) -> list[bytes]:
    """Return the rows of an answer, up to the one that reaches `bytes_max` (None = all); others get turns between."""
    drawn: list[bytes] = []
    size, until = 0, clock.mono() + TURN_S
    for row in rows:
        drawn.append(row)
        size += len(row)
        if bytes_max is not None and size >= bytes_max:
            break
        if clock.mono() >= until:
            await clock.sleep(REST_S)
            until = clock.mono() + TURN_S
    return drawn


class ListParts(NamedTuple):
    """An answer with a list, before it is put together."""

    head: bytes
    rows: Sequence[bytes]
    tail: bytes

    def slices(self) -> Iterator[bytes]:
        """Return the answer in pieces of about BYTES_PER_TURN."""
        piece, size = [self.head], len(self.head)
        for at, row in enumerate(self.rows):
            piece.append(b"," + row if at else row)
            size += len(row)
            if size >= BYTES_PER_TURN:
                yield b"".join(piece)
                piece, size = [], 0
        yield b"".join([*piece, self.tail])

    @property
    def size(self) -> int:
        commas = max(0, len(self.rows) - 1)
        return len(self.head) + sum(map(len, self.rows)) + commas + len(self.tail)


class ListResponse(Response):
    """A long list as JSON, made when it is its turn and sent in slices, between which others get theirs."""

    def __init__(self, control: ControlPlane, caller: Caller, make: Callable[[], Awaitable[ListParts]]) -> None:
        super().__init__(media_type="application/json")
        self._control, self._caller, self._make = control, caller, make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises: StokerError as making the list does."""
        lists = self._control.lists
        async with lists.open(self._caller):
            async with lists.made(self._caller):
                parts = await self._make()
            self.headers["content-length"] = str(parts.size)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for piece in parts.slices():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                await self._control.clock.sleep(REST_S)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class BodyBudget:
    """Bytes of request bodies in memory that aren't whole yet, which slow senders hold for long."""

    def __init__(self, bytes_max: int = BODIES_BYTES_MAX, share_max: int = BODIES_SHARE_MAX) -> None:
        self.bytes_max, self.share_max = bytes_max, share_max
        self.held = 0
        self._of: dict[str, int] = {}
        """The same of each tenant, or principal without one, so that nobody fills the places of others."""

    def take(self, whose: str, size: int) -> None:
        """Raises: StokerError `overloaded`."""
        for held, most, words in (
            (self._of.get(whose, 0), self.share_max, f"requests of {whose}"),
            (self.held, self.bytes_max, "requests"),
        ):
            if held + size > most:
                raise refusal_error(
                    "overloaded",
                    f"{held // _MIB} MiB of {words} are on their way, of at most {most // _MIB} MiB",
                    "try again in a second, or send less at once",
                    bytes_max=most,
                )
        self._add(whose, size)

    def give(self, whose: str, size: int) -> None:
        """Return what was taken: the body is whole, or won't be."""
        self._add(whose, -size)

    def _add(self, whose: str, size: int) -> None:
        self.held += size
        self._of[whose] = self._of.get(whose, 0) + size
        if not self._of[whose]:
            del self._of[whose]


async def body_of(request: Request) -> bytes:
    """The whole body.

    Raises: StokerError `body_too_large`, `unsupported_media_type` or `overloaded`.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > BODY_BYTES_MAX:
        raise too_large()
    bodies: BodyBudget = request.app.state.bodies
    whose = caller_of(request).sharer
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            if size + len(chunk) > BODY_BYTES_MAX:
                raise too_large()
            if chunk and not size:
                _check_media_type(request.headers)
            bodies.take(whose, len(chunk))
            size += len(chunk)
            chunks.append(chunk)
    finally:
        bodies.give(whose, size)
    return b"".join(chunks)


def _check_media_type(headers: Headers) -> None:
    """Refuse a body that is said to be no JSON: an HTML form can send three types, and none of JSON's."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    by_curl = media_type == FORM and not any(name in headers for name in ("origin", "sec-fetch-site", "referer"))
    if by_curl or media_type in ("", JSON) or (media_type.startswith("application/") and media_type.endswith("+json")):
        return
    raise refusal_error(
        "unsupported_media_type",
        f"the body is said to be {media_type[:80]!r}, and only {JSON} is read",
        f"send JSON, with the header `Content-Type: {JSON}`: curl says otherwise unless it is told with -H or --json",
        media_type=media_type[:80],
    )


async def lookup_job_at(request: Request, control: ControlPlane) -> Job:
    """The one job, or member of an array, that the path names, also when only the history knows it.

    A member that is no record is shown as its array has it.
    Raises: StokerError `bad_job_id`, `bad_array`, `several_jobs`, `not_an_array`, `job_unknown`, `member_unknown`,
    `job_forgotten` or `history_unavailable`.
    """
    return await lookup_job(request.path_params["job_id"], control)


async def lookup_seen_job_at(request: Request, control: ControlPlane, least: Sight) -> tuple[Job, Sight]:
    """The same, with what the caller sees of it, who must see so much. Raises: the same, and `not_allowed`."""
    job = await lookup_job_at(request, control)
    return job, check_read(control.committer.state, caller_of(request), job, least)


def key_of(request: Request, data: bytes, dialect: str) -> Key:
    """Return the idempotency key of a request with the body `data`. Raises: StokerError `bad_idempotency_key`."""
    given = request.headers.getlist(KEY_HEADER)
    if not given:
        return Key()
    if len(given) > 1 or not given[0]:
        many = "is given twice" if len(given) > 1 else "is empty"
        hint = "give one key, or leave the header out"
        raise refusal_error("bad_idempotency_key", f"the header {KEY_HEADER} {many}", hint)
    return keyed(given[0], data, dialect)


def repeat_headers(submitted: Submitted) -> dict[str, str]:
    """Return the headers that tell of a repeat under an idempotency key; none for a first submit."""
    return {} if submitted.at is None else {REPLAYED_HEADER: "true"}


class StreamLimit:
    """Count of the readers of one kind."""

    def __init__(self, most: int, doing: str, hint: str) -> None:
        """`doing`: what they do, after their number."""
        self.most = most
        self._doing = doing
        self._hint = hint
        self._by: Counter[Principal] = Counter()

    @property
    def count(self) -> int:
        return self._by.total()

    def check(self, caller: Caller) -> None:
        """Raises: StokerError `too_many_streams`."""
        if self.count >= self.most:
            raise self._too_many(f"{self.most} readers {self._doing} already", self.most)
        each = max(1, self.most // SHARES)
        if caller.token and self._by[caller.principal] >= each:
            raise self._too_many(f"{each} readers of {caller.principal} {self._doing} already, as many as may", each)

    @contextmanager
    def counted(self, caller: Caller) -> Iterator[None]:
        """Raises: StokerError `too_many_streams`."""
        self.check(caller)
        self._by[caller.principal] += 1
        try:
            yield
        finally:
            self._by[caller.principal] -= 1
            if not self._by[caller.principal]:
                del self._by[caller.principal]

    def _too_many(self, message: str, most: int) -> StokerError:
        return refusal_error("too_many_streams", message, self._hint, streams=most)


class EndlessResponse(StreamingResponse):
    """Answer to a reader that keeps its request open."""

    def __init__(
        self,
        readers: StreamLimit,
        caller: Caller,
        content: AsyncIterator[bytes],
        headers: dict[str, str],
        media_type: str,
    ) -> None:
        """Raises: StokerError `too_many_streams`."""
        readers.check(caller)
        super().__init__(content, headers=headers, media_type=media_type)
        self._readers = readers
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._readers.counted(self._caller):
            await super().__call__(scope, receive, send)
