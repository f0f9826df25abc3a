"""What does a check say?"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

CHECK_S: Final = 10.0
"""Far longer than any healthy machine takes, short enough to wait for."""


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It works, and somebody will be surprised one day."""
    ERROR = "error"
    """It doesn't work, or work will be lost."""


class CheckResult(NamedTuple):
    """One thing seen. `fix` is what to do about it; empty for what is fine."""

    level: Level
    what: str
    fix: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The same, with the name of the check that saw it."""

    check: str
    level: Level
    what: str
    fix: str = ""


class Check(NamedTuple):
    """One question. It may hang or break; whoever runs it bounds it."""

    name: str
    look: Callable[[], Iterable[CheckResult]]
    seconds: float = CHECK_S


def fine(what: str) -> CheckResult:
    return CheckResult(Level.OK, what)


def doubtful(what: str, fix: str) -> CheckResult:
    return CheckResult(Level.WARNING, what, fix)


def wrong(what: str, fix: str) -> CheckResult:
    return CheckResult(Level.ERROR, what, fix)


def named(check: str, said: Iterable[CheckResult]) -> list[Finding]:
    return [Finding(check=check, level=each.level, what=each.what, fix=each.fix) for each in said]
