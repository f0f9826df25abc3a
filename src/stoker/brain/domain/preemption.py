"""Preemption and reclaim: which running attempts may be stopped for another job, and how long that takes.

Engine and admission ask here alike, so that a plan proposes no victim that admission would spare.

Rules: V1  a victim's job is requeued, so one that may not be requeued is never a victim
       V2  a job that was preempted `preemptions_max` times is a victim no more, so that it ends at some time
       V3  a preemption takes only from jobs that said they are preemptible, and only for a strictly higher base
           priority; a reclaim takes from whoever borrowed, for it is of what was never theirs
       V4  an attempt that ends already, or was told to, is no victim: what it holds comes free anyway
       V5  the warning before the terminate signal takes at most `preempt_notice_max_ms`, whatever lead the job asked
           for, so that one job can't keep another waiting for ever
"""

from typing import Final

from stoker.brain.domain.job import Job, JobSpec, StopCause
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import NEVER, Instant, later

TAKEN_BACK: Final = (StopCause.PREEMPTED, StopCause.RECLAIMED)
"""Causes of a stop by which a job loses its GPUs to another one."""


def spared_because(victim: Job, cause: StopCause, priority: int, policy: Policy) -> str:
    """Return why a job is no victim for one of this base priority, in words; empty = it may be one (V1 to V4)."""
    assert cause in TAKEN_BACK, f"nobody gives way because of {cause}"
    attempt = victim.live_attempt
    if attempt is None or attempt.stop is not None or victim.state is JobState.STOPPING:
        return "holds nothing that is not coming free anyway"
    if not victim.spec.requeue:
        return "may not be requeued"
    if victim.preemptions >= policy.preemptions_max:
        return f"was preempted {victim.preemptions} times, the most of one job"
    if cause is StopCause.PREEMPTED and not victim.spec.preemptible:
        return "is not preemptible"
    if cause is StopCause.PREEMPTED and victim.spec.priority >= priority:
        return f"has priority {victim.spec.priority}, not less than {priority}"
    return ""


def may_claim(before: Job | None, job: Job) -> bool:
    """Return whether a claim of `job` still stands after it changed: it may start, and is as it was judged."""
    if job.state is not JobState.PENDING or job.blocked or job.not_before != NEVER:
        return False
    return before is None or (before.spec.shape, before.spec.priority) == (job.spec.shape, job.spec.priority)


def lead_ms(spec: JobSpec, cause: StopCause | None, policy: Policy) -> int:
    """Return how long before the terminate signal of a stop the job is warned, in milliseconds (V5)."""
    return min(spec.warn.lead_ms, policy.preempt_notice_max_ms) if spec.warn and cause in TAKEN_BACK else 0


def notice_ms(spec: JobSpec, cause: StopCause | None, policy: Policy) -> int:
    """Return how long a stop leaves a job before the kill signal: its warning and its grace, in milliseconds."""
    return lead_ms(spec, cause, policy) + policy.stop_grace_ms


def gone_by(job: Job, policy: Policy) -> Instant:
    """Return when a stopped job's live attempt is gone at the latest if its nodes answer; NEVER = it isn't stopped."""
    attempt = job.live_attempt
    if attempt is None or attempt.stop is None:
        return NEVER
    return later(attempt.stop.at, notice_ms(job.spec, attempt.stop.cause, policy))
