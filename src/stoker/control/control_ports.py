"""Ports of the control plane's core: what a runtime hands to it beside the event log and the history.

Every runtime has a clock, entropy and telemetry. One that runs nodes of its own also answers for them (`Nodes`);
without it nothing reads output, and REST answers `not_supported_here`.
"""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from stoker.brain.domain.audit import AuditRow
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.gpu_telemetry import GpuReading
from stoker.brain.domain.ids import Epoch, GpuUuid, JobId, NodeName, Position
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.notify import DeliveryResult, Message
from stoker.brain.domain.report import LogChunk, Preparation, SessionOpening
from stoker.brain.domain.secret import SealedValue
from stoker.brain.domain.units import Mono
from stoker.ports import Clock, Entropy, Telemetry
from stoker.wire.tunnel import TunnelEnd


class SecretVault(Protocol):
    """Encryption of secrets under a key that is neither in the data folder nor in the log nor in a backup."""

    def seal(self, label: str, value: bytes, *, first: bool) -> SealedValue:
        """Encrypt a value, bound to a label. `first`: nothing was sealed before, so a key may be made.

        Raises: StokerError `secret_key_unusable`.
        """
        ...

    def open(self, label: str, sealed: SealedValue) -> bytes:
        """Decrypt what was sealed under this label. Raises: StokerError `secret_key_unusable`."""
        ...

    def lacking(self, names: set[str]) -> set[str]:
        """Return those of these keys that aren't here. Raises: StokerError `secret_key_unusable`."""
        ...


class Messenger(Protocol):
    """Sender of notifications to the targets that the operator of this control plane allows."""

    def fault(self, target: str) -> Refusal | None:
        """Return why this target can't be told anything here; None = it can."""
        ...

    async def send(self, target: str, message: Message) -> DeliveryResult:
        """Tell a target, once. Takes seconds at most, and raises nothing."""
        ...


class AuditSink(Protocol):
    """A target outside the cluster for rows of the audit trail."""

    async def send(self, rows: Sequence[tuple[AuditRow, bytes]]) -> str:
        """Send rows, each with the JSON object that tells it; return why not, empty = sent. Takes seconds at most."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPorts:
    """Clock, entropy, telemetry and the vault of one process, and where its audit trail is sent."""

    clock: Clock
    entropy: Entropy
    telemetry: Telemetry
    vault: SecretVault | None = None
    """None = this runtime keeps no secrets."""
    audit_sink: AuditSink | None = None
    """None = the audit trail is only kept."""
    messenger: Messenger | None = None
    """None = nobody is notified of jobs."""
    output_archive: "OutputArchive | None" = None
    """None = what tasks wrote is on their nodes alone."""


class LogPlace(NamedTuple):
    """The output of one task, and the node that keeps it."""

    node: NodeName
    key: TaskKey


class JobOutput(Protocol):
    """Reading of what tasks wrote, on the nodes that keep it."""

    async def read_log(self, place: LogPlace, offset: int, limit: int, wait_ms: int = 0) -> LogChunk:
        """Read at most `limit` bytes from `offset`; a negative one counts from the end.

        The node waits up to `wait_ms` milliseconds for bytes beyond `offset`.

        Raises: StokerError `node_unreachable`, `log_unavailable` or `too_many_streams`.
        """
        ...


class OutputArchive(Protocol):
    """Archive of what tasks wrote, on the control plane's side. Each call raises OSError when it can't be used."""

    def belong_to(self, cluster_id: str) -> None:
        """Keep and know outputs of this cluster alone: jobs of others have the same numbers. Comes before all else."""
        ...

    async def has(self, key: TaskKey) -> bool:
        """Return whether it has the whole of this output."""
        ...

    async def write(self, key: TaskKey, offset: int, data: bytes) -> None:
        """Keep bytes of an output, in order; where they don't follow those before, some were dropped on the node."""
        ...

    async def finish(self, key: TaskKey, size: int) -> None:
        """Have the output from now on, of which `size` bytes were ever written."""
        ...

    def give_up(self, key: TaskKey) -> None:
        """Forget what was written of an output that isn't finished."""
        ...

    async def read(self, key: TaskKey, offset: int, limit: int) -> LogChunk | None:
        """Read as `JobOutput.read_log` does. None = it doesn't have this output."""
        ...

    async def sweep(self) -> int:
        """Remove what is beyond its bounds; return how many outputs that were."""
        ...

    async def close(self) -> None: ...


