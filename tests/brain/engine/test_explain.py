"""Rules X1 to X6 of `engine/explain.py`: every wait has a reason, and its numbers are true."""

from msgspec.structs import replace

from stoker.brain.domain.ids import PartitionName
from stoker.brain.domain.job import Job
from stoker.brain.domain.label import CONTAINERS, RUNS_CONTAINERS
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.reason import Reason, ReasonCode, describe
from stoker.brain.domain.where import make_where
from tests.builders import H100, V100, Cluster, cluster, job, node, running_on


def _why(here: Cluster) -> Reason:
    (reason,) = here.plan().reasons.values()
    assert "?" not in describe(reason), f"a number is missing from the sentence: {describe(reason)}"
    return reason


def _full(name: str, gpus: int, cpus: int = 1) -> Job:
    return running_on(job(100, gpus=gpus, cpus=cpus), (name, list(range(gpus))))


def test_before_any_node_registered_the_reason_is_no_nodes() -> None:
    assert _why(cluster(job(1, gpus=1))).code is ReasonCode.NO_NODES


def test_a_selection_that_no_node_answers_to_is_told_in_words() -> None:
    wish = make_where("zone=c", exclude=["a"], tolerate=["old"])
    reason = _why(cluster(node("a", gpus=1), node("b", gpus=1), job(1, gpus=1, where=wish)))
    assert reason.code is ReasonCode.NO_SELECTED_NODE
    assert reason.facts == {"nodes": 2, "asked": "zone=c; not a; tolerates old"}


def test_a_partition_without_nodes_is_named_with_what_it_selects() -> None:
    empty = Partition(name=PartitionName("p"), where=make_where("zone=c"))
    reason = _why(cluster(node("a", gpus=1), empty, job(1, gpus=1, partition="p")))
    assert reason.facts["asked"] == "partition p (zone=c)"
    reason = _why(cluster(node("a", gpus=1), empty, job(1, gpus=1, partition="p", where=make_where("x"))))
    assert reason.facts["asked"] == "x, partition p (zone=c)"


def test_a_job_that_selects_nothing_is_kept_away_by_taints_alone() -> None:
    reason = _why(cluster(node("a", gpus=1, taints=["x:NoSchedule"]), job(1, gpus=1)))
    assert reason.code is ReasonCode.NO_SELECTED_NODE
    assert reason.facts["asked"] == "nodes without taints"


def test_a_long_selection_is_cut_short_in_a_reason() -> None:
    wish = make_where(f"zone in ({','.join(f'z{i:04}' for i in range(300))})")
    assert len(str(_why(cluster(node("a", gpus=1), job(1, gpus=1, where=wish))).facts["asked"])) == 400


def test_without_nodes_the_reason_is_no_nodes_whatever_is_selected() -> None:
    assert _why(cluster(job(1, gpus=1, where=make_where("zone=a")))).code is ReasonCode.NO_NODES


def test_only_selected_nodes_count_as_large_enough_or_available() -> None:
    zones = cluster(
        node("a", gpus=2, labels={"zone": "a"}),
        node("b", gpus=8, labels={"zone": "b"}, drain="disk"),
        node("c", gpus=8),
        running_on(job(100, gpus=1), ("a", [0])),
    )
    told = [
        _why(zones.plus(job(1, gpus=gpus, where=make_where(wish))))
        for gpus, wish in ((4, "zone=a"), (4, "zone=b"), (2, "zone=a"))
    ]
    assert [reason.code for reason in told] == [
        ReasonCode.NO_FITTING_NODE,
        ReasonCode.NODES_UNAVAILABLE,
        ReasonCode.INSUFFICIENT_GPUS,
    ]
    assert str(told[0].facts["largest"]).startswith("2 GPUs")
    counts = {"fitting": 1, "unreachable": 0, "faulty": 0, "draining": 1, "paused": 0, "forgotten": 0}
    assert told[1].facts == {**counts, "node": "b", "drained": "b drained: disk"}
    assert (told[2].facts["free"], told[2].facts["best"]) == (1, 1)


