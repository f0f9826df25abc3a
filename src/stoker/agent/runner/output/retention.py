"""Retention of the outputs and folders of ended tasks.

They go with the record of their end. Beyond `spool_bytes_max` the oldest large outputs go earlier; small ones are
bounded by the number of ends. Folders go by way of the trash, because a job may leave a million files: a folder is
first renamed into the trash, which takes it out of everyone's way at once. Then it is emptied some entries a turn:
files are unlinked, a folder found inside is itself renamed into the trash. So nothing here recurses or builds a longer
path, however deep a job dug, and no directory's listing is ever held in memory.

Rules: X1  no link is ever followed
       X2  what its owner closed (mode 0) or froze (mode 0555, as Go's module cache does) is opened first
       X3  what can't be removed is left for the next runner, and stops nothing else
"""

from __future__ import annotations

import os
import stat
from collections import deque
from contextlib import suppress

from stoker.agent.runner.files import opened
from stoker.agent.runner.output import spool
from stoker.agent.runner.protocol import SPOOL_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Final

_WORK_NAME: Final = "work"
_TRASH_NAME: Final = "trash"
_LARGE_BYTES: Final = 256 * 1024
_ENTRIES_PER_TURN: Final = 200
_PASSES_MAX: Final = 100
"""Readings of one folder: a file system may show less than all while entries go."""


class OutputRetention:
    """Outputs and folders of tasks in the data folder of a runner."""

    def __init__(self, data_dir: str, bytes_max: int) -> None:
        """Raises OSError."""
        self._outputs = f"{data_dir}/{SPOOL_NAME}"
        self._work = f"{data_dir}/{_WORK_NAME}"
        self._bytes_max = bytes_max
        self._large: deque[tuple[str, int]] = deque()
        self._bytes = 0
        for folder in (self._outputs, self._work):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        if os.geteuid() == 0:
            os.chmod(self._work, 0o711)  # jobs of other users reach theirs, and see no other
        self._trash = Trash(f"{data_dir}/{_TRASH_NAME}")

    def output(self, key: str) -> str:
        """Return the base path for the spool of a task."""
        return f"{self._outputs}/{key}"

    def workdir(self, key: str) -> str:
        """Return the working folder of a task's attempt, made when missing. Raises OSError."""
        folder = f"{self._work}/{_attempt(key)}"
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        return folder

    def ended(self, key: str, live: Iterable[str]) -> None:
        """Count the output of a task that ended. An empty folder of its attempt goes at once: most leave nothing."""
        size = spool.kept_bytes(self.output(key))
        if size >= _LARGE_BYTES:
            self._large.append((key, size))
            self._bytes += size
        if all(_attempt(other) != _attempt(key) for other in live):
            with suppress(OSError):  # it was never made, or isn't empty
                os.rmdir(f"{self._work}/{_attempt(key)}")
        while self._bytes > self._bytes_max and self._large:
            oldest, dropped = self._large.popleft()
            self._bytes -= dropped
            spool.drop(self.output(oldest))

    def forget(self, keys: Iterable[str], live: Iterable[str]) -> None:
        """Drop the outputs and folders of tasks whose ends are forgotten; attempts with a live task keep theirs."""
        gone = set(keys)
        for key, size in self._large:
            if key in gone:
                self._bytes -= size
        self._large = deque(entry for entry in self._large if entry[0] not in gone)
        busy = {_attempt(key) for key in live}
        for key in gone:
            spool.drop(self.output(key))
        for attempt in {_attempt(key) for key in gone} - busy:
            self._discard(attempt)

    def recount(self, known: Iterable[str]) -> None:
        """Count anew after a restart, and drop what belongs to none of the known tasks."""
        kept = set(known)
        for name in os.listdir(self._outputs):
            key = name.rpartition(".")[0]
            if key not in kept:
                spool.drop(self.output(key))
            elif name.endswith(".out"):
                self.ended(key, kept)
        attempts = {_attempt(key) for key in kept}
        for name in os.listdir(self._work):
            if name not in attempts:
                self._discard(name)

    @property
    def busy(self) -> bool:
        """Whether folders wait to be removed."""
        return self._trash.busy

    def tidy(self) -> None:
        """Remove one turn's share of the folders in the trash."""
        self._trash.empty(_ENTRIES_PER_TURN)

    def _discard(self, attempt: str) -> None:
        with suppress(OSError):  # it was never made, or has gone
            self._trash.take(f"{self._work}/{attempt}")


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

    def empty(self, entries: int) -> None:
        """Remove about that many files and folders."""
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
