"""Settings of the control plane daemon, `control.yaml`.

Every key may also come from the environment (`STOKER__HTTP__PORT`) or a flag.
`policy` changes decisions, so it is written to the log when the control plane becomes active, and replayed. Everything
else is of this process. A key is only here when something stands behind it; `later` names those to come.
"""

import re
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal
from urllib.parse import urlsplit

import msgspec

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.policy import LEASE_MS_MAX, LEASE_MS_MIN, Policy
from stoker.brain.domain.units import SECOND_MS, Range
from stoker.brain.failover.timing import DEFAULT, FAST, Timing
from stoker.control.settings import (
    AuditSettings,
    CoreSettings,
    GrpcSettings,
    HistorySettings,
    HttpSettings,
    LoopSettings,
    NotifySettings,
    OidcSettings,
    OutputSettings,
    SecretSettings,
    SnapshotSettings,
    TlsSettings,
)
from stoker.live.settings.policy import PolicySettings, QuotaSettings
from stoker.ports import LogSettings
from stoker.wire.address import address_faults
from stoker.wire.client.servers import parsed_servers

PEERS_MAX: Final = 6
"""Every acknowledgement waits for all who are in sync; more than a few only slow each other down."""
CLUSTERS_MAX: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,63}")
LEASE_AUTO_S: Final = 600.0
SILENCES_MIN: Final = 2
"""An attempt outlives so many times the silence that makes a node unreachable: that is more than four heartbeats, so
that neither one that gets lost nor an agent that starts again ends work."""


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `store`."""

    url: str = ""
    """Where the event log lives. Empty = SQLite in data_dir. `postgresql://user@host/database` = PostgreSQL 15 or
    newer; of several hosts, `postgresql://user@a,b/database`, the one that takes writes. A password is better kept in
    the environment (`STOKER__STORE__URL`) or in a `passfile`."""

    def faults(self) -> list[str]:
        kind, colon, _ = self.url.partition("://")
        if not self.url or kind in ("postgresql", "postgres"):
            return []
        # Nothing more of it is shown: there may be a password at any place.
        named = repr(kind[:20]) if colon and kind.isalnum() else "it"
        return [f"url: {named} isn't a store that Stoker knows: write postgresql://..., or the empty text for SQLite"]


class AgentsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `agents`: when an agent is silent, and how long its work outlives that.

    Heartbeats and silence are of each control plane. The lease of attempts changes what is placed where, so it becomes
    part of the policy, and each attempt keeps the one that it was placed with.
    """

    heartbeat_s: Annotated[float, Range(0.05, 3_600, " seconds")] = 5.0
    """Seconds between two signs of life of an agent. Often enough to miss one and not worry; 200 agents then cost
    about 3 % of a core."""
    unreachable_after_s: float = 15.0
    """Seconds of silence after which a node gets no new work: three heartbeats. Nothing that runs there ends for it."""
    attempt_lease_s: Literal["auto"] | float = "auto"
    """Seconds of silence after which a node ends its jobs by itself, so that they can be started elsewhere. 0 = never:
    they wait for their node. auto = 600 with `failover.enabled`, else 0, since an outage of the only control plane
    would end work too. Ten minutes are enough to start a machine again, or a pair of control planes. A job may say
    another time (`--lost-after`)."""

    @property
    def lease_min_s(self) -> float:
        """Seconds that the lease of an attempt has at least."""
        return max(LEASE_MS_MIN / SECOND_MS, SILENCES_MIN * self.unreachable_after_s)

    def lease_ms(self, *, failover: bool) -> int:
        """Return the lease of attempts whose jobs say nothing, in milliseconds; 0 = they have none."""
        if self.attempt_lease_s == "auto":
            return _ms(max(LEASE_AUTO_S, self.lease_min_s)) if failover else 0
        return _ms(self.attempt_lease_s)

    def faults(self) -> list[str]:
        found = []
        if self.unreachable_after_s <= 2 * self.heartbeat_s:
            found.append(
                f"unreachable_after_s ({self.unreachable_after_s}) must exceed two heartbeats "
                f"(heartbeat_s is {self.heartbeat_s}), or one lost message takes a node out of service"
            )
        lease_s = self.attempt_lease_s
        if lease_s != "auto" and lease_s != 0 and not self.lease_min_s <= lease_s <= LEASE_MS_MAX / SECOND_MS:
            most = LEASE_MS_MAX // SECOND_MS
            found.append(
                f"attempt_lease_s ({lease_s:g}) must be 0, or from {self.lease_min_s:g} to {most}: at least a second "
                f"and twice unreachable_after_s (which is {self.unreachable_after_s:g}), or a short silence ends work"
            )
        return found


class FailoverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `failover`: how several control planes act as one, of which one is active.

    All of a cluster have the same `marker`, `mode` and `profile`; each has a name of its own and lists its peers.
    """

    enabled: bool = False
    """Is this control plane one of several, of which one is active?"""
    name: str = "a"
    """What this one is called: letters, digits, `.`, `_` and `-`. Each needs another name."""
    peers: tuple[str, ...] = ()
    """The others, each as HOST:PORT of its gRPC listener. Not needed where the log is in PostgreSQL."""
    marker: str = ""
    """Folder on shared storage that says who is active. Not needed where the log is in PostgreSQL."""
    mode: Literal["sync", "async"] = "sync"
    """sync: nothing is acknowledged before all who are in sync have it on disk, so a take-over loses nothing. async:
    nobody is waited for, so a take-over may lose what was acknowledged in the last moments."""
    profile: Literal["default", "fast"] = "default"
    """How soon a standby takes over: default within 6 s, fast within 1 s. fast wants quick shared storage and machines
    that are not starved: who can't renew within half a second stops being active."""
    http: str = ""
    """Where people reach this one, as http://HOST:PORT: a standby says it to whoever must go to the active. Empty =
    http.host and http.port, where http.host is one address."""

    @property
    def timing(self) -> Timing:
        return FAST if self.profile == "fast" else DEFAULT

    @property
    def folder(self) -> Path:
        return Path(self.marker)

    def faults(self) -> list[str]:
        found = []
        if not _NAME.fullmatch(self.name):
            found.append(f"name: {self.name[:80]!r} may have letters, digits, `.`, `_` and `-`, at most 63 of them")
        found += [f"peers: {fault}" for fault in address_faults(self.peers)]
        if len(self.peers) > PEERS_MAX:
            found.append(f"peers: {len(self.peers)} are more than {PEERS_MAX}")
        if self.http and not _is_url(self.http):
            found.append(f"http: {self.http[:80]!r} isn't http://HOST:PORT")
        elif self.http and _is_everywhere(urlsplit(self.http).hostname or ""):
            found.append(f"http: {self.http[:80]!r} is every address of a machine; name one at which people reach it")
        return found

    def faults_with(self, store_url: str, http_host: str) -> list[str]:
        """Return what is wrong in view of the store of the log and of the host of the REST listener."""
        if not self.enabled:
            return []
        found = []
        if not self.http and _is_everywhere(http_host):
            found.append(f"failover.http: it is empty, and nobody reaches http.host {http_host!r} from elsewhere")
        if store_url:
            return found
        if not self.marker:
            found.append("failover.marker: it is empty; name a folder on storage that all control planes share")
        elif not self.folder.is_absolute():
            found.append(f"failover.marker: {self.marker[:200]!r} must be an absolute path")
        if not self.peers:
            found.append("failover.peers: it is empty; name the gRPC address of each other control plane")
        return found


class OtherClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of one of `web.clusters`."""

    servers: tuple[str, ...]
    """URLs of its control planes, in any order. A token goes over https, or over http within this machine."""
    token_file: str = ""
    """File, an absolute path, with a token of role viewer of that cluster, read each time that it is asked; accounts
    other than its owner and group may not read it. Empty = that cluster wants none."""
    ca_file: str = ""
    """File, an absolute path, with the authority that its servers are verified against, as PEM. Empty = the one that
    the token names, or else those of this system."""
    page: str = ""
    """Address at which people have its pages. Empty = the first of `servers`."""

    @property
    def url(self) -> str:
        """Address of its pages."""
        return (self.page or self.servers[0]).rstrip("/")

    def faults(self) -> list[str]:
        found = [] if self.servers else ["servers: there are none"]
        for server in self.servers:
            try:
                parsed_servers(server)
            except StokerError as fault:
                found.append(f"servers: {fault.refusal.message}")
        for key, path in (("token_file", self.token_file), ("ca_file", self.ca_file)):
            if path and not path.startswith("/"):
                found.append(f"{key}: {path[:80]!r} isn't an absolute path")
        if self.page and not _is_url(self.page):
            found.append(f"page: {self.page[:80]!r} isn't https://HOST:PORT")
        return found


class WebSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `web`."""

    clusters: dict[str, OtherClusterSettings] = {}
    """Other clusters that the page `/clusters` shows beside this one, each by a name. They are asked while somebody
    looks. Empty = none."""

    def faults(self) -> list[str]:
        found = [f"clusters: {name}.{fault}" for name, each in self.clusters.items() for fault in each.faults()]
        wrong = [name for name in self.clusters if not _NAME.fullmatch(name)]
        found += [f"clusters: {name[:80]!r} may have letters, digits, `.`, `_` and `-`, 63 at most" for name in wrong]
        if len(self.clusters) > CLUSTERS_MAX:
            found.append(f"clusters: {len(self.clusters)} are more than {CLUSTERS_MAX}")
        return found


class ControlSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one control plane."""

    program: ClassVar[str] = "stoker control"
    later: ClassVar[Mapping[str, str]] = {
        "http.tls": "encryption is set in section `tls`: `tls.mode: on`",
        "jobs": "this section is called `policy` now, and its keys are those of the policy",
    }
    """Keys that aren't there, and what to know about each."""
    data_dir: Path = Path("/var/lib/stoker")
    """Folder of this control plane alone: event log, snapshots, lock. Losing it loses the queue."""
    http: HttpSettings = HttpSettings()
    grpc: GrpcSettings = GrpcSettings()
    tls: TlsSettings = TlsSettings()
    secrets: SecretSettings = SecretSettings()
    store: StoreSettings = StoreSettings()
    failover: FailoverSettings = FailoverSettings()
    agents: AgentsSettings = AgentsSettings()
    loop: LoopSettings = LoopSettings()
    snapshot: SnapshotSettings = SnapshotSettings()
    history: HistorySettings = HistorySettings()
    audit: AuditSettings = AuditSettings()
    notify: NotifySettings = NotifySettings()
    oidc: OidcSettings = OidcSettings()
    output: OutputSettings = OutputSettings()
    quota: QuotaSettings = QuotaSettings()
    policy: PolicySettings = PolicySettings()
    web: WebSettings = WebSettings()
    log: LogSettings = LogSettings()

    @property
    def http_url(self) -> str:
        """Address at which people reach this control plane."""
        host = f"[{self.http.host}]" if ":" in self.http.host else self.http.host
        scheme = "https" if self.tls.http(self.http.host) else "http"
        return self.failover.http.rstrip("/") or f"{scheme}://{host}:{self.http.port}"

    def faults(self) -> list[str]:
        for name, port in (("port", self.grpc.port), ("node_port", self.grpc.node_port if self.tls.grpc else 0)):
            if port and self.http.port == port:
                return [f"http.port and grpc.{name} are both {port}; each listener needs its own"]
        faults = (self._authority_faults(), self._secret_faults())
        return [*chain(*faults), *self.failover.faults_with(self.store.url, self.http.host)]

    def _authority_faults(self) -> list[str]:
        if self.failover.enabled and self.store.url and self.tls.mode != "off" and not self.tls.dir:
            hint = "name a folder that every control plane has with the same content: copy it from the first one's `ca`"
            return [f"tls.dir: it is empty, and control planes on one database share no folder; {hint}"]
        return []

    def _secret_faults(self) -> list[str]:
        for setting, folder in (("data_dir", self.data_dir), ("failover.marker", self.failover.folder)):
            if folder.is_absolute() and self.secret_key_file.is_relative_to(folder):
                hint = "name a place that is neither copied nor shared with them"
                return [f"secrets.key_file: {str(self.secret_key_file)[:200]!r} lies in {setting}; {hint}"]
        return []

    @property
    def secret_key_file(self) -> Path:
        """File of the key of the secrets."""
        data_dir = self.data_dir.absolute()
        return Path(self.secrets.key_file or data_dir.with_name(f"{data_dir.name}-keys") / "secrets.key")

    @property
    def authority_dir(self) -> Path:
        """Folder of the certificate authority."""
        if self.tls.dir:
            return Path(self.tls.dir)
        shared = self.failover.enabled and not self.store.url
        return (self.failover.folder if shared else self.data_dir) / "ca"

    def as_policy(self) -> Policy:
        """Return the policy that these settings ask for: the section of that name, and what follows from others."""
        return msgspec.structs.replace(
            self.policy.as_policy(),
            attempt_lease_ms=self.agents.lease_ms(failover=self.failover.enabled),
            attempt_lease_min_ms=_ms(self.agents.lease_min_s),
        )

    def core(self) -> CoreSettings:
        """Return the part of these settings that `control` uses."""
        return CoreSettings(
            data_dir=self.data_dir,
            policy=self.as_policy(),
            pools=self.quota.as_pools(),
            http=self.http,
            loop=self.loop,
            snapshot=self.snapshot,
            history=self.history,
        )


def _ms(seconds: float) -> int:
    return round(seconds * SECOND_MS)


def _is_everywhere(host: str) -> bool:
    return host in ("0.0.0.0", "::")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0 and parts.path in ("", "/")
