"""Which settings does a control plane have?

One file, `control.yaml`; every key may also come from the environment (`STOKER__HTTP__PORT`) or a flag.
`jobs` is policy: it changes decisions, so it is written to the log when the control plane becomes active, and replayed.
Everything else is of this process. A key is only here when something stands behind it.
"""

from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal

from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import SECOND_MS

_LOOPBACK_HINT: Final = (
    "this version has no tokens yet, so it listens on loopback only; use 127.0.0.1, and an SSH tunnel from elsewhere"
)
DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    host: str = "127.0.0.1"
    """Address of the REST listener. Loopback only until tokens exist."""
    port: int = 8080
    """Its port; 8080 is what the seeds' users type. 0 = any free one (the log line `serving` says which)."""

    def faults(self) -> list[str]:
        return _listener_faults(self.host, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings:
    host: str = "127.0.0.1"
    """Address where agents join. Loopback only until agents prove who they are."""
    port: int = 9090
    """Its port; agents' default too. 0 = any free one (the log line `serving` says which)."""

    def faults(self) -> list[str]:
        return _listener_faults(self.host, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    url: str = ""
    """Where the event log lives. Empty = SQLite in data_dir, the only store of this version."""

    def faults(self) -> list[str]:
        if self.url:
            return [f"url: {self.url[:80]!r} can't be used: this version keeps its log in data_dir; use the empty text"]
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsSettings:
    heartbeat_s: float = 5.0
    """Seconds between two signs of life of an agent. Often enough to miss one and not worry; 200 agents then cost
    about 3 % of a core."""
    unreachable_after_s: float = 15.0
    """Seconds of silence after which a node gets no new work: three heartbeats. Nothing that runs there ends for it."""

    def faults(self) -> list[str]:
        found = []
        if not 0.05 <= self.heartbeat_s <= 3_600:
            found.append(f"heartbeat_s: {self.heartbeat_s} isn't between 0.05 and 3600 seconds")
        if self.unreachable_after_s <= 2 * self.heartbeat_s:
            found.append(
                f"unreachable_after_s ({self.unreachable_after_s}) must exceed two heartbeats "
                f"(heartbeat_s is {self.heartbeat_s}), or one lost message takes a node out of service"
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    period_s: float = 5.0
    """Longest time between two looks at the queue. Every change is looked at at once; this is the safety net."""

    def faults(self) -> list[str]:
        if not 0.05 <= self.period_s <= 3_600:
            return [f"period_s: {self.period_s} isn't between 0.05 and 3600 seconds"]
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    interval_s: float = 30.0
    """Seconds between two snapshots while something changes. A restart replays what came after the last one, about
    100,000 events a second, so half a minute of a busy cluster costs a fraction of a second."""

    def faults(self) -> list[str]:
        if not 0.1 <= self.interval_s <= DAY_S:
            return [f"interval_s: {self.interval_s} isn't between 0.1 and {DAY_S} seconds"]
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySettings:
    keep_days: int = 365
    """Days for which ended jobs, their attempts and their usage stay in reports and lists: a year, so that one budget
    year can be compared with the one before it."""
    rows_max: int = 5_000_000
    """Ended jobs kept at most, about 0.5 KiB each on the disk of data_dir: 2.5 GiB. Beyond it the oldest go, however
    young."""

    def faults(self) -> list[str]:
        found = []
        if not 1 <= self.keep_days <= 3_650:
            found.append(f"keep_days: {self.keep_days} isn't between 1 and 3650 days")
        if not 1_000 <= self.rows_max <= 100_000_000:
            found.append(f"rows_max: {self.rows_max} isn't between 1000 and 100000000")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSettings:
    """Policy: part of the log."""

    time_limit_default_s: int = DAY_S
    """Given to a job that names no limit: a day's run fits, a forgotten job ends."""
    time_limit_max_s: int = 30 * DAY_S
    """A longer wish is refused at submit."""
    pending_max: int = 1_000_000
    """Jobs that may wait; one more is refused with `queue_full`."""
    tenant_pending_max: int = 100_000
    """The same per tenant."""
    ended_max: int = 10_000
    """Ended jobs that are remembered; older ones leave memory and lists."""
    requeues_max: int = 10
    """Times that a job starts anew after a loss that wasn't its fault; then it ends `node_failed`."""
    stop_grace_s: int = 10
    """Seconds between the terminate and the kill signal, for a last checkpoint."""
    port_min: int = 20_000
    """Lowest rendezvous port of gangs."""
    port_max: int = 29_999
    """Highest; below Linux's ephemeral range, which begins at 32768."""

    def faults(self) -> list[str]:
        found = [f"{key}: {value} is below {least}" for key, value, least in self._least() if value < least]
        if self.time_limit_default_s > self.time_limit_max_s:
            found.append(
                f"time_limit_default_s ({self.time_limit_default_s}) must not exceed "
                f"time_limit_max_s ({self.time_limit_max_s})"
            )
        if self.tenant_pending_max > self.pending_max:
            found.append(
                f"tenant_pending_max ({self.tenant_pending_max}) must not exceed pending_max ({self.pending_max})"
            )
        if not 1_024 <= self.port_min <= self.port_max <= 65_535:
            found.append(f"port_min ({self.port_min}) and port_max ({self.port_max}) must rise between 1024 and 65535")
        return found

    def _least(self) -> tuple[tuple[str, int, int], ...]:
        return (
            ("time_limit_default_s", self.time_limit_default_s, 1),
            ("time_limit_max_s", self.time_limit_max_s, 1),
            ("pending_max", self.pending_max, 1),
            ("tenant_pending_max", self.tenant_pending_max, 1),
            ("ended_max", self.ended_max, 1),
            ("requeues_max", self.requeues_max, 0),
            ("stop_grace_s", self.stop_grace_s, 0),
        )

    def policy(self) -> Policy:
        return Policy(
            time_limit_default_ms=self.time_limit_default_s * SECOND_MS,
            time_limit_max_ms=self.time_limit_max_s * SECOND_MS,
            pending_jobs_max=self.pending_max,
            tenant_pending_jobs_max=self.tenant_pending_max,
            ended_jobs_max=self.ended_max,
            requeues_max=self.requeues_max,
            stop_grace_ms=self.stop_grace_s * SECOND_MS,
            port_min=self.port_min,
            port_max=self.port_max,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important line to print."""
    format: Literal["json", "text"] = "json"
    """json for collectors, text for people. Lines go to standard output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    data_dir: Path = Path("/var/lib/stoker")
    """Folder of this control plane alone: event log, snapshots, lock. Losing it loses the queue."""
    http: HttpSettings = field(default_factory=HttpSettings)
    grpc: GrpcSettings = field(default_factory=GrpcSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    agents: AgentsSettings = field(default_factory=AgentsSettings)
    loop: LoopSettings = field(default_factory=LoopSettings)
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    history: HistorySettings = field(default_factory=HistorySettings)
    jobs: JobsSettings = field(default_factory=JobsSettings)
    log: LogSettings = field(default_factory=LogSettings)

    def faults(self) -> list[str]:
        if self.http.port and self.http.port == self.grpc.port:
            return [f"http.port and grpc.port are both {self.http.port}; each listener needs its own"]
        return []


def _listener_faults(host: str, port: int) -> list[str]:
    found = []
    if not _is_loopback(host):
        found.append(f"host: {host[:80]!r} isn't a loopback address: {_LOOPBACK_HINT}")
    if not 0 <= port <= 65_535:
        found.append(f"port: {port} isn't between 0 and 65535")
    return found


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
