"""Outcome of an attempt whose tasks end: a final state, a retry or a requeue.

The one place that decides outcomes, retries and requeues, used by every command that can end a task: an agent's
report, a compared inventory, a forgotten node.

Rules: E1  the outcome is that of what ended the attempt: our order if there was one, else the first task that failed
       E2  one failed task ends the gang: the others are told to stop
       E3  a retry follows a non-zero exit, a signal or a failed start, at most `retries_max` of the job's own wish; a
           job whose own terminal was closed is over
       E4  a requeue follows a lost node or runner, at most `requeues_max` of the policy, and costs no retry
       E5  a taken port costs neither, and has a bound of its own
       E6  cancel, time-out and out of memory are final
       E7  what exited had started, whether or not its start was reported: other ranks may wait for that
       E9  a start that its node could not make costs nothing, as long as the job has fewer than `attempts_max`
           attempts; the pause grows with each in a row. So a job that may not be requeued starts again too, if no part
           of the attempt can have run
       E8  a requeue that a person asked for costs nothing and has no bound; who asked for a hold as well finds the
           job held after it
       E11 what ended badly with a GPU that was found lost or with errors, or was stopped for that, was lost by its
           node, unless the policy lets jobs on such GPUs go on
       E10 an attempt whose GPUs were taken back is followed by another one, however it ended: the job keeps its
           priority and its place by submit time, and pays neither a retry nor a requeue
"""

from collections.abc import Mapping
from itertools import takewhile

from msgspec.structs import replace

from stoker.brain.domain.errors import Facts
from stoker.brain.domain.job import REFUSALS, Attempt, EndCause, Job, StopCause, StopRequest, Task, TaskEnd
from stoker.brain.domain.lifecycle import FINAL, JobState, Outcome
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import AWAITING_PASS, Reason, ReasonCode
from stoker.brain.domain.units import NEVER, Instant, human_duration, later, utc_text
from stoker.brain.state.events.job import AttemptStopping, JobEvent, JobFinished, JobRequeued, TaskEnded, TaskStarted

_OUTCOMES: Mapping[EndCause, Outcome] = {
    EndCause.EXITED: Outcome.FAILED,
    EndCause.STOPPED: Outcome.NODE_FAILED,  # nobody here ordered it, so the node did, as `up` does when it ends
    EndCause.START_FAILED: Outcome.START_FAILED,
    EndCause.PORT_TAKEN: Outcome.PORT_TAKEN,
    EndCause.NEVER_STARTED: Outcome.NODE_FAILED,
    EndCause.ACCOUNT_REFUSED: Outcome.NODE_FAILED,
    EndCause.RUNNER_LOST: Outcome.NODE_FAILED,
    EndCause.NODE_REBOOTED: Outcome.NODE_FAILED,
    EndCause.GONE: Outcome.NODE_FAILED,
    EndCause.FORGOTTEN: Outcome.LOST,
    EndCause.LEASE_ENDED: Outcome.LOST,
    EndCause.SILENT: Outcome.LOST,
}
_STOPS: Mapping[StopCause, Outcome | None] = {
    StopCause.CANCELLED: Outcome.CANCELLED,
    StopCause.TIMEOUT: Outcome.TIMEOUT,
    StopCause.REQUEUED: Outcome.REQUEUED,
    StopCause.PREEMPTED: Outcome.PREEMPTED,
    StopCause.RECLAIMED: Outcome.PREEMPTED,
    StopCause.GPU_FAILED: Outcome.NODE_FAILED,
    StopCause.MEMBER_ENDED: None,  # the member that ended says what the outcome is
}
FINAL_STATES: Mapping[Outcome, JobState] = {
    **{outcome: JobState(outcome.value) for outcome in Outcome if outcome.value in FINAL},
    Outcome.START_FAILED: JobState.FAILED,
    Outcome.PORT_TAKEN: JobState.FAILED,
    Outcome.LOST: JobState.NODE_FAILED,
}
"""The state in which each outcome leaves a job that ends: mostly the one of its name. A requeued job doesn't end."""

_ERROR_SHOWN_MAX = 400
"""Characters of what ended an attempt that the reason of the wait for the next one repeats."""


