"""How fast does the engine decide?

Each row is measured on the product's own state and view, through `cycle.propose` and `cycle.settle`; placements have a
floor measured in the same run, so that figures from two machines can be compared:
    placements   jobs of 1, 2, 4 and 8 GPUs onto an empty cluster of 5,000 nodes x 8 GPUs, a pass per 1,024
    selected     the same where half of the nodes have a label and every job selects it
    starved      the same where most nodes have GPUs left but no CPUs: the worst case of a search in name order
    full pass    10,000 waiting gangs of mixed shapes on a busy cluster of 200 x 8: mostly reasons, few placements
    all unlike   the same where no two gangs have one shape, so that no verdict is shared, in several ways
    shared       placements, and full passes, where the jobs are of 16 tenants in a tree, each with a guarantee and
                 limits that are looked at and never met, and of both classes
    array        members of one array of 10,000 are placed, run and end, with a throttle and without
    growth       with --growth instead of all these: a full pass over jobs with limits of 1 to 24 hours, behind jobs
                 that end at as many times, while nodes, jobs, shapes and running attempts grow one at a time
The floor of placements is the bare loop: take the next node's GPUs by number, build the same records, decide nothing.
Priorities age: every job has waited for up to 30 hours. Times are CPU times, so that other programs don't count.

Run: PYTHONPATH=src python -m benchmarks.decide [--nodes 5000] [--quick] [--growth]
"""

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from stoker.brain import cycle
from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.array import ArraySpec, Members
from stoker.brain.domain.demand import Demand, JobClass
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import CONTROL, Epoch, GpuUuid, JobId, NodeName, Position, Principal, TenantName
from stoker.brain.domain.job import Attempt, EndCause, Job, JobSpec, Task, TaskEnd
from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.brain.domain.node import Inventory, Node
from stoker.brain.domain.plan import Place, Plan
from stoker.brain.domain.quota import Limits, Quota
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import DAY_MS, HOUR_MS, Instant
from stoker.brain.domain.where import ANYWHERE, Where, make_where
from stoker.brain.engine.draft import Draft
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact
from stoker.brain.state.events.job import JobEvent, JobFinished, TaskEnded, TaskStarted
from stoker.brain.state.events.union import Event
from stoker.brain.state.state_view import StateView

_MODEL, _GPU_MEMORY_MB = "NVIDIA A100-SXM4-80GB", 81_920
_GPUS_PER_NODE: Final = 8
_BUDGET: Final = 1_024
_NOW: Final = Instant(100 * HOUR_MS)
_GANGS: Final = 10_000
_COLLECTOR: Final = (10_000, 50, 100)
"""As the control plane sets it."""
_T = TypeVar("_T")
_BAR: Final = 50
"""Characters of the longest bar."""
_GpuDemand = tuple[int, Demand, Where]
"""Priority, demand and selection of one job."""


