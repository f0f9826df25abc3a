"""Steps of a call to a control plane, as generators that neither block nor need an event loop.

A call yields the requests that it sends and the pauses that it makes, and is sent the replies: `Client` and
`AsyncClient` run the same steps, each in its own way. `ask` makes a call of a row of `wire.endpoints`; the other
functions are the calls of endpoints that answer in more than one shape.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from stoker.brain.domain.array import parse_job_ref
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.wire import endpoints
from stoker.wire.client.backoff import fresh_key
from stoker.wire.client.http_message import Reply, Request, bad_answer, decoded
from stoker.wire.client.retry import Wait
from stoker.wire.endpoints import KEY_HEADER, Endpoint
from stoker.wire.rest.job import ForgottenJobView, JobsSubmittedView, JobsToldView, JobsView, JobView
from stoker.wire.rest.log import ATTEMPT_HEADER, ENDED_HEADER, OFFSET_HEADER, SIZE_HEADER, LogQuery
from stoker.wire.rest.submit import JobBody, JobsBody

Answer = TypeVar("Answer")

_LIST: Final = b'{"jobs":'
"""Beginning of the answer where an id named several members."""


class Yield(NamedTuple, Generic[Answer]):
    """A value for the caller of a stream."""

    value: Answer


Steps: TypeAlias = Generator[Request | Wait, Reply | None, Answer]
"""A call: requests and pauses, and in the end its answer."""
Stream: TypeAlias = Generator[Request | Wait | Yield[Answer], Reply | None, None]
"""A call with any number of answers."""


class LogPart(NamedTuple):
    """Bytes of a task's output. The next part begins at `end`."""

    data: bytes
    offset: int
    """Where `data` begins, counted from the first byte ever written. Above what was asked for where the node has
    dropped what lay between."""
    size: int
    """Bytes ever written."""
    ended: bool
    """Whether no more will be written."""
    attempt: int = 0
    """Which attempt wrote it. 0 = the server doesn't say."""

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


def ask(
    endpoint: Endpoint[Answer], *words: str, body: msgspec.Struct | None = None, query: msgspec.Struct | None = None
) -> Steps[Answer]:
    """Ask an endpoint; `words` take the places of its path's parameters, in order."""
    reply = yield from send(request_to(endpoint, *words, body=body, query=query))
    return decode(reply, endpoint.answer())


def send(request: Request) -> Steps[Reply]:
    """Send one request."""
    reply = yield request
    assert reply is not None, "a request is answered, or refused"
    return reply


def request_to(
    endpoint: Endpoint[object], *words: str, body: msgspec.Struct | None = None, query: msgspec.Struct | None = None
) -> Request:
    """Return the request that asks an endpoint. Raises: StokerError `missing_field` for an empty word."""
    given = iter(words)
    path = "/".join(_word(next(given)) if part.startswith("{") else part for part in endpoint.path.split("/"))
    return Request(
        endpoint.method,
        path + _parameters(query),
        None if body is None else msgspec.json.encode(body),
        repeatable=endpoint.repeatable,
        done_code=endpoint.done_code,
    )


def _word(text: str) -> str:
    """One part of a path, whatever is in it. The path without it is another endpoint's."""
    if not text:
        hint = "give the one that is meant; a variable that was to hold it may be empty"
        raise refusal_error("missing_field", "an empty text is no id and no name", hint)
    return quote(text, safe="")


def _parameters(query: msgspec.Struct | None) -> str:
    """Only what differs from the defaults travels, so that a newer client can ask an older server."""
    if query is None:
        return ""
    fields = [(field, getattr(query, field.name)) for field in msgspec.structs.fields(query)]
    changed = {field.encode_name: value for field, value in fields if value != field.default}
    return f"?{urlencode(changed)}" if changed else ""


def decode(reply: Reply, shape: type[Answer]) -> Answer:
    """Raises: StokerError `bad_answer`."""
    try:
        return decoded(reply.body, shape)
    except msgspec.MsgspecError as fault:
        raise bad_answer(reply) from fault


# -- jobs ------------------------------------------------------------------------------------------------------------