def test_free_gpus_that_tasks_may_not_share_are_not_called_missing() -> None:
    here = cluster(
        node("a", gpus=8), node("b", gpus=8), running_on(job(100, gpus=8), ("b", [*range(8)])),
        job(1, gpus=2, tasks=4, tasks_per_node=2),
    )  # fmt: skip
    reason = _why(here)
    assert reason.code is ReasonCode.INSUFFICIENT_NODES
    assert reason.facts == {"tasks": 4, "per_node": 2, "room": 2}


def test_gpus_are_named_before_nodes_to_spread_over() -> None:
    here = cluster(
        node("a", gpus=2), node("b", gpus=2), running_on(job(100, gpus=2), ("b", [0, 1])),
        job(1, gpus=1, tasks=3, tasks_per_node=2),
    )  # fmt: skip
    assert _why(here).code is ReasonCode.INSUFFICIENT_GPUS


def test_nodes_to_spread_over_are_named_before_cpus() -> None:
    here = cluster(
        node("a", gpus=8, cpus=8), node("b", gpus=8, cpus=8), running_on(job(100, gpus=8), ("b", [*range(8)])),
        job(1, gpus=1, cpus=8, tasks=2, tasks_per_node=1), running_on(job(101, cpus=7), ("a", [])),
    )  # fmt: skip
    assert _why(here).code is ReasonCode.INSUFFICIENT_NODES


def test_cpus_of_nodes_over_which_tasks_are_spread_may_be_short() -> None:
    """Each node has GPUs for eight tasks and CPUs for three; spread one by one, `b` has too few."""
    here = cluster(
        node("a", gpus=8, cpus=6), node("b", gpus=8, cpus=6), running_on(job(100, cpus=5), ("b", [])),
        job(1, gpus=1, cpus=2, tasks=2, tasks_per_node=1),
    )  # fmt: skip
    reason = _why(here)
    assert reason.code is ReasonCode.INSUFFICIENT_CPUS
    assert reason.facts == {"needed": 2, "best": 6, "tasks": 2, "room": 1}


def test_more_nodes_than_there_are_is_never_and_says_how_many_may_share_one() -> None:
    reason = _why(cluster(node("a", gpus=4), node("b", gpus=4), job(1, gpus=1, tasks=5, tasks_per_node=2)))
    assert reason.code is ReasonCode.NO_FITTING_NODE
    assert reason.facts["largest"] == (
        "room for 2 of its 5 tasks (at most 2 may share a node), all nodes together for 4"
    )


def test_numbers_are_those_at_the_end_of_the_pass() -> None:
    """Job 1 is looked at first, while four GPUs are free; job 2 behind it takes three of them."""
    here = cluster(
        node("a", gpus=8), running_on(job(100, gpus=4), ("a", [0, 1, 2, 3])), job(1, gpus=8), job(2, gpus=3, limit_h=1)
    )
    assert _why(here).facts["free"] == 1


def test_a_node_that_registered_once_and_is_forgotten_is_not_no_nodes() -> None:
    reason = _why(cluster(node("a", gpus=1, forgotten=True), job(1, gpus=1)))
    assert reason.code is ReasonCode.NODES_UNAVAILABLE
    assert reason.facts == {"fitting": 1, "unreachable": 0, "faulty": 0, "draining": 0, "paused": 0, "forgotten": 1}


def test_a_task_larger_than_any_node_ever_is_told_what_the_largest_has() -> None:
    reason = _why(cluster(node("a", gpus=4, cpus=8, memory_mb=1_000), node("b", gpus=2), job(1, gpus=5, model="A100")))
    assert reason.code is ReasonCode.NO_FITTING_NODE
    assert reason.facts["asked"] == "5 x A100, 1 CPU"
    assert reason.facts["largest"] == "4 GPUs, 4 of them suitable, 8 CPUs and 1000 MiB memory"


def test_a_gang_larger_than_all_nodes_together_is_told_how_many_fit() -> None:
    reason = _why(cluster(node("a", gpus=4), node("b", gpus=8), job(1, gpus=4, tasks=4)))
    assert reason.code is ReasonCode.NO_FITTING_NODE
    assert reason.facts["largest"] == "room for 2 of its 4 tasks, all nodes together for 3"


