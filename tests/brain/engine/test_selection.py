"""Rule D7 of `engine/decide.py`: jobs run only where they are let; and what `CandidateNodes` keeps of it."""

from random import Random

import pytest

from stoker.brain.domain.ids import NodeName, PartitionName
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.reason import ReasonCode
from stoker.brain.domain.where import ANYWHERE, Where, make_where
from stoker.brain.engine.candidate_nodes import NO_SUCH_GPU, ByFree, CandidateNodes
from stoker.brain.engine.demand_cache import DemandCache
from stoker.brain.engine.draft import Draft
from tests.builders import A100, H100, V100, Cluster, cluster, job, node, placement, running_on, where


def _two_zones() -> Cluster:
    return cluster(
        node("a", gpus=2, labels={"zone": "a"}),
        node("b", gpus=8, labels={"zone": "b"}),
        node("t", gpus=2, taints=["test:NoSchedule"]),
    )


@pytest.mark.parametrize(
    ("wanted", "there"),
    [
        (ANYWHERE, "a"),
        (make_where("zone=b"), "b"),
        (make_where("zone!=a", tolerate=["test"]), "t"),
        (make_where("!zone", tolerate=["*"]), "t"),
        (make_where(exclude=["a"]), "b"),
        (make_where("stoker.io/hostname=b"), "b"),
        (make_where("stoker.io/hostname notin (a)"), "b"),
        (make_where("stoker.io/hostname in (b,t),zone"), "b"),
        (make_where("stoker.io/gpu-model=NVIDIA-A100-SXM4-80GB,zone=b"), "b"),
    ],
    ids=lambda value: str(value.require or value.exclude) if isinstance(value, Where) else value,
)
def test_a_job_goes_where_its_selection_lets_it(wanted: Where, there: str) -> None:
    assert where(_two_zones().plus(job(1, gpus=1, where=wanted)).plan()) == {1: [(there, [0])]}


@pytest.mark.parametrize("wanted", [ANYWHERE, make_where("zone!=a"), make_where(exclude=["a", "b"])], ids=repr)
def test_a_taint_keeps_away_whoever_does_not_tolerate_it(wanted: Where) -> None:
    here = _two_zones().plus(
        running_on(job(90, gpus=2), ("a", [0, 1])), running_on(job(91, gpus=8), ("b", [*range(8)]))
    )
    assert not here.plus(job(1, gpus=1, where=wanted)).plan().actions


def test_a_gang_is_spread_over_selected_nodes_only() -> None:
    here = cluster(
        node("a", gpus=2, labels={"zone": "a"}),
        node("b", gpus=8),
        node("c", gpus=2, labels={"zone": "a"}),
        job(1, gpus=1, tasks=4, where=make_where("zone=a")),
    )
    assert {name for name, _ in where(here.plan())[1]} == {"a", "c"}


def test_a_partition_and_the_job_must_both_admit_a_node() -> None:
    here = cluster(
        node("a", gpus=1, labels={"zone": "a"}),
        node("b", gpus=1, labels={"zone": "a", "new": ""}),
        node("c", gpus=1, labels={"new": ""}),
        Partition(name=PartitionName("p"), where=make_where("zone=a")),
        job(1, gpus=1, partition="p", where=make_where("new")),
    )
    assert where(here.plan()) == {1: [("b", [0])]}


def test_what_a_partition_tolerates_its_jobs_tolerate() -> None:
    here = cluster(
        node("a", gpus=1, taints=["p:NoSchedule", "q:NoSchedule"]),
        Partition(name=PartitionName("p"), where=make_where(tolerate=["p"])),
    )
    assert not here.plus(job(1, gpus=1, partition="p")).plan().actions
    assert here.plus(job(1, gpus=1, partition="p", where=make_where(tolerate=["q"]))).plan().actions


def test_a_partition_that_is_gone_adds_nothing() -> None:
    assert cluster(node("a", gpus=1), job(1, gpus=1, partition="gone")).plan().actions


def test_one_demand_in_two_partitions_has_two_verdicts() -> None:
    here = cluster(
        node("a", gpus=1, labels={"zone": "a"}),
        *(Partition(name=PartitionName(zone), where=make_where(f"zone={zone}")) for zone in "ab"),
        job(1, gpus=1, partition="b"),
        job(2, gpus=1, partition="a"),
    )
    plan = here.plan()
    assert list(where(plan)) == [2]
    assert [reason.code for reason in plan.reasons.values()] == [ReasonCode.NO_SELECTED_NODE]


