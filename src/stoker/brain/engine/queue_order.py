"""Order of the queue: which job comes up next in a pass, and at which position one job stands.

Rules: O1  higher effective priority first: the job's own, what it has gained by waiting, `aging_per_hour` for each hour
           since it was submitted (or was to begin), at most `aging_max`, and the fair-share term of its tenant
           (`fair_share`)
       O2  among equals the job that was submitted first: ids ascend with submission
       O3  once a shape is blocked, no job of that shape comes up again in this pass
       O4  an array stands for those of its members that aren't records yet, as many as its limit lets start
Limits: `in_order` costs about 1 us per job that comes up and, once in a pass, per bucket of its base priority whose
        shape isn't blocked, and `queue_position` a step per bucket and array, and a binary search where ages decide;
        neither costs the length of the queue. In a bucket the order of ids is the order of age, so only the first jobs
        are compared.
"""

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

from stoker.brain.domain.array import Spans, contains, indexes_of, member_id
from stoker.brain.domain.demand import Shape
from stoker.brain.domain.ids import JobId, TenantName
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.plan import UndecidableShape
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import HOUR_MS, Instant
from stoker.brain.engine.fair_share import FairShare
from stoker.brain.state.view import Bucket, View

_NO_ARRAY = JobId(0)


class Candidate(NamedTuple):
    """A job, or a lazy member of `array`, that may be placed."""

    job: JobId
    shape: Shape
    array: JobId
    """The array that it is a member of; 0 = none."""
    lazy: bool


class Priority(NamedTuple):
    """The parts of an effective priority."""

    base: int
    aging: int
    fair_share: int

    @property
    def effective(self) -> int:
        """The sum, by which the queue is ordered."""
        return sum(self)


class QueuePosition(NamedTuple):
    """The position of one job in the order in which a pass looks."""

    position: int
    """1 is first."""
    waiting: int
    """Jobs and members in the queue, this one included."""
    similar_ahead: int
    """Those before it that have its shape and its priority."""
    priority: Priority
    """By which it stands there."""


_Queue = tuple[Bucket, JobId, Iterator[JobId] | None]
"""What comes behind a head: the records of a bucket (0), or the lazy members of one of its arrays. None = all but the
first."""
_Key = tuple[int, JobId]
"""Negated effective priority and id: the lower key comes up first."""
_Head = tuple[int, JobId, _Queue]
"""A key and the queue behind it. No two have one job, which makes the order total."""
_Tier = tuple[int, list[Bucket]]
"""Buckets of one base priority, and the highest effective priority that a job of them may have."""
_HIDDEN_PART: Final = 8
"""Once so small a part of the heads was found blocked in a row, all are looked at."""


