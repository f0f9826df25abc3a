"""Reader of an SQLite log beside the thread that writes it."""

import sqlite3
from collections.abc import Generator
from contextlib import closing
from typing import Final

from stoker.adapters.record_check import RecordDamaged, checksum
from stoker.adapters.sqlite.store import SqliteStore, is_damage
from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import Stored

READ_ROWS: Final = 1_000
READ_BYTES: Final = 4 * 1024 * 1024
"""Of one page of records: it ends with the one that reaches this."""


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
        with closing(checked(self._db, position, min(through, position + most))) as rows:
            for row in rows:
                found.append(row)
                size += len(row.record)
                if size >= READ_BYTES:
                    break
        if found and found[0].position != position + 1:
            raise RecordDamaged(position + 1, f"it isn't there; the next one is {found[0].position}")
        if not found and position < through:
            raise RecordDamaged(position + 1, "it isn't there")
        return found

    def close(self) -> None:
        self._db.close()


def move_wal(store: SqliteStore) -> None:
    """Copy what the WAL holds into the store, beside a working writer. Raises sqlite3.Error."""
    with closing(store.mover()) as db:
        db.execute("PRAGMA wal_checkpoint(PASSIVE)")


def checked(db: sqlite3.Connection, after: int, through: int = 2**62) -> Generator[Stored, None, None]:
    """Yield rows in order, each proved to be the one that was written and to follow the one before it.

    Raises: RecordDamaged, sqlite3.Error.
    """
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
            yield Stored(Position(position), Epoch(epoch), record)
    except sqlite3.Error as fault:
        if is_damage(fault):
            raise RecordDamaged(last + 1 if last else after + 1, str(fault), unreadable=True) from fault
        raise
