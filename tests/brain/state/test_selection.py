"""Partitions, and what a job may select (rules Q and E)."""

import pytest
from msgspec.structs import replace

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.array import JobRef
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import GpuUuid, PartitionName
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.partition import Partition, selection, time_default_ms
from stoker.brain.domain.plan import Place
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import DAY_MS, HOUR_MS, MINUTE_MS
from stoker.brain.domain.where import ANYWHERE, Where, make_where, selects
from stoker.brain.state.admit.plan import admit_place
from stoker.brain.state.commands import (
    DeletePartition,
    PutPartition,
    Requeue,
    Submit,
)
from stoker.brain.state.validation.where import none_selected, selected_nodes, where_fault
from tests.brain.state.labelled import N1, label, story_with_n1, taint
from tests.brain.state.story import ANNA, Story, inventory, spec

NOWHERE = PartitionName("")


# -- partitions ----------------------------------------------------------------------------------------------------


def put(story: Story, name: str, *, create: bool = True, where: Where = ANYWHERE, **fields: object) -> Partition:
    made = Partition(name=PartitionName(name), where=where, **fields)  # type: ignore[arg-type]  # a test passes fields by name
    story.do(PutPartition(by=ANNA, partition=made, create=create))
    return made


def refused_put(story: Story, name: str, *, create: bool = True, **fields: object) -> Refusal:
    made = Partition(name=PartitionName(name), **fields)  # type: ignore[arg-type]  # a test passes fields by name
    return story.refused(PutPartition(by=ANNA, partition=made, create=create))


def delete(name: str) -> DeletePartition:
    return DeletePartition(by=ANNA, name=PartitionName(name))


def test_a_partition_is_made_replaced_whole_and_deleted() -> None:
    story = Story()
    assert story.state.partitions == {"long": put(story, "long", time_max_ms=HOUR_MS, comment="x")}
    assert story.state.partitions == {"long": put(story, "long", create=False, comment="y")}
    story.do(delete("long"))
    assert story.state.partitions == {}


def test_a_partition_that_is_as_wished_makes_no_event() -> None:
    story = Story()
    put(story, "long")
    before = story.state.position
    put(story, "long", create=False)
    assert story.state.position == before


def test_a_partition_that_is_there_can_not_be_made_again() -> None:
    story = Story()
    put(story, "long")
    assert refused_put(story, "long").code == "partition_exists"


@pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "x" * 64, "\u00e9", "a\n"])
def test_a_partition_is_named_like_the_value_of_a_label(name: str) -> None:
    refusal = refused_put(Story(), name)
    assert refusal.code == "bad_partition_name"
    assert "a value" not in refusal.message


def test_the_times_of_a_partition_lie_within_each_other_and_the_policy() -> None:
    story = Story(Policy(time_limit_max_ms=DAY_MS))
    assert refused_put(story, "p", time_max_ms=DAY_MS + 1).code == "time_limit_too_long"
    assert refused_put(story, "p", time_default_ms=DAY_MS + 1).code == "time_limit_too_long"
    refusal = refused_put(story, "p", time_default_ms=HOUR_MS + 1, time_max_ms=HOUR_MS)
    assert refusal.code == "time_limit_too_long"
    assert "longest of the partition is" not in refusal.message
    put(story, "p", time_default_ms=HOUR_MS, time_max_ms=HOUR_MS)


def test_a_partition_has_bounds() -> None:
    story = Story(Policy(partitions_max=1, selector_terms_max=3, text_bytes_max=10))
    assert refused_put(story, "p", where=make_where("a in (1,2,3,4)")).code == "too_many_terms"
    assert refused_put(story, "p", comment="x" * 11).code == "text_too_long"
    put(story, "p")
    assert refused_put(story, "q").code == "too_many_partitions"
    put(story, "p", create=False, comment="changed")


def test_a_partition_excludes_only_nodes_that_were_ever_there() -> None:
    story = story_with_n1()
    refusal = refused_put(story, "p", where=make_where(exclude=["n11"]))
    assert (refusal.code, refusal.hint) == ("unknown_node", "did you mean `n1`?")


def test_a_partition_is_deleted_only_once_no_job_that_names_it_is_left() -> None:
    story = story_with_n1()
    put(story, "long")
    waiting, running = (story.submit(spec(partition=PartitionName("long"))) for _ in range(2))
    story.run(running, ("n1", 0))
    refusal = story.refused(delete("long"))
    assert (refusal.code, refusal.facts["jobs"]) == ("partition_in_use", 2)
    story.cancel(waiting)
    assert story.refused(delete("long")).facts["jobs"] == 1
    story.end(running)
    story.do(delete("long"))


