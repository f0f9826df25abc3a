"""Invariants of the state that hold after every event.

Named truths over the whole state, for tests, the simulator and the live audit. Each answers with sentences about
what is wrong; none is ever wrong unless Stoker has a bug.
"""

from collections.abc import Iterable, Iterator

from stoker.brain.domain.array import count_of
from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.ids import GpuUuid, JobId
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import LIVE, JobState, Outcome
from stoker.brain.domain.preemption import may_claim
from stoker.brain.domain.units import NEVER
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.indexes import Indexes


def violations(state: ClusterState) -> list[str]:
    """Every broken truth, in words. Cost: one walk over all jobs and nodes."""
    return [
        *no_gpu_twice(state),
        *no_orphan_beside_work(state),
        *no_node_overdrawn(state),
        *no_gpu_memory_overdrawn(state),
        *each_job_consistent(state),
        *only_waiting_jobs_claim(state),
        *no_use_below_zero(state),
        *indexes_derived(state),
    ]


def no_gpu_twice(state: ClusterState, jobs: Iterable[Job] | None = None) -> Iterator[str]:
    """A GPU is promised to one open task, or to sharers up to the whole of it, and to none beside a stray.

    Of every job, or of these only.
    """
    holder: dict[GpuUuid, str] = {}
    shared: dict[GpuUuid, int] = {}
    for node in state.nodes.values():
        for stray in node.strays:
            for uuid in stray.gpus:
                holder[uuid] = f"stray {stray.job}.{stray.attempt}.{stray.rank} on {node.name}"
    for job in state.jobs.values() if jobs is None else jobs:
        attempt = job.live_attempt
        for task in attempt.open_tasks if attempt else ():
            for uuid in task.placement.gpus:
                me = f"job {job.id} rank {task.placement.rank}"
                # A stray found after the placement shares the GPU through no promise of ours.
                has_room = uuid in shared and shared[uuid] + task.placement.gpu_share <= WHOLE_GPU
                if uuid in holder and not holder[uuid].startswith("stray") and not has_room:
                    yield f"GPU {uuid} is held by {holder[uuid]} and by {me}"
                holder[uuid] = me
                shared[uuid] = shared.get(uuid, 0) + task.placement.gpu_share


def no_orphan_beside_work(state: ClusterState) -> Iterator[str]:
    """Yield GPUs of orphan tasks that are offered, or held by an attempt while in quarantine."""
    for node in state.nodes.values():
        if not node.strays:
            continue
        of = {uuid: stray for stray in node.strays for uuid in stray.gpus}
        free = state.indexes.free.get(node.name)
        for gpu in free.gpus if free else ():
            if gpu.uuid in of:
                yield f"GPU {gpu.uuid} is offered, and stray {of[gpu.uuid].key} on {node.name} has it"
        for task, placement in state.indexes.held.get(node.name, {}).items():
            for uuid in placement.gpus:
                if uuid in of and of[uuid].unproved and of[uuid].key != task:
                    yield f"GPU {uuid} is in quarantine for {of[uuid].key}, and {task} holds it"


def no_node_overdrawn(state: ClusterState) -> Iterator[str]:
    """Open tasks of a node hold no more CPUs or memory than it has, unless it shrank after the last was placed."""
    for name, held in state.indexes.held.items():
        node = state.nodes[name]
        inventory = node.inventory
        cpus = sum(placement.cpus for placement in held.values())
        memory_mb = sum(placement.memory_mb for placement in held.values())
        if cpus <= inventory.cpus and memory_mb <= inventory.memory_mb:
            continue
        short = {  # a task that asks for none of what is short may still come there
            task: placement
            for task, placement in held.items()
            if (placement.cpus and cpus > inventory.cpus) or (placement.memory_mb and memory_mb > inventory.memory_mb)
        }
        newest = max(state.jobs[job].attempt(number).placed_at for job, number, _ in short)
        if newest > node.shrunk_at and not inventory.limits:  # an older version didn't note when it shrank
            yield f"node {name} is overdrawn: {cpus} of {inventory.cpus} CPUs, {memory_mb} of {inventory.memory_mb} MiB"


def no_gpu_memory_overdrawn(state: ClusterState) -> Iterator[str]:
    """Sharers of a GPU are bounded to no more of its memory than it has, unless its node ever said that it has less."""
    for name, held in state.indexes.held.items():
        node, bounds = state.nodes[name], dict[GpuUuid, int]()
        for placement in held.values():
            if placement.gpu_share != WHOLE_GPU:
                bounds[placement.gpus[0]] = bounds.get(placement.gpus[0], 0) + placement.gpu_memory_mb
        for gpu in node.inventory.gpus if bounds and node.shrunk_at == NEVER else ():
            if bounds.get(gpu.uuid, 0) > gpu.memory_mb:
                yield f"GPU {gpu.uuid} of {name} has {gpu.memory_mb} MiB, and its sharers {bounds[gpu.uuid]}"


def each_job_consistent(state: ClusterState, jobs: Iterable[Job] | None = None) -> Iterator[str]:
    """Of every job, or of these only."""
    for job in state.jobs.values() if jobs is None else jobs:
        for fault in _job_faults(state, job):
            yield f"{fault}: {job.story()}"


