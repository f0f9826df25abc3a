"""Admission of commands that change the labels and taints of a node.

Rules: K1  a key that isn't named keeps what it has
       K2  to take off a label or taint that isn't there changes nothing, and is no fault
       K3  a label or taint of the agent's that people took off stays off, also when the agent registers again
       K4  a node has at most `node_labels_max` labels, and as many that were taken off; the same of taints
"""

from collections.abc import Iterable

from msgspec.structs import replace

from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.label import (
    check_label,
    check_label_key,
    check_taint,
    check_taint_key,
    labels_set_on,
    parse_taint,
    taint_text,
    taints_of,
)
from stoker.brain.domain.node import Node
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Answer, LabelNode, TaintNode
from stoker.brain.state.events.node import NodeLabelled, NodeTainted
from stoker.brain.state.validation.lookups import find_registered_node


def label_node(state: ClusterState, command: LabelNode) -> Answer:
    """Admit labels to set on a node and to take off."""
    node = find_registered_node(state, command.node)
    if isinstance(node, Refusal):
        return node
    try:
        for key, value in command.labels.items():
            check_label(key, value)
        for key in command.remove:
            check_label_key(key)
    except StokerError as wrong:
        return wrong.refusal
    twice = _twice("bad_label", (*command.labels, *command.remove))
    if twice:
        return twice
    labels = {**node.labels, **command.labels}
    for key in command.remove:
        if key in node.inventory.labels:
            labels[key] = None
        else:
            labels.pop(key, None)
    if labels == node.labels:
        return ()
    count, off = len(labels_set_on(node.inventory.labels, labels)), list(labels.values()).count(None)
    fault = _too_many(state, node.name, "labels", count) or _too_many(state, node.name, "labels taken off", off)
    return fault or (NodeLabelled(node=node.name, labels=labels),)


def taint_node(state: ClusterState, command: TaintNode) -> Answer:
    """Admit taints to put on a node and to take off."""
    node = find_registered_node(state, command.node)
    if isinstance(node, Refusal):
        return node
    try:
        for taint in command.taints:
            check_taint(taint)
        for key in command.remove:
            check_taint_key(key)
    except StokerError as wrong:
        return wrong.refusal
    twice = _twice("bad_taint", (*(taint.key for taint in command.taints), *command.remove))
    if twice:
        return twice
    event = _tainted(node, command)
    if (event.taints, event.off) == (node.taints, node.taints_off):
        return ()
    count = len(taints_of(replace(node, taints=event.taints, taints_off=event.off)))
    fault = _too_many(state, node.name, "taints", count)
    return fault or _too_many(state, node.name, "taints taken off", len(event.off)) or (event,)


def _tainted(node: Node, command: TaintNode) -> NodeTainted:
    agents = {parse_taint(text).key for text in node.inventory.taints}
    taints = {parse_taint(text).key: text for text in node.taints}
    off = dict.fromkeys(node.taints_off)
    for key in command.remove:
        taints.pop(key, None)
        if key in agents:
            off[key] = None
    for taint in command.taints:
        taints[taint.key] = taint_text(taint)
        off.pop(taint.key, None)
    return NodeTainted(node=node.name, taints=tuple(taints[key] for key in sorted(taints)), off=tuple(sorted(off)))


def _twice(code: str, keys: Iterable[str]) -> Refusal | None:
    seen: dict[str, None] = {}
    for key in keys:
        if key in seen:
            return refuse(code, f"{key!r} is named twice", "say once what it shall be", key=key)
        seen[key] = None
    return None


def _too_many(state: ClusterState, name: NodeName, what: str, count: int) -> Refusal | None:
    most = state.policy.node_labels_max
    if count <= most:
        return None
    message = f"node {name} would have {count} {what}; at most {most} are taken"
    hint = "take some off first: `stoker node show NODE` lists them"
    return refuse("too_many_labels", message, hint, node=name, count=count, count_max=most)