def end_tasks(job: Job, ends: Mapping[int, TaskEnd], now: Instant, policy: Policy) -> tuple[JobEvent, ...]:
    """The events that follow when these ranks of the live attempt end; each must be open."""
    attempt = job.live_attempt
    assert attempt is not None, f"nothing is live: {job.story()}"
    tasks = list(attempt.tasks)
    events: list[JobEvent] = []
    for rank, end in ends.items():
        assert tasks[rank].end is None, f"rank {rank} ends twice: {job.story()}"
        if tasks[rank].started_at == NEVER and end.cause is EndCause.EXITED:
            # E7: the end of a short task may overtake the report of its start.
            tasks[rank] = replace(tasks[rank], started_at=now)
            events.append(TaskStarted(job=job.id, attempt=attempt.number, rank=rank))
        end = _in_its_time(tasks[rank], end, attempt, now)
        tasks[rank] = replace(tasks[rank], end=end)
        events.append(TaskEnded(job=job.id, attempt=attempt.number, rank=rank, end=end))
    attempt = replace(attempt, tasks=tuple(tasks))
    if attempt.open_tasks:
        if attempt.stop is None and any(not end.clean for end in ends.values()):
            events.append(AttemptStopping(job=job.id, attempt=attempt.number, cause=StopCause.MEMBER_ENDED))
        return tuple(events)
    return (*events, _settle_job(job, attempt, now, policy))


def _in_its_time(task: Task, end: TaskEnd, attempt: Attempt, now: Instant) -> TaskEnd:
    # The node's wall clock may be off; an end lies between its start and its report on our clock, and one that we hear
    # of after our order lies after that: else a clock that is behind would say that its task was the first to fail.
    ordered = attempt.stop.at + 1 if attempt.stop else NEVER
    earliest = max(task.started_at, attempt.placed_at, ordered)
    return replace(end, at=min(max(end.at, earliest), now))


def _settle_job(job: Job, attempt: Attempt, now: Instant, policy: Policy) -> JobEvent:
    decisive = _decisive(attempt)
    end = decisive.end
    assert end is not None, "an attempt is settled when all its tasks have ended"
    outcome = _outcome(attempt, end, policy)
    again = _next_try(job, attempt, outcome, end, now, policy)
    if again is not None:
        error = _error(attempt, end)
        why = f": {error[:_ERROR_SHOWN_MAX]}" if error else ""
        until: Facts = {"until": utc_text(again.not_before), "until_ms": again.not_before}
        facts: Facts = {"attempt": attempt.number, "outcome": outcome.value, "why": why, **until}
        reason = Reason(ReasonCode.RETRY_BACKOFF, facts)
        if outcome is Outcome.REQUEUED and attempt.stop:
            reason = Reason(ReasonCode.REQUEUED, {"by": attempt.stop.by})
        elif outcome is Outcome.PREEMPTED and attempt.stop:
            reason = _taken_back(attempt, attempt.stop)
        return replace(again, exit_code=end.exit_code, reason=reason)
    return JobFinished(
        job=job.id,
        state=FINAL_STATES[outcome],
        outcome=outcome,
        reason=_reason(job, attempt, outcome, decisive, policy),
        exit_code=end.exit_code,
    )


def _taken_back(attempt: Attempt, stop: StopRequest) -> Reason:
    """The reason of a job whose GPUs another one gets."""
    at: Facts = {"since": utc_text(stop.at), "since_ms": stop.at}
    return Reason(
        ReasonCode.PREEMPTED,
        {"job": stop.for_label, "cause": stop.cause.value, "attempt": attempt.number, **at},
    )


def _decisive(attempt: Attempt) -> Task:
    """The task that says how the attempt went: the first that failed by itself, else rank 0."""
    failed = [task for task in attempt.tasks if task.end and not task.end.clean]
    own = [task for task in failed if task.end and task.end.cause is not EndCause.STOPPED] or failed
    return min(own, key=_when_ended, default=attempt.tasks[0])


def _when_ended(task: Task) -> tuple[Instant, int]:
    assert task.end is not None, "only ended tasks are compared"
    return task.end.at, task.placement.rank


def _error(attempt: Attempt, end: TaskEnd) -> str:
    """Return what was lost, in words for people (E11)."""
    return (attempt.stop.error if attempt.stop else "") or end.gpu_fault or end.error


def _outcome(attempt: Attempt, end: TaskEnd, policy: Policy) -> Outcome:
    ordered = _STOPS[attempt.stop.cause] if attempt.stop else None
    if ordered:
        return ordered
    if end.clean:
        return Outcome.SUCCEEDED
    if end.oom:
        return Outcome.OUT_OF_MEMORY
    if end.gpu_fault and policy.gpu_faults_stop_jobs:
        return Outcome.NODE_FAILED
    return _OUTCOMES[end.cause]


