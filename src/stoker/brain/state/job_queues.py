"""Queues of jobs in ascending order: those that may be placed, and those by the time at which something is due.

Part of the indexes of the state: derived from the records of jobs, and the same whatever their history was.
"""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from stoker.brain.domain.demand import Shape
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.view import Bucket

QueueKey = tuple[int, Shape, Instant]
"""Base priority, shape, and the time to begin of who was told one: so that in each queue ids come in order of age."""

_Entry = TypeVar("_Entry", JobId, tuple[Instant, JobId])


@dataclass(slots=True)
class Ascending(Generic[_Entry]):
    """Entries in ascending order. Most arrive at the end and leave at the front, which a plain list does well."""

    entries: list[_Entry] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, entry: _Entry) -> None:
        if not self.entries or entry > self.entries[-1]:
            self.entries.append(entry)
        else:
            insort(self.entries, entry)

    def remove(self, entry: _Entry) -> None:
        at = bisect_left(self.entries, entry)
        assert self.entries[at : at + 1] == [entry], f"{entry} is not in this index"
        del self.entries[at]


class Agenda(Ascending[tuple[Instant, JobId]]):
    """Jobs by the time at which they are due, earliest first."""

    __slots__ = ()

    def head(self) -> Instant | None:
        return self.entries[0][0] if self.entries else None

    def due(self, now: Instant) -> list[JobId]:
        """Return the jobs that are due at `now` or were before."""
        return [job for _, job in self.entries[: bisect_right(self.entries, now, key=_at)]]


def _at(entry: tuple[Instant, JobId]) -> Instant:
    return entry[0]


class JobQueue(Ascending[JobId]):
    """Jobs, or arrays, of one key."""

    __slots__ = ("bucket",)

    def __init__(self, key: QueueKey, *, arrays: bool) -> None:
        super().__init__()
        priority, shape, _ = key
        # Made once and good for ever, since `entries` change in place: to make ten thousand in each pass takes 4 ms.
        self.bucket = Bucket(priority, shape, (), self.entries) if arrays else Bucket(priority, shape, self.entries)


Queues = dict[QueueKey, JobQueue]


def requeue(queues: Queues, job: JobId, was: QueueKey | None, now: QueueKey | None, *, arrays: bool = False) -> None:
    """Move a job from the queue of one key into that of another; None = it stands, or is to stand, in none."""
    if was == now:
        return
    if was:
        queues[was].remove(job)
        if not queues[was].entries:
            del queues[was]
    if now:
        queue = queues.get(now)
        if queue is None:
            queue = queues[now] = JobQueue(now, arrays=arrays)
        queue.add(job)


def queue_key(job: Job | None) -> QueueKey | None:
    """Return the queue in which a job may be placed; None = it may not be now."""
    if job is None or job.state is not JobState.PENDING or job.not_before != NEVER or job.blocked:
        return None
    spec = job.spec
    return spec.priority, spec.shape, spec.begin if spec.begin > job.submitted_at else NEVER
