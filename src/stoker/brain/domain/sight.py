"""Sight: how much of a job somebody sees, and the record, reason and end as he sees them.

Rules: S1  reduced and outlined records are made anew of the fields named here, so a field that is added stays hidden
       S2  an outline says whose a job is, what it takes, where it runs and why it waits; not what it runs: its command,
           variables, folder, image, files and comment, the texts in which a failed start quotes them, and the address
           at which its tasks meet
"""

from enum import IntEnum
from typing import Final

from msgspec.structs import replace

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.ids import Principal
from stoker.brain.domain.job import Attempt, Job, JobSpec, TaskEnd
from stoker.brain.domain.reason import Reason, ReasonCode


class Sight(IntEnum):
    """Share of a job that somebody sees; each shows all that the one before shows."""

    REDUCED = 0
    """That it is there, and what it takes."""
    OUTLINE = 1
    """All but what it runs, and what it writes."""
    FULL = 2


_QUOTES: Final = {
    ReasonCode.START_FAILED: ("error", "only its owner may read why"),
    ReasonCode.NODE_FAILED: ("error", "only its owner may read why"),
    ReasonCode.REQUEUES_SPENT: ("error", "only its owner may read why"),
    ReasonCode.RETRY_BACKOFF: ("why", ""),
}
"""Reasons with a fact that quotes what a task said when it ended badly, and what stands there instead."""


def seen_job(job: Job, sight: Sight) -> Job:
    """Return the record that somebody sees."""
    match sight:
        case Sight.FULL:
            return job
        case Sight.OUTLINE:
            return _outlined_job(job)
        case Sight.REDUCED:
            return _reduced_job(job)


def _reduced_job(job: Job) -> Job:
    spec = job.spec
    seen = JobSpec(
        name="",
        demand=Demand(gpu_count=spec.demand.gpu_count, tasks=spec.demand.tasks),
        command="",
        priority=spec.priority,
        time_limit_ms=spec.time_limit_ms,
        tenant=spec.tenant,
        job_class=spec.job_class,
        array=spec.array,
        begin=spec.begin,
    )
    return Job(
        id=job.id,
        uid="",
        spec=seen,
        by=Principal(""),
        submitted_at=job.submitted_at,
        state=job.state,
        started_at=job.started_at,
        ended_at=job.ended_at,
        array_of=job.array_of,
        array_index=job.array_index,
        members=job.members,
    )


def _outlined_job(job: Job) -> Job:
    return Job(
        id=job.id,
        uid=job.uid,
        spec=outlined_spec(job.spec),
        by=job.by,
        submitted_at=job.submitted_at,
        state=job.state,
        reason=None if job.reason is None else outlined_reason(job.reason),
        attempts=tuple([_outlined_attempt(attempt) for attempt in job.attempts]),
        attempts_before=job.attempts_before,
        retries_used=job.retries_used,
        requeues_used=job.requeues_used,
        port_retries_used=job.port_retries_used,
        preemptions=job.preemptions,
        not_before=job.not_before,
        started_at=job.started_at,
        ended_at=job.ended_at,
        exit_code=job.exit_code,
        blocked=job.blocked,
        met=job.met,
        array_of=job.array_of,
        array_index=job.array_index,
        held_by=job.held_by,
        held_at=job.held_at,
        members=job.members,
    )


def outlined_spec(spec: JobSpec) -> JobSpec:
    """Return what an outline shows of a job as it was submitted."""
    return JobSpec(
        name=spec.name,
        demand=spec.demand,
        command="",
        priority=spec.priority,
        time_limit_ms=spec.time_limit_ms,
        tenant=spec.tenant,
        user=spec.user,
        job_class=spec.job_class,
        retries_max=spec.retries_max,
        requeue=spec.requeue,
        visible=spec.visible,
        owner=spec.owner,
        array=spec.array,
        after=spec.after,
        hold=spec.hold,
        begin=spec.begin,
        labels=spec.labels,
        where=spec.where,
        partition=spec.partition,
        lost_after_ms=spec.lost_after_ms,
        preemptible=spec.preemptible,
        checkpoint_ms=spec.checkpoint_ms,
        warn=spec.warn,
    )


def _outlined_attempt(attempt: Attempt) -> Attempt:
    return Attempt(
        number=attempt.number,
        epoch=attempt.epoch,
        tasks=tuple([replace(task, end=outlined_end(task.end)) if task.end else task for task in attempt.tasks]),
        placed_at=attempt.placed_at,
        lease_ms=attempt.lease_ms,
        started_at=attempt.started_at,
        clock_moved_ms=attempt.clock_moved_ms,
        warned_limit_ms=attempt.warned_limit_ms,
        signalled_limit_ms=attempt.signalled_limit_ms,
        stop=attempt.stop,
        outcome=attempt.outcome,
        ended_at=attempt.ended_at,
        exit_code=attempt.exit_code,
    )


def outlined_end(end: TaskEnd) -> TaskEnd:
    """Return what an outline shows of the end of a task."""
    return replace(end, error="")


def outlined_reason(reason: Reason) -> Reason:
    """Return what an outline shows of why a job waits or ended."""
    if reason.code not in _QUOTES:
        return reason
    fact, instead = _QUOTES[reason.code]
    return Reason(reason.code, {**reason.facts, fact: instead})
