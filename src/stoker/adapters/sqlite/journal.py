"""Event log in SQLite: the side of the one thread that writes, and that of a reader beside it.

Rules: J1  WAL with synchronous=FULL: a commit returns after the log's own fsync; and what opening finds is made durable
           before it is told to anybody, whatever became of the fsync of the process before
       J2  positions are the primary key, so a second writer's row makes our insert fail instead of hiding
       J3  every row read is checked: its place, its epoch's order, its checksum
       J4  schema changes are the numbered files in `migrations/`
       J5  what stands before the oldest row is kept beside it: trimming, cutting and beginning behind a snapshot move
           both in one transaction
"""

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from stoker.adapters.atomic_file import make_private, sync
from stoker.adapters.data_folder.marks import STORE_NAME
from stoker.adapters.log_policy import READ_BYTES, READ_ROWS, RecordDamaged, checksum, proved, steps_in, too_new
from stoker.adapters.sqlite.store import (
    LOG_STEPS,
    ForeignStore,
    SqliteStore,
    as_os_error,
    is_damage,
    migrate,
    transaction,
    words,
)
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import EPOCHS_MAX, LogConflict, LogFailed, Stored

BUSY_TIMEOUT_S: Final = 30.0
"""How long an append waits for a person's own SQLite shell before it gives up."""
CHECKPOINT_PAGES: Final = 8_000
"""Where the writer itself moves the WAL into the store (32 MiB). Usually the side thread has done it long before."""

_APPLICATION_ID: Final = 0x53544B52


