"""History of jobs, usage and audit in PostgreSQL, beside the event log, for asyncio callers.

Its connections are its own, and each is used by one thread: neither an append nor the event loop ever waits for them.
What a batch locks are rows of the history alone; the end of the log is read and never locked.

Rules: those of `history_sql.tables`, P6 and P8 of `postgres.connection`, and
       W1  a batch and the mark it moves are one transaction, which changes nothing unless the log beside it reaches as
           far, the epoch of the writer isn't over there, and the mark is of the same cluster and no further: a
           control plane that was replaced, and wakes up, undoes nothing. Where several reach it, nothing is put back
           either while the log goes on
       W2  whoever stops in the middle of a batch is cut off by the server after IDLE_S, so that whoever takes over
           isn't held up; what waits for a lock gives up after LOCK_S, and what reads after READ_S
       W3  its schema has steps and a number of its own: a newer one, or rights that are missing, stop the history and
           not the log
       W4  a copy is an SQLite file, as every backup has it, made from one moment of the database
       W5  what `history.db` of the folder has from before is moved here, unless it is another cluster's, or goes on
           beyond the log; the file is kept under another name
Limits: a text with a zero byte, which PostgreSQL refuses, is kept with other characters in its place.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import psycopg
from psycopg import Connection

from stoker.adapters.history_sql import statements as sql
from stoker.adapters.history_sql import tables
from stoker.adapters.history_sql.tables import RecordUnreadable, SqlHistory, mark_of
from stoker.adapters.log_policy import steps_in, too_new
from stoker.adapters.postgres.connection import DURABLY, LOST, options_for, words_of
from stoker.adapters.postgres.schema import HISTORY_RIGHTS, LACKING, OWN_IT, rights_in
from stoker.adapters.sqlite.history import EarlierFile, FileCopy, Rows, fill_file
from stoker.brain.domain.audit import SLOTS
from stoker.brain.domain.errors import StokerError
from stoker.ports import HistoryBatch, HistoryCopy, HistoryFailed, HistoryMark, HistoryTooNew

IDLE_S: Final = 10
LOCK_S: Final = 20
READ_S: Final = 60
COPY_ROWS: Final = 2_000
"""Read at once for a copy."""
LACKS_MAX: Final = 3
"""Of rights that are missing so many are named."""
ENCODINGS: Final = ("UTF8", "SQL_ASCII")

_STEPS: Final = steps_in(sql.STEPS)
NEWEST: Final = max(_STEPS)
_LOCK: Final = 0x53544B48
"""Of the advisory lock under which the tables are made: 'STKH'."""
_OWN_TABLES: Final = """
CREATE TABLE IF NOT EXISTS stoker_history_schema (version integer NOT NULL);
CREATE TABLE IF NOT EXISTS stoker_history_writer (name text PRIMARY KEY, slot integer NOT NULL UNIQUE)
"""
_NEW_WRITER: Final = """
INSERT INTO stoker_history_writer (name, slot) SELECT %s, coalesce(max(slot) + 1, 0) FROM stoker_history_writer
ON CONFLICT (name) DO NOTHING
"""
_MOVE_MARK: Final = """
INSERT INTO stoker_history_mark AS mark (one, cluster_id, position)
SELECT 1, %(cluster)s, %(position)s FROM stoker_end
WHERE stoker_end.position >= %(position)s AND stoker_end.epoch <= coalesce(%(epoch)s, stoker_end.epoch)
ON CONFLICT (one) DO UPDATE SET cluster_id = excluded.cluster_id, position = excluded.position
WHERE mark.cluster_id IN ('', excluded.cluster_id) AND mark.position <= excluded.position
"""
_STANDING: Final = "SELECT position, epoch, (SELECT position FROM stoker_history_mark) FROM stoker_end"
_ESCAPE: Final = "\x01"
_ESCAPED: Final = str.maketrans({"\x01": "\x01a", "\x00": "\x01b"})

Row = tuple[Any, ...]


class _Refused(Exception):
    """A batch or a rewind that the database's own state forbids (W1)."""


