"""Settings of the control plane daemon, `control.yaml`.

One file, `control.yaml`; every key may also come from the environment (`STOKER__HTTP__PORT`) or a flag.
`policy` changes decisions, so it is written to the log when the control plane becomes active, and replayed. Everything
else is of this process. A key is only here when something stands behind it; `later` names those to come.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import msgspec

from stoker.brain.domain.policy import Policy
from stoker.control.settings import (
    CoreSettings,
    GrpcSettings,
    HistorySettings,
    HttpSettings,
    LoopSettings,
    SnapshotSettings,
)
from stoker.live.settings.agents import AgentsSettings
from stoker.live.settings.failover import FailoverSettings
from stoker.live.settings.policy import PolicySettings
from stoker.live.settings.quota import QuotaSettings
from stoker.ports import LogSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    url: str = ""
    """Where the event log lives. Empty = SQLite in data_dir. `postgresql://user@host/database` = PostgreSQL 15 or
    newer; of several hosts, `postgresql://user@a,b/database`, the one that takes writes. A password is better kept in
    the environment (`STOKER__STORE__URL`) or in a `passfile`."""

    def faults(self) -> list[str]:
        kind, colon, _ = self.url.partition("://")
        if self.url and kind not in ("postgresql", "postgres"):
            # Nothing more of it is shown: there may be a password at any place.
            named = repr(kind[:20]) if colon and kind.isalnum() else "it"
            return [
                f"url: {named} isn't a store that Stoker knows: write postgresql://..., or the empty text for SQLite"
            ]
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    program: ClassVar[str] = "stoker control"
    later: ClassVar[Mapping[str, str]] = {
        "http.tls": "encryption comes with a later version; use an SSH tunnel",
        "jobs": "this section is called `policy` now, and its keys are those of the policy",
    }
    """Keys that aren't there, and what to know about each."""
    data_dir: Path = Path("/var/lib/stoker")
    """Folder of this control plane alone: event log, snapshots, lock. Losing it loses the queue."""
    http: HttpSettings = field(default_factory=HttpSettings)
    grpc: GrpcSettings = field(default_factory=GrpcSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    failover: FailoverSettings = field(default_factory=FailoverSettings)
    agents: AgentsSettings = field(default_factory=AgentsSettings)
    loop: LoopSettings = field(default_factory=LoopSettings)
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    history: HistorySettings = field(default_factory=HistorySettings)
    quota: QuotaSettings = field(default_factory=QuotaSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    log: LogSettings = field(default_factory=LogSettings)

    @property
    def http_url(self) -> str:
        """Where people reach this control plane."""
        host = f"[{self.http.host}]" if ":" in self.http.host else self.http.host
        return self.failover.http.rstrip("/") or f"http://{host}:{self.http.port}"

    def faults(self) -> list[str]:
        if self.http.port and self.http.port == self.grpc.port:
            return [f"http.port and grpc.port are both {self.http.port}; each listener needs its own"]
        return self.failover.faults_with(self.store.url, self.http.host)

    def as_policy(self) -> Policy:
        """The policy that these settings ask for: the section of that name, and what follows from others."""
        return msgspec.structs.replace(
            self.policy.as_policy(),
            attempt_lease_ms=self.agents.lease_ms(failover=self.failover.enabled),
            attempt_lease_min_ms=self.agents.lease_min_ms,
        )

    def core(self) -> CoreSettings:
        """The part of these settings that `control` uses."""
        return CoreSettings(
            data_dir=self.data_dir,
            policy=self.as_policy(),
            pools=self.quota.as_pools(),
            http=self.http,
            loop=self.loop,
            snapshot=self.snapshot,
            history=self.history,
        )
