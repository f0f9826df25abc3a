"""Rules D1 to D10 of `engine/decide.py`, and the rows of faults.md and seeds.md that a pass must answer."""

from types import ModuleType

import msgspec
import pytest

from stoker.brain.domain.ids import JobId
from stoker.brain.domain.plan import UndecidableShape
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import ReasonCode
from stoker.brain.engine import gang, gpu_choices, scheduling_pass
from tests.builders import A100, V100, cluster, job, member, node, refused_on, running_on, started_members, where


def test_a_blocked_large_job_does_not_hold_up_a_small_one_behind_it_that_is_over_in_time() -> None:
    """MVP: one large job at the head starves all smaller jobs even with idle GPUs (seeds.md 4.6)."""
    runs = running_on(job(1, gpus=4), ("a", [0, 1, 2, 3]))
    here = cluster(node("a", gpus=8), runs, job(2, gpus=8), job(3, gpus=2, limit_h=1))
    plan = here.plan()
    assert where(plan) == {3: [("a", [4, 5])]}
    assert plan.reasons[job(2, gpus=8).spec.shape].code is ReasonCode.INSUFFICIENT_GPUS


def test_a_job_that_can_never_run_does_not_hold_up_others() -> None:
    """Oversize head job (seeds.md 4.6)."""
    here = cluster(node("a", gpus=4), job(1, gpus=64, priority=2_000), job(2, gpus=1, priority=100))
    assert list(where(here.plan())) == [2]


def test_two_placements_of_one_pass_see_each_other() -> None:
    """faults.md 106: fast submits matched to one machine because just-assigned tasks were not counted."""
    here = cluster(node("a", gpus=1, cpus=2), node("b", gpus=1, cpus=2), job(1, gpus=1, cpus=2), job(2, gpus=1, cpus=2))
    assert where(here.plan()) == {1: [("a", [0])], 2: [("b", [0])]}


def test_sixty_four_jobs_never_overlap_on_a_gpu() -> None:
    """faults.md 103."""
    here = cluster(*(node(f"n{i}", gpus=8) for i in range(4)), *(job(i, gpus=1) for i in range(1, 65)))
    plan = here.plan()
    held = [uuid for place in plan.actions for task in place.tasks for uuid in task.gpus]
    assert len(held) == len(set(held)) == 32
    assert [reason.code for reason in plan.reasons.values()] == [ReasonCode.INSUFFICIENT_GPUS]
    assert not here.after(plan).plan().actions


def test_four_small_jobs_leave_the_other_node_empty() -> None:
    """faults.md 101: packing keeps a whole node for the four-GPU job."""
    here = cluster(node("a", gpus=4), node("b", gpus=4), *(job(i, gpus=1) for i in range(1, 5)), job(5, gpus=4))
    plan = here.plan()
    assert {task.node for place in plan.actions[:4] for task in place.tasks} == {"a"}
    assert where(plan)[5] == [("b", [0, 1, 2, 3])]


def test_small_jobs_are_packed_across_passes_too() -> None:
    here = cluster(node("a", gpus=4), node("b", gpus=4))
    for number in range(1, 5):
        here = here.plus(job(number, gpus=1))
        here = here.after(here.plan())
    assert [attempt.tasks[0].placement.node for attempt in here.live_attempts()] == ["a"] * 4


def test_a_job_that_was_blocked_starts_once_there_is_room() -> None:
    """faults.md 15: a blocked job is retried a few times, then never looked at again."""
    here = cluster(node("a", gpus=1), running_on(job(1, gpus=1), ("a", [0])), job(2, gpus=1))
    for _ in range(50):
        assert not here.plan().actions
    assert list(where(here.without(1).plan())) == [2]


def test_a_queue_of_blocked_shapes_never_hides_idle_nodes() -> None:
    """faults.md 14: 148 pending, 50 idle nodes of 8 GPUs. Whatever fits starts, and the rest is told why."""
    here = cluster(
        *(node(f"n{i:02}", gpus=8) for i in range(50)),
        *(job(i, gpus=9 + i % 7, priority=2_000) for i in range(1, 149)),
        *(job(i, gpus=8) for i in range(149, 199)),
    )
    plan = here.plan()
    assert list(where(plan)) == list(range(149, 199))
    assert {reason.code for reason in plan.reasons.values()} == {ReasonCode.NO_FITTING_NODE}
    assert len(plan.reasons) == 7


