"""Who is next?

Rules: O1  higher effective priority first: the job's own and what it has gained by waiting, `aging_per_hour` for each
           hour since it was submitted (or was to begin), at most `aging_max`
       O2  among equals whoever was submitted first: ids ascend with submission
       O3  once a shape is blocked, nobody of that shape comes up again in this pass
       O4  an array stands for those of its members that aren't records yet, as many as its limit has room for
Limits: costs one heap step per job that comes up, and one per bucket that is dropped; never the queue's length.
"""

from collections.abc import Container, Iterator, Sequence
from heapq import heapify, heappop, heapreplace, merge
from itertools import islice
from typing import NamedTuple

from stoker.brain.domain.demand import Shape
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import HOUR_MS, Instant
from stoker.brain.state.view import Bucket, View


class Candidate(NamedTuple):
    """A job, or a lazy member of `array`, that may be placed."""

    job: JobId
    shape: Shape
    array: JobId
    """The array that it is a member of; 0 = none."""
    lazy: bool


class _Queue:
    """One bucket on its way: who is next in it."""

    __slots__ = ("_candidates", "_now", "_policy", "_view", "bucket")

    def __init__(self, bucket: Bucket, view: View, policy: Policy, now: Instant) -> None:
        self.bucket = bucket
        self._view, self._policy, self._now = view, policy, now
        self._candidates = self._all()

    def advance(self) -> "_Head | None":
        return next(self._candidates, None)

    def _all(self) -> "Iterator[_Head]":
        priority, shape, jobs, arrays = self.bucket
        streams = (self._records(jobs), *map(self._lazy, arrays))
        for job_id, array in merge(*streams) if arrays else streams[0]:
            job = self._view.job(array or job_id)
            rank = -(priority + aged(max(job.submitted_at, job.spec.begin), self._policy, self._now))
            yield rank, job_id, Candidate(job_id, shape, array or job.array_of, array != 0), self

    def _records(self, jobs: Sequence[JobId]) -> "Iterator[tuple[JobId, JobId]]":
        return ((job, JobId(0)) for job in jobs)

    def _lazy(self, array: JobId) -> "Iterator[tuple[JobId, JobId]]":
        """By id among the records, so that a requeued member keeps its place before those that haven't run."""
        return ((member, array) for member in islice(self._view.members(array), self._view.room(array)))


_Head = tuple[int, JobId, Candidate, _Queue]
"""Negated effective priority, the job, all about it, the queue behind it. The job makes the order total."""


def in_order(view: View, policy: Policy, now: Instant, blocked: Container[Shape]) -> Iterator[Candidate]:
    """The waiting jobs one by one. `blocked` is read anew at each step, so a caller may add to it on the way."""
    queues = (_Queue(bucket, view, policy, now) for bucket in view.pending())
    heads = [head for head in (queue.advance() for queue in queues) if head is not None]
    heapify(heads)
    while heads:
        _, _, candidate, queue = heads[0]
        if candidate.shape in blocked:
            heappop(heads)
            continue
        yield candidate
        following = queue.advance()
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, following)


def aged(since: Instant, policy: Policy, now: Instant) -> int:
    """Points gained by waiting since then (O1)."""
    return min(policy.aging_max, max(0, now - since) * policy.aging_per_hour // HOUR_MS)
