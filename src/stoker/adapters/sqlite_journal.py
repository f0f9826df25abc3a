"""How does SQLite keep the event log, seen from the one thread that owns the connection?

Rules: J1  WAL with synchronous=FULL: a commit returns after the log's own fsync
       J2  positions are the primary key, so a second writer's row makes our insert fail instead of hiding
       J3  every row read is checked: its place, its epoch's order, its checksum
       J4  schema changes are the numbered files in `migrations/`, each one transaction together with its number
"""

import errno
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from stoker.adapters.data_folder import make_private
from stoker.adapters.record_check import RecordDamaged, checksum
from stoker.adapters.sqlite_schema import ForeignStore, migrate
from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import LogConflict, LogFailed

STORE_NAME: Final = "stoker.db"
BUSY_TIMEOUT_S: Final = 30.0
"""How long an append waits for a person's own SQLite shell before it gives up."""
CHECKPOINT_PAGES: Final = 8_000
"""Where the writer itself moves the WAL into the store (32 MiB). Usually the side thread has done it long before."""
READ_ROWS: Final = 1_000

_MIGRATIONS: Final = Path(__file__).parent / "migrations"
_APPLICATION_ID: Final = 0x53544B52
_SQLITE_ERRNO: Final = {
    "SQLITE_FULL": errno.ENOSPC,
    "SQLITE_READONLY": errno.EROFS,
    "SQLITE_IOERR": errno.EIO,
    "SQLITE_PERM": errno.EACCES,
    "SQLITE_CANTOPEN": errno.EACCES,
}

Row = tuple[Position, Epoch, bytes]


class Journal:
    """The writer's side. Every method belongs to the thread that made it."""

    def __init__(self, folder: Path) -> None:
        """Open or make the store and bring its schema up to date.

        Raises: StokerError `store_too_new`, RecordDamaged (position 0: the file itself), sqlite3.Error.
        """
        self.path = folder / STORE_NAME
        self._db = _connect(self.path)
        try:
            _migrate(self._db, self.path)
            self.first, self.end, self.epoch = self._check()
        except BaseException:
            self._db.close()
            raise

    def append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        if position != self.end:
            raise LogConflict(f"the log ends at {self.end}, not at {position}: another writer was here")
        if epoch < self.epoch:
            raise LogConflict(f"the log has epoch {self.epoch}; epoch {epoch} is over")
        rows = [
            (at, epoch, checksum(at, epoch, record), record) for at, record in enumerate(records, start=position + 1)
        ]
        if not rows:
            return
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT INTO event (position, epoch, crc, record) VALUES (?, ?, ?, ?)", rows)
            self._db.execute("COMMIT")
        except sqlite3.IntegrityError as fault:
            self._roll_back()
            raise LogConflict(f"another writer has added records after {position}") from fault
        except sqlite3.Error as fault:
            self._roll_back()
            raise LogFailed(f"can't append to {self.path}: {words(fault)}") from fault
        self.end, self.epoch = Position(position + len(rows)), epoch
        self.first = self.first or Position(position + 1)

    def trim(self, through: int, rows_max: int) -> int:
        """Remove at most `rows_max` of the oldest rows up to `through`, never the last row; answer how many."""
        through = min(through, self.end - 1, self.first - 1 + rows_max)
        if self.first == 0 or through < self.first:
            return 0
        try:
            self._db.execute("DELETE FROM event WHERE position <= ?", (through,))
        except sqlite3.Error as fault:
            raise LogFailed(f"can't trim {self.path}: {words(fault)}") from fault
        removed = through - self.first + 1
        self.first = Position(through + 1)
        return removed

    def close(self) -> None:
        # What can't be moved into the store now stays in the WAL and is moved by the next process.
        with suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            with suppress(sqlite3.Error):  # the first fault is the one to tell
                self._db.execute("ROLLBACK")

    def _check(self) -> tuple[Position, Position, Epoch]:
        """Read every kept row once: a damaged one is refused at start, not found when it is needed."""
        first = last = epoch = 0
        for position, row_epoch, _ in _checked(self._db, 0):
            if row_epoch < epoch:
                raise RecordDamaged(position, f"its epoch is {row_epoch} although {epoch} came before")
            first, last, epoch = first or position, position, row_epoch
        return Position(first), Position(last), Epoch(epoch)


