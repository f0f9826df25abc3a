"""REST shapes of notifications, and the words by which people say what they want to be told.

Rules: F1  events are `start`, `end`, `fail` and `wait>1h`, with any duration; `none` alone = nothing is told
       F2  of a target that is a URL answers show the machine only: who knows the rest may call it
"""

from typing import Final

import msgspec

from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.notify import (
    NOBODY,
    Message,
    Notice,
    NoticeState,
    Notify,
    NotifyEvent,
    target_shown,
    unique_targets,
)
from stoker.brain.domain.suggestion import did_you_mean
from stoker.brain.domain.units import NEVER, SECOND_MS, Instant, human_duration
from stoker.wire.rest.view import iso
from stoker.wire.text import parse_duration

NONE: Final = "none"
_WAIT: Final = "wait>"
LINE_MAX: Final = 400
"""Letters of a line that is told; the rest is cut off."""
_EVENTS: Final = (NotifyEvent.START, NotifyEvent.END, NotifyEvent.FAIL)


class NoticeView(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a job, told to one target. Of a URL `to` is the machine."""

    event: NotifyEvent
    to: str
    state: NoticeState
    at: str
    """Of the last try."""
    tries: int
    next_at: str | None
    """When it is tried once more."""
    error: str


def notice_view(notice: Notice) -> NoticeView:
    return NoticeView(
        event=notice.event,
        to=target_shown(notice.to),
        state=notice.state,
        at=iso(notice.at),
        tries=notice.tries,
        next_at=iso(notice.next_at) if notice.state is NoticeState.RETRYING else None,
        error=notice.error,
    )


def notify_of(on: list[str], to: list[str]) -> Notify:
    """Return what is wanted by these events and targets, either of which may be left out.

    Raises: StokerError `bad_notify` or `bad_time`.
    """
    targets = unique_targets(tuple(to))
    words = list(dict.fromkeys(word.replace(" ", "").lower() for word in on))
    if NONE in words:
        if len(words) > 1 or targets:
            raise _bad(NONE, "it says that nothing is told, and something else is given", "leave one of them out")
        return NOBODY
    events: dict[NotifyEvent, None] = {}
    waits = [word for word in words if word.startswith("wait")]
    if len(waits) > 1:
        raise _bad(waits[1], f"so is {waits[0]}", "give one time to wait")
    for word in words:
        events[NotifyEvent.WAIT if word in waits else _event(word)] = None
    return Notify(on=tuple(sorted(events)), to=targets, wait_ms=_wait_ms(waits[0]) if waits else 0)


def _event(word: str) -> NotifyEvent:
    try:
        return NotifyEvent(word)
    except ValueError:
        known = ", ".join(_EVENTS)
        raise _bad(word, f"there is {known} and wait>1h", did_you_mean(word, [*_EVENTS], "")) from None


def _wait_ms(word: str) -> int:
    if not word.startswith(_WAIT) or not word[len(_WAIT) :]:
        raise _bad(word, "it must say for how long", "write wait>1h to be told once it has waited an hour")
    return parse_duration(word[len(_WAIT) :])


def _bad(word: str, why: str, hint: str) -> StokerError:
    return refusal_error("bad_notify", f"{word[:80]!r} is no event to be told of: {why}", hint, got=word[:80])


def events_text(notify: Notify | None) -> list[str]:
    """Return the events as people type them; empty = nobody has said."""
    if notify is None:
        return []
    if notify == NOBODY:
        return [NONE]
    wait = f"{_WAIT}{human_duration(notify.wait_ms).replace(' ', '')}"
    return [wait if event is NotifyEvent.WAIT else event.value for event in notify.on]


def targets_text(notify: Notify | None) -> list[str]:
    """Return the targets as they are shown (F2)."""
    return [target_shown(target) for target in notify.to] if notify is not None else []


def message_of(job: Job, event: NotifyEvent, state: JobState, now: Instant, said: str, rank: str = "") -> Message:
    """Return what is told of an event. `state` is the one people are shown; `said` tells why it waits or ended.

    `rank`: of the task that ended a gang.
    """
    label = job.label
    name = one_line(job.spec.name)
    failed_member = job.members is not None and event is NotifyEvent.FAIL
    what = f"{'array' if job.members is not None else 'job'} {label} {name}"
    hint = f"stoker why {label}" if event is NotifyEvent.WAIT else f"stoker status {label}"
    if event is NotifyEvent.FAIL and not failed_member and job.started_at != NEVER:
        hint = f"stoker logs {label}{f'.{rank}' if rank else ''}"
    return Message(
        id=f"{job.uid}:{event}:{job.newest_attempt}",
        event=event,
        text=one_line(f"{what} {_happened(job, event, state, now)}{f': {said}' if said else ''}"),
        hint=hint,
        job_id=label,
        name=name,
        tenant=job.spec.tenant,
        user=job.account,
        state=state,
        exit_code=job.exit_code,
        at=iso(now),
        cluster_id="",
    )


def _happened(job: Job, event: NotifyEvent, state: JobState, now: Instant) -> str:
    if event is NotifyEvent.WAIT:
        return f"has waited for {_span(job.submitted_at, now)}"
    if event is NotifyEvent.START:
        return f"started after {_span(job.submitted_at, job.started_at)} of waiting"
    if event is NotifyEvent.FAIL and job.members is not None and not job.is_final:
        return "has a failed member"
    ran = f" after {_span(job.started_at, job.ended_at)}" if job.started_at != NEVER else " before it started"
    return f"{_ENDS.get(state, state.value)}{ran}"


_ENDS: Final = {
    JobState.SUCCEEDED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
    JobState.TIMEOUT: "reached its time limit",
    JobState.OUT_OF_MEMORY: "ran out of memory",
    JobState.NODE_FAILED: "lost its node",
}


def _span(since: Instant, until: Instant) -> str:
    span_ms = max(0, until - since)
    return human_duration(span_ms if span_ms < SECOND_MS else span_ms // SECOND_MS * SECOND_MS)


def one_line(text: str) -> str:
    """Return a text as one line that any target can take, cut at LINE_MAX letters."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return plain if len(plain) <= LINE_MAX else f"{plain[: LINE_MAX - 3]}..."
