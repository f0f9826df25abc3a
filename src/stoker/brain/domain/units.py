"""Units of time, and texts of times and numbers for people.

Whole numbers only: time in milliseconds, memory in MiB, GPU shares in thousandths. Floats never enter accounting.
"""

from typing import Final, NamedTuple, NewType

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


class Range(NamedTuple):
    """Least and greatest value of a number that operators may set: `Annotated[int, Range(1, 10)]` is the type of it.

    Loading of settings checks it; decoding of logs doesn't, so that a range may be narrowed in a later version.
    """

    least: float
    most: float | None = None
    """None = there is no greatest value."""
    unit: str = ""
    """Words behind the limits in a fault."""

    def fault(self, value: float) -> str:
        """Return what is wrong with a value; empty = it is within the range."""
        if self.most is None:
            return "" if value >= self.least else f"{value} is below {self.least}{self.unit}"
        inside = self.least <= value <= self.most
        return "" if inside else f"{value} isn't between {self.least} and {self.most}{self.unit}"


def counted(count: int | float, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 GPU`, `2 GPUs`. `plural`: where it isn't the noun with an s."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def later(at: Instant, by_ms: int) -> Instant:
    """Return the instant `by_ms` milliseconds after `at`."""
    return Instant(at + by_ms)


def utc_text(at: Instant) -> str:
    """Return an instant for people: `2026-11-28 05:09:34 UTC`.

    Source: days to civil date as in Howard Hinnant's "chrono-compatible low-level date algorithms".
    """
    days, ms = divmod(at, DAY_MS)
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    year = year_of_era + era * 400 + (month <= 2)
    hour, minute, second = ms // HOUR_MS, ms // MINUTE_MS % 60, ms // SECOND_MS % 60
    return f"{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC"


def human_duration(ms: int) -> str:
    """Return a duration for people, in its two largest units: `2h 5m`, `3.2s`, `40ms`."""
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
