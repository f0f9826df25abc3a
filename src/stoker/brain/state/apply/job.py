"""Application of events about jobs to the state.

No judgement here: the outcome of an attempt and what follows from it were decided in `admit` and stand in the events.
"""

from typing import assert_never

from msgspec.structs import replace

from stoker.brain.domain.allocation import Claim
from stoker.brain.domain.array import (
    CancelledMembers,
    Members,
    contains,
    count_of,
    difference,
    ids_taken,
    joined,
    without,
)
from stoker.brain.domain.ids import NOBODY, JobId, NodeName, Principal
from stoker.brain.domain.job import Attempt, Job, StopRequest, SubmitKey, Task, forgotten_member, key_name, lazy_member
from stoker.brain.domain.lifecycle import JobState, Outcome, check_move
from stoker.brain.domain.notify import Notice, NoticeState, NotifyEvent
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.units import NEVER, Instant, utc_text
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events import job as events


def apply_job(state: ClusterState, event: events.JobEvent, at: Instant, by: Principal) -> None:
    match event:
        case events.JobSubmitted():
            assert event.job == state.next_job_id, f"job {event.job} where {state.next_job_id} is next"
            state.next_job_id = JobId(event.job + ids_taken(event.spec.array))
            state.put_job(submitted_job(event, at, by))
        case events.JobPlaced():
            state.put_job(_placed(state.jobs[event.job], event, at))
        case events.TaskStarted():
            job = _task_started(state.jobs[event.job], event, at, state.clock_moved_ms)
            state.put_job(job)
            _started_on(state, job.attempts[-1].tasks[event.rank].placement.node)
            array = state.jobs.get(job.array_of)
            if array is not None and array.started_at == NEVER:
                state.put_job(replace(array, started_at=at))
        case events.AttemptStopping():
            state.put_job(_stopping(state.jobs[event.job], event, at, by))
        case events.CapacityClaimed():
            _claim(state, event, at)
        case events.TaskEnded():
            state.put_job(_task_ended(state.jobs[event.job], event))
        case events.JobRequeued():
            state.put_job(_requeued(state.jobs[event.job], event, at))
        case events.JobsEligible():
            for each in event.jobs:
                state.put_job(replace(state.jobs[each], not_before=NEVER, reason=None))
        case events.JobFinished():
            state.put_job(_finished(state.jobs[event.job], event, at))
        case events.JobHeld():
            job = state.jobs[event.job]
            state.put_job(
                replace(job, state=_moved(job, JobState.HELD), held_by=event.by, held_at=at if event.by else NEVER)
            )
        case events.JobReleased():
            job = state.jobs[event.job]
            state.put_job(replace(job, state=_moved(job, JobState.PENDING), held_by=NOBODY, held_at=NEVER))
        case events.DependenciesMet():
            for each in event.jobs:
                state.put_job(replace(state.jobs[each], blocked=False))
        case events.JobReturned():
            _settle_conditions(state, state.jobs[event.job])
            state.put_job(_returned(state.jobs[event.job], at, by))
        case events.JobSignalled() | events.JobForwarded() | events.JobEntered():
            pass  # history only
        case events.TimeLimitNear() | events.AttemptWarned():
            state.put_job(_told_of_limit(state.jobs[event.job], event))
        case events.JobUpdated():
            state.put_job(_updated(state.jobs[event.job], event, at))
        case events.MemberMade() | events.MembersCancelled():
            _apply_members(state, event, at, by)
        case events.SubmitKeyed():
            _remember_key(state, event, at, by)
        case events.NotificationTried() | events.NotificationSettled():
            _note(state, event, at)
        case events.JobsPruned():
            _prune(state, event.jobs)
        case _:
            assert_never(event)


def _started_on(state: ClusterState, name: NodeName) -> None:
    """A start that succeeds ends the row of those that failed; one that was under way before a pause doesn't end it."""
    node = state.nodes[name]
    if (node.failed_starts or node.pauses) and node.pause is None:
        state.put_node(replace(node, failed_starts=(), pauses=0))


