"""Admission of placements that a plan proposes, against the newest state."""

from stoker.brain.domain.array import contains, index_of
from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.job import Job, lazy_member
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.node import Free
from stoker.brain.domain.partition import selection
from stoker.brain.domain.plan import Place
from stoker.brain.domain.reason import describe
from stoker.brain.domain.units import NEVER
from stoker.brain.domain.where import selects
from stoker.brain.state.cluster import ClusterState


def admit_place(state: ClusterState, place: Place) -> Refusal | None:
    """Return why `place` is stale, or None when each of its ranks still gets all that it asks for; reserves nothing."""
    job = _candidate(state, place)
    if job is None or job.state is not JobState.PENDING or job.not_before != NEVER or job.blocked:
        return _stale(place, f"job {place.job} no longer waits")
    array = state.jobs.get(job.array_of)
    if array is not None and state.indexes.arrays.slots_left(array) == 0:
        return _stale(place, f"array {array.label} runs as many members as it may")
    if place.attempt != job.newest_attempt + 1:
        return _stale(place, f"attempt {place.attempt} of job {place.job} is out of turn")
    if [task.rank for task in place.tasks] != list(range(job.spec.demand.tasks)):
        return _stale(place, f"job {place.job} asked for {job.spec.demand.tasks} tasks")
    if place.master_port in state.indexes.ports.get(place.master_addr, {}):
        return _stale(place, f"port {place.master_port} of {place.master_addr} is in use")
    wanted = selection(state.partitions, state.tenants, job.spec.shape)
    left: dict[NodeName, Free] = {}
    for task in place.tasks:
        free = left.get(task.node) or state.indexes.free.get(task.node)
        if free is None or task.node in state.indexes.returning:
            return _stale(place, f"node {task.node} takes no new work")
        if not selects(wanted, state.nodes[task.node]):
            return _stale(place, f"node {task.node} is no longer one that job {place.job} may run on")
        known = {gpu.uuid for gpu in free.gpus}
        if not all(uuid in known for uuid in task.gpus) or len(task.gpus) != job.spec.demand.gpu_count:
            return _stale(place, f"a GPU of node {task.node} is no longer free")
        if task.cpus > free.cpus or task.memory_mb > free.memory_mb:
            return _stale(place, f"node {task.node} has too few CPUs or too little memory left")
        left[task.node] = free.take(task)
    limit = state.wall(job.spec.shape)
    return None if limit is None else _stale(place, describe(limit))


def _candidate(state: ClusterState, place: Place) -> Job | None:
    if not place.array:
        job = state.jobs.get(place.job)
        return None if job is None or job.members is not None else job
    array = state.jobs.get(place.array)
    if array is None or array.members is None or array.spec.array is None:
        return None
    index = index_of(array.id, array.spec.array, place.job)
    return lazy_member(array, index) if contains(array.members.lazy, index) else None


def _stale(place: Place, message: str) -> Refusal:
    return refuse("stale_plan", message, "the next pass decides again", job_id=place.job)