class QueueOrder:
    """The order at one time: what each job has gained by waiting, and by the use of its tenant, is known."""

    __slots__ = ("_keys", "_now", "_tiered", "_tiers", "fair_share", "policy", "view")

    def __init__(self, view: View, policy: Policy, now: Instant, waiting: Iterable[TenantName]) -> None:
        """`waiting` are the tenants of all jobs in the queue."""
        self.view, self.policy, self._now = view, policy, now
        self.fair_share = FairShare(view, policy, now, waiting)
        self._tiered: Iterable[Bucket] | None = None
        self._tiers: list[_Tier] = []
        """Of those buckets, the highest first."""
        self._keys: dict[JobId, int] = {}
        """Of the first jobs of buckets: a pass goes through its queue several times."""

    def tiers(self, buckets: Iterable[Bucket]) -> Sequence[_Tier]:
        """Return the buckets by base priority, the highest first."""
        if self._tiered is not buckets:
            found: dict[int, list[Bucket]] = {}
            for bucket in buckets:
                found.setdefault(bucket.priority, []).append(bucket)
            tiers = [(self._most_of(some[0]), some) for some in found.values()]
            self._tiered, self._tiers = buckets, sorted(tiers, key=lambda tier: -tier[0])
        return self._tiers

    def _most_of(self, bucket: Bucket) -> int:
        try:
            return bucket.priority + self.policy.aging_max + self.policy.fair_share_points
        except TypeError as fault:
            raise UndecidableShape(bucket.shape, repr(fault)) from fault

    def heads(self, buckets: Iterable[Bucket], blocked: Container[Shape]) -> list[_Head]:
        """Return the first of each queue, unordered, but for those of shapes that are blocked already."""
        found: list[_Head] = []
        keys = self._keys
        for bucket in buckets:
            if bucket.shape in blocked:
                continue
            try:
                if bucket.jobs:
                    first = bucket.jobs[0]
                    key = keys.get(first)
                    if key is None:
                        key = keys[first] = -self.effective(self.view.job(first))
                    found.append((key, first, (bucket, _NO_ARRAY, None)))
                if bucket.arrays:
                    found += self._heads_of_arrays(bucket)
            except Exception as fault:
                raise UndecidableShape(bucket.shape, repr(fault)) from fault
        return found

    def _heads_of_arrays(self, bucket: Bucket) -> Iterator[_Head]:
        # Each array is a queue of its own: a requeued member keeps its place before those that haven't run.
        for array in bucket.arrays:
            head = self.following((bucket, array, islice(self.view.members(array), self.view.array_slots(array))))
            if head is not None:
                yield head

    def following(self, queue: _Queue) -> _Head | None:
        """Take the next job from `queue`."""
        bucket, array, ids = queue
        if ids is None:
            ids = islice(bucket.jobs, 1, None)
        job_id = next(ids, None)
        if job_id is None:
            return None
        return -self.effective(self.view.job(array or job_id)), job_id, (bucket, array, ids)

    def priority(self, job: Job) -> Priority:
        """Return the parts of a job's effective priority (O1)."""
        return Priority(job.spec.priority, self._aging(job), self.fair_share.term(job.spec.tenant))

    def effective(self, job: Job) -> int:
        """Return the sum of the parts."""
        return job.spec.priority + self._aging(job) + self.fair_share.term(job.spec.tenant)

    def _aging(self, job: Job) -> int:
        since, begin, most = job.submitted_at, job.spec.begin, self.policy.aging_max
        waited_ms = self._now - (since if since > begin else begin)
        gained = waited_ms * self.policy.aging_per_hour // HOUR_MS if waited_ms > 0 else 0
        return gained if gained < most else most


def tenants_of(buckets: Iterable[Bucket]) -> Iterable[TenantName]:
    """Return the tenants of these jobs."""
    return dict.fromkeys([bucket.shape.tenant for bucket in buckets])


def in_order(order: QueueOrder, buckets: Iterable[Bucket], blocked: Container[Shape]) -> Iterator[Candidate]:
    """Yield the waiting jobs one by one. `blocked` is read anew at each step, so a caller may add to it on the way.

    Naive: bring the first of all buckets into order. But a pass often wants the first few alone, of a queue of ten
    thousand shapes. So buckets of a lower priority are looked at once nothing above could come after them.
    """
    view, tiers = order.view, order.tiers(buckets)
    heads: list[_Head] = []
    at = hidden = 0
    while True:
        while at < len(tiers) and (not heads or tiers[at][0] >= -heads[0][0]):
            heads += order.heads(tiers[at][1], blocked)
            heapify(heads)
            at += 1
        if not heads:
            return
        _, job, queue = heappop(heads)
        bucket, array, _ = queue
        if bucket.shape in blocked:
            hidden += 1
            if hidden * _HIDDEN_PART > len(heads):
                heads = [head for head in heads if head[2][0].shape not in blocked]
                heapify(heads)
                hidden = 0
            continue
        hidden = 0
        yield Candidate(job, bucket.shape, array or view.job(job).array_of, array != _NO_ARRAY)
        following = order.following(queue)
        if following is not None:
            heappush(heads, following)


