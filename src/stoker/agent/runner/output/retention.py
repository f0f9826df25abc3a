"""Retention in the data folder of a runner: outputs, folders and files of tasks, and how long they stay.

Outputs and folders of ended tasks go with the record of their end. Beyond `spool_bytes_max`, and where their disk is
nearly full, the oldest large outputs go earlier; small ones are bounded by the number of ends. Folders go by way of the
trash, because a job may leave a million files: a folder is first renamed into the trash, which takes it out of
everyone's way at once. Then it is emptied some entries a turn: files are unlinked, a folder found inside is itself
renamed into the trash. So nothing here recurses or builds a longer path, however deep a job dug, and no directory's
listing is ever held in memory.

Rules: S4  outputs of ended tasks leave some of the disk free, however many bytes may be kept
       X1  no link is ever followed
       X2  what its owner closed (mode 0) or froze (mode 0555, as Go's module cache does) is opened before it is removed
       X3  what can't be removed is left for the next runner, and stops nothing else
       X4  what a task left as it got it, an empty folder or the file of its machines, is renamed for a later task, of
           the same account: to make and remove an inode for each costs more, and most on a file system that must
           search for one that wasn't just in use
"""

from __future__ import annotations

import os
import stat
from collections import deque
from contextlib import suppress

from stoker.agent.runner.files import opened, write_all
from stoker.agent.runner.output.spool import drop, kept_bytes
from stoker.agent.runner.process.procfs import read_file
from stoker.agent.runner.protocol import CHECKPOINTS_NAME, SPOOL_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Final

_WORK_NAME: Final = "work"
_HOSTS_NAME: Final = "hosts"
_NOTICES_NAME: Final = "notices"
_TRASH_NAME: Final = "trash"
_SCRIPT_NAME: Final = ".script"
_TMP_NAME: Final = ".tmp"
_FOLDER_MODE: Final = 0o700
_HOST_FILE_MODE: Final = 0o644
_LARGE_BYTES: Final = 256 * 1024
_SPARE_BYTES: Final = 512 * 1024 * 1024
_SPARE_PART: Final = 4
"""S4: that much, or that part of the disk where it is small."""
_ENTRIES_PER_TURN: Final = 200
_PASSES_MAX: Final = 100
"""Readings of one folder: a file system may show less than all while entries go."""
_SPARES_MAX: Final = 32
"""X4: of each kind. More end together seldom."""


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
        self._spare_folders: list[str] = []
        self._spare_files: dict[str, tuple[str, int]] = {}
        """Path: what it says, and when it was written, in nanoseconds."""
        self._host_files: dict[str, tuple[str, int]] = {}
        """Of live tasks, by key."""
        self._spares_made = 0
        checkpoints = f"{data_dir}/{CHECKPOINTS_NAME}"
        self._checkpoints = checkpoints if _is_plain(checkpoints) else ""
        """Empty = they are on other storage, which may hang: nothing there is touched here."""
        self._checkpoint_folders: dict[str, str] = {}
        """Of live tasks of the runner's account, by key; tasks of one job share one."""
        self.trash = Trash(f"{work_dir}/{_TRASH_NAME}")

    def output(self, key: str) -> str:
        """Return the base path for the spool of a task."""
        return f"{self._outputs}/{key}"

    def host_file(self, key: str) -> str:
        """Return the path of the file that tells a task its machines. It goes when the task ends."""
        return f"{self._hosts}/{key}"

    def write_host_file(self, key: str, text: str) -> str:
        """Write the file that tells a task its machines, for its user to read; return its path. Raises OSError."""
        path = self.host_file(key)
        spare = next((spare for spare, (said, _) in self._spare_files.items() if said == text), "")
        if spare:
            self._host_files[key] = self._spare_files.pop(spare)
            with suppress(OSError):
                os.rename(spare, path)
                return path
        with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            os.fchmod(file, _HOST_FILE_MODE)
            write_all(file, text.encode())
            self._host_files[key] = text, os.fstat(file).st_mtime_ns
        return path

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
        if self._gave_spare(folder):
            return folder
        with suppress(FileExistsError):
            os.mkdir(folder, _FOLDER_MODE)
        return folder

    def left_to_make(self, key: str, folder: str) -> str:
        """Return the folder for checkpoints that the child of a task has yet to make. Empty = none."""
        if not self._checkpoints or os.path.dirname(folder) != self._checkpoints:
            return folder
        self._checkpoint_folders[key] = folder
        return "" if self._gave_spare(folder) else folder

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
        if not self._spared_file(key):
            _remove(self.host_file(key))  # if it had one; what can't go now goes when the next runner counts anew
        _remove(self.notice_file(key))
        checkpoints = self._checkpoint_folders.pop(key, "")
        if checkpoints and checkpoints not in self._checkpoint_folders.values():
            self._spared_folder(checkpoints)  # else the agent removes it, if it is empty
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
            if not self._spared_folder(f"{self._work}/{attempt}"):
                os.rmdir(f"{self._work}/{attempt}")
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _gave_spare(self, folder: str) -> bool:
        if not self._spare_folders or os.path.lexists(folder):
            return False
        with suppress(OSError):
            os.rename(self._spare_folders[-1], folder)
            self._spare_folders.pop()
            return True
        return False

    def _spared_folder(self, folder: str) -> bool:
        """Keep a folder of ours for a later task, if it is as it was made (X4)."""
        if len(self._spare_folders) >= _SPARES_MAX:
            return False
        with suppress(OSError):
            if _is_ours(os.lstat(folder), stat.S_IFDIR | _FOLDER_MODE):
                changed = os.listdir(folder) or os.listxattr(folder, follow_symlinks=False)
                spare = self._spare(self._work)
                if not changed:
                    os.rename(folder, spare)
                    self._spare_folders.append(spare)
                    return True
        return False

    def _spared_file(self, key: str) -> bool:
        """Keep the file of a task's machines for a later one, if nobody wrote to it (X4)."""
        told, path = self._host_files.pop(key, None), self.host_file(key)
        if told is None or len(self._spare_files) >= _SPARES_MAX:
            return False
        with suppress(OSError):
            found = os.lstat(path)
            untouched = (found.st_size, found.st_mtime_ns) == (len(told[0].encode()), told[1])
            if untouched and _is_ours(found, stat.S_IFREG | _HOST_FILE_MODE):
                spare = self._spare(self._hosts)
                os.rename(path, spare)
                self._spare_files[spare] = told
                return True
        return False

    def _spare(self, folder: str) -> str:
        self._spares_made += 1
        return f"{folder}/.spare.{self._spares_made}"

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


def _is_ours(found: os.stat_result, mode: int) -> bool:
    """Whether a file or folder is of this kind and mode, and of the runner's own account."""
    return found.st_mode == mode and found.st_uid == os.geteuid()


def _is_plain(path: str) -> bool:
    """Whether this name in a folder of ours is neither a link nor where something is mounted. Never asks storage."""
    at = os.fsencode(path)
    mounts = read_file("/proc/self/mountinfo")
    return bool(mounts) and not os.path.islink(path) and at.split() == [at] and b" %b " % at not in mounts


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
