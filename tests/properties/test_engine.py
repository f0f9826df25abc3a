"""What must hold for any cluster, any queue and any plan.

The oracle enumerates which GPUs a task could get, one subset after the other; it shares no code with the engine.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from random import Random
from unittest.mock import patch

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.brain.domain.demand import Demand, Shape
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName, PartitionName
from stoker.brain.domain.job import Job
from stoker.brain.domain.label import labels_of
from stoker.brain.domain.node import Free, Node, NodePause
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.plan import Plan
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import Reason, ReasonCode, describe
from stoker.brain.domain.units import HOUR_MS
from stoker.brain.domain.where import ANYWHERE, Where, admits, make_where
from stoker.brain.engine import demand_cache, gpu_choices
from tests.builders import NOW, Cluster, cluster, job, node, refused_on, tenant

_MODELS = ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB")
_MEMORY_MB = {_MODELS[0]: 40_960, _MODELS[1]: 81_920, _MODELS[2]: 32_768}


@st.composite
def _nodes(draw: st.DrawFn) -> list[Node]:
    names = draw(st.lists(st.sampled_from(["a", "b-1", "b-10", "b-2", "c"]), min_size=1, max_size=4, unique=True))
    return [_node(draw, name) for name in names]


def _node(draw: st.DrawFn, name: str) -> Node:
    models = draw(st.lists(st.sampled_from(_MODELS), max_size=4))
    made = node(
        name,
        models=models,
        cpus=draw(st.integers(0, 6)),
        memory_mb=draw(st.sampled_from([0, 50, 100, 400])),
        address=draw(st.sampled_from(["", "10.0.0.1"])),
        reachable=draw(st.sampled_from([True, True, True, False])),
        returned=draw(st.sampled_from([True, True, True, False])),
        drain=draw(st.sampled_from([None, None, None, "disk"])),
        pause=draw(st.sampled_from([None, None, None, NodePause(until=NOW, error="disk full")])),
        labels=draw(st.dictionaries(st.sampled_from(["zone", "new"]), st.sampled_from(["x", "y"]))),
        taints=draw(st.sampled_from([(), (), (), ("old:NoSchedule",)])),
    )
    gpus = tuple(msgspec.structs.replace(gpu, memory_mb=_MEMORY_MB[gpu.model]) for gpu in made.inventory.gpus)
    return msgspec.structs.replace(made, inventory=msgspec.structs.replace(made.inventory, gpus=gpus))


@st.composite
def _jobs(draw: st.DrawFn) -> list[Job]:
    made = [
        job(
            number,
            gpus=draw(st.integers(0, 4)),
            tasks=draw(st.sampled_from([1, 1, 2, 3, 5])),
            model=draw(st.sampled_from(["", "", "A100", "v100", "H100"])),
            gpu_memory_mb=draw(st.sampled_from([0, 0, 40_000, 80_000])),
            cpus=draw(st.integers(0, 3)),
            memory_mb=draw(st.sampled_from([0, 0, 60, 200])),
            priority=draw(st.sampled_from([100, 500])),
            tasks_per_node=draw(st.sampled_from([0, 0, 0, 1, 2])),
            where=draw(_wheres()),
            partition=draw(st.sampled_from(["", "", "p", "q", "gone"])),
            array=draw(st.sampled_from(["", "", "", "0-3", "2,5-7%2", "0-1%1"])),
            tenant=draw(st.sampled_from(["default", "default", "lab", "team", "solo"])),
            waited_h=draw(st.sampled_from([0, 0, 3, 30])),
        )
        for number in range(10, 10 * draw(st.integers(1, 8)) + 1, 10)
    ]
    refusals = st.sampled_from([(), (), (("a",),), (("b-1", "c"), ("a",))])
    return [each if each.members else refused_on(each, *draw(refusals)) for each in made]


@st.composite
def _wheres(draw: st.DrawFn) -> Where:
    if draw(st.booleans()):
        return ANYWHERE
    return make_where(
        draw(st.sampled_from(["", "zone=x", "zone!=x", "new", "!new,zone", "zone in (x,y),new=y"])),
        draw(st.sampled_from([(), (), ("b-1",), ("a", "c")])),
        draw(st.sampled_from([(), ("old",), ("*",)])),
    )


_PARTITIONS = (
    Partition(name=PartitionName("p"), where=make_where("zone=x")),
    Partition(name=PartitionName("q"), where=make_where("", ("a",), ("old",))),
)


_TENANTS = (
    tenant("lab", nodes=("b*", "c")),
    tenant("team", parent="lab"),
    tenant("solo", parent="lab", nodes=("*-1*",)),
)
_NAMES = {"default": {"a", "b-1", "b-10", "b-2", "c"}, "lab": {"b-1", "b-10", "b-2", "c"}}
_NAMES |= {"team": _NAMES["lab"], "solo": {"b-1", "b-10"}}
"""The nodes that each tenant may use, told by eye."""


def _here(nodes: Sequence[Node], jobs: Sequence[Job]) -> Cluster:
    return cluster(*nodes, *jobs, *_PARTITIONS, *_TENANTS)


def _may(node: Node, shape: Shape) -> bool:
    """By asking each of the two selections; who tolerates what, and who may use which node, is told by eye."""
    wheres = [shape.where, *(each.where for each in _PARTITIONS if each.name == shape.partition)]
    labels = labels_of(node)
    tolerant = any(each.tolerate for each in wheres)
    selected = all(admits(each, node.name, labels, ()) for each in wheres)
    return selected and (tolerant or not node.inventory.taints) and node.name in _NAMES[shape.tenant]


def _serves(gpus: Sequence[Gpu], demand: Demand) -> bool:
    """May one task hold exactly these? Models are told apart by eye here: three of them, three wishes."""
    word = demand.gpu_model.upper()
    right = all(word in gpu.model and gpu.memory_mb >= demand.gpu_memory_mb for gpu in gpus)
    return right and (not word or len({gpu.model for gpu in gpus}) <= 1)


def _most(gpus: Sequence[Gpu], demand: Demand, at_most: int) -> int:
    """The most tasks that these GPUs serve, by trying every subset for the next task."""
    if at_most == 0:
        return 0
    if not demand.gpu_count:
        return at_most
    best = 0
    for chosen in combinations(gpus, demand.gpu_count):
        if _serves(chosen, demand):
            rest = [gpu for gpu in gpus if gpu not in chosen]
            best = max(best, 1 + _most(rest, demand, at_most - 1))
            if best == at_most:
                break
    return best


def _capacity(gpus: Sequence[Gpu], cpus: int, memory_mb: int, demand: Demand) -> int:
    most = min(demand.tasks, demand.tasks_per_node or demand.tasks)
    while most and (most * demand.cpus > cpus or most * demand.memory_mb > memory_mb):
        most -= 1
    return _most(gpus, demand, most)


def _capacity_now(here: Cluster, shape: Shape, demand: Demand) -> int:
    return _capacity_in(here, here.free, shape, demand)


def _capacity_in(here: Cluster, free_on: Mapping[NodeName, Free], shape: Shape, demand: Demand) -> int:
    return sum(
        _capacity(free.gpus, free.cpus, free.memory_mb, demand)
        for name, free in free_on.items()
        if _may(here.nodes[name], shape)
    )


def _capacity_empty(nodes: Sequence[Node], demand: Demand) -> int:
    return sum(_capacity(n.inventory.gpus, n.inventory.cpus, n.inventory.memory_mb, demand) for n in nodes)


@given(_nodes(), _jobs())
def test_no_plan_takes_a_gpu_twice_or_more_than_a_node_has(nodes: list[Node], jobs: list[Job]) -> None:
    here = _here(nodes, jobs)
    after = here.after(here.plan())  # `Free.take` asserts both for each placement
    held = [uuid for attempt in after.live_attempts() for task in attempt.tasks for uuid in task.placement.gpus]
    assert len(held) == len(set(held))
    assert all(free.cpus >= 0 and free.memory_mb >= 0 for free in after.free.values())


@given(_nodes(), _jobs())
def test_every_gang_is_whole_served_as_asked_and_ranked_in_node_and_device_order(
    nodes: list[Node], jobs: list[Job]
) -> None:
    here = _here(nodes, jobs)
    gpu_of: dict[GpuUuid, Gpu] = {gpu.uuid: gpu for node in nodes for gpu in node.inventory.gpus}
    for place in here.plan().actions:
        shape = here.job(place.array or place.job).spec.shape
        demand = shape.demand
        assert [task.rank for task in place.tasks] == list(range(demand.tasks))
        order = []
        for task in place.tasks:
            gpus = [gpu_of[uuid] for uuid in task.gpus]
            assert here.nodes[task.node].takes_work
            assert _may(here.nodes[task.node], shape)
            assert all(uuid.startswith(f"GPU-{task.node}-") for uuid in task.gpus)
            assert len(gpus) == demand.gpu_count
            assert _serves(gpus, demand)
            assert gpus == sorted(gpus, key=lambda gpu: gpu.index)
            assert (task.cpus, task.memory_mb) == (demand.cpus, demand.memory_mb)
            order.append((task.node, gpus[0].index if gpus else 0))
        assert order == sorted(order)
        most = max(Counter(task.node for task in place.tasks).values())
        assert not demand.tasks_per_node or most <= demand.tasks_per_node


@given(_nodes(), _jobs())
def test_whoever_waits_has_a_reason_and_fits_nowhere_in_what_is_left(nodes: list[Node], jobs: list[Job]) -> None:
    here = _here(nodes, jobs)
    plan = here.plan()
    after = here.after(plan)
    assert {job.spec.shape for job in after.waiting()} == set(plan.reasons)
    for shape in plan.reasons:
        assert _capacity_now(after, shape, shape.demand) < shape.demand.tasks


@given(_nodes(), _jobs())
def test_no_array_runs_more_members_than_its_limit_lets(nodes: list[Node], jobs: list[Job]) -> None:
    here = _here(nodes, jobs)
    for _ in range(3):
        here = here.after(here.plan())
        for array in here.jobs.values():
            if array.spec.array and array.members is not None and array.spec.array.running_max:
                live = sum(each.array_of == array.id and each.live_attempt is not None for each in here.jobs.values())
                assert live <= array.spec.array.running_max
        here = here.without(*(each.id for each in here.jobs.values() if each.array_of and each.id % 2))


@given(_nodes(), _jobs())
def test_who_is_first_and_fits_on_what_it_selects_is_placed(nodes: list[Node], jobs: list[Job]) -> None:
    here = _here(nodes, jobs)
    waiting = here.waiting()
    first = min(waiting, key=lambda job: (-_effective(job), job.id))
    fits = _capacity_now(here, first.spec.shape, first.spec.demand) >= first.spec.demand.tasks
    placed = [place.job for place in here.plan().actions]
    assert placed[:1] == [first.id] if fits else first.id not in placed


def _effective(job: Job) -> int:
    hours = (NOW - job.submitted_at) / HOUR_MS
    return job.spec.priority + min(400, int(hours * 20))


@given(_nodes(), _jobs())
def test_every_reason_is_true(nodes: list[Node], jobs: list[Job]) -> None:
    here = _here(nodes, jobs)
    plan = here.plan()
    after = here.after(plan)
    for shape, reason in plan.reasons.items():
        demand = shape.demand
        assert "?" not in describe(reason)
        selected = [node for node in nodes if _may(node, shape)]
        ready = [node for node in selected if node.schedulable]
        away = _capacity_in(after, after.returning, shape, demand)
        if not selected:
            assert reason.code is ReasonCode.NO_SELECTED_NODE
        elif _capacity_now(after, shape, demand) + away >= demand.tasks:
            assert away
            assert reason.code is ReasonCode.NODES_RETURNING
        elif _capacity_empty(selected, demand) < demand.tasks:
            assert reason.code is ReasonCode.NO_FITTING_NODE
        elif _capacity_empty(ready, demand) < demand.tasks:
            usable = [node for node in selected if replace(node, pause=None).schedulable]
            paused = [node for node in usable if node.pause and _capacity_empty([node], demand)]
            if paused and _capacity_empty(usable, demand) >= demand.tasks:
                assert (reason.code, reason.facts["paused"]) == (ReasonCode.NODES_PAUSED, len(paused))
                continue
            assert reason.code is ReasonCode.NODES_UNAVAILABLE
            facts = reason.facts
            counted = [node for node in selected if not node.schedulable and _capacity_empty([node], demand)]
            assert facts["fitting"] == len(counted)
            assert facts["unreachable"] == sum(not node.reachable for node in counted)
            assert facts["paused"] == len(paused)
        else:
            assert reason.code in {
                ReasonCode.INSUFFICIENT_GPUS,
                ReasonCode.INSUFFICIENT_NODES,
                ReasonCode.INSUFFICIENT_CPUS,
                ReasonCode.INSUFFICIENT_MEMORY,
            }


@given(_nodes(), _jobs())
def test_what_is_called_short_is_short_when_nothing_else_is(nodes: list[Node], jobs: list[Job]) -> None:
    """The code names the first of GPUs, nodes, CPUs, memory at which a sufficient supply of all that follow doesn't
    help."""
    here = _here(nodes, jobs)
    after = here.after(here.plan())
    again = after.plan()
    assert not again.actions, "the first pass left out a job that fits"
    for shape, reason in again.reasons.items():
        tasks = shape.demand.tasks
        spread = msgspec.structs.replace(shape.demand, cpus=0, memory_mb=0)
        gpus_only = msgspec.structs.replace(spread, tasks_per_node=0)
        no_memory = msgspec.structs.replace(shape.demand, memory_mb=0)
        if reason.code is ReasonCode.INSUFFICIENT_GPUS:
            assert _capacity_now(after, shape, gpus_only) < tasks
        elif reason.code is ReasonCode.INSUFFICIENT_NODES:
            assert _capacity_now(after, shape, gpus_only) >= tasks > _capacity_now(after, shape, spread)
            assert reason.facts["room"] == _capacity_now(after, shape, spread)
        elif reason.code is ReasonCode.INSUFFICIENT_CPUS:
            assert _capacity_now(after, shape, spread) >= tasks > _capacity_now(after, shape, no_memory)
            assert reason.facts["room"] == _capacity_now(after, shape, no_memory)
        elif reason.code is ReasonCode.INSUFFICIENT_MEMORY:
            assert _capacity_now(after, shape, no_memory) >= tasks
            assert reason.facts["room"] == _capacity_now(after, shape, shape.demand)


@given(_nodes(), _jobs())
def test_nobody_is_overtaken_by_a_later_or_less_important_job_of_the_same_shape(
    nodes: list[Node], jobs: list[Job]
) -> None:
    here = _here(nodes, jobs)
    placed = {place.job for place in here.plan().actions}
    after = here.after(here.plan())
    waiting = here.waiting()
    for one in waiting:
        for other in waiting:
            ahead = (-_effective(one), one.id) < (-_effective(other), other.id)
            if ahead and one.spec.shape == other.spec.shape and other.id in placed:
                assert one.id in placed or (one.array_of and after.array_slots(one.array_of) == 0)


@given(_nodes(), _jobs(), st.randoms(use_true_random=False), st.integers(1, 4))
def test_the_plan_does_not_depend_on_the_order_in_which_things_came(
    nodes: list[Node], jobs: list[Job], dice: Random, budget: int
) -> None:
    def plan() -> Plan:
        return _here(nodes, jobs).plan(budget=budget)

    expected = plan()
    dice.shuffle(nodes)
    dice.shuffle(jobs)
    assert plan() == expected


@given(_nodes(), _jobs(), st.integers(1, 4))
def test_tables_of_what_is_free_only_save_time(nodes: list[Node], jobs: list[Job], budget: int) -> None:
    """They are made where many shapes, or many searches in vain, are expected; the plan is the same without them."""
    here = _here(nodes, jobs)
    expected = here.plan(budget=budget)
    with patch.object(gpu_choices, "NODES_PER_SHAPE", 0), patch.object(demand_cache, "_MISSES_MAX", 1_000_000):
        without = here.plan(budget=budget)
    assert without.actions == expected.actions
    # Who was sifted out by a table is told why; without one the budget may end before he is looked at.
    for shape, reason in without.reasons.items():
        assert reason in (expected.reasons[shape], Reason(ReasonCode.BUDGET_SPENT, {"placed": budget}))


@given(_nodes(), _jobs(), st.integers(1, 3))
def test_a_small_budget_reaches_the_same_jobs_pass_by_pass(nodes: list[Node], jobs: list[Job], budget: int) -> None:
    """Taking the passes one after the other gives just the placements of one long pass."""
    here = _here(nodes, jobs)
    expected = {place.job: place.tasks for place in here.plan().actions}
    found: dict[JobId, object] = {}
    more = True
    while more:
        plan = here.plan(budget=budget)
        assert len(plan.actions) <= budget
        found.update({place.job: place.tasks for place in plan.actions})
        here, more = here.after(plan), plan.more
    assert found == expected


@given(_nodes(), _jobs(), st.integers(1, 4))
def test_a_port_serves_one_attempt_per_address_however_few_there_are(
    nodes: list[Node], jobs: list[Job], ports: int
) -> None:
    here = _here(nodes, jobs)
    policy = Policy(port_min=30_000, port_max=30_000 + ports - 1)
    first = here.plan(policy=policy, budget=2)
    second = here.after(first).plan(policy=policy)
    used: list[tuple[str, int]] = []
    for place in (*first.actions, *second.actions):
        demand = here.job(place.array or place.job).spec.demand
        if demand.tasks == 1 and demand.gpu_count < 2:
            assert not place.master_port
            continue
        assert place.master_addr == here.nodes[NodeName(place.tasks[0].node)].inventory.address
        assert policy.port_min <= place.master_port <= policy.port_max
        used.append((place.master_addr, place.master_port))
    assert len(used) == len(set(used))
    _check_refusals_for_ports(here.after(first).after(second), second, policy)


def _check_refusals_for_ports(after: Cluster, plan: Plan, policy: Policy) -> None:
    """Who is told `no_free_port` would fit, but for the nodes of addresses without a port."""
    every = set(range(policy.port_min, policy.port_max + 1))
    for shape, reason in plan.reasons.items():
        if reason.code is not ReasonCode.NO_FREE_PORT:
            continue
        assert set(after.ports_in_use(str(reason.facts["address"]))) == every
        usable = sum(
            _capacity(free.gpus, free.cpus, free.memory_mb, shape.demand)
            for name, free in after.free.items()
            if set(after.ports_in_use(after.nodes[name].inventory.address)) != every and _may(after.nodes[name], shape)
        )
        assert usable < shape.demand.tasks
