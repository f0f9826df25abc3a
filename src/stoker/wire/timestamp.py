"""Parsing of times in the past that people type.

Rules: M1  `now`; a length of time that was so long ago, such as `7d`, `36h` or `1d12h`; a date, which is its first
           moment; or ISO 8601
       M2  a wall clock's time without a zone is that of whoever types it; sent without one it is UTC
       M3  what can't be read is refused, never taken for the beginning of time
"""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from stoker.brain.domain.errors import StokerError, refuse
from stoker.wire.text import parse_duration

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_AGO: Final = re.compile(r"[0-9]+[dhms][0-9dhms]*", re.ASCII)


def timestamp_text(text: str, zone: tzinfo) -> str:
    """Return the time to send for what a person typed, a wall clock's time with its zone (M2).

    Raises: StokerError `bad_moment`.
    """
    word = text.strip()
    if _is_counted(word):
        return word
    at = _stamp(text)
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
    at = _stamp(text)
    return max(1, (at.replace(tzinfo=at.tzinfo or UTC) - _EPOCH) // timedelta(milliseconds=1))


def _is_counted(word: str) -> bool:
    return word.lower() == "now" or _AGO.fullmatch(word.lower()) is not None


def _stamp(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip().upper())
    except ValueError as fault:
        raise _bad_timestamp(text) from fault


def _bad_timestamp(text: str) -> StokerError:
    return StokerError(
        refuse(
            "bad_moment",
            f"{text[:80]!r} is not a moment",
            "write `now`, how long ago (`7d`, `36h`), a date (`2026-12-01`) or a time (`2026-12-01T10:00`)",
            got=text[:80],
        )
    )
