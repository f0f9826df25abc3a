"""Findings of the doctor, and the checks that make them."""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from stoker.brain.domain.errors import StokerError

CHECK_S: Final = 10.0
"""Far longer than any healthy machine takes, short enough to wait for."""


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    """It works, and may surprise somebody one day."""
    ERROR = "error"
    """It doesn't work, or work will be lost."""


class CheckResult(NamedTuple):
    """Result of a look at one thing. `fix` is what to do about it; empty for what is fine."""

    level: Level
    what: str
    fix: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a check with the name of the check, as it is printed."""

    check: str
    level: Level
    what: str
    fix: str = ""


class Check(NamedTuple):
    """Check by its name. It may hang or break; its caller bounds it to `seconds`."""

    name: str
    look: Callable[[], Iterable[CheckResult]]
    seconds: float = CHECK_S


def fine(what: str) -> CheckResult:
    """Return a result of level ok."""
    return CheckResult(Level.OK, what)


def doubtful(what: str, fix: str) -> CheckResult:
    """Return a result of level warning."""
    return CheckResult(Level.WARNING, what, fix)


def wrong(what: str, fix: str) -> CheckResult:
    """Return a result of level error."""
    return CheckResult(Level.ERROR, what, fix)


def refusal(fault: StokerError) -> CheckResult:
    """Return a refusal as a result of level error."""
    return wrong(fault.refusal.message, fault.refusal.hint)


def unless_refused(ask: Callable[[], object], what: str) -> Iterator[CheckResult]:
    """Yield that `what` is fine, or the refusal that `ask` raises."""
    try:
        ask()
    except StokerError as fault:
        yield refusal(fault)
    else:
        yield fine(what)


def named(check: str, said: Iterable[CheckResult]) -> list[Finding]:
    """Return the results of a check as findings under its name."""
    return [Finding(check=check, level=each.level, what=each.what, fix=each.fix) for each in said]
