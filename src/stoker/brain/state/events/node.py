"""Facts about nodes and their GPUs."""

from typing import ClassVar

import msgspec
from msgspec.structs import replace

from stoker.brain.domain.ids import JobId, NodeName, Principal
from stoker.brain.domain.node import Inventory, OrphanTask
from stoker.brain.domain.units import NEVER, SECOND_MS, Instant
from stoker.brain.state.events.row import Audience, Fields, LogLine, Row, SubjectNote


def _registered_fields(event: "NodeRegistered") -> Fields:
    gpus = event.inventory.gpus
    models = dict.fromkeys(gpu.model for gpu in gpus)
    fields = {"agent_id": event.node, "gpus": len(gpus), "models": ",".join(models), "cpus": event.inventory.cpus}
    faults = {"fault": event.inventory.fault, "gpu_fault": event.inventory.gpu_fault}
    return fields | {name: words for name, words in faults.items() if words}


def _without_agent_uid(event: "NodeRegistered") -> "NodeRegistered":
    # With the uid and any agent's token one could pass for the agent of a node that holds work, and end its jobs.
    return replace(event, inventory=replace(event.inventory, agent_uid=""))


def _labelled_fields(event: "NodeLabelled") -> Fields:
    words = [key + ("-" if value is None else f"={value}") for key, value in sorted(event.labels.items())]
    return {"agent_id": event.node, "labels": ",".join(words)}


def _labelled_note(event: "NodeLabelled") -> SubjectNote:
    labels = (f"{key}={value}" if value is not None else f"{key} taken off" for key, value in event.labels.items())
    return SubjectNote("node_label", event.node, ", ".join(sorted(labels)))


def _tainted_fields(event: "NodeTainted") -> Fields:
    return {"agent_id": event.node, "taints": ",".join([*event.taints, *(f"{key}-" for key in event.off)])}


def _tainted_note(event: "NodeTainted") -> SubjectNote:
    return SubjectNote("node_taint", event.node, ", ".join((*event.taints, *(f"{key} taken off" for key in event.off))))


