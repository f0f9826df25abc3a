"""How fast does the engine decide?

Four tables, each with a floor measured in the same run, so that figures from two machines can be compared:
    placements   jobs of 1, 2, 4 and 8 GPUs onto an empty cluster of 5,000 nodes x 8 GPUs, a pass per 1,024
    starved      the same where most nodes have GPUs left but no CPUs: the worst case of a search in name order
    full pass    10,000 waiting gangs of mixed shapes on a busy cluster of 200 x 8: mostly reasons, few placements
    all unlike   the same where no two gangs have one shape, so that no verdict is shared
The floor of placements is the bare loop: take the next node's GPUs by number, build the same records, decide nothing.

Run: PYTHONPATH=src python benchmarks/decide.py [--nodes 5000] [--quick]
"""

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.demand import Demand, JobClass, Shape
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import DEFAULT_TENANT, Epoch, GpuUuid, JobId, NodeName, Position, Principal
from stoker.brain.domain.job import Job, JobSpec
from stoker.brain.domain.node import Free, Inventory, Node
from stoker.brain.domain.plan import Place, Plan
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import DAY_MS, Instant
from stoker.brain.engine.decide import decide
from stoker.brain.engine.draft import Draft
from stoker.brain.state.view import Bucket, GpuKinds

_MODEL, _GPU_MEMORY_MB = "NVIDIA A100-SXM4-80GB", 81_920
_GPUS_PER_NODE = 8
_BUDGET = 1_024
_NO_PORTS: frozenset[int] = frozenset()
_T = TypeVar("_T")


class BenchView:
    """A View over plain dictionaries, which the benchmark changes between passes."""

    def __init__(self, nodes: int, cpus: int) -> None:
        self.position, self.epoch = Position(1), Epoch(1)
        self.nodes: Mapping[NodeName, Node] = {node.name: node for node in (_node(i, cpus) for i in range(nodes))}
        self.free: dict[NodeName, Free] = {
            name: Free(node.inventory.gpus, cpus, node.inventory.memory_mb) for name, node in self.nodes.items()
        }
        self.buckets: list[Bucket] = []
        self.jobs: dict[JobId, Job] = {}

    @property
    def by_free(self) -> Mapping[GpuKinds, Mapping[int, Sequence[NodeName]]]:
        return self._by_free

    def reindex(self) -> None:
        by_count: dict[int, list[NodeName]] = {}
        for name in sorted(self.free):
            by_count.setdefault(len(self.free[name].gpus), []).append(name)
        self._by_free: dict[GpuKinds, dict[int, list[NodeName]]] = {((_MODEL, _GPU_MEMORY_MB),): by_count}

    def pending(self) -> Iterable[Bucket]:
        return self.buckets

    def job(self, job: JobId) -> Job:
        return self.jobs[job]

    def ports_in_use(self, address: str) -> frozenset[int]:
        return _NO_PORTS

    def carry_out(self, plan: Plan) -> None:
        for place in plan.actions:
            for task in place.tasks:
                self.free[task.node] = self.free[task.node].take(task)
        placed = {place.job for place in plan.actions}
        self.buckets = [
            Bucket(bucket.priority, bucket.shape, left)
            for bucket in self.buckets
            if (left := [job for job in bucket.jobs if job not in placed])
        ]
        self.reindex()

    def submit(self, shapes: Sequence[tuple[int, Demand]]) -> None:
        buckets: dict[tuple[int, Shape], list[JobId]] = {}
        for number, (priority, demand) in enumerate(shapes, start=1):
            spec = JobSpec(name="bench", demand=demand, command="true", priority=priority, time_limit_ms=DAY_MS)
            self.jobs[JobId(number)] = Job(
                id=JobId(number), uid="", spec=spec, by=Principal("user:bench"), submitted_at=Instant(0)
            )
            shape = Shape(DEFAULT_TENANT, JobClass.BATCH, demand)
            buckets.setdefault((priority, shape), []).append(JobId(number))
        self.buckets = [Bucket(priority, shape, ids) for (priority, shape), ids in buckets.items()]


def _node(number: int, cpus: int) -> Node:
    name = f"node-{number:05}"
    gpus = tuple(
        Gpu(uuid=GpuUuid(f"GPU-{number:05}-{i}"), index=i, model=_MODEL, memory_mb=_GPU_MEMORY_MB)
        for i in range(_GPUS_PER_NODE)
    )
    inventory = Inventory(
        boot_id="b", address=f"10.{number >> 8}.{number & 255}.1", gpus=gpus, cpus=cpus, memory_mb=2**20
    )
    return Node(name=NodeName(name), inventory=inventory, registered_at=Instant(0))


def _mixed_jobs(dice: random.Random, gpus: int, cpus_per_gpu: int) -> list[tuple[int, Demand]]:
    wanted: list[tuple[int, Demand]] = []
    while gpus > 0:
        count = dice.choices((1, 2, 4, 8), weights=(6, 2, 1, 1))[0]
        wanted.append((500, Demand(gpu_count=count, cpus=count * cpus_per_gpu, memory_mb=count * 1_024)))
        gpus -= count
    return wanted


