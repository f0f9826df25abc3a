"""`state/node_classes.py`: the nodes of one class are asked once, and the answer is that of asking each."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.node import Node
from stoker.brain.domain.where import ANYWHERE, Where, make_where, selects
from stoker.brain.state import node_classes as module
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.node_classes import NodeClasses
from stoker.brain.state.view import SelectedNodes
from tests.builders import A100, V100, node

_LABELS = st.dictionaries(st.sampled_from(["zone", "disk"]), st.sampled_from(["a", "b", ""]))
_TAINTS = st.lists(st.sampled_from(["x:NoSchedule", "y=1:NoSchedule"]), unique=True)
_NODES = st.builds(
    lambda name, models, cpus, labels, taints: node(name, models=models, cpus=cpus, labels=labels, taints=taints),
    st.sampled_from(["n1", "n10", "n2", "n3"]),
    st.sampled_from([[], [A100], [A100, V100], [V100, A100]]),
    st.sampled_from([8, 16]),
    _LABELS,
    _TAINTS,
)
_PEOPLES = st.tuples(
    st.dictionaries(st.sampled_from(["zone", "rack"]), st.sampled_from(["a", None])),
    _TAINTS,
    st.sampled_from([(), ("x",)]),
)
_SELECTORS = st.builds(
    make_where,
    st.sampled_from(
        [
            "", "zone=a", "zone!=a", "disk", "!disk,zone", "zone in (a,b),rack=a", "stoker.io/hostname=n10",
            "stoker.io/hostname in (n1,n3,nowhere)", "stoker.io/hostname notin (n1),zone=a", "stoker.io/hostname",
            "!stoker.io/hostname", "stoker.io/gpu-model=NVIDIA-A100-SXM4-80GB",
        ]
    ),
    st.lists(st.sampled_from(["n1", "n2"]), unique=True),
    st.lists(st.sampled_from(["x", "y", "y=2", "*"]), unique=True),
)  # fmt: skip


def _names(admitted: SelectedNodes) -> list[NodeName]:
    return sorted(name for each in admitted.classes for name in each.names)


@given(st.lists(st.tuples(_NODES, _PEOPLES), max_size=12), st.lists(_SELECTORS, min_size=1, max_size=4))
def test_a_selection_admits_just_the_nodes_that_it_selects_one_by_one(
    changes: list[tuple[Node, tuple[dict[str, str | None], list[str], tuple[str, ...]]]], wishes: list[Where]
) -> None:
    """After each of many changes, and whatever was remembered from before."""
    node_classes, nodes = NodeClasses(), dict[NodeName, Node]()
    for registered, (labels, taints, off) in changes:
        labelled = replace(registered, labels=labels, taints=tuple(taints), taints_off=off)
        for made in (registered, labelled):
            node_classes.node_changed(nodes.get(made.name), made)
            nodes[made.name] = made
            for wish in wishes:
                admitted = node_classes.admitted(wish)
                assert _names(admitted) == sorted(name for name, each in nodes.items() if selects(wish, each))
                assert admitted.everywhere == (len(_names(admitted)) == len(nodes))
                _check_same_class(admitted, nodes)


def _check_same_class(admitted: SelectedNodes, nodes: dict[NodeName, Node]) -> None:
    assert [each.names[0] for each in admitted.classes] == sorted(each.names[0] for each in admitted.classes)
    for each in admitted.classes:
        assert list(each.names) == sorted(each.names)
        for name in each.names:
            has, said = nodes[name].inventory, each.inventory
            assert [(gpu.model, gpu.memory_mb) for gpu in has.gpus] == [(gpu.model, gpu.memory_mb) for gpu in said.gpus]
            assert (has.cpus, has.memory_mb) == (said.cpus, said.memory_mb)
            assert each.kinds == tuple(sorted({(gpu.model, gpu.memory_mb) for gpu in has.gpus}))


def test_a_selection_is_remembered_until_a_node_changes_in_what_may_be_selected() -> None:
    node_classes, plain, zone = NodeClasses(), node("a"), make_where("zone=a")
    node_classes.node_changed(None, plain)
    first = node_classes.admitted(zone)
    drained = replace(plain, drain="disk", reachable=False)
    node_classes.node_changed(plain, drained)
    again = replace(drained, inventory=replace(plain.inventory, boot_id="boot-2", labels={}))
    node_classes.node_changed(drained, again)
    assert node_classes.admitted(zone) is first
    node_classes.node_changed(again, replace(again, labels={"zone": "a"}))
    assert _names(node_classes.admitted(zone)) == ["a"]


def test_whatever_people_say_of_a_node_is_noticed() -> None:
    node_classes, now = NodeClasses(), node("a", taints=["old:NoSchedule"])
    node_classes.node_changed(None, now)
    assert _names(node_classes.admitted(ANYWHERE)) == []
    for said, there in (
        ({"taints_off": ("old",)}, ["a"]),
        ({"taints": ("new:NoSchedule",)}, []),
        ({"taints": ()}, ["a"]),
    ):
        node_classes.node_changed(now, now := replace(now, **said))
        assert _names(node_classes.admitted(ANYWHERE)) == there


def test_a_node_that_is_dropped_is_admitted_nowhere() -> None:
    state = ClusterState()
    for name in ("a", "b"):
        state.put_node(node(name, forgotten=name == "a"))
    assert _names(state.indexes.node_classes.admitted(ANYWHERE)) == ["a", "b"]
    state.drop_node(NodeName("a"))
    assert _names(state.indexes.node_classes.admitted(ANYWHERE)) == ["b"]
    assert state.indexes.node_classes == state.rebuilt_indexes().node_classes


def test_no_more_is_remembered_than_the_bound() -> None:
    node_classes = NodeClasses()
    node_classes.node_changed(None, node("a"))
    first = node_classes.admitted(ANYWHERE)
    with patch.object(module, "REMEMBERED_MAX", 40):
        for number in range(19):
            node_classes.admitted(make_where(f"!k{number}"))
        assert node_classes.admitted(ANYWHERE) is first
        node_classes.admitted(make_where("!one"))
        node_classes.admitted(make_where("!more"))
        assert node_classes.admitted(ANYWHERE) is not first


def test_selections_share_what_they_admit_whole() -> None:
    """So that what is known of it is found once for all of them."""
    node_classes = NodeClasses()
    for name, zone in (("a", "x"), ("b", "x"), ("c", "y")):
        node_classes.node_changed(None, node(name, labels={"zone": zone}))
    (of_x,) = node_classes.admitted(make_where("zone=x")).classes
    assert [*node_classes.admitted(make_where(exclude=["c"])).classes] == [of_x]
    assert node_classes.admitted(make_where(exclude=["b"])).classes[0] is not of_x
