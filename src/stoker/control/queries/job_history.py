"""History of one job: what happened to it from submit to end, and the operations of people on it.

What it went through is in its record; the operations are in the audit trail. Both are merged by time.

Rules: S1  an attempt after which the job waits again was followed by `requeued`; one after which somebody wanted the
           job once more, by `finished`
       S2  of a member also what was told to its whole array, or to it among others
       S3  the order is that of time; in one millisecond an order comes before what it made happen
       S4  what was refused, or changed nothing, is in the audit trail alone: who may do nothing to the job, however
           often, takes no place in its story
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from stoker.brain.domain.audit import OK, AuditRow
from stoker.brain.domain.ids import CONTROL
from stoker.brain.domain.job import Attempt, Job
from stoker.brain.domain.lifecycle import Outcome
from stoker.brain.domain.reason import describe
from stoker.brain.domain.units import NEVER, Instant
from stoker.wire.rest.audit import JobEventView, operation_view
from stoker.wire.rest.view import iso

TimedEvent = tuple[Instant, JobEventView]


def story_of(job: Job, rows: Sequence[AuditRow]) -> list[JobEventView]:
    """Return the events of a job in order of time, numbered from 1. `rows`: those about it, the oldest first."""
    told = [row for row in rows if row.action != "submit" and row.outcome == OK]  # S4
    happened = list(_attempts(job, told))
    if job.is_final:
        happened.append(_finished(job))
    # S3. Of what happened in a millisecond the last order of it that was carried out is the cause.
    cause = {row.at: place for place, row in enumerate(told, 1)}
    moments = [(job.submitted_at, 0, 0, _submitted(job))]
    moments += [(at, cause.get(at, 0), 1, view) for at, view in happened]
    moments += [(row.at, place, 0, operation_view(row)) for place, row in enumerate(told, 1)]
    moments.sort(key=lambda moment: moment[:3])  # stable
    return [view.numbered(number) for number, (*_, view) in enumerate(moments, 1)]


def _submitted(job: Job) -> JobEventView:
    return JobEventView(at=iso(job.submitted_at), event="submitted", by=job.by)


def _finished(job: Job) -> TimedEvent:
    said = describe(job.reason) if job.reason else ""
    at = iso(job.ended_at)
    return job.ended_at, JobEventView(
        at=at, event="finished", by=CONTROL, state=job.state, exit_code=job.exit_code, details=said
    )


def _attempts(job: Job, told: Sequence[AuditRow]) -> Iterator[TimedEvent]:
    for attempt, following in zip_longest(job.attempts, job.attempts[1:]):
        yield from _attempt(attempt)
        if attempt.outcome is None:
            continue
        if following is None and job.is_final and job.ended_at == attempt.ended_at:
            continue  # the job's own end is told once, with its state
        until = following.placed_at if following else None
        word = "finished" if _was_returned(attempt, until, told) else "requeued"
        yield attempt.ended_at, JobEventView(at=iso(attempt.ended_at), event=word, by=CONTROL, attempt=attempt.number)


def _was_returned(attempt: Attempt, until: Instant | None, told: Sequence[AuditRow]) -> bool:
    """Return whether the job ended with this attempt, and was wanted once more before `until` (S1)."""
    if attempt.outcome in (Outcome.REQUEUED, Outcome.PREEMPTED):
        return False
    wanted = (row.at for row in told if row.action == "requeue")
    return any(attempt.ended_at <= at and (until is None or at <= until) for at in wanted)


def _attempt(attempt: Attempt) -> Iterator[TimedEvent]:
    number = attempt.number
    placements = [task.placement for task in attempt.tasks]
    nodes = tuple(dict.fromkeys(placement.node for placement in placements))
    gpus = sum(len(placement.gpus) for placement in placements)
    placed = JobEventView(at=iso(attempt.placed_at), event="placed", by=CONTROL, attempt=number, nodes=nodes, gpus=gpus)
    yield attempt.placed_at, placed
    if attempt.started_at != NEVER:
        yield attempt.started_at, JobEventView(at=iso(attempt.started_at), event="started", by=CONTROL, attempt=number)
    if attempt.stop is not None:
        at, by, cause = attempt.stop.at, attempt.stop.by, attempt.stop.cause
        said = f"for job {attempt.stop.for_label}" if attempt.stop.for_job else ""
        yield at, JobEventView(at=iso(at), event="stopping", by=by, attempt=number, cause=cause, details=said)
    if attempt.outcome is not None:
        said = "; ".join(dict.fromkeys(task.end.error for task in attempt.tasks if task.end and task.end.error))
        yield (
            attempt.ended_at,
            JobEventView(
                at=iso(attempt.ended_at),
                event="ended",
                by=CONTROL,
                attempt=number,
                outcome=attempt.outcome,
                exit_code=attempt.exit_code,
                details=said,
            ),
        )