def submitted_job(event: events.JobSubmitted, at: Instant, by: Principal) -> Job:
    """Return the record that a submit makes."""
    spec = event.spec
    job = Job(id=event.job, uid=event.uid, spec=spec, by=by, submitted_at=at, blocked=bool(spec.after), met=event.met)
    if spec.hold:
        job = replace(job, state=JobState.HELD)
    job = _not_before_its_time(job, at)
    if spec.array is not None:
        job = replace(job, members=Members(lazy=spec.array.indexes, waiting=spec.array.count))
    return job


def _not_before_its_time(job: Job, at: Instant) -> Job:
    begin = job.spec.begin
    if begin <= at:
        return job
    reason = Reason(ReasonCode.BEGIN_TIME, {"begin": utc_text(begin), "begin_ms": begin})
    return replace(job, not_before=begin, reason=reason)


def _updated(job: Job, event: events.JobUpdated, at: Instant) -> Job:
    spec = event.changes.on(job.spec)
    updated = replace(job, spec=spec)
    if spec.after != job.spec.after:
        updated = replace(updated, blocked=bool(spec.after), met=event.met)
    if spec.begin != job.spec.begin:
        if job.reason is not None and job.reason.code is ReasonCode.BEGIN_TIME:
            updated = replace(updated, not_before=NEVER, reason=None)
        if job.not_before <= spec.begin and job.live_attempt is None:  # a longer pause stays
            updated = _not_before_its_time(updated, at)
    return updated


def _apply_members(
    state: ClusterState, event: events.MemberMade | events.MembersCancelled, at: Instant, by: Principal
) -> None:
    array = state.jobs[event.array]
    members = array.members
    assert members is not None, f"no array: {array.story()}"
    if isinstance(event, events.MembersCancelled):
        gone = CancelledMembers(indexes=event.indexes, at=at, by=by)
        lazy = difference(members.lazy, event.indexes)
        cancelled = (*members.cancelled, gone)
        state.put_job(replace(array, members=replace(members, lazy=lazy, waiting=count_of(lazy), cancelled=cancelled)))
        return
    member = lazy_member(array, event.index) or forgotten_member(array, event.index, at, by)
    if contains(members.lazy, event.index):
        members = replace(members, lazy=without(members.lazy, event.index), waiting=members.waiting - 1)
    elif (ended := members.pruned_state(event.index)) is not None:
        members = _with_record(members, event.index, ended)
    else:
        members = replace(members, cancelled=_not_cancelled(members.cancelled, event.index))
    _settle_conditions(state, member)
    # The record first, so that the array never seems to have lost a member.
    held = JobState.HELD if event.held else JobState.PENDING if member.state is JobState.HELD else member.state
    state.put_job(replace(member, state=held, held_by=event.by, held_at=at if event.by else NEVER))
    state.put_job(replace(array, members=members))


def _with_record(members: Members, index: int, ended: JobState) -> Members:
    """A member that ended so, and whose record was gone, has one again."""
    return replace(
        members,
        pruned_ok=members.pruned_ok - (ended is JobState.SUCCEEDED),
        pruned_bad=members.pruned_bad - (ended is not JobState.SUCCEEDED),
        pruned_cancelled=members.pruned_cancelled - (ended is JobState.CANCELLED),
        pruned_failed=without(members.pruned_failed, index),
        pruned_succeeded=without(members.pruned_succeeded, index),
        pruned_stopped=without(members.pruned_stopped, index),
    )


def _not_cancelled(cancelled: tuple[CancelledMembers, ...], index: int) -> tuple[CancelledMembers, ...]:
    left = (replace(each, indexes=without(each.indexes, index)) for each in cancelled)
    return tuple(each for each in left if each.indexes)


def _remember_key(state: ClusterState, event: events.SubmitKeyed, at: Instant, by: Principal) -> None:
    state.submit_keys[key_name(by, event.key)] = SubmitKey(digest=event.digest, jobs=event.jobs, at=at)
    while len(state.submit_keys) > state.policy.submit_keys_max:
        del state.submit_keys[next(iter(state.submit_keys))]


