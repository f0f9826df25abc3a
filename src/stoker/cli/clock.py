"""Clock, time zone and waits of the command line.

The one place of the command line that reads the machine's time. The clock adapter is not used: it brings an event loop,
which costs as much to import as `stoker list` takes to run. The zone is the C library's, so that TZ and /etc/localtime
mean here what they mean to `date`, summer time included.

Units: `_s` are seconds, `_ms` milliseconds.
"""

import time
from calendar import timegm
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any


def sleep_blocking(seconds: float) -> None:
    """Block for `seconds`; Ctrl-C raises KeyboardInterrupt."""
    time.sleep(seconds)


def now_ms() -> int:
    """Return the wall time in milliseconds since 1970, to measure spans for people."""
    return time.time_ns() // 1_000_000


def clock_text() -> str:
    """Return the time of day as HH:MM:SS, for people."""
    return time.strftime("%H:%M:%S")


def time_of_day(text: str) -> str:
    """Return an ISO 8601 time as the clock on the wall shows it, with the name of the zone: `14:20:05 CET`."""
    return time.strftime("%H:%M:%S %Z", time.localtime(datetime.fromisoformat(text).timestamp()))


def mono_s() -> float:
    """Return monotonic seconds, to bound a wait."""
    return time.monotonic()


def cpu_s() -> float:
    """Return the processor time of this process in seconds, to measure work while others use the machine."""
    return time.process_time()


def local_text(text: str | None) -> str | None:
    """Return an instant, as the server writes it, in the time zone of this machine, with the name of the zone."""
    if not text:
        return text
    local = time.localtime(datetime.fromisoformat(text).timestamp())
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", local)


class LocalZone(tzinfo):
    """Time zone of this machine."""

    def utcoffset(self, at: datetime | None) -> timedelta:
        assert at is not None, "a zone with summer time has no offset of its own"
        # As PEP 495 has it: a time that summer time skips is meant by the offset from before it.
        here = at.replace(tzinfo=None)
        try:
            return here - datetime.fromtimestamp(here.timestamp(), UTC).replace(tzinfo=None)
        except (ValueError, OverflowError):  # the first and last day of the calendar
            return timedelta()

    def dst(self, at: datetime | None) -> None:
        return None

    def tzname(self, at: datetime | None) -> str:
        return "local time"

    def fromutc(self, at: datetime) -> datetime:
        local = time.localtime(timegm(at.timetuple()))
        first = datetime(*local[:6], at.microsecond, tzinfo=self)
        return first if self.utcoffset(first) == timedelta(seconds=local.tm_gmtoff) else first.replace(fold=1)


def local_now() -> datetime:
    """Return the time of this moment in the zone of this machine."""
    return datetime.now(LocalZone())


def begin_here(text: str) -> str:
    """Return the begin time to send, read by the wall clock of the person who types it. Raises: StokerError."""
    from stoker.wire.text import begin_text

    return begin_text(text, local_now(), LocalZone())


def with_timestamps(given: Mapping[str, Any], *moments: str) -> dict[str, Any]:
    """Return the options that were given, and for a past moment, typed as `7d`, a date or a time, what to send.

    Raises: StokerError `bad_moment`.
    """
    asked = {name: value for name, value in given.items() if value}
    return asked | {name: _timestamp(asked[name]) for name in moments if name in asked}


def _timestamp(text: str) -> str:
    from stoker.wire.text import timestamp_text

    return timestamp_text(text, LocalZone())
