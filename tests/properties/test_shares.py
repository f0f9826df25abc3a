"""What holds for shares of GPUs on every cluster and in every queue that chance can draw."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.job import Job
from stoker.brain.domain.plan import Plan
from stoker.brain.domain.policy import Policy
from stoker.brain.engine.decide import decide
from stoker.brain.engine.draft import Draft
from tests.builders import A100, NOW, V100, Cluster, job, node

SHARERS_MAX = 4
POLICY = Policy(gpu_sharers_max=SHARERS_MAX)

nodes = st.lists(
    st.builds(
        lambda models, cpus: (tuple(models), cpus),
        st.lists(st.sampled_from([A100, V100]), max_size=4),
        st.sampled_from([2, 64]),
    ),
    min_size=1,
    max_size=4,
)
demands = st.lists(
    st.tuples(
        st.sampled_from([WHOLE_GPU, WHOLE_GPU, 1, 200, 250, 333, 500, 750, 999]),
        st.sampled_from([0, 0, 1_000, 20_000, 40_000]),
        st.sampled_from([1, 1, 1, 2, 3]),
        st.sampled_from(["", "", "A100"]),
    ),
    min_size=1,
    max_size=24,
)


def queue(drawn: list[tuple[int, int, int, str]]) -> list[Job]:
    return [
        job(at, gpus=1, share=of, gpu_memory_mb=memory_mb, tasks=tasks, model=model)
        for at, (of, memory_mb, tasks, model) in enumerate(drawn, start=1)
    ]


def made_of(drawn: list[tuple[tuple[str, ...], int]], jobs: list[Job]) -> Cluster:
    return Cluster([node(f"n{at}", models=models, cpus=cpus) for at, (models, cpus) in enumerate(drawn)], jobs)


def tasks_of(plan: Plan) -> list[TaskPlacement]:
    return [task for action in plan.actions for task in action.tasks]


@given(nodes, demands)
@settings(max_examples=150, deadline=None)
def test_no_gpu_is_promised_beyond_its_thousandths_its_memory_or_its_sharers_and_exclusive_ones_are_alone(
    machines: list[tuple[tuple[str, ...], int]], drawn: list[tuple[int, int, int, str]]
) -> None:
    made = made_of(machines, queue(drawn))
    milli, memory, sharers = Counter[GpuUuid](), Counter[GpuUuid](), Counter[GpuUuid]()
    for task in tasks_of(decide(made, POLICY, NOW, 0, 1_000)):
        milli[task.gpus[0]] += task.gpu_share
        memory[task.gpus[0]] += task.gpu_memory_mb
        sharers[task.gpus[0]] += 1
    for each in made.nodes.values():
        for gpu in each.inventory.gpus:
            assert milli[gpu.uuid] <= WHOLE_GPU
            assert memory[gpu.uuid] <= gpu.memory_mb
            assert sharers[gpu.uuid] <= SHARERS_MAX


@given(nodes, demands)
@settings(max_examples=150, deadline=None)
def test_a_job_that_waits_fits_nowhere_at_the_end_of_the_pass(
    machines: list[tuple[tuple[str, ...], int]], drawn: list[tuple[int, int, int, str]]
) -> None:
    """Counted anew and slowly: of each shape that waits, one task at a time on whatever device takes it."""
    made = made_of(machines, queue(drawn))
    plan = decide(made, POLICY, NOW, 0, 1_000)
    draft = Draft(made, SHARERS_MAX)
    for task in tasks_of(plan):
        draft.take(task)
    for shape in plan.reasons:
        demand = shape.demand
        if demand.tasks == 1:
            alone = Cluster(made.nodes.values(), [])
            alone.free = dict(draft.free)
            again = [replace(job(99, gpus=1), spec=replace(job(99).spec, demand=demand))]
            alone.jobs = {each.id: each for each in again}
            assert not decide(alone, POLICY, NOW, 0, 1_000).actions, f"{demand} fits, and waits"


@given(nodes, demands, st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_whatever_order_things_are_put_back_in_the_draft_is_what_it_was(
    machines: list[tuple[tuple[str, ...], int]], drawn: list[tuple[int, int, int, str]], chance: object
) -> None:
    made = made_of(machines, queue(drawn))
    tasks = tasks_of(decide(made, POLICY, NOW, 0, 1_000))
    draft = Draft(made, SHARERS_MAX)
    for task in tasks:
        draft.take(task)
    chance.shuffle(tasks)  # type: ignore[attr-defined]  # a random.Random
    for task in tasks:
        draft.put_back(task)
    assert dict(draft.free) == dict(made.free)


@given(nodes, demands)
@settings(max_examples=100, deadline=None)
def test_no_whole_gpu_is_opened_while_a_shared_one_would_have_taken_the_task(
    machines: list[tuple[tuple[str, ...], int]], drawn: list[tuple[int, int, int, str]]
) -> None:
    made = made_of(machines, [each for each in queue(drawn) if each.spec.demand.tasks == 1])
    plan = decide(made, POLICY, NOW, 0, 1_000)
    draft = Draft(made, SHARERS_MAX)
    for task in tasks_of(plan):
        if task.gpu_share != WHOLE_GPU and not _is_shared(draft, task.node, task.gpus[0]):
            demand = made.jobs[next(each.job for each in plan.actions if task in each.tasks)].spec.demand
            for name, free in draft.free.items():
                for rest in free.shared:
                    room = rest.fits(task.gpu_share, demand.memory_bound_mb(rest.gpu.memory_mb), SHARERS_MAX)
                    suits = demand.gpu_memory_mb <= rest.gpu.memory_mb and demand.gpu_model in rest.gpu.model
                    assert not (room and suits and free.cpus), f"{task} opened a GPU beside {rest} on {name}"
        draft.take(task)


def _is_shared(draft: Draft, name: NodeName, uuid: GpuUuid) -> bool:
    return any(rest.gpu.uuid == uuid for rest in draft.free[name].shared)
