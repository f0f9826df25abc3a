"""Admission of what falls due by time: limits, back-offs, pauses of nodes, dependencies, ends of arrays, pruning.

`Indexes.next_deadline` says when something falls due next.

Rules: R1  an array ends when all of its members have: `succeeded` if all of them did, `cancelled` if all that didn't
           were, else `failed`
       R2  a job whose dependency can never be met ends at once; of an array the members that are records end first
       R3  nothing is forgotten while a decision that needs it is still due
       R4  that a time limit is near is said once, unless the job is given another one; of what has passed it nothing is
       R5  the same holds for the notice that a job wished for itself, so long before its limit as it said
"""

from collections.abc import Iterator, Sequence, Set
from typing import Final

from stoker.brain.domain.dependency import Verdict
from stoker.brain.domain.errors import Facts
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job, StopCause
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.units import Instant, later
from stoker.brain.state.arrays import member_counts
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.dependencies import never_because
from stoker.brain.state.events.job import (
    AttemptStopping,
    AttemptWarned,
    DependenciesMet,
    JobEvent,
    JobFinished,
    JobsEligible,
    JobsPruned,
    TimeLimitNear,
)
from stoker.brain.state.events.node import NodePauseOver
from stoker.brain.state.events.union import Event

DUE_MAX: Final = 250
"""Jobs of each kind handled by one command: about ten milliseconds. The rest stay due for the next command."""


def run(state: ClusterState, now: Instant) -> tuple[Event, ...]:
    """Return the events of everything that is due at `now`, at most DUE_MAX jobs of each kind."""
    indexes = state.indexes
    paused = [node for node, until in indexes.paused.items() if until <= now]
    events: list[Event] = [NodePauseOver(node=node) for node in sorted(paused)[:DUE_MAX]]
    unmoved = later(now, -state.clock_moved_ms)
    over = indexes.limits.due(unmoved)
    events += [
        AttemptStopping(job=job, attempt=state.jobs[job].attempts[-1].number, cause=StopCause.TIMEOUT)
        for job in over[:DUE_MAX]
    ]
    events += _near(state, indexes.warnings.due(unmoved), frozenset(over), TimeLimitNear)
    events += _near(state, indexes.signals.due(unmoved), frozenset(over), AttemptWarned)
    eligible = indexes.delayed.due(now)[:DUE_MAX]
    if eligible:
        events.append(JobsEligible(jobs=tuple(eligible)))
    decided = _dependencies(state)
    never = {event.job for event in decided if isinstance(event, JobFinished)}  # nothing ends twice
    ended = [_array_over(state, state.jobs[array]) for array in sorted(indexes.over)[:DUE_MAX] if array not in never]
    events.extend((*decided, *ended))
    if not decided and not ended:  # R3
        pruned = _surplus(state)
        if pruned:
            events.append(JobsPruned(jobs=pruned))
    return tuple(events)


def _near(
    state: ClusterState, due: Sequence[JobId], over: Set[JobId], kind: type[TimeLimitNear] | type[AttemptWarned]
) -> Iterator[TimeLimitNear | AttemptWarned]:
    """Yield the warnings of one kind before a time limit that are due (R4, R5)."""
    for job in [state.jobs[each] for each in due if each not in over][:DUE_MAX]:
        attempt, limit_ms = job.attempts[-1], job.spec.time_limit_ms
        ends_at = later(attempt.began_at, limit_ms - attempt.clock_moved_ms + state.clock_moved_ms)
        yield kind(job=job.id, attempt=attempt.number, limit_ms=limit_ms, ends_at=ends_at)


def _surplus(state: ClusterState) -> tuple[JobId, ...]:
    """Return the oldest ended jobs, which are more than may be kept or take more memory."""
    indexes, policy = state.indexes, state.policy
    jobs, size = len(indexes.ended) - policy.ended_jobs_max, indexes.ended_bytes - policy.ended_bytes_max
    pruned: list[JobId] = []
    for _, job in indexes.ended.entries[:DUE_MAX]:
        if len(pruned) >= jobs and size <= 0:
            break
        pruned.append(job)
        size -= state.jobs[job].spec.memory_bytes
    return tuple(pruned)


def _dependencies(state: ClusterState) -> list[JobEvent]:
    decided = state.indexes.dependents.decided
    due = sorted(decided)[:DUE_MAX]
    met = tuple(job for job in due if decided[job] is Verdict.MET)
    events: list[JobEvent] = [DependenciesMet(jobs=met)] if met else []
    for job_id in due:
        if decided[job_id] is Verdict.NEVER:
            job = state.jobs[job_id]
            if job.members is None or not state.indexes.arrays[job_id].open:  # R2
                events.append(_never(state, job))
    return events


def _never(state: ClusterState, job: Job) -> JobFinished:
    dependency, why = never_because(job, state.jobs)
    reason = Reason(ReasonCode.DEPENDENCY_NEVER_SATISFIED, {"dependency": str(dependency), "why": why})
    return JobFinished(job=job.id, state=JobState.FAILED, reason=reason)


def _array_over(state: ClusterState, array: Job) -> JobFinished:
    counts = member_counts(array, state.indexes.arrays[array.id])
    succeeded, cancelled = counts.get(JobState.SUCCEEDED, 0), counts.get(JobState.CANCELLED, 0)
    others = sum(counts.values()) - succeeded
    ended = JobState.FAILED if cancelled < others else JobState.CANCELLED if others else JobState.SUCCEEDED
    facts: Facts = {"succeeded": succeeded, "failed": others - cancelled, "cancelled": cancelled, "others": others}
    return JobFinished(job=array.id, state=ended, reason=Reason(ReasonCode.MEMBERS_ENDED, facts))