class JournalReader:
    """A read-only look at the same store, which neither waits for the writer nor holds it up."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(
            f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S, check_same_thread=False
        )

    def bounds(self) -> tuple[int, int]:
        """The first and the last position there is a row for, damaged or not; 0 and 0 of an empty log."""
        first, last = self._db.execute("SELECT min(position), max(position) FROM event").fetchone()
        return first or 0, last or 0

    def after(self, position: Position, through: Position) -> list[tuple[Position, bytes]]:
        """The next rows after `position`, at most READ_ROWS, none beyond `through`. Raises RecordDamaged."""
        rows = _checked(self._db, position, min(through, position + READ_ROWS))
        found = [(at, record) for at, _, record in rows]
        if found and found[0][0] != position + 1:
            raise RecordDamaged(position + 1, f"it isn't there; the next one is {found[0][0]}")
        if not found and position < through:
            raise RecordDamaged(position + 1, "it isn't there")
        return found

    def close(self) -> None:
        self._db.close()


def begin_behind(folder: Path, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
    """Make the store of a log whose first record stands behind `position`, where a snapshot was taken.

    Raises: LogFailed.
    """
    try:
        journal = Journal(folder)
    except sqlite3.Error as fault:
        raise LogFailed(f"can't make {folder / STORE_NAME}: {words(fault)}") from fault
    try:
        assert journal.end == 0, f"{journal.path} holds a log already"
        journal.end = position
        journal.append(epoch, position, records)
    finally:
        journal.close()


def move_wal(path: Path) -> None:
    """Copy what the WAL holds into the store, beside a working writer. Raises sqlite3.Error."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0.0)) as db:
        db.execute("PRAGMA wal_checkpoint(PASSIVE)")


def words(fault: sqlite3.Error) -> str:
    """The operating system's words for what SQLite reports, and SQLite's own."""
    name = str(getattr(fault, "sqlite_errorname", ""))
    number = next((number for prefix, number in _SQLITE_ERRNO.items() if name.startswith(prefix)), None)
    return str(fault) if number is None else f"{os.strerror(number)} ({fault})"


def as_os_error(fault: sqlite3.Error) -> OSError:
    name = str(getattr(fault, "sqlite_errorname", ""))
    number = next((number for prefix, number in _SQLITE_ERRNO.items() if name.startswith(prefix)), errno.EIO)
    return OSError(number, f"{os.strerror(number)} ({fault})")


def is_damage(fault: sqlite3.Error) -> bool:
    return str(getattr(fault, "sqlite_errorname", "")).startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


def _connect(path: Path) -> sqlite3.Connection:
    make_private(path)  # SQLite gives its other files the same mode
    db = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_S)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    except sqlite3.Error as fault:
        db.close()
        if is_damage(fault):
            raise RecordDamaged(0, str(fault)) from fault
        raise
    return db


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    try:
        migrate(db, path, _MIGRATIONS, _APPLICATION_ID)
    except ForeignStore as fault:
        raise RecordDamaged(0, str(fault)) from fault


def _checked(db: sqlite3.Connection, after: int, through: int = 2**62) -> Iterator[Row]:
    """Rows in order, each proved to be the one that was written and to follow the one before it."""
    last = 0
    try:
        for position, epoch, crc, record in db.execute(
            "SELECT position, epoch, crc, record FROM event WHERE position > ? AND position <= ? ORDER BY position",
            (after, through),
        ):
            if last and position != last + 1:
                raise RecordDamaged(last + 1, f"it isn't there; the next one is {position}")
            if not isinstance(record, bytes) or checksum(position, epoch, record) != crc:
                raise RecordDamaged(position, "its checksum doesn't agree with its content")
            last = position
            yield position, epoch, record
    except sqlite3.Error as fault:
        if is_damage(fault):
            raise RecordDamaged(last + 1 if last else after + 1, str(fault), unreadable=True) from fault
        raise
