"""Admission of notifications: each is tried once a fact says so, and how it went is a fact too.

Rules: M1  a try is admitted only of what is due now (`brain/domain/notify.py`)
       M2  what failed is tried again after a pause, unless it was refused for good or tried as often as it may
       M3  how a try went is taken once: of one that was settled already nothing more is heard
"""

from stoker.brain.domain.notify import ERROR_MAX, PAUSES_MS, TRIES_MAX, Notice, NoticeState
from stoker.brain.domain.units import NEVER, Instant, later
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Answer, SettleNotification, TryNotification
from stoker.brain.state.events.job import NotificationSettled, NotificationTried
from stoker.brain.state.notices import due_of


def try_one(state: ClusterState, command: TryNotification, now: Instant) -> Answer:
    """Admit that the next notification of a job that is due is tried now (M1); nothing when none is."""
    job = state.jobs.get(command.job)
    due = due_of(job, state.indexes.arrays) if job else None
    if due is None or due[0] > now:
        return ()
    _, event, target = due
    if command.drop:
        return (NotificationSettled(job=command.job, event=event, to=target, state=NoticeState.DROPPED),)
    return (NotificationTried(job=command.job, event=event, to=target),)


def settle(state: ClusterState, command: SettleNotification, now: Instant) -> Answer:
    """Admit how a try went (M2, M3)."""
    job = state.jobs.get(command.job)
    notices = job.notices if job else ()
    tried = [notice for notice in notices if (notice.event, notice.to) == (command.event, command.to)]
    if not tried or tried[0].state is not NoticeState.TRYING:
        return ()
    outcome, next_at = _outcome(command, tried[0], now)
    return (
        NotificationSettled(
            job=command.job,
            event=command.event,
            to=command.to,
            state=outcome,
            error=command.error[:ERROR_MAX],
            next_at=next_at,
        ),
    )


def _outcome(command: SettleNotification, notice: Notice, now: Instant) -> tuple[NoticeState, Instant]:
    if command.outcome is not NoticeState.RETRYING:
        return command.outcome, NEVER
    if notice.tries >= TRIES_MAX:
        return NoticeState.FAILED, NEVER
    return NoticeState.RETRYING, later(now, PAUSES_MS[notice.tries - 1])
