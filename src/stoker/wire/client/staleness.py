"""Headers by which an answer says that it comes from a standby, and how old it may be.

A standby shows what its copy of the log holds, and says so in every answer. A request may want no such answer: a
standby then refuses it with `not_active`, as it refuses whatever changes something.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

STALE_HEADER: Final = "Stoker-Stale"
"""Of a request. `no`: only the active is to answer."""
FRESH_ONLY: Final = "no"
ROLE_HEADER: Final = "Stoker-Role"
STANDBY: Final = "standby"
ACTIVE: Final = "active"
LAG_HEADER: Final = "Stoker-Lag-Ms"
NOT_ACTIVE: Final = "not_active"


class Stale(NamedTuple):
    """An answer came from a standby."""

    server: str
    lag_ms: int | None
    """How old it may be. None = the standby doesn't say."""
    tried: int
    """How many servers were asked for an active one, this one among them. 1 = nobody knows whether there is one."""

    def __str__(self) -> str:
        behind = "how far behind isn't known" if self.lag_ms is None else f"{_spoken(self.lag_ms)} behind"
        nobody = "; no active control plane answers" if self.tried > 1 else ""
        return f"answered by a standby, {behind}{nobody}"


class Waiting(NamedTuple):
    """A request is being repeated, and has been for a moment."""

    why: str

    def __str__(self) -> str:
        return f"waiting: {self.why}"


Notice = Stale | Waiting
"""What whoever asks may want to say to a person. As a text it is one line."""


def ignore_notice(notice: Notice) -> None:
    """Nobody wants to know."""


def is_standby(headers: Mapping[str, str]) -> bool:
    """Names of headers are in lower case."""
    return headers.get(ROLE_HEADER.lower()) == STANDBY


def stale_answer(server: str, headers: Mapping[str, str], tried: int) -> Stale | None:
    """None for an answer of an active control plane, or of one that is the only one."""
    return Stale(server, _lag_ms(headers), tried) if is_standby(headers) else None


def _lag_ms(headers: Mapping[str, str]) -> int | None:
    text = headers.get(LAG_HEADER.lower(), "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None


def _spoken(lag_ms: int) -> str:
    return f"{lag_ms / 1_000:.1f} s" if lag_ms < 10_000 else f"{lag_ms // 1_000} s"
