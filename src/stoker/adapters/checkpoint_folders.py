"""Checkpoint folders of jobs, on storage that may hang.

One folder per job under a root, which is often on a network file system. Nothing here is waited for by the agent's
loop: the folder is made by the job's own process before it becomes the program, so that a storage that hangs holds up
that job and no other; a folder that nobody used is removed by a thread, which the end of this process doesn't wait for.

Rules: H1  a folder with content stays for the job's next attempt; an empty one goes after its last task here
       H2  a job that comes back before its folder is removed keeps it; while it is being removed, the job waits, and
           after `PATIENCE_S` it is refused: the storage hangs
Limits: `DUE_MAX` folders wait to be removed; more stay, empty.
"""

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.brain.domain.ids import JobId
from stoker.ports import Clock

PATIENCE_S: Final = 2.0
DUE_MAX: Final = 10_000
_LOOK_S: Final = 0.01
_NOTHING: Final = ""


class CheckpointFolders:
    def __init__(self, root: Path, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self._due: dict[str, None] = {}
        self._removing = _NOTHING
        self._ended = False
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None

    async def claim(self, job: JobId) -> str:
        """Give a job its folder, waiting while the folder is being removed (H2).

        Raises: OSError with the path.
        """
        path = str(self._root / str(job))
        deadline_s = self._clock.mono() + PATIENCE_S
        while self._is_removed_now(path):
            if self._clock.mono() >= deadline_s:
                raise OSError(errno.ETIMEDOUT, f"it is being removed for more than {PATIENCE_S:.0f} s", path)
            await self._clock.sleep(_LOOK_S)
        return path

    def _is_removed_now(self, path: str) -> bool:
        """If it only waits to be removed, it stays."""
        with self._news:
            self._due.pop(path, None)
            return self._removing == path

    def close(self, job: JobId) -> None:
        """H1. Doesn't wait."""
        with self._news:
            if len(self._due) < DUE_MAX:
                self._due[str(self._root / str(job))] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._remove, name="checkpoint-folders", daemon=True)
                self._thread.start()
            self._news.notify()

    def stop(self) -> None:
        """Finish the removals that wait, unless the storage hangs."""
        with self._news:
            self._ended = True
            self._news.notify()
            thread = self._thread
        if thread is not None:
            thread.join(PATIENCE_S)

    def _remove(self) -> None:
        while True:
            with self._news:
                self._removing = _NOTHING
                while not self._due:
                    if self._ended:
                        return
                    self._news.wait()
                self._removing = next(iter(self._due))
                del self._due[self._removing]
            with suppress(OSError):  # not empty, or never made
                os.rmdir(self._removing)
