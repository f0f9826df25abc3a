"""Checkpoint folders of jobs, on storage that may hang.

One folder per job under a root, which is often on a network file system, and common to nodes and to clusters. Nothing
here is waited for by the agent's loop: the folder is made by the job's own process before it becomes the program, so
that a storage that hangs holds up that job and no other; folders are removed by a thread, which the end of this process
doesn't wait for.

Rules: H1  a folder with content stays for the job's next attempt; an empty one goes after its last task here
       H2  a job that comes back before its folder is removed keeps it; while it is being removed, the job waits, and
           after `PATIENCE_S` it is refused: the storage hangs
       H3  a folder has the cluster in its name, `71.9f3ac01b77de`: job 71 of another cluster has another folder
       H4  one in which nothing has changed for `keep_s` is removed; then, while all hold more than `bytes_max`, those
           that changed longest ago, but none that changed within `YOUNG_S`. Which jobs wait is not known here, so
           nothing else is; that of a task which runs here counts as changed now, on every node
Limits: `DUE_MAX` folders wait to be removed; more stay, empty. A folder with more than `ENTRIES_MAX` files stays.
"""

import errno
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.brain.domain.ids import JobId
from stoker.ports import Clock

PATIENCE_S: Final = 2.0
DUE_MAX: Final = 10_000
GATHER_S: Final = 0.2
"""Folders that come within it are removed together: a thread that is woken for each short job costs more than they."""
ENTRIES_MAX: Final = 100_000
FIRST_S: Final = 3600.0
"""From the start to the first look at what may go: by then the machine's wall clock should have been set."""
EVERY_S: Final = 6 * 3600.0
YOUNG_S: Final = 7 * 86_400.0
_CLUSTER_CHARACTERS: Final = 12
"""The last ones of a UUIDv7 are drawn by chance; the first ones are the time."""
_LOOK_S: Final = 0.01
_NOTHING: Final = ""
_NAME: Final = re.compile(r"\d{1,16}(\.\w{1,12})?", re.ASCII)
_ASIDE: Final = ".removed-"


