"""How are instants, spans and reasons said in a cell?"""

from datetime import datetime
from typing import TYPE_CHECKING

from stoker.cli.safe_text import visible

if TYPE_CHECKING:
    from stoker.wire.rest.job import JobView, ReasonView


def instant_ms(text: str) -> int:
    """Milliseconds since 1970 of an instant as the server writes it."""
    return round(datetime.fromisoformat(text).timestamp() * 1_000)


def span_ms(start: str | None, end: str | None, now_ms: int) -> int | None:
    """From `start` to `end`, or to now while there is no end. None before the start."""
    if start is None:
        return None
    return max(0, (now_ms if end is None else instant_ms(end)) - instant_ms(start))


def duration(ms: int | None) -> str | None:
    """A span for people: `2h 5m`, `3.2s`, `40ms`."""
    if ms is None:
        return None
    from stoker.brain.domain.units import human_duration

    return human_duration(ms)


def reason_line(reason: "ReasonView | None") -> str | None:
    return None if reason is None else visible(reason.message)


def user_of(job: "JobView") -> str:
    """The account it runs as, else who submitted it."""
    return job.user or job.submitted_by.removeprefix("user:")


def waited(job: "JobView", now_ms: int) -> str | None:
    """From submit to its first start, or to its end if it never started."""
    return duration(span_ms(job.submitted_at, job.started_at or job.ended_at, now_ms))


def ran(job: "JobView", now_ms: int) -> str | None:
    """From its first start to its end."""
    return duration(span_ms(job.started_at, job.ended_at, now_ms))