def _note(state: ClusterState, event: events.NotificationTried | events.NotificationSettled, at: Instant) -> None:
    job = state.jobs[event.job]
    known = next((each for each in job.notices if (each.event, each.to) == (event.event, event.to)), None)
    tries = known.tries if known else 0
    if isinstance(event, events.NotificationTried):
        notice = Notice(event=event.event, to=event.to, state=NoticeState.TRYING, at=at, tries=tries + 1)
    else:
        notice = Notice(
            event=event.event,
            to=event.to,
            state=event.state,
            at=at,
            tries=tries,
            next_at=event.next_at,
            error=event.error,
        )
    state.put_job(replace(job, notices=(*(each for each in job.notices if each is not known), notice)))


def _prune(state: ClusterState, jobs: tuple[JobId, ...]) -> None:
    of_array: dict[JobId, list[Job]] = {}
    for gone in map(state.jobs.__getitem__, jobs):
        _settle_conditions(state, gone)
        state.drop_job(gone.id)
        of_array.setdefault(gone.array_of, []).append(gone)
    for array_id, pruned in of_array.items():  # each array once: it may have many spans
        array = state.jobs.get(array_id)
        if array is not None and array.members is not None:
            state.put_job(replace(array, members=_without_records(array.members, pruned)))


def _without_records(members: Members, pruned: list[Job]) -> Members:
    by_end: dict[JobState, list[int]] = {JobState.SUCCEEDED: [], JobState.CANCELLED: [], JobState.FAILED: []}
    for job in pruned:
        by_end.get(job.state, by_end[JobState.FAILED]).append(job.array_index)
    ok, cancelled, failed = by_end.values()
    return replace(
        members,
        pruned_ok=members.pruned_ok + len(ok),
        pruned_bad=members.pruned_bad + len(cancelled) + len(failed),
        pruned_cancelled=members.pruned_cancelled + len(cancelled),
        pruned_failed=joined(members.pruned_failed, failed),
        pruned_succeeded=joined(members.pruned_succeeded, ok),
        pruned_stopped=joined(members.pruned_stopped, cancelled),
        pruned_attempts=max(members.pruned_attempts, *(job.newest_attempt for job in pruned)),
    )


def _settle_conditions(state: ClusterState, job: Job) -> None:
    """Note which conditions on this job are met, before how it ended is forgotten."""
    dependents = state.indexes.dependents
    for dependent in dependents.settled_by(job) if dependents.waiting else ():
        state.put_job(dependent)


def _returned(job: Job, at: Instant, by: Principal) -> Job:
    again = replace(
        job,
        state=_moved(job, JobState.PENDING),
        reason=Reason(ReasonCode.REQUEUED, {"by": by}),
        exit_code=None,
        ended_at=NEVER,
        retries_used=0,
        requeues_used=0,
        port_retries_used=0,
        preemptions=0,
        # Its next end is another one.
        notices=tuple(each for each in job.notices if each.event not in (NotifyEvent.END, NotifyEvent.FAIL)),
    )
    return _not_before_its_time(again, at)


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


def _placed(job: Job, event: events.JobPlaced, at: Instant) -> Job:
    assert event.attempt == job.newest_attempt + 1, f"attempt {event.attempt} out of turn: {job.story()}"
    attempt = Attempt(
        number=event.attempt,
        epoch=event.epoch,
        tasks=tuple(Task(placement=placement) for placement in event.tasks),
        placed_at=at,
        master_addr=event.master_addr,
        master_port=event.master_port,
        lease_ms=event.lease_ms,
    )
    return replace(job, state=_moved(job, JobState.STARTING), attempts=(*job.attempts, attempt), reason=None)


