"""Admission of cancel, hold, release, requeue and signal, for a job, an array or members of an array.

Of several members those that the command doesn't concern are passed over; a command that concerns none of them is
refused, with the reason.
"""

from collections.abc import Iterable, Iterator
from typing import assert_never

from stoker.brain.domain.array import (
    JobRef,
    Spans,
    common,
    count_of,
    indexes_of,
    member_id,
)
from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import NOBODY, JobId, Principal
from stoker.brain.domain.job import Job, StopCause
from stoker.brain.domain.lifecycle import FAILED, LIVE, JobState
from stoker.brain.domain.preemption import TAKEN_BACK
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.units import NEVER
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import (
    Answer,
    Cancel,
    EnterTask,
    ForwardPort,
    Hold,
    PlainJobOperation,
    Release,
    Requeue,
    SignalJob,
)
from stoker.brain.state.events.job import (
    AttemptStopping,
    JobEntered,
    JobEvent,
    JobFinished,
    JobForwarded,
    JobHeld,
    JobReleased,
    JobReturned,
    JobSignalled,
    MemberMade,
    MembersCancelled,
)
from stoker.brain.state.validation.dependency import never_met_again
from stoker.brain.state.validation.lookups import find_job, partition_fault, tenant_fault
from stoker.brain.state.validation.operation_target import OperationTarget, find_target, members_made, too_many_made
from stoker.brain.state.validation.quota import TenantRules


def admit_operation(state: ClusterState, command: PlainJobOperation) -> Answer:
    """Answer what a person asks of a job, an array or some of its members."""
    target = find_target(state, command.target)
    if isinstance(target, Refusal):
        return target
    match command:
        case Cancel():
            return cancel(state, target, command)
        case Hold():
            return hold(state, target, command.by)
        case Release():
            return release(state, target)
        case Requeue():
            return requeue(state, target, hold=command.hold, by=command.by)
        case SignalJob():
            return signal(state, target, command)
        case _:
            assert_never(command)


def cancel(state: ClusterState, target: OperationTarget, command: Cancel) -> Answer:
    """Admit the end of every target that hasn't ended: live attempts are told to stop."""
    events: list[JobEvent] = []
    if target.array and target.lazy:
        events.append(MembersCancelled(array=target.array.id, indexes=target.lazy))
    going = False
    for job in target.records:
        attempt = job.live_attempt
        if job.is_final:
            continue
        if attempt is None:
            reason = Reason(ReasonCode.CANCELLED, {"by": command.by})
            events.append(JobFinished(job=job.id, state=JobState.CANCELLED, reason=reason))
        elif attempt.stop is not None and attempt.stop.cause in (StopCause.CANCELLED, StopCause.TIMEOUT):
            going = True
        else:
            events.append(AttemptStopping(job=job.id, attempt=attempt.number, cause=StopCause.CANCELLED))
    if events or going:
        return tuple(events)
    return _ended(state, target, "nothing is left to cancel")


def hold(state: ClusterState, target: OperationTarget, by: Principal) -> Answer:
    """Admit that pending targets are held."""
    if target.whole and target.array:
        if target.array.is_final:
            return _ended(state, target)
        own = (JobHeld(job=target.array.id, by=by),) if target.array.state is JobState.PENDING else ()
        return (*own, *(JobHeld(job=job.id, by=by) for job in target.records if job.state is JobState.PENDING))
    made = target.lazy if _lazy_state(target) is JobState.PENDING else ()
    large = too_many_made(state, target, count_of(made))
    if large:
        return large
    events: list[JobEvent] = [*members_made(target, held=True, by=by)] if made else []
    events.extend(JobHeld(job=job.id, by=by) for job in target.records if job.state is JobState.PENDING)
    held = _lazy_state(target) is JobState.HELD or any(job.state is JobState.HELD for job in target.records)
    if events or held:
        return tuple(events)
    if any(job.state in LIVE for job in target.records):
        hint = f"`stoker requeue --hold{target.typed}` stops it, and holds it once it has stopped"
        return target.refuse("job_live", f"{target} has started, and only what waits can be held", hint)
    return _ended(state, target)


def release(state: ClusterState, target: OperationTarget) -> Answer:
    """Admit that held targets are pending again."""
    events: list[JobEvent] = []
    if target.whole and target.array and target.array.state is JobState.HELD:
        events.append(JobReleased(job=target.array.id))
    elif not target.whole and _lazy_state(target) is JobState.HELD:
        large = too_many_made(state, target, count_of(target.lazy))
        if large:
            return large
        events.extend(members_made(target, held=False))
    events.extend(JobReleased(job=job.id) for job in target.records if job.state is JobState.HELD)
    waits = target.lazy or any(job.state is JobState.PENDING for job in target.records)
    if events or waits:
        return tuple(events)
    return target.refuse("not_held", f"{target} isn't held", _status_hint(target))


