"""Reasons for which jobs wait or are ending: of one job, and counted over the queue.

The last plan says what is short for each shape; holds, delays, dependencies, limits and stops are read from the state.

Rules: Y1  the counts by reason add up to the jobs and members that wait
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, takewhile
from typing import Final, assert_never

from stoker.brain.domain.demand import Shape
from stoker.brain.domain.dependency import Dependency, DependencyKind
from stoker.brain.domain.errors import Facts
from stoker.brain.domain.job import Attempt, EndCause, Job, StopCause
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.preemption import gone_by
from stoker.brain.domain.reason import SHORT, Reason, ReasonCode
from stoker.brain.domain.units import NEVER, counted, human_duration, utc_text
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.dependencies import open_conditions, target_of
from stoker.brain.state.leases import silence_of

PlannedReason = Callable[[Shape], Reason]
"""What the last plan says of jobs of a shape that wait for nothing else."""

DEPENDENCIES_SHOWN_MAX: Final = 8
"""Of a job that waits for many, the first are named."""

WAIT_CODES: Final = tuple(takewhile(lambda code: code is not ReasonCode.NODE_SILENT, ReasonCode))
"""Every code for which a job waits, in the order in which they are shown."""

_NAME_SHOWN_MAX: Final = 40
"""Letters of a name that a reason repeats."""
_UNTIL: Final = {
    DependencyKind.OK: "to succeed",
    DependencyKind.ANY: "to end",
    DependencyKind.NOT_OK: "to fail",
    DependencyKind.AFTER: "to start",
}
_WAITING: Final = (JobState.PENDING, JobState.HELD)


def wait_reason(state: ClusterState, job: Job, planned: PlannedReason) -> Reason:
    """Return why a pending or held job or array waits."""
    if job.state is JobState.HELD:
        return _held(job)
    if job.blocked:
        return _dependency(state, job)
    if job.not_before != NEVER and job.reason is not None:
        return job.reason
    return _array_limit(state, job) or _quota_limit(state, job.spec.shape, planned) or planned(job.spec.shape)


def _held(job: Job) -> Reason:
    by, at = job.held_by, job.held_at
    if not by and job.spec.hold:
        by, at = job.by, job.submitted_at
    since: Facts = {"since": utc_text(at), "since_ms": at} if at != NEVER else {}
    return Reason(ReasonCode.HELD, {"by": by, **since})


def _dependency(state: ClusterState, job: Job) -> Reason:
    """Return what it still waits for, with the states of those jobs, and their names where they are the same person's.

    Whoever may see the names of this job's owner may see both; a job of somebody else is named by its id alone.
    """
    waits = list(islice(open_conditions(job), DEPENDENCIES_SHOWN_MAX))
    more = len(job.spec.after) - len(job.met) - len(waits)
    told = [_waited_for(state, job, each) for each in waits] + [f"{counted(more, 'more job')}"] * (more > 0)
    first = waits[0] if waits else job.spec.after[0]
    named = str(first).partition(":")[2]
    facts: Facts = {"waits": ", ".join(map(str, job.spec.after[:DEPENDENCIES_SHOWN_MAX]))}
    return Reason(ReasonCode.DEPENDENCY, {**facts, "jobs": ", ".join(told), "job": named})


def _waited_for(state: ClusterState, job: Job, condition: Dependency) -> str:
    target = target_of(condition, state.jobs)
    label = str(condition).partition(":")[2]
    if target is None:
        return f"job {label} {_UNTIL[condition.kind]}"
    same = (target.account, target.spec.tenant) == (job.account, job.spec.tenant)
    name = f" {target.spec.name[:_NAME_SHOWN_MAX]}" if same and target.spec.name else ""
    return f"job {label}{name} ({state.shown_state(target)}) {_UNTIL[condition.kind]}"


def shown_reason(state: ClusterState, job: Job, planned: PlannedReason) -> Reason | None:
    """Return why a job waits or why it ended, of an array why its members wait.

    None for a job that runs, unless its node is silent or it was told to end.
    """
    if _waits(state, job):
        return wait_reason(state, job, planned)
    if job.is_final or job.members is not None:
        return job.reason
    return silence_of(state, job) or _ending(state, job)


def _ending(state: ClusterState, job: Job) -> Reason | None:
    """Return why the attempt of a job is ending, for whom, and until when at the latest; None = nobody told it to."""
    attempt = job.live_attempt
    stop = attempt.stop if attempt is not None else None
    if attempt is None or stop is None:
        return None
    until = gone_by(job, state.policy)
    facts: Facts = {"cause": stop.cause.value, "until": utc_text(until), "until_ms": until}
    match stop.cause:
        case StopCause.PREEMPTED | StopCause.RECLAIMED:
            facts |= {"job": stop.for_label}
        case StopCause.CANCELLED | StopCause.REQUEUED:
            facts |= {"by": stop.by} | ({"hold": True} if stop.hold else {})
        case StopCause.TIMEOUT:
            facts |= {"limit": human_duration(job.spec.time_limit_ms)}
        case StopCause.GPU_FAILED:
            facts |= {"error": stop.error}
        case StopCause.MEMBER_ENDED:
            facts |= _first_ended(attempt)
        case _:
            assert_never(stop.cause)
    return Reason(ReasonCode.ENDING, facts)


def _first_ended(attempt: Attempt) -> Facts:
    """Facts about the rank that ended first, other than well."""
    failed = [(task.end.at, task.placement.rank, task) for task in attempt.tasks if task.end and not task.end.clean]
    if not failed:
        return {}
    _, rank, task = min(failed, key=lambda each: each[:2])
    end = task.end
    assert end is not None, "only ended tasks are compared"
    how = f"by signal {end.signal}" if end.signal else f"with code {end.exit_code}"
    if end.oom:
        how = "out of memory"
    elif end.cause is not EndCause.EXITED:
        how = end.cause.value.replace("_", " ")
    return {"rank": rank, "node": task.placement.node, "how": f"rank {rank} on {task.placement.node}, {how}"}


def _waits(state: ClusterState, job: Job) -> bool:
    if job.members is None or job.is_final:
        return job.state in _WAITING
    return bool(job.members.waiting) or any(each in state.indexes.arrays[job.id].states for each in _WAITING)


def _quota_limit(state: ClusterState, shape: Shape, planned: PlannedReason) -> Reason | None:
    """A limit that would keep it waiting if GPUs were free. The plan doesn't ask when none are."""
    if planned(shape).code not in SHORT or not (state.indexes.usage_ledger.limited or state.pools.strict):
        return None
    return state.wall(shape)


