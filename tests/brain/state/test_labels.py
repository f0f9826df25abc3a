"""Labels and taints of nodes: what may be said, and what is kept (rules K)."""

import pytest
from msgspec.structs import replace

from stoker.brain.domain.ids import PartitionName, Position, node_principal
from stoker.brain.domain.label import HOSTNAME, Taint, taints_of
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.report import Registration
from stoker.brain.domain.units import HOUR_MS
from stoker.brain.domain.where import make_where
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import decode_fact, load_snapshot, snapshot_chunks
from stoker.brain.state.commands import (
    ForgetNode,
    LabelNode,
    NodeSilent,
    PutPartition,
    Register,
    TaintNode,
)
from stoker.brain.state.events.node import NodeRegistered
from tests.brain.state.labelled import N1, label, shown, story_with_n1, taint
from tests.brain.state.story import ANNA, Story, inventory

# -- labels --------------------------------------------------------------------------------------------------------


def test_labels_are_set_changed_and_taken_off_and_the_others_stay() -> None:
    story = story_with_n1()
    assert label(story, zone="a", disk="ssd") == {"zone": "a", "disk": "ssd"}
    assert label(story, zone="b") == {"zone": "b", "disk": "ssd"}
    assert label(story, "disk") == {"zone": "b"}


def test_a_label_that_is_as_wished_or_not_there_makes_no_event() -> None:
    story = story_with_n1()
    label(story, zone="a")
    before = story.state.position
    label(story, "no-such", zone="a")
    assert story.state.position == before


def test_a_label_that_people_set_or_took_off_stays_so_when_the_agent_registers_again() -> None:
    story = story_with_n1(labels={"zone": "a", "disk": "ssd"})
    label(story, "disk", zone="b")
    story.register("n1", replace(inventory("n1", boot="boot-2"), labels={"zone": "c", "disk": "hdd", "rack": "7"}))
    assert shown(story) == {"zone": "b", "rack": "7"}


def test_labels_taints_and_partitions_survive_a_restart_from_the_log_and_from_a_snapshot() -> None:
    story = story_with_n1(labels={"disk": "ssd"}, taints=("old:NoSchedule",))
    label(story, "disk", zone="b")
    taint(story, "gpu=bad:NoSchedule", remove=("old",))
    whole = Partition(name=PartitionName("p"), where=make_where("zone=b", ["n1"], ["gpu"]), time_max_ms=HOUR_MS)
    story.do(PutPartition(by=ANNA, partition=whole, create=True))
    replayed = ClusterState()
    for record in story.log:
        apply(replayed, decode_fact(record), Position(replayed.position + 1))
    for state in (replayed, load_snapshot(list(snapshot_chunks(story.state)))):
        assert state.nodes == story.state.nodes
        assert state.partitions == story.state.partitions


def test_what_people_set_on_a_node_goes_when_it_is_forgotten() -> None:
    story = story_with_n1(labels={"disk": "ssd"})
    label(story, "disk", zone="b")
    taint(story, "gpu=bad:NoSchedule")
    story.do(NodeSilent(by=ANNA, node=N1))
    story.do(ForgetNode(by=ANNA, node=N1, force=False))
    assert story.refused(LabelNode(by=ANNA, node=N1, labels={"a": "b"})).code == "node_forgotten"
    story.register("n1", replace(inventory("n1"), labels={"disk": "hdd"}))
    assert shown(story) == {"disk": "hdd"}
    assert taints_of(story.state.nodes[N1]) == ()


@pytest.mark.parametrize(
    "command",
    [
        LabelNode(by=ANNA, node=N1, labels={"a b": "c"}),
        LabelNode(by=ANNA, node=N1, labels={"a": "c/d"}),
        LabelNode(by=ANNA, node=N1, labels={HOSTNAME: "n2"}),
        LabelNode(by=ANNA, node=N1, labels={}, remove=(HOSTNAME,)),
        LabelNode(by=ANNA, node=N1, labels={}, remove=("",)),
        LabelNode(by=ANNA, node=N1, labels={"a": "1"}, remove=("a",)),
    ],
)
def test_what_is_no_label_is_refused_and_nothing_is_set(command: LabelNode) -> None:
    assert story_with_n1().refused(command).code == "bad_label"


@pytest.mark.parametrize(
    "command",
    [
        TaintNode(by=ANNA, node=N1, taints=(Taint("a b"),)),
        TaintNode(by=ANNA, node=N1, taints=(Taint("a", "c/d"),)),
        TaintNode(by=ANNA, node=N1, taints=(), remove=("",)),
        TaintNode(by=ANNA, node=N1, taints=(Taint("a", "1"), Taint("a", "2"))),
        TaintNode(by=ANNA, node=N1, taints=(Taint("a"),), remove=("a",)),
    ],
)
def test_what_is_no_taint_is_refused_and_nothing_is_put_on(command: TaintNode) -> None:
    assert story_with_n1().refused(command).code == "bad_taint"


