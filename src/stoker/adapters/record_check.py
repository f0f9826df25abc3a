"""Checksums of stored records.

Both stores keep beside each record a checksum over its place, its epoch and its bytes.
"""

import struct
import zlib

from stoker.brain.domain.ids import Position


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