def test_placements_of_other_selections_are_seen() -> None:
    """Job 1 may go anywhere and takes the only node of job 2."""
    choosy = job(2, gpus=1, where=make_where("zone=a"))
    here = cluster(node("a", gpus=1, labels={"zone": "a"}), node("b", gpus=8), job(1, gpus=1), choosy)
    plan = here.plan()
    assert list(where(plan)) == [1]
    assert [reason.code for reason in plan.reasons.values()] == [ReasonCode.INSUFFICIENT_GPUS]


def test_gpus_outside_a_selection_leave_the_no_as_cheap_as_without_them() -> None:
    """However many nodes are idle outside, the demand cache of a selective shape knows that it has no GPU."""
    here = cluster(
        node("a", gpus=8, labels={"zone": "a"}),
        running_on(job(1, gpus=8), ("a", [*range(8)])),
        *(node(f"n{i}", gpus=8) for i in range(20)),
    )
    candidates = CandidateNodes(Draft(here), here.admitted(make_where("zone=a")))
    assert DemandCache(candidates, job(2, gpus=1).spec.demand, mixed=False).at_most() == 0


# -- candidate nodes -----------------------------------------------------------------------------------------------


def _by_walking(draft: Draft, candidates: CandidateNodes) -> dict[object, dict[int, list[NodeName]]]:
    found: dict[object, dict[int, list[NodeName]]] = {kinds: {} for kinds in candidates.kinds}
    for each in candidates.admitted.classes:
        for name in each.names:
            found[each.kinds].setdefault(len(draft.free[name].gpus), []).append(name)
    return {kinds: {count: sorted(names) for count, names in by.items()} for kinds, by in found.items()}


def _frozen(by_free: ByFree) -> dict[object, dict[int, list[NodeName]]]:
    return {kinds: {count: list(names) for count, names in by.items()} for kinds, by in by_free.items()}


def test_candidate_nodes_follow_what_is_taken_and_given_back() -> None:
    dice = Random(3)
    here = cluster(
        *(node(f"n{i}", models=[(A100, V100)[i % 2]] * 4, labels={"zone": "ab"[i % 3 == 0]}) for i in range(12))
    )
    draft = Draft(here)
    selections = make_where("zone=a"), ANYWHERE
    followed = [CandidateNodes(draft, here.admitted(each)) for each in selections]
    for turn in range(60):
        mark = draft.checkpoint()
        for _ in range(dice.randrange(4)):
            name = f"n{dice.randrange(12)}"
            free = draft.free[NodeName(name)].gpus
            if free:
                draft.take(placement(0, job(1, gpus=1, cpus=0), name, [free[0].index]))
        if dice.random() < 0.7:
            draft.rollback(mark)
        if turn % 2:  # it may be looked at seldom
            for candidates in followed:
                assert _frozen(candidates.by_free()) == _by_walking(draft, candidates)


def test_the_candidates_of_every_node_are_those_of_the_view_which_stays_as_it_is() -> None:
    here = cluster(node("a", gpus=1), node("b", gpus=2), node("c", models=[V100], drain="disk"))
    draft = Draft(here)
    viewed = _frozen(draft.by_free)
    candidates = CandidateNodes(draft, here.admitted(ANYWHERE))
    assert sorted(_names(candidates)) == ["a", "b"]
    draft.take(placement(0, job(1, gpus=1, cpus=0), "b", [0]))
    assert candidates.counts() == {candidates.kinds[0]: {1: 2}, candidates.kinds[1]: {}}
    assert _frozen(draft.by_free) == viewed


def test_candidate_nodes_leave_out_nodes_that_take_no_work() -> None:
    here = cluster(node("a", gpus=1, drain="disk", labels={"x": "1"}), node("b", gpus=1, labels={"x": "1"}), node("c"))
    assert _names(CandidateNodes(Draft(here), here.admitted(make_where("x")))) == ["b"]


def _names(candidates: CandidateNodes) -> list[str]:
    return [name for by_count in candidates.by_free().values() for names in by_count.values() for name in names]


def test_demands_for_gpu_memory_that_the_same_gpus_serve_are_the_same() -> None:
    here = cluster(node("a", models=[A100]), node("b", models=[V100, H100]))
    candidates = CandidateNodes(Draft(here), here.admitted(ANYWHERE))
    assert [candidates.gpu_memory("", wanted) for wanted in (0, 1, 32_768, 32_769, 81_560, 81_921)] == [
        0, 32_768, 32_768, 81_559, 81_920, NO_SUCH_GPU,
    ]  # fmt: skip
    assert candidates.gpu_memory("A100", 1) == 81_920
    assert candidates.gpu_memory("B200", 1) == NO_SUCH_GPU