def test_a_node_that_is_not_there_has_no_labels_and_no_taints() -> None:
    story = Story()
    assert story.refused(LabelNode(by=ANNA, node=N1, labels={"a": "b"})).code == "node_unknown"
    assert story.refused(TaintNode(by=ANNA, node=N1, taints=())).code == "node_unknown"


def test_a_node_has_so_many_labels_and_taints_and_no_more() -> None:
    story = story_with_n1(Policy(node_labels_max=2), labels={"a": "1"}, taints=("a:NoSchedule",))
    label(story, b="2")
    refusal = story.refused(LabelNode(by=ANNA, node=N1, labels={"c": "3"}))
    assert (refusal.code, refusal.facts["count"], refusal.facts["count_max"]) == ("too_many_labels", 3, 2)
    assert label(story, "a", c="3") == {"b": "2", "c": "3"}
    taint(story, "b:NoSchedule")
    assert story.refused(TaintNode(by=ANNA, node=N1, taints=(Taint("c"),))).code == "too_many_labels"
    assert taint(story, "c:NoSchedule", remove=("b",)) == ["a:NoSchedule", "c:NoSchedule"]


def test_words_about_labels_that_an_agent_once_had_are_bounded_too() -> None:
    """Otherwise an agent that always names other labels, and a person who takes them off, would fill the state."""
    story = story_with_n1(Policy(node_labels_max=2))
    for key in ("l0", "l1"):
        story.register("n1", replace(inventory("n1"), labels={key: "x"}, taints=(f"{key}:NoSchedule",)))
        label(story, key)
        taint(story, remove=(key,))
    story.register("n1", replace(inventory("n1"), labels={"l2": "x"}, taints=("l2:NoSchedule",)))
    assert story.refused(LabelNode(by=ANNA, node=N1, labels={}, remove=("l2",))).code == "too_many_labels"
    assert story.refused(TaintNode(by=ANNA, node=N1, taints=(), remove=("l2",))).code == "too_many_labels"


@pytest.mark.parametrize(
    ("carried", "why"),
    [
        ({"labels": {"a b": "c"}}, "' ' may not stand in a key"),
        ({"labels": {HOSTNAME: "n2"}}, "Stoker's own"),
        ({"labels": {f"l{i}": "" for i in range(101)}}, "at most 100"),
        ({"taints": ("gpu",)}, "`:NoSchedule` is missing"),
        ({"taints": ("gpu=a:NoSchedule", "gpu=b:NoSchedule")}, "two taints of one key"),
    ],
)
def test_a_node_whose_agent_names_what_can_not_be_a_label_or_taint_is_refused(
    carried: dict[str, object], why: str
) -> None:
    story = Story()
    found = replace(inventory("n1"), **carried)
    refusal = story.refused(Register(by=node_principal(N1), registration=Registration(node=N1, inventory=found)))
    assert (refusal.code, refusal.facts["node"]) == ("bad_inventory", "n1")
    assert why in refusal.message


def test_a_node_whose_labels_an_older_version_took_registers_again_after_an_upgrade() -> None:
    story = Story()
    odd = replace(inventory("n1"), labels={"GPU type": "two words"})
    story.apply(NodeRegistered(node=N1, inventory=odd))
    story.register("n1", odd)
    story.register("n1", replace(odd, boot_id="boot-2"))
    changed = Registration(node=N1, inventory=replace(odd, labels={"GPU type": "x"}))
    assert story.refused(Register(by=node_principal(N1), registration=changed)).code == "bad_inventory"


# -- taints --------------------------------------------------------------------------------------------------------


def test_taints_are_put_on_replaced_by_key_and_taken_off_by_key() -> None:
    story = story_with_n1()
    assert taint(story, "gpu=old:NoSchedule", "team:NoSchedule") == ["gpu=old:NoSchedule", "team:NoSchedule"]
    assert taint(story, "gpu=new:NoSchedule") == ["gpu=new:NoSchedule", "team:NoSchedule"]
    assert taint(story, remove=("gpu", "no-such")) == ["team:NoSchedule"]


def test_a_taint_of_the_agent_that_people_took_off_stays_off_until_they_put_it_on() -> None:
    story = story_with_n1(taints=("gpu=old:NoSchedule", "a:NoSchedule"))
    assert taint(story, remove=("gpu",)) == ["a:NoSchedule"]
    story.register("n1", replace(inventory("n1", boot="boot-2"), taints=("gpu=older:NoSchedule",)))
    assert taint(story) == []
    assert taint(story, "gpu=x:NoSchedule") == ["gpu=x:NoSchedule"]
    assert taint(story, "gpu=x:NoSchedule") == ["gpu=x:NoSchedule"]


def test_a_taint_ends_nothing_that_runs() -> None:
    story = story_with_n1()
    job = story.submit()
    story.run(job, ("n1", 0))
    taint(story, "gpu=old:NoSchedule")
    assert story.job(job).state == "running"
