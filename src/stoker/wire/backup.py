"""Format of backups, and the check that one is whole.

Shape: a tar file of four members. `backup.json` says what it is, `snapshot.jsonl` is the state in the frame of a
       snapshot file, `history.db` is the history, `backup.sha256` the sum of every byte before it.
Rules: B1  who reads it finds each byte that isn't as it was written, and each that is missing or too many
       B2  a number of format that is newer than ours is told as such before anything else is looked at
       B3  fields are added to `backup.json`, never renamed; a reader overlooks what it doesn't know. A change that an
           older reader must not overlook raises FORMAT

Source: POSIX.1-1988 (ustar), with GNU's form of sizes above 8 GiB.
"""

import hashlib
import tarfile
from collections.abc import Callable, Generator, Mapping
from typing import Final, Protocol, TypeVar

import msgspec

from stoker.brain.domain.errors import StokerError, refusal_error

FORMAT: Final = 1
HEAD: Final = "backup.json"
SNAPSHOT: Final = "snapshot.jsonl"
HISTORY: Final = "history.db"
SEAL: Final = "backup.sha256"
MEMBERS: Final = (SNAPSHOT, HISTORY)
"""In this order, between head and seal."""
MEDIA_TYPE: Final = "application/x-tar"
HEAD_BYTES_MAX: Final = 64 * 1024
"""Of `backup.json`: hundreds of times as long as it is."""
PIECE_BYTES: Final = 256 * 1024

_BLOCK: Final = 512
_END: Final = bytes(2 * _BLOCK)
_MODE: Final = 0o600
_GZIP: Final = b"\x1f\x8b"

