"""Rows of the audit trail: one for each command, with its principal, its time and its outcome.

Rules: T1  a command leaves one row: under the position of its last fact where it left any, else under the position
           that the log had, numbered
       T2  a row names the principal, the time, the subject and the outcome; never what a job runs, its environment,
           or anything of a token but its id
       T3  rows ascend by key as they do by time
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from stoker.brain.domain.array import JobRef, Spans, contains, parse_spans, spans_text
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import JobId, Position, Principal, TenantName
from stoker.brain.domain.tenant import NO_TENANT
from stoker.brain.domain.units import NEVER, Instant

OK: Final = "ok"
UNCHANGED: Final = "unchanged"
"""Accepted, and everything was so already."""
REFUSED: Final = "refused"
"""In a query: any code of a refusal."""
NOBODY: Final = Principal("nobody")
"""The principal of a caller without a valid token."""
NUMBERS: Final = 1 << 24
"""Commands without an event that can be told apart under one position of the log."""
SLOTS: Final = 64
"""Control planes among whom those numbers are divided where they write one trail."""
MEMBERS_TEXT_MAX: Final = 400
"""Of members that need a longer text only the first and the last are kept: a query about one member reads every such
text."""
ABOUT: Final = "~"
"""Before members of which only the first and the last are known."""


class AuditRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The record of one command and its outcome."""

    position: Position
    number: int = 0
    """0 = the command left events."""
    at: Instant
    by: Principal
    action: str
    outcome: str = OK
    """`ok`, `unchanged`, or the code of the refusal."""
    job: JobId = JobId(0)
    """The job it is about, or the first of those submitted; of members their array. 0 = none."""
    last_job: JobId = JobId(0)
    """Of several that were submitted together the last; else 0."""
    members: str = ""
    """Which of an array, such as `3` or `0-4,9`. Empty = it is about the whole of the array, or about no array."""
    count: int = 0
    """How many jobs or members it is about."""
    tenant: TenantName = NO_TENANT
    target: str = ""
    """A node, partition, tenant or token."""
    details: str = ""
    times: int = 1
    """How often within its minute, for what is only counted."""

    @property
    def key(self) -> int:
        """The sort key of rows (T3)."""
        return self.position * NUMBERS + self.number

    @property
    def refused(self) -> bool:
        """Whether the command was refused."""
        return self.outcome not in (OK, UNCHANGED)

    @property
    def member(self) -> int:
        """The index of the one member it is about; -1 = of several, or of none."""
        return int(self.members) if self.members.isdigit() else -1

    def is_about(self, ref: JobRef) -> bool:
        """Return whether the row is about this job, this member, or any member of this array."""
        if self.last_job:
            return self.job <= ref.job <= self.last_job
        if self.job != ref.job:
            return False
        if ref.members is None or not self.members:
            return True
        return contains(members_of(self.members), ref.members[0][0])


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of audit rows; empty texts match all."""

    since: Instant = NEVER
    until: Instant = NEVER
    """Only rows before it; NEVER = no end."""
    by: str = ""
    action: str = ""
    outcome: str = ""
    """`ok`, `unchanged`, `refused` (whatever the code) or a code."""
    tenant: str = ""
    job: JobRef | None = None
    """A job, an array, or one member."""

    def matches(self, row: AuditRow) -> bool:
        """Return whether the row passes the filter."""
        return (
            row.at >= self.since
            and (self.until == NEVER or row.at < self.until)
            and (not self.by or row.by == self.by)
            and (not self.action or row.action == self.action)
            and (not self.outcome or row.outcome == self.outcome or (self.outcome == REFUSED and row.refused))
            and (not self.tenant or row.tenant == self.tenant)
            and (self.job is None or row.is_about(self.job))
        )


class AuditTrim(NamedTuple):
    """Rows that a trim of the audit trail has dropped."""

    rows: int
    beyond: Mapping[Principal, int]
    """Of each principal how many of them for the bound, and not for their age."""


def surplus_of(rows: Mapping[Principal, int], most: int) -> dict[Principal, int]:
    """Return how many rows of each principal go so that `most` stay in all.

    Those go of whoever has the most: all who lose any keep equally many, and nobody who has fewer loses one.
    """
    left, among = most, len(rows)
    for count in sorted(rows.values()):
        if count * among > left:
            break
        left, among = left - count, among - 1
    if not among:
        return {}
    level, spare = divmod(left, among)
    losers = sorted(by for by, count in rows.items() if count > level)
    kept = {by: level + (place < spare) for place, by in enumerate(losers)}
    return {by: rows[by] - kept[by] for by in losers if rows[by] > kept[by]}


def members_text(spans: Spans) -> str:
    """Return members as the text that a row keeps, at most MEMBERS_TEXT_MAX characters."""
    text = spans_text(spans)
    if len(text) <= MEMBERS_TEXT_MAX:
        return text
    return f"{ABOUT}{spans[0][0]}-{spans[-1][1]}"


def members_of(text: str) -> Spans:
    """Return the members that a row's text names; the inverse of `members_text`."""
    try:
        return parse_spans(text.removeprefix(ABOUT), text)
    except StokerError as fault:
        raise AssertionError(f"{text[:80]!r} was written by `members_text`") from fault