class _AboutNode(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the events about one node."""

    node: NodeName


class NodeRegistered(_AboutNode, frozen=True, kw_only=True, tag="node_registered"):
    """A node joined, came back after it was forgotten, or its inventory changed."""

    row: ClassVar["Row[NodeRegistered]"] = Row(
        wakes=True,
        audience=Audience.EVERYONE,
        log=LogLine("agent_registered", _registered_fields),
        audit=None,
        public=_without_agent_uid,
    )

    inventory: Inventory


class NodeReachable(_AboutNode, frozen=True, kw_only=True, tag="node_reachable"):
    row: ClassVar["Row[NodeReachable]"] = Row(
        wakes=True,
        audience=Audience.EVERYONE,
        log=LogLine("agent_reachable", lambda event: {"agent_id": event.node}),
        audit=None,
    )


class NodeUnreachable(_AboutNode, frozen=True, kw_only=True, tag="node_unreachable"):
    """A node was silent too long. Nothing ends for that; the node only gets no new work."""

    row: ClassVar["Row[NodeUnreachable]"] = Row(wakes=True, audience=Audience.EVERYONE, log=None, audit=None)

    since: Instant = NEVER
    """When it was last heard of. NEVER = in a log from before that was told."""


class NodeReturned(_AboutNode, frozen=True, kw_only=True, tag="node_returned"):
    """A node that wasn't unreachable has said what it runs, the first time in this epoch, and gets new work."""

    row: ClassVar["Row[NodeReturned]"] = Row(wakes=True, audience=Audience.EVERYONE, log=None, audit=None)


class NodeDrained(_AboutNode, frozen=True, kw_only=True, tag="node_drain_asked"):
    """A person wants no new work there. What runs goes on."""

    row: ClassVar["Row[NodeDrained]"] = Row(
        wakes=True,
        audience=Audience.EVERYONE,
        log=LogLine("agent_drained", lambda event: {"agent_id": event.node, "reason": event.reason}),
        audit=lambda event: SubjectNote("node_drain", event.node, event.reason),
    )

    reason: str
    by: Principal = Principal("")
    """Who drains it; empty in a log from before that was told."""


class NodeResumed(_AboutNode, frozen=True, kw_only=True, tag="node_resumed"):
    """A person says that it is all right: its drain ends, its pause and what led to it."""

    row: ClassVar["Row[NodeResumed]"] = Row(
        wakes=True,
        audience=Audience.EVERYONE,
        log=LogLine("agent_resumed", lambda event: {"agent_id": event.node}),
        audit=lambda event: SubjectNote("node_resume", event.node),
    )


class StartFailed(_AboutNode, frozen=True, kw_only=True, tag="start_failed"):
    """A start failed there, not yet so many in a row that the node pauses."""

    row: ClassVar["Row[StartFailed]"] = Row(wakes=False, audience=Audience.ADMINS, log=None, audit=None)

    of: str
    """The job (`job:ID`) or the person whose it was."""


class NodePaused(_AboutNode, frozen=True, kw_only=True, tag="node_paused"):
    """Starts failed there, several in a row: it gets no new work for a while. What runs goes on."""

    row: ClassVar["Row[NodePaused]"] = Row(
        wakes=True,
        audience=Audience.EVERYONE,
        log=LogLine(
            "agent_paused",
            lambda event: {
                "agent_id": event.node,
                "until": event.until,
                "pauses": event.pauses,
                "error": event.error,
            },
            warning=True,
        ),
        audit=None,
    )

    until: Instant
    pauses: int
    """In a row, this one included."""
    error: str


class NodePauseOver(_AboutNode, frozen=True, kw_only=True, tag="node_pause_over"):
    """Its pause has lasted long enough: it gets new work again."""

    row: ClassVar["Row[NodePauseOver]"] = Row(
        wakes=True,
        audience=Audience.EVERYONE,
        log=LogLine("agent_pause_over", lambda event: {"agent_id": event.node}),
        audit=None,
    )


class NodeLabelled(_AboutNode, frozen=True, kw_only=True, tag="node_labelled"):
    """People set labels on a node over those of its inventory; this is all of them, None = taken off."""

    row: ClassVar["Row[NodeLabelled]"] = Row(
        wakes=True, audience=Audience.EVERYONE, log=LogLine("agent_labelled", _labelled_fields), audit=_labelled_note
    )

    labels: dict[str, str | None]


class NodeTainted(_AboutNode, frozen=True, kw_only=True, tag="node_tainted"):
    """The taints that people put on a node, and the keys of those of its inventory that they took off: all of them."""

    row: ClassVar["Row[NodeTainted]"] = Row(
        wakes=True, audience=Audience.EVERYONE, log=LogLine("agent_tainted", _tainted_fields), audit=_tainted_note
    )

    taints: tuple[str, ...]
    off: tuple[str, ...]


class NodeForgotten(_AboutNode, frozen=True, kw_only=True, tag="node_forgotten"):
    """A person says that it won't come back. Preceded by the ends of all it held. What people set on it goes too."""

    row: ClassVar["Row[NodeForgotten]"] = Row(
        wakes=True,
        audience=Audience.EVERYONE,
        log=LogLine("agent_forgotten", lambda event: {"agent_id": event.node}),
        audit=lambda event: SubjectNote("node_forget", event.node),
    )


class NodeDropped(_AboutNode, frozen=True, kw_only=True, tag="node_dropped"):
    """A forgotten node of which nothing is known any more, to make room for another."""

    row: ClassVar["Row[NodeDropped]"] = Row(wakes=False, audience=Audience.EVERYONE, log=None, audit=None)


class OrphanTasksFound(_AboutNode, frozen=True, kw_only=True, tag="strays_found"):
    """The tasks that run on the node although our ledger says they don't: all of them, so an empty tuple clears."""

    row: ClassVar["Row[OrphanTasksFound]"] = Row(wakes=True, audience=Audience.ORPHANS, log=None, audit=None)

    strays: tuple[OrphanTask, ...]


class NodeLost(_AboutNode, frozen=True, kw_only=True, tag="node_lost"):
    """A node was silent for so long that attempts there have outlived their leases.

    Followed by their ends; attempts without a lease stay as they are.
    """

    row: ClassVar["Row[NodeLost]"] = Row(
        wakes=False,
        audience=Audience.EVERYONE,
        log=LogLine(
            "agent_lost",
            lambda event: {"agent_id": event.node, "silent_s": round(event.silent_ms / SECOND_MS, 1)},
            warning=True,
        ),
        audit=None,
    )

    silent_ms: int
    """Counted by a control plane that was awake and active all the while."""


class LeaseBroken(_AboutNode, frozen=True, kw_only=True, tag="lease_broken"):
    """A node reports a task as running that must have been dead by its lease, and was settled so.

    History only: a defect of Stoker, of the node's clock or of its kernel.
    """

    row: ClassVar["Row[LeaseBroken]"] = Row(
        wakes=False,
        audience=Audience.JOB,
        log=LogLine(
            "lease_broken",
            lambda event: {"agent_id": event.node, "attempt": event.attempt, "rank": event.rank},
            warning=True,
        ),
        audit=None,
    )

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
    | StartFailed
    | NodePaused
    | NodePauseOver
    | NodeLabelled
    | NodeTainted
    | NodeForgotten
    | NodeDropped
    | OrphanTasksFound
    | NodeLost
    | LeaseBroken
)