def _pass_by_pass(view: BenchView) -> tuple[int, float, float]:
    """Placements, seconds inside `decide`, the longest pass."""
    placed, spent, longest = 0, 0.0, 0.0
    while True:
        began = time.perf_counter()
        plan = decide(view, Policy(), Instant(0), 0, _BUDGET)
        took = time.perf_counter() - began
        placed, spent, longest = placed + len(plan.actions), spent + took, max(longest, took)
        view.carry_out(plan)
        if not plan.more:
            return placed, spent, longest


def _bare_loop(view: BenchView) -> tuple[int, float]:
    """The same records without a decision: the next node that has enough GPUs, round and round."""
    nodes, left = list(view.free), dict(view.free)
    actions, at = [], 0
    began = time.perf_counter()
    for bucket in view.buckets:
        demand = bucket.shape.demand
        for job in bucket.jobs:
            while len(left[nodes[at]].gpus) < demand.gpu_count:
                at += 1
            free = left[nodes[at]]
            gpus = tuple([gpu.uuid for gpu in free.gpus[: demand.gpu_count]])
            task = TaskPlacement(rank=0, node=nodes[at], gpus=gpus, cpus=demand.cpus, memory_mb=demand.memory_mb)
            left[nodes[at]] = free.take(task)
            actions.append(Place(job=job, attempt=1, tasks=(task,)))
    return len(actions), time.perf_counter() - began


def placements(nodes: int) -> None:
    view = BenchView(nodes, cpus=128)
    view.reindex()
    view.submit(_mixed_jobs(random.Random(1), nodes * 4, cpus_per_gpu=4))
    floor_count, floor_s = _bare_loop(view)
    setup_s = min(_timed(lambda: Draft(view))[0] for _ in range(20))
    placed, spent, longest = _pass_by_pass(view)
    floor = floor_count / floor_s
    print(f"placements   {nodes} x 8, 1/2/4/8 GPUs: {placed} in {spent:.2f} s = {placed / spent:,.0f}/s")
    print(f"             bare loop {floor:,.0f}/s, ratio {floor / (placed / spent):.2f}")
    print(f"             longest pass {longest * 1e3:.1f} ms, draft set up in {setup_s * 1e3:.2f} ms")


def starved(nodes: int) -> None:
    view = BenchView(nodes, cpus=128)
    for name in list(view.free)[: nodes * 9 // 10]:
        view.free[name] = Free(view.free[name].gpus, 0, 2**20)
    view.reindex()
    view.submit(_mixed_jobs(random.Random(1), nodes * 8 // 20, cpus_per_gpu=4))
    placed, spent, longest = _pass_by_pass(view)
    print(f"starved      90 % of {nodes} nodes without CPUs: {placed} in {spent:.2f} s = {placed / spent:,.0f}/s")
    print(f"             longest pass {longest * 1e3:.1f} ms")


def full_pass(name: str, memory_mb: Callable[[random.Random, int], int], repeats: int) -> None:
    """`memory_mb` of the n-th gang decides how many distinct shapes there are."""
    dice = random.Random(2)
    view = BenchView(200, cpus=128)
    for node, free in view.free.items():  # busy: 0 to 3 GPUs free on each node
        left = free.gpus[: dice.choice((0, 0, 0, 1, 1, 2, 3))]
        view.free[node] = Free(left, dice.randrange(0, 64), dice.randrange(2**18))
    view.reindex()
    view.submit([_gang(dice, memory_mb(dice, number)) for number in range(10_000)])
    first_s, first = _timed(lambda: decide(view, Policy(), Instant(0), 0, _BUDGET))
    view.carry_out(first)
    took = []
    for _ in range(repeats):
        seconds, again = _timed(lambda: decide(view, Policy(), Instant(0), 0, _BUDGET))
        assert not again.actions, "the first pass left out a gang that fits"
        took.append(seconds * 1e3)
    print(f"{name:12} 10,000 gangs of {len(again.reasons)} shapes on 200 x 8, nothing to place: ", end="")
    print(f"median {statistics.median(took):.1f} ms, worst {max(took):.1f} ms")
    print(f"             the pass before it: {len(first.actions)} placements, {first_s * 1e3:.1f} ms")


def _gang(dice: random.Random, memory_mb: int) -> tuple[int, Demand]:
    return dice.choice((100, 500, 1_000, 2_000)), Demand(
        gpu_count=dice.choice((1, 2, 4, 8)),
        tasks=dice.choice((1, 1, 2, 4, 8, 16, 32, 64)),
        cpus=dice.choice((1, 4, 8)),
        memory_mb=memory_mb,
    )


def _timed(work: Callable[[], _T]) -> tuple[float, _T]:
    began = time.perf_counter()
    made = work()
    return time.perf_counter() - began, made


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nodes", type=int, default=5_000)
    options.add_argument("--quick", action="store_true", help="a tenth of the nodes: for a smoke test")
    chosen = options.parse_args()
    nodes, repeats = (chosen.nodes // 10, 3) if chosen.quick else (chosen.nodes, 30)
    gc.freeze()
    placements(nodes)
    starved(nodes)
    full_pass("full pass", lambda dice, _: dice.choice((0, 16_384)), repeats)
    full_pass("all unlike", lambda _, number: number, repeats)


if __name__ == "__main__":
    main()
