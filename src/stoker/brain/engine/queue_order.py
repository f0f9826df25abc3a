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
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from stoker.brain.domain.array import Spans, contains, indexes_of, member_id
from stoker.brain.domain.demand import QuotaGroup, Shape
from stoker.brain.domain.ids import JobId, TenantName
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.plan import UndecidableShape
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import HOUR_MS, Instant
from stoker.brain.engine.fair_share import FairShare
from stoker.brain.state.view import Bucket, View

_NO_ARRAY = JobId(0)


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A job, or a lazy member of `array`, that may be placed."""

    job: JobId
    shape: Shape
    array: JobId
    """The array that it is a member of; 0 = none."""
    lazy: bool
    record: Job
    """Its own, or that of its array while it has none."""


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


_Key = tuple[int, JobId]
"""Negated effective priority and id: the lower key comes up first."""
_Head = tuple[int, JobId, Bucket, JobId, Iterator[JobId] | None, Job]
"""The key of the first of a queue, which no other has and so makes the order total; the bucket and its array (0 = none)
whose jobs wait there; what comes behind that first (None = all but it); and its record, or that of the array."""
_BEYOND: Final = 1 << 62
"""A key behind any."""
_HIDDEN_MAX: Final = 8
"""Blocked ones in a row after which all that can't come up any more are left out at once."""


class Among:
    """Shapes that are among some, or of some quota groups.

    Naive: gather the shapes of the groups. But a round looks at one in ten, and to gather ten thousand takes 2 ms.
    """

    def __init__(self, shapes: Collection[Shape], groups: Collection[QuotaGroup]) -> None:
        self._shapes, self._groups = shapes, groups

    def __contains__(self, shape: object) -> bool:
        return shape in self._shapes or shape.quota_group in self._groups  # type: ignore[attr-defined]  # only shapes are asked about

    def __bool__(self) -> bool:
        return bool(self._shapes or self._groups)


class AllBut:
    """All shapes but some."""

    def __init__(self, some: Callable[[Shape], bool]) -> None:
        self._some = some

    def __contains__(self, shape: object) -> bool:
        return not self._some(shape)  # type: ignore[arg-type]  # only shapes are asked about


EVERY_SHAPE: Final = AllBut(lambda _: False)
NO_SHAPE: Final[Mapping[Shape, object]] = {}
SomeShapes = Among | AllBut | Mapping[Shape, object]
"""Shapes of which some may come up."""


class Hidden:
    """Shapes that don't come up: blocked ones, but for some."""

    def __init__(self, blocked: Container[Shape], comes_up: Callable[[Shape], bool]) -> None:
        self._blocked, self._comes_up = blocked, comes_up

    def __contains__(self, shape: object) -> bool:
        return shape in self._blocked and not self._comes_up(shape)  # type: ignore[arg-type]  # only shapes are asked about


class BucketTier:
    """Buckets of one base priority."""

    __slots__ = ("heads", "most", "rest")

    def __init__(self, most: int, buckets: Sequence[Bucket], heads: Sequence[_Head] = ()) -> None:
        self.most = most
        """The highest effective priority that a job of them may have."""
        self.heads = heads
        """The first of each queue of those that may have come up, in order, the very first last."""
        self.rest = buckets
        """The others."""


