"""Checks of the dependencies of submitted and requeued jobs.

Rules: C1  jobs of one submit may wait for each other (`ok:#0`), but never in a circle, nor for themselves
       C2  a dependency on a job that never was can never be met: the job is accepted and ends at once, with a reason
"""

from collections.abc import Container, Sequence
from typing import Final

from msgspec.structs import replace

from stoker.brain.domain.array import JobRef, contains, ids_taken
from stoker.brain.domain.dependency import Dependency
from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job, JobSpec
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.state.cluster import ClusterState

_CIRCLE_SHOWN_MAX: Final = 8


def resolve(state: ClusterState, specs: Sequence[JobSpec], ids: Sequence[JobId]) -> list[JobSpec] | Refusal:
    """Return the specs of one submit with every sibling named by its id; `ids` has the id of each spec (C1)."""
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
                after.append(_located(state, each))
        resolved.append(replace(spec, after=tuple(after)) if after else spec)
        edges.append(waits_for)
    circle = _circle(edges)
    return resolved if circle is None else _circular(circle, ids)


def never_met(state: ClusterState, job: JobId, spec: JobSpec, siblings: Container[JobId]) -> Reason | None:
    """Return the reason why a dependency on a job that doesn't exist, or didn't at submit, is never met (C2).

    `siblings` are the ids of the same submit. An id that was given away later may be that of a job which waits for this
    one.
    """
    old = state.jobs.get(job)
    for each in spec.after:
        if each.job in siblings:
            continue
        known = state.jobs.get(each.job)
        why = ""
        if each.job >= state.next_job_id:
            why = f"there is no job {each.job}"
        elif old and _is_own_id(each.job, old):
            why = f"{each.job} is an id of its own"
        elif old and known and known.id > job and known.submitted_at > old.submitted_at:
            why = f"there was no job {each.job} when it was submitted"
        elif each.index is not None and known is not None:
            array = known.spec.array
            if array is None or known.array_of or not contains(array.indexes, each.index):
                why = f"job {each.job} has no member {each.index}"
        if why:
            return Reason(ReasonCode.DEPENDENCY_NEVER_SATISFIED, {"dependency": str(each), "why": why})
    return None


def _is_own_id(other: JobId, job: Job) -> bool:
    # Also the id of its array, and of any member of that.
    array = job.array_of or job.id
    return array <= other < array + ids_taken(job.spec.array)


def _located(state: ClusterState, dependency: Dependency) -> Dependency:
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


def _no_sibling(dependency: Dependency, at: int, count: int) -> Refusal:
    message = f"{dependency} names a job of the same list, which has {count}"
    hint = f"`#0` to `#{count - 1}` are the jobs of this list; leave the `#` out for a job that is there already"
    return refuse("bad_dependency", message, hint, field="after", index=at)
