"""Waiting for jobs, paging through lists and following output, as steps of a call.

Rules: F1  following begins with the attempt asked for, else with the job's first (with a tail: its newest), and goes on
           with those that come after it until the job ends
       F2  what time may lift while the attempt goes on (its node doesn't answer, nothing is there yet) is waited for
       F3  every byte is given once, in order; what the node has dropped shows as a part that begins later
       F4  the server is asked to wait for bytes; one that can't is asked again after pauses
       F5  a character whose bytes come in two parts is decoded once the second is there
"""

from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.lifecycle import FINAL
from stoker.wire import endpoints
from stoker.wire.client.calls import LogPart, Steps, Stream, Yield, ask, read_log, show_job
from stoker.wire.client.retry import Wait
from stoker.wire.rest.job import LIST_MAX, JobListQuery, JobView
from stoker.wire.rest.log import LOG_LIMIT_MAX, LOG_WAIT_MAX_S, LogQuery

POLL_FIRST_S: Final = 0.05
POLL_MAX_S: Final = 2.0
LOG_POLL_MAX_S: Final = 1.0
_YET_TO_COME: Final = frozenset({"log_unavailable", "node_unreachable"})
"""Refusals that time may lift (F2)."""


class LogDecoder:
    """Decoder of a rank's output, part by part, as UTF-8; what isn't UTF-8 becomes U+FFFD, and nothing raises (F5)."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._next = (0, 0)

    def decode(self, part: LogPart) -> str:
        """Return the text of the next part. A beginning of a character is kept for the part that goes on there."""
        gap = "" if (part.attempt, part.offset) == self._next else self._decoder.decode(b"", final=True)
        self._next = (part.attempt, part.end)
        return gap + self._decoder.decode(part.data, final=part.ended and part.end >= part.size)


def _pauses(most_s: float) -> Iterator[Wait]:
    """Give pauses that grow while nothing happens."""
    next_s = POLL_FIRST_S
    while True:
        yield Wait(next_s)
        next_s = min(next_s * 1.5, most_s)


def wait(job_id: str, at_most_s: float) -> Steps[JobView]:
    """Return the job once it is final, or as it is when `at_most_s` seconds of pauses are over."""
    waited_s, pauses = 0.0, _pauses(POLL_MAX_S)
    while True:
        job = yield from show_job(job_id)
        if job.state in FINAL or waited_s >= at_most_s:
            return job
        pause = next(pauses)
        yield pause
        waited_s += pause.seconds


def wait_all(job_ids: Sequence[str]) -> Steps[list[JobView]]:
    """Return all of these jobs, in the order given, once the last is final."""
    found: list[JobView] = []
    for job_id in job_ids:
        job = yield from wait(job_id, float("inf"))
        found.append(job)
    return found


def each_job(query: JobListQuery | None) -> Stream[JobView]:
    """Give every job that matches, newest first."""
    asked = msgspec.structs.replace(query or JobListQuery(), limit=LIST_MAX, after="")
    while True:
        page = yield from ask(endpoints.JOBS, query=asked)
        for job in page.jobs:
            yield Yield(job)
        if page.next is None:
            return
        asked = msgspec.structs.replace(asked, after=page.next)


def follow(job_id: str, query: LogQuery | None) -> Stream[LogPart]:
    """Give the parts of one rank's output. `query` says which rank, attempt and tail."""
    first = query or LogQuery()
    job = yield from _attempted(job_id, max(1, first.attempt))
    numbers = [each.number for each in job.attempts]
    if not numbers:
        return
    number = first.attempt or (numbers[-1] if first.tail else numbers[0])
    yield from _follow_attempt(job_id, msgspec.structs.replace(first, attempt=number))
    while not first.attempt:
        number += 1
        job = yield from _attempted(job_id, number)
        if job.attempts[-1].number < number:
            return
        yield from _follow_attempt(job_id, msgspec.structs.replace(first, attempt=number, tail=0))


def _attempted(job_id: str, number: int) -> Steps[JobView]:
    """The job once it has that attempt, or has ended without."""
    pauses = _pauses(POLL_MAX_S)
    while True:
        job = yield from show_job(job_id)
        if job.members is not None:
            yield from read_log(job_id, None)  # refused, in the server's words: each member writes
        if job.state in FINAL or (job.attempts and job.attempts[-1].number >= number):
            return job
        yield next(pauses)


def _follow_attempt(job_id: str, query: LogQuery) -> Stream[LogPart]:
    pauses, asked = _pauses(LOG_POLL_MAX_S), msgspec.structs.replace(query, wait_s=LOG_WAIT_MAX_S)
    while True:
        try:
            part = yield from read_log(job_id, asked)
        except StokerError as fault:
            if fault.refusal.code not in _YET_TO_COME:
                raise
            job = yield from show_job(job_id)
            if all(each.outcome is not None for each in job.attempts if each.number == query.attempt):
                raise
            yield next(pauses)
            continue
        if part.data:
            pauses = _pauses(LOG_POLL_MAX_S)
            yield Yield(part)
        if part.ended and part.end >= part.size:
            return
        if not part.data:
            yield next(pauses)
        asked = msgspec.structs.replace(asked, tail=0, offset=part.end, limit=LOG_LIMIT_MAX)
