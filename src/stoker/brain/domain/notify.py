"""Notifications of a job: what somebody wants to be told of it, at which targets, and what was told.

A target is a text: `mail:ada@example.org`, `webhook:NAME` of the control plane's settings, `https://...`, or
`slack:https://...` in the shape that Slack reads. Whether a control plane may call it is for its operator to say.

Rules: N1  each event is told to each target at most once in the life of a job; once more only when a person has
           returned the ended job to the queue
       N2  an array is told of as one: `fail` when its first member failed, `start` when its first member started
       N3  where `fail` is wanted too, the end of a single job that failed is told as `fail` alone
       N4  a try is durable before it is made. What was tried, and of which nobody knows how it went, is never tried
           again; what surely failed is, after pauses that grow, at most TRIES_MAX times
       N5  `wait` is told of a job that hasn't started so long after its submit, or after its time to begin; not while
           a person holds it
"""

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.brain.domain.lifecycle import FAILED, JobState
from stoker.brain.domain.units import MINUTE_MS, NEVER, SECOND_MS, Instant, later

TARGETS_MAX: Final = 5
"""Of one job or tenant; more are refused."""
TARGET_BYTES_MAX: Final = 500
"""Of one target; a longer one is refused."""
ERROR_MAX: Final = 200
"""Characters of what a target answered that are kept; the rest is cut off."""
PAUSES_MS: Final = (30 * SECOND_MS, 2 * MINUTE_MS, 8 * MINUTE_MS, 20 * MINUTE_MS)
"""Between two tries: half an hour in all, as a server needs that is started anew."""
TRIES_MAX: Final = len(PAUSES_MS) + 1
"""Of one notification; then it is given up."""

_MAIL: Final = re.compile(r"[A-Za-z0-9._%+=/-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,253}[A-Za-z0-9])?", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,63}", re.ASCII)
_WORDS: Final = "`mail:ada@example.org`, `webhook:NAME`, `https://HOST/PATH` or `slack:https://HOST/PATH`"


class NotifyEvent(StrEnum):
    """Event of a job that somebody may want to be told of."""

    START = "start"
    END = "end"
    FAIL = "fail"
    WAIT = "wait"