def only_waiting_jobs_claim(state: ClusterState) -> Iterator[str]:
    """Yield claims of jobs that couldn't start on what is kept for them, and GPUs that are kept for two."""
    claimed: dict[GpuUuid, JobId] = {}
    for job_id, claim in state.claims.items():
        for uuid in [uuid for task in claim.tasks for uuid in task.gpus]:
            if claimed.setdefault(uuid, claim.job) != claim.job:
                yield f"GPU {uuid} is kept for job {claimed[uuid]} and for job {claim.job}"
        job = state.jobs.get(job_id)
        if job is None or claim.job != job_id or job.members is not None or not may_claim(None, job):
            yield f"GPUs are kept for what does not wait for them: {job.story() if job else f'job {job_id}'}"
        elif [task.rank for task in claim.tasks] != list(range(job.spec.demand.tasks)):
            yield f"{len(claim.tasks)} places are kept for {job.spec.demand.tasks} tasks: {job.story()}"


def _job_faults(state: ClusterState, job: Job) -> Iterator[str]:
    open_attempts = [attempt.number for attempt in job.attempts if attempt.outcome is None]
    if job.state in LIVE and open_attempts != [job.newest_attempt]:
        yield "live without exactly its newest attempt open"
    if job.state not in LIVE and open_attempts:
        yield f"attempts {open_attempts} open in a state that holds nothing"
    if [attempt.number for attempt in job.attempts] != list(range(job.attempts_before + 1, job.newest_attempt + 1)):
        yield "attempts out of order"
    if any(attempt.epoch > state.epoch for attempt in job.attempts):
        yield f"an attempt of an epoch beyond {state.epoch}"
    if job.is_final != (job.ended_at != NEVER):
        yield "ended without a time, or a time without an end"
    if job.is_final and job.reason is None:
        yield "ended without a reason"
    if job.state is JobState.RUNNING and not job.attempts[-1].all_started:
        yield "running before every rank has started"
    if job.members is not None:
        yield from _array_faults(state, job)
    if job.spec.partition and not job.is_final and job.spec.partition not in state.partitions:
        yield f"in partition {job.spec.partition}, which isn't there"
    if job.spec.tenant not in state.tenants and not job.is_final:
        yield f"of tenant {job.spec.tenant}, which isn't there"
    if job.id >= state.next_job_id:
        yield f"an id at or beyond the next one, {state.next_job_id}"
    # Not the policy's bounds, which may have been lowered since.
    bounds = (
        (job.retries_used, min(job.spec.retries_max, _ended(job, Outcome.FAILED, Outcome.START_FAILED))),
        (job.requeues_used, _ended(job, Outcome.NODE_FAILED, Outcome.LOST)),
        (job.port_retries_used, _ended(job, Outcome.PORT_TAKEN)),
        (job.preemptions, _ended(job, Outcome.PREEMPTED)),
    )
    if any(used > most for used, most in bounds):
        yield "more tries used than were made"


def _ended(job: Job, *outcomes: Outcome) -> int:
    return sum(attempt.outcome in outcomes for attempt in job.attempts)


def _array_faults(state: ClusterState, array: Job) -> Iterator[str]:
    """Every member is in one place: waiting, a record, cancelled before it was one, or forgotten."""
    spec, members = array.as_array
    tally = state.indexes.arrays[array.id]
    counted = members.waiting + len(tally.open) + tally.ok + tally.bad + members.pruned_ok + members.pruned_bad
    counted += sum(count_of(each.indexes) for each in members.cancelled)
    if counted != spec.count or members.waiting != count_of(members.lazy):
        yield f"{counted} of {spec.count} members are accounted for, {members.waiting} of them waiting"
    if (
        count_of(members.pruned_failed) > members.pruned_bad - members.pruned_cancelled
        or count_of(members.pruned_succeeded) > members.pruned_ok
        or count_of(members.pruned_stopped) > members.pruned_cancelled
    ):
        yield "more forgotten members are named than were counted"
    if spec.running_max and tally.live > spec.running_max:
        yield f"{tally.live} members live, more than {spec.running_max}"
    if array.attempts:
        yield "an array was attempted itself"
    if array.is_final and tally.open:
        yield "ended before its members"


def no_use_below_zero(state: ClusterState) -> Iterator[str]:
    """No tenant has used less than nothing: what was added when something began is taken off again when it ends."""
    for tenant in state.decayed_usage.negative(state.indexes.usage_ledger.by_tenant):
        yield f"the decayed usage of tenant {tenant} is below zero"


def indexes_derived(state: ClusterState) -> Iterator[str]:
    """Every index equals what `rebuild` makes from nothing."""
    return drifted(state.indexes, state.rebuilt_indexes())


def drifted(kept: Indexes, fresh: Indexes) -> Iterator[str]:
    """Yield each index that differs from the one that was made from nothing."""
    for name, index in vars(fresh).items():
        if not name.startswith("_") and getattr(kept, name) != index:
            yield f"index {name} has drifted from the records"
