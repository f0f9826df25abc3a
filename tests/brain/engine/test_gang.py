"""Rules G1 to G5 of `engine/gang.py`: all or nothing, few nodes, ranks in order."""

from stoker.brain.domain.reason import ReasonCode
from tests.builders import A100, V100, cluster, job, node, running_on, where


def test_a_gang_that_does_not_fit_whole_takes_nothing() -> None:
    here = cluster(node("a", gpus=4), node("b", gpus=3), job(1, gpus=4, tasks=2), job(2, gpus=7))
    plan = here.plan()
    assert not plan.actions
    here = here.plus(job(3, gpus=3))
    assert where(here.plan()) == {3: [("b", [0, 1, 2])]}


def test_one_node_is_preferred_to_a_tighter_pair() -> None:
    here = cluster(node("a", gpus=2), node("b", gpus=2), node("c", gpus=8), job(1, gpus=2, tasks=2))
    assert where(here.plan()) == {1: [("c", [0, 1]), ("c", [2, 3])]}


def test_of_nodes_that_hold_the_whole_gang_the_tightest_is_chosen() -> None:
    here = cluster(node("a", gpus=8), node("b", gpus=4), job(1, gpus=2, tasks=2))
    assert where(here.plan()) == {1: [("b", [0, 1]), ("b", [2, 3])]}


def test_otherwise_the_fewest_nodes_are_used() -> None:
    here = cluster(node("a", gpus=2), node("b", gpus=2), node("c", gpus=4), node("d", gpus=4), job(1, gpus=1, tasks=8))
    assert {name for name, _ in where(here.plan())[1]} == {"c", "d"}


def test_the_rest_of_a_gang_goes_to_its_tightest_fit() -> None:
    here = cluster(node("a", gpus=8), node("b", gpus=8), node("c", gpus=3), node("d", gpus=2), job(1, gpus=1, tasks=10))
    assert [name for name, _ in where(here.plan())[1]] == ["a"] * 8 + ["d"] * 2


def test_cpus_limit_how_many_tasks_a_node_takes() -> None:
    here = cluster(node("a", gpus=8, cpus=6), node("b", gpus=4, cpus=64), job(1, gpus=1, cpus=2, tasks=6))
    assert [name for name, _ in where(here.plan())[1]] == ["a"] * 2 + ["b"] * 4


def test_the_node_that_holds_most_tasks_comes_first_whatever_limits_it() -> None:
    """`a` has the most GPUs but CPUs for one task; `b` is limited to three; `c` holds four."""
    here = cluster(
        node("a", gpus=8, cpus=2),
        node("b", gpus=8, cpus=6),
        node("c", gpus=4, cpus=64),
        job(1, gpus=1, cpus=2, tasks=7),
    )
    assert [name for name, _ in where(here.plan())[1]] == ["b"] * 3 + ["c"] * 4


def test_a_node_held_back_by_its_cpus_is_used_before_one_that_holds_fewer_tasks() -> None:
    """Were `c` filled first, because its GPUs are all that limits it, the gang would need three nodes."""
    here = cluster(
        node("a", gpus=8, cpus=10), node("b", gpus=8, cpus=10), node("c", gpus=4), job(1, gpus=1, cpus=2, tasks=10)
    )
    assert [name for name, _ in where(here.plan())[1]] == ["a"] * 5 + ["b"] * 5


def test_memory_limits_how_many_tasks_a_node_takes() -> None:
    here = cluster(
        node("a", gpus=4, memory_mb=2_500), node("b", gpus=4, memory_mb=9_000), job(1, gpus=1, memory_mb=1_000, tasks=5)
    )
    assert [name for name, _ in where(here.plan())[1]] == ["a"] + ["b"] * 4


def test_a_gang_without_gpus_is_spread_by_its_cpus() -> None:
    here = cluster(node("a", cpus=4), node("b", cpus=4), job(1, cpus=3, tasks=2))
    assert where(here.plan()) == {1: [("a", []), ("b", [])]}


def test_ranks_follow_node_name_and_device_order() -> None:
    """Node `b` holds more and is filled first, and yet rank 0 is on `a`."""
    here = cluster(node("b", gpus=4), node("a", gpus=2), job(1, gpus=2, tasks=3))
    plan = here.plan()
    assert [task.rank for task in plan.actions[0].tasks] == [0, 1, 2]
    assert where(plan) == {1: [("a", [0, 1]), ("b", [0, 1]), ("b", [2, 3])]}