def test_a_gang_for_which_only_some_nodes_have_the_cpus_beside_their_gpus_is_never() -> None:
    """There are four GPUs, but `a` has CPUs for one task of two."""
    small, large = node("a", gpus=2, cpus=2), node("b", gpus=2, cpus=64)
    for first, second in ((small, large), (node("a", gpus=2, cpus=64), node("b", gpus=2, cpus=2))):
        reason = _why(cluster(first, second, job(1, gpus=1, cpus=2, tasks=4)))
        assert reason.code is ReasonCode.NO_FITTING_NODE


def test_the_same_of_memory_is_never_too() -> None:
    for one, other in ((10, 1_000), (1_000, 10)):
        nodes = node("a", gpus=2, memory_mb=one), node("b", gpus=2, memory_mb=other)
        reason = _why(cluster(*nodes, job(1, gpus=1, memory_mb=10, tasks=4)))
        assert reason.code is ReasonCode.NO_FITTING_NODE


def test_a_cpu_wish_that_no_node_meets_is_never_called_a_lack_of_gpus() -> None:
    assert _why(cluster(node("a", gpus=4, cpus=8), _full("a", 4), job(1, gpus=1, cpus=9))).code is (
        ReasonCode.NO_FITTING_NODE
    )


def test_nodes_that_would_fit_but_take_no_work_are_counted_by_why() -> None:
    here = cluster(
        node("a", gpus=8, reachable=False),
        node("b", gpus=8, drain="disk"),
        node("c", gpus=8, forgotten=True),
        node("d", gpus=8, reachable=False, drain="disk"),
        node("e", gpus=4),
        node("f", gpus=4, reachable=False),
        job(1, gpus=8),
    )
    reason = _why(here)
    assert reason.code is ReasonCode.NODES_UNAVAILABLE
    counts = {"fitting": 4, "unreachable": 2, "faulty": 0, "draining": 1, "paused": 0, "forgotten": 1}
    assert reason.facts == {**counts, "node": "b", "drained": "b drained: disk"}


def test_a_gang_that_needs_a_drained_node_beside_a_ready_one_waits_for_the_node() -> None:
    reason = _why(cluster(node("a", gpus=4), node("b", gpus=4, drain="disk"), job(1, gpus=4, tasks=2)))
    assert reason.code is ReasonCode.NODES_UNAVAILABLE
    assert reason.facts["fitting"] == 1


def test_unavailable_nodes_of_one_make_are_counted_each() -> None:
    """Two tasks of eight GPUs fit two such nodes, not one: nobody is told that no node is large enough."""
    reason = _why(cluster(node("a", gpus=8, drain="disk"), node("b", gpus=8, drain="disk"), job(1, gpus=8, tasks=2)))
    assert reason.code is ReasonCode.NODES_UNAVAILABLE
    assert reason.facts["fitting"] == 2


def test_a_drained_node_gets_nothing() -> None:
    assert not cluster(node("a", gpus=4, drain="disk"), job(1, gpus=1)).plan().actions


def test_a_lack_of_gpus_is_told_with_what_is_free_in_all_and_at_best_on_one_node() -> None:
    here = cluster(
        node("a", gpus=4),
        node("b", gpus=4),
        node("c", models=[V100] * 8),
        running_on(job(101, gpus=3), ("a", [0, 1, 2])),
        running_on(job(102, gpus=2), ("b", [0, 1])),
        job(1, gpus=3, model="A100"),
    )
    reason = _why(here)
    assert reason.code is ReasonCode.INSUFFICIENT_GPUS
    assert reason.facts == {"needed": 3, "tasks": 1, "per_task": 3, "free": 3, "best": 2}


def test_gpus_of_another_model_on_the_same_node_are_not_called_free() -> None:
    here = cluster(
        node("a", models=[H100, H100, V100, V100]),
        running_on(job(101, gpus=1), ("a", [0])),
        job(1, gpus=2, model="H100"),
    )
    assert _why(here).facts == {"needed": 2, "tasks": 1, "per_task": 2, "free": 1, "best": 1}


