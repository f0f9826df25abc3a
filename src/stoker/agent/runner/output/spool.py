"""Spools of the output of tasks: how one is written, read in parts, and removed when it is no longer kept.

`KEY.out` holds the first bytes. What comes after goes to segments in `KEY.tail/`, each named by the offset of its
first byte; when one is full the one before the last goes, so the newest one to two segments stay. Offsets count every
byte ever written. The writer takes the write permission off its last file when no more will come: that is how a
reader knows, with no second file per task.

The runner writes; the agent reads these files by itself, so a slow reader never costs the runner anything.

Outputs and folders of ended tasks go with the record of their end. Beyond `spool_bytes_max`, and where their disk is
nearly full, the oldest large outputs go earlier; small ones are bounded by the number of ends. Folders go by way of the
trash, because a job may leave a million files: a folder is first renamed into the trash, which takes it out of
everyone's way at once. Then it is emptied some entries a turn: files are unlinked, a folder found inside is itself
renamed into the trash. So nothing here recurses or builds a longer path, however deep a job dug, and no directory's
listing is ever held in memory.

Rules: S1  the beginning is kept, and so is the end: the last line is always there unless it is longer than a segment
       S2  bytes are bytes: nothing is decoded or changed
       S3  a write that fails loses those bytes and says so in `lost`; the task itself isn't held up, and once there is
           room again output is kept from there on
       S4  outputs of ended tasks leave some of the disk free, however many bytes may be kept
       X1  no link is ever followed
       X2  what its owner closed (mode 0) or froze (mode 0555, as Go's module cache does) is opened before it is removed
       X3  what can't be removed is left for the next runner, and stops nothing else
"""

from __future__ import annotations

import os
import stat
from collections import deque
from contextlib import suppress

from stoker.agent.runner.files import opened, write_all
from stoker.agent.runner.protocol import SPOOL_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Final

_READ_TRIES_MAX: Final = 5
"""A segment may go between listing and opening; the writer makes a new one only every few megabytes."""
_WORK_NAME: Final = "work"
_HOSTS_NAME: Final = "hosts"
_NOTICES_NAME: Final = "notices"
_TRASH_NAME: Final = "trash"
_SCRIPT_NAME: Final = ".script"
_TMP_NAME: Final = ".tmp"
_LARGE_BYTES: Final = 256 * 1024
_AGAIN_BYTES: Final = 4 * 1024 * 1024
"""Free on the disk before output is kept again that a full one didn't take."""
_SPARE_BYTES: Final = 512 * 1024 * 1024
_SPARE_PART: Final = 4
"""S4: that much, or that part of the disk where it is small."""
_ENTRIES_PER_TURN: Final = 200
_PASSES_MAX: Final = 100
"""Readings of one folder: a file system may show less than all while entries go."""


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


