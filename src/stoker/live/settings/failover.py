"""Settings of failover: how several control planes act as one, of which one is active.

All of a cluster have the same `marker`, `mode` and `profile`; each has a name of its own and lists its peers.
"""

import re
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from stoker.brain.failover.timing import DEFAULT, FAST, Timing

PEERS_MAX: Final = 6
"""Every acknowledgement waits for all who are in sync; more than a few only slow each other down."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,63}")
_HOST_PORT: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")


class FailoverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `failover`."""

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
        found += [f"peers: {peer[:80]!r} isn't HOST:PORT" for peer in self.peers if not _is_address(peer)]
        if len(self.peers) > PEERS_MAX:
            found.append(f"peers: {len(self.peers)} are more than {PEERS_MAX}")
        if len(set(self.peers)) < len(self.peers):
            found.append("peers: one of them is named twice")
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


def _is_everywhere(host: str) -> bool:
    return host in ("0.0.0.0", "::")


def _is_address(text: str) -> bool:
    parts = _HOST_PORT.fullmatch(text)
    return parts is not None and 0 < int(parts[1]) <= 65_535


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0 and parts.path in ("", "/")
