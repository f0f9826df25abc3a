"""SQL statements for the records and the snapshots of the log in PostgreSQL.

Rules: N1  a snapshot is written in one transaction: it is there whole or not at all
"""

import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from stoker.adapters.log_policy import KEPT, READ_BYTES, READ_ROWS, RecordDamaged, checksum, proved
from stoker.adapters.postgres.connection import CHANNEL, PostgresConnection, number, one, whole
from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import Snapshot, Stored

CHUNKS_PER_STATEMENT: Final = 8
"""Of a snapshot: some megabytes."""
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
_BEGINNING: Final = """
SELECT coalesce((SELECT chunk FROM stoker_snapshot_chunk WHERE number = 0 ORDER BY position DESC LIMIT 1),
                (SELECT record FROM stoker_event ORDER BY position LIMIT 1), '')
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


class _Created(msgspec.Struct):
    cluster_id: str = ""


class _Beginning(msgspec.Struct):
    """Of a snapshot, or of the log's first record."""

    cluster_id: str = ""
    event: _Created = msgspec.field(default_factory=_Created)


async def cluster_of(db: PostgresConnection) -> str:
    """Return the id of the cluster whose log it is; empty = not known, or none has begun."""
    (beginning,) = await one(db, _BEGINNING)
    with suppress(msgspec.MsgspecError):
        if isinstance(beginning, bytes) and beginning:
            found = msgspec.json.decode(beginning, type=_Beginning)
            return found.cluster_id or found.event.cluster_id
    return ""


async def end(db: PostgresConnection) -> Position:
    return Position(await number(db, "SELECT position FROM stoker_end"))


async def reaches_beyond(db: PostgresConnection, position: Position) -> bool:
    return await end(db) > position


async def first(db: PostgresConnection) -> int:
    """The oldest position; 0 = there is none."""
    return await number(db, "SELECT coalesce(min(position), 0) FROM stoker_event")


async def after(db: PostgresConnection, position: Position, through: Position, most: int = READ_ROWS) -> list[Stored]:
    """The next rows, each proved to be the one that was written; at least one. Raises: RecordDamaged."""
    cursor = await db.execute(_NEXT, (position, through, most, READ_BYTES), binary=True)
    found = [proved(row, due) for due, row in enumerate(await cursor.fetchall(), position + 1)]
    if not found:
        raise RecordDamaged(position + 1, "it isn't there")
    return found


async def proved_end(db: PostgresConnection) -> tuple[Position, Epoch]:
    """Return the end of the log and its epoch, after reading every row as of one moment.

    A damaged row is refused at start, not found when it is needed. Raises: RecordDamaged.
    """
    async with db.transaction():
        await db.execute(_ONE_MOMENT)
        row = await one(db, "SELECT position, epoch FROM stoker_end")
        last, floor, oldest, epoch = Position(whole(row[0])), Epoch(whole(row[1])), await first(db), 0
        if not oldest and last and not await snapshots(db):
            raise RecordDamaged(last, "it isn't there")
        at = Position(oldest - 1)
        while oldest and at < last:
            for row in await after(db, at, last):
                if row.epoch < epoch:
                    raise RecordDamaged(row.position, f"its epoch is {row.epoch} although {epoch} came before")
                at, epoch = row.position, row.epoch
    return last, floor


async def trim(db: PostgresConnection, through: Position, most: int) -> int:
    """Delete the oldest rows and return how many went."""
    cursor = await db.execute(
        "DELETE FROM stoker_event WHERE position <= least(%s, (SELECT min(position) FROM stoker_event) + %s - 1)",
        (through, most),
    )
    return cursor.rowcount


async def save_snapshot(db: PostgresConnection, position: Position, chunks: Sequence[bytes]) -> None:
    async with db.transaction():
        await db.execute("DELETE FROM stoker_snapshot WHERE position = %s", (position,))
        await db.execute("INSERT INTO stoker_snapshot VALUES (%s, %s, %s)", (position, len(chunks), _crc(chunks)))
        for at in range(0, len(chunks), CHUNKS_PER_STATEMENT):
            some = list(chunks[at : at + CHUNKS_PER_STATEMENT])
            await db.execute(
                "INSERT INTO stoker_snapshot_chunk "
                "SELECT %s, number, chunk FROM unnest(%s::integer[], %s::bytea[]) AS row (number, chunk)",
                (position, list(range(at, at + len(some))), some),
            )
        await db.execute(
            "DELETE FROM stoker_snapshot WHERE position NOT IN "
            "(SELECT position FROM stoker_snapshot ORDER BY position DESC LIMIT %s)",
            (KEPT,),
        )


async def snapshots(db: PostgresConnection) -> list[Position]:
    """The positions of those that are kept, the newest first."""
    cursor = await db.execute("SELECT position FROM stoker_snapshot ORDER BY position DESC")
    return [Position(whole(position)) for (position,) in await cursor.fetchall()]


async def newest_snapshot(db: PostgresConnection) -> tuple[Snapshot | None, list[Position], bool]:
    """Return the newest one that is whole and that the log continues, all of it as of one moment.

    Also the damaged ones that are newer, and whether the state can be had: by that one, or from the first record on.
    """
    async with db.transaction():
        await db.execute(_ONE_MOMENT)
        through, oldest, kept = await end(db), await first(db), await snapshots(db)
        damaged: list[Position] = []
        for position in kept:
            found = await _snapshot(db, position)
            if found is None:
                damaged.append(position)
            elif position == through or 0 < oldest <= position + 1:
                return found, damaged, True
        return None, damaged, not kept or oldest == 1


async def _snapshot(db: PostgresConnection, position: Position) -> Snapshot | None:
    """None when it isn't what was written."""
    cursor = await db.execute("SELECT chunks, crc FROM stoker_snapshot WHERE position = %s", (position,))
    head = await cursor.fetchone()
    cursor = await db.execute(
        "SELECT chunk FROM stoker_snapshot_chunk WHERE position = %s ORDER BY number", (position,), binary=True
    )
    chunks = [chunk for (chunk,) in await cursor.fetchall() if isinstance(chunk, bytes)]
    return Snapshot(position, tuple(chunks)) if head == (len(chunks), _crc(chunks)) else None


def _crc(chunks: Sequence[bytes]) -> int:
    total = 0
    for chunk in chunks:
        total = zlib.crc32(chunk, zlib.crc32(len(chunk).to_bytes(8), total))
    return total
