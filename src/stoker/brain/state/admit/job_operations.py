"""Admission of cancel, hold, release, requeue and signal, for a job, an array or members of an array.

Of several members those that the command doesn't concern are passed over; a command that concerns none of them is
refused, with the reason.
"""

from collections.abc import Iterable, Iterator
from typing import Final, assert_never

import msgspec

from stoker.brain.domain.array import (
    JobRef,
    Spans,
    common,
    contains,
    count_of,
    difference,
    indexes_of,
    member_id,
    spans_text,
)
from stoker.brain.domain.errors import FactValue, Refusal, refuse
from stoker.brain.domain.job import Job, StopCause
from stoker.brain.domain.lifecycle import LIVE, JobState
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.units import NEVER
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Answer, Cancel, ForwardPort, Hold, JobOperation, Release, Requeue, SignalJob
from stoker.brain.state.events.job import (
    AttemptStopping,
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
from stoker.brain.state.validation.quota import TenantRules

MADE_MAX: Final = 10_000
"""Members that one command may make records: some tenths of a second, in which other commands wait."""
ONE_BY_ONE_MAX: Final = 1_000
"""Members that are looked up one by one; for more all records of the array are walked, which costs less."""
_TYPED_MAX: Final = 60
"""Characters of an id that a hint repeats."""
FAILED: Final = (JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.NODE_FAILED)


class _OperationTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The job, or the members of an array, that a command is about."""

    ref: JobRef
    array: Job | None
    """None = a plain job."""
    whole: bool
    """The array as a whole."""
    lazy: Spans
    """The members that are no records yet."""
    records: tuple[Job, ...]
    """The job itself, or the members that are records, in order of id."""

    def __str__(self) -> str:
        return f"array {self.ref}" if self.whole else f"job {self.label}"

    @property
    def label(self) -> str:
        """The id as people write it, of a member by its array."""
        return str(self.ref) if self.ref.members or not self.records or self.whole else self.records[0].label

    @property
    def typed(self) -> str:
        """The id as it stands behind the words of a command in a hint; empty = too long to be repeated."""
        label = f"'{self.label}'" if "[" in self.label else self.label
        return f" {label}" if len(label) <= _TYPED_MAX else ""

    @property
    def is_one(self) -> bool:
        """Whether it is one job or member."""
        return not self.whole and count_of(self.ref.members or ((0, 0, 1),)) == 1

    def refuse(self, code: str, message: str, hint: str, **facts: FactValue) -> Refusal:
        """Return a refusal of the command, with the target among its facts."""
        return refuse(code, message, hint, job_id=self.label, **facts)


def admit_operation(state: ClusterState, command: JobOperation) -> Answer:
    """Answer what a person asks of a job, an array or some of its members."""
    target = _target(state, command.target)
    if isinstance(target, Refusal):
        return target
    match command:
        case Cancel():
            return cancel(state, target, command)
        case Hold():
            return hold(state, target)
        case Release():
            return release(state, target)
        case Requeue():
            return requeue(state, target)
        case SignalJob():
            return signal(state, target, command)
        case _:
            assert_never(command)


def cancel(state: ClusterState, target: _OperationTarget, command: Cancel) -> Answer:
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


def hold(state: ClusterState, target: _OperationTarget) -> Answer:
    """Admit that pending targets are held."""
    if target.whole and target.array:
        if target.array.is_final:
            return _ended(state, target)
        own = (JobHeld(job=target.array.id),) if target.array.state is JobState.PENDING else ()
        return (*own, *(JobHeld(job=job.id) for job in target.records if job.state is JobState.PENDING))
    made = target.lazy if _lazy_state(target) is JobState.PENDING else ()
    large = _too_many(state, target, count_of(made))
    if large:
        return large
    events: list[JobEvent] = [*_made(target, held=True)] if made else []
    events.extend(JobHeld(job=job.id) for job in target.records if job.state is JobState.PENDING)
    held = _lazy_state(target) is JobState.HELD or any(job.state is JobState.HELD for job in target.records)
    if events or held:
        return tuple(events)
    if any(job.state in LIVE for job in target.records):
        hint = f"`stoker requeue{target.typed}` stops it and lets it wait again; then it can be held"
        return target.refuse("job_live", f"{target} has started, and only what waits can be held", hint)
    return _ended(state, target)


def release(state: ClusterState, target: _OperationTarget) -> Answer:
    """Admit that held targets are pending again."""
    events: list[JobEvent] = []
    if target.whole and target.array and target.array.state is JobState.HELD:
        events.append(JobReleased(job=target.array.id))
    elif not target.whole and _lazy_state(target) is JobState.HELD:
        large = _too_many(state, target, count_of(target.lazy))
        if large:
            return large
        events.extend(_made(target, held=False))
    events.extend(JobReleased(job=job.id) for job in target.records if job.state is JobState.HELD)
    waits = target.lazy or any(job.state is JobState.PENDING for job in target.records)
    if events or waits:
        return tuple(events)
    return target.refuse("not_held", f"{target} isn't held", _status_hint(target))


def requeue(state: ClusterState, target: _OperationTarget) -> Answer:
    """Admit another try of ended targets, and of live ones once they have stopped."""
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
    fault = _too_many(state, target, sum(map(count_of, unmade))) or _tenant_fault(state, target, again, unmade)
    if fault:
        return fault
    events: list[JobEvent] = [*_unmade(target, unmade)]
    for job in again:
        events.extend(_once_more(job))
    array = target.array
    if array and array.is_final and (events or (target.whole and array.members and array.members.lazy)):
        events.insert(0, JobReturned(job=array.id))
    if events:
        return tuple(events)
    return _nothing_again(target)


def signal(state: ClusterState, target: _OperationTarget, command: SignalJob) -> Answer:
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
    job = state.find(command.target)
    if job is None:
        found = find_job(state, command.target)
        assert isinstance(found, Refusal), f"{command.target} is found, and isn't there"
        return found
    attempt = job.live_attempt
    if attempt is None:
        hint = f"`stoker status {job.label}` says what became of it"
        return refuse("not_running", f"job {job.label} doesn't run: it is {job.state}", hint, job_id=job.label)
    if command.rank >= len(attempt.tasks):
        hint = f"ranks are 0 to {len(attempt.tasks) - 1}"
        return refuse("attempt_unknown", f"job {job.label} has no rank {command.rank}", hint, job_id=job.label)
    task = attempt.tasks[command.rank]
    if task.started_at == NEVER or task.end is not None:
        hint = f"`stoker status {job.label}` tells when each rank started and ended"
        return refuse("not_running", f"rank {command.rank} of job {job.label} doesn't run", hint, job_id=job.label)
    return (JobForwarded(job=job.id, attempt=attempt.number, rank=command.rank, port=command.port),)


def _target(state: ClusterState, ref: JobRef) -> _OperationTarget | Refusal:
    # The bare id of a member that is no record means that member.
    ref = state.locate(ref.job) if ref.members is None else ref
    job = find_job(state, JobRef(ref.job))
    if isinstance(job, Refusal):
        return job
    spec, members = job.spec.array, job.members
    if spec is None or members is None:
        if ref.members is not None:
            hint = f"say {job.label} without members"
            return refuse("not_an_array", f"job {job.label} is no array", hint, job_id=job.label)
        return _OperationTarget(ref=ref, array=state.jobs.get(job.array_of), whole=False, lazy=(), records=(job,))
    if ref.members is None:
        lazy = () if job.is_final else members.lazy
        return _OperationTarget(ref=ref, array=job, whole=True, lazy=lazy, records=_records(state, job, spec.indexes))
    unknown = difference(ref.members, spec.indexes)
    if unknown:
        message = f"array {job.id} has no member {spans_text(unknown)[:80]}"
        hint = f"its members are {spans_text(spec.indexes)[:80]}"
        return refuse("member_unknown", message, hint, job_id=str(job.id))
    lazy = () if job.is_final else common(ref.members, members.lazy)
    return _OperationTarget(ref=ref, array=job, whole=False, lazy=lazy, records=_records(state, job, ref.members))


def _records(state: ClusterState, array: Job, indexes: Spans) -> tuple[Job, ...]:
    spec = array.spec.array
    assert spec is not None, f"no array: {array.story()}"
    few = count_of(indexes) < min(spec.count, ONE_BY_ONE_MAX)
    ids: Iterable[int] = range(array.id + 1, array.id + 1 + spec.count)
    if few:
        ids = (member_id(array.id, spec, index) for index in indexes_of(indexes))
    records = [job for job in map(state.jobs.get, ids) if job is not None]  # type: ignore[arg-type]  # ints are ids
    whole = few or indexes == spec.indexes
    return tuple(records if whole else [job for job in records if contains(indexes, job.array_index)])


def _too_many(state: ClusterState, target: _OperationTarget, made: int) -> Refusal | None:
    # The same bounds as on a list of jobs: these members become jobs of their own.
    if made <= MADE_MAX:
        return TenantRules(state).memory_full([target.array.spec], made) if target.array and made else None
    array, hint = target.ref.job, "name fewer at a time" + ("" if target.whole else ", or the array as a whole")
    message = f"{made} members of array {array} would become jobs of their own at once; at most {MADE_MAX} may"
    return refuse("too_many_jobs", message, hint, job_id=str(array), jobs=made, jobs_max=MADE_MAX)


def _lazy_state(target: _OperationTarget) -> JobState | None:
    return target.array.state if target.array and target.lazy else None


def _made(target: _OperationTarget, *, held: bool) -> Iterator[MemberMade]:
    assert target.array is not None, "only arrays have members"
    for index in indexes_of(target.lazy):
        yield MemberMade(array=target.array.id, index=index, held=held)


def _uncancelled(target: _OperationTarget) -> list[Spans]:
    # The named members that were cancelled before they were records.
    array, named = target.array, target.ref.members
    if array is None or array.members is None or named is None:
        return []
    if count_of(named) > 1:
        return [common(named, gone.indexes) for gone in array.members.cancelled]
    return [named] if array.members.cancelled_with(named[0][0]) else []


def _forgotten(target: _OperationTarget) -> list[Spans]:
    # Members whose records are gone: of a whole array those that failed, else those that are named, as with records.
    if target.array is None or target.array.members is None:
        return []
    members, named = target.array.members, target.ref.members or ()
    return [members.pruned_failed] if target.whole else [common(named, ended) for _, ended in members.pruned()]


def _tenant_fault(
    state: ClusterState, target: _OperationTarget, again: Iterable[Job], unmade: Iterable[Spans]
) -> Refusal | None:
    # Live jobs are not checked: they wait again as if they had lost their node.
    ended = [job for job in again if job.is_final]
    more = len(ended) + sum(map(count_of, unmade))
    array = target.array
    if array and array.is_final and array.members:
        more += count_of(array.members.lazy)
    return TenantRules(state).fault_again([*ended, *((array,) if array else ())], more) if more else None


def _unmade(target: _OperationTarget, unmade: Iterable[Spans]) -> Iterator[JobEvent]:
    for spans in unmade:
        for index in indexes_of(spans):
            assert target.array is not None, "only arrays have members"
            spec, _ = target.array.as_array
            yield MemberMade(array=target.array.id, index=index)
            yield JobReturned(job=member_id(target.array.id, spec, index))


def _never_satisfied(job: Job, never: Reason) -> Refusal:
    message = f"job {job.label} waits for {never.facts['dependency']}, and {never.facts['why']}"
    hint = "submit it again without that dependency"
    return refuse("dependency_never_satisfied", message, hint, job_id=job.label)


def _nothing_again(target: _OperationTarget) -> Refusal:
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
    return target.refuse("job_waits", message, f"`stoker why{target.typed}` says what it waits for")


def _ended_with_its_array(target: _OperationTarget, array: Job) -> Refusal:
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


def _once_more(job: Job) -> Iterator[JobEvent]:
    attempt = job.live_attempt
    if job.is_final:
        yield JobReturned(job=job.id)
    elif attempt is not None and (attempt.stop is None or attempt.stop.cause is StopCause.MEMBER_ENDED):
        yield AttemptStopping(job=job.id, attempt=attempt.number, cause=StopCause.REQUEUED)


def _ended(state: ClusterState, target: _OperationTarget, hint: str = "") -> Refusal:
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


def _status_hint(target: _OperationTarget) -> str:
    return f"`stoker status{target.typed}` shows how far it is"
