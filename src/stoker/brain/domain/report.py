"""Reports of an agent: registration, inventory, starts, heartbeats, ends and output of tasks.

Reports are claims of one node about its own tasks. The end of a task is never in a heartbeat: it travels as a
`TaskFinished` of its own and is repeated until its answer says that it is durable.
"""

import zlib
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.gpu_telemetry import GpuReading
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import TaskEnd
from stoker.brain.domain.node import Inventory
from stoker.brain.domain.units import Instant


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """Registration of a node: the first message of an agent on a new connection."""

    node: NodeName
    inventory: Inventory


class TaskPhase(StrEnum):
    """Phase of a task whose start record a runner holds."""

    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    """The leader ended or was told to; its process tree is not yet proved gone."""
    ENDED = "ended"
    """The end record is on disk; a `TaskFinished` is under way or was answered."""


class TaskStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Phase and GPUs of one task, as its node knows it."""

    key: TaskKey
    phase: TaskPhase
    gpus: tuple[GpuUuid, ...] = ()
    gpu_share: int = WHOLE_GPU
    """Thousandths that it holds of each."""
    started_at: Instant = Instant(0)


class TaskInventory(msgspec.Struct, frozen=True, kw_only=True, tag="tasks"):
    """Every task that a node knows, after a search of records, process trees, cgroups and environment marks.

    The first report on each stream: nothing starts on a stream before it was compared with the cluster state. A task
    that isn't in it doesn't run on this node.
    """

    boot_id: str
    tasks: tuple[TaskStatus, ...]
    kept: tuple[TaskKey, ...] = ()
    """Tasks that ended here whose ends a control plane had, oldest first. Should this one lack an end, because it holds
    an older log, it tells the node to stop the task, and is answered with the end."""


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """Report that the process of a task runs; `at` is the node's wall clock, for people."""

    key: TaskKey
    at: Instant
    pid: int


class Preparation(msgspec.Struct, frozen=True, kw_only=True):
    """Work for a task before it starts on its node or before its end is told, in words for people.

    Such as the pull of its image, or the wait for GPUs to come clean.
    """

    key: TaskKey
    text: str
    """For people."""


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """Heartbeat of a node; `ending` has the tasks whose leader has ended while part of their process tree runs."""

    sequence: int
    ending: tuple[TaskKey, ...] = ()
    tasks_sum: int | None = None
    """`sum_of` all tasks that may have processes there. None = an older agent, which doesn't report it."""
    at: Instant = Instant(0)
    """Wall clock of the node. 0 = an older agent, which doesn't report it."""
    gpus: tuple[GpuReading, ...] = ()
    """Figures that no beat before had."""
    gpus_age_ms: int = 0
    """How old these are."""
    preparing: tuple[Preparation, ...] = ()
    """Tasks that wait for something on their node."""


def sum_of(tasks: Iterable[TaskKey]) -> int:
    """Return a 32-bit checksum of a set of tasks, by which two sets are compared."""
    return zlib.crc32(b" ".join(b"%d.%d.%d" % (key.job, key.attempt, key.rank) for key in sorted(tasks)))


Report = TaskInventory | Started | Beat


class TaskFinished(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a task, sent when its whole process tree is gone and the runner's end record is on disk."""

    node: NodeName
    key: TaskKey
    end: TaskEnd


class LogRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for `limit` bytes of a task's output.

    `offset` counts bytes from the start of all that was ever written; a negative one counts from the end.
    """

    request: int
    key: TaskKey
    offset: int
    limit: int
    wait_ms: int = 0
    """Wait that long for bytes beyond `offset`, unless some are there or the output has ended. An answer without bytes
    says that none came. The agent may wait for a shorter time, never for a longer one. 0 = answer at once."""


class FrameKind(StrEnum):
    """Kinds of frames of a tunnel."""

    OPEN = "open"
    OPENED = "opened"
    DATA = "data"
    CREDIT = "credit"
    END = "end"
    BROKEN = "broken"


class SessionOpening(msgspec.Struct, frozen=True, kw_only=True):
    """Request of a person for a session in a task: a program to execute there, or a session that is there already."""

    session: str
    """Its name within the task. `main` = the task's own terminal."""
    argv: tuple[str, ...] = ()
    """Empty = it joins a session."""
    tty: bool = False
    columns: int = 0
    rows: int = 0
    """Size of the terminal. 0 = unknown."""
    term: str = ""
    at: int = -1
    """Bytes of its output that the client has had before its connection broke. -1 = it is new."""


class TunnelFrame(msgspec.Struct, frozen=True, kw_only=True):
    """One frame of one tunnel: a connection to a port of a task or to a session in it, by way of its node's agent."""

    tunnel: int
    what: FrameKind
    key: TaskKey | None = None
    """Of OPEN: the task."""
    port: int = 0
    """Of OPEN."""
    kind: str = ""
    """Of OPEN: what it is a tunnel to."""
    opening: SessionOpening | None = None
    """Of OPEN, where it leads to a session."""
    data: bytes = b""
    credit: int = 0
    """Of CREDIT: bytes that may be sent beside those before."""
    error: str = ""
    """Of BROKEN: why, for people."""


class LogChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a LogRequest: the bytes from `offset` on.

    `size` is the number of bytes ever written. The bytes between the offset of the request and that of the answer were
    dropped by the size bound.
    """

    request: int
    offset: int
    data: bytes
    size: int
    ended: bool
    """No more will be written."""
    error: str = ""
