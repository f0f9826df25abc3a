"""Which settings does a control plane have?

One file, `control.yaml`; every key may also come from the environment (`STOKER__HTTP__PORT`) or a flag.
`policy` changes decisions, so it is written to the log when the control plane becomes active, and replayed. Everything
else is of this process. A key is only here when something stands behind it; `later` names those to come.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar, Final

from stoker.live.settings_policy import PolicySettings
from stoker.ports import LogSettings

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
            # Never the whole of it: the address of a store has a password in it.
            kind = self.url.partition(":")[0][:20]
            return [f"url: {kind!r} can't be used: this version keeps its log in data_dir; use the empty text"]
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
    rows_max: int = 2_000_000
    """Ended jobs kept at most, about 1.7 KiB each on the disk of data_dir: 3.3 GiB, or a year of 5,000 jobs a day.
    Beyond it the oldest go, however young."""

    def faults(self) -> list[str]:
        found = []
        if not 1 <= self.keep_days <= 3_650:
            found.append(f"keep_days: {self.keep_days} isn't between 1 and 3650 days")
        if not 1_000 <= self.rows_max <= 100_000_000:
            found.append(f"rows_max: {self.rows_max} isn't between 1000 and 100000000")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    program: ClassVar[str] = "stoker control"
    later: ClassVar[Mapping[str, str]] = {
        "failover": "a standby comes with a later version; one control plane runs alone",
        "quota": "quotas come with a later version; jobs are ordered by priority and age",
        "agents.attempt_lease_s": "leases of attempts come with standbys; a lost node's jobs wait until it is back, or "
        "until `stoker node forget --force`",
        "http.cors_origins": "other origins are let in once there are tokens; until then no page but ours may ask",
        "http.metrics_public": "it needs tokens, which come with a later version; `/metrics` is open on loopback",
        "http.rate_per_principal": "it needs tokens, which come with a later version",
        "http.tls": "encryption comes with a later version; use an SSH tunnel",
        "jobs": "this section is called `policy` now, and its keys are those of the policy",
    }
    """Keys that aren't there, and what to know about each."""
    data_dir: Path = Path("/var/lib/stoker")
    """Folder of this control plane alone: event log, snapshots, lock. Losing it loses the queue."""
    http: HttpSettings = field(default_factory=HttpSettings)
    grpc: GrpcSettings = field(default_factory=GrpcSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    agents: AgentsSettings = field(default_factory=AgentsSettings)
    loop: LoopSettings = field(default_factory=LoopSettings)
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    history: HistorySettings = field(default_factory=HistorySettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
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
