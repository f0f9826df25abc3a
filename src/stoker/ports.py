"""Ports: the Protocols through which a runtime touches the world.

Real implementations live in `adapters`, simulated ones in `tests/rig`; both pass the same contract tests. Nothing above
a port uses a thread, so that a whole cluster runs on one virtual clock.
"""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from stoker.brain.domain.audit import AuditQuery, AuditRow, AuditTrim
from stoker.brain.domain.gpu import GpuLink
from stoker.brain.domain.ids import Epoch, GpuUuid, JobId, Position
from stoker.brain.domain.job import Attempt, Job
from stoker.brain.domain.job_filter import JobFilter
from stoker.brain.domain.lease_record import LeaseRecord
from stoker.brain.domain.units import Instant, Mono
from stoker.brain.domain.usage import CapacityChange, Holding, NodeInterval, UsageQuery, UsageSum


class Clock(Protocol):
    """The only source of time.

    `now` is wall time: it follows the machine's wall clock within seconds when that is corrected, so it may step either
    way. The writer keeps the log in order (W4), and time limits from being shifted (W7).
    """

    def now(self) -> Instant: ...
    def mono(self) -> Mono:
        """Seconds since whenever, which go on while the machine sleeps (CLOCK_BOOTTIME): leases are counted in them."""

    def awake(self) -> Mono:
        """Seconds since whenever for which the machine was awake (CLOCK_MONOTONIC): time limits are counted in them."""

    async def sleep(self, seconds: float) -> None: ...


class Entropy(Protocol):
    """The only source of chance."""

    def uid(self) -> str:
        """A fresh UUIDv7 as text."""

    def seed(self) -> int:
        """A fresh 63-bit seed."""

    def jitter(self, low: float, high: float) -> float:
        """A uniform draw from [low, high]."""


class KeyAndChain(NamedTuple):
    """Private key and certificate chain of one end of a connection, both as PEM."""

    key: bytes
    chain: bytes
    renew_at: Instant
    ends_at: Instant


class CertificateHolder(NamedTuple):
    """Subject and key of a certificate."""

    subject: str
    """`node:NAME` or `control:NAME`; empty = nobody of Stoker's."""
    key_digest: str
    ends_at: Instant
    """When the certificate expires."""


class CertificateAuthority(Protocol):
    """Certificate authority of the cluster. Its methods take no longer than a signature."""

    @property
    def roots(self) -> bytes:
        """The certificates that are trusted, as PEM."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the root that signs, in 43 characters of URL-safe base64."""

    def server(self, name: str, hosts: Sequence[str]) -> KeyAndChain:
        """Make the credentials of a control plane that is reached under these host names and addresses."""

    def sign(self, request: bytes, subject: str) -> KeyAndChain:
        """Sign a client's certificate for the key in a request (PEM); its `key` is empty.

        Raises: StokerError `bad_certificate_request`.
        """

    def key_in(self, request: bytes) -> str:
        """Return the digest of the key in a request. Raises: StokerError `bad_certificate_request`."""

    def holder(self, certificate: bytes) -> CertificateHolder:
        """Read a certificate (PEM) that was verified before. Raises: ValueError."""

    async def look(self) -> bool:
        """Read what a rotation has changed; return whether anything has.

        Raises: StokerError `authority_unusable`, once for each state of the file.
        """


class LogConflict(Exception):
    """The log has moved on under another writer: this process must stop at once."""


class LogFailed(Exception):
    """The store could not make the records durable. Nothing after this may be acknowledged."""


class LogDamaged(Exception):
    """The store holds a record or snapshot that can't be trusted. The message says where, and how to recover."""


class Snapshot(NamedTuple):
    """A stored snapshot: the state after the event at `position`, as the chunks it was saved in."""

    position: Position
    chunks: Sequence[bytes]


EPOCHS_MAX: Final = 64
"""How many take-overs back two logs are compared; two that have no epoch in common have nothing in common."""


class Stored(NamedTuple):
    """A record as the log keeps it."""

    position: Position
    epoch: Epoch
    record: bytes


