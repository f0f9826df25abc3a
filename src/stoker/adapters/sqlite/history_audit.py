"""SQL statements for the audit trail.

As those of the history: what SQLite and PostgreSQL both understand. Keys ascend with time, so a span of time is a span
of keys, which its two ends are looked up for.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from stoker.adapters.sqlite.history_statements import Row, Value
from stoker.brain.domain.array import JobRef
from stoker.brain.domain.audit import NUMBERS, OK, REFUSED, UNCHANGED, AuditQuery, AuditRow
from stoker.brain.domain.ids import JobId, Position, Principal, TenantName
from stoker.brain.domain.units import NEVER, Instant

_COLUMNS: Final = (
    *("id", "at_ms", "principal", "action", "outcome", "job", "last_job", "member", "members", "jobs"),
    *("tenant", "target", "details", "times"),
)
_KEY_MAX: Final = 2**63 - 1

PUT: Final = (
    f"INSERT INTO audit ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) "
    f"ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _COLUMNS[1:])}"
)
REWIND: Final = "DELETE FROM audit WHERE id >= ?"
COUNT: Final = "SELECT count(*) FROM audit"
COUNT_FACTLESS: Final = "SELECT count(*) FROM audit WHERE outcome <> 'ok'"
DROP_OLD: Final = "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at_ms < ? ORDER BY at_ms LIMIT ?)"
DROP_OLDEST_OF_JOBS: Final = "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE job > 0 ORDER BY id LIMIT ?)"
DROP_OLDEST: Final = "DELETE FROM audit WHERE id IN (SELECT id FROM audit ORDER BY id LIMIT ?)"
DROP_OLDEST_FACTLESS: Final = (
    "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE outcome <> 'ok' ORDER BY id LIMIT ?)"
)
_FIRST_AT: Final = f"coalesce((SELECT id FROM audit WHERE at_ms >= ? ORDER BY at_ms, id LIMIT 1), {_KEY_MAX})"
_SUBMITTED_WITH: Final = (
    "(id = (SELECT id FROM audit WHERE last_job > 0 AND job <= ? ORDER BY job DESC LIMIT 1) AND last_job >= ?)"
)
"""Of several jobs submitted together: their ranges don't meet, so only the last that begins before can have it."""


def values_of(row: AuditRow) -> Row:
    return (
        *(row.key, row.at, row.by, row.action, row.outcome, row.job, row.last_job, row.member, row.members),
        *(row.count, row.tenant, row.target, row.details, row.times),
    )


def row_of(values: Sequence[Any]) -> AuditRow:
    key, at, by, action, outcome, job, last_job, _, members, count, tenant, target, details, times = values
    return AuditRow(
        position=Position(key // NUMBERS),
        number=key % NUMBERS,
        at=Instant(at),
        by=Principal(by),
        action=action,
        outcome=outcome,
        job=JobId(job),
        last_job=JobId(last_job),
        members=members,
        count=count,
        tenant=TenantName(tenant),
        target=target,
        details=details,
        times=times,
    )


def rows_of(query: AuditQuery, below: int, most: int) -> tuple[str, list[Value]]:
    """The newest rows that match as `AuditQuery.matches` says; of one member also rows about some other ones."""
    tests, values = ["id < ?"], list[Value]((below or _KEY_MAX,))
    for test, more in _tests(query):
        tests.append(test)
        values.extend(more)
    columns = ", ".join(_COLUMNS)
    return f"SELECT {columns} FROM audit WHERE {' AND '.join(tests)} ORDER BY id DESC LIMIT ?", [*values, most]


def _tests(query: AuditQuery) -> Iterator[tuple[str, Sequence[Value]]]:
    if query.since != NEVER:
        yield f"id >= {_FIRST_AT}", (query.since,)
    if query.until != NEVER:
        yield f"id < {_FIRST_AT}", (query.until,)
    for column, wanted in (("principal", query.by), ("action", query.action), ("tenant", query.tenant)):
        if wanted:
            yield f"{column} = ?", (wanted,)
    if query.outcome == REFUSED:
        yield "outcome NOT IN (?, ?)", (OK, UNCHANGED)
    elif query.outcome:
        yield "outcome = ?", (query.outcome,)
    if query.job is not None:
        yield _about(query.job)


def _about(ref: JobRef) -> tuple[str, Sequence[Value]]:
    if ref.members is None:
        return f"((job = ? AND job > 0 AND last_job = 0) OR {_SUBMITTED_WITH})", (ref.job, ref.job, ref.job)
    index = ref.members[0][0]
    alone = "(job = ? AND job > 0 AND member IN (?, -1) AND last_job = 0)"
    return f"({alone} OR {_SUBMITTED_WITH})", (ref.job, index, ref.job, ref.job)