class AllBut:
    """Shapes that don't come up: all but these."""

    def __init__(self, comes_up: Callable[[Shape], bool]) -> None:
        self._comes_up = comes_up

    def __contains__(self, shape: object) -> bool:
        return not self._comes_up(shape)  # type: ignore[arg-type]  # only shapes are asked about


class Hidden:
    """Shapes that don't come up: blocked ones, but for some."""

    def __init__(self, blocked: Container[Shape], comes_up: Callable[[Shape], bool]) -> None:
        self._blocked, self._comes_up = blocked, comes_up

    def __contains__(self, shape: object) -> bool:
        return shape in self._blocked and not self._comes_up(shape)  # type: ignore[arg-type]  # only shapes are asked about


def queue_position(view: View, policy: Policy, job: Job, now: Instant) -> QueuePosition | None:
    """Return the position of a job, or of the next member of an array.

    None for a job that isn't in the queue: it runs, has ended, is held, waits for a time or for other jobs, or the
    limit of its array lets no more members start. Jobs that were told to begin later count as old as their neighbours
    in the queue.
    """
    if job.state is not JobState.PENDING:
        return None
    buckets = list(view.pending())
    position = _Position(QueueOrder(view, policy, now, tenants_of(buckets)), job)
    for bucket in buckets:
        position.add(bucket)
    return position.found()


class _Position:
    """The number of jobs that come up before one job, added up bucket by bucket."""

    def __init__(self, order: QueueOrder, job: Job) -> None:
        self._order, self._job = order, job
        self._ahead = self._waiting = self._similar = 0
        self._queued = False
        self._id, self._index = job.id, job.array_index
        if job.members is not None:
            self._index = next(indexes_of(job.members.lazy), 0)
            self._id = _NO_ARRAY if not job.members.lazy else member_id(job.id, job.as_array[0], self._index)
        self._array = job.id if job.members is not None else job.array_of
        self._key: _Key = -order.effective(job), self._id

    def add(self, bucket: Bucket) -> None:
        """Count the jobs of one bucket and the members of its arrays."""
        similar = (bucket.priority, bucket.shape) == (self._job.spec.priority, self._job.spec.shape)
        before = self._before(bucket)
        if similar and before < len(bucket.jobs) and bucket.jobs[before] == self._id:
            self._queued = True
        self._waiting += len(bucket.jobs)
        for array in bucket.arrays:
            offered, first = self._of_array(self._order.view.job(array), similar=similar)
            self._waiting += offered
            before += first
        self._ahead += before
        if similar:
            self._similar += before

    def _before(self, bucket: Bucket) -> int:
        # All of a bucket have one term, and waiting only adds to a priority, so these alone decide most buckets.
        least = bucket.priority + self._order.fair_share.term(bucket.shape.tenant)
        own = -self._key[0]
        if least > own:
            return len(bucket.jobs)
        if least + self._order.policy.aging_max < own:
            return 0
        return bisect_left(bucket.jobs, self._key, key=self._key_of)

    def _of_array(self, array: Job, *, similar: bool) -> tuple[int, int]:
        """How many members may come up, and how many of those before the job."""
        _, members = array.as_array
        slots = self._order.view.array_slots(array.id)
        offered = members.waiting if slots is None else min(members.waiting, slots)
        if array.id != self._array:
            # The ids of its members follow its own, and that of the job isn't among them.
            return offered, offered if (-self._order.effective(array), array.id) < self._key else 0
        first = min(offered, _below(members.lazy, self._index))
        if similar and first < offered and contains(members.lazy, self._index):
            self._queued = True
        return offered, first

    def _key_of(self, job: JobId) -> _Key:
        return -self._order.effective(self._order.view.job(job)), job

    def found(self) -> QueuePosition | None:
        if not self._queued:
            return None
        priority = self._order.priority(self._job)
        return QueuePosition(self._ahead + 1, self._waiting, self._similar, priority)


def _below(spans: Spans, index: int) -> int:
    """How many indexes of `spans` are lower."""
    return sum(min(last - first, index - 1 - first) // step + 1 for first, last, step in spans if first < index)
