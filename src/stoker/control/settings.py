"""Settings of the core and of its public interfaces: listeners, loop, snapshots and history.

`CoreSettings` is what a runtime hands to `control`; the classes of single sections are shared with its settings file.
"""

from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import Pools

CORS_ORIGINS_MAX: Final = 100
RATE_MAX: Final = 1_000_000.0
DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    host: str = "127.0.0.1"
    """Address of the REST listener; 0.0.0.0 or :: is every address of this machine. Requests aren't encrypted, and
    neither are the tokens in them: beyond a network that you trust, put a proxy with TLS before it."""
    port: int = 8080
    """Its port; 8080 is what the seeds' users type. 0 = any free one (the log line `serving` says which)."""
    cors_origins: tuple[str, ...] = ()
    """Web pages of which other origins may ask, such as https://portal.example.org. None by default: only pages that
    this control plane serves itself."""
    rate_per_principal: float = 0.0
    """Requests a second that each principal may make on average, in bursts of up to two seconds' worth; beyond it 429
    and when to come back. 0 = no limit, since one scheduler's users seldom mean harm."""
    metrics_public: bool = False
    """Whether `/metrics` is answered without a token. Off, since the names of tenants are in it; Prometheus sends a
    viewer's token with `authorization`."""

    def faults(self) -> list[str]:
        found = [*_listener_faults(self.host, self.port), *_origin_faults(self.cors_origins)]
        if not 0 <= self.rate_per_principal <= RATE_MAX:
            found.append(f"rate_per_principal: {self.rate_per_principal} isn't between 0 and {RATE_MAX:.0f} a second")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings:
    host: str = "127.0.0.1"
    """Address where agents join; 0.0.0.0 or :: is every address of this machine. An agent shows its token there, in
    the clear: use a network that you trust."""
    port: int = 9090
    """Its port; agents' default too. 0 = any free one (the log line `serving` says which)."""

    def faults(self) -> list[str]:
        return _listener_faults(self.host, self.port)


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
    audit_rows_max: int = 5_000_000
    """Rows of the audit trail kept at most, about 140 bytes each: 0.7 GiB, or a year of 13,000 commands a day. Beyond
    it the oldest go, those about jobs first; what was refused or changed nothing has a quarter of them."""

    def faults(self) -> list[str]:
        found = []
        if not 1 <= self.keep_days <= 3_650:
            found.append(f"keep_days: {self.keep_days} isn't between 1 and 3650 days")
        if not 1_000 <= self.rows_max <= 100_000_000:
            found.append(f"rows_max: {self.rows_max} isn't between 1000 and 100000000")
        if not 1_000 <= self.audit_rows_max <= 1_000_000_000:
            found.append(f"audit_rows_max: {self.audit_rows_max} isn't between 1000 and 1000000000")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """The settings that the core of a control plane needs, whichever runtime it is part of."""

    data_dir: Path
    """Folder of this control plane; its free space is a metric."""
    policy: Policy = field(default_factory=Policy)
    """Policy that becomes part of the log when this control plane becomes active."""
    pools: Pools = field(default_factory=Pools)
    """Shares of the class pools; as the policy, part of the log."""
    http: HttpSettings = field(default_factory=HttpSettings)
    loop: LoopSettings = field(default_factory=LoopSettings)
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    history: HistorySettings = field(default_factory=HistorySettings)


def is_loopback(host: str) -> bool:
    """Can a listener there be reached from this machine only?"""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _listener_faults(host: str, port: int) -> list[str]:
    found = []
    if not host.strip():
        found.append("host: it is empty; 127.0.0.1 is this machine alone, 0.0.0.0 all of its addresses")
    if not 0 <= port <= 65_535:
        found.append(f"port: {port} isn't between 0 and 65535")
    return found


def _origin_faults(origins: tuple[str, ...]) -> list[str]:
    found = [
        f"cors_origins: {origin[:80]!r} isn't an origin: write scheme, host and, unless it is the usual one, port, "
        "such as https://portal.example.org; `*` would let every page of the web ask"
        for origin in origins
        if not _is_origin(origin)
    ]
    if len(origins) > CORS_ORIGINS_MAX:
        found.append(f"cors_origins: {len(origins)} are more than {CORS_ORIGINS_MAX}")
    return found


def _is_origin(text: str) -> bool:
    """As browsers send it: RFC 6454, section 6.2."""
    try:
        parts = urlsplit(text)
        usual = {"http": 80, "https": 443}.get(parts.scheme)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return False
    named = f"[{host}]" if ":" in host else host
    shown = f"{parts.scheme}://{named}" + (f":{port}" if port is not None else "")
    plain = host.isascii() and host.isprintable() and not set(host) & set(" *@")
    return usual is not None and port != usual and bool(host) and plain and shown == text