class TaskTunnels(Protocol):
    """Connections to ports on which tasks listen, on their nodes."""

    def tunnel(self, place: LogPlace, port: int) -> AbstractAsyncContextManager[TunnelEnd]:
        """Have a connection to a port on which a task listens, from entry to exit.

        Raises: StokerError `node_unreachable`, `forward_unavailable`, `too_many_forwards` or `port_not_listening`.
        """
        ...


class TaskSessions(Protocol):
    """Sessions in tasks: programs that people execute there, and terminals of tasks."""

    def session(self, place: LogPlace, opening: SessionOpening) -> AbstractAsyncContextManager[TunnelEnd]:
        """Have a session in a task, from entry to exit; what follows are frames as in `wire/terminal.py`.

        Raises: StokerError `node_unreachable`, `exec_unavailable` or `too_many_forwards`.
        """
        ...


class NodeReports(Protocol):
    """Reports of nodes on their tasks, which are no events: for the audit of the ledger, and for people."""

    def task_sums(self) -> Mapping[NodeName, tuple[int, Mono]]:
        """Return, of each node whose inventory was compared, the checksum of its tasks and when it was reported."""
        ...

    def preparations(self, job: JobId) -> Sequence[tuple[NodeName, Preparation]]:
        """Return what nodes say that they still do for tasks of a job before they start, in order of ranks."""
        ...

    def compare_anew(self, node: NodeName) -> None:
        """Ask a node for its whole inventory."""
        ...


class NodeFigures(NamedTuple):
    """Figures of a node's GPUs, from its newest heartbeat that had some."""

    readings: Mapping[GpuUuid, GpuReading]
    age_s: float
    """How old they are."""


POINT_STEP_S: Final = 10
"""Seconds between two points of the last hour, at least."""


class FigurePoint(NamedTuple):
    """Figures of a GPU at a moment of the last hour; None = the driver told none."""

    age_s: int
    utilization_percent: int | None
    temperature_c: int | None
    memory_used_mb: int | None
    power_mw: int | None


class NodeTelemetry(Protocol):
    """Figures and clocks of nodes, as their heartbeats tell them; they are kept nowhere."""

    def figures(self, node: NodeName) -> NodeFigures | None:
        """Return the newest figures of its GPUs; None = it has told none to this control plane."""
        ...

    def last_hour(self, node: NodeName) -> Mapping[GpuUuid, Sequence[FigurePoint]]:
        """Return the points of the last hour of each of its GPUs that were told, the oldest first."""
        ...

    def watch_figures(self, nodes: Collection[NodeName]) -> None:
        """Note that somebody looks at the figures of these nodes: for some seconds they are told more often.

        It costs nothing to call it again and again. Of too many nodes at once nothing changes.
        """
        ...

    def clock_ahead_ms(self, node: NodeName) -> int:
        """Return by how much its clock is ahead of ours, below 0 = behind; 0 = it hasn't told."""
        ...


class Duty(NamedTuple):
    """A part of the control plane that runs until it is cancelled."""

    name: str
    run: Callable[[], Coroutine[None, None, None]]


class Nodes(JobOutput, TaskTunnels, TaskSessions, NodeReports, NodeTelemetry, Protocol):
    """The nodes of a runtime that instructs them itself."""

    def begin(self) -> None:
        """Count the silence of nodes from now: this control plane becomes active."""
        ...

    def duties(self) -> Sequence[Duty]:
        """Return the duties that run while this control plane is active."""
        ...

    def close(self) -> None:
        """End every session: this control plane stops. Jobs run on."""
        ...


class NotActive(Exception):
    """The right to be active has ended. Nothing after this may be acknowledged."""


class Replicas(Protocol):
    """The other disks that our facts have to reach, and our right to be active."""

    def ship(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        """Queue `records`, which are about to be appended after `position`."""
        ...

    async def wait_for(self, position: Position) -> None:
        """Wait until every member in sync has all up to there. Raises: NotActive."""
        ...

    def check_lease(self) -> None:
        """Refuse when our lease doesn't hold now. Raises: NotActive."""
        ...


class NoReplicas:
    """The `Replicas` of a control plane without standbys."""

    def ship(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        """No other disk wants them."""

    async def wait_for(self, position: Position) -> None:
        """Our own disk is all."""

    def check_lease(self) -> None:
        """No other control plane can take over."""
