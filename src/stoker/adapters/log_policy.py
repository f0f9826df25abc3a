"""Policy of both stores of the event log: how a record is proved, how much is kept, how a schema grows.

Rules: R1  beside each record stands a checksum over its place, its epoch and its bytes; every row that is read is
           proved by it, and to follow the one before
       R2  the newest KEPT snapshots stay; the older one is what recovery falls back to when the newest is damaged.
           Records stay from LOOK_BACK_MAX before that one on
       R3  a schema grows by steps, which are numbered files of SQL in one folder; a store of a newer Stoker is left as
           it is
"""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import Stored

KEPT: Final = 2
LOOK_BACK_MAX: Final = 50_000
READ_ROWS: Final = 1_000
READ_BYTES: Final = 4 * 1024 * 1024
"""Of one page of records: it ends with the one that reaches this."""


class RecordDamaged(Exception):
    """The record at `position` is missing or isn't what was written.

    `unreadable`: the file's own structure is broken there, so that no statement mends it.
    """

    def __init__(self, position: int, known: str, *, unreadable: bool = False) -> None:
        super().__init__(known)
        self.position = Position(position)
        self.unreadable = unreadable


def checksum(position: int, epoch: int, record: bytes) -> int:
    return zlib.crc32(record, zlib.crc32(struct.pack(">qq", position, epoch)))


def proved(row: Sequence[Any], due: int) -> Stored:
    """Return a row of position, epoch, checksum and record, proved (R1). `due`: its position; 0 = any.

    Raises: RecordDamaged.
    """
    position, epoch, crc, record = row
    if due and position != due:
        raise RecordDamaged(due, f"it isn't there; the next one is {position}")
    if not isinstance(record, bytes) or checksum(position, epoch, record) != crc:
        raise RecordDamaged(position, "its checksum doesn't agree with its content")
    return Stored(Position(position), Epoch(epoch), record)


def steps_in(folder: Path) -> dict[int, Path]:
    """Return the steps of a schema by their numbers, in order (R3)."""
    return {int(step.name[:4]): step for step in sorted(folder.glob("[0-9][0-9][0-9][0-9]_*.sql"))}


def too_new(what: str, have: int, newest: int, counted: str = "schema") -> Refusal:
    """Return the refusal of what a newer Stoker wrote."""
    return refuse(
        "store_too_new",
        f"{what} has {counted} {have}; this Stoker knows {counted}s up to {newest}",
        "start the version of Stoker that wrote it, or a newer one",
    )
