"""Who is next?

Rules: O1  higher priority first
       O2  among equals whoever was submitted first: ids ascend with submission
       O3  once a shape is blocked, nobody of that shape comes up again in this pass
Limits: costs one heap step per job that comes up, and one per bucket that is dropped; never the queue's length.
"""

from collections.abc import Container, Iterable, Iterator
from heapq import heapify, heappop, heapreplace

from stoker.brain.domain.demand import Shape
from stoker.brain.domain.ids import JobId
from stoker.brain.state.view import Bucket

_Head = tuple[int, JobId, int, Bucket]
"""Negated priority, the job, the place in the bucket of the one after it, the bucket. The job makes the order total."""


def in_order(buckets: Iterable[Bucket], blocked: Container[Shape]) -> Iterator[tuple[JobId, Shape]]:
    """The waiting jobs one by one. `blocked` is read anew at each step, so a caller may add to it on the way."""
    heads: list[_Head] = [(-bucket.priority, bucket.jobs[0], 1, bucket) for bucket in buckets]
    heapify(heads)
    while heads:
        rank, job, following, bucket = heads[0]
        if bucket.shape in blocked:
            heappop(heads)
            continue
        yield job, bucket.shape
        if following == len(bucket.jobs):
            heappop(heads)
        else:
            heapreplace(heads, (rank, bucket.jobs[following], following + 1, bucket))
