"""Placement of shares of GPUs (S1 to S4), and what a pass says where none fits."""

import pytest

from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.job import Job
from stoker.brain.domain.plan import Plan
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import ReasonCode, describe
from stoker.brain.domain.where import make_where
from stoker.brain.engine.decide import decide
from stoker.brain.engine.draft import Draft
from tests.builders import (
    A100,
    MEMORY_MB,
    NOW,
    V100,
    Cluster,
    cluster,
    job,
    node,
    placement,
    running_on,
    sharing_on,
)

_DEVICE_MB = MEMORY_MB[A100]


def share(id_: int, of: int, **wishes: object) -> Job:
    """A job of one task that asks for so many thousandths of a GPU."""
    return job(id_, gpus=1, share=of, **wishes)  # type: ignore[arg-type]  # by the names of the builder


def plan(made: Cluster, policy: Policy | None = None) -> Plan:
    return decide(made, policy or Policy(), NOW, 0, 1_000)


def devices(made: Cluster, policy: Policy | None = None) -> dict[int, list[str]]:
    """The GPUs of each job that is placed, by its ranks."""
    return {each.job: [task.gpus[0] for task in each.tasks] for each in plan(made, policy).actions}


def said(made: Cluster, policy: Policy | None = None) -> list[str]:
    return [describe(reason) for reason in plan(made, policy).reasons.values()]


# -- S1 ----------------------------------------------------------------------------------------------------------


def test_s1_shares_fill_a_gpu_up_to_the_whole_of_it_and_the_next_one_waits() -> None:
    made = cluster(node("n1", gpus=1), *[share(each, 250) for each in range(1, 6)])
    assert devices(made) == {each: ["GPU-n1-0"] for each in range(1, 5)}
    assert [reason.code for reason in plan(made).reasons.values()] == [ReasonCode.INSUFFICIENT_SHARE]