class SqliteJournal:
    """The writer's side. Every method belongs to the thread that made it; what it knows may be read by others."""

    def __init__(self, folder: Path) -> None:
        """Open or make the store and bring its schema up to date.

        Raises: StokerError `store_too_new`, RecordDamaged (position 0: the file itself), sqlite3.Error, OSError.
        """
        self.path = folder / STORE_NAME
        self.store = SqliteStore(self.path, BUSY_TIMEOUT_S)
        self._db = _connect(self.store)
        try:
            _migrate(self._db, self.path)
            promised, self._base, self.history_to = self._standing()
            self.promised: Epoch = promised
            self.first, self.end, self.ends = self._check()
            self._settle()
        except BaseException:
            self._db.close()
            raise

    @property
    def epoch(self) -> Epoch:
        """Of the record at the end; 0 = unknown, or there is none."""
        return self.ends[0][0] if self.ends else Epoch(0)

    def append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        if position != self.end:
            raise LogConflict(f"the log ends at {self.end}, not at {position}: another writer was here")
        if epoch < self.epoch:
            raise LogConflict(f"the log has epoch {self.epoch}; epoch {epoch} is over")
        if epoch < self.promised:
            raise LogConflict(f"the log was promised to epoch {self.promised}; epoch {epoch} is over")
        rows = [
            (at, epoch, checksum(at, epoch, record), record) for at, record in enumerate(records, start=position + 1)
        ]
        if not rows:
            return
        try:
            with self._transaction(f"append to {self.path}"):
                self._db.executemany("INSERT INTO event (position, epoch, crc, record) VALUES (?, ?, ?, ?)", rows)
        except sqlite3.IntegrityError as fault:
            raise LogConflict(f"another writer has added records after {position}") from fault
        self.end = Position(position + len(rows))
        self.ends = _extended(self.ends, epoch, self.end)

    def promise(self, epoch: Epoch) -> None:
        """Raises: LogFailed; then the old promise holds."""
        with self._transaction(f"write to {self.path}"):
            self._db.execute("UPDATE standing SET promised = ?", (epoch,))
        self.promised = epoch

    def trim(self, through: int, rows_max: int) -> int:
        """Remove at most `rows_max` of the oldest rows up to `through`, never the last row; answer how many."""
        through = min(through, self.end - 1, self.first - 1 + rows_max)
        if through < self.first:
            return 0
        with self._transaction(f"trim {self.path}"):
            epoch = self._epoch_at(through)
            self._db.execute("DELETE FROM event WHERE position <= ?", (through,))
            self._db.execute("UPDATE standing SET epoch = ?, position = ?", (epoch, through))
        removed = through - self.first + 1
        self._base = (epoch, Position(through))
        self.first = Position(through + 1)
        self.ends = tuple(end for end in self.ends if end[1] >= through)
        return removed

    def can_end_at(self, position: Position) -> bool:
        """Return whether the log may be cut to this record: it is there, or known to be the one before the oldest."""
        return position >= self.first or position in (0, self._base[1])

    def tail(self, position: Position) -> Iterator[Stored]:
        """The records after `position`. Raises: RecordDamaged, sqlite3.Error."""
        return _checked(self._db, position)

    def cut(self, position: Position) -> None:
        """Forget what came after `position`, at which it `can_end`; and note that the history has to. Raises:
        LogFailed."""
        back_to = position if self.history_to is None else min(self.history_to, position)
        with self._transaction(f"cut {self.path}"):
            epoch = self._epoch_at(position)
            self._db.execute("DELETE FROM event WHERE position > ?", (position,))
            self._db.execute("UPDATE standing SET history_to = ?", (back_to,))
        self.history_to = back_to
        self.end = position
        older = tuple(end for end in self.ends if end[1] < position)
        self.ends = ((epoch, position), *older) if epoch else older

    def history_is_back(self) -> None:
        """Raises: LogFailed; then it will be put back once more."""
        with self._transaction(f"write to {self.path}"):
            self._db.execute("UPDATE standing SET history_to = NULL")
        self.history_to = None

    def begin(self, epoch: Epoch, position: Position) -> None:
        """Go on behind `position`, where a snapshot was taken. Raises: LogFailed."""
        assert self.end == 0, f"{self.path} holds a log already"
        with self._transaction(f"write to {self.path}"):
            self._db.execute("UPDATE standing SET epoch = ?, position = ?", (epoch, position))
        self._base = (epoch, position)
        self.first, self.end, self.ends = Position(position + 1), position, ((epoch, position),)

    def close(self) -> None:
        # What can't be moved into the store now stays in the WAL and is moved by the next process.
        with suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()

    @contextmanager
    def _transaction(self, what: str) -> Iterator[None]:
        """All of it or nothing. Raises: LogFailed, sqlite3.IntegrityError."""
        try:
            with transaction(self._db):
                yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as fault:
            raise LogFailed(f"can't {what}: {words(fault)}") from fault

    def _epoch_at(self, position: int) -> Epoch:
        row = self._db.execute("SELECT epoch FROM event WHERE position = ?", (position,)).fetchone()
        if row is not None:
            return Epoch(row[0])
        return self._base[0] if position == self._base[1] else Epoch(0)

    def _standing(self) -> tuple[Epoch, tuple[Epoch, Position], Position | None]:
        promised, epoch, position, history_to = self._db.execute(
            "SELECT promised, epoch, position, history_to FROM standing"
        ).fetchone()
        return Epoch(promised), (Epoch(epoch), Position(position)), history_to

    def _check(self) -> tuple[Position, Position, tuple[tuple[Epoch, Position], ...]]:
        """Read every kept row once: a damaged one is refused at start, not found when it is needed."""
        epoch, base = self._base
        ends = {epoch: base} if epoch else {}
        first = last = 0
        for position, row_epoch, _ in _checked(self._db):
            if not first and position != base + 1:
                # Trimmed by a version that didn't keep what stands before, or by hand.
                self._base, ends, epoch = (Epoch(0), Position(0)), {}, Epoch(0)
            if row_epoch < epoch:
                raise RecordDamaged(position, f"its epoch is {row_epoch} although {epoch} came before")
            first, last, epoch = first or position, position, row_epoch
            ends[epoch] = position
        end = Position(last or self._base[1])
        return Position(first or end + 1), end, tuple(reversed(ends.items()))[:EPOCHS_MAX]

    def _settle(self) -> None:
        """J1. The process before may have died between a write and its fsync, or was told that its fsync failed, after
        which another one says nothing; what is written once more can be trusted."""
        with suppress(sqlite3.Error):  # no room, or somebody reads: then what was written is synced where it is
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for path in (self.path, self.path.with_name(f"{STORE_NAME}-wal")):
            with suppress(FileNotFoundError):
                sync(path)
        sync(self.path.parent)


