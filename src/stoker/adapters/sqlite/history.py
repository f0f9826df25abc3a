"""History of jobs, usage and audit in SQLite, for asyncio callers, and the file that every copy of a history is.

A file of its own, `history.db`, so that its writes never hold the event log's lock.

Rules: those of `history_sql.tables`, and
       K1  WAL with synchronous=FULL: a batch is on the disk once `record` returns
       K3  a store that belongs to something else, or to a newer Stoker, is left alone; the message says how to go on,
           but of a newer one only what it is: it holds what would be lost
       K5  on a full disk it opens and can be read
       K6  a copy is of one moment: one read transaction holds it fast, which in WAL mode nobody waits for. It is
           private, and without a name as soon as it is whole, so that it goes with whoever reads it; what a crash left
           before that is removed when the history is opened. It is written in slices that are synced, as snapshots
           are: one large sync would hold up those of the event log
       K7  a copy of a history in another store is such a file too, so that a backup can be restored into either
"""

import asyncio
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from stoker.adapters.atomic_file import make_private
from stoker.adapters.history_sql import statements as sql
from stoker.adapters.history_sql.tables import HISTORY_NAME, RecordUnreadable, SqlHistory, Transaction, mark_of, slices
from stoker.adapters.sqlite.store import (
    HISTORY_STEPS,
    ForeignStore,
    SqliteStore,
    as_os_error,
    is_damage,
    migrate,
    transaction,
    words,
)
from stoker.brain.domain.errors import StokerError
from stoker.ports import HistoryCopy, HistoryFailed, HistoryMark, HistoryTooNew

BUSY_TIMEOUT_S: Final = 10.0
"""How long a batch waits for a person's own SQLite shell before it is tried again later."""
PIECE_BYTES: Final = 256 * 1024
"""Of a copy that is read."""
COPY_PAGES: Final = 64
"""In one slice of a copy: PIECE_BYTES of pages of the usual size."""
EARLIER_ROWS: Final = 2_000
"""In one transaction of those that move into a database, or out of one."""

_WAY_OUT: Final = (
    ". To recover: move it away, or restore it from a backup; without one a new history begins with what is still known"
)
_APPLICATION_ID: Final = 0x53544B48
_COPY_SUFFIX: Final = ".copy"
_MOVED_SUFFIX: Final = ".moved"

Rows = Iterable[Sequence[sql.Value]]


def cluster_in(data_dir: Path) -> str:
    """Return the id of the cluster whose history a folder has, without changing anything there.

    Empty = there is none, or it can't be known without a change to what is there.
    """
    path = data_dir.absolute() / HISTORY_NAME
    if not path.exists():
        path = path.with_name(path.name + _MOVED_SUFFIX)  # into a database, whose control plane has this folder
    wal, index = path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")
    if not path.exists() or (wal.exists() and not index.exists()):
        return ""
    how = "mode=ro" if wal.exists() else "immutable=1"
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.as_uri()}?{how}", uri=True)) as db:
        row = db.execute(sql.READ_MARK).fetchone()
        return str(row[0]) if row else ""
    return ""


class SqliteHistory(SqlHistory):
    """The `History` port on one data folder."""

    way_out = "move history.db away, or restore the data folder as a whole"
    faults = (sqlite3.Error, StokerError, ForeignStore, RecordUnreadable)

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir.absolute() / HISTORY_NAME
        super().__init__(f"{self._path} can't be copied")
        self._store = SqliteStore(self._path, BUSY_TIMEOUT_S)
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None

    def _as_failed(self, fault: Exception) -> HistoryFailed:
        if isinstance(fault, StokerError):
            return HistoryTooNew(fault.refusal.message)
        if isinstance(fault, sqlite3.Error):
            return HistoryFailed(f"{self._path} can't be used: {words(fault)}{_WAY_OUT if is_damage(fault) else ''}")
        return HistoryFailed(
            f"{self._path} can't be used: {fault}{_WAY_OUT if isinstance(fault, ForeignStore) else ''}"
        )

    def _open_writer(self) -> HistoryMark:
        self._close_writer()
        with suppress(OSError):  # what can't be made SQLite can't open, and it says why
            make_private(self._path)
            _remove_leftovers(self._path)
        self._store = SqliteStore(self._path, BUSY_TIMEOUT_S)
        self._writer = _opened_file(self._store)
        return mark_of(self._writer.execute(sql.READ_MARK).fetchall())

    def _open_reader(self) -> None:
        self._close_reader()
        self._reader = self._store.reader()
        # As in PostgreSQL, and as `JobFilter.matches` has it.
        self._reader.execute("PRAGMA case_sensitive_like = ON")

    def _taken(self) -> HistoryCopy:
        self._opened(self._writer)
        return FileCopy(self._path, self._copying, lambda beside, fd: _copy(self._path, beside, fd))

    def _opened(self, db: sqlite3.Connection | None) -> sqlite3.Connection:
        if db is None:
            raise sqlite3.OperationalError("it isn't open")
        return db

    def _changing(self) -> AbstractContextManager[Transaction]:
        return transaction(self._opened(self._writer))

    def _selected(self, statement: str, values: Sequence[sql.Value]) -> list[tuple[Any, ...]]:
        return self._opened(self._reader).execute(statement, values).fetchall()

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