class Bench:
    """A cluster whose jobs are put where they are wanted, and what its passes took."""

    def __init__(
        self,
        nodes: int,
        cpus: int,
        labelled: Callable[[int], dict[str, str]] = lambda _: {},
        *,
        shared: bool = False,
        limits_h: Sequence[int] = (24,),
    ) -> None:
        """`limits_h` are the time limits that jobs have in turn, those that run too."""
        self.state = ClusterState()
        self._shared, self._limits_h = shared, limits_h
        for tenant in _tree(nodes * _GPUS_PER_NODE) if shared else ():
            self.state.put_tenant(tenant)
        self.state.epoch = Epoch(1)
        for number in range(nodes):
            self.state.put_node(_node(number, cpus, labelled(number)))

    @property
    def view(self) -> StateView:
        return StateView(self.state)

    def submit(self, wishes: Sequence[_GpuDemand], dice: random.Random) -> None:
        for priority, demand, where in wishes:
            self._put(_spec(demand, priority=priority, where=where), Instant(_NOW - dice.randrange(30 * HOUR_MS)))

    def submit_array(self, members: int, running_max: int) -> JobId:
        array = ArraySpec(indexes=((0, members - 1, 1),), running_max=running_max)
        return self._put(_spec(Demand(gpu_count=1), array=array), _NOW)

    def _put(self, spec: JobSpec, at: Instant) -> JobId:
        job = self.state.next_job_id
        if self._shared:
            tenant, job_class = TenantName(f"team-{job % _TEAMS}"), tuple(JobClass)[job // _TEAMS % 2]
            spec = replace(spec, tenant=tenant, job_class=job_class)
        spec = replace(spec, time_limit_ms=self._limits_h[job % len(self._limits_h)] * HOUR_MS)
        count = spec.array.count if spec.array else 0
        members = Members(lazy=spec.array.indexes, waiting=count) if spec.array else None
        self.state.put_job(Job(id=job, uid="", spec=spec, by=_BY, submitted_at=at, members=members))
        self.state.next_job_id = JobId(job + 1 + count)
        return job

    def occupy(self, name: NodeName, gpus: int, cpus: int, memory_mb: int, first: int = 0) -> None:
        """A job that runs there from now on, on GPUs from the `first` on."""
        held = tuple(gpu.uuid for gpu in self.state.nodes[name].inventory.gpus[first : first + gpus])
        placement = TaskPlacement(rank=0, node=name, gpus=held, cpus=cpus, memory_mb=memory_mb)
        job = self._put(_spec(Demand(gpu_count=gpus, cpus=cpus, memory_mb=memory_mb)), _NOW)
        attempt = Attempt(number=1, epoch=Epoch(1), tasks=(Task(placement=placement),), placed_at=_NOW)
        self.state.put_job(replace(self.state.jobs[job], state=JobState.STARTING, attempts=(attempt,)))

    def propose(self) -> Plan:
        return cycle.propose(self.view, self.state.policy, _NOW, 0, _BUDGET)

    def carry_out(self, plan: Plan) -> int:
        """The number of events."""
        count = 0
        for events in cycle.settle(self.state, plan, decided_at=self.state.position, seed=0):
            count += len(events)
            self.apply(*events)
        return count

    def apply(self, *events: Event) -> None:
        for event in events:
            apply(self.state, Fact(at=_NOW, by=CONTROL, event=event), Position(self.state.position + 1))

    def pass_by_pass(self) -> tuple[int, float, float]:
        """Placements, seconds inside `propose`, the longest pass."""
        placed, spent, longest = 0, 0.0, 0.0
        while True:
            took, plan = _timed(self.propose)
            placed, spent, longest = placed + len(plan.actions), spent + took, max(longest, took)
            self.carry_out(plan)
            if not plan.more:
                return placed, spent, longest


_BY: Final = Principal("user:bench")
_TEAMS: Final = 16
_FAR: Final = 10**9


def _tree(gpus: int) -> Iterator[Tenant]:
    """Two departments with eight teams each; half of the GPUs are guaranteed to somebody."""
    limits = Limits(gpus=_FAR, cpus=_FAR, jobs=_FAR)
    for number in range(2):
        yield Tenant(name=TenantName(f"department-{number}"), quota=Quota(guaranteed=gpus // 4, limits=limits))
    for number in range(_TEAMS):
        quota = Quota(guaranteed=gpus // 4 // (_TEAMS // 2), limits=limits)
        yield Tenant(name=TenantName(f"team-{number}"), parent=TenantName(f"department-{number % 2}"), quota=quota)


def _spec(demand: Demand, *, priority: int = 500, where: Where = ANYWHERE, array: ArraySpec | None = None) -> JobSpec:
    return JobSpec(
        name="bench",
        demand=demand,
        command="true",
        priority=priority,
        time_limit_ms=DAY_MS,
        where=where,
        array=array,
    )


def _node(number: int, cpus: int, labels: dict[str, str]) -> Node:
    gpus = tuple(
        Gpu(uuid=GpuUuid(f"GPU-{number:05}-{i}"), index=i, model=_MODEL, memory_mb=_GPU_MEMORY_MB)
        for i in range(_GPUS_PER_NODE)
    )
    inventory = Inventory(
        boot_id="b", address=f"10.{number >> 8}.{number & 255}.1", gpus=gpus, cpus=cpus, memory_mb=2**20, labels=labels
    )
    return Node(name=NodeName(f"node-{number:05}"), inventory=inventory, registered_at=Instant(0))


def _mixed_jobs(dice: random.Random, gpus: int, where: Where = ANYWHERE) -> list[_GpuDemand]:
    wanted: list[_GpuDemand] = []
    while gpus > 0:
        count = dice.choices((1, 2, 4, 8), weights=(6, 2, 1, 1))[0]
        wanted.append((500, Demand(gpu_count=count, cpus=count * 4, memory_mb=count * 1_024), where))
        gpus -= count
    return wanted


def _bare_loop(bench: Bench) -> tuple[int, float]:
    """The same records without a decision: the next node that has enough GPUs, round and round."""
    nodes, left = list(bench.view.free), dict(bench.view.free)
    actions, at = [], 0
    began = time.process_time()
    for bucket in bench.view.pending():
        demand = bucket.shape.demand
        for job in bucket.jobs:
            while len(left[nodes[at]].gpus) < demand.gpu_count:
                at += 1
            free = left[nodes[at]]
            gpus = tuple([gpu.uuid for gpu in free.gpus[: demand.gpu_count]])
            task = TaskPlacement(rank=0, node=nodes[at], gpus=gpus, cpus=demand.cpus, memory_mb=demand.memory_mb)
            left[nodes[at]] = free.take(task)
            actions.append(Place(job=job, attempt=1, tasks=(task,)))
    return len(actions), time.process_time() - began


def placements(nodes: int, *, shared: bool = False) -> None:
    dice = random.Random(1)
    bench = Bench(nodes, cpus=128, shared=shared)
    bench.submit(_mixed_jobs(dice, nodes * 4), dice)
    floor_count, floor_s = _bare_loop(bench)
    setup_s = min(_timed(lambda: Draft(bench.view))[0] for _ in range(20))
    gc.freeze()
    placed, spent, longest = bench.pass_by_pass()
    floor = floor_count / floor_s
    name = "shared" if shared else "placements"
    print(f"{name:12} {nodes} x 8, 1/2/4/8 GPUs: {placed} in {spent:.2f} s = {placed / spent:,.0f}/s")
    print(f"             bare loop {floor:,.0f}/s, ratio {floor / (placed / spent):.2f}")
    print(f"             longest pass {longest * 1e3:.1f} ms, draft set up in {setup_s * 1e3:.2f} ms")


def selected(nodes: int) -> None:
    dice = random.Random(1)
    bench = Bench(nodes, cpus=128, labelled=lambda number: {"zone": "a"} if number % 2 else {})
    bench.submit(_mixed_jobs(dice, nodes * 2, make_where("zone=a")), dice)
    placed, spent, longest = bench.pass_by_pass()
    print(f"selected     zone=a on every other of {nodes} nodes: {placed} in {spent:.2f} s = {placed / spent:,.0f}/s")
    print(f"             longest pass {longest * 1e3:.1f} ms")


def starved(nodes: int) -> None:
    dice = random.Random(1)
    bench = Bench(nodes, cpus=128)
    for name in list(bench.state.nodes)[: nodes * 9 // 10]:
        bench.occupy(name, 0, 128, 0)
    bench.submit(_mixed_jobs(dice, nodes * 8 // 20), dice)
    placed, spent, longest = bench.pass_by_pass()
    print(f"starved      90 % of {nodes} nodes without CPUs: {placed} in {spent:.2f} s = {placed / spent:,.0f}/s")
    print(f"             longest pass {longest * 1e3:.1f} ms")


class Full:
    """Passes over a queue of which nothing fits."""

    def __init__(self, repeats: int, gangs: int) -> None:
        self._repeats, self._gangs = repeats, gangs

    def measure(
        self,
        name: str,
        free: Sequence[int],
        wish: Callable[[random.Random, int], _GpuDemand],
        *,
        shared: bool = False,
        limits_h: Sequence[int] = (24,),
    ) -> None:
        """`free` are the numbers of free GPUs that nodes have; `wish` gives the n-th gang."""
        dice = random.Random(2)
        bench = Bench(
            200, cpus=128, labelled=lambda number: {"rack": f"r{number // 8}"}, shared=shared, limits_h=limits_h
        )
        for node in list(bench.state.nodes):
            bench.occupy(node, 8 - dice.choice(free), 128 - dice.randrange(0, 64), 2**20 - dice.randrange(2**18))
        bench.submit([wish(dice, number) for number in range(self._gangs)], dice)
        gc.collect()
        gc.freeze()
        first_s, first = _timed(bench.propose)
        bench.carry_out(first)
        while bench.carry_out(bench.propose()):
            pass  # with as many looks as a pass has backfill finds more of them
        took = []
        for _ in range(self._repeats):
            seconds, again = _timed(bench.propose)
            assert not any(isinstance(each, Place) for each in again.actions), (
                "the passes before left out a gang that fits"
            )
            took.append(seconds * 1e3)
        assert not shared or len(bench.state.indexes.usage_ledger.by_class) == len(JobClass), "it isn't shared"
        codes = sorted({reason.code.removeprefix("insufficient_") for reason in again.reasons.values()})
        print(f"{name:22} {len(again.reasons):6} shapes: ", end="")
        print(f"median {statistics.median(took):5.1f} ms, best {min(took):5.1f} ms ({', '.join(codes)});", end=" ")
        print(f"the pass before: {len(first.actions)} placements, {first_s * 1e3:.1f} ms")


class Size(NamedTuple):
    """What the time of a pass may depend on."""

    nodes: int
    jobs: int
    shapes: int
    running: int

    def pass_ms(self, repeats: int) -> float:
        """The median of full passes, in milliseconds."""
        dice = random.Random(3)
        bench = Bench(self.nodes, cpus=128, limits_h=range(1, 25))
        names = list(bench.state.nodes)
        for number in range(min(self.running, self.nodes * _GPUS_PER_NODE)):
            bench.occupy(names[number % self.nodes], 1, 4, 2**14, first=number // self.nodes)
        gangs = [_gang(dice, number) for number in range(self.shapes)]
        bench.submit([gangs[number % self.shapes] for number in range(self.jobs)], dice)
        while bench.carry_out(bench.propose()):
            pass
        gc.collect()
        gc.freeze()
        found = statistics.median(_timed(bench.propose)[0] for _ in range(repeats)) * 1e3
        gc.unfreeze()
        return found


def growth(repeats: int, base: Size) -> None:
    """Print the time of a pass while one of its sizes grows and the others stay."""
    print(f"growth       full passes of {base.jobs:,} gangs of {base.shapes:,} shapes on {base.nodes:,} x 8, ", end="")
    print(f"{base.running:,} running attempts; but for")
    for name in Size._fields:
        value = getattr(base, name)
        most = base.nodes * _GPUS_PER_NODE if name == "running" else base.jobs if name == "shapes" else value * 10
        points = {each: None for part in (10, 4, 2, 1) if (each := max(1, value // part))} | {
            each: None for times in (2, 4, 10) if (each := min(value * times, most))
        }
        took = {each: base._replace(**{name: each}).pass_ms(repeats) for each in points}
        for each, took_ms in took.items():
            bar = "#" * round(_BAR * took_ms / max(took.values()))
            print(f"{name:12} {each:9,} {took_ms:9.1f} ms  {bar}")


def full_passes(repeats: int, gangs: int) -> None:
    print(f"full passes  {gangs:,} gangs on 200 x 8, nothing to place")
    full, some, none = Full(repeats, gangs), (0, 0, 0, 1, 1, 2, 3), (0,)
    racks = [make_where(f"rack in (r{i}, r{i + 5})") for i in range(20)]
    full.measure("mixed", some, lambda dice, _: _gang(dice, dice.choice((0, 16_384))))
    full.measure("mixed, shared", some, lambda dice, _: _gang(dice, dice.choice((0, 16_384))), shared=True)
    full.measure("unlike, shared", some, lambda dice, n: _gang(dice, n), shared=True)
    full.measure("unlike in memory", some, lambda dice, n: _gang(dice, n))
    full.measure("the same, 24 ends", some, lambda dice, n: _gang(dice, n), limits_h=range(1, 25))
    full.measure("the same, all busy", none, lambda dice, n: _gang(dice, n))
    full.measure("the same, 20 selections", some, lambda dice, n: _gang(dice, n, where=dice.choice(racks)))
    full.measure("unlike in selection", some, lambda dice, _: _gang(dice, 0, where=_any_racks(dice)))
    full.measure("unlike in CPUs, tasks", some, lambda dice, n: _gang(dice, 0, tasks=1 + n // 100, cpus=n % 100))
    full.measure("large, unlike", some, lambda dice, n: (500, Demand(cpus=64, memory_mb=2**18 + n), ANYWHERE))
    full.measure("unlike in GPU memory", none, lambda dice, n: _gang(dice, 0, gpu_memory_mb=1 + n))


def _any_racks(dice: random.Random) -> Where:
    return make_where(f"rack in ({','.join(f'r{i}' for i in dice.sample(range(25), 12))})")


def _gang(dice: random.Random, memory_mb: int, where: Where = ANYWHERE, **fields: int) -> _GpuDemand:
    demand = Demand(
        gpu_count=dice.choice((1, 2, 4, 8)),
        tasks=dice.choice((1, 1, 2, 4, 8, 16, 32, 64)),
        cpus=dice.choice((1, 4, 8)),
        memory_mb=memory_mb,
    )
    return dice.choice((100, 500, 1_000, 2_000)), replace(demand, **fields), where


def arrays(members: int, running_max: int) -> None:
    bench = Bench(200, cpus=128)
    array = bench.submit_array(members, running_max)
    decide_s = place_s = end_s = 0.0
    placed = ended = 0
    while True:
        took, plan = _timed(bench.propose)
        decide_s += took
        if not plan.actions:
            break
        took, events = _timed(lambda plan=plan: bench.carry_out(plan))  # type: ignore[misc]  # bound to this turn
        place_s, placed = place_s + took, placed + events
        ends = [event for job in tuple(bench.state.indexes.arrays[array].open) for event in _life(job)]
        took, _ = _timed(lambda ends=ends: bench.apply(*ends))  # type: ignore[misc]  # bound to this turn
        end_s, ended = end_s + took, ended + len(ends)
    print(f"array        {members} members, at most {running_max or 'any'} at once: ", end="")
    print(f"deciding {decide_s / members * 1e6:.1f} us per member, settled and applied ", end="")
    print(f"{place_s / placed * 1e6:.1f} us per event of a start, {end_s / ended * 1e6:.1f} us per event of an end")


def _life(job: JobId) -> tuple[JobEvent, ...]:
    end = TaskEnd(cause=EndCause.EXITED, at=_NOW, exit_code=0)
    return (
        TaskStarted(job=job, attempt=1, rank=0),
        TaskEnded(job=job, attempt=1, rank=0, end=end),
        JobFinished(job=job, state=JobState.SUCCEEDED, outcome=Outcome.SUCCEEDED, exit_code=0),
    )


def _timed(work: Callable[[], _T]) -> tuple[float, _T]:
    began = time.process_time()
    made = work()
    return time.process_time() - began, made


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nodes", type=int, default=5_000)
    options.add_argument("--gangs", type=int, default=_GANGS, help="that wait; and members of the arrays")
    options.add_argument("--quick", action="store_true", help="a tenth of the nodes, and few passes")
    options.add_argument("--growth", action="store_true", help="how a pass grows with the cluster and its queue")
    chosen = options.parse_args()
    nodes, repeats = (chosen.nodes // 10, 3) if chosen.quick else (chosen.nodes, 30)
    gc.set_threshold(*_COLLECTOR)
    if chosen.growth:
        size = max(1, nodes // 25)
        growth(
            min(repeats, 10), Size(nodes=size, jobs=chosen.gangs, shapes=max(1, chosen.gangs // 10), running=size * 4)
        )
        return
    placements(nodes)
    placements(nodes, shared=True)
    selected(nodes)
    starved(nodes)
    full_passes(repeats, chosen.gangs)
    arrays(chosen.gangs, 0)
    arrays(chosen.gangs, 300)


if __name__ == "__main__":
    main()
