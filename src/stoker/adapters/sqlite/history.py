"""History of jobs, usage and audit in SQLite, for asyncio callers.

A file of its own, `history.db`, so that its writes never hold the event log's lock. One thread writes, another reads;
both are inside this adapter.

Rules: H1 to H4 of the port, and
       K1  WAL with synchronous=FULL: a batch is on the disk once `record` returns
       K2  rows are removed in transactions of TRIM_ROWS rows per table, between which batches get through
       K3  a store that belongs to something else, or to a newer Stoker, is left alone; the message says how to go on,
           but of a newer one only what it is: it holds what would be lost
       K4  rows of the audit trail are read and looked into by the reading thread
       K5  on a full disk it opens and can be read
       K6  a copy is of one moment: one read transaction holds it fast, which in WAL mode nobody waits for. It is
           private, and without a name as soon as it is whole, so that it goes with whoever reads it; what a crash left
           before that is removed when the history is opened. It is written in slices that are synced, as snapshots
           are: one large sync would hold up those of the event log
Limits: of holdings at most HOLDINGS_PER_JOB times as many rows as of jobs, the oldest go first; offers go with age.
"""

import asyncio
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from stoker.adapters.atomic_file import make_private
from stoker.adapters.sqlite import history_statements as sql
from stoker.adapters.sqlite.store import (
    HISTORY_STEPS,
    ForeignStore,
    SqliteStore,
    is_damage,
    migrate,
    transaction,
    words,
)
from stoker.brain.domain.audit import NUMBERS, AuditQuery, AuditRow
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import JobId, NodeName, Position
from stoker.brain.domain.job import Job
from stoker.brain.domain.job_filter import JobFilter
from stoker.brain.domain.units import Instant
from stoker.brain.domain.usage import CapacityChange, NodeInterval, UsageQuery, UsageSum
from stoker.ports import HistoryBatch, HistoryCopy, HistoryFailed, HistoryMark, HistoryTooNew

HISTORY_NAME: Final = "history.db"
BUSY_TIMEOUT_S: Final = 10.0
"""How long a batch waits for a person's own SQLite shell before it is tried again later."""
TRIM_ROWS: Final = 500
"""Of each table: about ten milliseconds, so that a batch behind one slice waits no longer."""
HOLDINGS_PER_JOB: Final = 4
LOOKED_AT_MAX: Final = 50_000
"""Rows about members of one array among which those about one member are looked for, the newest first."""
PIECE_BYTES: Final = 256 * 1024
"""Of a copy that is read."""
COPY_PAGES: Final = 64
"""In one slice of a copy: PIECE_BYTES of pages of the usual size."""
FACTLESS_SHARE: Final = 4
"""One row in so many may be of a command that left no fact."""

_WAY_OUT: Final = (
    ". To recover: move it away, or restore it from a backup; without one a new history begins with what is still known"
)
_APPLICATION_ID: Final = 0x53544B48
_COPY_SUFFIX: Final = ".copy"

Answer = TypeVar("Answer")
Item = TypeVar("Item")


def cluster_in(data_dir: Path) -> str:
    """Return the id of the cluster whose history a folder has, without changing anything there.

    Empty = there is none, or it can't be known without a change to what is there.
    """
    path = data_dir.absolute() / HISTORY_NAME
    wal, index = path.with_name(f"{HISTORY_NAME}-wal"), path.with_name(f"{HISTORY_NAME}-shm")
    if not path.exists() or (wal.exists() and not index.exists()):
        return ""
    how = "mode=ro" if wal.exists() else "immutable=1"
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.as_uri()}?{how}", uri=True)) as db:
        row = db.execute(sql.READ_MARK).fetchone()
        return str(row[0]) if row else ""
    return ""


