"""Facts about nodes and their GPUs."""

import msgspec

from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.node import Inventory, OrphanTask
from stoker.brain.domain.units import NEVER, Instant


class NodeRegistered(msgspec.Struct, frozen=True, kw_only=True, tag="node_registered"):
    """A node joined, came back after it was forgotten, or its inventory changed."""

    node: NodeName
    inventory: Inventory


class NodeReachable(msgspec.Struct, frozen=True, kw_only=True, tag="node_reachable"):
    node: NodeName


class NodeUnreachable(msgspec.Struct, frozen=True, kw_only=True, tag="node_unreachable"):
    """It was silent too long. Nothing ends for that; it only gets no new work."""

    node: NodeName
    since: Instant = NEVER
    """When it was last heard of. NEVER = in a log from before that was told."""


class NodeReturned(msgspec.Struct, frozen=True, kw_only=True, tag="node_returned"):
    """A node that wasn't unreachable has said what it runs, the first time in this epoch, and gets new work."""

    node: NodeName


class NodeDrained(msgspec.Struct, frozen=True, kw_only=True, tag="node_drain_asked"):
    """A person wants no new work there. What runs goes on."""

    node: NodeName
    reason: str


class NodeResumed(msgspec.Struct, frozen=True, kw_only=True, tag="node_resumed"):
    node: NodeName


class NodeLabelled(msgspec.Struct, frozen=True, kw_only=True, tag="node_labelled"):
    """What people set on a node over the labels of its inventory: all of it. None = taken off."""

    node: NodeName
    labels: dict[str, str | None]


class NodeTainted(msgspec.Struct, frozen=True, kw_only=True, tag="node_tainted"):
    """The taints that people put on a node, and the keys of those of its inventory that they took off: all of them."""

    node: NodeName
    taints: tuple[str, ...]
    off: tuple[str, ...]


class NodeForgotten(msgspec.Struct, frozen=True, kw_only=True, tag="node_forgotten"):
    """A person says that it won't come back. Preceded by the ends of all it held. What people set on it goes too."""

    node: NodeName


class NodeDropped(msgspec.Struct, frozen=True, kw_only=True, tag="node_dropped"):
    """A forgotten node of which nothing is known any more, to make room for another."""

    node: NodeName


class OrphanTasksFound(msgspec.Struct, frozen=True, kw_only=True, tag="strays_found"):
    """The tasks that run on the node although our ledger says they don't: all of them, so an empty tuple clears."""

    node: NodeName
    strays: tuple[OrphanTask, ...]


class NodeLost(msgspec.Struct, frozen=True, kw_only=True, tag="node_lost"):
    """It was silent for so long that attempts there have outlived their leases. Followed by their ends; attempts
    without a lease stay as they are."""

    node: NodeName
    silent_ms: int
    """Counted by a control plane that was awake and active all the while."""


class LeaseBroken(msgspec.Struct, frozen=True, kw_only=True, tag="lease_broken"):
    """A node says that a task runs there which must have been dead by its lease, and was settled so. History only: a
    defect of Stoker, of the node's clock or of its kernel."""

    node: NodeName
    job: JobId
    attempt: int
    rank: int


NodeEvent = (
    NodeRegistered
    | NodeReachable
    | NodeUnreachable
    | NodeReturned
    | NodeDrained
    | NodeResumed
    | NodeLabelled
    | NodeTainted
    | NodeForgotten
    | NodeDropped
    | OrphanTasksFound
    | NodeLost
    | LeaseBroken
)
