"""Application of events about nodes to the state."""

from collections.abc import Iterable
from typing import assert_never

from msgspec.structs import replace

from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import Principal
from stoker.brain.domain.node import UNREAD_MAX, Inventory, Node, NodePause
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events import node as events


def apply_node(state: ClusterState, event: events.NodeEvent, at: Instant) -> None:
    if isinstance(event, events.NodeRegistered):
        state.put_node(_registered(state.nodes.get(event.node), event, at))
        return
    if isinstance(event, events.NodeDropped):
        state.drop_node(event.node)
        return
    if isinstance(event, events.NodeLost | events.LeaseBroken):
        return  # history only
    node = state.nodes[event.node]
    match event:
        case events.NodeReachable():
            node = replace(node, reachable=True, silent_since=NEVER, returned=True)
        case events.NodeUnreachable():
            node = replace(node, reachable=False, silent_since=at if event.since == NEVER else event.since)
        case events.NodeReturned():
            node = replace(node, returned=True)
        case events.NodeDrained():
            node = replace(node, drain=event.reason, drained_by=event.by, drained_at=at if event.by else NEVER)
        case events.NodeResumed():
            node = _trusted(_undrained(node))
        case events.StartFailed():
            node = replace(node, failed_starts=(*node.failed_starts, event.of))
        case events.NodePaused():
            pause = NodePause(until=event.until, error=event.error)
            node = replace(node, failed_starts=(), pauses=event.pauses, pause=pause)
        case events.NodePauseOver():
            node = replace(node, pause=None)
        case events.NodeLabelled():
            node = replace(node, labels=event.labels)
        case events.NodeTainted():
            node = replace(node, taints=event.taints, taints_off=event.off)
        case events.NodeForgotten():
            node = _forgotten(node, at)
        case events.OrphanTasksFound():
            node = replace(node, strays=event.strays)
        case _:
            assert_never(event)
    state.put_node(node)


def _registered(old: Node | None, event: events.NodeRegistered, at: Instant) -> Node:
    # Reachability comes only once the inventory of tasks was compared (`NodeReachable`): who was never here, or was
    # forgotten, may run strays on the GPUs it offers.
    if old is None or old.forgotten:
        unread = _unread((), event.inventory)
        return Node(name=event.node, inventory=event.inventory, registered_at=at, reachable=False, unread=unread)
    new, known = event.inventory, old.inventory
    shrunk_at = at if new.cpus < known.cpus or new.memory_mb < known.memory_mb else old.shrunk_at
    return replace(old, inventory=new, shrunk_at=shrunk_at, unread=_unread(old.mended.gpus, new))


def _unread(known: Iterable[Gpu], new: Inventory) -> tuple[Gpu, ...]:
    """What a broken driver hides, or a node keeps back, is still there: jobs that need it wait and aren't refused."""
    here = {gpu.uuid for gpu in (*new.gpus, *new.withheld)}
    hidden = [*new.withheld, *(gpu for gpu in known if gpu.uuid not in here and new.gpu_fault)]
    return tuple(sorted(hidden, key=lambda gpu: (gpu.index, gpu.uuid))[:UNREAD_MAX])


def _forgotten(node: Node, at: Instant) -> Node:
    """What people said about a machine isn't kept for the next one under its name."""
    gone = replace(node, forgotten=True, reachable=False, silent_since=at, strays=())
    return _trusted(replace(_undrained(gone), labels={}, taints=(), taints_off=()))


def _undrained(node: Node) -> Node:
    return replace(node, drain=None, drained_by=Principal(""), drained_at=NEVER)


def _trusted(node: Node) -> Node:
    return replace(node, failed_starts=(), pauses=0, pause=None)