class SqliteHistory:
    """The `History` port on one data folder."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir.absolute() / HISTORY_NAME
        self._store = SqliteStore(self._path, BUSY_TIMEOUT_S)
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="stoker-history")
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="stoker-history-read")
        self._copying = ThreadPoolExecutor(1, thread_name_prefix="stoker-history-copy")
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._closed = False

    async def open(self) -> HistoryMark:
        mark = await self._in(self._writing, self._open_writer)
        await self._in(self._reading, self._open_reader)
        return mark

    async def record(self, batch: HistoryBatch) -> None:
        await self._in(self._writing, self._record, batch)

    async def rewind(self, mark: HistoryMark) -> HistoryMark:
        return await self._in(self._writing, self._rewind, mark)

    async def ids(self, wanted: JobFilter | None, below: JobId, most: int) -> list[JobId]:
        rows = await self._ask(*sql.ids_of(wanted, below, most))
        return [JobId(job) for (job,) in rows]

    async def jobs(self, ids: Sequence[JobId]) -> list[Job]:
        newest_first = sorted(dict.fromkeys(ids), reverse=True)
        found: list[Job] = []
        for some in _slices(newest_first):
            found += await self._in(self._reading, self._decoded, sql.within(sql.RECORDS, len(some)), some)
        return found

    async def arrays(self, below: JobId, most: int) -> list[Job]:
        return await self._in(self._reading, self._decoded, sql.ARRAYS, (below, most))

    async def usage(self, query: UsageQuery, most: int, keys: Sequence[str] | None = None) -> list[UsageSum]:
        turns = [None] if keys is None else list(_slices(keys))
        rows = [row for some in turns for row in await self._ask(*sql.sums_of(query, most, some))]
        return [UsageSum(key=key, jobs=jobs, gpu_ms=gpu_ms, cpu_ms=cpu_ms) for key, jobs, gpu_ms, cpu_ms in rows]

    async def charged(self, query: UsageQuery, jobs: Sequence[JobId]) -> list[tuple[str, JobId]]:
        found = [row for some in _slices(jobs) for row in await self._ask(*sql.charged_of(query, some))]
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

    async def trim_audit(self, before: Instant, rows_max: int) -> int:
        (rows,), (factless,) = [(await self._ask(each, ()))[0] for each in (sql.COUNT_AUDIT, sql.COUNT_FACTLESS)]
        dropped = await self._trim_rows(sql.DROP_OLDEST_FACTLESS, factless - rows_max // FACTLESS_SHARE)
        for statement in (sql.DROP_OLDEST_OF_JOBS, sql.DROP_OLDEST_AUDIT):
            dropped += await self._trim_rows(statement, rows - dropped - rows_max)
        while gone := await self._in(self._writing, self._changed, sql.DROP_OLD_AUDIT, (before, TRIM_ROWS)):
            dropped += gone
        return dropped

    async def _trim_rows(self, statement: str, surplus: int) -> int:
        dropped, gone = 0, -1
        while gone and dropped < surplus:
            gone = await self._in(self._writing, self._changed, statement, (min(TRIM_ROWS, surplus - dropped),))
            dropped += gone
        return dropped

    async def copy(self) -> HistoryCopy:
        try:
            return await self._in(self._copying, self._taken)
        except OSError as fault:
            raise HistoryFailed(f"{self._path} can't be copied: {fault.strerror or fault}") from fault

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
        except sqlite3.Error as fault:
            way_out = _WAY_OUT if is_damage(fault) else ""
            raise HistoryFailed(f"{self._path} can't be used: {words(fault)}{way_out}") from fault
        except StokerError as fault:
            raise HistoryTooNew(fault.refusal.message) from fault
        except ForeignStore as fault:
            raise HistoryFailed(f"{self._path} can't be used: {fault}{_WAY_OUT}") from fault

    async def _ask(self, statement: str, values: Sequence[sql.Value]) -> list[tuple]:  # type: ignore[type-arg]  # rows of whatever was asked for
        return await self._in(self._reading, self._selected, statement, tuple(values))

    def _open_writer(self) -> HistoryMark:
        self._close_writer()
        with suppress(OSError):  # what can't be made SQLite can't open, and it says why
            make_private(self._path)
            _remove_leftovers(self._path)
        self._store = SqliteStore(self._path, BUSY_TIMEOUT_S)
        db = self._store.writer()
        try:
            migrate(db, self._path, HISTORY_STEPS, _APPLICATION_ID)
            row = db.execute(sql.READ_MARK).fetchone()
        except BaseException:
            db.close()
            raise
        self._writer = db
        return HistoryMark(cluster_id=row[0], position=Position(row[1])) if row else HistoryMark()

    def _open_reader(self) -> None:
        self._close_reader()
        self._reader = self._store.reader()

    def _taken(self) -> HistoryCopy:
        self._opened(self._writer)
        return FileCopy(self._path, self._copying)

    def _opened(self, db: sqlite3.Connection | None) -> sqlite3.Connection:
        if db is None:
            raise sqlite3.OperationalError("it isn't open")
        return db

    def _record(self, batch: HistoryBatch) -> None:
        puts = list(sql.upserts(batch))
        with transaction(self._opened(self._writer)) as db:
            for statement, rows in puts:
                if rows:
                    db.executemany(statement, rows)
            db.execute(sql.MARK, (batch.mark.cluster_id, batch.mark.position))

    def _rewind(self, mark: HistoryMark) -> HistoryMark:
        with transaction(self._opened(self._writer)) as db:
            jobs = db.execute(sql.REWIND_JOBS, (mark.position,)).rowcount
            for statement in sql.REWIND:
                db.execute(statement, (mark.position,))
            db.execute(sql.REWIND_RECORDS)
            db.execute(sql.REWIND_AUDIT, ((mark.position + 1) * NUMBERS,))
            stands = HistoryMark(cluster_id=mark.cluster_id) if jobs else mark
            db.execute(sql.MARK, (stands.cluster_id, stands.position))
        return stands

    def _trim_jobs(self, before: Instant, surplus: int) -> int:
        """One slice; the number of jobs in it."""
        with transaction(self._opened(self._writer)) as db:
            old = [job for (job,) in db.execute(sql.OLD_JOBS, (before, TRIM_ROWS))]
            if not old and surplus > 0:
                old = [job for (job,) in db.execute(sql.OLDEST_JOBS, (min(surplus, TRIM_ROWS),))]
            if old:
                for statement in sql.DROP_JOBS:
                    db.execute(sql.within(statement, len(old)), old)
            return len(old)

    def _trim_others(self, before: Instant, surplus: int) -> int:
        """One slice of each other table; the number of rows in it that age sent away."""
        with transaction(self._opened(self._writer)) as db:
            gone = db.execute(sql.DROP_ATTEMPTS, (before, TRIM_ROWS)).rowcount
            gone += db.execute(sql.DROP_HOLDINGS, (before, TRIM_ROWS)).rowcount
            gone += db.execute(sql.DROP_OFFERS, (before, before, TRIM_ROWS)).rowcount
            gone += db.execute(sql.DROP_CLOSED, (before,)).rowcount
            if surplus:
                db.execute(sql.DROP_HOLDINGS, (2**62, surplus))
            return gone

    def _changed(self, statement: str, values: Sequence[sql.Value]) -> int:
        """One slice; the number of rows in it."""
        with transaction(self._opened(self._writer)) as db:
            return db.execute(statement, values).rowcount

    def _selected(self, statement: str, values: Sequence[sql.Value]) -> list[tuple]:  # type: ignore[type-arg]  # rows of whatever was asked for
        return self._opened(self._reader).execute(statement, values).fetchall()

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
        try:
            return [sql.decode_job(record) for (record,) in self._selected(statement, values)]
        except ValueError as fault:
            raise sqlite3.DataError(f"a record in it can't be read: {fault}") from fault

    def _held(self, spans: Sequence[NodeInterval], through: Position) -> int:
        rows = (self._selected(sql.HELD, sql.held_within(span.node, span.since, span.until, through)) for span in spans)
        return sum(gpu_ms or 0 for ((gpu_ms,),) in rows)

    def _close_writer(self) -> None:
        if self._writer is not None:
            with suppress(sqlite3.Error):
                self._writer.close()
            self._writer = None

    def _close_reader(self) -> None:
        if self._reader is not None:
            with suppress(sqlite3.Error):
                self._reader.close()
            self._reader = None


def _slices(items: Iterable[Item]) -> Iterable[list[Item]]:
    rest = iter(items)
    while some := list(islice(rest, sql.VALUES_MAX)):
        yield some


class FileCopy:
    """The `HistoryCopy` port on a file."""

    def __init__(self, path: Path, thread: ThreadPoolExecutor) -> None:
        """Take it, in this thread, which is `thread`'s. Raises: sqlite3.Error, OSError."""
        self._path = path
        self._thread = thread
        self._file = _taken(path)
        try:
            self.size, self.sha256 = self._measured()
        except BaseException:
            self._file.close()
            raise

    async def read(self) -> bytes:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._file.read, PIECE_BYTES)
        except (OSError, ValueError) as fault:  # ValueError: closed meanwhile
            raise HistoryFailed(f"the copy of {self._path} can't be read: {fault}") from fault

    async def close(self) -> None:
        self._file.close()

    def _measured(self) -> tuple[int, str]:
        sum_of = hashlib.sha256()
        size = 0
        while piece := self._file.read(PIECE_BYTES):
            sum_of.update(piece)
            size += len(piece)
        self._file.seek(0)
        return size, sum_of.hexdigest()


