"""REST shapes of the audit trail and of the history of one job, and their queries."""

from collections.abc import Iterable

import msgspec

from stoker.brain.domain.audit import AuditRow
from stoker.brain.domain.job import StopCause
from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.wire.rest.decode import Count, Limit
from stoker.wire.rest.view import iso, view_of

AUDIT_DEFAULT = 100
AUDIT_MAX = 1000


class AuditListQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query of the audit trail. Newest first; `after` is the `next` of the page before."""

    since: str = ""
    """Only rows from this moment on: `now`, `7d` ago, a date or a time."""
    until: str = ""
    """Only rows before this moment."""
    by: str = ""
    """Only what this principal told: `user:anna`, `token:k3j5h7x2`, or `nobody` who showed no good token."""
    action: str = ""
    """Only this action: `submit`, `cancel`, `node_drain`."""
    outcome: str = ""
    """`ok`; `unchanged`: everything was so already; `refused`; or the code of a refusal."""
    tenant: str = ""
    """Only what concerned this tenant, or a job of it."""
    job: str = ""
    """Only what concerned this job, array or member."""
    limit: Limit = AUDIT_DEFAULT
    """At most 1000; a higher one is read as 1000."""
    after: str = ""


class AuditRowView(msgspec.Struct, frozen=True, kw_only=True):
    """One command, as it went: who told what, when, about what, and what came of it."""

    id: str
    at: str
    by: str
    """`user:NAME`, `token:ID` of a token without a user, `nobody` who showed no good token, `control` for us."""
    action: str
    outcome: str
    """`ok`; `unchanged`: everything was so already; or the code of the refusal."""
    job: str | None
    """A job, an array, members of one such as `7_[0-4]`; of several that were submitted together the first."""
    last_job: str | None
    """Of several that were submitted together the last."""
    count: int
    """How many jobs or members it was about."""
    tenant: str | None
    target: str | None
    """A node, partition, tenant or token."""
    details: str
    times: int
    """How often within its minute: the same that was refused, or changed nothing, is one row."""


class AuditListView(msgspec.Struct, frozen=True, kw_only=True):
    """One page. `next` is the `after` of the next page, of older rows, or null at the end."""

    rows: list[AuditRowView]
    limit: int
    next: str | None


def audit_view(rows: Iterable[AuditRow], limit: int, following: str | None) -> AuditListView:
    return AuditListView(rows=[row_view(row) for row in rows], limit=limit, next=following)


def row_view(row: AuditRow) -> AuditRowView:
    return view_of(
        AuditRowView,
        row,
        id=str(row.key),
        at=iso(row.at),
        job=job_text(row) or None,
        last_job=str(row.last_job) if row.last_job else None,
        tenant=row.tenant or None,
        target=row.target or None,
    )


def job_text(row: AuditRow) -> str:
    """As people write it. Members scattered too widely to be named are shown by the first and the last."""
    if not row.members:
        return str(row.job) if row.job else ""
    return f"{row.job}_{row.members}" if row.member >= 0 else f"{row.job}_[{row.members}]"


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
    """Return an operation on the job that was carried out as an entry of its history."""
    about = f"to {job_text(row)}" if row.members else ""
    details = ", ".join(text for text in (about, row.details) if text)
    return JobEventView(at=iso(row.at), event=row.action, by=row.by, details=details)
