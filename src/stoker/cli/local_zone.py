"""Which time is it on the wall clock of whoever types, and in which zone?

The zone is the C library's, so that TZ and /etc/localtime mean here what they mean to `date`, summer time included.
"""

import time
from calendar import timegm
from datetime import datetime, timedelta, tzinfo


class LocalZone(tzinfo):
    """This machine's zone."""

    def utcoffset(self, at: datetime | None) -> timedelta:
        assert at is not None, "a zone with summer time has no offset of its own"
        seconds = time.mktime((at.year, at.month, at.day, at.hour, at.minute, at.second, 0, 0, -1))
        return timedelta(seconds=time.localtime(seconds).tm_gmtoff)

    def dst(self, at: datetime | None) -> None:
        return None

    def tzname(self, at: datetime | None) -> str:
        return "local time"

    def fromutc(self, at: datetime) -> datetime:
        local = time.localtime(timegm(at.timetuple()))
        return datetime(*local[:6], at.microsecond, tzinfo=self)


def now() -> datetime:
    return datetime.now(LocalZone())


def timestamp(text: str) -> str:
    """What to send for a moment that somebody looks back to. Raises: StokerError `bad_moment`."""

    from stoker.wire.timestamp import timestamp_text

    return timestamp_text(text, LocalZone())