class PostgresHistory(SqlHistory):
    """The `History` port on one database."""

    way_out = "drop the tables whose names begin with stoker_history_, or let store.url name that cluster's database"
    faults = (psycopg.Error, StokerError, RecordUnreadable, _Refused)

    def __init__(self, url: str, folder: Path, *, name: str, shared: bool) -> None:
        """`folder`: of this control plane; copies are made in it. `name`: what it is called among those that share."""
        super().__init__(f"a copy can't be made in {folder.absolute()}")
        self.shared = shared
        self._url = url
        self._folder = folder.absolute()
        self._name = name
        self._writer: Connection[Row] | None = None
        self._reader: Connection[Row] | None = None
        self._reads = False

    async def adopt(self, mark: HistoryMark) -> HistoryMark | None:
        return await self._in(self._writing, self._adopt, mark)

    def _as_failed(self, fault: Exception) -> HistoryFailed:
        if isinstance(fault, StokerError):
            return HistoryTooNew(fault.refusal.message)
        said = words_of(fault, self._url)
        hint = f"; {OWN_IT}" if isinstance(fault, psycopg.errors.InsufficientPrivilege) else ""
        return HistoryFailed(f"the history in the database of store.url can't be used: {said}{hint}")

    # -- connections -----------------------------------------------------------------------------------------------

    def _connect(self, **limits_s: int) -> Connection[Row]:
        db: Connection[Row] = psycopg.connect(self._url, **options_for(self._url), client_encoding="UTF8")
        try:
            for name, limit_s in limits_s.items():
                db.execute("SELECT set_config(%s, %s, false)", (name, f"{limit_s}s"))
        except BaseException:
            _close(db)
            raise
        return db

    def _open_writer(self) -> HistoryMark:
        self._close_writer()
        db = self._connect(idle_in_transaction_session_timeout=IDLE_S, lock_timeout=LOCK_S)
        try:
            db.execute(DURABLY)
            self.writer_slot = _migrated(db, self._name)
            mark = mark_of(db.execute(sql.for_postgres(sql.READ_MARK)).fetchall())
        except BaseException:
            _close(db)
            raise
        self._writer = db
        return mark

    def _open_reader(self) -> None:
        self._close_reader()
        self._reads = True
        self._reader = self._connect(statement_timeout=READ_S)

    def _close_writer(self) -> None:
        if self._writer is not None:
            _close(self._writer)
            self._writer = None

    def _close_reader(self) -> None:
        if self._reader is not None:
            _close(self._reader)
            self._reader = None

    # -- writing ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _changing(self) -> Iterator["_Changes"]:
        if self._writer is None:
            raise psycopg.OperationalError("it isn't open")
        with self._writer.transaction():
            yield _Changes(self._writer)

    def _move_mark(self, db: tables.Transaction, batch: HistoryBatch) -> None:
        """Move the mark, if the log, the epoch and the mark allow it (W1)."""
        assert isinstance(db, _Changes), "of this store"
        cluster, position = batch.mark.cluster_id, batch.mark.position
        named = {"cluster": cluster, "position": position, "epoch": batch.epoch}
        if db.of.execute(_MOVE_MARK, named).rowcount != 1:
            end, epoch, mark = db.of.execute(_STANDING).fetchone() or (0, 0, None)
            raise _Refused(
                f"what reaches to {position} of cluster {cluster} in epoch {batch.epoch or 'of its only writer'} is "
                f"refused: the log ends at {end} in epoch {epoch}, and the history reaches to {mark or 0}"
            )

    def _rewind(self, mark: HistoryMark) -> HistoryMark:
        if self.shared:
            with self._changing() as db:
                end = db.execute("SELECT position FROM stoker_end").fetchall()[0][0]
            if end > mark.position:
                raise _Refused(f"it isn't put back to {mark.position}: the log goes on to {end}")
        return super()._rewind(mark)

    def _adopt(self, mark: HistoryMark) -> HistoryMark | None:
        """Move `history.db` here, once (W5)."""
        earlier = EarlierFile(self._folder)
        found = earlier.read(
            self._put_missing, lambda has: has.cluster_id == mark.cluster_id and has.position <= mark.position
        )
        if found is None:
            return None
        with self._changing() as db:
            stands = mark_of(db.execute(sql.READ_MARK).fetchall())
            if not stands.cluster_id:
                db.execute(sql.MARK, (found.cluster_id, found.position))
                stands = found
        with suppress(OSError):  # then it is done once more at the next start, and changes nothing
            earlier.put_aside()
        return stands

    def _put_missing(self, table: str, rows: Rows) -> None:
        with self._changing() as db:
            db.executemany(sql.insert(table), rows)

    # -- reading ---------------------------------------------------------------------------------------------------

    def _selected(self, statement: str, values: Sequence[sql.Value]) -> list[Row]:
        """On a new connection once, where the one that is there was lost while nobody looked."""
        if not self._reads:
            raise psycopg.OperationalError("it isn't open")
        if self._reader is not None:
            try:
                return _Changes(self._reader).execute(statement, values).fetchall()
            except LOST as fault:
                if isinstance(fault, psycopg.errors.QueryCanceled):
                    raise
        self._open_reader()
        assert self._reader is not None, "it was just opened"
        return _Changes(self._reader).execute(statement, values).fetchall()

    def _taken(self) -> HistoryCopy:
        """Return a copy of this moment as an SQLite file (W4)."""
        if self._writer is None:
            raise psycopg.OperationalError("it isn't open")
        with closing(self._connect(idle_in_transaction_session_timeout=READ_S)) as db, db.transaction():
            db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            mark = mark_of(db.execute(sql.for_postgres(sql.READ_MARK)).fetchall())
            all_rows = [(table, _every_row(db, table)) for table in sql.TABLES]
            place = self._folder / tables.HISTORY_NAME
            return FileCopy(place, self._copying, lambda beside, fd: fill_file(beside, fd, mark, all_rows))