def submit(job: JobBody, key: str) -> Steps[JobView]:
    """Submit one job under an idempotency key; an empty one is replaced by a fresh one."""
    reply = yield from send(_keyed(job, key))
    try:
        return decoded(reply.body, JobView)
    except msgspec.MsgspecError:
        gone = decode(reply, ForgottenJobView)
    raise _forgotten([gone.id], gone.message)


def submit_many(jobs: Sequence[JobBody], key: str) -> Steps[list[JobView]]:
    """Submit all of these jobs or none under one idempotency key."""
    answer = decode((yield from send(_keyed(JobsBody(jobs=list(jobs)), key))), JobsSubmittedView)
    if answer.forgotten:
        said = f"{len(answer.forgotten)} of the jobs submitted under this key ended so long ago that they are forgotten"
        raise _forgotten(answer.forgotten, said)
    return answer.jobs


def _keyed(body: msgspec.Struct, key: str) -> Request:
    """Raises: StokerError `bad_idempotency_key`: a header has no other letters, and no line break above all."""
    if not (key.isascii() and (key.isprintable() or not key)):
        why = f"the key {key[:80]!r} has letters that no header can carry"
        raise refusal_error("bad_idempotency_key", why, "use a fresh UUID for each submit")
    return request_to(endpoints.SUBMIT, body=body)._replace(headers={KEY_HEADER: key or fresh_key()})


def _forgotten(ids: Sequence[str], message: str) -> StokerError:
    hint = "they were submitted, once; use a fresh key for a submit that is another one"
    return refusal_error("job_forgotten", message, hint, job_id=ids[0])


def show_job(job_id: str) -> Steps[JobView]:
    """Show one job. Raises: StokerError `several_jobs` where the id names several members of an array."""
    reply = yield from send(request_to(endpoints.JOB, job_id))
    if reply.body.startswith(_LIST):
        raise _several(job_id)
    return decode(reply, JobView)


def _several(job_id: str) -> StokerError:
    ref = parse_job_ref(job_id)
    first = ref.members[0][0] if ref.members else 0
    hint = f"name one of them, such as `{ref.job}_{first}`, or all: `{ref.job}`"
    return refusal_error("several_jobs", f"{job_id[:80]} names several members, and one is wanted", hint)


def show_members(jobs: str) -> Steps[JobsView]:
    """Show every job that an id names, as a list also where it names one."""
    reply = yield from send(request_to(endpoints.JOB, jobs))
    if reply.body.startswith(_LIST):
        return decode(reply, JobsView)
    return JobsView(jobs=[decode(reply, JobView)], total=1)


def tell_jobs(endpoint: Endpoint[JobView], jobs: str, body: msgspec.Struct | None = None) -> Steps[JobsToldView]:
    """Carry out a job operation on every job that an id names, and return them as it left them."""
    reply = yield from send(request_to(endpoint, jobs, body=body))
    if reply.status >= 300:  # a repeat was refused, because the first request had been carried out
        now = yield from show_members(jobs)
        return JobsToldView(jobs=now.jobs, total=now.total, changed=now.total)
    if reply.body.startswith(_LIST):
        return decode(reply, JobsToldView)
    return JobsToldView(jobs=[decode(reply, JobView)], total=1, changed=1)


def read_log(job_id: str, query: LogQuery | None) -> Steps[LogPart]:
    """Read one part of a task's output."""
    request = request_to(endpoints.LOGS, job_id, query=query)
    reply = yield from send(request._replace(waits=query is not None and query.wait_s > 0))
    try:
        offset, size = (int(reply.headers[name.lower()]) for name in (OFFSET_HEADER, SIZE_HEADER))
        ended = reply.headers[ENDED_HEADER.lower()] == "true"
        attempt = int(reply.headers.get(ATTEMPT_HEADER.lower(), "0"))
    except (KeyError, ValueError) as fault:
        raise bad_answer(reply) from fault
    return LogPart(reply.body, offset, size, ended, attempt)


def until_yield(stream: Stream[Answer]) -> Steps[Yield[Answer] | None]:
    """Run a stream to its next answer; None at its end."""
    try:
        step = next(stream)
        while not isinstance(step, Yield):
            try:
                reply = yield step
            except StokerError as fault:
                step = stream.throw(fault)
            else:
                step = stream.send(reply)
    except StopIteration:
        return None
    return step
