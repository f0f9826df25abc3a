"""Admission of placements and preemptions that a plan proposes, against the newest state.

Rules: Q1  a preemption stands as a whole or not at all: its job still waits, each of its victims may still be one, and
           all that it claims is free or comes free, by those victims or by attempts that are ending anyway
"""

from collections.abc import Mapping

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.array import contains, index_of
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.gpu import WHOLE_GPU, SharedGpu
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName
from stoker.brain.domain.job import Job, lazy_member
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.node import Free
from stoker.brain.domain.partition import selection
from stoker.brain.domain.plan import Action, Place, Preempt
from stoker.brain.domain.preemption import spared_because
from stoker.brain.domain.reason import describe
from stoker.brain.domain.units import NEVER
from stoker.brain.domain.where import selects
from stoker.brain.state.cluster import ClusterState


def admit_place(state: ClusterState, place: Place) -> Refusal | None:
    """Return why `place` is stale, or None when each of its ranks still gets all that it asks for; reserves nothing."""
    job = _waiting(state, place)
    if isinstance(job, Refusal):
        return job
    if place.attempt != job.newest_attempt + 1:
        return _stale(place, f"attempt {place.attempt} of job {place.job} is out of turn")
    if place.master_port in state.indexes.ports.get(place.master_addr, {}):
        return _stale(place, f"port {place.master_port} of {place.master_addr} is in use")
    wanted = selection(state.partitions, state.tenants, job.spec.shape)
    left: dict[NodeName, Free] = {}
    for task in place.tasks:
        free = left.get(task.node) or state.indexes.free.get(task.node)
        if free is None or not _takes_work(state, task.node):
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


def admit_preempt(state: ClusterState, preempt: Preempt) -> Refusal | None:
    """Return why `preempt` is stale, or None when its job may still have the places of all its victims (Q1)."""
    assert preempt.victims, f"job {preempt.job} preempts nobody"
    job = _waiting(state, preempt)
    if isinstance(job, Refusal):
        return job
    going: dict[JobId, None] = {}
    for victim in preempt.victims:
        other = state.jobs.get(victim.job)
        attempt = other.live_attempt if other else None
        if other is None or attempt is None or attempt.number != victim.attempt or other.id in going:
            return _stale(preempt, f"attempt {victim.attempt} of job {victim.job} no longer runs")
        spared = spared_because(other, preempt.cause, job.spec.priority, state.policy)
        if spared:
            return _stale(preempt, f"job {other.label} {spared}")
        going[other.id] = None
    wanted = selection(state.partitions, state.tenants, job.spec.shape)
    for task in preempt.tasks:
        if not _takes_work(state, task.node) or not selects(wanted, state.nodes[task.node]):
            return _stale(preempt, f"node {task.node} is no longer one that job {preempt.job} may run on")
        if len(task.gpus) != job.spec.demand.gpu_count or not _coming(state, task.node, going).issuperset(task.gpus):
            return _stale(preempt, f"a GPU of node {task.node} that job {preempt.job} would have got doesn't come free")
    claimed = {uuid: None for task in preempt.tasks for uuid in task.gpus}
    twice = len(claimed) < job.spec.demand.total_gpus
    return _stale(preempt, f"job {preempt.job} would have got one GPU twice") if twice else None


def _coming(state: ClusterState, node: NodeName, going: Mapping[JobId, None]) -> frozenset[GpuUuid]:
    """The GPUs of a node that are free, or that these jobs and those that are ending anyway hold."""
    held = state.indexes.held.get(node, {})
    leaving = (
        placement
        for (job, _, _), placement in held.items()
        if job in going or state.jobs[job].state is JobState.STOPPING
    )
    free = (gpu.uuid for gpu in state.indexes.free[node].gpus)
    return frozenset((*free, *(uuid for placement in leaving for uuid in placement.gpus)))


def _takes_work(state: ClusterState, node: NodeName) -> bool:
    return node in state.indexes.free and node not in state.indexes.returning


def _waiting(state: ClusterState, action: Action) -> Job | Refusal:
    """The job of an action, with as many tasks as the action has places, or why it doesn't wait for them."""
    job = candidate(state, action)
    if job is None or job.state is not JobState.PENDING or job.not_before != NEVER or job.blocked:
        return _stale(action, f"job {action.job} no longer waits")
    array = state.jobs.get(job.array_of)
    if array is not None and state.indexes.arrays.slots_left(array) == 0:
        return _stale(action, f"array {array.label} runs as many members as it may")
    if [task.rank for task in action.tasks] != list(range(job.spec.demand.tasks)):
        return _stale(action, f"job {action.job} asked for {job.spec.demand.tasks} tasks")
    return job


def candidate(state: ClusterState, place: Action) -> Job | None:
    """Return the job of an action, also a lazy member that is no record; None = it is no job that could be placed."""
    if not place.array:
        job = state.jobs.get(place.job)
        return None if job is None or job.members is not None else job
    array = state.jobs.get(place.array)
    if array is None or array.members is None or array.spec.array is None:
        return None
    index = index_of(array.id, array.spec.array, place.job)
    return lazy_member(array, index) if contains(array.members.lazy, index) else None


def _stale(place: Action, message: str) -> Refusal:
    return refuse("stale_plan", message, "the next pass decides again", job_id=place.job)
