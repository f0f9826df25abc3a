"""A cluster in one expression: `cluster(node("n1", gpus=8), job(1, gpus=4))`.

`Cluster` is a small honest View: it derives everything from its nodes and jobs at each call, as slowly as it likes, so
that the engine is not tested against the indexes that serve it in the product.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.demand import Demand, Shape
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import Epoch, GpuUuid, JobId, NodeName, Position, Principal
from stoker.brain.domain.job import Attempt, Job, JobSpec, Task
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.node import Free, Inventory, Node
from stoker.brain.domain.plan import Place, Plan
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import DAY_MS, Instant
from stoker.brain.engine.decide import decide
from stoker.brain.state.view import Bucket, GpuKinds

A100: Final = "NVIDIA A100-SXM4-80GB"
V100: Final = "Tesla V100-SXM2-32GB"
H100: Final = "NVIDIA H100 80GB HBM3"
MEMORY_MB: Final = {A100: 81_920, V100: 32_768, H100: 81_559}
NOW: Final = Instant(1_000_000)


def node(  # noqa: PLR0913  # a builder: each test names the one or two that it is about
    name: str,
    *,
    gpus: int = 0,
    models: Sequence[str] = (),
    gpu_memory_mb: int = 0,
    cpus: int = 64,
    memory_mb: int = 524_288,
    address: str = "",
    reachable: bool = True,
    drain: str | None = None,
    forgotten: bool = False,
) -> Node:
    """A node with `gpus` A100s, or with one GPU per entry of `models` in that order."""
    names = list(models) or [A100] * gpus
    return Node(
        name=NodeName(name),
        inventory=Inventory(
            boot_id="boot-1",
            address=address or f"{name}.example",
            gpus=tuple(
                Gpu(
                    uuid=GpuUuid(f"GPU-{name}-{index}"),
                    index=index,
                    model=model,
                    memory_mb=gpu_memory_mb or MEMORY_MB.get(model, 16_384),
                )
                for index, model in enumerate(names)
            ),
            cpus=cpus,
            memory_mb=memory_mb,
        ),
        registered_at=NOW,
        reachable=reachable,
        drain=drain,
        forgotten=forgotten,
    )


def job(  # noqa: PLR0913  # a builder: each test names the one or two that it is about
    id_: int,
    *,
    gpus: int = 0,
    tasks: int = 1,
    model: str = "",
    gpu_memory_mb: int = 0,
    cpus: int = 1,
    memory_mb: int = 0,
    priority: int = 500,
    tries: int = 0,
) -> Job:
    """A job that waits, after `tries` attempts that have ended."""
    demand = Demand(
        gpu_count=gpus, gpu_memory_mb=gpu_memory_mb, gpu_model=model, cpus=cpus, memory_mb=memory_mb, tasks=tasks
    )
    return Job(
        id=JobId(id_),
        uid=f"uid-{id_}",
        spec=JobSpec(name=f"job{id_}", demand=demand, command="true", priority=priority, time_limit_ms=DAY_MS),
        by=Principal("user:test"),
        submitted_at=NOW,
        attempts=tuple(Attempt(number=n, epoch=Epoch(1), placed_at=NOW, tasks=()) for n in range(1, tries + 1)),
    )


class Cluster:
    """Nodes and jobs at one moment. Never changed: `after` and `without` give the next moment."""

    def __init__(self, nodes: Iterable[Node], jobs: Iterable[Job]) -> None:
        self.nodes: Mapping[NodeName, Node] = {node.name: node for node in nodes}
        self.jobs: Mapping[JobId, Job] = {job.id: job for job in jobs}
        self.position = Position(len(self.jobs))
        self.epoch = Epoch(1)
        self.free: Mapping[NodeName, Free] = {
            name: self._free_on(node) for name, node in self.nodes.items() if node.schedulable
        }

    def _free_on(self, node: Node) -> Free:
        free = Free(node.inventory.gpus, node.inventory.cpus, node.inventory.memory_mb)
        for attempt in self.live_attempts():
            for task in attempt.tasks:
                if task.placement.node == node.name:
                    free = free.take(task.placement)
        return free

    def live_attempts(self) -> list[Attempt]:
        return [job.live_attempt for job in self.jobs.values() if job.live_attempt is not None]

    def pending(self) -> list[Bucket]:
        buckets: dict[tuple[int, Shape], list[JobId]] = {}
        for id_ in sorted(self.jobs):
            job = self.jobs[id_]
            if job.state is JobState.PENDING:
                buckets.setdefault((job.spec.priority, job.spec.shape), []).append(id_)
        return [Bucket(priority, shape, ids) for (priority, shape), ids in buckets.items()]

    def job(self, job: JobId) -> Job:
        return self.jobs[job]

    @property
    def by_free(self) -> Mapping[GpuKinds, Mapping[int, Sequence[NodeName]]]:
        found: dict[GpuKinds, dict[int, list[NodeName]]] = {}
        for name in sorted(self.free):
            kinds = tuple(sorted({(gpu.model, gpu.memory_mb) for gpu in self.nodes[name].inventory.gpus}))
            found.setdefault(kinds, {}).setdefault(len(self.free[name].gpus), []).append(name)
        return found

    def ports_in_use(self, address: str) -> frozenset[int]:
        return frozenset(a.master_port for a in self.live_attempts() if a.master_port and a.master_addr == address)

    def plan(self, *, policy: Policy | None = None, budget: int = 1_024, seed: int = 0) -> Plan:
        return decide(self, policy or Policy(), NOW, seed, budget)

    def after(self, plan: Plan) -> "Cluster":
        """The cluster in which all that was planned runs."""
        jobs = dict(self.jobs)
        for place in plan.actions:
            jobs[place.job] = _started(jobs[place.job], place)
        return Cluster(self.nodes.values(), jobs.values())

    def without(self, *ids: int) -> "Cluster":
        """The cluster in which these jobs have gone, and what they held is free."""
        return Cluster(self.nodes.values(), [job for job in self.jobs.values() if job.id not in ids])

    def plus(self, *things: Node | Job) -> "Cluster":
        """The cluster with these beside, or in the place of, what it has."""
        return cluster(*self.nodes.values(), *self.jobs.values(), *things)


def cluster(*things: Node | Job) -> Cluster:
    """Nodes and jobs in any order; of two with one name the later counts."""
    return Cluster(
        [thing for thing in things if isinstance(thing, Node)], [thing for thing in things if isinstance(thing, Job)]
    )


def _started(job: Job, place: Place) -> Job:
    attempt = Attempt(
        number=place.attempt,
        epoch=Epoch(1),
        placed_at=NOW,
        tasks=tuple(Task(placement=placement) for placement in place.tasks),
        master_addr=place.master_addr,
        master_port=place.master_port,
    )
    return msgspec.structs.replace(job, state=JobState.STARTING, attempts=(*job.attempts, attempt))


def running_on(job: Job, *where: tuple[str, Sequence[int]]) -> Job:
    """`job` with its ranks started: for each the node and the indexes of its GPUs."""
    return _started(
        job,
        Place(
            job=job.id,
            attempt=len(job.attempts) + 1,
            tasks=tuple(placement(rank, job, name, indexes) for rank, (name, indexes) in enumerate(where)),
        ),
    )


def placement(rank: int, job: Job, node_name: str, indexes: Sequence[int]) -> TaskPlacement:
    demand = job.spec.demand
    return TaskPlacement(
        rank=rank,
        node=NodeName(node_name),
        gpus=tuple(GpuUuid(f"GPU-{node_name}-{index}") for index in indexes),
        cpus=demand.cpus,
        memory_mb=demand.memory_mb,
    )


def where(plan: Plan) -> dict[int, list[tuple[str, list[int]]]]:
    """For each job that was placed: the node and the GPU indexes of each rank."""
    return {
        place.job: [(task.node, [int(uuid.rpartition("-")[2]) for uuid in task.gpus]) for task in place.tasks]
        for place in plan.actions
    }
