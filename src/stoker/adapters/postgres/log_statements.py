"""SQL statements for the records of the log in PostgreSQL."""

from collections.abc import Sequence
from typing import Final

from stoker.adapters.postgres.connection import CHANNEL, PostgresConnection, one, whole
from stoker.adapters.record_check import RecordDamaged, checksum
from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import Stored

READ_ROWS: Final = 1_000
READ_BYTES: Final = 4 * 1024 * 1024
"""Of one page of records: it ends with the one that reaches this."""
APPEND: Final = f"""
WITH moved AS (
    UPDATE stoker_end SET epoch = %(epoch)s, position = %(end)s, append = %(append)s
    WHERE position = %(position)s AND epoch <= %(epoch)s
    RETURNING CASE WHEN %(tell)s THEN pg_notify('{CHANNEL}', '') END
)
INSERT INTO stoker_event (position, epoch, crc, record)
SELECT at, %(epoch)s, crc, record
FROM unnest(%(positions)s::bigint[], %(crcs)s::bigint[], %(records)s::bytea[]) AS row (at, crc, record)
WHERE EXISTS (SELECT FROM moved)
"""
_ONE_MOMENT: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_NEXT: Final = """
SELECT position, epoch, crc, record FROM (
    SELECT position, epoch, crc, record, sum(length(record)) OVER (ORDER BY position) - length(record) AS before
    FROM (
        SELECT position, epoch, crc, record FROM stoker_event WHERE position > %s AND position <= %s
        ORDER BY position LIMIT %s
    ) AS page
) AS summed WHERE before < %s ORDER BY position
"""


def append_values(
    epoch: Epoch, position: Position, records: Sequence[bytes], *, mark: str, tell: bool
) -> dict[str, object]:
    """Return the parameters of APPEND for records behind a position."""
    at = range(position + 1, position + 1 + len(records))
    return {
        "epoch": epoch,
        "position": position,
        "end": position + len(records),
        "append": mark,
        "tell": tell,
        "positions": list(at),
        "crcs": [checksum(each, epoch, record) for each, record in zip(at, records, strict=True)],
        "records": list(records),
    }


async def end(db: PostgresConnection) -> Position:
    return Position(whole((await one(db, "SELECT position FROM stoker_end"))[0]))


async def reaches_beyond(db: PostgresConnection, position: Position) -> bool:
    return await end(db) > position


async def first(db: PostgresConnection) -> int:
    """The oldest position; 0 = there is none."""
    return whole((await one(db, "SELECT coalesce(min(position), 0) FROM stoker_event"))[0])


async def after(db: PostgresConnection, position: Position, through: Position, most: int = READ_ROWS) -> list[Stored]:
    """The next rows, each proved to be the one that was written; at least one. Raises: RecordDamaged."""
    found: list[Stored] = []
    due = int(position)
    cursor = await db.execute(_NEXT, (position, through, most, READ_BYTES), binary=True)
    for at, epoch, crc, record in await cursor.fetchall():
        due += 1
        if at != due:
            raise RecordDamaged(due, f"it isn't there; the next one is {at}")
        if not isinstance(record, bytes) or checksum(due, whole(epoch), record) != crc:
            raise RecordDamaged(due, "its checksum doesn't agree with its content")
        found.append(Stored(Position(due), Epoch(whole(epoch)), record))
    if not found:
        raise RecordDamaged(due + 1, "it isn't there")
    return found


async def proved(db: PostgresConnection) -> tuple[Position, Epoch]:
    """Return the end of the log and its epoch, after reading every row as of one moment.

    A damaged row is refused at start, not found when it is needed. Raises: RecordDamaged.
    """
    async with db.transaction():
        await db.execute(_ONE_MOMENT)
        row = await one(db, "SELECT position, epoch FROM stoker_end")
        last, floor, oldest, epoch = Position(whole(row[0])), Epoch(whole(row[1])), await first(db), 0
        if not oldest and last and not await _has_snapshot(db):
            raise RecordDamaged(last, "it isn't there")
        at = Position(oldest - 1)
        while oldest and at < last:
            for row in await after(db, at, last):
                if row.epoch < epoch:
                    raise RecordDamaged(row.position, f"its epoch is {row.epoch} although {epoch} came before")
                at, epoch = row.position, row.epoch
    return last, floor


async def _has_snapshot(db: PostgresConnection) -> bool:
    return bool((await one(db, "SELECT EXISTS (SELECT FROM stoker_snapshot)"))[0])


async def trim(db: PostgresConnection, through: Position, most: int) -> int:
    """Delete the oldest rows and return how many went."""
    cursor = await db.execute(
        "DELETE FROM stoker_event WHERE position <= least(%s, (SELECT min(position) FROM stoker_event) + %s - 1)",
        (through, most),
    )
    return cursor.rowcount
