"""In which units does Stoker count?

Whole numbers only: time in milliseconds, memory in MiB, GPU shares in thousandths. Floats never enter accounting.
"""

from typing import Final, NewType

Instant = NewType("Instant", int)
"""Wall time in milliseconds since 1970-01-01 UTC; it never runs backwards inside one log."""

Mono = NewType("Mono", float)
"""Seconds on the monotonic clock of one process; only differences mean anything."""

NEVER: Final = Instant(0)
"""An instant that hasn't come: `started_at` of a job that waits."""

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS


def later(at: Instant, by_ms: int) -> Instant:
    """The instant `by_ms` after `at`."""
    return Instant(at + by_ms)


def human_duration(ms: int) -> str:
    """A duration for people, in its two largest units: `2h 5m`, `3.2s`, `40ms`."""
    if ms < SECOND_MS:
        return f"{ms}ms"
    if ms < MINUTE_MS:
        return f"{ms / SECOND_MS:.1f}s".replace(".0s", "s")
    for size, name, small, small_name in (
        (DAY_MS, "d", HOUR_MS, "h"),
        (HOUR_MS, "h", MINUTE_MS, "m"),
        (MINUTE_MS, "m", SECOND_MS, "s"),
    ):
        if ms >= size:
            rest = ms % size // small
            return f"{ms // size}{name} {rest}{small_name}" if rest else f"{ms // size}{name}"
    raise AssertionError(f"unreachable: {ms=}")
