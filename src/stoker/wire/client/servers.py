"""The servers of a client, and the order in which they are asked.

Rules: S1  only addresses that whoever asks has named are ever asked: a token goes nowhere else, whatever a server says
       S2  the one that answered last is asked first: the active one, or the standby of which an answer was taken
Limits: SERVERS_MAX addresses.
"""

from collections.abc import Sequence
from typing import Final
from urllib.parse import SplitResult, urlsplit

from stoker.brain.domain.errors import StokerError, refusal_error

DEFAULT_SERVER: Final = "http://127.0.0.1:8080"
SERVERS_MAX: Final = 8
LABEL_MAX: Final = 63
"""Characters between two dots of a host's name."""


class Servers:
    """Those that one client may ask, in the order in which it does."""

    def __init__(self, servers: Sequence[SplitResult], *, of_ones_own: bool = False) -> None:
        """`of_ones_own`: nobody named a server or a token, so that a cluster of the caller's own may be meant."""
        self.of_ones_own = of_ones_own
        self._in_turn = list(servers)
        self.answered = False
        """Has any of them ever answered?"""
        self.leaderless_at: float | None = None
        """When a standby's answer was taken. None = the last one was of an active."""
        self.active_at: float | None = None
        """When the active answered last. None = the last answer was of a standby, or there is none."""

    @property
    def several(self) -> bool:
        return len(self._in_turn) > 1

    @property
    def in_turn(self) -> Sequence[SplitResult]:
        return self._in_turn

    @property
    def first(self) -> SplitResult:
        return self._in_turn[0]

    def note(self, at: float, *, standby: bool) -> None:
        """An answer was taken at that time."""
        self.leaderless_at, self.active_at = (at, None) if standby else (None, at)

    def active_since(self, since: float) -> bool:
        return self.active_at is not None and self.active_at >= since

    def was_leaderless(self, since: float) -> bool:
        return self.leaderless_at is not None and self.leaderless_at >= since

    def others(self, server: SplitResult) -> list[SplitResult]:
        return [each for each in self._in_turn if each != server]

    def prefer(self, server: SplitResult) -> None:
        """Ask this server first from now on (S2)."""
        if self._in_turn[0] != server:
            self._in_turn = [server, *self.others(server)]

    def named(self, url: str) -> SplitResult | None:
        """The one of them that a server means. None where it means another one (S1)."""
        try:
            found = _parsed(url)
        except StokerError:
            return None
        return found if found in self._in_turn else None


def parsed_servers(servers: str) -> list[SplitResult]:
    """`servers` has commas between several; each once. Raises: StokerError `bad_server`."""
    return list(_typed(servers))


def each_alone(servers: str) -> list[str]:
    """The same, each as it was typed. Raises: StokerError `bad_server`."""
    return list(_typed(servers).values())


def _typed(servers: str) -> dict[SplitResult, str]:
    texts = [text.strip() for text in servers.split(",")]
    if len(texts) > SERVERS_MAX:
        message = f"{len(texts)} servers are named, and at most {SERVERS_MAX} are asked"
        raise refusal_error("bad_server", message, "name the active one and its standbys", servers=len(texts))
    typed: dict[SplitResult, str] = {}
    for text in texts:
        typed.setdefault(_parsed(text), text)
    return typed


def server_label(server: SplitResult) -> str:
    """Return the name of a server for people."""
    return server.path or server.netloc


def local_server(path: str) -> SplitResult:
    """The one that listens on a Unix socket. The name is what it hears as `Host`."""
    return SplitResult("unix", "localhost:80", path, "", "")


def _parsed(text: str) -> SplitResult:
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = parts.hostname or ""
        if parts.scheme not in ("http", "https") or parts.path not in ("", "/") or not _names_host(host):
            raise ValueError
    except ValueError as fault:
        typed = text[:80]
        hint = f"write a scheme, a host and a port, such as {DEFAULT_SERVER}"
        raise refusal_error("bad_server", f"{typed!r} is not a server's address", hint, server=typed) from fault
    return SplitResult(parts.scheme, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", "", "", "")


def _names_host(host: str) -> bool:
    """What can't be looked up breaks in the resolver, and not as an OSError. Raises: ValueError for some that can't."""
    name = host.encode("idna").decode() if not host.isascii() else host
    labels = name.removesuffix(".").split(".")
    return name.isprintable() and " " not in name and all(0 < len(label) <= LABEL_MAX for label in labels)
