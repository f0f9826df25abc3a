"""Spools of the output of tasks: how one is written, read in parts, and removed.

`KEY.out` holds the first bytes. What comes after goes to segments in `KEY.tail/`, each named by the offset of its
first byte; when one is full the one before the last goes, so the newest one to two segments stay. Offsets count every
byte ever written. The writer takes the write permission off its last file when no more will come: that is how a
reader knows, with no second file per task.

The runner writes; the agent reads these files by itself, so a slow reader never costs the runner anything.

Rules: S1  the beginning is kept, and so is the end: the last line is always there unless it is longer than a segment
       S2  bytes are bytes: nothing is decoded or changed
       S3  a write that fails loses those bytes and says so in `lost`; the task itself isn't held up, and once there is
           room again output is kept from there on
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from stoker.agent.runner.files import opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_READ_TRIES_MAX: Final = 5
"""A segment may go between listing and opening; the writer makes a new one only every few megabytes."""
_AGAIN_BYTES: Final = 4 * 1024 * 1024
"""Free on the disk before output is kept again that a full one didn't take."""


class Spool:
    """Writer of one task's output."""

    __slots__ = (
        *(
            "_base",
            "_fd",
            "_head_max",
            "_lost_bytes",
            "_lost_from",
            "_room",
            "_segments",
            "_size",
            "_tail_max",
            "_taken",
        ),
        "lost",
    )

    def __init__(self, base: str, head_max: int, tail_max: int) -> None:
        """Make the output of a task (`claim`). Raises OSError: FileExistsError if it is there, as the agent's."""
        self._base = base
        self._head_max = head_max
        self._tail_max = tail_max
        self._segments: list[str] = []
        self.lost = ""
        """Why output is missing. Empty = none is."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(f"{base}.out", flags, 0o600)
        self._size = 0
        self._room = head_max
        self._taken = 0
        # Bytes in the newest file.
        self._lost_from = self._lost_bytes = 0

    def write(self, received: bytes) -> None:
        """Append to the output; what can't be written is missing (S3)."""
        view = memoryview(received)
        if self.lost and not self._has_room_again():
            self._miss(len(view))
            return
        while view:
            try:
                if self._room <= 0:
                    self._next_segment()
                written = os.write(self._fd, view[: self._room])
            except OSError as error:
                self._miss(len(view), error.strerror or str(error))
                return
            self._size += written
            self._taken += written
            self._room -= written
            view = view[written:]

    def _miss(self, count: int, why: str = "") -> None:
        """Count bytes that are lost; what comes after them begins a segment."""
        if not self.lost:
            self._lost_from = self._size
        self._lost_bytes += count
        why = why or self.lost.rpartition(": ")[2]
        self.lost = f"{self._lost_bytes} bytes of output, from byte {self._lost_from} on, are lost: {why}"
        self._size += count
        self._room = 0

    def _has_room_again(self) -> bool:
        disk = os.fstatvfs(self._fd)
        return disk.f_bavail * disk.f_frsize >= _AGAIN_BYTES

    def close(self) -> None:
        """Close the spool, and tell readers that no more will come."""
        os.fchmod(self._fd, 0o400)
        os.close(self._fd)

    def _next_segment(self) -> None:
        folder = f"{self._base}.tail"
        if not self._segments:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        path = f"{folder}/{self._size:020d}"
        if self._segments and not self._taken:  # nothing could be written into it
            os.rename(self._segments[-1], path)
            self._segments[-1], self._room = path, self._tail_max
            return
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.close(self._fd)
        self._fd, self._room, self._taken = fd, self._tail_max, 0
        self._segments.append(path)
        if len(self._segments) > 2:
            os.unlink(self._segments.pop(0))


def claim(base: str) -> bool:
    """Make the output of a task. False = it is there: of runner and agent the other was first. Raises OSError."""
    try:
        with opened(f"{base}.out", os.O_WRONLY | os.O_CREAT | os.O_EXCL):
            return True
    except FileExistsError:
        return False


def seal(base: str) -> None:
    """Close the output of a task whose writer has died. Without any output, an empty file says so."""
    with opened(_segments(base)[-1][1], os.O_WRONLY | os.O_CREAT) as last:
        os.fchmod(last, 0o400)


def exists(base: str) -> bool:
    """Return True if a task has a spool."""
    return os.path.exists(f"{base}.out")


def kept_bytes(base: str) -> int:
    """Return the bytes that this output occupies now, as far as the disk says."""
    total = 0
    for _, path in _segments(base):
        with suppress(OSError):
            total += os.stat(path).st_size
    return total


def drop(base: str) -> None:
    """Remove this output. What can't be removed now goes when the next runner counts anew."""
    for _, path in reversed(_segments(base)):
        with suppress(OSError):
            os.unlink(path)
    with suppress(OSError):
        os.rmdir(f"{base}.tail")


def read(base: str, offset: int, limit: int) -> tuple[int, bytes, int, bool]:
    """Read up to `limit` bytes from `offset`, which counts from the end when negative.

    Returns (offset of the first byte, bytes, size of all ever written, whether no more will come). When bytes at
    `offset` were dropped by the bound, the result begins at the first one kept after it. Output that is dropped while
    it is read gives no bytes, and the offset from which something may be kept: the reader asks again from there.
    Raises FileNotFoundError when there is no such output (any more).
    """
    kept_from = max(0, offset)
    for _ in range(_READ_TRIES_MAX):
        segments = _segments(base)
        kept_from = max(kept_from, segments[-1][0])
        try:
            last = os.stat(segments[-1][1])
        except FileNotFoundError:
            if len(segments) == 1:
                raise
            continue
        size, ended = segments[-1][0] + last.st_size, not last.st_mode & stat.S_IWUSR
        wanted = max(0, size + offset) if offset < 0 else min(offset, size)
        if limit == 0 or wanted == size:
            return wanted, b"", size, ended
        begin, found = _read_from(segments, wanted, min(limit, size - wanted))
        if found:
            return begin, found, size, ended
    return kept_from, b"", kept_from, False


def _read_from(segments: list[tuple[int, str]], wanted: int, limit: int) -> tuple[int, bytes]:
    """The bytes from `wanted`, or from the first segment after it, that lie together; none when all were dropped."""
    parts: list[bytes] = []
    begin, length = wanted, 0
    for start, path in segments:
        if parts and begin + length != start:
            break  # what lay between was dropped
        with suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
            if start + os.fstat(file.fileno()).st_size <= wanted:
                continue
            if not parts:
                begin = max(wanted, start)
            file.seek(begin + length - start)
            parts.append(file.read(limit - length))
            length += len(parts[-1])
            if length >= limit:
                break
    return begin, b"".join(parts)


def _segments(base: str) -> list[tuple[int, str]]:
    """(offset of the first byte, path), in order; the head first."""
    folder = f"{base}.tail"
    try:
        names = sorted(filter(str.isdigit, os.listdir(folder)))  # other files there aren't ours
    except FileNotFoundError:
        names = []
    return [(0, f"{base}.out"), *((int(name), f"{folder}/{name}") for name in names)]