def test_a_wish_for_a_resource_that_no_node_has_blocks_only_who_wishes_it() -> None:
    """faults.md 16, as far as the engine goes: one job's absurd wish doesn't touch another's."""
    here = cluster(node("a", gpus=2), job(1, gpus=1, memory_mb=1 << 30), job(2, gpus=1, cpus=65_536), job(3, gpus=1))
    assert list(where(here.plan())) == [3]


def test_a_hundred_jobs_on_four_gpus_all_run() -> None:
    """faults.md 22."""
    here = cluster(node("a", gpus=4), *(job(i, gpus=1) for i in range(1, 101)))
    ran = 0
    while here.jobs:
        plan = here.plan()
        assert len(plan.actions) == 4
        ran += len(plan.actions)
        here = here.after(plan).without(*(place.job for place in plan.actions))
    assert ran == 100


def test_gpus_of_one_task_are_never_taken_from_two_nodes() -> None:
    """dgpu: a task whose GPUs span two nodes is run whole on both (seeds.md 1.7)."""
    assert not cluster(node("a", gpus=2), node("b", gpus=2), job(1, gpus=3)).plan().actions


@pytest.mark.parametrize("name", ["host", "gpu-1", "gpu-node-1", "rack-2-node-3"])
def test_dashes_in_a_node_name_change_nothing(name: str) -> None:
    """dgpu: the device number is the 4th dash-separated piece of the GPU's id (seeds.md 1.7)."""
    here = cluster(node(name, gpus=4), running_on(job(1, gpus=1), (name, [0])), job(2, gpus=2))
    assert where(here.plan()) == {2: [(name, [1, 2])]}


def test_a_model_that_was_asked_for_is_found_behind_tighter_nodes_of_another() -> None:
    here = cluster(node("a", models=[A100]), node("b", models=[V100] * 4), job(1, gpus=1, model="v100"))
    assert where(here.plan()) == {1: [("b", [0])]}


def test_shapes_that_differ_only_in_how_many_tasks_may_share_a_node_are_judged_apart() -> None:
    here = cluster(node("a", gpus=4), job(1, gpus=1, tasks=2), job(2, gpus=1, tasks=2, tasks_per_node=1))
    assert list(where(here.plan())) == [1]


def test_shapes_that_differ_only_in_the_model_are_judged_apart() -> None:
    here = cluster(node("a", models=[A100]), job(1, gpus=1, model="A100"), job(2, gpus=1, model="V100"))
    plan = here.plan()
    assert list(where(plan)) == [1]
    assert [reason.code for reason in plan.reasons.values()] == [ReasonCode.NO_FITTING_NODE]


# -- D10: failed starts --------------------------------------------------------------------------------------------


def test_a_job_avoids_the_node_of_its_last_failed_start_while_another_fits() -> None:
    here = cluster(node("a", gpus=1), node("b", gpus=8), refused_on(job(1, gpus=1), ("a",)))
    assert where(here.plan()) == {1: [("b", [0])]}
    assert where(here.plus(node("b", gpus=8, reachable=False)).plan()) == {1: [("a", [0])]}


def test_other_jobs_of_its_shape_avoid_nothing() -> None:
    here = cluster(node("a", gpus=1), node("b", gpus=8), refused_on(job(1, gpus=1), ("a",)), job(2, gpus=1))
    assert where(here.plan()) == {1: [("b", [0])], 2: [("a", [0])]}


def test_of_two_sick_nodes_neither_gets_a_job_that_fits_on_a_third() -> None:
    here = cluster(node("a", gpus=1), node("b", gpus=1), node("c", gpus=8))
    for refusals in ([("a",), ("b",)], [("a",), ("b",), ("a",)]):
        assert where(here.plus(refused_on(job(1, gpus=1), *refusals)).plan()) == {1: [("c", [0])]}


def test_where_every_node_failed_it_goes_to_another_than_the_last() -> None:
    here = cluster(node("a", gpus=1), node("b", gpus=8), refused_on(job(1, gpus=1), ("b",), ("a",)))
    assert where(here.plan()) == {1: [("b", [0])]}


