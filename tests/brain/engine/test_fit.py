"""Rules F1 to F4 of `engine/fit.py`: which node is tightest."""

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from stoker.brain.domain.fit import tasks_ever
from stoker.brain.domain.node import Node
from stoker.brain.domain.reason import ReasonCode
from stoker.brain.engine.demand_cache import GpuCounting, gpu_counting
from stoker.brain.engine.fit import CANDIDATES_MAX, SUSPECTS_MAX
from tests.builders import A100, H100, V100, cluster, job, node, running_on, where


def test_the_node_with_the_fewest_gpus_left_over_is_chosen() -> None:
    here = cluster(node("a", gpus=8), node("b", gpus=2), node("c", gpus=4), job(1, gpus=2))
    assert where(here.plan()) == {1: [("b", [0, 1])]}


def test_among_equal_gpus_the_fewest_cpus_are_left_over() -> None:
    here = cluster(node("a", gpus=2, cpus=64), node("b", gpus=2, cpus=16), job(1, gpus=1, cpus=8))
    assert where(here.plan()) == {1: [("b", [0])]}


def test_among_equal_cpus_the_least_memory_is_left_over() -> None:
    here = cluster(node("a", gpus=2, memory_mb=9_000), node("b", gpus=2, memory_mb=8_000), job(1, gpus=1))
    assert where(here.plan()) == {1: [("b", [0])]}


def test_fewer_cpus_left_over_count_more_than_less_memory() -> None:
    narrow, full = node("b", gpus=2, cpus=16, memory_mb=9_000), node("a", gpus=2, cpus=64, memory_mb=8_000)
    assert where(cluster(full, narrow, job(1, gpus=1, cpus=8)).plan()) == {1: [("b", [0])]}


def test_among_equals_the_first_by_name_is_chosen() -> None:
    here = cluster(node("b", gpus=2), node("a", gpus=2), job(1, gpus=1))
    assert where(here.plan()) == {1: [("a", [0])]}


def test_tightness_is_compared_across_kinds_of_node() -> None:
    here = cluster(node("a", models=[A100] * 4), node("b", models=[V100] * 2), job(1, gpus=2))
    assert where(here.plan()) == {1: [("b", [0, 1])]}


def test_only_suitable_gpus_count_as_left_over() -> None:
    """`b` has more free GPUs, but fewer that an H100 job could have used."""
    here = cluster(
        node("a", models=[H100] * 3), node("b", models=[H100, *[V100] * 7]), job(1, gpus=1, model="H100", cpus=1)
    )
    assert where(here.plan()) == {1: [("b", [0])]}


def test_a_node_without_enough_cpus_is_passed_over() -> None:
    here = cluster(node("a", gpus=2, cpus=4), node("b", gpus=8, cpus=64), job(1, gpus=2, cpus=5))
    assert where(here.plan()) == {1: [("b", [0, 1])]}


def test_a_node_without_enough_memory_is_passed_over() -> None:
    here = cluster(
        node("a", gpus=2, memory_mb=999), node("b", gpus=8, memory_mb=1_000), job(1, gpus=2, memory_mb=1_000)
    )
    assert where(here.plan()) == {1: [("b", [0, 1])]}


def test_gpu_memory_is_compared() -> None:
    """The MVP seed ignores a request for GPU memory in placement (seeds.md 4.6)."""
    here = cluster(
        node("a", gpus=1, gpu_memory_mb=40_960),
        node("b", gpus=8, gpu_memory_mb=81_920),
        job(1, gpus=1, gpu_memory_mb=40_961),
    )
    assert where(here.plan()) == {1: [("b", [0])]}


def test_gpu_memory_is_compared_per_gpu_of_one_node() -> None:
    here = cluster(node("a", models=[V100, A100, V100, A100]), job(1, gpus=2, gpu_memory_mb=40_000))
    assert where(here.plan()) == {1: [("a", [1, 3])]}


def test_a_short_model_name_finds_the_drivers_long_one() -> None:
    """`V100` for `Tesla V100-SXM2-32GB`; the dgpu seed compares the two for equality (seeds.md 1.7)."""
    here = cluster(node("a", gpus=4), node("b", models=[V100] * 8), job(1, gpus=2, model="V100"))
    assert where(here.plan()) == {1: [("b", [0, 1])]}


def test_a_model_that_is_asked_for_is_never_replaced_by_another() -> None:
    here = cluster(node("a", models=["NVIDIA A10"] * 4), job(1, gpus=1, model="A100"))
    plan = here.plan()
    assert not plan.actions
    assert [reason.code for reason in plan.reasons.values()] == [ReasonCode.NO_FITTING_NODE]


def test_a_job_without_gpus_goes_where_fewest_gpus_are_free() -> None:
    here = cluster(node("a", gpus=8), node("b", gpus=4), job(1))
    assert where(here.plan()) == {1: [("b", [])]}


def test_a_job_without_gpus_prefers_a_node_that_owns_none_to_one_that_is_busy() -> None:
    """The CPUs of a busy GPU node will be wanted by whoever gets its GPUs next."""
    busy = running_on(job(1, gpus=1, cpus=60), ("a", [0]))
    here = cluster(node("a", gpus=1, cpus=64), node("b", cpus=64), busy, job(2))
    assert where(here.plan()) == {2: [("b", [])]}


def test_a_job_that_asks_for_nothing_at_all_still_gets_a_node() -> None:
    here = cluster(node("a"), job(1, cpus=0))
    assert where(here.plan()) == {1: [("a", [])]}