def _next_try(
    job: Job, attempt: Attempt, outcome: Outcome, end: TaskEnd, now: Instant, policy: Policy
) -> JobRequeued | None:
    """The requeue that E3 to E10 grant after `outcome`, its reason still to be filled in. None = the job ends."""
    again = JobRequeued(
        job=job.id,
        outcome=outcome,
        reason=AWAITING_PASS,
        retries_used=job.retries_used,
        requeues_used=job.requeues_used,
        port_retries_used=job.port_retries_used,
        preemptions=job.preemptions,
    )
    match outcome:
        case Outcome.FAILED if end.hung_up:
            return None
        case Outcome.FAILED | Outcome.START_FAILED if job.retries_used < job.spec.retries_max:
            until = later(now, backoff_ms(job.retries_used, policy))
            return replace(again, retries_used=job.retries_used + 1, not_before=until)
        case Outcome.NODE_FAILED if _is_free(job, attempt, end.cause, policy):
            tries = sum(1 for _ in takewhile(_never_started, reversed(job.attempts[:-1])))
            return replace(again, not_before=later(now, backoff_ms(tries - 1, policy)) if tries else NEVER)
        case Outcome.NODE_FAILED | Outcome.LOST if job.spec.requeue and job.requeues_used < policy.requeues_max:
            # The first loss is the node's bad luck; a job lost again and again may be the cause of it.
            until = later(now, backoff_ms(job.requeues_used - 1, policy)) if job.requeues_used else NEVER
            return replace(again, requeues_used=job.requeues_used + 1, not_before=until)
        case Outcome.PORT_TAKEN if job.port_retries_used < policy.port_retries_max:
            return replace(again, port_retries_used=job.port_retries_used + 1)
        case Outcome.PREEMPTED:
            return replace(again, preemptions=job.preemptions + 1)
        case Outcome.REQUEUED:
            return replace(again, held=attempt.stop is not None and attempt.stop.hold)
        case _:
            return None


def _is_free(job: Job, attempt: Attempt, cause: EndCause, policy: Policy) -> bool:
    """Return whether a start that its node refused costs the job nothing (E9)."""
    may_start_again = job.spec.requeue or _nothing_ran(attempt)
    return cause in REFUSALS and may_start_again and len(job.attempts) < policy.attempts_max


def _nothing_ran(attempt: Attempt) -> bool:
    """Whether surely no rank had a process: of a gang with a rendezvous port the others wait for rank 0 to start."""
    refused = [_was_refused(task) for task in attempt.tasks]
    begun = any(task.started_at != NEVER for task in attempt.tasks)
    return not begun and (all(refused) or (refused[0] and attempt.master_port != 0))


def _never_started(attempt: Attempt) -> bool:
    return any(_was_refused(task) for task in attempt.tasks)


def _was_refused(task: Task) -> bool:
    return task.end is not None and task.end.was_refused


def backoff_ms(tries: int, policy: Policy) -> int:
    """The pause before the next try after `tries` earlier ones: doubles from the first to the longest."""
    return min(policy.backoff_first_ms << min(tries, 32), policy.backoff_max_ms)


def _reason(job: Job, attempt: Attempt, outcome: Outcome, task: Task, policy: Policy) -> Reason:
    end, node = task.end, task.placement.node
    assert end is not None, "an attempt is settled when all its tasks have ended"
    where: Facts = {"rank": task.placement.rank, "node": node}
    if len(attempt.tasks) > 1:
        where["tasks"] = len(attempt.tasks)
    match outcome:
        case Outcome.SUCCEEDED:
            return Reason(ReasonCode.EXITED, {"exit_code": 0})
        case Outcome.CANCELLED:
            return Reason(ReasonCode.CANCELLED, {"by": attempt.stop.by if attempt.stop else "?"})
        case Outcome.TIMEOUT:
            limit = job.spec.time_limit_ms
            return Reason(ReasonCode.TIME_LIMIT, {"limit": human_duration(limit), "limit_ms": limit})
        case Outcome.OUT_OF_MEMORY:
            used: Facts = {"limit_mb": task.placement.memory_mb or end.peak_memory_mb, "peak_mb": end.peak_memory_mb}
            return Reason(ReasonCode.OUT_OF_MEMORY, {**where, **used})
        case Outcome.START_FAILED:
            return Reason(ReasonCode.START_FAILED, {**where, "error": end.error or end.cause.value})
        case Outcome.PORT_TAKEN:
            ports: Facts = {"port_min": policy.port_min, "port_max": policy.port_max}
            return Reason(ReasonCode.PORT_TAKEN, {**where, **ports, "tries": job.port_retries_used + 1})
        case Outcome.NODE_FAILED | Outcome.LOST:
            lost: Facts = {**where, "error": _error(attempt, end) or end.cause.value, "requeues": job.requeues_used}
            return Reason(ReasonCode.REQUEUES_SPENT if job.spec.requeue else ReasonCode.NODE_FAILED, lost)
        case Outcome.REQUEUED | Outcome.PREEMPTED:
            raise AssertionError("a job that was told to try again doesn't end")
        case Outcome.FAILED:
            if end.hung_up:
                how: Facts = {"signal": end.signal, "exit_code": -1 if end.exit_code is None else end.exit_code}
                return Reason(ReasonCode.TERMINAL_CLOSED, {**where, **how})
            if end.signal:
                return Reason(ReasonCode.KILLED_BY_SIGNAL, {**where, "signal": end.signal})
            return Reason(ReasonCode.EXITED, {**where, "exit_code": -1 if end.exit_code is None else end.exit_code})