def test_a_job_that_avoids_a_node_also_avoids_those_without_a_port() -> None:
    nodes = (node("a", gpus=2, address="one"), node("b", gpus=2, address="one"), node("c", gpus=8))
    here = cluster(*nodes, job(1, gpus=2, priority=900), refused_on(job(2, gpus=2), ("c",)))
    plan = here.plan(policy=Policy(port_min=20_000, port_max=20_000))
    assert where(plan) == {1: [("a", [0, 1])], 2: [("c", [0, 1])]}, "b has no port left, so c is tried again"


def test_what_a_job_avoids_in_vain_hides_nothing_from_others() -> None:
    """Every fourth search that is in vain makes a table of what is free, by which later ones are foreseen to be."""
    one = node("a", gpus=12)
    avoiding = [refused_on(job(number, gpus=1), ("a",)) for number in range(1, 10)]
    others = [job(10, gpus=1), job(11, gpus=4), job(12, gpus=2)]
    plan = cluster(one, *avoiding, *others).plan()
    assert list(where(plan)) == [*range(1, 11), 12]
    plain = cluster(one, *(job(number, gpus=1) for number in range(1, 10)), *others).plan()
    assert (where(plan), plan.reasons) == (where(plain), plain.reasons)


# -- D6: arrays ----------------------------------------------------------------------------------------------------


def test_an_array_starts_no_more_members_than_its_limit_lets() -> None:
    here = cluster(node("a", gpus=8), job(1, gpus=1, array="0-9%3"))
    plan = here.plan()
    assert list(where(plan)) == [2, 3, 4]
    assert {place.array for place in plan.actions} == {1}
    assert not plan.more
    here = here.after(plan)
    assert not here.plan().actions
    assert list(where(here.without(3, 4).plan())) == [5, 6]


def test_a_throttled_array_has_no_reason_that_blames_the_cluster() -> None:
    """What keeps its members waiting is its own limit, and who shows reasons says so."""
    assert cluster(node("a", gpus=8), job(1, gpus=1, array="0-9%3")).plan().reasons == {}


def test_members_that_are_records_count_against_the_limit_as_they_start() -> None:
    """Members 0 and 2 wait for another try; with them and member 1 the limit is reached."""
    whole = job(1, gpus=1, array="0-9%3")
    here = cluster(node("a", gpus=8), started_members(whole, 0, 2), member(whole, 0), member(whole, 2))
    plan = here.plan()
    assert list(where(plan)) == [2, 3, 4]
    assert [(place.array, place.attempt) for place in plan.actions] == [(0, 2), (1, 1), (0, 2)]


def test_records_of_a_full_array_wait_although_there_is_room_for_others_of_their_shape() -> None:
    whole = job(1, gpus=1, array="0-3%1")
    running = running_on(member(whole, 0, tries=0), ("a", [0]))
    here = cluster(node("a", gpus=8), started_members(whole, 0, 1), running, member(whole, 1), job(9, gpus=1))
    plan = here.plan()
    assert list(where(plan)) == [9]
    assert plan.reasons == {}


def test_limits_of_several_arrays_are_counted_apart() -> None:
    here = cluster(
        node("a", gpus=8),
        job(1, gpus=1, array="0-9%2", priority=100),
        job(20, gpus=1, array="0-9%3", priority=900),
        job(40, gpus=1, array="0-1"),
    )
    assert list(where(here.plan())) == [21, 22, 23, 41, 42, 2, 3]


def test_members_at_two_priorities_share_one_limit() -> None:
    """A member that a person moved up leaves one fewer for the rest."""
    whole = job(1, gpus=1, array="0-9%2", priority=100)
    moved = msgspec.structs.replace(member(whole, 5), spec=job(1, gpus=1, array="0-9%2", priority=900).spec)
    here = cluster(node("a", gpus=8), started_members(whole, 5), moved, job(50, gpus=1, cpus=2))
    assert list(where(here.plan())) == [7, 50, 2]


def test_a_member_that_does_not_fit_blocks_its_shape_and_counts_for_nothing() -> None:
    here = cluster(node("a", gpus=3), job(1, gpus=2, array="0-9%5"), job(20, gpus=1))
    plan = here.plan()
    assert list(where(plan)) == [2, 20]
    assert [reason.code for reason in plan.reasons.values()] == [ReasonCode.INSUFFICIENT_GPUS]


