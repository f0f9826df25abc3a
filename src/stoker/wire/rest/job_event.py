"""REST shapes of the history of one job."""

import msgspec

from stoker.brain.domain.audit import OK, AuditRow
from stoker.brain.domain.job import StopCause
from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.wire.rest.audit import AUDIT_DEFAULT, job_text
from stoker.wire.rest.decode import Count, Limit
from stoker.wire.rest.instant import iso


class JobEventsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query of a job's history. Newest last; `after` is the number of the last one seen."""

    limit: Limit = AUDIT_DEFAULT
    """At most 1000; a higher one is read as 1000."""
    after: Count = 0


class JobEventView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened to a job, or that somebody told it. What says nothing is left out."""

    number: int = 0
    """Its place in the story; 1 is first."""
    at: str
    event: str
    """`submitted`, `placed`, `started`, `stopping`, `ended`, `requeued`, `finished`, or what somebody told: `cancel`,
    `hold`, `release`, `requeue`, `signal`."""
    by: str
    attempt: int = 0
    code: str = ""
    """Of what somebody told: the code of the refusal, or `unchanged`."""
    nodes: tuple[str, ...] = ()
    """Where it was placed, a node once."""
    gpus: int = 0
    """How many GPUs it got."""
    cause: StopCause | None = None
    """Why it was stopped."""
    outcome: Outcome | None = None
    """Of the attempt that ended."""
    state: JobState | None = None
    """Final, of the job."""
    exit_code: int | None = None
    details: str = ""

    def numbered(self, number: int) -> "JobEventView":
        return msgspec.structs.replace(self, number=number)


class JobEventsView(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a job's history.

    `next` is the `after` of the next page, or null at the end. `partial` says that so many operations were recorded
    that the oldest were left out.
    """

    id: str
    events: list[JobEventView]
    total: int
    limit: int
    next: str | None
    partial: bool


def operation_view(row: AuditRow) -> JobEventView:
    """Return an operation on the job, carried out or refused, as an entry of its history."""
    about = f"to {job_text(row)}" if row.members else ""
    details = ", ".join(text for text in (about, row.details) if text)
    code = "" if row.outcome == OK else row.outcome
    return JobEventView(at=iso(row.at), event=row.action, by=row.by, code=code, details=details)