def requeue(state: ClusterState, target: OperationTarget, *, hold: bool = False, by: Principal = NOBODY) -> Answer:
    """Admit another try of ended targets, and of live ones once they have stopped; `hold`: not before a release."""
    again = [job for job in target.records if not target.whole or job.state in FAILED]
    for job in (*again, *((target.array,) if target.array else ())):
        gone = partition_fault(state, job.spec.partition) or tenant_fault(state, job.spec.tenant)
        if gone:
            return gone
        never = never_met_again(state, job) if job.blocked else None
        if never is not None:
            return _never_satisfied(job, never)
        if len(job.attempts) >= state.policy.attempts_max:
            return _tried_enough(job, state.policy.attempts_max)
    unmade = [*_uncancelled(target), *_forgotten(target)]
    fault = too_many_made(state, target, sum(map(count_of, unmade))) or _tenant_fault(state, target, again, unmade)
    if fault:
        return fault
    events: list[JobEvent] = [*_unmade(target, unmade, by if hold else None)]
    for job in again:
        events.extend(_once_more(job, by if hold else None))
    array = target.array
    if array and array.is_final and (events or (target.whole and array.members and array.members.lazy)):
        events.insert(0, JobReturned(job=array.id))
    if events:
        return tuple(events)
    return _nothing_again(target, hold=hold)


def signal(state: ClusterState, target: OperationTarget, command: SignalJob) -> Answer:
    """Admit a signal to the processes of running targets."""
    reached: list[JobEvent] = []
    away: dict[str, None] = {}
    for job in target.records:
        attempt = job.live_attempt
        for task in attempt.open_tasks if attempt else ():
            node = state.nodes[task.placement.node]
            if task.started_at != NEVER and not node.reachable:
                away[node.name] = None
        if attempt and any(task.started_at != NEVER for task in attempt.open_tasks):
            reached.append(JobSignalled(job=job.id, attempt=attempt.number, signal=command.signal))
    if away:
        hint = "try again once `stoker node list` shows it ready; a signal is sent once and never later"
        return target.refuse("node_unreachable", f"the signal can't be sent: {', '.join(away)} doesn't answer", hint)
    if reached:
        return tuple(reached)
    return target.refuse("not_running", f"no process of {target} runs", _status_hint(target))


def forward(state: ClusterState, command: ForwardPort) -> Answer:
    """Admit that a person is let through to a port of a task, which must have started."""
    found = _running_task(state, command.target, command.rank)
    if isinstance(found, Refusal):
        return found
    return (JobForwarded(job=found[0], attempt=found[1], rank=command.rank, port=command.port),)


def enter(state: ClusterState, command: EnterTask) -> Answer:
    """Admit that a person is let into a task, which must have started."""
    found = _running_task(state, command.target, command.rank)
    if isinstance(found, Refusal):
        return found
    return (JobEntered(job=found[0], attempt=found[1], rank=command.rank, program=command.program),)


def _running_task(state: ClusterState, target: JobRef, rank: int) -> tuple[JobId, int] | Refusal:
    """Return the job and the attempt of a task that has started and not ended."""
    job = state.find(target)
    if job is None:
        found = find_job(state, target)
        assert isinstance(found, Refusal), f"{target} is found, and isn't there"
        return found
    attempt = job.live_attempt
    if attempt is None:
        hint = f"`stoker status {job.label}` says what became of it"
        message = f"job {job.label} doesn't run: it is {job.state}"
        if job.members is not None:
            message = f"job {job.label} is an array, whose members run"
            first = job.as_array[0].indexes[0][0]
            hint = f"name one of them, as in `{job.label}_{first}`; `stoker list {job.label}` shows them"
        return refuse("not_running", message, hint, job_id=job.label)
    if rank >= len(attempt.tasks):
        hint = f"ranks are 0 to {len(attempt.tasks) - 1}"
        return refuse("attempt_unknown", f"job {job.label} has no rank {rank}", hint, job_id=job.label)
    task = attempt.tasks[rank]
    if task.started_at == NEVER or task.end is not None:
        hint = f"`stoker status {job.label}` tells when each rank started and ended"
        return refuse("not_running", f"rank {rank} of job {job.label} doesn't run", hint, job_id=job.label)
    return job.id, attempt.number


def _lazy_state(target: OperationTarget) -> JobState | None:
    return target.array.state if target.array and target.lazy else None


def _uncancelled(target: OperationTarget) -> list[Spans]:
    # The named members that were cancelled before they were records.
    array, named = target.array, target.ref.members
    if array is None or array.members is None or named is None:
        return []
    if count_of(named) > 1:
        return [common(named, gone.indexes) for gone in array.members.cancelled]
    return [named] if array.members.cancelled_with(named[0][0]) else []


def _forgotten(target: OperationTarget) -> list[Spans]:
    # Members whose records are gone: of a whole array those that failed, else those that are named, as with records.
    if target.array is None or target.array.members is None:
        return []
    members, named = target.array.members, target.ref.members or ()
    return [members.pruned_failed] if target.whole else [common(named, ended) for _, ended in members.pruned()]


