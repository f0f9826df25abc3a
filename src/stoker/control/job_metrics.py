"""Metrics of jobs: counts of those submitted, placed and ended, and how long they waited.

Counted from durable facts, so a meter never shows what a crash could take back. Names and labels are the seeds'. A
member of an array counts as a job wherever jobs are counted; the array itself doesn't.

Rules: C1  `priority` is a word: that of the highest band that a job reaches, so that there are four series and no more
       C2  a job is eligible from its submit, or from when its begin time, its dependencies, a person or a pause let
           it go on; scheduling latency counts from there to its placement, admission wait from the submit to the
           first placement
Limits: when a job became eligible is remembered for `eligible_max` waiting jobs; of one beyond it the latency counts
        from its submit or its last end.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from stoker.brain.domain.array import count_of
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job, JobSpec
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.preemption import TAKEN_BACK
from stoker.brain.domain.units import NEVER, SECOND_MS, Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact
from stoker.brain.state.events.job import JobFinished, JobPlaced
from stoker.brain.state.events.row import JobMetric
from stoker.brain.state.events.union import row_of
from stoker.control.feed import Entry
from stoker.ports import Telemetry
from stoker.wire.text import PRIORITY_WORDS

ELIGIBLE_MAX: Final = 100_000

_LOWEST: Final = next(iter(PRIORITY_WORDS))
_DESCENDING: Final = tuple(reversed(PRIORITY_WORDS.items()))


def band_word(priority: int) -> str:
    """Return the word for the highest band that a priority reaches (C1)."""
    return next((word for word, least in _DESCENDING if priority >= least), _LOWEST)


class _Count(NamedTuple):
    """Counter of this name, under its one label."""

    name: str
    label: str


class JobMeters:
    """Listener of the writer that counts jobs and measures their waits."""

    def __init__(self, state: ClusterState, telemetry: Telemetry, *, eligible_max: int = ELIGIBLE_MAX) -> None:
        self._state = state
        self._telemetry = telemetry
        self._eligible_max = eligible_max
        self._eligible: dict[JobId, Instant] = {}

    def committed(self, entries: Sequence[Entry]) -> None:
        counts: Counter[_Count] = Counter()
        for _, fact in entries:
            self._take(fact, counts)
        submitted = 0
        for (name, label), count in counts.items():
            if name == "task_submitted":
                submitted += count
                self._telemetry.count("task_submitted", count, priority=label)
            elif name == "task_scheduled":
                self._telemetry.count("task_scheduled", count, priority=label)
            elif count:
                self._telemetry.count("task_finished", count, status=label)
        if submitted:
            self._telemetry.count("jobs", submitted)

    def _take(self, fact: Fact, counts: Counter[_Count]) -> None:
        event: Any = fact.event  # fields as its metric says
        match row_of(fact.event).metric:
            case None:
                pass
            case JobMetric.SUBMITTED:
                spec: JobSpec = event.spec
                counts[_Count("task_submitted", band_word(spec.priority))] += spec.array.count if spec.array else 1
            case JobMetric.PLACED:
                self._placed(event, fact.at, counts)
            case JobMetric.STOPPING:
                if event.cause in TAKEN_BACK:
                    self._telemetry.count("preemptions", cause=event.cause)
            case JobMetric.FINISHED:
                self._eligible.pop(event.job, None)
                counts[_Count("task_finished", event.state)] += self._ended(event)
            case JobMetric.MEMBERS_CANCELLED:
                counts[_Count("task_finished", JobState.CANCELLED)] += count_of(event.indexes)
            case JobMetric.ELIGIBLE:
                if getattr(event, "not_before", NEVER) == NEVER:
                    self._let_go(getattr(event, "jobs", None) or (event.job,), fact.at)

    def _placed(self, event: JobPlaced, at: Instant, counts: Counter[_Count]) -> None:
        job = self._state.jobs.get(event.job)
        if job is None:
            return  # ended and forgotten since
        band = band_word(job.spec.priority)
        counts[_Count("task_scheduled", band)] += 1
        latency_s = max(0, at - self._eligible_since(job, event.attempt)) / SECOND_MS
        self._telemetry.observe("scheduling_latency", latency_s, priority=band)
        if event.attempt == 1:
            wait_s = max(0, at - job.submitted_at) / SECOND_MS
            self._telemetry.observe("admission_wait", wait_s, priority=band)

    def _eligible_since(self, job: Job, attempt: int) -> Instant:
        """Return since when a job was eligible; an array's members become so with it (C2)."""
        let_go = max(self._eligible.pop(job.id, NEVER), self._eligible.get(job.array_of, NEVER))
        if let_go == NEVER and attempt > job.attempts_before + 1:
            return job.attempt(attempt - 1).ended_at
        return max(job.submitted_at, job.spec.begin, let_go)

    def _ended(self, event: JobFinished) -> int:
        """Return how many jobs ended: of an array those of its members that never became records."""
        job = self._state.jobs.get(event.job)
        return 1 if job is None or job.members is None else job.members.waiting

    def _let_go(self, jobs: Sequence[JobId], at: Instant) -> None:
        for job in jobs:
            self._eligible.pop(job, None)  # to the end of the line
            self._eligible[job] = at
            if len(self._eligible) > self._eligible_max:
                del self._eligible[next(iter(self._eligible))]
