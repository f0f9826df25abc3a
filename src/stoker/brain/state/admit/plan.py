"""Admission of placements that a plan proposes, against the newest state."""

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.array import contains, index_of
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.gpu import WHOLE_GPU, SharedGpu
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
        if not _gpus_are_free(free, task, job.spec.demand, state.policy.gpu_sharers_max):
            return _stale(place, f"a GPU of node {task.node} is no longer free")
        if task.cpus > free.cpus or task.memory_mb > free.memory_mb:
            return _stale(place, f"node {task.node} has too few CPUs or too little memory left")
        left[task.node] = free.take(task)
    limit = state.wall(job.spec.shape)
    return None if limit is None else _stale(place, describe(limit))


def _gpus_are_free(free: Free, task: TaskPlacement, demand: Demand, sharers_max: int) -> bool:
    known = {gpu.uuid: gpu for gpu in free.gpus}
    if len(task.gpus) != demand.gpu_count or task.gpu_share != demand.gpu_share:
        return False
    if not demand.shares:
        return all(uuid in known for uuid in task.gpus)
    uuid = task.gpus[0]
    rest = next((each for each in free.shared if each.gpu.uuid == uuid), None)
    if rest is None and uuid in known:
        rest = SharedGpu(known[uuid], WHOLE_GPU, known[uuid].memory_mb, 0)
    if rest is None or task.gpu_memory_mb != demand.memory_bound_mb(rest.gpu.memory_mb):
        return False
    return rest.fits(task.gpu_share, task.gpu_memory_mb, sharers_max)


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
