"""Formatting of times, durations and reasons for table cells."""

import re
from datetime import datetime
from typing import TYPE_CHECKING, Final

from stoker.cli.display.safe_text import visible

if TYPE_CHECKING:
    from stoker.wire.rest.job import JobView, MembersView, ReasonView


def instant_ms(text: str) -> int:
    """Milliseconds since 1970 of an instant as the server writes it."""
    return round(datetime.fromisoformat(text).timestamp() * 1_000)


_INSTANT: Final = re.compile(r"\b\d{4}-\d\d-\d\d(?:T\d\d:\d\d:\d\d(?:\.\d+)?Z| \d\d:\d\d:\d\d UTC)")


def local_times(text: str) -> str:
    """Return the text with each instant in it, which servers write in UTC, in the zone of this machine."""
    return _INSTANT.sub(_as_local, text) if "UTC" in text or "Z" in text else text


def _as_local(found: "re.Match[str]") -> str:
    from stoker.cli.clock import local_text

    return local_text(found.group().replace(" UTC", "Z").replace(" ", "T")) or ""


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
    return None if reason is None else visible(local_times(reason.message))


def members_text(members: "MembersView") -> str:
    """Return the members of an array in words: `12 members, 3 running, 7 pending, 2 succeeded`."""
    states = ("running", "starting", "stopping", "pending", "held", "succeeded", "failed", "cancelled")
    counts = (f"{count} {state}" for state in states if (count := getattr(members, state)))
    return ", ".join([f"{members.total} member{'s' * (members.total != 1)}", *counts])


def note_line(job: "JobView") -> str | None:
    """Return the note of a list beside a job: progress of an array, and why a job waits or ended."""
    from stoker.brain.domain.reason import ReasonCode

    counts = members_text(job.members) if job.members else None
    counted = counts and job.reason is not None and job.reason.code is ReasonCode.MEMBERS_ENDED
    parts = (counts, None if counted else reason_line(job.reason))
    return "; ".join(filter(None, parts)) or None


def user_of(job: "JobView") -> str:
    """The account it runs as, else who submitted it."""
    return job.user or job.submitted_by.removeprefix("user:")


def _waits_ms(job: "JobView", now_ms: int) -> list[int]:
    """How long it waited before each of its starts, and how long it has waited now if it waits."""
    since: str | None = job.submitted_at
    waits: list[int | None] = []
    for attempt in job.attempts if len(job.attempts) > 1 or job.ended_at is None else ():
        waits.append(span_ms(since, attempt.started_at or attempt.ended_at, now_ms))
        since = attempt.ended_at
    if not waits:
        waits.append(span_ms(since, job.started_at or job.ended_at, now_ms))
    elif job.ended_at is None:  # it waits once more, unless its newest attempt is live
        waits.append(span_ms(since, None, now_ms))
    return [wait for wait in waits if wait is not None]


def waited(job: "JobView", now_ms: int) -> str | None:
    """From submit, or from the end of the attempt before, to its newest start, or to its end if it never started.

    So of a job that was preempted it is how long it waits to run on, as Slurm counts from the requeue.
    """
    return duration(_waits_ms(job, now_ms)[-1])


def waited_in_all(job: "JobView", now_ms: int) -> str | None:
    """The same, and where it waited several times the sum."""
    *before, newest = _waits_ms(job, now_ms)
    return f"{duration(newest)}, {duration(sum(before) + newest)} in all" if before else duration(newest)


def ran(job: "JobView", now_ms: int) -> str | None:
    """From its first start to its end; of a job that waits once more, to the end of its last attempt."""
    end = job.ended_at or (job.attempts[-1].ended_at if job.attempts else None)
    return duration(span_ms(job.started_at, end, now_ms))
