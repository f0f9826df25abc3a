"""SQL statements for the history of jobs and usage, and for the audit trail.

Only what SQLite and PostgreSQL both understand: `for_postgres` changes the mark for a parameter (`%s` for `?`) and the
names of tables, and of the schema's text two words. No statement is built from anything that came from outside: texts
are parameters.

Keys of the audit trail ascend with time, so a span of time is a span of keys, which its two ends are looked up for.
Where several control planes write, one that lags keys its refusals by an older position: so the span of keys is taken
LAG_MS wider, and the time asked for as well.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, assert_never

import msgspec

from stoker.brain.domain.array import JobRef, count_of
from stoker.brain.domain.audit import NUMBERS, OK, REFUSED, UNCHANGED, AuditQuery, AuditRow
from stoker.brain.domain.ids import JobId, Position
from stoker.brain.domain.job import Attempt, Job
from stoker.brain.domain.job_filter import JobFilter, is_pattern
from stoker.brain.domain.units import MINUTE_MS, NEVER, Instant
from stoker.brain.domain.usage import Holding, UsageBy, UsageQuery
from stoker.brain.domain.where import Operator, Requirement
from stoker.ports import HistoryBatch

Value = int | str | bytes | None
Row = tuple[Value, ...]
Test = tuple[str, Sequence[Value]]
"""A condition, and its parameters."""

STEPS: Final = Path(__file__).parent / "migrations"
VALUES_MAX: Final = 500
"""Values of one `IN (...)`; more are asked for in turns."""
LAG_MS: Final = 10 * MINUTE_MS
"""By how much a control plane may lag that keys refusals."""

MARK: Final = (
    "INSERT INTO mark (one, cluster_id, position) VALUES (1, ?, ?) "
    "ON CONFLICT (one) DO UPDATE SET cluster_id = excluded.cluster_id, position = excluded.position"
)
READ_MARK: Final = "SELECT cluster_id, position FROM mark"
RECORDS: Final = "SELECT record FROM job_record WHERE id IN ({values}) ORDER BY id DESC"
ARRAYS: Final = (
    "SELECT record FROM job JOIN job_record ON job_record.id = job.id "
    "WHERE job.unborn > 0 AND job.id < ? ORDER BY job.id DESC LIMIT ?"
)
OFFERS_WITHIN: Final = (
    "SELECT node, at_ms, gpus, position FROM capacity WHERE at_ms > ? AND at_ms < ? ORDER BY at_ms, node"
)
OFFERS_BEFORE: Final = (
    "SELECT newest.node, newest.at_ms, gpus, position FROM capacity JOIN "
    "(SELECT node, max(at_ms) AS at_ms FROM capacity WHERE at_ms <= ? GROUP BY node) AS newest "
    "ON capacity.node = newest.node AND capacity.at_ms = newest.at_ms ORDER BY newest.at_ms, newest.node"
)
REWIND_JOBS: Final = "DELETE FROM job WHERE position > ?"
REWIND: Final = tuple(f"DELETE FROM {table} WHERE position > ?" for table in ("attempt", "allocation", "capacity"))
REWIND_RECORDS: Final = "DELETE FROM job_record WHERE id NOT IN (SELECT id FROM job)"
COUNT_JOBS: Final = "SELECT count(*) FROM job"
COUNT_HOLDINGS: Final = "SELECT count(*) FROM allocation"
OLD_JOBS: Final = "SELECT id FROM job WHERE ended_ms < ? ORDER BY ended_ms, id LIMIT ?"
OLDEST_JOBS: Final = "SELECT id FROM job ORDER BY ended_ms, id LIMIT ?"
DROP_JOBS: Final = ("DELETE FROM job WHERE id IN ({values})", "DELETE FROM job_record WHERE id IN ({values})")
DROP_ATTEMPTS: Final = (
    "DELETE FROM attempt WHERE (job, number) IN "
    "(SELECT job, number FROM attempt WHERE ended_ms < ? ORDER BY ended_ms LIMIT ?)"
)
DROP_HOLDINGS: Final = (
    "DELETE FROM allocation WHERE (job, attempt, task_rank) IN "
    "(SELECT job, attempt, task_rank FROM allocation WHERE to_ms < ? ORDER BY to_ms LIMIT ?)"
)
DROP_OFFERS: Final = (
    "DELETE FROM capacity WHERE (node, at_ms) IN (SELECT old.node, old.at_ms FROM capacity AS old WHERE old.at_ms < ? "
    "AND EXISTS (SELECT 1 FROM capacity AS later "
    "WHERE later.node = old.node AND later.at_ms > old.at_ms AND later.at_ms <= ?) LIMIT ?)"
)
DROP_CLOSED: Final = (
    "DELETE FROM capacity WHERE at_ms < ? AND gpus = 0 AND NOT EXISTS "
    "(SELECT 1 FROM capacity AS other WHERE other.node = capacity.node AND other.at_ms < capacity.at_ms)"
)
COUNT_AUDIT: Final = "SELECT principal, count(*) FROM audit GROUP BY principal"
COUNT_FACTLESS: Final = "SELECT principal, count(*) FROM audit WHERE outcome <> 'ok' GROUP BY principal"
REWIND_AUDIT: Final = "DELETE FROM audit WHERE id >= ?"
DROP_OLD_AUDIT: Final = "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at_ms < ? ORDER BY at_ms LIMIT ?)"
_DROP_OLDEST: Final = (
    "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE principal = ?{test} ORDER BY id LIMIT ?)"
)
DROP_OLDEST_OF_JOBS: Final = _DROP_OLDEST.format(test=" AND job > 0")
DROP_OLDEST_AUDIT: Final = _DROP_OLDEST.format(test="")
DROP_OLDEST_FACTLESS: Final = _DROP_OLDEST.format(test=" AND outcome <> 'ok'")

_KEYS: Final = {
    None: "''",
    UsageBy.TENANT: "tenant",
    UsageBy.USER: "account",
    UsageBy.NODE: "node",
    UsageBy.JOB: "CAST(CASE WHEN array_id = 0 THEN job ELSE array_id END AS TEXT)",
}
_HAS: Final = "replace(labels, ?, '') <> labels"
_HELD_MS: Final = "(CASE WHEN to_ms < ? THEN to_ms ELSE ? END - CASE WHEN from_ms > ? THEN from_ms ELSE ? END)"
HELD: Final = (
    f"SELECT sum(gpus * gpu_share * {_HELD_MS}) / 1000 FROM allocation "
    "WHERE node = ? AND to_ms > ? AND from_ms < ? AND position <= ?"
)
_KEY_MAX: Final = 2**63 - 1
_FIRST_AT: Final = f"coalesce((SELECT id FROM audit WHERE at_ms >= ? ORDER BY at_ms, id LIMIT 1), {_KEY_MAX})"
_LAST_BEFORE: Final = "coalesce((SELECT id FROM audit WHERE at_ms < ? ORDER BY at_ms DESC, id DESC LIMIT 1), -1)"
_SUBMITTED_WITH: Final = (
    "(id = (SELECT id FROM audit WHERE last_job > 0 AND job <= ? ORDER BY job DESC LIMIT 1) AND last_job >= ?)"
)
"""Of several jobs submitted together: their ranges don't meet, so only the last that begins before can have it."""
_AUDIT_COLUMNS: Final = "id at_ms principal action outcome job last_job member members jobs tenant target details times"
_AUDIT_RENAMED: Final = {"id": "key", "at_ms": "at", "principal": "by", "jobs": "count"}
_AUDIT_FIELDS: Final = [_AUDIT_RENAMED.get(column, column) for column in _AUDIT_COLUMNS.split()]
"""Of an `AuditRow`, what stands in these columns."""
_audit_values: Final = attrgetter(*_AUDIT_FIELDS)
_record: Final = msgspec.json.Encoder()
_job: Final = msgspec.json.Decoder(Job)