class SqliteJournalReader:
    """A read-only look at a store, which neither waits for the writer nor holds it up."""

    def __init__(self, store: SqliteStore) -> None:
        """Raises: sqlite3.Error."""
        self._db = store.reader()

    def bounds(self) -> tuple[int, int]:
        """The first and the last position there is a row for, damaged or not; 0 and 0 of an empty log."""
        first, last = self._db.execute("SELECT min(position), max(position) FROM event").fetchone()
        return first or 0, last or 0

    def after(self, position: Position, through: Position, most: int = READ_ROWS) -> list[Stored]:
        """Return the next rows after `position`, at most `most` and about READ_BYTES, none beyond `through`.

        Raises: RecordDamaged, sqlite3.Error.
        """
        found: list[Stored] = []
        size = 0
        with closing(_checked(self._db, position, min(through, position + most), due=position + 1)) as rows:
            for row in rows:
                found.append(row)
                size += len(row.record)
                if size >= READ_BYTES:
                    break
        if not found and position < through:
            raise RecordDamaged(position + 1, "it isn't there")
        return found

    def close(self) -> None:
        self._db.close()


def captured(folder: Path) -> list[Stored]:
    """Return every record that is kept, while a control plane goes on with the log or stands still.

    No record and no mark is written, and nobody waits for it. SQLite may make its index beside a WAL that has none.

    Raises: StokerError `store_too_new`, RecordDamaged (position 0: the file itself), OSError.
    """
    path = folder / STORE_NAME
    # Beside a log that nobody has open there is no WAL, and without one a reader would have to write it.
    alone = "" if path.with_name(f"{STORE_NAME}-wal").exists() else "&immutable=1"
    uri = f"{path.as_uri()}?mode=ro{alone}"
    try:
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S)) as db:
            db.execute("BEGIN")
            have, newest = int(db.execute("PRAGMA user_version").fetchone()[0]), max(steps_in(LOG_STEPS))
            if have > newest:
                raise StokerError(too_new(str(path), have, newest))
            if db.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
                raise RecordDamaged(0, "it is an SQLite database, but not one of Stoker's")
            return list(_checked(db))
    except sqlite3.Error as fault:
        if is_damage(fault):
            raise RecordDamaged(0, str(fault)) from fault
        raise as_os_error(fault) from fault


def begin_behind(folder: Path, base: tuple[Epoch, Position], epoch: Epoch, records: Sequence[bytes]) -> None:
    """Make the store of a log that goes on behind `base`, where a snapshot was taken, with these records.

    Raises: LogFailed.
    """
    try:
        journal = SqliteJournal(folder)
    except sqlite3.Error as fault:
        raise LogFailed(f"can't make {folder / STORE_NAME}: {words(fault)}") from fault
    try:
        journal.begin(*base)
        journal.append(epoch, base[1], records)
    finally:
        journal.close()


def _extended(
    ends: tuple[tuple[Epoch, Position], ...], epoch: Epoch, position: Position
) -> tuple[tuple[Epoch, Position], ...]:
    older = ends[1:] if ends and ends[0][0] == epoch else ends
    return ((epoch, position), *older)[:EPOCHS_MAX]


def _connect(store: SqliteStore) -> sqlite3.Connection:
    make_private(store.path)  # SQLite gives its other files the same mode
    try:
        db = store.writer()
        db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    except sqlite3.Error as fault:
        if is_damage(fault):
            raise RecordDamaged(0, str(fault)) from fault
        raise
    return db


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    try:
        migrate(db, path, LOG_STEPS, _APPLICATION_ID)
    except ForeignStore as fault:
        raise RecordDamaged(0, str(fault)) from fault


def _checked(
    db: sqlite3.Connection, after: int = 0, through: int = 2**62, *, due: int = 0
) -> Generator[Stored, None, None]:
    """Yield rows in order (J3). `due`: the position of the first; 0 = any. Raises: RecordDamaged, sqlite3.Error."""
    last = after
    try:
        select = "SELECT position, epoch, crc, record FROM event WHERE position > ? AND position <= ? ORDER BY position"
        # No name for the cursor: the traceback of a fault would keep it open, and with it what it reads.
        for row in db.execute(select, (after, through)):
            found = proved(row, due)
            last, due = found.position, found.position + 1
            yield found
    except sqlite3.Error as fault:
        if is_damage(fault):
            raise RecordDamaged(last + 1, str(fault), unreadable=True) from fault
        raise
