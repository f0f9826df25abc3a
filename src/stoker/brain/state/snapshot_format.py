"""Format of a snapshot in its file and in a backup.

Shape: lines of JSON. A head with the position; for each chunk a line with its length, then the chunk; a tail with the
       number of chunks and a checksum over all of them. Chunks are JSON themselves, so the frame can be read by eye.
"""

import zlib
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from stoker.brain.domain.ids import Position

FRAME_FORMAT: Final = 1


class SnapshotDamaged(Exception):
    """These bytes aren't a whole snapshot. The message says what disagrees."""


class _SnapshotHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stoker_snapshot: int
    position: int


class _Length(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    chunk_bytes: int


class _Tail(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    chunks: int
    crc32: int


_Line = TypeVar("_Line", _SnapshotHead, _Length, _Tail)


def framed(position: Position, chunks: Sequence[bytes]) -> Iterator[bytes]:
    """The frame in pieces, of which none is longer than a chunk."""
    yield msgspec.json.encode(_SnapshotHead(FRAME_FORMAT, position)) + b"\n"
    checksum = 0
    for chunk in chunks:
        checksum = zlib.crc32(chunk, checksum)
        yield msgspec.json.encode(_Length(len(chunk))) + b"\n"
        yield chunk
        yield b"\n"
    yield msgspec.json.encode(_Tail(len(chunks), checksum)) + b"\n"


def unframed(position: Position, data: bytes) -> tuple[bytes, ...]:
    """The chunks of the snapshot that was taken there. Raises: SnapshotDamaged."""
    line, at = _line(data, 0)
    head = _decode(line, _SnapshotHead)
    if head.stoker_snapshot != FRAME_FORMAT:
        raise SnapshotDamaged(f"its format is {head.stoker_snapshot}; this Stoker reads format {FRAME_FORMAT}")
    if head.position != position:
        raise SnapshotDamaged(f"it says that it was taken at position {head.position}")
    chunks: list[bytes] = []
    checksum = 0
    while True:
        line, at = _line(data, at)
        if not line.startswith(b'{"chunk_bytes"'):
            break
        end = at + _decode(line, _Length).chunk_bytes
        if data[end : end + 1] != b"\n":
            raise SnapshotDamaged(f"chunk {len(chunks) + 1} has another length than it should")
        chunks.append(data[at:end])
        checksum = zlib.crc32(chunks[-1], checksum)
        at = end + 1
    tail = _decode(line, _Tail)
    if tail.chunks != len(chunks) or tail.crc32 != checksum or at != len(data):
        raise SnapshotDamaged("its checksum doesn't agree with its content")
    return tuple(chunks)


def _line(data: bytes, start: int) -> tuple[bytes, int]:
    end = data.find(b"\n", start)
    if end < 0:
        raise SnapshotDamaged("it is cut short")
    return data[start:end], end + 1


def _decode(line: bytes, kind: type[_Line]) -> _Line:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise SnapshotDamaged(f"a line of its frame can't be read: {fault}") from fault