TABLES: Final = {
    "job": (
        "id",
        "array_id is_array unborn state tenant account job_class name submitted_ms ended_ms position labels",
    ),
    "job_record": ("id", "record"),
    "attempt": ("job number", "outcome exit_code placed_ms started_ms ended_ms tasks gpus position"),
    "allocation": (
        "job attempt task_rank",
        "array_id tenant account node gpu_uuids gpus cpus from_ms to_ms position gpu_share",
    ),
    "capacity": ("node at_ms", "gpus position"),
    "audit": ("id", _AUDIT_COLUMNS.removeprefix("id ")),
}
"""Columns of the key, and the others, of each table but the mark."""


def columns_of(table: str) -> tuple[str, ...]:
    key, others = TABLES[table]
    return (*key.split(), *others.split())


def insert(table: str) -> str:
    """Return the statement that puts a row, unless there is one of its key."""
    columns = columns_of(table)
    marks, key = ", ".join("?" * len(columns)), ", ".join(TABLES[table][0].split())
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT ({key}) DO NOTHING"


def select_all(table: str) -> str:
    return f"SELECT {', '.join(columns_of(table))} FROM {table}"


def _upsert(table: str) -> str:
    """Return the statement that puts a row in place of the one of its key."""
    changes = ", ".join(f"{name} = excluded.{name}" for name in TABLES[table][1].split())
    return insert(table).removesuffix("NOTHING") + f"UPDATE SET {changes}"