class _Result(NamedTuple):
    """Rows that a statement found, with texts as they were given, and how many it changed."""

    cursor: psycopg.Cursor[Row]

    @property
    def rowcount(self) -> int:
        return self.cursor.rowcount

    def fetchall(self) -> list[Row]:
        return [_read(row) for row in self.cursor.fetchall()]


class _Changes:
    """A connection that takes statements and texts as they are in both stores."""

    def __init__(self, db: Connection[Row]) -> None:
        self.of = db

    def execute(self, statement: str, values: Sequence[sql.Value] = (), /) -> _Result:
        return _Result(self.of.execute(cast(Any, sql.for_postgres(statement)), _kept(values)))

    def executemany(self, statement: str, rows: Iterable[Sequence[sql.Value]], /) -> None:
        self.of.cursor().executemany(cast(Any, sql.for_postgres(statement)), [_kept(row) for row in rows])


def _migrated(db: Connection[Row], name: str) -> int:
    """Bring the tables up to date (W3); return the slot of the writer of this name.

    Raises: StokerError `store_too_new`, _Refused, psycopg.Error.
    """
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        (encoding,) = _one(db, "SELECT current_setting('server_encoding')")
        if encoding not in ENCODINGS:
            raise _Refused(f"that database is encoded as {encoding}: make one with `createdb -E UTF8 -T template0`")
        db.execute(_OWN_TABLES)
        (have,) = _one(db, "SELECT coalesce(max(version), 0) FROM stoker_history_schema")
        if have > NEWEST:
            raise StokerError(too_new("the history in the database of store.url", have, NEWEST))
        for version, step in _STEPS.items():
            if version > have:
                db.execute(cast(Any, sql.step_for_postgres(step.read_text("utf-8"))))
                db.execute("INSERT INTO stoker_history_schema VALUES (%s)", (version,))
        if lacks := [right for (right,) in db.execute(LACKING, rights_in(HISTORY_RIGHTS)).fetchall()]:
            named = ", ".join(lacks[:LACKS_MAX]) + (f" and {len(lacks) - LACKS_MAX} more" if lacks[LACKS_MAX:] else "")
            raise _Refused(f"the account lacks rights: {named}; {OWN_IT}")
        db.execute(_NEW_WRITER, (name,))
        (slot,) = _one(db, "SELECT slot FROM stoker_history_writer WHERE name = %s", name)
    return int(slot) % SLOTS


def _one(db: Connection[Row], statement: str, *values: str) -> Row:
    row = db.execute(cast(Any, statement), values).fetchone()
    assert row is not None, f"no row: {statement}"
    return row


def _every_row(db: Connection[Row], table: str) -> Iterator[Row]:
    with db.cursor(f"all_{table}") as cursor:
        cursor.itersize = COPY_ROWS
        cursor.execute(cast(Any, sql.for_postgres(sql.select_all(table))))
        for row in cursor:
            yield _read(row)


def _kept(row: Sequence[sql.Value]) -> tuple[sql.Value, ...]:
    """Return values as PostgreSQL keeps them, which has no zero byte in a text."""
    return tuple(
        value.translate(_ESCAPED) if isinstance(value, str) and ("\x00" in value or _ESCAPE in value) else value
        for value in row
    )


def _read(row: Row) -> Row:
    """Return values as they were given."""
    return tuple(
        value.replace("\x01b", "\x00").replace("\x01a", _ESCAPE)
        if isinstance(value, str) and _ESCAPE in value
        else value
        for value in row
    )


def _close(db: Connection[Row]) -> None:
    with suppress(psycopg.Error):
        db.close()