def _opened_file(store: SqliteStore) -> sqlite3.Connection:
    """Return the writing connection of a store that has the newest tables."""
    db = store.writer()
    try:
        migrate(db, store.path, HISTORY_STEPS, _APPLICATION_ID)
    except BaseException:
        db.close()
        raise
    return db


class FileCopy:
    """The `HistoryCopy` port on a file."""

    def __init__(self, path: Path, thread: ThreadPoolExecutor, fill: Callable[[Path, int], None]) -> None:
        """Take it, in this thread, which is `thread`'s. `fill`: writes it into a file that is there and open.

        Raises: OSError, as `fill`.
        """
        self._path = path
        self._thread = thread
        self._file = _taken(path, fill)
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


def _taken(path: Path, fill: Callable[[Path, int], None]) -> BinaryIO:
    """The whole copy, which has no name any more (K6)."""
    beside = path.with_name(path.name + _COPY_SUFFIX)
    _remove_leftovers(path)
    try:
        make_private(beside)
        file = beside.open("rb", buffering=0)
        try:
            fill(beside, file.fileno())
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


def fill_file(beside: Path, fd: int, mark: HistoryMark, tables: Iterable[tuple[str, Rows]]) -> None:
    """Write a history that is kept elsewhere into a file (K7). `tables`: their rows, a slice at a time.

    Raises: OSError.
    """
    try:
        with closing(sqlite3.connect(beside, isolation_level=None)) as db:
            for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = {COPY_PAGES}"):
                db.execute(f"PRAGMA {pragma}")
            migrate(db, beside, HISTORY_STEPS, _APPLICATION_ID)
            for table, rows in tables:
                for some in slices(rows, EARLIER_ROWS):
                    db.execute("BEGIN")
                    db.executemany(sql.insert(table), some)
                    db.execute("COMMIT")
                    os.fdatasync(fd)
            if mark.cluster_id:
                db.execute(sql.MARK, (mark.cluster_id, mark.position))
    except sqlite3.Error as fault:
        raise as_os_error(fault) from fault


class EarlierFile:
    """The history that a folder has from before its control plane kept it in a database."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir.absolute() / HISTORY_NAME

    def read(self, put: Callable[[str, Rows], None], may: Callable[[HistoryMark], bool]) -> HistoryMark | None:
        """Hand all rows to `put`, EARLIER_ROWS at a time, if `may` says so of its mark; return that mark.

        None = there is none, or it may not. Raises: HistoryFailed.
        """
        if not self.path.exists():
            return None
        try:
            with closing(_opened_file(SqliteStore(self.path, BUSY_TIMEOUT_S))) as db:
                mark = mark_of(db.execute(sql.READ_MARK).fetchall())
                if not may(mark):
                    return None
                for table in sql.TABLES:
                    for rows in slices(db.execute(sql.select_all(table)), EARLIER_ROWS):
                        put(table, rows)
        except (sqlite3.Error, StokerError, ForeignStore) as fault:
            said = fault.refusal.message if isinstance(fault, StokerError) else fault
            raise HistoryFailed(f"{self.path} can't be read, to be moved into the database: {said}") from fault
        return mark

    def put_aside(self) -> None:
        """Keep it under another name: what it has is in the database. Raises: OSError."""
        self.path.rename(self.path.with_name(self.path.name + _MOVED_SUFFIX))
