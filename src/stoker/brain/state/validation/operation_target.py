"""Target of an operation on jobs: the job, or the members of an array, that an order of a person is about."""

from collections.abc import Iterable, Iterator
from typing import Final

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
from stoker.brain.domain.ids import NOBODY, Principal
from stoker.brain.domain.job import Job
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events.job import MemberMade
from stoker.brain.state.validation.lookups import find_job
from stoker.brain.state.validation.quota import TenantRules

MADE_MAX: Final = 10_000
"""Members that one command may make records: some tenths of a second, in which other commands wait."""
ONE_BY_ONE_MAX: Final = 1_000
"""Members that are looked up one by one; for more all records of the array are walked, which costs less."""
_TYPED_MAX: Final = 60
"""Characters of an id that a hint repeats."""


class OperationTarget(msgspec.Struct, frozen=True, kw_only=True):
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


def find_target(state: ClusterState, ref: JobRef) -> OperationTarget | Refusal:
    """Return what `ref` names; else the refusal says why it isn't there."""
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
        return OperationTarget(ref=ref, array=state.jobs.get(job.array_of), whole=False, lazy=(), records=(job,))
    if ref.members is None:
        lazy = () if job.is_final else members.lazy
        return OperationTarget(ref=ref, array=job, whole=True, lazy=lazy, records=_records(state, job, spec.indexes))
    unknown = difference(ref.members, spec.indexes)
    if unknown:
        message = f"array {job.id} has no member {spans_text(unknown)[:80]}"
        hint = f"its members are {spans_text(spec.indexes)[:80]}"
        return refuse("member_unknown", message, hint, job_id=str(job.id))
    lazy = () if job.is_final else common(ref.members, members.lazy)
    return OperationTarget(ref=ref, array=job, whole=False, lazy=lazy, records=_records(state, job, ref.members))


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


def too_many_made(state: ClusterState, target: OperationTarget, made: int) -> Refusal | None:
    """Return the refusal of so many members that would become records at once."""
    # The same bounds as on a list of jobs: these members become jobs of their own.
    if made <= MADE_MAX:
        return TenantRules(state).memory_full([target.array.spec], made) if target.array and made else None
    array, hint = target.ref.job, "name fewer at a time" + ("" if target.whole else ", or the array as a whole")
    message = f"{made} members of array {array} would become jobs of their own at once; at most {MADE_MAX} may"
    return refuse("too_many_jobs", message, hint, job_id=str(array), jobs=made, jobs_max=MADE_MAX)


def members_made(target: OperationTarget, *, held: bool, by: Principal = NOBODY) -> Iterator[MemberMade]:
    """Yield the events that make records of the members of a target which are none."""
    assert target.array is not None, "only arrays have members"
    for index in indexes_of(target.lazy):
        yield MemberMade(array=target.array.id, index=index, held=held, by=by)
