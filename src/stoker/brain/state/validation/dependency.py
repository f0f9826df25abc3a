"""Checks of the dependencies of submitted and requeued jobs.

Rules: C1  jobs of one submit may wait for each other (`ok:#0`), but never in a circle, nor for themselves
       C2  a dependency on a job or member that never was is refused
       C3  one on a job that the state has forgotten is judged by how the history says that it ended (`ended`), and
           refused where the history says that it never had that member (`no_members`)
"""

from collections.abc import Container, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from stoker.brain.domain.array import JobRef, contains, ids_taken
from stoker.brain.domain.dependency import Dependency, Verdict
from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job, JobSpec
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.dependencies import open_conditions, target_of, verdict_on_end

_CIRCLE_SHOWN_MAX: Final = 8


Ended = Mapping[JobRef, JobState]
"""How forgotten jobs and members ended."""


def resolve(
    state: ClusterState, specs: Sequence[JobSpec], ids: Sequence[JobId], no_members: Container[JobRef] = ()
) -> list[JobSpec] | Refusal:
    """Return the specs of one submit with every sibling named by its id (C1, C2).

    `ids` has the id of each spec; `no_members` are members that forgotten jobs never had (C3).
    """
    if not any(spec.after for spec in specs):
        return list(specs)
    place = {job: at for at, job in enumerate(ids)}
    resolved: list[JobSpec] = []
    edges: list[list[int]] = []
    for at, spec in enumerate(specs):
        after: list[Dependency] = []
        waits_for: list[int] = []
        for each in spec.after:
            if each.sibling is not None and not 0 <= each.sibling < len(specs):
                return _no_sibling(each, at, len(specs))
            sibling = place.get(each.job) if each.sibling is None else each.sibling
            if sibling is not None:
                waits_for.append(sibling)
                after.append(replace(each, job=ids[sibling], sibling=None))
            else:
                after.append(located(state, each))
                never_was = _never_was(state, after[-1])
                if not never_was and ref_of(after[-1]) in no_members:
                    never_was = _no_member(after[-1])
                if never_was:
                    return _unknown(each, at, never_was)
        resolved.append(replace(spec, after=tuple(after)) if after else spec)
        edges.append(waits_for)
    circle = _circle(edges)
    return resolved if circle is None else _circular(circle, ids)


def forgotten(state: ClusterState, specs: Sequence[JobSpec], known: Container[JobRef]) -> dict[JobRef, None]:
    """Return what dependencies name that once was, and whose end is neither kept nor `known` (C3)."""
    named = dict.fromkeys(each for spec in specs for each in spec.after if each.sibling is None)
    found = {ref_of(each): each for each in (located(state, each) for each in named)}
    gone = (ref for ref, each in found.items() if target_of(each, state.jobs) is None and not _never_was(state, each))
    return {ref: None for ref in gone if ref not in known}


def ref_of(dependency: Dependency) -> JobRef:
    """Return the reference of the job or member that a dependency names."""
    index = dependency.index
    return JobRef(dependency.job, None if index is None else ((index, index, 1),))


def met_before(state: ClusterState, spec: JobSpec, ended: Ended) -> tuple[int, ...]:
    """Return the places of the dependencies that forgotten jobs had met (C3)."""
    places = enumerate(spec.after)
    return tuple(place for place, each in places if _by_history(state, each, ended) is Verdict.MET)


def never_met_by_forgotten(state: ClusterState, spec: JobSpec, ended: Ended) -> Reason | None:
    """Return the reason why a dependency on a forgotten job is never met (C3); None = none is, or it isn't known."""
    for each in spec.after:
        if _by_history(state, each, ended) is Verdict.NEVER:
            return _never(each, f"it ended {ended[ref_of(each)]}")
    return None


def _by_history(state: ClusterState, dependency: Dependency, ended: Ended) -> Verdict | None:
    """The verdict by how a forgotten job ended; None = it isn't forgotten, or that isn't known."""
    how = ended.get(ref_of(dependency))
    if how is None or target_of(dependency, state.jobs) is not None:
        return None
    return verdict_on_end(dependency.kind, how)