def test_a_job_is_run_once_more_only_while_its_partition_is_there() -> None:
    story = story_with_n1()
    put(story, "long")
    job = story.submit(spec(partition=PartitionName("long")))
    story.run(job, ("n1", 0))
    story.end(job, exit_code=1)
    story.do(delete("long"))
    again = Requeue(by=ANNA, target=JobRef(job))
    assert story.refused(again).code == "unknown_partition"
    put(story, "long")
    story.do(again)
    assert story.refused(delete("long")).code == "partition_in_use"


def test_a_partition_that_is_not_there_can_not_be_deleted_and_the_nearest_is_named() -> None:
    story = Story()
    assert "stoker partition create" in story.refused(delete("long")).hint
    put(story, "long")
    refusal = story.refused(delete("logn"))
    assert (refusal.code, refusal.hint) == ("partition_unknown", "did you mean `long`?")


# -- what a job selects --------------------------------------------------------------------------------------------


def wish(where: Where = ANYWHERE, partition: str = "", time_limit_ms: int = HOUR_MS) -> Refusal | None:
    """What a cluster of n1, and of partitions `long` and `short`, says to a job."""
    return where_fault(_two_partitions().state, _spec(where, partition, time_limit_ms))


def _spec(where: Where = ANYWHERE, partition: str = "", time_limit_ms: int = 0) -> JobSpec:
    return spec(where=where, partition=PartitionName(partition), time_limit_ms=time_limit_ms)


def _two_partitions() -> Story:
    story = story_with_n1(Policy(selector_terms_max=3, time_limit_default_ms=DAY_MS))
    put(story, "long", time_max_ms=2 * DAY_MS, time_default_ms=2 * HOUR_MS)
    put(story, "short", time_max_ms=10 * MINUTE_MS)
    put(story, "any")
    return story


def test_a_job_that_selects_nothing_or_what_is_there_is_taken() -> None:
    assert wish() is None
    assert wish(make_where("zone=a", ["n1"], ["*"]), "long") is None


def test_a_partition_that_is_not_there_is_refused_with_the_nearest_name() -> None:
    refusal = wish(partition="lnog")
    assert refusal is not None
    assert (refusal.code, refusal.hint) == ("unknown_partition", "did you mean `long`?")
    refusal = wish(partition="qqq")
    assert refusal is not None
    assert refusal.hint == "known are: any, long, short"
    refusal = where_fault(Story().state, _spec(partition="long"))
    assert refusal is not None
    assert "no partitions" in refusal.hint


def test_a_time_limit_above_the_partitions_longest_is_refused() -> None:
    refusal = wish(partition="short", time_limit_ms=10 * MINUTE_MS + 1)
    assert refusal is not None
    assert (refusal.code, refusal.facts["partition"]) == ("time_limit_too_long", "short")
    assert wish(partition="short", time_limit_ms=10 * MINUTE_MS) is None


def test_who_names_no_time_limit_gets_the_partitions_default_which_is_never_above_its_longest() -> None:
    state = _two_partitions().state
    limits = {
        name: time_default_ms(state.partitions.get(PartitionName(name)), state.policy)
        for name in ("", "any", "long", "short")
    }
    assert limits == {"": DAY_MS, "any": DAY_MS, "long": 2 * HOUR_MS, "short": 10 * MINUTE_MS}


def test_who_excludes_a_node_that_never_was_has_mistyped_it() -> None:
    refusal = wish(make_where(exclude=["n11"]))
    assert refusal is not None
    assert (refusal.code, refusal.hint) == ("unknown_node", "did you mean `n1`?")


def test_while_no_node_is_known_any_name_may_be_excluded() -> None:
    assert where_fault(Story().state, _spec(make_where(exclude=["n1"]))) is None


def test_a_selection_has_so_many_terms_and_no_more() -> None:
    assert wish(make_where("a in (1,2),b")) is None
    refusal = wish(make_where("a in (1,2),b", tolerate=["x"]))
    assert refusal is not None
    assert (refusal.code, refusal.facts["terms"]) == ("too_many_terms", 4)


def _selected(story: Story, where: Where, partition: str = "") -> list[str]:
    return [
        node.name
        for node in selected_nodes(story.state, spec(0, where=where, partition=PartitionName(partition)).shape)
    ]


def test_selection_and_partition_must_both_hold() -> None:
    story = Story()
    for name, labels in (("n1", {"zone": "a"}), ("n2", {"zone": "a", "disk": "ssd"}), ("n3", {"disk": "ssd"})):
        story.register(name, replace(inventory(name), labels=labels))
    put(story, "za", where=make_where("zone=a"))
    assert _selected(story, ANYWHERE) == ["n1", "n2", "n3"]
    assert _selected(story, ANYWHERE, "za") == ["n1", "n2"]
    assert _selected(story, make_where("disk=ssd"), "za") == ["n2"]
    assert _selected(story, make_where(exclude=["n2"]), "za") == ["n1"]