Answer = TypeVar("Answer")
Sink = Callable[[bytes], object]
"""Takes the next bytes of a member."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One member, as `backup.json` tells of it."""

    name: str
    size: int
    sha256: str


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of what a backup holds, shown to people."""

    jobs: int
    nodes: int
    tenants: int
    tokens: int


class BackupHead(msgspec.Struct, frozen=True, kw_only=True):
    """`backup.json`: what was backed up, when and by which version."""

    stoker_backup: int = FORMAT
    version: str
    cluster_id: str
    epoch: int
    position: int
    """All that happened up to there is in it."""
    made_at: int
    """Milliseconds since 1970."""
    counts: Counts
    parts: tuple[Part, ...]


class ByteSource(Protocol):
    """Where the bytes of a backup come from, such as a file."""

    def read(self, size: int, /) -> bytes: ...


class _Format(msgspec.Struct, frozen=True):
    stoker_backup: int


# -- writing ---------------------------------------------------------------------------------------------------------


class BackupWriter:
    """The bytes around the members of one backup, asked for in the order in which they are written."""

    def __init__(self, head: BackupHead) -> None:
        self._head = head
        self._text = msgspec.json.format(msgspec.json.encode(head), indent=2) + b"\n"
        self._sum = hashlib.sha256()

    @property
    def size(self) -> int:
        """Of the whole."""
        sizes = (len(self._text), *(part.size for part in self._head.parts))
        return sum(_BLOCK + size + -size % _BLOCK for size in sizes) + len(_seal(self._sum.hexdigest(), self._head))

    def head(self) -> bytes:
        size = len(self._text)
        return self.passed(_header(HEAD, size, self._head.made_at) + self._text + bytes(-size % _BLOCK))

    def before(self, part: Part) -> bytes:
        return self.passed(_header(part.name, part.size, self._head.made_at))

    def passed(self, piece: bytes) -> bytes:
        """A piece of a member, which is summed up on its way."""
        self._sum.update(piece)
        return piece

    def after(self, part: Part) -> bytes:
        return self.passed(bytes(-part.size % _BLOCK))

    def end(self) -> bytes:
        return _seal(self._sum.hexdigest(), self._head)


def _header(name: str, size: int, made_at: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, _MODE, made_at // 1_000
    return member.tobuf(tarfile.GNU_FORMAT)


def _seal(digest: str, head: BackupHead) -> bytes:
    """All that stands behind the members."""
    text = digest.encode() + b"\n"
    return _header(SEAL, len(text), head.made_at) + text + bytes(-len(text) % _BLOCK) + _END


# -- reading ---------------------------------------------------------------------------------------------------------


def read_backup(source: ByteSource, sinks: Mapping[str, Sink]) -> BackupHead:
    """Read a backup to its end.

    The bytes of its members go to `sinks` on the way, before it is known that they are good.

    Raises: StokerError `backup_foreign`, `backup_too_new` or `backup_damaged`; whatever `source` and `sinks` raise.
    """
    reader = StreamingBackupReader(sinks)
    while piece := source.read(PIECE_BYTES):
        reader.passed(piece)
    return reader.end()


class StreamingBackupReader:
    """`read_backup` of bytes that come by themselves, in pieces of any length."""

    def __init__(self, sinks: Mapping[str, Sink]) -> None:
        self._reading = _read(sinks)
        self._most = next(self._reading)

    def passed(self, piece: bytes) -> None:
        """The next bytes. Raises: as `read_backup`."""
        view = memoryview(piece)
        while view:
            some, view = view[: self._most], view[self._most :]
            self._most = self._reading.send(bytes(some))

    def end(self) -> BackupHead:
        """There are no more. Raises: as `read_backup`."""
        try:
            while True:
                self._reading.send(b"")
        except StopIteration as told:
            head: BackupHead = told.value
            return head


_ByteRequests = Generator[int, bytes, Answer]
"""Asks for at most so many bytes, and is answered with some; with none at the end."""


def _read(sinks: Mapping[str, Sink]) -> _ByteRequests[BackupHead]:
    reading = _BackupReader()
    head = yield from _head(reading)
    for part in head.parts:
        if (yield from reading.take(_BLOCK)) != _header(part.name, part.size, head.made_at):
            raise damaged(f"{part.name} doesn't begin where it should")
        yield from _pass_on(reading, part, sinks.get(part.name, len))
    seal = _seal(reading.sum.hexdigest(), head)
    if (yield from reading.take(len(seal))) != seal:
        raise damaged("its sum doesn't agree with its content")
    if (yield 1):
        raise damaged("something follows behind its end")
    return head


class _BackupReader:
    """Checksums and sizes of what was read so far."""

    def __init__(self) -> None:
        self._position = 0
        self.sum = hashlib.sha256()

    def some(self, most: int) -> _ByteRequests[bytes]:
        piece = yield most
        self.sum.update(piece)
        self._position += len(piece)
        return piece

    def as_much(self, size: int) -> _ByteRequests[bytes]:
        """`size` bytes, or fewer at the end."""
        pieces: list[bytes] = []
        while size and (piece := (yield from self.some(min(size, PIECE_BYTES)))):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def take(self, size: int) -> _ByteRequests[bytes]:
        """Raises: StokerError `backup_damaged`."""
        found = yield from self.as_much(size)
        if len(found) < size:
            raise self.short()
        return found

    def short(self) -> StokerError:
        return damaged(f"it ends after {self._position} bytes, before its time")


def _head(reading: _BackupReader) -> _ByteRequests[BackupHead]:
    first = yield from reading.as_much(_BLOCK)
    if not first.startswith(HEAD.encode()):
        if first.startswith(_GZIP):
            raise foreign("it is packed", "unpack it first, with gunzip")
        raise foreign("it is empty" if not first else f"it doesn't begin with {HEAD}")
    if len(first) < _BLOCK:
        raise reading.short()
    try:
        size = tarfile.TarInfo.frombuf(first, "utf-8", "strict").size
    except (tarfile.HeaderError, UnicodeDecodeError) as fault:
        raise damaged(f"its first block can't be read: {fault}") from fault
    if not 0 < size <= HEAD_BYTES_MAX:
        raise foreign(f"its {HEAD} is {size} bytes long")
    text = (yield from reading.take(size + -size % _BLOCK))[:size]
    head = _decoded(text)
    if first != _header(HEAD, size, head.made_at):
        raise damaged("its first block isn't as it was written")
    if tuple(part.name for part in head.parts) != MEMBERS or any(part.size < 0 for part in head.parts):
        raise damaged(f"{HEAD} names other members than it should")
    return head


def _decoded(text: bytes) -> BackupHead:
    try:
        number = msgspec.json.decode(text, type=_Format).stoker_backup
        if number > FORMAT:
            raise too_new(f"has format {number}; this Stoker reads formats up to {FORMAT}")
        return msgspec.json.decode(text, type=BackupHead)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
        if b'"stoker_backup"' not in text:
            raise foreign(f"its {HEAD} is another program's") from fault
        raise damaged(f"{HEAD} can't be read: {fault}") from fault


def _pass_on(reading: _BackupReader, part: Part, sink: Sink) -> _ByteRequests[None]:
    summed = hashlib.sha256()
    left = part.size
    while left:
        piece = yield from reading.some(min(left, PIECE_BYTES))
        if not piece:
            raise reading.short()
        summed.update(piece)
        sink(piece)
        left -= len(piece)
    yield from reading.take(-part.size % _BLOCK)
    if summed.hexdigest() != part.sha256:
        raise damaged(f"{part.name} isn't as it was written")


def damaged(why: str) -> StokerError:
    hint = "take another backup, or copy this one again from where it was kept"
    return refusal_error("backup_damaged", f"the backup can't be trusted: {why}", hint)


def foreign(why: str, hint: str = "name a file that `stoker backup` wrote") -> StokerError:
    return refusal_error("backup_foreign", f"this is no backup of Stoker: {why}", hint)


def too_new(why: str) -> StokerError:
    hint = "use the version of Stoker that wrote it, or a newer one"
    return refusal_error("backup_too_new", f"the backup {why}", hint)