class OutputRetention:
    """Outputs and folders of tasks in the data folder of a runner."""

    def __init__(self, data_dir: str, bytes_max: int, work_dir: str = "") -> None:
        """`work_dir`: of this runner alone, for folders of tasks and what is removed of them; empty = `data_dir`.

        Raises OSError.
        """
        work_dir = work_dir or data_dir
        self._outputs = f"{data_dir}/{SPOOL_NAME}"
        self._work = f"{work_dir}/{_WORK_NAME}"
        self._bytes_max = bytes_max
        self._large: deque[tuple[str, int]] = deque()
        self._bytes = 0
        self._hosts, self._notices = f"{data_dir}/{_HOSTS_NAME}", f"{data_dir}/{_NOTICES_NAME}"
        for folder in (self._outputs, self._work, self._hosts, self._notices):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        if os.geteuid() == 0:
            for folder in (self._work, self._hosts, self._notices, *((work_dir,) if work_dir != data_dir else ())):
                os.chmod(folder, 0o711)  # jobs of other users reach theirs, and see no other
        self.trash = Trash(f"{work_dir}/{_TRASH_NAME}")

    def output(self, key: str) -> str:
        """Return the base path for the spool of a task."""
        return f"{self._outputs}/{key}"

    def host_file(self, key: str) -> str:
        """Return the path of the file that tells a task its machines. It goes when the task ends."""
        return f"{self._hosts}/{key}"

    def write_host_file(self, key: str, text: str) -> str:
        """Write the file that tells a task its machines, for its user to read, and return its path. Raises OSError."""
        with opened(self.host_file(key), os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            os.fchmod(file, 0o644)
            write_all(file, text.encode())
        return self.host_file(key)

    def notice_file(self, key: str, *, alone: bool = False) -> str:
        """Return the path of the file that tells a task that it is to go. It goes when the task ends.

        Its folder is no job's own, so that no link of a job's leads the runner elsewhere. `alone`: it is in a folder
        that has no other, which a container can be shown; it is made when missing. Raises OSError for that.
        """
        if not alone:
            return f"{self._notices}/{key}"
        with suppress(FileExistsError):
            os.mkdir(f"{self._notices}/{key}", 0o755)
        return f"{self._notices}/{key}/notice"

    def workdir(self, key: str) -> str:
        """Return the working folder of a task's attempt, made when missing. Raises OSError."""
        folder = f"{self._work}/{_attempt(key)}"
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        return folder

    def script_folder(self, key: str) -> str:
        """Return where the script of a task is kept while it runs, inside the folder of its attempt."""
        return f"{self._work}/{_attempt(key)}/{_SCRIPT_NAME}.{key.rpartition('.')[2]}"

    def private_tmp(self, key: str) -> str:
        """Return where a task that has one keeps its private /tmp. It goes when the task ends."""
        return f"{self._work}/{_attempt(key)}/{_TMP_NAME}.{key.rpartition('.')[2]}"

    def ended(self, key: str, live: Iterable[str]) -> None:
        """Count the output of a task that ended, and drop its script, its host file and its notice.

        An empty folder of its attempt goes at once: most leave nothing.
        """
        for path in (self.host_file(key), self.notice_file(key)):
            _remove(path)  # if it had one; what can't go now goes when the next runner counts anew
        if not self._removed_empty(key, live):
            for path in (self.script_folder(key), self.private_tmp(key)):
                with suppress(OSError):  # it had none
                    self.trash.take(path)
            self._removed_empty(key, live)
        size = kept_bytes(self.output(key))
        if size >= _LARGE_BYTES:
            self._large.append((key, size))
            self._bytes += size
        while self._large and (self._bytes > self._bytes_max or self._is_short()):
            oldest, dropped = self._large.popleft()
            self._bytes -= dropped
            drop(self.output(oldest))

    def _removed_empty(self, key: str, live: Iterable[str]) -> bool:
        """Remove the folder of an attempt of which no task is live, if it is empty. False = it is still there."""
        attempt = _attempt(key)
        if any(_attempt(other) == attempt for other in live):
            return False
        try:
            os.rmdir(f"{self._work}/{attempt}")
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _is_short(self) -> bool:
        """Whether so little is left of the disk that what is kept there would soon keep tasks from starting (S4)."""
        disk = os.statvfs(self._outputs)
        left, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        return left < min(_SPARE_BYTES, total // _SPARE_PART)

    def forget(self, keys: Iterable[str], live: Iterable[str]) -> None:
        """Drop the outputs and folders of tasks whose ends are forgotten; attempts with a live task keep theirs."""
        gone = set(keys)
        for key, size in self._large:
            if key in gone:
                self._bytes -= size
        self._large = deque(entry for entry in self._large if entry[0] not in gone)
        busy = {_attempt(key) for key in live}
        for key in gone:
            drop(self.output(key))
        for attempt in {_attempt(key) for key in gone} - busy:
            self._discard(attempt)

    def recount(self, known: Iterable[str]) -> None:
        """Count anew after a restart, and drop what belongs to none of the known tasks."""
        kept = set(known)
        for folder in (self._hosts, self._notices):
            for name in os.listdir(folder):
                _remove(f"{folder}/{name}")
        for name in os.listdir(self._outputs):
            key = name.rpartition(".")[0]
            if key not in kept:
                drop(self.output(key))
            elif name.endswith(".out"):
                self.ended(key, kept)
        attempts = {_attempt(key) for key in kept}
        for name in os.listdir(self._work):
            if name not in attempts:
                self._discard(name)

    def _discard(self, attempt: str) -> None:
        with suppress(OSError):  # it was never made, or has gone
            self.trash.take(f"{self._work}/{attempt}")


class Trash:
    """Folder whose content is removed bit by bit."""

    def __init__(self, path: str) -> None:
        """What an earlier runner left there goes too. Raises OSError."""
        self._path = path
        os.makedirs(path, mode=0o700, exist_ok=True)
        self._todo: deque[str] = deque(os.listdir(path))
        self._next = 0
        self._steps: Iterator[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether anything is left to remove."""
        return bool(self._todo) or self._steps is not None

    def take(self, path: str) -> None:
        """Move what stands at `path` into the trash. Raises OSError."""
        while True:
            self._next += 1
            name = f"{os.getpid()}.{self._next}"
            if not os.path.lexists(f"{self._path}/{name}"):
                break
        os.rename(path, f"{self._path}/{name}")
        self._todo.append(name)

    def empty(self, entries: int = _ENTRIES_PER_TURN) -> None:
        """Remove about that many files and folders; by default one turn's share."""
        for _ in range(entries):
            if self._steps is None:
                if not self._todo:
                    return
                self._steps = self._removed(f"{self._path}/{self._todo.popleft()}")
            try:
                next(self._steps)
            except (StopIteration, OSError):  # X3
                self._steps = None

    def _removed(self, path: str) -> Iterator[None]:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
        os.chmod(path, 0o700)
        for _ in range(_PASSES_MAX):
            gone = 0
            with os.scandir(path) as entries:
                for entry in entries:
                    with suppress(OSError):
                        self._drop(entry)
                        gone += 1
                    yield
            if not gone:
                break
        os.rmdir(path)

    def _drop(self, entry: os.DirEntry[str]) -> None:
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.path)
            return
        open_up(entry.path)  # a folder that moves is written to
        self.take(entry.path)


def open_up(path: str) -> None:
    """Let the runner read and change a folder (X1, X2). Raises OSError.

    Never by name: the owner of the folder may still have it open, and put a link in the place of what was just seen.
    """
    with opened(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW) as folder:
        os.chmod(f"/proc/self/fd/{folder}", 0o700)


def _attempt(key: str) -> str:
    return key.rpartition(".")[0]


def _remove(path: str) -> None:
    """Remove a file, or a folder of the runner's with one file."""
    with suppress(OSError):
        try:
            os.unlink(path)
        except IsADirectoryError:
            for name in os.listdir(path):
                os.unlink(f"{path}/{name}")
            os.rmdir(path)