class CheckpointFolders:
    def __init__(self, root: Path, clock: Clock, *, keep_s: float = 0.0, bytes_max: int = 0) -> None:
        """`keep_s` and `bytes_max`: of H4; 0 = nothing is removed for that reason."""
        self._root = root
        self._clock = clock
        self._keep_s, self._bytes_max = keep_s, bytes_max
        self._look_at_s = clock.mono() + FIRST_S
        self._cluster = ""
        self._kept: dict[JobId, None] = {}
        # Jobs that have tasks here.
        self._due: dict[str, None] = {}
        self._removing = _NOTHING
        self._ended = False
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None

    def serve(self, cluster_id: str) -> None:
        """Give the folders of this cluster from now on (H3). Empty = one of an older version, which doesn't tell."""
        self._cluster = "".join(filter(str.isalnum, cluster_id))[-_CLUSTER_CHARACTERS:]

    def keep(self, jobs: Iterable[JobId]) -> None:
        """Note which jobs have tasks here."""
        with self._news:
            self._kept = dict.fromkeys(jobs)
        self._wake()

    async def claim(self, job: JobId) -> str:
        """Give a job its folder, waiting while the folder is being removed (H2).

        Raises: OSError with the path.
        """
        path = self._path(job)
        deadline_s = self._clock.mono() + PATIENCE_S
        while self._is_removed_now(path, job):
            if self._clock.mono() >= deadline_s:
                raise OSError(errno.ETIMEDOUT, f"it is being removed for more than {PATIENCE_S:.0f} s", path)
            await self._clock.sleep(_LOOK_S)
        return path

    def _path(self, job: JobId) -> str:
        return str(self._root / (f"{job}.{self._cluster}" if self._cluster else str(job)))

    def _is_removed_now(self, path: str, job: JobId) -> bool:
        """If it only waits to be removed, it stays."""
        with self._news:
            self._due.pop(path, None)
            self._kept[job] = None
            return self._removing == path

    def close(self, job: JobId) -> None:
        """H1. Doesn't wait."""
        with self._news:
            self._kept.pop(job, None)
            if len(self._due) < DUE_MAX:
                self._due[self._path(job)] = None
        self._wake()

    def stop(self) -> None:
        """Finish the removals that wait, unless the storage hangs."""
        with self._news:
            self._ended = True
            self._news.notify()
            thread = self._thread
        if thread is not None:
            thread.join(PATIENCE_S)

    def _wake(self) -> None:
        with self._news:
            if self._thread is None:
                self._thread = threading.Thread(target=self._remove, name="checkpoint-folders", daemon=True)
                self._thread.start()
            if len(self._due) == 1:  # it waits for the first alone
                self._news.notify()

    def _remove(self) -> None:
        while True:
            with self._news:
                self._removing = _NOTHING
                if not self._due:
                    while not self._due and (left_s := self._look_at_s - self._clock.mono()) > 0:
                        if self._ended:
                            return
                        self._news.wait(left_s)
                    self._news.wait_for(lambda: self._ended, GATHER_S)
                if self._due:
                    self._removing = next(iter(self._due))
                    del self._due[self._removing]
            with suppress(OSError):  # not empty, or never made
                if self._removing:
                    os.rmdir(self._removing)
                else:
                    self._look_at_s = self._clock.mono() + EVERY_S
                    self._remove_old()

    # --- old folders (H4) ---------------------------------------------------------------------------------------

    def _remove_old(self) -> None:
        """Raises: OSError when the root can't be read."""
        with self._news:
            kept = [self._path(job) for job in self._kept]
        for path in kept:
            with suppress(OSError):
                os.utime(path)
        if not self._keep_s and not self._bytes_max:
            return
        os.utime(self._root)
        now_s = os.stat(self._root).st_mtime  # by the clock that stamps what is in it, wherever that is
        seen: list[tuple[float, int, str]] = []
        for name in os.listdir(self._root):
            with suppress(OSError):
                if _NAME.fullmatch(name):
                    seen.append((*_measured(f"{self._root}/{name}"), name))
                elif name.startswith(_ASIDE):  # we were killed while we removed it
                    shutil.rmtree(f"{self._root}/{name}", ignore_errors=True)
        total = sum(size for _, size, _ in seen)
        for changed_s, size, name in sorted(seen):
            age_s = now_s - changed_s
            is_old = 0 < self._keep_s < age_s or (0 < self._bytes_max < total and age_s > YOUNG_S)
            if is_old and not self._ended and self._put_aside(name):
                total -= size
                shutil.rmtree(f"{self._root}/{_ASIDE}{name}", ignore_errors=True)

    def _put_aside(self, name: str) -> bool:
        """A job that comes while it is removed, which may take long, has a new one at once."""
        path = str(self._root / name)
        with self._news:
            if path in map(self._path, self._kept):
                return False
            self._removing = path
        try:
            os.rename(path, f"{self._root}/{_ASIDE}{name}")
        except OSError:  # not ours to remove
            return False
        finally:
            self._removing = _NOTHING
        return True


def _measured(path: str) -> tuple[float, int]:
    """When something in a folder changed last, in seconds since 1970, and its bytes. Raises: OSError for no folder,
    and for one that can't be read, or has more than `ENTRIES_MAX` files."""
    top = os.lstat(path)
    if not stat.S_ISDIR(top.st_mode):
        raise NotADirectoryError(path)
    changed_s, size, entries = top.st_mtime, 0, 0
    for folder, _, files in os.walk(path, onerror=_raised):
        entries += 1 + len(files)
        if entries > ENTRIES_MAX:
            raise OSError(errno.E2BIG, "too many files", path)
        for seen in (os.lstat(f"{folder}/{name}") for name in (".", *files)):
            changed_s, size = max(changed_s, seen.st_mtime), size + 512 * seen.st_blocks
    return changed_s, size


def _raised(fault: OSError) -> None:
    raise fault
