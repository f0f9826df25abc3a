"""Numbers of nodes, GPUs and jobs of a cluster by status, and the status of each GPU."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.gpu import WHOLE_GPU, Gpu, GpuStatus
from stoker.brain.domain.health import HealthKind
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName
from stoker.brain.domain.lifecycle import JOB_STATES, NodeState
from stoker.brain.domain.node import Node, OrphanTask
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.cluster import ClusterState


class GpuCounts(NamedTuple):
    """Numbers of GPUs by status: total is their sum."""

    total: int = 0
    idle: int = 0
    busy: int = 0
    offline: int = 0
    quarantined: int = 0
    lost: int = 0


def known_nodes(state: ClusterState) -> Iterator[Node]:
    """Return every node that wasn't forgotten, by name."""
    return (state.nodes[name] for name in sorted(state.nodes) if not state.nodes[name].forgotten)


def count_gpus(state: ClusterState) -> GpuCounts:
    """Return how many GPUs of known nodes have which status."""
    counts = Counter[str](status for node in known_nodes(state) for status in gpu_statuses(state, node).values())
    return GpuCounts(counts.total(), **counts)


def gpu_statuses(state: ClusterState, node: Node) -> dict[GpuUuid, GpuStatus]:
    """Return the status of each GPU that a node has or has had."""
    drained = {each.uuid for each in node.inventory.conditions if each.kind is not HealthKind.LOST and not each.offered}
    held, quarantined, free = gpu_holders(state, node), quarantined_gpus(node), state.indexes.free.get(node.name)
    free_gpus = {gpu.uuid: None for gpu in free.gpus} if free else {}

    here = {gpu.uuid for gpu in node.inventory.gpus}

    def status_of(uuid: GpuUuid) -> GpuStatus:
        if uuid not in here and uuid not in drained:
            return "lost"
        if uuid in quarantined:
            return "quarantined"
        if not node.reachable:
            return "offline"
        if uuid in held:
            return "busy"
        return "idle" if uuid in free_gpus else "offline"

    return {gpu.uuid: status_of(gpu.uuid) for gpu in every_gpu(node)}


def every_gpu(node: Node) -> tuple[Gpu, ...]:
    """Return the GPUs of a node in PCI order, those that it has had and doesn't offer now last."""
    return node.mended.gpus


def gpu_holders(state: ClusterState, node: Node) -> dict[GpuUuid, JobId]:
    """Return the job that holds each held GPU of a node."""
    holdings = state.indexes.held.get(node.name, {})
    return {uuid: job for (job, _, _), placement in holdings.items() for uuid in placement.gpus}


def gpu_sharers(state: ClusterState, node: Node) -> dict[GpuUuid, list[tuple[JobId, TaskPlacement]]]:
    """Return the tasks that share each shared GPU of a node, by job and rank."""
    found: dict[GpuUuid, list[tuple[JobId, TaskPlacement]]] = {}
    held = state.indexes.held.get(node.name, {})
    for job, attempt, rank in sorted(held):
        placement = held[job, attempt, rank]
        if placement.gpu_share != WHOLE_GPU:
            found.setdefault(placement.gpus[0], []).append((job, placement))
    return found


def quarantined_gpus(node: Node) -> dict[GpuUuid, OrphanTask]:
    """Return the orphan task for which each GPU in quarantine is kept back."""
    return {uuid: stray for stray in node.strays if stray.unproved for uuid in stray.gpus}


def gpus_offered(state: ClusterState, name: NodeName) -> int:
    """Return how many GPUs a node offers to jobs, held or not: its part of the capacity of the cluster."""
    node = state.nodes.get(name)
    if node is None or not node.schedulable:
        return 0
    taken = {uuid for stray in node.strays for uuid in stray.gpus}
    return sum(gpu.uuid not in taken for gpu in node.inventory.gpus)


def count_jobs(state: ClusterState) -> dict[str, int]:
    """Return how many jobs are in each state. An array is one, and each of its members that began is one more."""
    return {name.value: len(state.indexes.by_state[name]) for name in JOB_STATES}


def count_running(state: ClusterState) -> int:
    """Return how many jobs and members of arrays run or are ending."""
    counts = count_jobs(state)
    running = sum(counts[name] for name, words in JOB_STATES.items() if words.mvp == "running")
    return running - state.indexes.running_arrays


class FreeGpus(NamedTuple):
    """Whole GPUs of one model that new work could have now."""

    model: str
    free: int
    most_on_node: int


def count_free_gpus(state: ClusterState) -> list[FreeGpus]:
    """Return the whole GPUs that are free on nodes that take new work, by model; of models with none, nothing."""
    free, most = Counter[str](), Counter[str]()
    paused = state.indexes.paused
    for name, left in state.indexes.free.items():
        if not left.gpus or name in state.indexes.returning or name in paused:
            continue
        for model, count in Counter([gpu.model for gpu in left.gpus]).items():
            free[model] += count
            most[model] = max(most[model], count)
    return [FreeGpus(model, free[model], most[model]) for model in sorted(free)]


def waits_since(state: ClusterState) -> Instant:
    """Return since when the oldest job waits that may be placed; NEVER = none does.

    It counts from the submission, or from the time at which the job was told to begin.
    """
    queues = (*state.indexes.waiting.values(), *state.indexes.waiting_arrays.values())
    oldest = (state.jobs[queue.entries[0]] for queue in queues)  # in each queue ids come in order of age
    return min((max(job.submitted_at, job.spec.begin) for job in oldest), default=NEVER)


def count_nodes(state: ClusterState) -> dict[str, int]:
    """Return how many nodes ever registered are in each state."""
    counts = {name.value: 0 for name in NodeState}
    for name in state.nodes:
        counts[state.node_state(name).value] += 1
    return counts