_PUT_JOB: Final = _upsert("job")
_PUT_RECORD: Final = _upsert("job_record")
_PUT_ATTEMPT: Final = _upsert("attempt")
_PUT_HOLDING: Final = _upsert("allocation")
_PUT_OFFER: Final = _upsert("capacity")
PUT_AUDIT: Final = _upsert("audit")

_NAMED: Final = re.compile(rf"\b(FROM|INTO|JOIN) ({'|'.join((*TABLES, 'mark'))})\b( AS)?")
_OF_STEP: Final = (
    (re.compile(r"^PRAGMA .*$", re.MULTILINE), ""),
    (re.compile(r"\bINTEGER\b"), "bigint"),
    # Texts are compared as the brain does, byte by byte, whatever the database's language.
    (re.compile(r"\bTEXT\b"), 'text COLLATE "C"'),
    (re.compile(r"\bBLOB\b"), "bytea"),
    (re.compile(r"\b(CREATE TABLE|ALTER TABLE|CREATE INDEX|ON) (\w+)"), r"\1 stoker_history_\2"),
)


@lru_cache(maxsize=1_000)
def for_postgres(statement: str) -> str:
    """Return a statement as PostgreSQL takes it, where the tables have longer names."""
    named = _NAMED.sub(lambda found: f"{found[1]} stoker_history_{found[2]}{found[3] or f' AS {found[2]}'}", statement)
    return named.replace("?", "%s")


def step_for_postgres(step: str) -> str:
    """Return a step of the schema as PostgreSQL takes it."""
    for pattern, instead in _OF_STEP:
        step = pattern.sub(instead, step)
    return step


def upserts(batch: HistoryBatch) -> Iterator[tuple[str, list[Row]]]:
    """Yield the statement of each table, and a row per thing that a batch puts there."""
    jobs = batch.jobs
    ended = [(at, job.id, attempt) for at, job in jobs for attempt in job.attempts if attempt.outcome]
    yield _PUT_JOB, [_job_row(at, job) for at, job in jobs]
    yield _PUT_RECORD, [(job.id, _record.encode(job)) for _, job in jobs]
    yield _PUT_ATTEMPT, [_attempt_row(at, job, attempt) for at, job, attempt in (*batch.attempts, *ended)]
    yield _PUT_HOLDING, [_holding_row(holding) for holding in batch.holdings]
    yield _PUT_OFFER, [(offer.node, offer.at, offer.gpus, offer.position) for offer in batch.offers]
    yield PUT_AUDIT, audit_values(batch.audit)


def audit_values(rows: Iterable[AuditRow]) -> list[Row]:
    return [_audit_values(row) for row in rows]


def first_key_after(position: Position) -> int:
    return (position + 1) * NUMBERS


def _job_row(position: Position, job: Job) -> Row:
    spec = job.spec
    return (
        *(job.id, job.array_of, int(job.members is not None), unborn(job)),
        *(job.state.value, spec.tenant, job.account, spec.job_class.value, spec.name),
        *(job.submitted_at, job.ended_at, position, labels_text(spec.labels)),
    )


def labels_text(labels: Mapping[str, str]) -> str:
    """Return labels as one text with `,KEY=VALUE,` for each, since no letter of a label is a comma or `=`."""
    return f",{','.join(f'{key}={value}' for key, value in sorted(labels.items()))}," if labels else ""