def _remove_leftovers(path: Path) -> None:
    """Remove half copied files that a crash left beside the history. Raises: OSError."""
    path.with_name(path.name + _COPY_SUFFIX).unlink(missing_ok=True)


def _taken(path: Path) -> BinaryIO:
    """The whole copy, which has no name any more (K6)."""
    beside = path.with_name(path.name + _COPY_SUFFIX)
    _remove_leftovers(path)
    try:
        make_private(beside)
        file = beside.open("rb", buffering=0)
        try:
            _copy(path, beside, file.fileno())
        except BaseException:
            file.close()
            raise
        return file
    finally:
        beside.unlink(missing_ok=True)


def _copy(path: Path, beside: Path, fd: int) -> None:
    with (
        closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)) as source,
        closing(sqlite3.connect(beside, isolation_level=None, timeout=BUSY_TIMEOUT_S)) as target,
    ):
        # The copy needs neither a journal nor syncs of its own: a half one is thrown away. What its cache can't hold
        # is written at once, so that there is something to sync.
        for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = {COPY_PAGES}"):
            target.execute(f"PRAGMA {pragma}")
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # K6: from here on it is this moment
        source.backup(target, pages=COPY_PAGES, progress=lambda *_: os.fdatasync(fd))
        target.execute("PRAGMA journal_mode = DELETE")  # one file, that opens without those beside it