def test_a_gang_of_one_model_each_may_span_models() -> None:
    here = cluster(node("a", models=[A100] * 2), node("b", models=[V100] * 2), job(1, gpus=2, tasks=2))
    assert where(here.plan()) == {1: [("a", [0, 1]), ("b", [0, 1])]}


def test_two_gangs_submitted_between_each_other_never_hold_half() -> None:
    """faults.md 73: two gangs of two on three slots: exactly one runs."""
    here = cluster(*(node(f"n{i}", gpus=1) for i in range(3)), job(1, gpus=1, tasks=2), job(2, gpus=1, tasks=2))
    plan = here.plan()
    assert list(where(plan)) == [1]
    assert [reason.code for reason in plan.reasons.values()] == [ReasonCode.INSUFFICIENT_GPUS]
    assert list(where(here.after(plan).without(1).plan())) == [2]


def test_fifty_gangs_of_four_on_sixteen_gpus_all_get_their_turn() -> None:
    """faults.md 75."""
    here = cluster(node("a", gpus=8), node("b", gpus=8), *(job(i, gpus=1, tasks=4) for i in range(1, 51)))
    started: list[int] = []
    while here.jobs:
        plan = here.plan()
        started += [place.job for place in plan.actions]
        assert plan.actions, "the queue stalled"
        here = here.after(plan).without(*(place.job for place in plan.actions))
    assert started == list(range(1, 51))


def test_no_more_tasks_share_a_node_than_the_job_lets() -> None:
    here = cluster(node("a", gpus=8), node("b", gpus=8), node("c", gpus=8), job(1, gpus=1, tasks=3, tasks_per_node=2))
    assert [name for name, _ in where(here.plan())[1]] == ["a", "a", "b"]


def test_one_task_per_node_needs_as_many_nodes_as_tasks() -> None:
    here = cluster(node("a", gpus=8), node("b", gpus=8), job(1, gpus=1, tasks=3, tasks_per_node=1))
    assert not here.plan().actions
    assert where(here.plus(node("c", gpus=1)).plan()) == {1: [("a", [0]), ("b", [0]), ("c", [0])]}


def test_the_rest_of_a_bounded_gang_still_goes_to_its_tightest_fit() -> None:
    """Two on `a`, two on `b`, and the fifth doesn't break up `c` since `d` is enough."""
    nodes = [node(name, gpus=8) for name in "abc"]
    here = cluster(*nodes, node("d", gpus=1), job(1, gpus=1, tasks=5, tasks_per_node=2))
    assert [name for name, _ in where(here.plan())[1]] == ["a", "a", "b", "b", "d"]


def test_a_bounded_gang_goes_where_it_leaves_the_fewest_gpus_over() -> None:
    nodes = [*(node(name, gpus=3) for name in "abcd"), *(node(name, gpus=2) for name in "yz")]
    here = cluster(*nodes, job(1, gpus=1, tasks=4, tasks_per_node=1))
    assert [name for name, _ in where(here.plan())[1]] == ["a", "b", "y", "z"]


def test_a_bound_above_the_number_of_tasks_bounds_nothing() -> None:
    here = cluster(node("a", gpus=8), node("b", gpus=8), job(1, gpus=1, tasks=4, tasks_per_node=9))
    assert [name for name, _ in where(here.plan())[1]] == ["a"] * 4


def test_tasks_without_gpus_are_bounded_per_node_too() -> None:
    here = cluster(node("a", cpus=64), node("b", cpus=64), job(1, tasks=4, tasks_per_node=2))
    assert [name for name, _ in where(here.plan())[1]] == ["a", "a", "b", "b"]
    assert not here.plus(job(1, tasks=5, tasks_per_node=2)).plan().actions


def test_a_gang_fits_round_what_runs() -> None:
    here = cluster(node("a", gpus=4), running_on(job(1, gpus=2), ("a", [0, 2])), job(2, gpus=1, tasks=2))
    assert where(here.plan()) == {2: [("a", [1]), ("a", [3])]}