def unborn(job: Job) -> int:
    """Members of an array that are no records."""
    members = job.members
    return count_of(members.lazy) + sum(count_of(gone.indexes) for gone in members.cancelled) if members else 0


def _attempt_row(position: Position, job: JobId, attempt: Attempt) -> Row:
    return (
        *(job, attempt.number, attempt.outcome.value if attempt.outcome else "", attempt.exit_code),
        *(attempt.placed_at, attempt.started_at, attempt.ended_at),
        *(len(attempt.tasks), sum(len(task.placement.gpus) for task in attempt.tasks), position),
    )


def _holding_row(holding: Holding) -> Row:
    return (
        *(holding.job, holding.attempt, holding.rank, holding.array, holding.tenant, holding.user, holding.node),
        *(",".join(holding.gpus), len(holding.gpus), holding.cpus, holding.since, holding.until, holding.position),
        holding.gpu_share,
    )


def decode_job(record: bytes) -> Job:
    """Raises: ValueError."""
    return _job.decode(record)


def within(sql: str, count: int) -> str:
    """A statement with `{values}`, for so many."""
    return sql.format(values=", ".join("?" * count))


def ids_of(wanted: JobFilter | None, below: JobId, most: int) -> tuple[str, list[Value]]:
    """The newest ids that match; the same as `JobFilter.matches` says."""
    return _newest("id", "job", [("id < ?", (below,)), *_job_tests(wanted)], most)


def _newest(columns: str, table: str, tests: Sequence[Test], most: int) -> tuple[str, list[Value]]:
    where = " AND ".join(test for test, _ in tests)
    values = [value for _, some in tests for value in some]
    return f"SELECT {columns} FROM {table} WHERE {where} ORDER BY id DESC LIMIT ?", [*values, most]


def _job_tests(wanted: JobFilter | None) -> Iterator[Test]:
    if wanted is None:
        return
    yield ("is_array = 0" if wanted.members else "array_id = 0"), ()
    if wanted.states:
        yield within("state IN ({values})", len(wanted.states)), [state.value for state in wanted.states]
    if wanted.tenant:
        yield "tenant = ?", (wanted.tenant,)
    if wanted.job_class:
        yield "job_class = ?", (wanted.job_class.value,)
    if wanted.user:
        yield "account = ?", (wanted.user,)
    if wanted.name:
        yield (
            ("name LIKE ? ESCAPE '!'", (_like(wanted.name),))
            if is_pattern(wanted.name)
            else ("name = ?", (wanted.name,))
        )
    for requirement in wanted.labels:
        yield _label_test(requirement)
    if wanted.array:
        yield "array_id = ?", (wanted.array,)
    if wanted.among is not None:
        # Both stores take more parameters than there may be tenants.
        yield within("tenant IN ({values})", len(wanted.among)) if wanted.among else "1 = 0", sorted(wanted.among)
    if wanted.until != NEVER:
        yield "submitted_ms < ?", (wanted.until,)
    if wanted.since != NEVER:
        yield "ended_ms >= ?", (wanted.since,)


def _like(name: str) -> str:
    """Return a pattern of names as LIKE has it."""
    literal = re.sub(r"[!%_]", r"!\g<0>", name)
    return literal.replace("*", "%").replace("?", "_")


def _label_test(requirement: Requirement) -> Test:
    """Return a condition on `labels_text`. Its letters are compared as they are, which LIKE of SQLite doesn't do."""
    key, values = requirement.key, requirement.values
    pairs = [f",{key}={value}," for value in values]
    any_pair = " OR ".join([_HAS] * len(pairs))
    match requirement.operator:
        case Operator.EXISTS:
            return _HAS, (f",{key}=",)
        case Operator.ABSENT:
            return f"NOT ({_HAS})", (f",{key}=",)
        case Operator.IN:
            return f"({any_pair})", pairs
        case Operator.NOT_IN:
            return f"NOT ({any_pair})", pairs
        case Operator.LIKE:
            raise AssertionError("no selector of labels has patterns")
    assert_never(requirement.operator)


