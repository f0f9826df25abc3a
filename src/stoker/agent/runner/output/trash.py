"""How does what jobs left behind go away, whatever it is?

A folder is first renamed into the trash, which takes it out of everyone's way at once. Then it is emptied some entries
a turn: files are unlinked, a folder found inside is itself renamed into the trash. So nothing here recurses or builds
a longer path, however deep a job dug, and no directory's listing is ever held in memory.

Rules: X1  no link is ever followed
       X2  what its owner closed (mode 0) or froze (mode 0555, as Go's module cache does) is opened first
       X3  what can't be removed is left for the next runner, and stops nothing else
"""

from __future__ import annotations

import os
import stat
from collections import deque
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_PASSES_MAX = 100
"""Readings of one folder: a file system may show less than all while entries go."""


class Trash:
    def __init__(self, path: str) -> None:
        """What an earlier runner left there goes too. Raises OSError."""
        self._path = path
        os.makedirs(path, mode=0o700, exist_ok=True)
        self._todo: deque[str] = deque(os.listdir(path))
        self._next = 0
        self._steps: Iterator[None] | None = None

    @property
    def busy(self) -> bool:
        return bool(self._todo) or self._steps is not None

    def take(self, path: str) -> None:
        """Whatever stands at `path`. Raises OSError."""
        while True:
            self._next += 1
            name = f"{os.getpid()}.{self._next}"
            if not os.path.lexists(f"{self._path}/{name}"):
                break
        os.rename(path, f"{self._path}/{name}")
        self._todo.append(name)

    def empty(self, entries: int) -> None:
        """Remove about that many entries."""
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
    """X1, X2. Never by name: whoever's folder it was may still have it open, and put a link in the place of what we
    have just looked at. Raises OSError."""
    folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.chmod(f"/proc/self/fd/{folder}", 0o700)
    finally:
        os.close(folder)
