"""History of jobs, usage and audit in SQL tables, for asyncio callers: what both stores of it do alike.

One thread writes and another reads, each on a connection of its own that no other part of the process uses, so that
neither the event log nor the event loop ever waits for the history.

Rules: H1 to H5 of the port, and
       K2  rows are removed in transactions of TRIM_ROWS rows per table, between which batches get through
       K4  rows of the audit trail are read and looked into by the reading thread
Limits: of holdings at most HOLDINGS_PER_JOB times as many rows as of jobs, the oldest go first; offers go with age.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

from stoker.adapters.history_sql import statements as sql
from stoker.brain.domain.audit import AuditQuery, AuditRow, AuditTrim, surplus_of
from stoker.brain.domain.ids import JobId, NodeName, Position, Principal
from stoker.brain.domain.job import Job
from stoker.brain.domain.job_filter import JobFilter
from stoker.brain.domain.units import Instant
from stoker.brain.domain.usage import CapacityChange, NodeInterval, UsageQuery, UsageSum
from stoker.ports import HistoryBatch, HistoryCopy, HistoryFailed, HistoryMark

HISTORY_NAME: Final = "history.db"
TRIM_ROWS: Final = 500
"""Of each table: about ten milliseconds, so that a batch behind one slice waits no longer."""
HOLDINGS_PER_JOB: Final = 4
LOOKED_AT_MAX: Final = 50_000
"""Rows about members of one array among which those about one member are looked for, the newest first."""
FACTLESS_SHARE: Final = 4
"""One row in so many may be of a command that left no fact."""

Answer = TypeVar("Answer")
Item = TypeVar("Item")


class StatementResult(Protocol):
    """Rows that a statement found, and how many it changed."""

    @property
    def rowcount(self) -> int: ...
    def fetchall(self) -> list[Any]: ...


class Transaction(Protocol):
    """A connection within a transaction."""

    def execute(self, statement: str, values: Sequence[sql.Value] = ..., /) -> StatementResult: ...
    def executemany(self, statement: str, rows: Iterable[Sequence[sql.Value]], /) -> object: ...


class RecordUnreadable(Exception):
    """A job's record in the history isn't one."""


class SqlHistory(ABC):
    """The `History` port but for its connections, which each store brings."""

    shared = False
    writer_slot = 0
    way_out = ""
    faults: tuple[type[Exception], ...] = ()
    """What the world may cause while a connection is used."""

    def __init__(self, no_copy: str) -> None:
        """`no_copy`: what is said, before the reason, when a copy fails."""
        self._no_copy = no_copy
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="stoker-history")
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="stoker-history-read")
        self._copying = ThreadPoolExecutor(1, thread_name_prefix="stoker-history-copy")
        self._closed = False

    # -- what each store brings ------------------------------------------------------------------------------------

    @abstractmethod
    def _open_writer(self) -> HistoryMark: ...

    @abstractmethod
    def _open_reader(self) -> None: ...

    @abstractmethod
    def _close_writer(self) -> None: ...

    @abstractmethod
    def _close_reader(self) -> None: ...

    @abstractmethod
    def _changing(self) -> AbstractContextManager[Transaction]:
        """One transaction on the writer's connection."""

    @abstractmethod
    def _selected(self, statement: str, values: Sequence[sql.Value]) -> list[tuple[Any, ...]]:
        """On the reader's connection."""

    @abstractmethod
    def _taken(self) -> HistoryCopy: ...

    @abstractmethod
    def _as_failed(self, fault: Exception) -> HistoryFailed:
        """Return what the caller is told instead of one of `faults`."""

    # -- the port --------------------------------------------------------------------------------------------------

    async def open(self) -> HistoryMark:
        mark = await self._in(self._writing, self._open_writer)
        await self._in(self._reading, self._open_reader)
        return mark

    async def mark(self) -> HistoryMark:
        return await self._in(self._reading, self._mark)

    async def record(self, batch: HistoryBatch) -> None:
        await self._in(self._writing, self._record, batch)

    async def add(self, rows: Sequence[AuditRow]) -> None:
        await self._in(self._writing, self._add, rows)

    async def adopt(self, mark: HistoryMark) -> HistoryMark | None:
        return None

    async def rewind(self, mark: HistoryMark) -> HistoryMark:
        return await self._in(self._writing, self._rewind, mark)

    async def ids(self, wanted: JobFilter | None, below: JobId, most: int) -> list[JobId]:
        rows = await self._ask(*sql.ids_of(wanted, below, most))
        return [JobId(job) for (job,) in rows]

    async def jobs(self, ids: Sequence[JobId]) -> list[Job]:
        newest_first = sorted(dict.fromkeys(ids), reverse=True)
        found: list[Job] = []
        for some in slices(newest_first, sql.VALUES_MAX):
            found += await self._in(self._reading, self._decoded, sql.within(sql.RECORDS, len(some)), some)
        return found

    async def arrays(self, below: JobId, most: int) -> list[Job]:
        return await self._in(self._reading, self._decoded, sql.ARRAYS, (below, most))

    async def usage(self, query: UsageQuery, most: int, keys: Sequence[str] | None = None) -> list[UsageSum]:
        turns = [None] if keys is None else list(slices(keys, sql.VALUES_MAX))
        rows = [row for some in turns for row in await self._ask(*sql.sums_of(query, most, some))]
        return [UsageSum(key=key, jobs=jobs, gpu_ms=int(gpu), cpu_ms=int(cpu)) for key, jobs, gpu, cpu in rows]

    async def charged(self, query: UsageQuery, jobs: Sequence[JobId]) -> list[tuple[str, JobId]]:
        found = [row for some in slices(jobs, sql.VALUES_MAX) for row in await self._ask(*sql.charged_of(query, some))]
        return [(key, JobId(job)) for key, job in found]

    async def offers(self, since: Instant, until: Instant) -> list[CapacityChange]:
        rows = await self._ask(sql.OFFERS_BEFORE, (since,))
        rows += await self._ask(sql.OFFERS_WITHIN, (since, until))
        return [
            CapacityChange(node=NodeName(node), at=at, gpus=gpus, position=position)
            for node, at, gpus, position in rows
        ]

    async def held(self, spans: Sequence[NodeInterval], through: Position) -> int:
        return await self._in(self._reading, self._held, tuple(spans), through)

    async def audit(self, query: AuditQuery, below: int, most: int) -> list[AuditRow]:
        return await self._in(self._reading, self._audited, query, below, most)

    async def trim(self, before: Instant, rows_max: int) -> int:
        (jobs,), (holdings,) = [(await self._ask(each, ()))[0] for each in (sql.COUNT_JOBS, sql.COUNT_HOLDINGS)]
        surplus = max(0, holdings - HOLDINGS_PER_JOB * rows_max)
        dropped = 0
        while True:
            # Each slice is queued on its own, so batches that came meanwhile go first.
            gone = await self._in(self._writing, self._trim_jobs, before, jobs - dropped - rows_max)
            others = await self._in(self._writing, self._trim_others, before, min(surplus, TRIM_ROWS))
            dropped, surplus = dropped + gone, max(0, surplus - TRIM_ROWS)
            if not (gone or others or surplus):
                return dropped

    async def trim_audit(self, before: Instant, rows_max: int) -> AuditTrim:
        beyond: Counter[Principal] = Counter()
        for count, statements, most in (
            (sql.COUNT_FACTLESS, (sql.DROP_OLDEST_FACTLESS,), rows_max // FACTLESS_SHARE),
            (sql.COUNT_AUDIT, (sql.DROP_OLDEST_OF_JOBS, sql.DROP_OLDEST_AUDIT), rows_max),
        ):
            rows = {Principal(by): count for by, count in await self._ask(count, ())}
            for by, surplus in surplus_of(rows, most).items():
                gone = 0
                for statement in statements:
                    gone += await self._trim_rows(statement, by, surplus - gone)
                beyond[by] += gone
        dropped = beyond.total()
        while gone := await self._in(self._writing, self._changed, sql.DROP_OLD_AUDIT, (before, TRIM_ROWS)):
            dropped += gone
        return AuditTrim(dropped, +beyond)

    async def _trim_rows(self, statement: str, by: Principal, surplus: int) -> int:
        dropped, gone = 0, -1
        while gone and dropped < surplus:
            values = (by, min(TRIM_ROWS, surplus - dropped))
            gone = await self._in(self._writing, self._changed, statement, values)
            dropped += gone
        return dropped

    async def copy(self) -> HistoryCopy:
        try:
            return await self._in(self._copying, self._taken)
        except OSError as fault:
            raise HistoryFailed(f"{self._no_copy}: {fault.strerror or fault}") from fault

    async def close(self) -> None:
        """Safe to call twice, and after `open` failed."""
        if self._closed:
            return
        self._closed = True
        # A copy under way, or a disk that is slow, holds up nobody else.
        await asyncio.to_thread(self._copying.shutdown)
        await self._in(self._reading, self._close_reader)
        await self._in(self._writing, self._close_writer)
        for thread in (self._writing, self._reading):
            await asyncio.to_thread(thread.shutdown)

    async def _in(self, thread: ThreadPoolExecutor, work: Callable[..., Answer], *args: object) -> Answer:
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, work, *args)
        except self.faults as fault:
            raise self._as_failed(fault) from fault

    async def _ask(self, statement: str, values: Sequence[sql.Value]) -> list[tuple[Any, ...]]:
        return await self._in(self._reading, self._selected, statement, tuple(values))

    # -- in the writing thread -------------------------------------------------------------------------------------

    def _record(self, batch: HistoryBatch) -> None:
        puts = list(sql.upserts(batch))
        with self._changing() as db:
            for statement, rows in puts:
                if rows:
                    db.executemany(statement, rows)
            self._move_mark(db, batch)

    def _move_mark(self, db: Transaction, batch: HistoryBatch) -> None:
        db.execute(sql.MARK, (batch.mark.cluster_id, batch.mark.position))

    def _add(self, rows: Sequence[AuditRow]) -> None:
        with self._changing() as db:
            db.executemany(sql.PUT_AUDIT, sql.audit_values(rows))

    def _rewind(self, mark: HistoryMark) -> HistoryMark:
        with self._changing() as db:
            jobs = db.execute(sql.REWIND_JOBS, (mark.position,)).rowcount
            for statement in sql.REWIND:
                db.execute(statement, (mark.position,))
            db.execute(sql.REWIND_RECORDS)
            db.execute(sql.REWIND_AUDIT, (sql.first_key_after(mark.position),))
            stands = HistoryMark(cluster_id=mark.cluster_id) if jobs else mark
            db.execute(sql.MARK, (stands.cluster_id, stands.position))
        return stands

    def _trim_jobs(self, before: Instant, surplus: int) -> int:
        """One slice; the number of jobs in it."""
        with self._changing() as db:
            old = [job for (job,) in db.execute(sql.OLD_JOBS, (before, TRIM_ROWS)).fetchall()]
            if not old and surplus > 0:
                old = [job for (job,) in db.execute(sql.OLDEST_JOBS, (min(surplus, TRIM_ROWS),)).fetchall()]
            if old:
                for statement in sql.DROP_JOBS:
                    db.execute(sql.within(statement, len(old)), old)
            return len(old)

    def _trim_others(self, before: Instant, surplus: int) -> int:
        """One slice of each other table; the number of rows in it that age sent away."""
        with self._changing() as db:
            gone = db.execute(sql.DROP_ATTEMPTS, (before, TRIM_ROWS)).rowcount
            gone += db.execute(sql.DROP_HOLDINGS, (before, TRIM_ROWS)).rowcount
            gone += db.execute(sql.DROP_OFFERS, (before, before, TRIM_ROWS)).rowcount
            gone += db.execute(sql.DROP_CLOSED, (before,)).rowcount
            if surplus:
                db.execute(sql.DROP_HOLDINGS, (2**62, surplus))
            return gone

    def _changed(self, statement: str, values: Sequence[sql.Value]) -> int:
        """One slice; the number of rows in it."""
        with self._changing() as db:
            return db.execute(statement, values).rowcount

    # -- in the reading thread -------------------------------------------------------------------------------------

    def _mark(self) -> HistoryMark:
        return mark_of(self._selected(sql.READ_MARK, ()))

    def _audited(self, query: AuditQuery, below: int, most: int) -> list[AuditRow]:
        found: list[AuditRow] = []
        looked_at = 0
        while True:
            rows = [sql.audit_row(row) for row in self._selected(*sql.audit_rows_of(query, below, most))]
            # Which members a row names is a text, which no statement looks into.
            found += [row for row in rows if query.matches(row)]
            looked_at += len(rows)
            if len(rows) < most or len(found) >= most or looked_at >= LOOKED_AT_MAX:
                return found[:most]
            below = rows[-1].key

    def _decoded(self, statement: str, values: Sequence[sql.Value]) -> list[Job]:
        rows = self._selected(statement, values)
        try:
            return [sql.decode_job(record) for (record,) in rows]
        except ValueError as fault:
            raise RecordUnreadable(f"a record in it can't be read: {fault}") from fault

    def _held(self, spans: Sequence[NodeInterval], through: Position) -> int:
        rows = (self._selected(sql.HELD, sql.held_within(span.node, span.since, span.until, through)) for span in spans)
        return sum(int(gpu_ms or 0) for ((gpu_ms,),) in rows)


def mark_of(rows: Sequence[Sequence[Any]]) -> HistoryMark:
    """Return what READ_MARK found."""
    return HistoryMark(cluster_id=rows[0][0], position=Position(rows[0][1])) if rows else HistoryMark()


def slices(items: Iterable[Item], most: int) -> Iterator[list[Item]]:
    rest = iter(items)
    while some := list(islice(rest, most)):
        yield some
