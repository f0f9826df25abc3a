"""How are a duration, a size and a priority read from what people type?

Used by REST and by the command lines, so that `--time 2h` and `"time_limit": "2h"` are one thing.

Units:  durations are milliseconds, sizes MiB.
Rules:  T1  a bare number is minutes, `MM:SS` is minutes and seconds, `D-HH` is days and hours: the six forms of Slurm
        T2  `30s`, `10m`, `2h`, `1d` and their sums from large to small, such as `1h30m`
        T3  every part but the first stays below the next larger unit: `25:99` is an error
        T4  nothing that can't be read, and no zero, ever means "no limit"
Source: sbatch(1), option --time; sizes follow IEC 80000-13, and a single letter is binary, as in sbatch(1) --mem.
"""

import re
from typing import Final

from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.brain.domain.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

DURATION_MAX_MS: Final = 10_000 * DAY_MS
"""Beyond it a text is a typing error."""
SIZE_MAX_MB: Final = 1 << 40
PRIORITY_WORDS: Final = {"low": 100, "normal": 500, "high": 1000, "urgent": 2000}
PRIORITY_MAX: Final = 2**53 - 1
"""What JSON keeps exact; the policy's own bound is far below."""

_BARE = re.compile(r"([0-9]{1,9})")
_CLOCK = re.compile(r"(?:([0-9]{1,6}):)?([0-9]{1,6}):([0-9]{1,2})")
_DAYS = re.compile(r"([0-9]{1,6})-([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2}))?)?")
_UNITS = re.compile(r"(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?")
_SIZE = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,6}))? ?([kmgtp]?)(i?b)?", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?[0-9]{1,16}")
_BYTES_PER_MIB: Final = 1 << 20


def parse_duration(text: str) -> int:
    """Milliseconds in a duration.

    Raises: StokerError `bad_time`.
    """
    ms = _duration_ms(text.strip())
    if ms is None or not 0 < ms <= DURATION_MAX_MS:
        raise StokerError(_bad_time(text))
    return ms


def _duration_ms(text: str) -> int | None:
    if match := _BARE.fullmatch(text):
        return int(match[1]) * MINUTE_MS
    if match := _CLOCK.fullmatch(text):
        hours, minutes, seconds = (int(part or 0) for part in match.groups())
        # Without hours the minutes lead, and 90:00 is an hour and a half.
        return _sum(0, hours, minutes, seconds, leading="m" if match[1] is None else "h")
    if match := _DAYS.fullmatch(text):
        return _sum(*(int(part or 0) for part in match.groups()), leading="d")
    if text and (match := _UNITS.fullmatch(text.lower())):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        leading = next(unit for unit, part in zip("dhms", match.groups(), strict=True) if part is not None)
        return _sum(days, hours, minutes, seconds, leading=leading)
    return None


def _sum(days: int, hours: int, minutes: int, seconds: int, *, leading: str) -> int | None:
    overflows = (hours >= 24 and leading == "d", minutes >= 60 and leading != "m", seconds >= 60 and leading != "s")
    if any(overflows):
        return None
    return days * DAY_MS + hours * HOUR_MS + minutes * MINUTE_MS + seconds * SECOND_MS


def _bad_time(text: str) -> Refusal:
    return refuse(
        "bad_time",
        f"{text[:80]!r} is not a duration",
        "write minutes (`30`), `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`, or units such as `90s`, `2h`, "
        "`1h30m`; a job always has a limit",
        got=text[:80],
    )


def parse_memory_mb(text: str) -> int:
    """MiB in a size, rounded up. A bare number is MiB; `G` and `GiB` are binary, `GB` is decimal.

    Raises: StokerError `bad_size`.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise StokerError(_bad_size(text))
    whole, fraction, letter, suffix = match[1], match[2] or "", match[3].lower(), (match[4] or "").lower()
    if suffix and not letter:
        raise StokerError(_bad_size(text))
    base = 1000 if suffix == "b" else 1024
    unit: int = base ** ("kmgtp".index(letter) + 1) if letter else _BYTES_PER_MIB
    size_mb: int = -(-int(whole + fraction) * unit // (10 ** len(fraction) * _BYTES_PER_MIB))
    if size_mb > SIZE_MAX_MB:
        raise StokerError(_bad_size(text))
    return size_mb


def _bad_size(text: str) -> Refusal:
    return refuse(
        "bad_size",
        f"{text[:80]!r} is not a size of memory",
        "write MiB (`16000`) or a unit: `16GiB`, `16G` (the same), `16GB` (decimal), `512M`, `1.5T`",
        got=text[:80],
    )


def parse_priority(value: str | int) -> int:
    """A priority as a whole number or one of the four words.

    Raises: StokerError `bad_priority`.
    """
    number = value if isinstance(value, int) else _priority_number(value.strip().lower())
    if number is None or abs(number) > PRIORITY_MAX:
        raise StokerError(_bad_priority(value))
    return number


def _priority_number(word: str) -> int | None:
    if word.isascii() and _INTEGER.fullmatch(word):
        return int(word)
    return PRIORITY_WORDS.get(word)


def _bad_priority(value: str | int) -> Refusal:
    words = ", ".join(f"`{word}` ({number})" for word, number in PRIORITY_WORDS.items())
    got = str(value)[:80]
    return refuse("bad_priority", f"{got!r} is not a priority", f"write a whole number, or one of {words}", got=got)
