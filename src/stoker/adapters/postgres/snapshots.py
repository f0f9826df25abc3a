"""Snapshots of the state in PostgreSQL.

Rules: N1  a snapshot is written in one transaction: it is there whole or not at all
       N2  the newest KEPT stay; the older one is what recovery falls back to when the newest is damaged
"""

import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from stoker.adapters.postgres.connection import PostgresConnection, one, whole
from stoker.brain.domain.ids import Position
from stoker.ports import Snapshot

KEPT: Final = 2
CHUNKS_PER_STATEMENT: Final = 8
"""Some megabytes."""


class Newest(NamedTuple):
    """The newest snapshots that were found."""

    snapshot: Snapshot | None
    damaged: tuple[Position, ...]
    kept: int
    """How many there are, whole or not."""
    first: int
    """The oldest record; 0 = there is none."""


async def save(db: PostgresConnection, position: Position, chunks: Sequence[bytes]) -> None:
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


async def positions(db: PostgresConnection) -> list[Position]:
    """The newest first."""
    cursor = await db.execute("SELECT position FROM stoker_snapshot ORDER BY position DESC")
    return [Position(whole(position)) for (position,) in await cursor.fetchall()]


async def newest(db: PostgresConnection) -> Newest:
    """The newest one that is whole and that the log continues, all of it as of one moment."""
    async with db.transaction():
        await db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        row = await one(db, "SELECT position, (SELECT coalesce(min(position), 0) FROM stoker_event) FROM stoker_end")
        end, first = whole(row[0]), whole(row[1])
        kept = await positions(db)
        damaged: list[Position] = []
        for position in kept:
            found = await load(db, position)
            if found is None:
                damaged.append(position)
            elif position == end or 0 < first <= position + 1:
                return Newest(found, tuple(damaged), len(kept), first)
        return Newest(None, tuple(damaged), len(kept), first)


async def load(db: PostgresConnection, position: Position) -> Snapshot | None:
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