class QueueOrder:
    """The order at one time: what each job has gained by waiting, and by the use of its tenant, is known."""

    __slots__ = ("_most", "_now", "_per_hour", "_terms", "fair_share", "policy", "view")

    def __init__(self, view: View, policy: Policy, now: Instant, waiting: Iterable[TenantName]) -> None:
        """`waiting` are the tenants of all jobs in the queue."""
        self.view, self.policy, self._now = view, policy, now
        self._per_hour, self._most = policy.aging_per_hour, policy.aging_max
        self.fair_share = FairShare(view, policy, now, waiting)
        self._terms: Mapping[TenantName, int] = self.fair_share.terms

    def tiers(self, buckets: Iterable[Bucket]) -> Sequence[BucketTier]:
        """Return the buckets by base priority, the highest first."""
        found: dict[int, list[Bucket]] = {}
        for bucket in buckets:
            found.setdefault(bucket.priority, []).append(bucket)
        return sorted([BucketTier(self._most_of(some[0]), some) for some in found.values()], key=_highest_first)

    def _most_of(self, bucket: Bucket) -> int:
        try:
            return bucket.priority + self.policy.aging_max + self.policy.fair_share_points
        except TypeError as fault:
            raise UndecidableShape(bucket.shape, repr(fault)) from fault

    def heads_of(self, tier: BucketTier, among: SomeShapes) -> list[_Head]:
        """Return the first of each queue of a tier whose shape is among these, the very first last."""
        if not among:
            return []
        if among is EVERY_SHAPE:
            if tier.rest:
                tier.heads, tier.rest = sorted([*tier.heads, *self.heads(tier.rest)], reverse=True), []
            return [*tier.heads]
        # A pass goes through its queue once per round. So what may come up is brought into order once, and no more; and
        # each shape is asked about once, since that is most of what it costs.
        known = [head for head in tier.heads if head[2].shape in among]
        new, rest = list[Bucket](), list[Bucket]()
        for bucket in tier.rest:
            (new if bucket.shape in among else rest).append(bucket)
        if not new:
            return known
        heads = sorted(self.heads(new), reverse=True)
        tier.rest = rest
        tier.heads = sorted([*tier.heads, *heads], reverse=True)
        return sorted(known + heads, reverse=True) if known else heads

    def heads(self, buckets: Sequence[Bucket]) -> list[_Head]:
        """Return the first of each queue, unordered."""
        found: list[_Head] = []
        job_of, effective = self.view.job, self.effective
        for bucket in buckets:
            try:
                if bucket.jobs:
                    first = bucket.jobs[0]
                    record = job_of(first)
                    found.append((-effective(record), first, bucket, _NO_ARRAY, None, record))
                for array in bucket.arrays:
                    # A queue of its own: a requeued member keeps its place before those that haven't run.
                    first_member = next(self._members(array), None)
                    if first_member is not None:
                        record = job_of(array)
                        found.append((-effective(record), first_member, bucket, array, None, record))
            except Exception as fault:
                raise UndecidableShape(bucket.shape, repr(fault)) from fault
        return found

    def _members(self, array: JobId) -> Iterator[JobId]:
        """The lazy members of an array that may start, as far as its own limit says."""
        return islice(self.view.members(array), self.view.array_slots(array))

    def following(self, head: _Head) -> _Head | None:
        """Return the next of the queue of which `head` was taken."""
        _, _, bucket, array, ids, _ = head
        if ids is None:
            ids = islice(self._members(array) if array else bucket.jobs, 1, None)
        job_id = next(ids, None)
        if job_id is None:
            return None
        record = self.view.job(array or job_id)
        return -self.effective(record), job_id, bucket, array, ids, record

    def priority(self, job: Job) -> Priority:
        """Return the parts of a job's effective priority (O1)."""
        return Priority(job.spec.priority, self._aging(job), self.fair_share.term(job.spec.tenant))

    def effective(self, job: Job) -> int:
        """Return the sum of the parts."""
        # A pass asks for ten thousand; hence no calls, and no look at a policy.
        spec, since = job.spec, job.submitted_at
        begin = spec.begin
        gained = (self._now - (since if since > begin else begin)) * self._per_hour // HOUR_MS
        if gained > self._most:
            gained = self._most
        elif gained < 0:
            gained = 0
        term = self._terms.get(spec.tenant)
        return spec.priority + gained + (self.fair_share.term(spec.tenant) if term is None else term)

    def _aging(self, job: Job) -> int:
        return self.effective(job) - job.spec.priority - self.fair_share.term(job.spec.tenant)


def _highest_first(tier: BucketTier) -> int:
    return -tier.most


def narrowed(tiers: Iterable[BucketTier], shapes: Collection[Shape]) -> Sequence[BucketTier]:
    """Return the buckets that have one of these shapes, by base priority too.

    Naive: bring them into order anew. But most have come up before, so that the first of each is known.
    """
    found = []
    for tier in tiers:
        heads = [head for head in tier.heads if head[2].shape in shapes]
        rest = [bucket for bucket in tier.rest if bucket.shape in shapes]
        if heads or rest:
            found.append(BucketTier(tier.most, rest, heads))
    return found


def tenants_of(buckets: Iterable[Bucket]) -> Iterable[TenantName]:
    """Return the tenants of these jobs."""
    return dict.fromkeys([bucket.shape.tenant for bucket in buckets])


def in_order(
    order: QueueOrder,
    tiers: Sequence[BucketTier],
    blocked: Container[Shape],
    among: Callable[[], SomeShapes] = lambda: EVERY_SHAPE,
) -> Iterator[Candidate]:
    """Yield the waiting jobs one by one. `blocked` is read anew at each step, so a caller may add to it on the way.

    `among` returns shapes that may still come up, all that are not blocked and more, and another object once they are
    fewer: asked at each base priority, and where many blocked ones follow each other, it saves the steps of those that
    don't.

    Naive: bring the first of all buckets into order. But a pass often wants the first few alone, of a queue of ten
    thousand shapes, and goes through it round by round. So buckets of a lower priority are looked at once nothing
    above could come after them, and the order of the first of each stays as it was found.
    """
    heads: list[_Head] = []
    """The first of each queue that hasn't come up, the very first last."""
    behind: list[_Head] = []
    """Those behind what came up, as a heap."""
    at, tier_key = 0, _BEYOND if not tiers else -tiers[0].most
    hidden, chosen_from = 0, among()
    """How many blocked ones came in a row, and what all heads were chosen from at the earliest."""
    while True:
        is_behind = bool(behind) and (not heads or behind[0] < heads[-1])
        head = behind[0] if is_behind else heads[-1] if heads else None
        if at < len(tiers) and (head is None or head[0] >= tier_key):
            new = order.heads_of(tiers[at], among())
            # Two ordered runs, which costs a step per entry.
            heads = sorted(heads + new, reverse=True) if heads else new
            at += 1
            tier_key = _BEYOND if at == len(tiers) else -tiers[at].most
            continue
        if head is None:
            return
        _, job, bucket, array, _, record = head
        shape, following = bucket.shape, None
        if shape not in blocked:
            yield Candidate(job, shape, array or record.array_of, array != _NO_ARRAY, record)
            following, hidden = order.following(head), 0
        elif hidden == _HIDDEN_MAX and chosen_from is not among():
            hidden, chosen_from = 0, among()
            heads = [each for each in heads if each[2].shape in chosen_from] if chosen_from else []
            continue
        else:
            hidden = min(_HIDDEN_MAX, hidden + 1)
        if not is_behind:
            heads.pop()
            if following is not None:
                heappush(behind, following)
        elif following is not None:
            heapreplace(behind, following)
        else:
            heappop(behind)


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