class Notify(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The events that are told, and the targets they are told to. Without events nothing is told."""

    on: tuple[NotifyEvent, ...] = ()
    to: tuple[str, ...] = ()
    wait_ms: int = 0
    """How long it may wait before that is told."""


NOBODY: Final = Notify()
"""Nothing is told to anybody, whatever the tenant says."""


def filled(own: Notify | None, default: Notify | None) -> Notify | None:
    """Return what is told of a job, of which its tenant says `default`.

    Who names events alone means the tenant's targets; who names targets alone means the tenant's events, or the end.
    """
    if own is None or own == NOBODY:
        return default if own is None else own
    if not own.to and default is not None:
        return replace(own, to=default.to)
    if own.on:
        return own
    if default is None or not default.on:
        return replace(own, on=(NotifyEvent.END,))
    return replace(own, on=default.on, wait_ms=default.wait_ms)


class NoticeState(StrEnum):
    """State of one notification."""

    TRYING = "trying"
    """It was to be sent, and how that went isn't known yet."""
    RETRYING = "retrying"
    """The last try failed; another follows."""
    SENT = "sent"
    FAILED = "failed"
    """Given up: refused for good, or failed as often as it is tried."""
    UNKNOWN = "unknown"
    """It was sent, and nobody knows whether it arrived: never twice."""
    DROPPED = "dropped"
    """Too many waited to be sent."""


class Notice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Record of one event told to one target."""

    event: NotifyEvent
    to: str
    state: NoticeState
    at: Instant
    """Of the last try, or of how it ended."""
    tries: int = 1
    next_at: Instant = NEVER
    error: str = ""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Text of a notification of one event of a job. Nothing of its command and environment is in it."""

    id: str
    """The same for every try, so that a receiver can tell a repeat."""
    event: NotifyEvent
    text: str
    """One line for people."""
    hint: str
    """The command that tells more."""
    job_id: str
    name: str
    tenant: str
    user: str
    state: JobState
    exit_code: int | None
    at: str
    """ISO 8601 in UTC."""
    cluster_id: str


class DeliveryResult(NamedTuple):
    """Outcome of one try to tell a target something."""

    outcome: NoticeState
    """SENT, RETRYING (it surely failed, and may be tried again), FAILED (refused for good) or UNKNOWN."""
    error: str = ""


class Telling(NamedTuple):
    """An event of a job, and when it happened."""

    event: NotifyEvent
    at: Instant


class JobTimes(NamedTuple):
    """State and times of a job, which say which of its events have happened."""

    state: JobState
    submitted_at: Instant
    begin: Instant
    started_at: Instant
    ended_at: Instant
    is_array: bool = False
    member_failed: bool = False
    """Of an array: some member ended otherwise than well, and wasn't cancelled."""


def tellings(notify: Notify, job: JobTimes) -> Iterator[Telling]:
    """Yield the wanted events that have happened, or that fall due when nothing happens (N2, N3, N5)."""
    ended = job.ended_at != NEVER
    fails = NotifyEvent.FAIL in notify.on and (job.member_failed or job.state in FAILED)
    if NotifyEvent.START in notify.on and job.started_at != NEVER:
        yield Telling(NotifyEvent.START, job.started_at)
    if fails:
        yield Telling(NotifyEvent.FAIL, job.submitted_at if job.is_array else job.ended_at)
    if NotifyEvent.END in notify.on and ended and (job.is_array or not fails):
        yield Telling(NotifyEvent.END, job.ended_at)
    if NotifyEvent.WAIT in notify.on and job.state is JobState.PENDING and job.started_at == NEVER:
        yield Telling(NotifyEvent.WAIT, later(max(job.submitted_at, job.begin), notify.wait_ms))


def next_due(notify: Notify, notices: tuple[Notice, ...], job: JobTimes) -> tuple[Instant, NotifyEvent, str] | None:
    """Return what is to be told next: when, the event and the target; None = nothing is foreseen (N1, N4)."""
    known = {(notice.event, notice.to): notice for notice in notices}
    due: list[tuple[Instant, NotifyEvent, str]] = []
    for event, at in tellings(notify, job):
        for target in notify.to:
            notice = known.get((event, target))
            if notice is None:
                due.append((at, event, target))
            elif notice.state is NoticeState.RETRYING:
                due.append((notice.next_at, event, target))
    return min(due, key=lambda each: (each[0], _ORDER.index(each[1]), each[2]), default=None)


_ORDER: Final = tuple(NotifyEvent)


def parse_target(text: str) -> str:
    """Return the target that a text names, in the one form that is kept. Raises: StokerError `bad_notify`."""
    kind, colon, rest = text.partition(":")
    if len(text.encode(errors="replace")) > TARGET_BYTES_MAX:
        raise _bad(text, f"it is longer than {TARGET_BYTES_MAX} bytes", "use a shorter one")
    if kind == "mail":
        if not _MAIL.fullmatch(rest) or ".." in rest:
            raise _bad(text, "that is no mail address", "write one address, such as `mail:ada@example.org`")
        return text
    if kind == "webhook" or not colon:
        name = rest if colon else text
        if not _NAME.fullmatch(name):
            raise _bad(text, "that is no name of a webhook", f"write {_WORDS}")
        return f"webhook:{name}"
    url = rest if kind == "slack" else text
    fault = url_fault(url)
    if fault:
        raise _bad(text, fault, f"write {_WORDS}")
    return text


def url_fault(url: str) -> str:
    """Return what is wrong with the URL of a webhook; empty = nothing is."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "that is no URL"
    if parts.scheme not in ("http", "https") or not host or port == 0:
        return "that is no URL of a web server"
    if "@" in parts.netloc or parts.fragment or "\\" in url:
        return "its URL may have neither an account, nor a `#`, nor a backslash"
    if not url.isascii() or not url.isprintable() or " " in url:
        return "its URL has blanks or letters that must be written as %XX"
    return "" if ".." not in parts.path.split("/") else "its URL may not have `..` in it"


def unique_targets(targets: tuple[str, ...]) -> tuple[str, ...]:
    """Return each target once, in its one form. Raises: StokerError `bad_notify`."""
    found = tuple(dict.fromkeys(map(parse_target, targets)))
    if len(found) > TARGETS_MAX:
        message = f"{len(found)} targets are to be told; at most {TARGETS_MAX} may be"
        hint = "name a mailing list or one webhook that passes it on"
        raise StokerError(refuse("bad_notify", message, hint, targets=len(found), targets_max=TARGETS_MAX))
    return found


def target_kind(target: str) -> str:
    """Return the word before the colon of a target, which is no secret: `mail`, `webhook`, `slack` or `url`."""
    kind = target.partition(":")[0]
    return kind if kind in ("mail", "webhook", "slack") else "url"


def target_shown(target: str) -> str:
    """Return a target for people: of a URL only the machine, since who knows the rest may use it."""
    if target_kind(target) not in ("url", "slack"):
        return target
    url = target.removeprefix("slack:")
    return f"{target_kind(target)}:{urlsplit(url).netloc}"


def nobody_fault(notify: Notify) -> Refusal | None:
    """Return the refusal of events that are to be told to nobody."""
    if not notify.on or notify.to:
        return None
    message = f"it is to be told when it {_WHEN[notify.on[0]]}, and to nobody: no target is given"
    hint = f"add `--notify-to TARGET` ({_WORDS}), or let an admin give the tenant one: `stoker tenant set`"
    return refuse("bad_notify", message, hint)


_WHEN: Final = {
    NotifyEvent.START: "starts",
    NotifyEvent.END: "ends",
    NotifyEvent.FAIL: "fails",
    NotifyEvent.WAIT: "waits too long",
}


def _bad(text: str, why: str, hint: str) -> StokerError:
    return StokerError(refuse("bad_notify", f"{text[:80]!r} can't be told anything: {why}", hint, got=text[:80]))
