"""How does PostgreSQL keep snapshots of the state?

Rules: N1  a snapshot is written in one transaction: it is there whole or not at all
       N2  the newest KEPT stay; the older one is what recovery falls back to when the newest is damaged
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stoker.adapters.postgres_link import Connection, whole
from stoker.brain.domain.ids import Position

KEPT: Final = 2
CHUNKS_PER_STATEMENT: Final = 8
"""Some megabytes."""


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """The `Snapshot` port, read from rows."""

    position: Position
    chunks: tuple[bytes, ...]


async def save(db: Connection, position: Position, chunks: Sequence[bytes]) -> None:
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


async def positions(db: Connection) -> list[Position]:
    """The newest first."""
    cursor = await db.execute("SELECT position FROM stoker_snapshot ORDER BY position DESC")
    return [Position(whole(position)) for (position,) in await cursor.fetchall()]


async def load(db: Connection, position: Position) -> StoredSnapshot | None:
    """None when it isn't what was written."""
    cursor = await db.execute("SELECT chunks, crc FROM stoker_snapshot WHERE position = %s", (position,))
    head = await cursor.fetchone()
    cursor = await db.execute(
        "SELECT chunk FROM stoker_snapshot_chunk WHERE position = %s ORDER BY number", (position,), binary=True
    )
    chunks = [chunk for (chunk,) in await cursor.fetchall() if isinstance(chunk, bytes)]
    return StoredSnapshot(position, tuple(chunks)) if head == (len(chunks), _crc(chunks)) else None


def _crc(chunks: Sequence[bytes]) -> int:
    total = 0
    for chunk in chunks:
        total = zlib.crc32(chunk, zlib.crc32(len(chunk).to_bytes(8), total))
    return total