def _tenant_fault(
    state: ClusterState, target: OperationTarget, again: Iterable[Job], unmade: Iterable[Spans]
) -> Refusal | None:
    # Live jobs are not checked: they wait again as if they had lost their node.
    ended = [job for job in again if job.is_final]
    more = len(ended) + sum(map(count_of, unmade))
    array = target.array
    if array and array.is_final and array.members:
        more += count_of(array.members.lazy)
    return TenantRules(state).fault_again([*ended, *((array,) if array else ())], more) if more else None


def _unmade(target: OperationTarget, unmade: Iterable[Spans], held_by: Principal | None) -> Iterator[JobEvent]:
    for spans in unmade:
        for index in indexes_of(spans):
            assert target.array is not None, "only arrays have members"
            spec, _ = target.array.as_array
            yield MemberMade(array=target.array.id, index=index)
            yield from _returned(member_id(target.array.id, spec, index), held_by)


def _never_satisfied(job: Job, never: Reason) -> Refusal:
    message = f"job {job.label} waits for {never.facts['dependency']}, and {never.facts['why']}"
    hint = "submit it again without that dependency"
    return refuse("dependency_never_satisfied", message, hint, job_id=job.label)


def _nothing_again(target: OperationTarget, *, hold: bool) -> Refusal:
    array, named = target.array, target.ref.members
    if target.whole and array:
        members = array.members
        if members and members.pruned_bad > members.pruned_cancelled:
            message = f"members of {target} failed so long ago that an older Stoker forgot which"
            return target.refuse("job_forgotten", message, "submit those again that are wanted")
        spec, _ = array.as_array
        hint = f"name members, such as `{array.id}_{spec.indexes[0][0]}`, to run others once more"
        return target.refuse("nothing_failed", f"no member of {target} has failed", hint)
    if array and array.members and named and not target.records:
        lazy = common(named, array.members.lazy)
        if lazy and array.is_final:
            return _ended_with_its_array(target, array)
        if not lazy:
            message = f"{target} ended so long ago that an older Stoker forgot how"
            return target.refuse("job_forgotten", message, "submit it again")
    message = f"{target} waits already, or is about to end for another reason"
    hint = f"`stoker why{target.typed}` says what it waits for"
    states = [*(job.state for job in target.records), _lazy_state(target)]
    if hold and JobState.PENDING in states:
        hint = f"`stoker hold{target.typed}` keeps it from starting"
    return target.refuse("job_waits", message, hint)


def _ended_with_its_array(target: OperationTarget, array: Job) -> Refusal:
    # Such members have no record that could return, and the array's brings back all of them.
    facts = array.reason.facts if array.reason else {}
    why = f": it waited for {facts['dependency']}, and {facts['why']}" if "dependency" in facts else ""
    message = f"{target} never ran, for array {array.id} ended {array.state} as a whole{why}"
    hint = f"`stoker requeue {array.id}` lets the whole array wait again"
    return target.refuse("job_ended", message, hint, state=array.state.value)


def _tried_enough(job: Job, most: int) -> Refusal:
    count = len(job.attempts)
    message = f"job {job.label} has had {count} attempts, and no more than {most} are kept of one job"
    return refuse("too_many_attempts", message, "submit it again", job_id=job.label, attempts=count, attempts_max=most)


def _once_more(job: Job, held_by: Principal | None) -> Iterator[JobEvent]:
    attempt = job.live_attempt
    if job.is_final:
        yield from _returned(job.id, held_by)
    elif attempt is not None:
        stop = attempt.stop
        hold = held_by is not None
        # Who asks for a hold while it stops to be requeued gets it; who then asks for none lets it wait.
        waits_again = stop is not None and stop.cause in (StopCause.REQUEUED, *TAKEN_BACK)
        other = waits_again and stop is not None and stop.hold != hold
        if stop is None or stop.cause is StopCause.MEMBER_ENDED or other:
            yield AttemptStopping(job=job.id, attempt=attempt.number, cause=StopCause.REQUEUED, hold=hold)


def _returned(job: JobId, held_by: Principal | None) -> Iterator[JobEvent]:
    yield JobReturned(job=job)
    if held_by is not None:
        yield JobHeld(job=job, by=held_by)


def _ended(state: ClusterState, target: OperationTarget, hint: str = "") -> Refusal:
    # Without a hint of its own: how it may run once more.
    array = target.array
    members = array.members if array is not None else None
    if target.is_one:
        one, index = state.find(target.ref), target.ref.members[0][0] if target.ref.members else 0
        how = one.state if one is not None else members.pruned_state(index) if members is not None else None
        said = how.value if how else "its record is gone"
    else:
        said = "all members" if target.whole else "all of them"
    if not hint:
        again = requeue(state, target)
        what = "what failed" if target.whole else "it" if target.is_one else "them"
        hint = again.hint if isinstance(again, Refusal) else f"`stoker requeue{target.typed}` runs {what} once more"
    return target.refuse("job_ended", f"{target} has already ended: {said}", hint, state=said)


def _status_hint(target: OperationTarget) -> str:
    return f"`stoker status{target.typed}` shows how far it is"
