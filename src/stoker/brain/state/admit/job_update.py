"""Admission of changes of jobs after their submit.

Rules: P1  what waits may be changed in all fields of JobChanges, what runs in those of MAY_CHANGE_LIVE, what has ended
           in none; of several members those that the change doesn't concern are passed over, as with other operations
       P2  a changed job is checked as a new one; a fault that it had before is no fault of the change
       P3  a member that is changed becomes a record of its own; a change of the whole array also changes those that are
           records, whatever they were told before
       P4  members wait for others as their array does
       P5  no change makes jobs wait for each other in a circle, or for what can never be
       P6  a time limit that has passed already is no limit: to end a job is to cancel it
"""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import UNSET

from stoker.brain.domain.array import count_of, indexes_of
from stoker.brain.domain.dependency import Dependency, Verdict
from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job, JobSpec, StopCause, lazy_member
from stoker.brain.domain.job_changes import MAY_CHANGE_LIVE, called, changes_between, values_before
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.preemption import TAKEN_BACK
from stoker.brain.domain.units import NEVER, Instant, human_duration
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Answer, UpdateJob
from stoker.brain.state.dependencies import open_conditions, verdict
from stoker.brain.state.events.job import JobEvent, JobUpdated
from stoker.brain.state.validation.admission import completed, job_fault
from stoker.brain.state.validation.dependency import met_before, never_met_by_forgotten, resolve
from stoker.brain.state.validation.operation_target import OperationTarget, find_target, members_made, too_many_made
from stoker.brain.state.validation.quota import TenantRules
from stoker.brain.state.validation.where import never_fits

WALKED_MAX: Final = 100_000
"""Jobs that are looked at for a circle: a tenth of a second. A chain that is longer is taken for one."""
_OPTIONS: Final = (
    "--time, --name, --comment, --priority, --retries, --requeue, --preemptible, --checkpoint and --signal"
)


def update(state: ClusterState, command: UpdateJob, now: Instant) -> Answer:
    """Admit a change of a job, an array or some of its members."""
    target, changes = find_target(state, command.target), command.changes
    if isinstance(target, Refusal):
        return target
    if not changes.given:
        return target.refuse("no_changes", f"nothing of {target} is to be changed", "say what, such as `--time 2h`")
    if changes.after is not UNSET and target.array and not target.whole:  # P4
        hint = f"change the array: `stoker update {target.array.id} --after ...`"
        return target.refuse("not_of_members", f"{target} waits for others as its array does", hint)
    waiting = [job for job in target.records if not job.is_final and job.live_attempt is None]
    live = [job for job in target.records if job.live_attempt is not None]
    late = [name for name in changes.given if name not in MAY_CHANGE_LIVE]
    lazy = target.lazy if not target.whole else ()
    whole = target.array if target.whole and target.array and not target.array.is_final else None
    if not (waiting or live or lazy or whole):
        return _ended(state, target)
    if late and not (waiting or lazy or whole):
        return _live(target, late)
    large = too_many_made(state, target, count_of(lazy))
    if large:
        return large
    records = [*waiting, *(() if late else live), *((whole,) if whole else ())]
    return _updated(state, target, command, now, records)


def _updated(
    state: ClusterState, target: OperationTarget, command: UpdateJob, now: Instant, records: Sequence[Job]
) -> Answer:
    update = _Update(state, command, now)
    events: list[JobEvent] = []
    array = target.array
    if array and not target.whole and target.lazy:
        events += members_made(target, held=array.state is JobState.HELD, by=array.held_by)
        records = [*records, *_unmade(array, target)]
    for job in sorted(records, key=lambda job: (job.members is None, job.id)):
        updated = update.of(job)
        if isinstance(updated, Refusal):
            return updated
        if updated is not None:
            events.append(updated)
    return tuple(events) if any(isinstance(event, JobUpdated) for event in events) else ()


def _unmade(array: Job, target: OperationTarget) -> Iterator[Job]:
    """Yield the members that become records, as they will be."""
    for index in indexes_of(target.lazy):
        member = lazy_member(array, index)
        assert member is not None, f"member {index} is no lazy one: {array.story()}"
        yield member


