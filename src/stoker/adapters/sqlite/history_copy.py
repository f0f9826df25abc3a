"""A copy of the SQLite history, taken while it is written and read.

Rules: Y1  of one moment: one read transaction holds it fast, which in WAL mode nobody waits for
       Y2  private, and without a name as soon as it is whole, so that it goes with whoever reads it; what a crash left
           before that is removed when the history is opened
       Y3  written in slices that are synced, as snapshots are: one large sync would hold up those of the event log
"""

import asyncio
import hashlib
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, Final

from stoker.adapters.atomic_file import make_private
from stoker.ports import HistoryFailed

PIECE_BYTES: Final = 256 * 1024
COPY_PAGES: Final = 64
"""In one slice: PIECE_BYTES of pages of the usual size."""
BUSY_TIMEOUT_S: Final = 10.0
_SUFFIX: Final = ".copy"


class FileCopy:
    """The `HistoryCopy` port on a file."""

    def __init__(self, path: Path, thread: ThreadPoolExecutor) -> None:
        """Take it, in this thread, which is `thread`'s. Raises: sqlite3.Error, OSError."""
        self._path = path
        self._thread = thread
        self._file = _taken(path)
        try:
            self.size, self.sha256 = self._measured()
        except BaseException:
            self._file.close()
            raise

    async def read(self) -> bytes:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._file.read, PIECE_BYTES)
        except (OSError, ValueError) as fault:  # ValueError: closed meanwhile
            raise HistoryFailed(f"the copy of {self._path} can't be read: {fault}") from fault

    async def close(self) -> None:
        self._file.close()

    def _measured(self) -> tuple[int, str]:
        sum_of = hashlib.sha256()
        size = 0
        while piece := self._file.read(PIECE_BYTES):
            sum_of.update(piece)
            size += len(piece)
        self._file.seek(0)
        return size, sum_of.hexdigest()


def remove_leftovers(path: Path) -> None:
    """Remove half copied files that a crash left beside the history. Raises: OSError."""
    path.with_name(path.name + _SUFFIX).unlink(missing_ok=True)


def _taken(path: Path) -> BinaryIO:
    """The whole copy, which has no name any more (Y2)."""
    beside = path.with_name(path.name + _SUFFIX)
    remove_leftovers(path)
    try:
        make_private(beside)
        file = beside.open("rb", buffering=0)
        try:
            _copy(path, beside, file.fileno())
        except BaseException:
            file.close()
            raise
        return file
    finally:
        beside.unlink(missing_ok=True)


def _copy(path: Path, beside: Path, fd: int) -> None:
    with (
        closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)) as source,
        closing(sqlite3.connect(beside, isolation_level=None, timeout=BUSY_TIMEOUT_S)) as target,
    ):
        # The copy needs neither a journal nor syncs of its own: a half one is thrown away. What its cache can't hold
        # is written at once, so that there is something to sync.
        for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = {COPY_PAGES}"):
            target.execute(f"PRAGMA {pragma}")
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # Y1: from here on it is this moment
        source.backup(target, pages=COPY_PAGES, progress=lambda *_: os.fdatasync(fd))
        target.execute("PRAGMA journal_mode = DELETE")  # one file, that opens without those beside it