def sums_of(query: UsageQuery, most: int, keys: Sequence[str] | None) -> tuple[str, list[Value]]:
    """Key, jobs, GPU-milliseconds and CPU-milliseconds; the largest first."""
    key, (where, values) = _KEYS[query.by], _charged(query)
    if keys is not None:
        where += within(f" AND {key} IN ({{values}})", len(keys))
        values.extend(keys)
    clip = _clip(query.since, query.until)
    per_job = (
        f"SELECT {key} AS charged, sum(gpus * gpu_share * {_HELD_MS}) AS gpu_micro_s, sum(cpus * {_HELD_MS}) AS cpu_ms "
        f"FROM allocation WHERE {where} GROUP BY charged, job"
    )
    sql = (
        f"SELECT charged, count(*), sum(gpu_micro_s) / 1000, sum(cpu_ms) FROM ({per_job}) AS per_job "
        "GROUP BY charged ORDER BY 3 DESC, 4 DESC, 1 LIMIT ?"
    )
    return sql, [*clip, *clip, *values, most]


def charged_of(query: UsageQuery, jobs: Sequence[JobId]) -> tuple[str, list[Value]]:
    where, values = _charged(query)
    among = within("job IN ({values})", len(jobs))
    sql = f"SELECT DISTINCT {_KEYS[query.by]} AS charged, job FROM allocation WHERE {where} AND {among}"
    return sql, [*values, *jobs]


def _clip(since: Instant, until: Instant) -> list[Value]:
    """The values of `_HELD_MS`."""
    return [until, until, since, since]


def held_within(node: str, since: Instant, until: Instant, through: Position) -> list[Value]:
    """The values of HELD."""
    return [*_clip(since, until), node, since, until, through]


def _charged(query: UsageQuery) -> tuple[str, list[Value]]:
    tests = ["to_ms > ?", "from_ms < ?", "position <= ?"]
    values: list[Value] = [query.since, query.until, query.through]
    for column, wanted in (("tenant", query.tenant), ("account", query.user)):
        if wanted:
            tests.append(f"{column} = ?")
            values.append(wanted)
    if query.among is not None:
        tests.append(within("tenant IN ({values})", len(query.among)) if query.among else "1 = 0")
        values.extend(sorted(query.among))
    return " AND ".join(tests), values


def audit_row(values: Sequence[Any]) -> AuditRow:
    """Return the row of the audit trail that was kept as these values."""
    fields = dict(zip(_AUDIT_FIELDS, values, strict=True))
    position, number = divmod(fields.pop("key"), NUMBERS)
    del fields["member"]
    return AuditRow(position=Position(position), number=number, **fields)


def audit_rows_of(query: AuditQuery, below: int, most: int) -> tuple[str, list[Value]]:
    """The newest rows that match as `AuditQuery.matches` says; of one member also rows about some other ones."""
    tests = [("id < ?", (below or _KEY_MAX,)), *_audit_tests(query)]
    return _newest(_AUDIT_COLUMNS.replace(" ", ", "), "audit", tests, most)


def _audit_tests(query: AuditQuery) -> Iterator[Test]:
    if query.since != NEVER:
        yield f"id > {_LAST_BEFORE} AND at_ms >= ?", (query.since - LAG_MS, query.since)
    if query.until != NEVER:
        yield f"id < {_FIRST_AT} AND at_ms < ?", (query.until + LAG_MS, query.until)
    for column, wanted in (("principal", query.by), ("action", query.action), ("tenant", query.tenant)):
        if wanted:
            yield f"{column} = ?", (wanted,)
    if query.outcome == REFUSED:
        yield "outcome NOT IN (?, ?)", (OK, UNCHANGED)
    elif query.outcome:
        yield "outcome = ?", (query.outcome,)
    if query.job is not None:
        yield _about(query.job)


def _about(ref: JobRef) -> Test:
    if ref.members is None:
        return f"((job = ? AND job > 0 AND last_job = 0) OR {_SUBMITTED_WITH})", (ref.job, ref.job, ref.job)
    index = ref.members[0][0]
    alone = "(job = ? AND job > 0 AND member IN (?, -1) AND last_job = 0)"
    return f"({alone} OR {_SUBMITTED_WITH})", (ref.job, index, ref.job, ref.job)
