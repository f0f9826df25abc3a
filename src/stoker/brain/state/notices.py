"""Notifications that are due, by tenant and time, so that the next one is found without a look at every job.

Derived from the records of jobs and arrays. Jobs that nobody wants to be told of cost one comparison.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping

from stoker.brain.domain.array import Members
from stoker.brain.domain.ids import JobId, TenantName
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import FAILED, LIVE, JobState
from stoker.brain.domain.notify import JobTimes, NoticeState, NotifyEvent, next_due
from stoker.brain.domain.units import Instant
from stoker.brain.state.arrays import Tallies, Tally

_Entry = tuple[Instant, JobId]


def due_of(job: Job, tallies: Tallies) -> tuple[Instant, NotifyEvent, str] | None:
    """Return what is to be told of a job next: when, the event and the target. Members are told of by their array."""
    notify = job.spec.notify
    if notify is None or job.array_of:
        return None
    failing, state = False, job.state
    if job.members is not None:
        tally = tallies.get(job.id, Tally())
        failing = _member_failed(job.members, tally)
        state = JobState.RUNNING if not job.is_final and any(map(tally.states.get, LIVE)) else job.state
    moments = JobTimes(
        state=state,
        submitted_at=job.submitted_at,
        begin=job.spec.begin,
        started_at=job.started_at,
        ended_at=job.ended_at,
        is_array=job.members is not None,
        member_failed=failing,
    )
    return next_due(notify, job.notices, moments)


def _member_failed(members: Members, tally: Tally) -> bool:
    return members.pruned_bad > members.pruned_cancelled or any(state in FAILED for state in tally.states)


class DueNotices:
    """Jobs by tenant and by the time at which somebody is to be told of them."""

    def __init__(self, jobs: Mapping[JobId, Job], tallies: Tallies) -> None:
        self._jobs = jobs
        self._tallies = tallies
        self._entries: dict[TenantName, list[_Entry]] = {}
        self._at: dict[JobId, tuple[TenantName, Instant]] = {}
        self.trying: dict[JobId, None] = {}
        """Jobs of which something was tried that isn't settled."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DueNotices) and (self._at, self.trying) == (other._at, other.trying)

    __hash__ = None  # type: ignore[assignment]  # mutable, so it has no hash

    def job_changed(self, old: Job | None, new: Job | None) -> None:
        """Follow one job record being replaced, made (old None) or dropped (new None)."""
        job = new or old
        assert job is not None, "a change has a before or an after"
        if job.spec.notify is None and (old is None or old.spec.notify is None):
            return
        self._follow(self._jobs.get(job.array_of) if job.array_of else new, job.array_of or job.id)

    def _follow(self, job: Job | None, job_id: JobId) -> None:
        due = due_of(job, self._tallies) if job else None
        before = self._at.pop(job_id, None)
        if before is not None:
            entries = self._entries[before[0]]
            del entries[bisect_left(entries, (before[1], job_id))]
            if not entries:
                del self._entries[before[0]]
        if job is not None and due is not None:
            tenant = job.spec.tenant
            self._at[job_id] = tenant, due[0]
            insort(self._entries.setdefault(tenant, []), (due[0], job_id))
        if job is not None and any(notice.state is NoticeState.TRYING for notice in job.notices):
            self.trying[job_id] = None
        else:
            self.trying.pop(job_id, None)

    def next_at(self) -> Instant | None:
        """Return when the next one is due; None = none is foreseen. It costs a step for each tenant with any."""
        return min((entries[0][0] for entries in self._entries.values()), default=None)

    def due(self, now: Instant, each_max: int) -> Iterator[tuple[TenantName, list[JobId], int]]:
        """Yield each tenant with at most `each_max` jobs that are due, earliest first, and how many are in all."""
        for tenant in sorted(self._entries):
            entries = self._entries[tenant]
            count = bisect_right(entries, now, key=_at)
            if count:
                yield tenant, [job for _, job in entries[: min(count, each_max)]], count

    def latest_due(self, tenant: TenantName, now: Instant, beyond: int, most: int) -> list[JobId]:
        """Return at most `most` of the jobs of a tenant that are due beyond the first `beyond`."""
        entries = self._entries.get(tenant, [])
        return [job for _, job in entries[beyond : min(bisect_right(entries, now, key=_at), beyond + most)]]


def _at(entry: _Entry) -> Instant:
    return entry[0]