def test_the_jobs_of_a_partition_tolerate_what_it_tolerates() -> None:
    story = story_with_n1(taints=("pool=big:NoSchedule",))
    put(story, "big", where=make_where(tolerate=["pool=big"]))
    state, n1 = story.state, story.state.nodes[N1]
    for partition, selected in ((NOWHERE, False), (PartitionName("big"), True)):
        shape = spec(0, partition=partition).shape
        assert selects(selection(state.partitions, state.tenants, shape), n1) is selected


def test_a_taint_makes_a_job_wait_and_never_refuses_it() -> None:
    """Taints come and go, as drains do, and who submits has mistyped nothing."""
    story = story_with_n1(taints=("gpu=suspect:NoSchedule",))
    story.submit(spec(8))


def test_a_job_is_refused_when_no_node_that_it_selects_could_ever_run_it() -> None:
    story = Story()
    story.register("n1", replace(inventory("n1", 8), labels={"zone": "a"}))
    story.register("n2", replace(inventory("n2", 2), labels={"zone": "b"}))
    story.submit(spec(8), spec(2, where=make_where("zone=b")), spec(8, where=make_where(exclude=["n2"])))
    too_large = story.refused(Submit(by=ANNA, specs=(spec(3, where=make_where("zone=b")),)))
    assert "no node that it selects could ever run one task" in too_large.message
    assert too_large.facts["gpus"] == 2
    too_many = story.refused(Submit(by=ANNA, specs=(spec(2, tasks=2, where=make_where("zone=b")),)))
    assert "all nodes that it selects hold 1 of them together" in too_many.message
    nobody = story.refused(Submit(by=ANNA, specs=(spec(where=make_where("zone=c")),)))
    assert (nobody.code, nobody.facts["nodes"]) == ("demand_unsatisfiable", 2)


def test_a_submit_takes_the_time_of_its_partition_and_is_refused_what_that_has_not() -> None:
    story = _two_partitions()
    job = story.submit(spec(partition=PartitionName("short")))
    assert story.job(job).spec.time_limit_ms == 10 * MINUTE_MS
    unknown, short = (spec(partition=PartitionName(name), time_limit_ms=HOUR_MS) for name in ("shrt", "short"))
    assert story.refused(Submit(by=ANNA, specs=(unknown,))).code == "unknown_partition"
    bulk = story.refused(Submit(by=ANNA, specs=(spec(), short)))
    assert (bulk.code, bulk.facts["index"]) == ("time_limit_too_long", 1)


def test_a_selection_that_no_node_answers_to_is_refused_with_what_one_node_has_instead() -> None:
    story = story_with_n1(labels={"zone": "a"})
    refusal = none_selected(story.state, spec(0, where=make_where("zone=b")).shape)
    assert refusal.code == "demand_unsatisfiable"
    assert "zone=b" in refusal.message
    assert "node n1, for one: its label zone is 'a', and zone=b is wanted" in refusal.hint


def test_a_plan_made_before_a_node_was_tainted_or_relabelled_is_stale() -> None:
    story = story_with_n1(labels={"zone": "a"})
    task = TaskPlacement(rank=0, node=N1, gpus=(GpuUuid("n1-0"),), cpus=1, memory_mb=0)
    place = Place(job=story.submit(spec(where=make_where("zone=a"))), attempt=1, tasks=(task,))
    assert admit_place(story.state, place) is None
    label(story, zone="b")
    refusal = admit_place(story.state, place)
    assert refusal is not None
    assert refusal.message == "node n1 is no longer one that job 1 may run on"
    label(story, zone="a")
    assert admit_place(story.state, place) is None
    taint(story, "gpu=old:NoSchedule")
    assert admit_place(story.state, place) is not None


def test_a_gang_that_may_not_share_nodes_is_refused_where_there_are_too_few_of_them() -> None:
    story = Story()
    for name, zone in (("n1", "a"), ("n2", "a"), ("n3", "b")):
        story.register(name, replace(inventory(name), labels={"zone": zone}))
    demand = Demand(gpu_count=1, tasks=3, tasks_per_node=1)
    wide = replace(spec(), demand=demand, where=make_where("zone=a"))
    refusal = story.refused(Submit(by=ANNA, specs=(wide,)))
    assert (refusal.code, refusal.facts["tasks_max"]) == ("demand_unsatisfiable", 2)
    assert "--tasks-per-node" in refusal.hint
    story.submit(replace(wide, where=ANYWHERE))
    story.submit(replace(wide, demand=replace(demand, tasks_per_node=2)))
