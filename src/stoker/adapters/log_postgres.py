"""How does the event log live in PostgreSQL?

Rules: L1 to L5 of the port, and
       P1  an append is one statement and so one transaction: it moves the end of the log from where the writer believes
           it to be, under an epoch not below the newest, and adds the rows only if that moved. A stale writer changes
           nothing, whatever locks it thought to hold
       P2  a connection that breaks during an append leaves open whether it was done. A new connection reads the end:
           if it bears the mark of that very append it was done, if it hasn't moved it is done once more, else another
           writer was here. So a restart of the server loses and doubles nothing
       P4  every row that is read is checked: its place, its epoch's order, its checksum
       P5  the newest snapshot is answered; if it is damaged the older one is, with a warning, provided that the log
           reaches back to it; otherwise LogDamaged
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final

import psycopg

from stoker.adapters import postgres_snapshots as snapshots
from stoker.adapters.postgres_link import LOST, RECONNECT_S, Connection, PostgresLink, one, whole
from stoker.adapters.postgres_schema import migrate
from stoker.adapters.record_check import RecordDamaged, checksum
from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import Clock, Entropy, LogConflict, LogDamaged, LogFailed, Snapshot, Telemetry

LOOK_BACK_MAX: Final = 50_000
READ_ROWS: Final = 1_000
TRIM_ROWS: Final = 2_000

_APPEND: Final = """
WITH moved AS (
    UPDATE stoker_end SET epoch = %(epoch)s, position = %(end)s, append = %(append)s
    WHERE position = %(position)s AND epoch <= %(epoch)s
    RETURNING 1
)
INSERT INTO stoker_event (position, epoch, crc, record)
SELECT at, %(epoch)s, crc, record
FROM unnest(%(positions)s::bigint[], %(crcs)s::bigint[], %(records)s::bytea[]) AS row (at, crc, record)
WHERE EXISTS (SELECT FROM moved)
"""
_FIRST: Final = "SELECT coalesce(min(position), 0) FROM stoker_event"


class PostgresLog:
    """The `EventLog` port on one database."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        entropy: Entropy,
        telemetry: Telemetry,
        *,
        look_back_max: int = LOOK_BACK_MAX,
        reconnect_s: float = RECONNECT_S,
    ) -> None:
        """`url`: as libpq reads it; several hosts are tried in turn for one that takes writes."""
        self._link = PostgresLink(url, clock, telemetry, reconnect_s)
        self._entropy = entropy
        self._telemetry = telemetry
        self._look_back_max = look_back_max
        self._appending = asyncio.Lock()
        self._refusal: LogConflict | LogFailed | None = None
        self._end = Position(0)

    async def open(self) -> Position:
        """Raises: StokerError (`store_unreachable`, `store_held`, `store_too_new`), LogDamaged."""
        try:
            await self._link.open()
            await migrate(self._link.writer)
            row = await one(self._link.writer, "SELECT position FROM stoker_end")
            self._end = Position(whole(row[0]))
            await self._check()
        except psycopg.Error as fault:
            await self.close()
            raise self._link.unreachable(fault) from fault
        except BaseException:
            await self.close()
            raise
        return self._end

    async def append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        async with self._appending:
            if self._refusal is not None:
                raise self._refusal
            try:
                if records:
                    await self._append(epoch, position, records)
            except (LogConflict, LogFailed) as refusal:
                self._refusal = refusal
                raise
            self._end = Position(position + len(records))

    async def _append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        """P1"""
        at = range(position + 1, position + 1 + len(records))
        mark = self._entropy.uid()
        values = {
            "epoch": epoch,
            "position": position,
            "end": position + len(records),
            "append": mark,
            "positions": list(at),
            "crcs": [checksum(each, epoch, record) for each, record in zip(at, records, strict=True)],
            "records": list(records),
        }
        while True:
            try:
                done = await self._link.writer.execute(_APPEND, values)
            except psycopg.IntegrityError as fault:
                raise LogConflict(f"another writer has added records after {position}") from fault
            except LOST as fault:
                if await self._was_done(position, mark, fault):
                    return
            except psycopg.Error as fault:
                raise LogFailed(f"PostgreSQL refused the append: {self._link.words(fault)}") from fault
            else:
                if done.rowcount == len(records):
                    return
                raise await self._conflict(epoch, position)

    async def _was_done(self, position: Position, mark: str, fault: psycopg.Error) -> bool:
        """P2, on a new connection."""
        stored, newest = await self._link.again(lambda db: one(db, "SELECT position, append FROM stoker_end"), fault)
        if newest != mark and stored != position:
            raise LogConflict(f"the log ends at {stored}, not at {position}: another writer was here")
        return newest == mark

    async def _conflict(self, epoch: Epoch, position: Position) -> LogConflict:
        try:
            stored, newest = await one(self._link.writer, "SELECT position, epoch FROM stoker_end")
        except psycopg.Error as fault:
            return LogConflict(f"the log doesn't end at {position} under epoch {epoch}: {self._link.words(fault)}")
        if whole(newest) > epoch:
            return LogConflict(f"the log has epoch {newest}; epoch {epoch} is over")
        return LogConflict(f"the log ends at {stored}, not at {position}: another writer was here")

    async def follow(self, position: Position) -> AsyncIterator[tuple[Position, bytes]]:
        through = self._end
        while position < through:
            rows = await self._read(position, through)
            for at, _, record in rows:
                yield at, record
            position = rows[-1][0]

    async def _read(self, position: Position, through: Position) -> list[tuple[Position, int, bytes]]:
        """P4: the next rows, at most READ_ROWS. Raises: LogDamaged, LogFailed."""
        found: list[tuple[Position, int, bytes]] = []
        due = int(position)
        for at, epoch, crc, record in await self._link.aside(partial(_rows, position=position, through=through)):
            due += 1
            if at != due:
                raise _damaged(RecordDamaged(due, f"it isn't there; the next one is {at}"))
            if not isinstance(record, bytes) or checksum(due, whole(epoch), record) != crc:
                raise _damaged(RecordDamaged(due, "its checksum doesn't agree with its content"))
            found.append((Position(due), whole(epoch), record))
        if not found:
            raise _damaged(RecordDamaged(due + 1, "it isn't there"))
        return found

    async def _check(self) -> None:
        """A damaged row is refused at start, not found when it is needed."""
        first, epoch = await self._first(), 0
        if not first and self._end and not await self._link.aside(snapshots.positions):
            raise _damaged(RecordDamaged(self._end, "it isn't there"))
        at = Position(first - 1)
        while first and at < self._end:
            for position, its_epoch, _ in await self._read(at, self._end):
                if its_epoch < epoch:
                    known = f"its epoch is {its_epoch} although {epoch} came before"
                    raise _damaged(RecordDamaged(position, known))
                at, epoch = position, its_epoch

    async def _first(self) -> int:
        """The oldest position; 0 = there is none."""
        return whole((await self._link.aside(lambda db: one(db, _FIRST)))[0])

    async def snapshot(self) -> Snapshot | None:
        """P5"""
        kept, first = await self._link.aside(snapshots.positions), await self._first()
        for position in kept:
            found = await self._link.aside(partial(snapshots.load, position=position))
            if found is None:
                self._telemetry.warn("snapshot_damaged", error="it isn't what was written", used=position)
            elif position == self._end or 0 < first <= position + 1:
                return found
        if kept and first != 1:
            raise LogDamaged(
                "no snapshot is whole to which the log reaches back; recover the database from a backup of it"
            )
        return None

    async def save_snapshot(self, position: Position, chunks: Sequence[bytes]) -> None:
        """Raises: StokerError `store_unreachable` when it can't be written. What was acknowledged is not harmed."""
        assert position <= self._end, f"a snapshot at {position} of a log that ends at {self._end}"
        try:
            await self._link.aside(partial(snapshots.save, position=position, chunks=chunks))
            await self._trim()
        except LogFailed as fault:
            raise StokerError(refuse("store_unreachable", str(fault), "it is tried again")) from fault

    async def _trim(self) -> None:
        """Behind the older kept snapshot, less the look back; never the last row."""
        kept = await self._link.aside(snapshots.positions)
        if len(kept) == snapshots.KEPT:
            through = Position(min(kept[-1] - self._look_back_max, self._end - 1))
            while await self._link.aside(partial(_trim, through=through)) == TRIM_ROWS:
                pass

    async def close(self) -> None:
        """Safe to call twice, and after `open` failed."""
        async with self._appending:
            await self._link.close()


def _damaged(fault: RecordDamaged) -> LogDamaged:
    hint = "recover the database from a backup of it, or ask for help with this message"
    return LogDamaged(f"record {fault.position} can't be trusted: {fault}; {hint}")


async def _rows(db: Connection, position: Position, through: Position) -> list[tuple[object, ...]]:
    cursor = await db.execute(
        "SELECT position, epoch, crc, record FROM stoker_event WHERE position > %s AND position <= %s "
        "ORDER BY position LIMIT %s",
        (position, through, READ_ROWS),
        binary=True,
    )
    return await cursor.fetchall()


async def _trim(db: Connection, through: Position) -> int:
    """How many of the oldest rows went: at most TRIM_ROWS."""
    cursor = await db.execute(
        "DELETE FROM stoker_event WHERE position <= least(%s, (SELECT min(position) FROM stoker_event) + %s - 1)",
        (through, TRIM_ROWS),
    )
    return cursor.rowcount