def test_a_lack_of_cpus_beside_free_gpus_is_called_so() -> None:
    """The CPUs of `b` are free, but its GPUs are not."""
    here = cluster(
        node("a", gpus=4, cpus=16), node("b", gpus=1, cpus=64), running_on(job(101, cpus=13), ("a", [])),
        running_on(job(102, gpus=1, cpus=0), ("b", [0])), job(1, gpus=1, cpus=8),
    )  # fmt: skip
    reason = _why(here)
    assert reason.code is ReasonCode.INSUFFICIENT_CPUS
    assert reason.facts == {"needed": 8, "best": 3, "tasks": 1, "room": 0}


def test_a_lack_of_memory_beside_free_gpus_and_cpus_is_called_so() -> None:
    """`b` has memory, but no CPUs beside its GPUs."""
    here = cluster(
        node("a", gpus=4, memory_mb=1_000), node("b", gpus=4, cpus=8, memory_mb=5_000),
        running_on(job(101, memory_mb=600), ("a", [])), running_on(job(102, cpus=8), ("b", [])),
        job(1, gpus=1, memory_mb=500),
    )  # fmt: skip
    reason = _why(here)
    assert reason.code is ReasonCode.INSUFFICIENT_MEMORY
    assert reason.facts == {"needed": 500, "best": 400, "tasks": 1, "room": 0}


def test_gpus_are_named_before_cpus_when_both_are_short() -> None:
    here = cluster(node("a", gpus=2, cpus=4), _full("a", 2, cpus=4), job(1, gpus=1, cpus=1))
    assert _why(here).code is ReasonCode.INSUFFICIENT_GPUS


def test_a_gang_short_of_cpus_on_all_nodes_together_is_told_for_how_many_tasks_there_is_room() -> None:
    here = cluster(node("a", gpus=4, cpus=8), running_on(job(101, cpus=3), ("a", [])), job(1, gpus=1, cpus=2, tasks=4))
    reason = _why(here)
    assert reason.code is ReasonCode.INSUFFICIENT_CPUS
    assert reason.facts == {"needed": 2, "best": 5, "tasks": 4, "room": 2}


def test_gpus_that_only_a_mix_would_use_are_not_called_missing() -> None:
    """One A100 and one V100 are free and would do; what is short are CPUs."""
    here = cluster(node("a", models=["A100", V100], cpus=4), running_on(job(101, cpus=4), ("a", [])), job(1, gpus=2))
    assert _why(here).code is ReasonCode.INSUFFICIENT_CPUS


def test_a_job_without_gpus_waits_for_cpus() -> None:
    here = cluster(node("a", cpus=4), running_on(job(101, cpus=3), ("a", [])), job(1, cpus=2))
    assert _why(here).code is ReasonCode.INSUFFICIENT_CPUS


def test_a_rare_model_behind_many_nodes_is_still_found() -> None:
    """The glance at the first ready nodes says no here, and all nodes are judged before anyone is told `never`."""
    many = [node(f"n{i:03}", models=[V100, "odd"]) for i in range(100)]
    here = cluster(
        *many,
        node("z", models=[V100, V100, "odd"]),
        running_on(job(101, gpus=1), ("z", [0])),
        job(1, gpus=2, model="V100"),
    )
    assert _why(here).code is ReasonCode.INSUFFICIENT_GPUS


def test_a_job_with_an_image_is_told_that_no_node_runs_containers_and_what_is_wrong_with_one_that_would() -> None:
    """X9."""
    wish = make_where(f"{CONTAINERS} in ({RUNS_CONTAINERS})")
    bare, boxed = node("a", gpus=1), node("b", gpus=1)
    assert describe(_why(cluster(bare, job(1, gpus=1, where=wish)))) == (
        "it has an image, and no node runs containers now"
    )
    broken = replace(boxed, inventory=replace(boxed.inventory, containers_fault="its engine is down"))
    reason = _why(cluster(bare, broken, job(1, gpus=1, where=wish)))
    assert reason.code is ReasonCode.NO_CONTAINER_NODE
    assert describe(reason).endswith(": node b would, but its engine is down")
    works = replace(boxed, inventory=replace(boxed.inventory, executors=("container",)))
    elsewhere = make_where(f"{CONTAINERS} in ({RUNS_CONTAINERS})", exclude=["b"])
    assert _why(cluster(bare, works, job(1, gpus=1, where=elsewhere))).code is ReasonCode.NO_SELECTED_NODE