class EventLog(Protocol):
    """The durable history. One process at a time has it open, unless it is shared (see `SharedLog`).

    Rules: L1  `append` returns only when every record would survive a power loss
           L2  `append` is a compare-and-set: it raises LogConflict unless `position` is the log's end and `epoch` is
               not below the newest epoch it holds, nor below the one that was promised
           L3  after LogFailed or LogConflict the log accepts nothing more from this process
           L4  `follow` yields records in order without gaps, or raises LogDamaged
           L5  a snapshot is there whole or not at all; the newest whole one is answered
    """

    async def open(self) -> Position:
        """Take the store for this process, migrate its schema, answer the position of the last record (0 = empty)."""

    @property
    def floor(self) -> Epoch:
        """Below it no append succeeds, as known when it was opened, or learnt since (L2)."""

    async def append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        """Add `records` after `position`."""

    def follow(self, position: Position) -> AsyncIterator[tuple[Position, bytes]]:
        """Every stored record after `position`, to the present end."""

    async def snapshot(self) -> Snapshot | None: ...

    async def save_snapshot(self, position: Position, chunks: Sequence[bytes]) -> None:
        """Keep a snapshot and drop records that neither recovery nor a short look back needs any more.
        Must not delay a concurrent `append` noticeably."""

    async def close(self) -> None: ...


class ReplicaLog(EventLog, Protocol):
    """A log of which each control plane has a copy of its own.

    Rules: L6  after `promise(e)` no append under an epoch below e succeeds, also after a restart; until another promise
           L7  after `cut(p)` the log ends at p, as if nothing had ever come after it. What came after it is kept aside
               in a file of its own, whole or not at all, and never read again
           L8  `install` leaves either the old log or the new one, never a mixture. What the old one held is kept aside
    """

    @property
    def uid(self) -> str:
        """Made once with the data folder: one that was lost and made anew holds nothing of what the old one had."""

    @property
    def promised(self) -> Epoch: ...

    async def promise(self, epoch: Epoch) -> None:
        """Promise that no append below `epoch` will succeed (L6). Raises: LogFailed; then it may be tried again."""

    async def check_room(self, size_bytes: int) -> None:
        """So much could be written beside what is there, and made durable. Raises: LogFailed; it may be asked again."""

    async def after(self, position: Position, most: int) -> list[Stored]:
        """The next records after `position`, at most `most`, or fewer where they are large; none = that is the end.
        Raises: LogTrimmed, LogDamaged. Must not delay a concurrent `append` noticeably."""

    async def ends(self) -> list[tuple[Epoch, Position]]:
        """Return the last position of each epoch of which records are kept, newest first, at most EPOCHS_MAX.

        The record right before the oldest one kept counts too, if it is known: a log that was installed ends there.
        """

    async def cut(self, position: Position) -> str:
        """Cut the log to `position` and return where the removed records are kept; empty = nothing was removed (L7).

        Raises: LogTrimmed when no state at `position` can be had from what is kept (then nothing was changed);
        LogFailed, after which it may be tried again. The log must be opened anew afterwards, before the history is:
        that is put back to `position` by it.
        """

    async def install(self, epoch: Epoch, position: Position, folder: Path) -> str:
        """L8. Become the log that `folder` holds, as `Incoming` made it, with its history. What was promised stays so.
        Where the old one is kept; empty = it held nothing. Raises: LogFailed, after which the old one is in place. The
        log must be opened anew afterwards, before the history is: only then do they change places."""


class LogTrimmed(Exception):
    """The log no longer reaches back that far; only a snapshot helps."""


class SharedLog(EventLog, Protocol):
    """A log that several control planes reach, of whom one appends.

    Rules: L9  whoever was replaced in the lease (kept in the same store) can't append any more: what gives the lease
               to another epoch moves the log to that epoch in the same transaction
           L10 `follow` goes to the end as it is when it is called, not as it was when the log was opened; it raises
               LogTrimmed when others have made the log forget what comes next, or when it was put back and ends before
    """

    async def news(self, position: Position, within_s: float) -> bool:
        """Wait until there are records after `position` (True), or until it has taken so long (False).
        Raises: LogFailed while the store can't be reached; it may be asked again."""


class LeaseUnreachable(Exception):
    """The marker can't be read or written now. What was asked may have been done or not; `read` tells, later."""


class Lease(Protocol):
    """The versions of the marker, in a place that all control planes reach.

    Rules: Z1  `read` answers the highest whole version; versions only grow
           Z2  `put` is durable and answers True only if its version is there with its content, and none higher was when
               it was read back; False means that another has that version, or a higher one is there
           Z3  whatever process dies, stops or goes on again between whatever two steps, no newer version is undone,
               hidden or changed
           Z4  after LeaseUnreachable, or a death, within `put`, the version is there whole or not at all; to put it
               again is safe, and answers True when it was there already with the same `mark`
           Z5  nothing waits for longer than `timeout_s`: then it is LeaseUnreachable
    """

    async def read(self) -> LeaseRecord | None:
        """None = nobody ever put one. Raises: LeaseUnreachable, StokerError `marker_damaged`."""

    async def put(self, marker: LeaseRecord) -> bool:
        """Raises: LeaseUnreachable."""

    async def close(self) -> None: ...


