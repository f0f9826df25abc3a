"""Application of events about nodes to the state."""

from typing import assert_never

from msgspec.structs import replace

from stoker.brain.domain.node import Node
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events.node import (
    LeaseBroken,
    NodeDrained,
    NodeDropped,
    NodeEvent,
    NodeForgotten,
    NodeLabelled,
    NodeLost,
    NodeReachable,
    NodeRegistered,
    NodeResumed,
    NodeReturned,
    NodeTainted,
    NodeUnreachable,
    OrphanTasksFound,
)


def apply_node(state: ClusterState, event: NodeEvent, at: Instant) -> None:
    if isinstance(event, NodeRegistered):
        state.put_node(_registered(state.nodes.get(event.node), event, at))
        return
    if isinstance(event, NodeDropped):
        state.drop_node(event.node)
        return
    if isinstance(event, NodeLost | LeaseBroken):
        return  # history only
    node = state.nodes[event.node]
    match event:
        case NodeReachable():
            node = replace(node, reachable=True, silent_since=NEVER, returned=True)
        case NodeUnreachable():
            node = replace(node, reachable=False, silent_since=at if event.since == NEVER else event.since)
        case NodeReturned():
            node = replace(node, returned=True)
        case NodeDrained():
            node = replace(node, drain=event.reason)
        case NodeResumed():
            node = replace(node, drain=None)
        case NodeLabelled():
            node = replace(node, labels=event.labels)
        case NodeTainted():
            node = replace(node, taints=event.taints, taints_off=event.off)
        case NodeForgotten():
            node = _forgotten(node, at)
        case OrphanTasksFound():
            node = replace(node, strays=event.strays)
        case _:
            assert_never(event)
    state.put_node(node)


def _registered(old: Node | None, event: NodeRegistered, at: Instant) -> Node:
    # Reachability comes only once the inventory of tasks was compared (`NodeReachable`): who was never here, or was
    # forgotten, may run strays on the GPUs it offers.
    if old is None or old.forgotten:
        return Node(name=event.node, inventory=event.inventory, registered_at=at, reachable=False)
    return replace(old, inventory=event.inventory)


def _forgotten(node: Node, at: Instant) -> Node:
    """What people said about a machine isn't kept for the next one under its name."""
    gone = replace(node, forgotten=True, reachable=False, silent_since=at, strays=(), drain=None)
    return replace(gone, labels={}, taints=(), taints_off=())