def test_s1_shares_that_leave_room_do_not_fit_where_their_memory_does_not() -> None:
    made = cluster(node("n1", gpus=1), *[share(each, 100, gpu_memory_mb=_DEVICE_MB // 2) for each in range(1, 4)])
    assert sorted(devices(made)) == [1, 2]


def test_s1_a_share_that_names_no_memory_is_bounded_to_its_part_rounded_down() -> None:
    (placed,) = plan(cluster(node("n1", models=[V100]), share(1, 333))).actions
    assert (placed.tasks[0].gpu_share, placed.tasks[0].gpu_memory_mb) == (333, MEMORY_MB[V100] * 333 // 1_000)


def test_s1_no_more_tasks_share_a_gpu_than_the_policy_says() -> None:
    made = cluster(node("n1", gpus=1), *[share(each, 10) for each in range(1, 20)])
    assert len(devices(made)) == 16
    assert len(devices(made, Policy(gpu_sharers_max=3))) == 3
    assert "with 3 sharers of at most 3" in said(made, Policy(gpu_sharers_max=3))[0]


def test_s1_a_whole_gpu_is_never_shared_and_a_shared_one_never_held_whole() -> None:
    held = running_on(job(1, gpus=1), ("n1", [0]))
    assert devices(cluster(node("n1", gpus=2), held, share(2, 100))) == {2: ["GPU-n1-1"]}
    shared = sharing_on(share(1, 100), ("n1", 0))
    assert not devices(cluster(node("n1", gpus=1), shared, job(2, gpus=1)))


def test_s1_cpus_and_memory_of_the_node_bound_its_sharers_too() -> None:
    made = cluster(node("n1", gpus=1, cpus=2), *[share(each, 100) for each in range(1, 5)])
    assert len(devices(made)) == 2
    assert [reason.code for reason in plan(made).reasons.values()] == [ReasonCode.INSUFFICIENT_CPUS]


# -- S2, S3 ------------------------------------------------------------------------------------------------------


def test_s2_the_fullest_gpu_that_fits_is_taken_so_that_whole_ones_stay_whole() -> None:
    nodes = node("n1", gpus=2), node("n2", gpus=2)
    loose, full = sharing_on(share(1, 200), ("n1", 0)), sharing_on(share(2, 600), ("n2", 1))
    assert devices(cluster(*nodes, loose, full, share(3, 400))) == {3: ["GPU-n2-1"]}
    assert devices(cluster(*nodes, loose, full, share(3, 500))) == {3: ["GPU-n1-0"]}


def test_s2_of_equally_full_gpus_the_first_by_node_and_device_is_taken() -> None:
    nodes = node("n2", gpus=2), node("n1", gpus=2)
    sharers = [sharing_on(share(at, 500), on) for at, on in enumerate([("n2", 0), ("n1", 1), ("n1", 0)], start=1)]
    assert devices(cluster(*nodes, *sharers, share(9, 500))) == {9: ["GPU-n1-0"]}


def test_s3_a_whole_gpu_is_opened_on_the_node_with_fewest_to_spare() -> None:
    busy = running_on(job(1, gpus=3), ("n2", [0, 1, 2]))
    full = sharing_on(share(2, 900), ("n1", 0))
    assert devices(cluster(node("n1", gpus=4), node("n2", gpus=4), busy, full, share(3, 200))) == {3: ["GPU-n2-3"]}


def test_s3_of_the_whole_gpus_of_a_node_one_with_little_memory_is_opened() -> None:
    assert devices(cluster(node("n1", models=[A100, V100]), share(1, 100))) == {1: ["GPU-n1-1"]}


def test_a_share_takes_only_a_gpu_of_its_model_and_of_enough_memory() -> None:
    made = cluster(node("n1", models=[V100, A100]), share(1, 100, model="A100"), share(2, 100, gpu_memory_mb=40_000))
    assert devices(made) == {1: ["GPU-n1-1"], 2: ["GPU-n1-1"]}


# -- S4 ----------------------------------------------------------------------------------------------------------


def test_s4_the_tasks_of_a_gang_share_gpus_and_are_numbered_in_their_order() -> None:
    full = sharing_on(share(1, 700), ("n1", 1))
    assert devices(cluster(node("n1", gpus=2), full, share(2, 300, tasks=3))) == {
        2: ["GPU-n1-0", "GPU-n1-0", "GPU-n1-1"]
    }


def test_s4_a_gang_of_shares_is_placed_whole_or_not_at_all_and_on_the_fewest_nodes() -> None:
    nodes = node("n1", gpus=1), node("n2", gpus=1)
    assert devices(cluster(*nodes, share(1, 500, tasks=4))) == {1: ["GPU-n1-0"] * 2 + ["GPU-n2-0"] * 2}
    assert devices(cluster(*nodes, share(1, 500, tasks=2))) == {1: ["GPU-n1-0"] * 2}
    waits = cluster(*nodes, sharing_on(share(1, 100), ("n1", 0)), share(2, 500, tasks=4))
    assert not devices(waits)
    assert "for each of 4 tasks, and there is room for 3 of them" in said(waits)[0]


def test_s4_no_node_gets_more_tasks_of_a_gang_of_shares_than_may_share_it() -> None:
    nodes = node("n1", gpus=4), node("n2", gpus=4)
    assert devices(cluster(*nodes, share(1, 100, tasks=2, tasks_per_node=1))) == {1: ["GPU-n1-0", "GPU-n2-0"]}


# -- why not -----------------------------------------------------------------------------------------------------


def test_a_share_that_waits_is_told_the_largest_rest_and_where_it_is() -> None:
    sharers = sharing_on(share(1, 700), ("n1", 0)), sharing_on(share(2, 800), ("n2", 0))
    made = cluster(node("n1", gpus=1), node("n2", gpus=1), *sharers, share(3, 500, gpu_memory_mb=12_288))
    left = _DEVICE_MB - _DEVICE_MB * 7 // 10
    assert said(made) == [
        f"no GPU that suits it has 0.5 free within 12288 MiB; the largest rest is 0.3 with {left} MiB on node n1, with "
        "1 sharer"
    ]


def test_a_share_that_no_device_has_the_memory_for_can_never_start() -> None:
    made = cluster(node("n1", gpus=1), share(1, 100, gpu_memory_mb=_DEVICE_MB + 1))
    assert [reason.code for reason in plan(made).reasons.values()] == [ReasonCode.NO_FITTING_NODE]
    assert "0.1 of a GPU within" in said(made)[0]


def test_a_share_that_may_run_only_elsewhere_is_not_put_on_a_shared_gpu_there() -> None:
    full = sharing_on(share(1, 700), ("n1", 0))
    made = cluster(
        node("n1", gpus=1, labels={"z": "a"}),
        node("n2", gpus=1, labels={"z": "b"}),
        full,
        share(2, 300, where=make_where("z=b")),
    )
    assert devices(made) == {2: ["GPU-n2-0"]}


# -- the ledger of a pass ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharers", [1, 3])
def test_the_end_of_the_last_sharer_frees_the_gpu_whole_and_no_end_before_it(sharers: int) -> None:
    running = [sharing_on(share(each, 300), ("n1", 0)) for each in range(1, sharers + 1)]
    made = cluster(node("n1", gpus=2), *running)
    draft = Draft(made)
    for each in running:
        assert len(draft.free[each.attempts[0].tasks[0].placement.node].gpus) == 1
        draft.put_back(each.attempts[0].tasks[0].placement)
    assert draft.free == cluster(node("n1", gpus=2)).free


def test_what_was_taken_of_a_gpu_is_restored_by_a_roll_back_and_by_putting_it_back() -> None:
    made = cluster(node("n1", gpus=2), sharing_on(share(1, 300), ("n1", 0)))
    draft = Draft(made)
    before, mark = dict(draft.free), draft.checkpoint()
    takes = sharing_on(share(2, 700), ("n1", 0)).attempts[0].tasks[0].placement
    draft.take(takes)
    draft.put_back(takes)
    assert draft.free == before
    draft.take(takes)
    draft.rollback(mark)
    assert draft.free == before
    assert draft.free[takes.node].gpu_milli == 2 * WHOLE_GPU - 300


def test_a_pass_sees_what_it_took_of_a_gpu_whatever_selects_it() -> None:
    made = cluster(node("n1", gpus=1), share(1, 600), share(2, 600), share(3, 400), share(4, 1))
    assert sorted(devices(made)) == [1, 3]


def test_taking_more_of_a_gpu_than_is_left_is_a_defect_that_is_noticed() -> None:
    draft = Draft(cluster(node("n1", gpus=1), sharing_on(share(1, 600), ("n1", 0))))
    with pytest.raises(AssertionError, match="overdrawn GPU"):
        draft.take(sharing_on(share(2, 500), ("n1", 0)).attempts[0].tasks[0].placement)
    with pytest.raises(AssertionError, match="promised twice"):
        draft.take(placement(0, job(3, gpus=1), "n1", [0]))
