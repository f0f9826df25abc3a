"""Spool of a task's output, and reading of parts of it.

`KEY.out` holds the first bytes. What comes after goes to segments in `KEY.tail/`, each named by the offset of its
first byte; when one is full the one before the last goes, so the newest one to two segments stay. Offsets count every
byte ever written. The writer takes the write permission off its last file when no more will come: that is how a
reader knows, with no second file per task.

The runner writes; the agent reads these files by itself, so a slow reader never costs the runner anything.

Rules: S1  the beginning is kept, and so is the end: the last line is always there unless it is longer than a segment
       S2  bytes are bytes: nothing is decoded or changed
       S3  a write that fails loses those bytes and says so in `lost`; the task itself isn't held up
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


class Spool:
    """Writer of one task's output."""

    __slots__ = ("_base", "_fd", "_head_max", "_room", "_segments", "_size", "_tail_max", "lost")

    def __init__(self, base: str, head_max: int, tail_max: int) -> None:
        """Raises OSError. A file that is already there is appended to: an earlier runner died."""
        self._base = base
        self._head_max = head_max
        self._tail_max = tail_max
        self._segments: list[str] = []
        self.lost = ""
        """Why output is missing. Empty = none is."""
        self._fd = os.open(f"{base}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size
        self._room = head_max - self._size

    @property
    def size(self) -> int:
        """Bytes ever written."""
        return self._size

    def write(self, received: bytes) -> None:
        """Append to the output; once a write has failed, nothing more is kept (S3)."""
        view = memoryview(received)
        while view and not self.lost:
            try:
                if self._room <= 0:
                    self._next_segment()
                written = os.write(self._fd, view[: self._room])
            except OSError as error:
                self.lost = f"output from byte {self._size} on is lost: {error.strerror}"
                return
            self._size += written
            self._room -= written
            view = view[written:]

    def close(self) -> None:
        """Close the spool, and tell readers that no more will come."""
        os.fchmod(self._fd, 0o400)
        os.close(self._fd)

    def _next_segment(self) -> None:
        folder = f"{self._base}.tail"
        if not self._segments:
            os.mkdir(folder, 0o700)
        path = f"{folder}/{self._size:020d}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.close(self._fd)
        self._fd, self._room = fd, self._tail_max
        self._segments.append(path)
        if len(self._segments) > 2:
            os.unlink(self._segments.pop(0))


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
