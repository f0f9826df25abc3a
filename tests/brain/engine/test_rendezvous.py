"""Rules R1 to R3 of `engine/ports.py`: where ranks meet."""

from random import Random

import pytest

from stoker.brain.domain.demand import JobClass
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import ReasonCode
from tests.builders import cluster, job, node, where

_TWO_PORTS = Policy(port_min=20_000, port_max=20_001)


def test_an_attempt_of_several_tasks_meets_at_the_address_of_rank_0() -> None:
    here = cluster(node("b", gpus=4), node("a", gpus=2, address="10.0.0.7"), job(1, gpus=2, tasks=3))
    place = here.plan().actions[0]
    assert place.tasks[0].node == "a"
    assert place.master_addr == "10.0.0.7"
    assert Policy().port_min <= place.master_port <= Policy().port_max


def test_one_task_of_two_gpus_gets_a_port_too() -> None:
    assert cluster(node("a", gpus=2), job(1, gpus=2)).plan().actions[0].master_port


@pytest.mark.parametrize("gpus", [0, 1])
def test_one_task_of_at_most_one_gpu_gets_no_port(gpus: int) -> None:
    place = cluster(node("a", gpus=2), job(1, gpus=gpus)).plan().actions[0]
    assert (place.master_addr, place.master_port) == ("", 0)


def test_jobs_of_one_pass_never_share_a_port_of_one_address() -> None:
    """faults.md 147 and 148; and nodes may share an address."""
    nodes = [node(f"n{i}", gpus=8, address="127.0.0.1") for i in range(2)]
    plan = cluster(*nodes, *(job(i, gpus=2) for i in range(1, 9))).plan(policy=Policy(port_min=20_000, port_max=20_007))
    assert sorted(place.master_port for place in plan.actions) == list(range(20_000, 20_008))


def test_a_port_of_a_live_attempt_is_not_given_again() -> None:
    here = cluster(node("a", gpus=4), job(1, gpus=2))
    first = here.plan(policy=_TWO_PORTS)
    second = here.after(first).plus(job(3, gpus=2)).plan(policy=_TWO_PORTS)
    assert {first.actions[0].master_port, second.actions[0].master_port} == {20_000, 20_001}


def test_nodes_of_different_addresses_may_use_one_port() -> None:
    one_port = Policy(port_min=20_000, port_max=20_000)
    here = cluster(node("a", gpus=2), node("b", gpus=2), job(1, gpus=2), job(2, gpus=2))
    assert [place.master_port for place in here.plan(policy=one_port).actions] == [20_000, 20_000]


def test_a_port_that_came_free_rests_while_others_are_free() -> None:
    here = cluster(node("a", gpus=2), job(1, gpus=2))
    first = here.plan().actions[0]
    second = cluster(node("a", gpus=2), job(2, gpus=2)).plan().actions[0]
    assert first.master_port != second.master_port


@pytest.mark.parametrize("span", [2, 3, 101, 102, 997, 10_000])
def test_the_next_attempt_tries_another_port(span: int) -> None:
    policy = Policy(port_min=20_000, port_max=20_000 + span - 1)
    ports = [
        cluster(node("a", gpus=2), job(7, gpus=2, tries=tries)).plan(policy=policy).actions[0].master_port
        for tries in range(3)
    ]
    assert ports[0] != ports[1] != ports[2]


def test_without_a_free_port_the_job_waits_and_is_told_so() -> None:
    here = cluster(node("a", gpus=8, address="10.0.0.1"), *(job(i, gpus=2) for i in range(1, 4)))
    plan = here.plan(policy=_TWO_PORTS)
    assert list(where(plan)) == [1, 2]
    (reason,) = plan.reasons.values()
    assert reason.code is ReasonCode.NO_FREE_PORT
    assert reason.facts == {"address": "10.0.0.1", "ports_max": 2}


def test_without_a_free_port_another_address_is_used() -> None:
    """`a` is the tighter fit, but its ports are gone."""
    here = cluster(node("a", gpus=7), node("b", gpus=8), *(job(i, gpus=2) for i in range(1, 4)))
    assert where(here.plan(policy=_TWO_PORTS)) == {1: [("a", [0, 1])], 2: [("a", [2, 3])], 3: [("b", [0, 1])]}


def test_a_gang_is_not_spread_over_nodes_whose_address_has_no_port_left() -> None:
    here = cluster(
        node("a", gpus=6), node("b", gpus=1), node("c", gpus=1), job(1, gpus=2), job(2, gpus=2), job(3, gpus=1, tasks=2)
    )
    assert where(here.plan(policy=_TWO_PORTS))[3] == [("b", [0]), ("c", [0])]


def test_a_job_that_needs_no_port_starts_where_none_is_left() -> None:
    here = cluster(node("a", gpus=8), *(job(i, gpus=2) for i in range(1, 4)), job(4, gpus=1))
    assert list(where(here.plan(policy=_TWO_PORTS))) == [1, 2, 4]


def test_a_placement_without_a_port_is_undone_before_the_next_is_tried() -> None:
    """What job 3 would have held on `a` is still free for job 4."""
    here = cluster(node("a", gpus=6), *(job(i, gpus=2) for i in range(1, 4)), job(4, gpus=1), job(5, gpus=1))
    assert where(here.plan(policy=_TWO_PORTS))[5] == [("a", [5])]


def test_what_was_learnt_while_capacity_was_held_does_not_hide_that_ports_are_short() -> None:
    """Two classes contend, so capacity is held for the online jobs; after it, "blocked, and nothing is short" broke
    every pass."""
    ask = {"gpus": 2, "tasks": 2, "priority": 100}
    jobs = job(1, gpus=2, job_class=JobClass.ONLINE), job(2, **ask), job(3, **ask, job_class=JobClass.ONLINE)
    plan = cluster(node("a", gpus=8), *jobs).plan(policy=Policy(port_min=20_000, port_max=20_000))
    assert list(where(plan)) == [1]
    assert [reason.code for reason in plan.reasons.values()] == [ReasonCode.NO_FREE_PORT, ReasonCode.GUARANTEE_KEPT]


@pytest.mark.parametrize("seed", range(4))
def test_each_job_is_placed_or_has_a_reason_where_classes_contend_and_ports_are_few(seed: int) -> None:
    dice = Random(seed)
    for _ in range(100):
        nodes = [node(name, gpus=dice.choice((2, 4, 8)), address=dice.choice(("", "x"))) for name in "ab"]
        kinds = [(dice.choice((0, 1, 2, 4, 8)), dice.choice((1, 1, 2)), dice.choice(list(JobClass))) for _ in range(8)]
        jobs = [job(at, gpus=gpus, tasks=tasks, job_class=kind) for at, (gpus, tasks, kind) in enumerate(kinds, 1)]
        plan = cluster(*nodes, *jobs).plan(policy=Policy(port_min=20_000, port_max=20_000))
        placed = {place.job for place in plan.actions}
        assert all(each.id in placed or each.spec.shape in plan.reasons for each in jobs)
