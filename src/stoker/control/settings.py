"""Settings of the core and of its public interfaces: listeners, loop, snapshots and history.

`CoreSettings` is what a runtime hands to `control`; the classes of single sections are shared with its settings file.
"""

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec

from stoker.brain.domain.notify import url_fault
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import Pools
from stoker.brain.domain.units import Range
from stoker.wire.address import is_machine

CORS_ORIGINS_MAX: Final = 100
TLS_NAMES_MAX: Final = 100
WEBHOOKS_MAX: Final = 1_000
_SENDER: Final = re.compile(r"[A-Za-z0-9._%+=/-]{1,64}@[A-Za-z0-9.-]{1,255}", re.ASCII)
_WEBHOOK: Final = re.compile(r"[A-Za-z0-9._-]{1,63}", re.ASCII)

Port = Annotated[int, Range(0, 65_535)]


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `http`."""

    host: str = "127.0.0.1"
    """Address of the REST listener; 0.0.0.0 or :: is every address of this machine. `tls.mode` says whether requests
    are encrypted there."""
    port: Port = 8080
    """Its port; 8080 is what the seeds' users type. 0 = any free one (the log line `serving` says which)."""
    cors_origins: tuple[str, ...] = ()
    """Web pages of which other origins may ask, such as https://portal.example.org. None by default: only pages that
    this control plane serves itself."""
    rate_per_principal: Annotated[float, Range(0, 1_000_000, " a second")] = 200.0
    """Requests a second, over REST and gRPC, that each principal may make on average, in bursts of up to two seconds'
    worth; beyond it 429 and when to come back. 200 is what ten scripts of one account ask that submit job by job as
    fast as they are answered; 10,000 jobs in one request count once. `/health`, `/metrics`, agents and whoever needs no
    token are not counted. 0 = no limit."""
    metrics_public: bool = False
    """Whether `/metrics` is answered without a token. Off, since the names of tenants are in it; Prometheus sends a
    token of role `metrics` with `authorization`."""

    def faults(self) -> list[str]:
        return [*_host_faults(self.host), *_origin_faults(self.cors_origins)]


class GrpcSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `grpc`."""

    host: str = "127.0.0.1"
    """Address where agents and gRPC clients ask; 0.0.0.0 or :: is every address of this machine."""
    port: Port = 9090
    """Its port; agents' default too. 0 = any free one (the log line `serving` says which)."""
    node_port: Port = 9091
    """Port for those who show a certificate: agents that have joined, and other control planes. They are told it at
    `port`, so nobody else names it; a firewall must let nodes reach both. 0 = any free one."""

    def faults(self) -> list[str]:
        found = _host_faults(self.host)
        if self.port and self.port == self.node_port:
            found.append(f"node_port: {self.node_port} is also `port`; each listener needs its own")
        return found


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `tls`: encryption, and who proves by which certificate who he is."""

    mode: Literal["auto", "on", "off"] = "auto"
    """auto: gRPC speaks TLS, and REST where `http.host` is no loopback address. on: both do. off: neither; then whoever
    reads the network reads tokens and jobs, and an address that other machines reach wants `--insecure` as well."""
    dir: str = ""
    """Folder, an absolute path, of the certificate authority: `ca.pem` with its private key and its certificate. It is
    made at the first start where there is none; put a site's own there instead. Empty = `ca` in data_dir, or in the
    folder of `failover.marker`. Control planes of one cluster have the same one."""
    names: tuple[str, ...] = ()
    """Further DNS names and addresses under which people and nodes reach this control plane. Its host name, its
    addresses and localhost are in its certificate anyway."""

    def faults(self) -> list[str]:
        found = []
        if self.dir and not self.dir.startswith("/"):
            found.append(f"dir: {self.dir[:80]!r} isn't an absolute path")
        if len(self.names) > TLS_NAMES_MAX:
            found.append(f"names: {len(self.names)} are more than {TLS_NAMES_MAX}")
        wrong = (name for name in self.names if not is_machine(name))
        return [*found, *(f"names: {name[:80]!r} isn't a host name or an IP address, without a port" for name in wrong)]

    def http(self, host: str) -> bool:
        """Return whether a REST listener at this address speaks TLS."""
        return self.mode == "on" or (self.mode == "auto" and not is_loopback(host))

    @property
    def grpc(self) -> bool:
        """Whether the gRPC listeners speak TLS."""
        return self.mode != "off"


class SecretSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `secrets`."""

    key_file: str = ""
    """File, an absolute path, of the key under which secrets are encrypted: on a disk of this machine, in neither
    data_dir nor the marker's folder, mode 0600. It is made with the first secret, at the latest, and a standby gets it
    from the active one over TLS. Copy it to a safe place that is not that of the backups: without it no secret can be
    used. Empty = `secrets.key` in the folder beside data_dir that ends in `-keys`, as /var/lib/stoker-keys."""

    def faults(self) -> list[str]:
        if self.key_file and not self.key_file.startswith("/"):
            return [f"key_file: {self.key_file[:80]!r} isn't an absolute path"]
        return []


class LoopSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `loop`."""

    period_s: Annotated[float, Range(0.05, 3_600, " seconds")] = 5.0
    """Longest time between two looks at the queue. Every change is looked at at once; this is the safety net."""


class SnapshotSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `snapshot`."""

    interval_s: Annotated[float, Range(0.1, 86_400, " seconds")] = 30.0
    """Seconds between two snapshots while something changes. A restart replays what came after the last one, about
    100,000 events a second, so half a minute of a busy cluster costs a fraction of a second."""


class HistorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `history`."""

    keep_days: Annotated[int, Range(1, 3_650, " days")] = 365
    """Days for which ended jobs, their attempts and their usage stay in reports and lists: a year, so that one budget
    year can be compared with the one before it."""
    rows_max: Annotated[int, Range(1_000, 100_000_000)] = 2_000_000
    """Ended jobs kept at most, about 1.7 KiB each on the disk of data_dir, or in the database: 3.3 GiB, or a year of
    5,000 jobs a day. Beyond it the oldest go, however young."""
    audit_rows_max: Annotated[int, Range(1_000, 1_000_000_000)] = 5_000_000
    """Rows of the audit trail kept at most, about 140 bytes each: 0.7 GiB, or a year of 13,000 commands a day. Beyond
    it the oldest go of whoever has the most, those about jobs first; what was refused or changed nothing has a quarter
    of them."""


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `audit`."""

    ship_to: str = ""
    """Where each row of the audit trail is sent as it happens, beside the history, as a JSON object. `file:///PATH`: a
    file of lines, opened anew after a rotation. `syslog:///dev/log`, `syslog+udp://HOST:514`, `syslog+tcp://HOST:601`:
    RFC 5424, facility authpriv; another machine is reached in plain text, which wants `--insecure`, so let the syslog
    of this one pass them on. A target that takes nothing holds up no command: 20,000 rows wait, then the oldest go,
    counted. Empty = nowhere."""

    def faults(self) -> list[str]:
        if not self.ship_to:
            return []
        wanted = "`file:///PATH`, `syslog:///dev/log`, `syslog+udp://HOST:PORT` or `syslog+tcp://HOST:PORT`"
        wrong = [f"ship_to: {self.ship_to[:80]!r} isn't {wanted}"]
        try:
            parts = urlsplit(self.ship_to)
            host, _ = parts.hostname, parts.port
        except ValueError:
            return wrong
        local = parts.scheme in ("file", "syslog") and not parts.netloc and parts.path.startswith("/")
        remote = parts.scheme in ("syslog+udp", "syslog+tcp") and bool(host) and not parts.path
        return [] if local or remote else wrong

    @property
    def host(self) -> str:
        """The machine that rows are sent to in plain text; empty = they stay on this one."""
        host = urlsplit(self.ship_to).hostname or ""
        return "" if not host or is_loopback(host) else host