def _array_limit(state: ClusterState, job: Job) -> Reason | None:
    """Of an array, or a member, that the limit of its array keeps waiting."""
    array, arrays = state.jobs.get(job.array_of or job.id), state.indexes.arrays
    if array is None or array.members is None or array.spec.array is None or arrays.slots_left(array) != 0:
        return None
    running = arrays[array.id].live
    return Reason(ReasonCode.ARRAY_LIMIT, {"running": running, "running_max": array.spec.array.running_max})


def waiting_by_reason(state: ClusterState, planned: PlannedReason) -> Iterator[Mapping[ReasonCode, int]]:
    """Yield the counts so far of jobs and members of arrays that wait, after each step; the last are complete (Y1).

    A step is a shape, a delayed job or an array, never each job of the queue: a hundred thousand jobs of a thousand
    shapes take a thousand steps. The state may change between two steps; what remains waits for another job.
    """
    counts: Counter[ReasonCode] = Counter({ReasonCode.HELD: len(state.indexes.by_state[JobState.HELD])})
    for (_, shape, _), ids in list(state.indexes.waiting.items()):
        counts[planned(shape).code] += len(ids)
        yield counts
    for _, job_id in list(state.indexes.delayed.entries):
        job = state.jobs.get(job_id)
        if job is not None:
            counts[_delay(job)] += 1
        yield counts
    for array_id in list(state.indexes.arrays):
        array = state.jobs.get(array_id)
        if array is not None and array.members is not None and not array.is_final:
            _count_members(state, array, array.members.waiting, planned, counts)
        yield counts
    counts[ReasonCode.DEPENDENCY] += max(0, state.indexes.pending_count - sum(counts.values()))
    yield {code: max(0, counts[code]) for code in (*WAIT_CODES, *sorted(set(counts) - set(WAIT_CODES)))}


def _count_members(
    state: ClusterState, array: Job, waiting: int, planned: PlannedReason, counts: Counter[ReasonCode]
) -> None:
    """Count an array, which was counted as one job while it is held or delayed, as its members that wait."""
    held = array.state is JobState.HELD
    if held and state.shown_state(array) is JobState.HELD:
        counts[ReasonCode.HELD] -= 1
    elif not held and array.not_before != NEVER:
        counts[_delay(array)] -= 1
    if waiting:
        counts[wait_reason(state, array, planned).code] += waiting


def _delay(job: Job) -> ReasonCode:
    return ReasonCode.RETRY_BACKOFF if job.reason is None else job.reason.code
