"""Parsing of durations, sizes, priorities, times and signals that people type.

Used by REST and by the command lines, so that `--time 2h` and `"time_limit": "2h"` are one thing.

Units:  durations are milliseconds, sizes MiB.
Rules:  T1  a bare number is minutes, `MM:SS` is minutes and seconds, `D-HH` is days and hours: the six forms of Slurm
        T2  `30s`, `10m`, `2h`, `1d` and their sums from large to small, such as `1h30m`
        T3  every part but the first stays below the next larger unit: `25:99` is an error
        T4  nothing that can't be read, and no zero, ever means "no limit"; only of how long nodes may be silent zero
            means "for ever"
        T5  a time to begin at is said by the wall clock of whoever types it, or counted from the server's `now`; an
            hour that is over today is meant for tomorrow, and a day that is over is an error. In an hour that summer
            time skips it is what a clock that wasn't set forward shows, and so never early
        T6  a time in the past is `now`; a length of time that was so long ago, such as `7d`, `36h` or `1d12h`; a date,
            which is its first moment; or ISO 8601. Without a zone it is by the wall clock of whoever types it, and in
            UTC when it was sent so. What can't be read is refused, never taken for the beginning of time
        T7  signals have the names that `kill -l` shows on Linux, where jobs run, with or without `SIG`: a client on
            another system means the same signal by the same name. Numbers from 1 to 64 are read too
        T8  a warning before an end is `SIGNAL@LEAD`, as `USR1@90`: without a signal it is USR1, without a lead 60 s as
            for sbatch; a bare lead is seconds, unlike every other duration. What no program can catch is refused
Source: sbatch(1), options --time, --begin and --signal; sizes follow IEC 80000-13, and a single letter is binary, as
in sbatch(1) --mem; signal(7).
"""

import re
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Final

