"""How does a client wait for jobs, page through a list and follow output, whether it blocks or not?

Each is a generator that says what to do next and is handed what came of it: ask, pause, or give a part to the caller.
`client` and `async_client` carry the steps out, each in its own way.

Rules: F1  following begins with the attempt asked for, else with the job's first (with a tail: its newest), and goes on
           with those that come after it until the job ends
       F2  what time may lift while the attempt goes on (its node doesn't answer, nothing is there yet) is waited for
       F3  every byte is given once, in order; what the node has dropped shows as a part that begins later
       F4  the server is asked to wait for bytes; one that can't is asked again after pauses
"""

from collections.abc import Generator
from typing import Final, NamedTuple, TypeAlias

import msgspec

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.lifecycle import FINAL
from stoker.wire.client import endpoints
from stoker.wire.client.endpoints import ApiCall, LogPart
from stoker.wire.rest.job import LIST_MAX, JobListQuery, JobListView, JobView
from stoker.wire.rest.log import LOG_LIMIT_MAX, LOG_WAIT_MAX_S, LogQuery

POLL_FIRST_S: Final = 0.05
POLL_MAX_S: Final = 2.0
LOG_POLL_MAX_S: Final = 1.0
_YET_TO_COME: Final = frozenset({"log_unavailable", "node_unreachable"})
"""F2"""


class Sleep(NamedTuple):
    seconds: float


class Yield(NamedTuple):
    """For the caller."""

    value: object


FollowAction: TypeAlias = ApiCall[object] | Sleep | Yield
FollowSequence: TypeAlias = Generator[FollowAction, object, None]


class _Polls:
    """Pauses that grow while nothing happens."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._next_s = POLL_FIRST_S

    def again(self) -> Sleep:
        pause = Sleep(self._next_s)
        self._next_s = min(self._next_s * 1.5, self._most_s)
        return pause

    def reset(self) -> None:
        self._next_s = POLL_FIRST_S


def wait(job_id: str, at_most_s: float) -> FollowSequence:
    """Gives the job once it is final, or as it is when `at_most_s` of pauses are over."""
    waited_s, polls = 0.0, _Polls(POLL_MAX_S)
    while True:
        job = yield endpoints.job(job_id)
        assert isinstance(job, JobView), f"asked for a job, got {type(job)}"
        if job.state in FINAL or waited_s >= at_most_s:
            yield Yield(job)
            return
        pause = polls.again()
        yield pause
        waited_s += pause.seconds


def each_job(query: JobListQuery | None) -> FollowSequence:
    """Gives every job that matches, newest first."""
    asked = msgspec.structs.replace(query or JobListQuery(), limit=LIST_MAX, after="")
    while True:
        page = yield endpoints.jobs(asked)
        assert isinstance(page, JobListView), f"asked for a page, got {type(page)}"
        for job in page.jobs:
            yield Yield(job)
        if page.next is None:
            return
        asked = msgspec.structs.replace(asked, after=page.next)


def follow(job_id: str, first: LogQuery) -> FollowSequence:
    """Gives the parts of one rank's output. `first` says which rank, attempt and tail."""
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


def _attempted(job_id: str, number: int) -> Generator[FollowAction, object, JobView]:
    """The job once it has that attempt, or has ended without."""
    polls = _Polls(POLL_MAX_S)
    while True:
        job = yield endpoints.job(job_id)
        assert isinstance(job, JobView), f"asked for a job, got {type(job)}"
        if job.members is not None:
            yield endpoints.logs(job_id, None)  # refused, in the server's words: each member writes
        if job.state in FINAL or (job.attempts and job.attempts[-1].number >= number):
            return job
        yield polls.again()


def _follow_attempt(job_id: str, query: LogQuery) -> FollowSequence:
    polls, asked = _Polls(LOG_POLL_MAX_S), msgspec.structs.replace(query, wait_s=LOG_WAIT_MAX_S)
    while True:
        try:
            part = yield endpoints.logs(job_id, asked)
        except StokerError as fault:
            if fault.refusal.code not in _YET_TO_COME:
                raise
            job = yield endpoints.job(job_id)
            assert isinstance(job, JobView), f"asked for a job, got {type(job)}"
            if all(each.outcome is not None for each in job.attempts if each.number == query.attempt):
                raise
            yield polls.again()
            continue
        assert isinstance(part, LogPart), f"asked for output, got {type(part)}"
        if part.data:
            polls.reset()
            yield Yield(part)
        if part.ended and part.end >= part.size:
            return
        if not part.data:
            yield polls.again()
        asked = msgspec.structs.replace(asked, tail=0, offset=part.end, limit=LOG_LIMIT_MAX)


def sent(todo: FollowSequence, answer: object) -> FollowAction | None:
    """The step after `answer`; None at the end."""
    try:
        return todo.send(answer)
    except StopIteration:
        return None


def thrown(todo: FollowSequence, fault: StokerError) -> FollowAction | None:
    """The step after a refusal, if that isn't the end. Raises: the refusal itself."""
    try:
        return todo.throw(fault)
    except StopIteration:
        return None