class _Update:
    """One change, of however many jobs."""

    def __init__(self, state: ClusterState, command: UpdateJob, now: Instant) -> None:
        self._state, self._command, self._now = state, command, now
        self._tenants = TenantRules(state)

    def of(self, job: Job) -> JobUpdated | Refusal | None:
        """Return the event that changes this job, or the refusal; None = it is so already."""
        spec = self._command.changes.on(job.spec)
        if job.live_attempt is None:
            spec = completed(self._state, self._tenants, spec)
        met: tuple[int, ...] = ()
        if spec.after != job.spec.after:
            waits = self._waiting(job, spec)
            if isinstance(waits, Refusal):
                return waits
            spec, met = waits
        changes = changes_between(job.spec, spec)
        if not changes.given:
            return None
        fault = self._fault(job, spec)
        if fault is not None:
            return fault
        return JobUpdated(job=job.id, changes=changes, before=values_before(job.spec, changes), met=met)

    def _fault(self, job: Job, spec: JobSpec) -> Refusal | None:
        state, tenants = self._state, self._tenants
        fault = _over_already(state, job, spec, self._now)
        fault = fault or _never_gives_way(job, spec) or job_fault(state, tenants, spec, self._now, job.by)
        if fault is None and spec.shape != job.spec.shape:
            fault = never_fits(state, spec.shape)
        if fault is not None and fault == job_fault(state, tenants, job.spec, self._now, job.by):  # P2
            fault = None
        return fault or tenants.memory_grown(job.spec, spec)

    def _waiting(self, job: Job, spec: JobSpec) -> tuple[JobSpec, tuple[int, ...]] | Refusal:
        """Return the job with its dependencies resolved, and which of them forgotten jobs had met (P5)."""
        state, command = self._state, self._command
        resolved = resolve(state, [spec], [job.id], command.no_members)
        if isinstance(resolved, Refusal):
            return resolved
        (spec,) = resolved
        met = met_before(state, spec, command.ended) if command.ended else ()
        never = never_met_by_forgotten(state, spec, command.ended)
        if never is not None:
            return _never(job, str(never.facts["dependency"]), str(never.facts["why"]))
        for place, each in enumerate(spec.after):
            if place not in met and verdict(each, state.jobs) is Verdict.NEVER:
                return _never(job, str(each), "that has been decided already: `stoker status` shows how it ended")
        if _in_circle(state, job.id, spec.after):
            message = f"job {job.label} would wait for a job that waits for it"
            return refuse("dependency_cycle", message, "take out one of these dependencies", job_id=job.label)
        return spec, met


def _over_already(state: ClusterState, job: Job, spec: JobSpec, now: Instant) -> Refusal | None:
    attempt, limit_ms = job.live_attempt, spec.time_limit_ms
    if attempt is None or limit_ms == job.spec.time_limit_ms:
        return None
    if attempt.stop is not None and attempt.stop.cause not in (StopCause.REQUEUED, *TAKEN_BACK):
        message = f"job {job.label} is ending already ({attempt.stop.cause}); no time limit changes that"
        return refuse("job_ended", message, f"`stoker requeue {job.label}` runs it once more", job_id=job.label)
    began = attempt.began_at
    ran_ms = 0 if began == NEVER else now - began - (state.clock_moved_ms - attempt.clock_moved_ms)
    if began == NEVER or limit_ms > ran_ms:
        return None
    message = (
        f"job {job.label} has run for {human_duration(ran_ms)}, so a limit of {human_duration(limit_ms)} has passed"
    )
    hint = f"give it a longer one, or end it: `stoker cancel {job.label}`"
    return refuse("bad_time", message, hint, field="time", job_id=job.label, ran_ms=ran_ms)


def _never_gives_way(job: Job, spec: JobSpec) -> Refusal | None:
    """A submit is refused so too. Jobs that were taken before stay as they are (P2)."""
    if not spec.preemptible or spec.requeue or (job.spec.preemptible and not job.spec.requeue):
        return None
    message = f"job {job.label} would be preemptible and not be requeued, and so never give way to another"
    hint = "change both: `--no-preemptible --no-requeue`, or `--preemptible --requeue`"
    return refuse("conflicting_fields", message, hint, path="preemptible", other="requeue", job_id=job.label)


def _in_circle(state: ClusterState, job: JobId, after: Sequence[Dependency]) -> bool:
    """Return whether one of these conditions waits for this very job, by way of others perhaps."""
    seen: dict[JobId, None] = {}
    todo = [each.job for each in after]
    while todo:
        other = todo.pop()
        if other == job or len(seen) > WALKED_MAX:
            return True
        known = state.jobs.get(other)
        if other not in seen and known is not None and known.blocked and not known.is_final:
            todo += [each.job for each in open_conditions(known)]
        seen[other] = None
    return False


def _never(job: Job, dependency: str, why: str) -> Refusal:
    message = f"job {job.label} would wait for {dependency} in vain: {why}"
    return refuse("dependency_never_satisfied", message, "leave that dependency out", job_id=job.label)


def _live(target: OperationTarget, late: Sequence[str]) -> Refusal:
    message = f"{target} has started, and its {', '.join(map(called, late))} can't be changed any more"
    hint = f"of what runs {_OPTIONS} may change; `stoker requeue{target.typed}` lets it wait again, and all may"
    return target.refuse("job_live", message, hint)


def _ended(state: ClusterState, target: OperationTarget) -> Refusal:
    index = target.ref.members[0][0] if target.ref.members else 0
    members = target.array.members if target.array else None
    one = state.find(target.ref) if target.is_one else None
    how = one.state if one is not None else members.pruned_state(index) if members and target.is_one else None
    said = how.value if how else "all members"
    hint = f"`stoker requeue{target.typed}` lets it wait again, and then it may be changed"
    return target.refuse("job_ended", f"{target} has already ended: {said}", hint, state=said)
