"""Times as they are written for the outside."""

from datetime import UTC, datetime

from stoker.brain.domain.units import NEVER, Instant


def iso(at: Instant) -> str:
    """ISO 8601 in UTC with milliseconds: `2026-11-28T02:37:13.042Z`."""
    return f"{datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec='milliseconds')[:-6]}Z"


def iso_or_none(at: Instant) -> str | None:
    """None for what hasn't happened."""
    return None if at == NEVER else iso(at)