_ROLES: Final = ("viewer", "user", "lead", "admin")
"""Of people, whom a provider may let in."""


class OidcRule(NamedTuple):
    """One row of `oidc.rules`."""

    group: str
    role: str
    tenant: str
    """Empty = bound to none."""


class OidcSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `oidc`: signing in to the web pages through an identity provider (OpenID Connect).

    Needs `pip install 'stoker[oidc]'`.
    """

    issuer: str = ""
    """URL of the provider, as its tokens name it. Empty = people sign in with tokens alone."""
    client_id: str = ""
    """Name of this cluster at the provider, which has to know the way back there: `/login/oidc/back` here."""
    client_secret_file: str = ""
    """File, an absolute path, with the secret that goes with it, read at the start. Empty = a public client."""
    public_url: str = ""
    """Address at which people have the pages, such as https://stoker.example.org. Empty = the one that was asked."""
    scopes: tuple[str, ...] = ("profile", "groups")
    """What is asked for beside `openid`."""
    user_claim: str = "preferred_username"
    """Claim of ID tokens with the Unix account of a person's jobs."""
    groups_claim: str = "groups"
    """Claim of ID tokens with a person's groups."""
    rules: dict[str, str] = {}
    """What groups give, the first that fits: `gpu-admins: admin`, `vision: user vision`, a role and the tenant that it
    is bound to. The group `*` is everybody whom the provider knows. Who is in none of them isn't let in."""

    @property
    def rows(self) -> list[OidcRule]:
        """Return the rules, in their order."""
        split = ((group, *given.partition(" ")) for group, given in self.rules.items())
        return [OidcRule(group, role, tenant.strip()) for group, role, _, tenant in split]

    def faults(self) -> list[str]:
        if not self.issuer:
            return []
        found = []
        for name, url in (("issuer", self.issuer), ("public_url", self.public_url)):
            parts = urlsplit(url)
            if url and parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
                found.append(f"{name}: {url[:120]!r} isn't an https:// URL, as all but this machine's own must be")
        if not self.client_id:
            found.append("client_id: it is empty, and the provider wants one")
        if self.client_secret_file and not self.client_secret_file.startswith("/"):
            found.append(f"client_secret_file: {self.client_secret_file[:80]!r} isn't an absolute path")
        if not self.rules:
            found.append("rules: there are none, so nobody would be let in")
        for rule in self.rows:
            if rule.role not in _ROLES:
                found.append(f"rules: {rule.role[:40]!r} of {rule.group[:80]!r} is none of {', '.join(_ROLES)}")
            elif rule.role in ("user", "lead") and not rule.tenant:
                found.append(
                    f"rules: {rule.group[:80]!r} gives the role {rule.role}, which is of a tenant: `user NAME`"
                )
        return found


class OutputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `output`: what becomes of what jobs wrote."""

    archive_dir: str = ""
    """Folder, an absolute path, into which the active control plane copies what each task wrote, once the task has
    ended: `stoker logs` reads it there when the node, or its disk, is gone. Control planes of a pair want one folder on
    shared storage. Only the control plane's account reads it; it takes as much as jobs write, up to what a node keeps
    of each (`executor.log_head_mb`, `log_tail_mb`). Empty = what jobs wrote is on their nodes alone."""
    archive_max_gb: Annotated[int, Range(0, 1_000_000, " GiB")] = 50
    """GiB that it may hold; beyond that the outputs of the oldest jobs go. 0 = as much as there is."""
    archive_days: Annotated[int, Range(0, 36_500, " days")] = 90
    """Days for which an output is kept there. 0 = for ever."""

    def faults(self) -> list[str]:
        if self.archive_dir and not Path(self.archive_dir).is_absolute():
            return [f"archive_dir: {self.archive_dir[:200]!r} isn't an absolute path"]
        return []


class SmtpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `notify.smtp`: the server that takes mails about jobs."""

    host: str = ""
    """Its name or address. Empty = no mail is sent."""
    port: Annotated[int, Range(1, 65_535)] = 587
    """587 is where servers take mail from programs that log in; 25 of a relay; 465 speaks TLS from the start."""
    starttls: bool = True
    """Whether the connection is encrypted before anything is said. Off only for a relay on this machine or network
    that wants no password."""
    user: str = ""
    """Account to log in with. Empty = none is wanted."""
    password_file: str = ""
    """File, an absolute path, with its password, read at each mail."""
    sender: str = ""
    """Address that mails come from, such as stoker@example.org."""

    def faults(self) -> list[str]:
        found = []
        if self.host and not is_machine(self.host):
            found.append(f"host: {self.host[:80]!r} isn't a host name or an IP address, without a port")
        if self.host and not _SENDER.fullmatch(self.sender):
            found.append(f"sender: {self.sender[:80]!r} isn't a mail address, which is needed where there is a `host`")
        if self.password_file and not self.password_file.startswith("/"):
            found.append(f"password_file: {self.password_file[:80]!r} isn't an absolute path")
        if bool(self.user) != bool(self.password_file):
            found.append("user and password_file: one is given without the other")
        if self.user and not self.starttls and self.port != 465 and not is_loopback(self.host):
            found.append("starttls: it is off, so `user` and its password would cross the network as plain text")
        return found


class NotifySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `notify`: whom people may have told of their jobs (`stoker submit --notify end --notify-to ...`).

    Nobody by default: the control plane calls no address that an operator hasn't allowed.
    """

    smtp: SmtpSettings = SmtpSettings()
    mail_domains: tuple[str, ...] = ()
    """Domains that mails may go to, each with those beneath it. Empty = all."""
    webhooks: dict[str, str] = {}
    """URLs by the names that people use: `team-a: https://ci.example.org/stoker` gets JSON, and `slack:` before a URL
    the shape that Slack reads. A URL is shown to nobody; it may be in the environment instead."""
    url_prefixes: tuple[str, ...] = ()
    """Beginnings of URLs that people may name themselves, such as https://hooks.slack.com/services. Empty = none."""

    def faults(self) -> list[str]:
        found = []
        if len(self.webhooks) > WEBHOOKS_MAX:
            found.append(f"webhooks: {len(self.webhooks)} are more than {WEBHOOKS_MAX}")
        for name, url in self.webhooks.items():
            if not _WEBHOOK.fullmatch(name):
                found.append(f"webhooks: {name[:80]!r} may have letters, digits, `.`, `_` and `-`, at most 63 of them")
            elif fault := url_fault(url.removeprefix("slack:")):
                found.append(f"webhooks: of {name}: {fault}")
        found += [f"url_prefixes: {url[:80]!r}: {fault}" for url in self.url_prefixes if (fault := url_fault(url))]
        wrong = (name for name in self.mail_domains if not is_machine(name))
        return [*found, *(f"mail_domains: {name[:80]!r} isn't a domain" for name in wrong)]


class CoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that the core of a control plane needs, whichever runtime it is part of."""

    data_dir: Path
    """Folder of this control plane; its free space is a metric."""
    policy: Policy = Policy()
    """Policy that becomes part of the log when this control plane becomes active."""
    pools: Pools = Pools()
    """Shares of the class pools; as the policy, part of the log."""
    http: HttpSettings = HttpSettings()
    loop: LoopSettings = LoopSettings()
    snapshot: SnapshotSettings = SnapshotSettings()
    history: HistorySettings = HistorySettings()


def is_loopback(host: str) -> bool:
    """Whether a listener at this address is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _host_faults(host: str) -> list[str]:
    if host.strip():
        return []
    return ["host: it is empty; 127.0.0.1 is this machine alone, 0.0.0.0 all of its addresses"]


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