class HistoryFailed(Exception):
    """The history can't be read or written now; its writer keeps what it lacks and tries again."""


class HistoryTooNew(HistoryFailed):
    """A newer version wrote it, and it is left as it was. A control plane that finds it so doesn't start."""


class HistoryMark(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a history: all events up to `position` of the log of that cluster are in it."""

    cluster_id: str = ""
    """Empty = nothing was ever written."""
    position: Position = Position(0)


class HistoryBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that happened up to `mark`, since the batch before."""

    mark: HistoryMark
    jobs: Sequence[tuple[Position, Job]] = ()
    """Jobs that ended there."""
    attempts: Sequence[tuple[Position, JobId, Attempt]] = ()
    """Attempts that ended without their job."""
    holdings: Sequence[Holding] = ()
    offers: Sequence[CapacityChange] = ()
    audit: Sequence[AuditRow] = ()
    """May reach beyond `mark`; those are then told again."""
    epoch: Epoch | None = None
    """Of the control plane that writes, where several reach the store (H6). None = it is the only one."""


class History(Protocol):
    """Ended jobs, usage, capacity and the audit trail, for lists and reports; never for decisions.

    Rules: H1  a batch is there whole, with its mark, or not at all; once `record` returns it survives a power loss
           H2  the same batch again changes nothing; a job that ended anew replaces what it was
           H3  every method raises HistoryFailed while the store can't be used, and works again once it can
           H4  a read sees whole batches only, and neither waits for writes nor holds them up
           H5  a copy is of one moment, whole batches only, and can be opened as a history; neither writes nor reads
               wait for it, and nothing of it is left once it is closed, or after the next `open`
           H6  where several control planes reach it, a batch is refused with HistoryFailed whose epoch is over, that
               reaches beyond the log beside it, or not as far as another one did: then nothing of it is there
    """

    shared: bool
    """Several control planes reach it, of whom the active one records what happened."""
    writer_slot: int
    """Number of this control plane among SLOTS, once it is open: those it gives to its rows of the audit trail that
    stand on no fact are apart from those of the others."""
    way_out: str
    """What a person does about one of another cluster."""

    async def open(self) -> HistoryMark:
        """May be called again after HistoryFailed. Raises: HistoryTooNew."""

    async def mark(self) -> HistoryMark:
        """Return how far it reaches now: another control plane may have written since."""

    async def record(self, batch: HistoryBatch) -> None: ...

    async def add(self, rows: Sequence[AuditRow]) -> None:
        """Write rows that stand on no fact, also as a standby; the mark stays where it is."""

    async def adopt(self, mark: HistoryMark) -> HistoryMark | None:
        """Take in what an earlier store of this control plane's folder has of that cluster, if it reaches no further.

        What is there already is kept. Returns what stands then; None = there is nothing to take in.
        """

    async def rewind(self, mark: HistoryMark) -> HistoryMark:
        """Drop what came after a mark. Answers what stands now: 0 if dropped ends may have replaced others (H2)."""

    async def ids(self, wanted: JobFilter | None, below: JobId, most: int) -> list[JobId]:
        """The newest `most` jobs that match, newest first, with ids below `below`. None = all, members and arrays."""

    async def jobs(self, ids: Sequence[JobId]) -> list[Job]:
        """Those that are there, newest first."""

    async def arrays(self, below: JobId, most: int) -> list[Job]:
        """The newest arrays with members that never became records, newest first, with ids below `below`."""

    async def usage(self, query: UsageQuery, most: int, keys: Sequence[str] | None = None) -> list[UsageSum]:
        """The largest sums; or those of certain keys, as far as they are there."""

    async def charged(self, query: UsageQuery, jobs: Sequence[JobId]) -> list[tuple[str, JobId]]:
        """Return the keys under which these jobs are counted, so that none is counted twice."""

    async def offers(self, since: Instant, until: Instant) -> list[CapacityChange]:
        """Those of a span, and of each node the newest one before it, in order of time."""

    async def held(self, spans: Sequence[NodeInterval], through: Position) -> int:
        """GPU-milliseconds held on those nodes at those times."""

    async def audit(self, query: AuditQuery, below: int, most: int) -> list[AuditRow]:
        """The newest rows that match, newest first, with keys below `below`; 0 = from the newest on."""

    async def trim(self, before: Instant, rows_max: int) -> int:
        """Drop what ended before then, and the oldest of more than `rows_max` jobs; answer how many jobs went.
        Must not delay a concurrent `record` noticeably."""

    async def trim_audit(self, before: Instant, rows_max: int) -> AuditTrim:
        """Drop old rows of the audit trail, and the oldest of more than `rows_max` of the principals with the most.

        Of commands that left no fact at most a quarter of `rows_max` stay, and of one principal rows about jobs go
        before others: who is refused often, or submits much, can't push out who made a token. Must not delay a
        concurrent `record` noticeably.
        """

    async def copy(self) -> "HistoryCopy":
        """Return everything that is in it now, to be read and then closed by the caller."""

    async def close(self) -> None: ...


class HistoryCopy(Protocol):
    """The bytes of a history as they were at one moment."""

    @property
    def size(self) -> int: ...
    @property
    def sha256(self) -> str: ...
    async def read(self) -> bytes:
        """The next bytes; none are left when it is empty. Raises: HistoryFailed."""

    async def close(self) -> None:
        """Safe to call twice."""


class LogBeginning(NamedTuple):
    """The point from which a log goes on that comes from a backup: a snapshot, and the records behind it."""

    cluster_id: str
    base: tuple[Epoch, Position]
    """Of the last record that the snapshot holds."""
    chunks: Sequence[bytes]
    epoch: Epoch
    records: Sequence[bytes] = ()

    @property
    def mark(self) -> HistoryMark:
        """The mark of its history."""
        return HistoryMark(cluster_id=self.cluster_id, position=self.base[1])


class ReceivedBackup(NamedTuple):
    """A backup that has come in, checked, and lies in a folder of its own."""

    epoch: Epoch
    position: Position
    folder: Path


class Incoming(Protocol):
    """Another log, put together beside the present one from a backup; LogFailed says that it can't be kept."""

    async def begin(self) -> None:
        """Anew: whatever an earlier attempt left is gone."""

    async def write(self, piece: bytes) -> None:
        """The next bytes of its history."""

    async def finish(self, beginning: LogBeginning) -> Path:
        """Return the durable folder that `ReplicaLog.install` takes.

        It has the snapshot, a log that goes on behind it under that epoch or a newer one, and the history, put back to
        its mark. Raises: StokerError `backup_damaged`.
        """

    async def drop(self) -> None:
        """Leave nothing. Never raises."""


class Telemetry(Protocol):
    """Structured log lines and metrics; a runtime says what happened, the adapter decides how it looks."""

    def event(self, name: str, **fields: object) -> None:
        """One line at level info. Names are past tense: `task_submitted`."""

    def warn(self, name: str, **fields: object) -> None: ...
    def count(self, name: str, by: int = 1, **labels: str) -> None: ...
    def gauge(self, name: str, value: float, **labels: str) -> None: ...
    def observe(self, name: str, seconds: float, **labels: str) -> None: ...


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `log` of each daemon's settings: how its Telemetry writes."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important line to print: every job's story is at info, so that it can be read afterwards."""
    format: Literal["json", "text"] = "json"
    """json for collectors, text for people. Lines go to standard output."""


class ProbedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as found. None = the driver wouldn't say."""

    uuid: GpuUuid
    index: int
    model: str
    memory_mb: int
    memory_used_mb: int | None = None
    utilization_percent: int | None = None
    temperature_c: int | None = None
    power_w: int | None = None
    bus: str = ""
    device: str = ""
    numa_node: int = -1
    """PCI address; device node and NUMA node where they aren't to be found by it."""
    parent: GpuUuid = GpuUuid("")
    gpu_instance: int = -1
    compute_instance: int = -1
    """Of a MIG instance: its GPU, and its ids in the driver (-1 = untold)."""


class GpuFault(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that is there but couldn't be read; other GPUs are unaffected."""

    where: str
    error: str


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs that a probe found, in PCI order, with unique `uuid`s; MIG instances last, not their GPUs."""

    gpus: tuple[ProbedGpu, ...]
    faults: tuple[GpuFault, ...] = ()
    simulated: bool = False
    cpus: int = 0
    """0 = not told by the probe: measure the machine."""
    memory_mb: int = 0
    links: tuple[GpuLink, ...] = ()
    hidden: str = ""
    """Why none of the GPUs there are is offered, in words; empty = that isn't so."""


class GpuProbe(Protocol):
    """Finds the GPUs of this machine. Blocking: the agent calls it in a thread."""

    def probe(self) -> ProbeResult:
        """A fault of one GPU is a GpuFault. Raises OSError, with a sentence for people, when nothing answers at all."""
