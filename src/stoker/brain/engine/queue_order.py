"""Who is next?

Rules: O1  higher effective priority first: the job's own and what it has gained by waiting, `aging_per_hour` for each
           hour since it was submitted (or was to begin), at most `aging_max`
       O2  among equals whoever was submitted first: ids ascend with submission
       O3  once a shape is blocked, nobody of that shape comes up again in this pass
       O4  an array stands for those of its members that aren't records yet, as many as its limit has room for
Limits: costs about 1 us per bucket whose shape isn't blocked at the start and per job that comes up; never the
        queue's length. In a bucket the order of ids is the order of age, so only heads are compared.
"""

from collections.abc import Container, Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple

from stoker.brain.domain.demand import Shape
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import HOUR_MS, NEVER, Instant
from stoker.brain.state.view import Bucket, View

_NO_ARRAY = JobId(0)


class Candidate(NamedTuple):
    """A job, or a lazy member of `array`, that may be placed."""

    job: JobId
    shape: Shape
    array: JobId
    """The array that it is a member of; 0 = none."""
    lazy: bool


_Queue = tuple[Bucket, JobId, Iterator[JobId]]
"""Who comes behind a head: the records of a bucket (0), or the lazy members of one of its arrays."""
_Head = tuple[int, JobId, _Queue]
"""Negated effective priority, the job, the queue behind it. No two have one job, which makes the order total."""


def in_order(
    buckets: Iterable[Bucket], view: View, policy: Policy, now: Instant, blocked: Container[Shape]
) -> Iterator[Candidate]:
    """The waiting jobs one by one. `blocked` is read anew at each step, so a caller may add to it on the way."""
    line = _QueueOrder(view, policy, now)
    firsts = line.heads(buckets, blocked)
    others: list[_Head] = []
    at = 0
    while at < len(firsts) or others:
        if others and (at == len(firsts) or others[0] < firsts[at]):
            _, job, queue = heappop(others)
        else:
            _, job, queue = firsts[at]
            at += 1
        bucket, array, _ = queue
        if bucket.shape not in blocked:
            yield Candidate(job, bucket.shape, array or view.job(job).array_of, array != _NO_ARRAY)
            following = line.head(queue)
            if following is not None:
                heappush(others, following)


class _QueueOrder:
    """How long has everyone waited?"""

    __slots__ = ("_now", "_policy", "_view")

    def __init__(self, view: View, policy: Policy, now: Instant) -> None:
        self._view, self._policy, self._now = view, policy, now

    def heads(self, buckets: Iterable[Bucket], blocked: Container[Shape]) -> list[_Head]:
        """The first of each queue, in order, but for those of shapes that are blocked already."""
        found: list[_Head | None] = []
        for bucket in buckets:
            if bucket.shape not in blocked:
                if bucket.jobs:
                    found.append(self.head((bucket, _NO_ARRAY, iter(bucket.jobs))))
                # Each array is a queue of its own: a requeued member keeps its place before those that haven't run.
                for array in bucket.arrays:
                    members = islice(self._view.members(array), self._view.room(array))
                    found.append(self.head((bucket, array, members)))
        return sorted([head for head in found if head is not None])

    def head(self, queue: _Queue) -> _Head | None:
        """The next of `queue`, who then is no longer in it."""
        bucket, array, ids = queue
        job_id = next(ids, None)
        if job_id is None:
            return None
        job = self._view.job(array or job_id)
        since = max(job.submitted_at, job.spec.begin)
        return -(bucket.priority + aged(since, self._policy, self._now)), job_id, queue


def aged(since: Instant, policy: Policy, now: Instant) -> int:
    """Points gained by waiting since then (O1)."""
    return min(policy.aging_max, max(NEVER, now - since) * policy.aging_per_hour // HOUR_MS)
