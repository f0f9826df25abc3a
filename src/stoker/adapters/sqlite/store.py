"""Opening of SQLite stores, their schemas and transactions, and the meaning of their faults.

Rules: O1  WAL with synchronous=FULL: a commit returns after the store's own fsync
       O2  on a full disk it opens all the same, so that what is in it can be read: SQLite then keeps in memory what it
           usually shares with other processes through a file, and those are kept out
       O3  each step of a schema is one transaction together with its number; a store of another program is left as it
           is, as that of a newer Stoker
"""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from stoker.adapters.history_sql.statements import STEPS
from stoker.adapters.log_policy import steps_in, too_new
from stoker.brain.domain.errors import Refusal, StokerError

LOG_STEPS: Final = Path(__file__).parent / "migrations"
HISTORY_STEPS: Final = STEPS
_SHARED: Final = "unix"
_ALONE: Final = "unix-excl"
"""O2. SQLite's own: locks held for as long as it is open, and the index of the WAL in memory."""
_NO_ROOM: Final = ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_SHMOPEN", "SQLITE_IOERR_SHMMAP")
_SQLITE_ERRNO: Final = {
    "SQLITE_FULL": errno.ENOSPC,
    "SQLITE_IOERR_SHMSIZE": errno.ENOSPC,
    "SQLITE_READONLY": errno.EROFS,
    "SQLITE_IOERR": errno.EIO,
    "SQLITE_PERM": errno.EACCES,
    "SQLITE_CANTOPEN": errno.EACCES,
}
_MAGIC: Final = b"SQLite format 3\x00"
_VERSION_AT: Final = slice(60, 64)
"""Of `user_version` in the header of the file (sqlite.org/fileformat.html, 1.3)."""


class ForeignStore(Exception):
    """An SQLite database, but not the one that belongs here."""


class SqliteStore:
    """A store that is there, and how this process opens it."""

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self.path = path
        self._busy_timeout_s = busy_timeout_s
        self._how = _SHARED

    def writer(self) -> sqlite3.Connection:
        """O1 and O2. The first connection of a process. Raises: sqlite3.Error."""
        try:
            return self._begun()
        except sqlite3.Error as fault:
            if not str(getattr(fault, "sqlite_errorname", "")).startswith(_NO_ROOM):
                raise
            self._how = _ALONE
            return self._begun()

    def reader(self) -> sqlite3.Connection:
        """One that neither waits for the writer nor holds it up, usable from any thread. Raises: sqlite3.Error."""
        return self._connected("&mode=ro", self._busy_timeout_s, any_thread=True)

    def mover(self) -> sqlite3.Connection:
        """One that gives up at once where it would have to wait. Raises: sqlite3.Error."""
        return self._connected("", 0.0)

    def _begun(self) -> sqlite3.Connection:
        db = self._connected("", self._busy_timeout_s)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA user_version").fetchone()  # the first look at the WAL, and at the room for its index
        except BaseException:
            db.close()
            raise
        return db

    def _connected(self, mode: str, timeout_s: float, *, any_thread: bool = False) -> sqlite3.Connection:
        uri = f"{self.path.as_uri()}?vfs={self._how}{mode}"
        return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=timeout_s, check_same_thread=not any_thread)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Make all of the block or nothing of it durable. Raises: sqlite3.Error."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            with suppress(sqlite3.Error):  # the first fault is the one to tell
                db.execute("ROLLBACK")
        raise


def migrate(db: sqlite3.Connection, path: Path, steps_folder: Path, application_id: int) -> None:
    """Run the steps that are missing (O3). Raises: StokerError `store_too_new`, ForeignStore, sqlite3.Error."""
    steps = steps_in(steps_folder)
    have = int(db.execute("PRAGMA user_version").fetchone()[0])
    if have > max(steps):
        raise StokerError(too_new(str(path), have, max(steps)))
    if have and db.execute("PRAGMA application_id").fetchone()[0] != application_id:
        raise ForeignStore("it is an SQLite database, but not one of Stoker's")
    for number, step in steps.items():
        if number > have:
            db.executescript(f"BEGIN IMMEDIATE;\n{step.read_text('utf-8')}\nPRAGMA user_version = {number};\nCOMMIT;")


def newer_schema(path: Path, steps_folder: Path) -> Refusal | None:
    """Return whether `migrate` would refuse this file as too new, judged by its header.

    To open it may be to change it; what a killed process left beside the file isn't seen. Raises: OSError.
    """
    with path.open("rb") as file:
        header = file.read(_VERSION_AT.stop)
    newest = max(steps_in(steps_folder))
    have = int.from_bytes(header[_VERSION_AT], "big", signed=True) if header.startswith(_MAGIC) else 0
    return too_new(str(path), have, newest) if have > newest else None


def words(fault: sqlite3.Error) -> str:
    """The operating system's words for what SQLite reports, and SQLite's own."""
    number = _errno(fault)
    return str(fault) if number is None else f"{os.strerror(number)} ({fault})"


def as_os_error(fault: sqlite3.Error) -> OSError:
    number = _errno(fault) or errno.EIO
    return OSError(number, f"{os.strerror(number)} ({fault})")


def is_damage(fault: sqlite3.Error) -> bool:
    return str(getattr(fault, "sqlite_errorname", "")).startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


def _errno(fault: sqlite3.Error) -> int | None:
    name = str(getattr(fault, "sqlite_errorname", ""))
    return next((number for prefix, number in _SQLITE_ERRNO.items() if name.startswith(prefix)), None)