def test_one_task_gets_gpus_of_one_model_although_a_mix_would_be_tighter() -> None:
    here = cluster(node("a", models=[A100, V100]), node("b", models=[V100] * 8), job(1, gpus=2))
    assert where(here.plan()) == {1: [("b", [0, 1])]}


def test_models_are_mixed_as_the_last_resort() -> None:
    here = cluster(node("a", models=[A100, V100, H100]), job(1, gpus=2))
    assert where(here.plan()) == {1: [("a", [0, 1])]}


def test_models_are_not_mixed_for_a_task_that_names_one() -> None:
    """Both match `A100`, and yet they are two models."""
    forty, eighty = "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"
    mixed = node("a", models=[forty, eighty])
    plan = cluster(mixed, job(1, gpus=2, model="A100")).plan()
    assert not plan.actions
    assert [reason.code for reason in plan.reasons.values()] == [ReasonCode.NO_FITTING_NODE]
    assert tasks_ever(mixed.inventory, job(1, gpus=2, model="A100").spec.demand) == 0
    assert tasks_ever(mixed.inventory, job(1, gpus=1, tasks=2, model="A100").spec.demand) == 2


def test_beyond_the_candidates_compared_in_a_bucket_the_fit_is_good_but_not_best() -> None:
    nodes = [node(f"n{i:03}", gpus=1, cpus=8) for i in range(CANDIDATES_MAX)]
    here = cluster(*nodes, node("z", gpus=1, cpus=4), job(1, gpus=1))
    assert where(here.plan()) == {1: [("n000", [0])]}


def test_the_last_candidate_of_a_bucket_is_still_compared() -> None:
    nodes = [node(f"n{i:03}", gpus=1, cpus=8) for i in range(CANDIDATES_MAX - 1)]
    here = cluster(*nodes, node("z", gpus=1, cpus=4), job(1, gpus=1))
    assert where(here.plan()) == {1: [("z", [0])]}


def test_nodes_that_do_not_fit_are_not_counted_as_candidates() -> None:
    nodes = [node(f"n{i:03}", gpus=1, cpus=1) for i in range(2 * CANDIDATES_MAX)]
    here = cluster(*nodes, node("z", gpus=1, cpus=4), job(1, gpus=1, cpus=4))
    assert where(here.plan()) == {1: [("z", [0])]}


def test_a_kind_of_node_is_judged_once_by_the_gpus_it_owns() -> None:
    two = ((A100, 81_920), (V100, 32_768))
    assert gpu_counting(two, job(1, gpus=2, model="H100").spec.demand, mixed=False) is GpuCounting.NEVER
    assert gpu_counting(two, job(1, gpus=2, model="V100").spec.demand, mixed=False) is GpuCounting.BY_GPU
    assert gpu_counting(two, job(1, gpus=2).spec.demand, mixed=False) is GpuCounting.BY_GPU
    assert gpu_counting(two, job(1, gpus=2).spec.demand, mixed=True) is GpuCounting.BY_COUNT
    assert gpu_counting(two, job(1, gpus=1).spec.demand, mixed=False) is GpuCounting.BY_COUNT
    assert gpu_counting((), job(1, gpus=1).spec.demand, mixed=False) is GpuCounting.NEVER
    assert gpu_counting((), job(1).spec.demand, mixed=False) is GpuCounting.BY_COUNT


def _warm(name: str, models: Sequence[str], warm: Collection[int], **more: int) -> Node:
    cool = node(name, models=models, **more)
    gpus = tuple(replace(gpu, suspect=gpu.index in warm) for gpu in cool.inventory.gpus)
    return replace(cool, inventory=replace(cool.inventory, gpus=gpus))


def test_f4_of_nodes_with_as_few_gpus_left_over_one_with_enough_cool_ones_is_chosen() -> None:
    a, b = _warm("a", [A100] * 2, [0, 1]), _warm("b", [A100] * 2, [0], cpus=128)
    assert where(cluster(a, b, job(1, gpus=1)).plan()) == {1: [("b", [1])]}
    assert where(cluster(a, b, job(1, gpus=2)).plan()) == {1: [("a", [0, 1])]}, "none has two"
    assert where(cluster(a, b, job(1, gpus=1), job(2, gpus=1)).plan()) == {1: [("b", [1])], 2: [("b", [0])]}


def test_f4_headroom_strands_no_gpus() -> None:
    """A cool GPU of a larger node would leave more GPUs over there."""
    here = cluster(_warm("a", [A100] * 2, [0, 1]), node("b", models=[A100] * 8), job(1, gpus=2))
    assert where(here.plan()) == {1: [("a", [0, 1])]}


def test_f4_the_rest_of_a_gang_goes_where_it_is_cool() -> None:
    warm, cool = _warm("b", [A100] * 2, [0]), node("c", models=[A100] * 2)
    here = cluster(node("a", models=[A100] * 4), warm, cool, job(1, gpus=1, tasks=6))
    assert [name for name, _ in where(here.plan())[1]] == ["a"] * 4 + ["c"] * 2


def test_f4_so_many_warm_nodes_are_passed_over_and_no_more() -> None:
    warm = [_warm(f"n{at:03}", [A100], [0]) for at in range(SUSPECTS_MAX)]
    assert where(cluster(*warm, node("z", models=[A100]), job(1, gpus=1)).plan()) == {1: [("z", [0])]}
    more = _warm("o", [A100], [0])
    assert where(cluster(*warm, more, node("z", models=[A100]), job(1, gpus=1)).plan()) == {1: [("n000", [0])]}