def never_met_again(state: ClusterState, job: Job) -> Reason | None:
    """Return the reason why a dependency of a job that is wanted again is never met; None = it may be.

    An id that was given away after it was submitted may be that of a job which waits for this one.
    """
    for each in open_conditions(job):
        known = state.jobs.get(each.job)
        why = _never_was(state, each)
        if _is_own_id(each.job, job):
            why = f"{each.job} is an id of its own"
        elif known and known.id > job.id and known.submitted_at > job.submitted_at:
            why = f"there was no job {each.job} when it was submitted"
        if why:
            return _never(each, why)
    return None


def _never(dependency: Dependency, why: str) -> Reason:
    return Reason(ReasonCode.DEPENDENCY_NEVER_SATISFIED, {"dependency": str(dependency), "why": why})


def _never_was(state: ClusterState, dependency: Dependency) -> str:
    """Why nothing of that name ever was, as far as can be told; empty = it may have been."""
    if not 0 < dependency.job < state.next_job_id:
        return f"there is no job {dependency.job}"
    known = state.jobs.get(dependency.job)
    if dependency.index is not None and known is not None and not has_member(known, dependency.index):
        return _no_member(dependency)
    return ""


def has_member(job: Job, index: int) -> bool:
    """Return whether the job is an array with a member of this index."""
    return job.spec.array is not None and not job.array_of and contains(job.spec.array.indexes, index)


def _no_member(dependency: Dependency) -> str:
    return f"job {dependency.job} has no member {dependency.index}"


def _is_own_id(other: JobId, job: Job) -> bool:
    # Also the id of its array, and of any member of that.
    array = job.array_of or job.id
    return array <= other < array + ids_taken(job.spec.array)


def located(state: ClusterState, dependency: Dependency) -> Dependency:
    """Return the dependency with a member named by its array and index."""
    ref = state.locate(dependency.job) if dependency.index is None else JobRef(dependency.job)
    return dependency if ref.members is None else replace(dependency, job=ref.job, index=ref.members[0][0])


def _circle(edges: Sequence[Sequence[int]]) -> list[int] | None:
    """Return the places of one circle of `edges`, or None. Kahn's algorithm (1962): what it can't order has one."""
    waiting = [len(each) for each in edges]
    needed_by: list[list[int]] = [[] for _ in edges]
    for at, each in enumerate(edges):
        for other in each:
            needed_by[other].append(at)
    free = [at for at, count in enumerate(waiting) if count == 0]
    while free:
        for at in needed_by[free.pop()]:
            waiting[at] -= 1
            if waiting[at] == 0:
                free.append(at)
    at = next((at for at, count in enumerate(waiting) if count), -1)
    if at < 0:
        return None
    path: list[int] = []
    seen: dict[int, int] = {}
    while at not in seen:
        seen[at] = len(path)
        path.append(at)
        at = next(other for other in edges[at] if waiting[other])
    return path[seen[at] :]


def _circular(circle: list[int], ids: Sequence[JobId]) -> Refusal:
    if len(circle) == 1:
        what = f"job {circle[0]} of the list waits for itself" if len(ids) > 1 else "the job waits for itself"
    else:
        shown = " -> ".join(f"#{at}" for at in (*circle[:_CIRCLE_SHOWN_MAX], circle[0]))
        what = f"jobs of the list wait for each other in a circle: {shown}"
    return refuse("dependency_cycle", what, "take out one of these dependencies", index=circle[0])


def _unknown(dependency: Dependency, at: int, why: str) -> Refusal:
    return refuse(
        "bad_dependency",
        f"{dependency} can never be met: {why}",
        "`stoker list` shows the jobs that there are; `#0` names the first job of the same list",
        field="after",
        index=at,
    )


def _no_sibling(dependency: Dependency, at: int, count: int) -> Refusal:
    message = f"{dependency} names a job of the same list, which has {count}"
    hint = f"`#0` to `#{count - 1}` are the jobs of this list; leave the `#` out for a job that is there already"
    return refuse("bad_dependency", message, hint, field="after", index=at)