def _task_started(job: Job, event: events.TaskStarted, at: Instant, clock_moved_ms: int) -> Job:
    attempt = _live(job, event.attempt)
    if attempt.began_at == NEVER:
        attempt = replace(attempt, clock_moved_ms=clock_moved_ms)
    task = replace(attempt.tasks[event.rank], started_at=at)
    attempt = replace(attempt, tasks=_with_task(attempt, task))
    started_at = job.started_at if job.started_at != NEVER else at
    state = job.state
    if attempt.all_started:
        attempt = replace(attempt, started_at=at)
        if state is JobState.STARTING:
            state = _moved(job, JobState.RUNNING)
    return replace(job, state=state, attempts=_with_attempt(job, attempt), started_at=started_at)


def _stopping(job: Job, event: events.AttemptStopping, at: Instant, by: Principal) -> Job:
    attempt = _live(job, event.attempt)
    if event.cause is not None:
        stop = StopRequest(
            cause=event.cause,
            at=at,
            by=by,
            hold=event.hold,
            for_job=event.for_job,
            for_label=event.for_label,
            error=event.error,
        )
        attempt = replace(attempt, stop=stop)
    return replace(job, state=_moved(job, JobState.STOPPING), attempts=_with_attempt(job, attempt))


def _told_of_limit(job: Job, event: events.TimeLimitNear | events.AttemptWarned) -> Job:
    attempt = _live(job, event.attempt)
    if isinstance(event, events.TimeLimitNear):
        return replace(job, attempts=_with_attempt(job, replace(attempt, warned_limit_ms=event.limit_ms)))
    return replace(job, attempts=_with_attempt(job, replace(attempt, signalled_limit_ms=event.limit_ms)))


def _claim(state: ClusterState, event: events.CapacityClaimed, at: Instant) -> None:
    wanted = {uuid for task in event.tasks for uuid in task.gpus}
    for other in list(state.claims.values()):  # one that wasn't heeded any more when this was decided
        if any(not wanted.isdisjoint(task.gpus) for task in other.tasks):
            del state.claims[other.job]
    state.claims.pop(event.job, None)  # to the end of the line
    state.claims[event.job] = Claim(job=event.job, tasks=event.tasks, at=at)


def _task_ended(job: Job, event: events.TaskEnded) -> Job:
    attempt = _live(job, event.attempt)
    task = attempt.tasks[event.rank]
    assert task.end is None, f"task {event.rank} ends twice: {job.story()}"
    attempt = replace(attempt, tasks=_with_task(attempt, replace(task, end=event.end)))
    return replace(job, attempts=_with_attempt(job, attempt))


def _attempt_ended(job: Job, outcome: Outcome, exit_code: int | None, at: Instant) -> tuple[Attempt, ...]:
    attempt = _live(job, job.newest_attempt)
    assert not attempt.open_tasks, f"attempt {attempt.number} ends with open tasks: {job.story()}"
    return _with_attempt(job, replace(attempt, outcome=outcome, exit_code=exit_code, ended_at=at))


def _requeued(job: Job, event: events.JobRequeued, at: Instant) -> Job:
    stop = job.attempts[-1].stop
    return replace(
        job,
        held_by=stop.by if event.held and stop else NOBODY,
        held_at=at if event.held else NEVER,
        state=_moved(job, JobState.HELD if event.held else JobState.PENDING),
        attempts=_attempt_ended(job, event.outcome, event.exit_code, at),
        reason=event.reason,
        not_before=event.not_before,
        retries_used=event.retries_used,
        requeues_used=event.requeues_used,
        port_retries_used=event.port_retries_used,
        preemptions=event.preemptions,
    )


def _finished(job: Job, event: events.JobFinished, at: Instant) -> Job:
    attempts = job.attempts
    if event.outcome is not None:
        attempts = _attempt_ended(job, event.outcome, event.exit_code, at)
    return replace(
        job,
        # An array skips what its members go through.
        state=event.state if job.members is not None else _moved(job, event.state),
        attempts=attempts,
        reason=event.reason,
        exit_code=event.exit_code,
        not_before=NEVER,
        ended_at=at,
    )