from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.instruction import SIGNAL_MAX
from stoker.brain.domain.job import WarnSignal
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
_FROM_NOW = re.compile(r"now(?: ?\+ ?([0-9]{1,9}[ a-z0-9]*))?")
_COUNTED = re.compile(r"([0-9]{1,9}) ?([a-z]*) ?")
_UNIT_S: Final = {
    **dict.fromkeys(("", "s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3_600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
    **dict.fromkeys(("w", "week", "weeks"), 604_800),
}
_HOUR = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_HOUR_WORDS: Final = {"midnight": time(0), "noon": time(12)}
_DAY_WORDS: Final = {"today": 0, "tomorrow": 1}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_AGO: Final = re.compile(r"[0-9]+[dhms][0-9dhms]*", re.ASCII)
_DAY_AND_HOUR = re.compile(r"(today|tomorrow|[0-9]{4}-[0-9]{2}-[0-9]{2})(?:[t ](.+))?")
_SIGNALS: Final = (
    *("HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM"),
    *("TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF"),
    *("WINCH", "IO", "PWR", "SYS"),
)
"""From 1. The column of x86 and ARM."""
_USR1: Final = 10
_UNCATCHABLE: Final = {9: "KILL", 19: "STOP"}
_LEAD_MS: Final = 60 * SECOND_MS
_LEAD_DIGITS_MAX: Final = 9
_RT_MIN: Final = 34
_RT_MAX: Final = SIGNAL_MAX
_SIGNAL_ALIASES: Final = {"IOT": 6, "CLD": 17, "POLL": 29, "UNUSED": 31, "RTMIN": _RT_MIN, "RTMAX": _RT_MAX}
_SIGNAL_NUMBERS: Final = {name: number for number, name in enumerate(_SIGNALS, start=1)} | _SIGNAL_ALIASES


def parse_duration(text: str) -> int:
    """Milliseconds in a duration.

    Raises: StokerError `bad_time`.
    """
    ms = _duration_ms(text.strip())
    if ms is None or not 0 < ms <= DURATION_MAX_MS:
        raise _bad_time(text)
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


def _bad_time(text: str) -> StokerError:
    return refusal_error(
        "bad_time",
        f"{text[:80]!r} is not a duration",
        "write minutes (`30`), `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`, or units such as `90s`, `2h`, "
        "`1h30m`; a job always has a limit",
        got=text[:80],
    )


def parse_lost_after(text: str) -> int:
    """Milliseconds for which the nodes of a job may be silent; 0 = for ever (`0`, `never`).

    Raises: StokerError `bad_time`.
    """
    word = text.strip().lower()
    ms = 0 if word == "never" else _duration_ms(word)
    if ms is None or ms > DURATION_MAX_MS:
        hint = "write minutes (`10`), units such as `90s`, `10m`, `1h30m`, or `never`: then it waits for its node"
        raise refusal_error("bad_time", f"{text[:80]!r} is not a duration of silence", hint, got=text[:80])
    return ms


def parse_memory_mb(text: str) -> int:
    """MiB in a size, rounded up. A bare number is MiB; `G` and `GiB` are binary, `GB` is decimal.

    Raises: StokerError `bad_size`.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise _bad_size(text)
    whole, fraction, letter, suffix = match[1], match[2] or "", match[3].lower(), (match[4] or "").lower()
    if suffix and not letter:
        raise _bad_size(text)
    base = 1000 if suffix == "b" else 1024
    unit: int = base ** ("kmgtp".index(letter) + 1) if letter else _BYTES_PER_MIB
    size_mb: int = -(-int(whole + fraction) * unit // (10 ** len(fraction) * _BYTES_PER_MIB))
    if size_mb > SIZE_MAX_MB:
        raise _bad_size(text)
    return size_mb


def _bad_size(text: str) -> StokerError:
    hint = "write MiB (`16000`) or a unit: `16GiB`, `16G` (the same), `16GB` (decimal), `512M`, `1.5T`"
    return refusal_error("bad_size", f"{text[:80]!r} is not a size of memory", hint, got=text[:80])


def parse_priority(value: str | int) -> int:
    """A priority as a whole number or one of the four words.

    Raises: StokerError `bad_priority`.
    """
    number = value if isinstance(value, int) else _priority_number(value.strip().lower())
    if number is None or abs(number) > PRIORITY_MAX:
        got, words = str(value)[:80], ", ".join(f"`{word}` ({number})" for word, number in PRIORITY_WORDS.items())
        hint = f"write a whole number, or one of {words}"
        raise refusal_error("bad_priority", f"{got!r} is not a priority", hint, got=got)
    return number


def _priority_number(word: str) -> int | None:
    if word.isascii() and _INTEGER.fullmatch(word):
        return int(word)
    return PRIORITY_WORDS.get(word)


def begin_text(text: str, now: datetime, zone: tzinfo) -> str:
    """Return the begin time to send for what a person typed.

    What counts from now is sent as it is, a wall clock's time with its zone.

    `now` has a zone; `zone` is that of the wall clock. Raises: StokerError `bad_begin`.
    """
    word = " ".join(text.lower().split())
    if _after_s(word) is not None:
        return word
    at = _wall_time(word, now.astimezone(zone).replace(tzinfo=None), zone)
    if at is None:
        raise _bad_begin(text, "is not a time to begin at")
    if at < now:
        at = at.replace(fold=1)  # an hour that comes twice, when summer time ends, is over only after the second
    if at < now:
        raise _bad_begin(text, f"is over: here it is {now.astimezone(zone):%Y-%m-%d %H:%M}")
    return at.isoformat()


def parse_begin(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of a time to begin at: ISO 8601, in UTC where it names no zone, or counted from `now`.

    Raises: StokerError `bad_begin`.
    """
    word = " ".join(text.lower().split())
    after_s = _after_s(word)
    if after_s is not None:
        return now_ms + after_s * SECOND_MS
    at = _stamp(word)
    if at is None:
        raise _bad_begin(text, "is not a time to begin at", _SENT)
    return _ms_since_1970(at)


def _after_s(word: str) -> int | None:
    """Seconds in `now+2h`, 0 in `now`."""
    found = _FROM_NOW.fullmatch(word)
    if found is None:
        return None
    parts = [(int(count), _UNIT_S.get(unit)) for count, unit in _COUNTED.findall(found[1] or "")]
    if (found[1] and _COUNTED.sub("", found[1])) or any(unit is None for _, unit in parts):
        return None
    return sum(count * (unit or 0) for count, unit in parts)


def _wall_time(word: str, here: datetime, zone: tzinfo) -> datetime | None:
    """`here` is what the wall clock shows."""
    hour = _hour(word)
    if hour is not None:
        today = datetime.combine(here.date(), hour)
        return (today if today >= here else today + timedelta(days=1)).replace(tzinfo=zone)
    if found := _DAY_AND_HOUR.fullmatch(word):
        return _day_and_hour(found[1], found[2], here, zone)
    return None


def _day_and_hour(day: str, rest: str | None, here: datetime, zone: tzinfo) -> datetime | None:
    if day not in _DAY_WORDS:
        stamp = _stamp(day if rest is None else f"{day}T{_HOUR_WORDS.get(rest, rest)}")
        return stamp and (stamp if stamp.tzinfo else stamp.replace(tzinfo=zone))
    hour = time(0) if rest is None else _hour(rest)
    # `today` alone has no hour that isn't over but this one.
    if hour is None or (rest is None and day == "today"):
        return None
    date = here.date() + timedelta(days=_DAY_WORDS[day])
    return datetime.combine(date, hour, tzinfo=zone)


def _hour(word: str) -> time | None:
    if word in _HOUR_WORDS:
        return _HOUR_WORDS[word]
    found = _HOUR.fullmatch(word)
    if found is None:
        return None
    hour, minute, second = (int(part or 0) for part in found.groups())
    return time(hour, minute, second) if hour < 24 and minute < 60 and second < 60 else None


def _stamp(word: str) -> datetime | None:
    try:
        return datetime.fromisoformat(word.upper())
    except ValueError:
        return None


def _ms_since_1970(at: datetime) -> int:
    """A time without a zone is UTC."""
    return (at.replace(tzinfo=at.tzinfo or UTC) - _EPOCH) // timedelta(milliseconds=1)


_TYPED: Final = "`16:00`, `noon`, `midnight`, `tomorrow`, `tomorrow 10:00`, "
_SENT: Final = ""


def _bad_begin(text: str, why: str, words: str = _TYPED) -> StokerError:
    return refusal_error(
        "bad_begin",
        f"{text[:80]!r} {why}",
        f"write {words}`2026-12-01`, `2026-12-01T10:00`, `2026-12-01T10:00+01:00`, or count from now: `now+2h`, "
        "`now+30minutes`",
        got=text[:80],
    )


def timestamp_text(text: str, zone: tzinfo) -> str:
    """Return the time to send for what a person typed, a wall clock's time with its zone (T6).

    Raises: StokerError `bad_moment`.
    """
    word = text.strip()
    if _is_counted(word):
        return word
    at = _past(text)
    return (at if at.tzinfo else at.replace(tzinfo=zone)).isoformat()


def parse_timestamp(text: str, now_ms: int) -> int:
    """Milliseconds since 1970, at least 1. Raises: StokerError `bad_moment`."""
    word = text.strip().lower()
    if word == "now":
        return now_ms
    if _is_counted(word):
        try:
            return max(1, now_ms - parse_duration(word))
        except StokerError as fault:
            raise _bad_timestamp(text) from fault
    return max(1, _ms_since_1970(_past(text)))


def _is_counted(word: str) -> bool:
    return word.lower() == "now" or _AGO.fullmatch(word.lower()) is not None


def _past(text: str) -> datetime:
    at = _stamp(text.strip())
    if at is None:
        raise _bad_timestamp(text)
    return at


def _bad_timestamp(text: str) -> StokerError:
    hint = "write `now`, how long ago (`7d`, `36h`), a date (`2026-12-01`) or a time (`2026-12-01T10:00`)"
    return refusal_error("bad_moment", f"{text[:80]!r} is not a moment", hint, got=text[:80])


def parse_signal(value: str | int) -> int:
    """The number of `USR1`, `SIGUSR1`, `usr1`, `RTMIN+3` or `10`.

    Raises: StokerError `bad_signal`.
    """
    number = value if isinstance(value, int) else _signal_number(value.strip().upper())
    if number is None or not 1 <= number <= SIGNAL_MAX:
        shown = str(value)[:40]
        hint = f"write a name such as USR1, SIGTERM or RTMIN+3, or a number from 1 to {SIGNAL_MAX}"
        raise refusal_error("bad_signal", f"{shown!r} is not a signal", hint, got=shown)
    return number


def parse_warning(text: str) -> WarnSignal | None:
    """The signal and its lead in `USR1@90`, `@2m` or `TERM`; None = `none`, that there is no warning (T8).

    Raises: StokerError `bad_signal`.
    """
    name, at, lead = (part.strip() for part in text.partition("@"))
    if text.strip().lower() in ("none", ""):
        return None
    number = parse_signal(name) if name else _USR1
    if number in _UNCATCHABLE:
        message = f"{_UNCATCHABLE[number]} can't be caught by any program, so it warns nobody"
        raise refusal_error("bad_signal", message, "write one that the job knows, such as `USR1@90`", got=text[:40])
    bare = lead.isascii() and lead.isdigit() and len(lead) <= _LEAD_DIGITS_MAX
    lead_ms = int(lead) * SECOND_MS if bare else _duration_ms(lead.lower()) if at else _LEAD_MS
    if lead_ms is None or not 0 < lead_ms <= DURATION_MAX_MS:
        message = f"{lead[:40]!r} is not how long before the end a signal can be sent"
        hint = f"write seconds above 0 or a unit: `{name or 'USR1'}@90`, `{name or 'USR1'}@2m`"
        raise refusal_error("bad_signal", message, hint, got=text[:40])
    return WarnSignal(number, lead_ms)


def warning_text(warning: WarnSignal | None) -> str:
    """Return a warning as people write it, `USR1@90`; empty = there is none."""
    if warning is None:
        return ""
    known = 1 <= warning.signal <= len(_SIGNALS)
    return f"{_SIGNALS[warning.signal - 1] if known else warning.signal}@{warning.lead_ms // SECOND_MS}"


def parse_checkpoint(text: str) -> int:
    """Milliseconds between two checkpoints; 0 = it keeps none (`none`, `never`).

    `0` might mean that or all the time, and is refused.

    Raises: StokerError `bad_time`.
    """
    word = text.strip().lower()
    is_never = word in ("none", "never")
    ms = 0 if is_never else _duration_ms(word)
    if ms is None or not (is_never or 0 < ms <= DURATION_MAX_MS):
        hint = "write minutes (`10`), units such as `90s`, `10m`, `1h30m`, or `none` if it writes no checkpoint"
        raise refusal_error(
            "bad_time", f"{text[:80]!r} is not how often a job can write a checkpoint", hint, got=text[:80]
        )
    return ms


def _signal_number(word: str) -> int | None:
    if word.isascii() and word.isdigit():
        return int(word[:9])
    name = word.removeprefix("SIG")
    for sign in "+-":
        base, found, offset = name.partition(sign)
        if found and base == ("RTMIN" if sign == "+" else "RTMAX") and offset.isascii() and offset.isdigit():
            number = _RT_MIN + int(offset[:9]) if sign == "+" else _RT_MAX - int(offset[:9])
            return number if _RT_MIN <= number <= _RT_MAX else None
    return _SIGNAL_NUMBERS.get(name)