def test_a_budget_that_ends_on_a_full_array_leaves_no_more() -> None:
    plan = cluster(node("a", gpus=8), job(1, gpus=1, array="0-9%2")).plan(budget=2)
    assert len(plan.actions) == 2
    assert not plan.more


def test_the_budget_bounds_a_pass_and_the_plan_says_that_there_is_more() -> None:
    here = cluster(node("a", gpus=8), *(job(i, gpus=1) for i in range(1, 6)), job(6, gpus=64))
    plan = here.plan(budget=3)
    assert list(where(plan)) == [1, 2, 3]
    assert plan.more
    reasons = [plan.reasons[job(1, gpus=gpus).spec.shape].code for gpus in (1, 64)]
    assert reasons == [ReasonCode.BUDGET_SPENT, ReasonCode.NO_FITTING_NODE]
    following = here.after(plan).plan(budget=3)
    assert list(where(following)) == [4, 5]
    assert not following.more
    assert [reason.code for reason in following.reasons.values()] == [ReasonCode.NO_FITTING_NODE]


def test_a_budget_that_is_just_enough_leaves_no_more() -> None:
    plan = cluster(node("a", gpus=8), *(job(i, gpus=1) for i in range(1, 4))).plan(budget=3)
    assert len(plan.actions) == 3
    assert not plan.more
    assert not plan.reasons


def test_what_fits_nowhere_is_not_left_to_a_pass_that_could_do_no_more_for_it() -> None:
    plan = cluster(node("a", gpus=8), *(job(i, gpus=1) for i in range(1, 4)), job(4, gpus=9)).plan(budget=3)
    assert not plan.more
    assert [reason.code for reason in plan.reasons.values()] == [ReasonCode.NO_FITTING_NODE]


def test_a_pass_that_may_place_nothing_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="for ever"):
        cluster(node("a", gpus=1), job(1, gpus=1)).plan(budget=0)


def test_the_next_attempt_is_counted_from_those_that_were() -> None:
    assert cluster(node("a", gpus=1), job(1, gpus=1, tries=3)).plan().actions[0].attempt == 4


def test_an_empty_queue_gives_an_empty_plan() -> None:
    plan = cluster(node("a", gpus=1)).plan()
    assert (plan.actions, plan.reasons, plan.more) == ((), {}, False)


def test_the_order_in_which_nodes_registered_does_not_matter() -> None:
    nodes = [node("a", models=[A100] * 4), node("b", models=[V100] * 4), node("c", gpus=2), node("d", cpus=8)]
    jobs = [job(1, gpus=2), job(2, gpus=1, tasks=5), job(3), job(4, gpus=8), job(5, gpus=4, model="V100")]
    assert cluster(*nodes, *jobs).plan() == cluster(*reversed(nodes), *reversed(jobs)).plan()


@pytest.mark.parametrize(
    ("module", "place"),
    [(gang, "choose_port"), (gpu_choices, "fit_gang"), (scheduling_pass, "number_ranks")],
    ids=["choose_port", "fit_gang", "number_ranks"],
)
def test_a_fault_is_blamed_on_the_shape_that_was_decided_on(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, place: str
) -> None:
    sound = getattr(module, place)

    def broken(*args: object) -> object:
        demand = [getattr(each, "demand", each) for each in args][-1 if place == "number_ranks" else 0]
        asks_eight = getattr(demand, "gpu_count", 8) == 8  # choose_port isn't told the demand: only job 2 needs a port
        return 1 // 0 if asks_eight else sound(*args)

    monkeypatch.setattr(module, place, broken)
    here = cluster(node("a", gpus=10), job(1, gpus=1), job(2, gpus=8), job(3, gpus=1, cpus=2))
    with pytest.raises(UndecidableShape, match="ZeroDivisionError") as raised:
        here.plan()
    assert raised.value.shape == here.jobs[JobId(2)].spec.shape
    assert list(where(here.without(2).plan())) == [1, 3]


def test_a_fault_while_the_queue_is_ordered_is_blamed_on_a_shape_too() -> None:
    here = cluster(node("a", gpus=8), job(1, gpus=1), job(2, gpus=4, array="0-3"))
    array = here.jobs[JobId(2)]
    broken = msgspec.structs.replace(array, spec=msgspec.structs.replace(array.spec, priority="high"))
    with pytest.raises(UndecidableShape) as raised:
        here.plus(broken).plan()
    assert raised.value.shape == broken.spec.shape
