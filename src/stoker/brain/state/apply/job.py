"""How do facts about jobs change the state?

No judgement here: the outcome of an attempt and what follows from it were decided in `admit` and stand in the events.
"""

from typing import assert_never

from msgspec.structs import replace

from stoker.brain.domain.ids import JobId, Principal
from stoker.brain.domain.job import Attempt, Job, StopOrder, Task
from stoker.brain.domain.lifecycle import JobState, Outcome, check_move
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events.job import (
    AttemptStopping,
    JobEvent,
    JobFinished,
    JobPlaced,
    JobRequeued,
    JobsEligible,
    JobsPruned,
    JobSubmitted,
    TaskEnded,
    TaskStarted,
)


def apply_job(state: ClusterState, event: JobEvent, at: Instant, by: Principal) -> None:
    match event:
        case JobSubmitted():
            assert event.job == state.next_job_id, f"job {event.job} where {state.next_job_id} is next"
            state.next_job_id = JobId(event.job + 1)
            state.put_job(Job(id=event.job, uid=event.uid, spec=event.spec, by=by, submitted_at=at))
        case JobPlaced():
            state.put_job(_placed(state.jobs[event.job], event, at))
        case TaskStarted():
            state.put_job(_task_started(state.jobs[event.job], event, at))
        case AttemptStopping():
            state.put_job(_stopping(state.jobs[event.job], event, at, by))
        case TaskEnded():
            state.put_job(_task_ended(state.jobs[event.job], event))
        case JobRequeued():
            state.put_job(_requeued(state.jobs[event.job], event, at))
        case JobsEligible():
            for job in event.jobs:
                state.put_job(replace(state.jobs[job], not_before=NEVER, reason=None))
        case JobFinished():
            state.put_job(_finished(state.jobs[event.job], event, at))
        case JobsPruned():
            for job in event.jobs:
                state.drop_job(job)
        case _:
            assert_never(event)


def _moved(job: Job, new: JobState) -> JobState:
    check_move(job.state, new, job.story())
    return new


def _live(job: Job, number: int) -> Attempt:
    attempt = job.attempts[-1] if job.attempts else None
    assert attempt is not None, f"never attempted: {job.story()}"
    assert (attempt.number, attempt.outcome) == (number, None), f"attempt {number} is not live: {job.story()}"
    return attempt


def _with_attempt(job: Job, attempt: Attempt) -> tuple[Attempt, ...]:
    return (*job.attempts[:-1], attempt)


def _with_task(attempt: Attempt, task: Task) -> tuple[Task, ...]:
    rank = task.placement.rank
    return (*attempt.tasks[:rank], task, *attempt.tasks[rank + 1 :])


def _placed(job: Job, event: JobPlaced, at: Instant) -> Job:
    assert event.attempt == len(job.attempts) + 1, f"attempt {event.attempt} out of turn: {job.story()}"
    attempt = Attempt(
        number=event.attempt,
        epoch=event.epoch,
        tasks=tuple(Task(placement=placement) for placement in event.tasks),
        placed_at=at,
        master_addr=event.master_addr,
        master_port=event.master_port,
    )
    return replace(job, state=_moved(job, JobState.STARTING), attempts=(*job.attempts, attempt), reason=None)


def _task_started(job: Job, event: TaskStarted, at: Instant) -> Job:
    attempt = _live(job, event.attempt)
    task = replace(attempt.tasks[event.rank], started_at=at)
    attempt = replace(attempt, tasks=_with_task(attempt, task))
    started_at = job.started_at if job.started_at != NEVER else at
    state = job.state
    if attempt.all_started:
        attempt = replace(attempt, started_at=at)
        if state is JobState.STARTING:
            state = _moved(job, JobState.RUNNING)
    return replace(job, state=state, attempts=_with_attempt(job, attempt), started_at=started_at)


def _stopping(job: Job, event: AttemptStopping, at: Instant, by: Principal) -> Job:
    attempt = _live(job, event.attempt)
    if event.cause is not None:
        attempt = replace(attempt, stop=StopOrder(cause=event.cause, at=at, by=by))
    return replace(job, state=_moved(job, JobState.STOPPING), attempts=_with_attempt(job, attempt))


def _task_ended(job: Job, event: TaskEnded) -> Job:
    attempt = _live(job, event.attempt)
    task = attempt.tasks[event.rank]
    assert task.end is None, f"task {event.rank} ends twice: {job.story()}"
    attempt = replace(attempt, tasks=_with_task(attempt, replace(task, end=event.end)))
    return replace(job, attempts=_with_attempt(job, attempt))


def _attempt_ended(job: Job, outcome: Outcome, exit_code: int | None, at: Instant) -> tuple[Attempt, ...]:
    attempt = _live(job, len(job.attempts))
    assert not attempt.open_tasks, f"attempt {attempt.number} ends with open tasks: {job.story()}"
    return _with_attempt(job, replace(attempt, outcome=outcome, exit_code=exit_code, ended_at=at))


def _requeued(job: Job, event: JobRequeued, at: Instant) -> Job:
    return replace(
        job,
        state=_moved(job, JobState.PENDING),
        attempts=_attempt_ended(job, event.outcome, event.exit_code, at),
        reason=event.reason,
        not_before=event.not_before,
        retries_used=event.retries_used,
        requeues_used=event.requeues_used,
        port_retries_used=event.port_retries_used,
    )


def _finished(job: Job, event: JobFinished, at: Instant) -> Job:
    attempts = job.attempts
    if event.outcome is not None:
        attempts = _attempt_ended(job, event.outcome, event.exit_code, at)
    return replace(
        job,
        state=_moved(job, event.state),
        attempts=attempts,
        reason=event.reason,
        exit_code=event.exit_code,
        not_before=NEVER,
        ended_at=at,
    )
