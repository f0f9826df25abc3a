"""What has fallen due?

Time limits, pauses that are over, and ended jobs beyond what the state remembers. `Indexes.next_deadline` says when
to ask again.
"""

from typing import Final

from stoker.brain.domain.job import StopCause
from stoker.brain.domain.units import Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events.job import AttemptStopping, JobEvent, JobsEligible, JobsPruned

DUE_MAX: Final = 1_000
"""Jobs of each kind handled by one command; the rest are still due and come with the next."""


def run(state: ClusterState, now: Instant) -> tuple[JobEvent, ...]:
    indexes = state.indexes
    events: list[JobEvent] = [
        AttemptStopping(job=job, attempt=state.jobs[job].attempts[-1].number, cause=StopCause.TIMEOUT)
        for job in indexes.limits.due(now)[:DUE_MAX]
    ]
    eligible = indexes.delayed.due(now)[:DUE_MAX]
    if eligible:
        events.append(JobsEligible(jobs=tuple(eligible)))
    surplus = len(indexes.ended) - state.policy.ended_jobs_max
    if surplus > 0:
        events.append(JobsPruned(jobs=tuple(job for _, job in indexes.ended.entries[: min(surplus, DUE_MAX)])))
    return tuple(events)
