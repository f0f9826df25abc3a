"""Log and history from a backup, put together in a folder within the data folder before they replace what is there.

So their files can be renamed into their places. What the bytes of a backup mean `control.backup` knows.
"""

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from stoker.adapters.atomic_file import make_private, sync
from stoker.adapters.data_folder.folder_swap import INCOMING_NAME, is_swapping
from stoker.adapters.data_folder.marks import mark_elsewhere
from stoker.adapters.history_sql.tables import HISTORY_NAME
from stoker.adapters.sqlite.files import SnapshotFiles
from stoker.adapters.sqlite.history import SqliteHistory
from stoker.adapters.sqlite.journal import begin_behind
from stoker.brain.domain.errors import refusal_error
from stoker.ports import HistoryFailed, HistoryMark, LogBeginning, LogFailed

Answer = TypeVar("Answer")


class IncomingFolder:
    """The `Incoming` port on a data folder."""

    def __init__(self, data_dir: Path, *, log_elsewhere: bool = False) -> None:
        """`log_elsewhere`: the log itself is put into a database, and only the rest into the folder."""
        self._data_dir: Final = data_dir.absolute()
        self._folder: Final = self._data_dir / INCOMING_NAME
        self._log_elsewhere = log_elsewhere
        self._thread: ThreadPoolExecutor | None = None
        self._history: BinaryIO | None = None

    async def begin(self) -> None:
        await self.drop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stoker-incoming")
        await self._in(self._begin)

    async def write(self, piece: bytes) -> None:
        history = self._history
        assert history is not None, "it wasn't begun"
        await self._in(lambda: history.write(piece))

    async def finish(self, beginning: LogBeginning) -> Path:
        await self._in(self._close_history)
        try:
            await _put_history_back(self._folder, beginning.mark)
        except HistoryFailed as fault:
            raise LogFailed(f"can't write {self._folder}: {fault}") from fault
        await self._in(lambda: self._fill(beginning))
        await self._stop_thread()
        return self._folder

    async def drop(self) -> None:
        await self._stop_thread()
        if self._history is not None:
            with suppress(OSError):  # what it can't write any more is of no use
                self._history.close()
            self._history = None
        if not is_swapping(self._data_dir):
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _in(self, work: Callable[[], Answer]) -> Answer:
        assert self._thread is not None, "it wasn't begun"
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (OSError, sqlite3.Error) as fault:
            raise LogFailed(f"can't write {self._folder}: {getattr(fault, 'strerror', None) or fault}") from fault

    def _begin(self) -> None:
        if is_swapping(self._data_dir):
            raise LogFailed(f"another log waits in {self._folder} to be opened")
        self._folder.mkdir(mode=0o700)
        path = self._folder / HISTORY_NAME
        make_private(path)
        self._history = path.open("wb")  # here, so that it is known to `drop` when nobody waits for us any more

    def _close_history(self) -> None:
        assert self._history is not None, "it wasn't begun"
        self._history.flush()
        os.fsync(self._history.fileno())
        self._history.close()
        self._history = None

    def _fill(self, beginning: LogBeginning) -> None:
        if self._log_elsewhere:
            mark_elsewhere(self._folder, begun=True)
        else:
            SnapshotFiles(self._folder).save(beginning.base[1], beginning.chunks)
            begin_behind(self._folder, beginning.base, beginning.epoch, beginning.records)
        for entry in self._folder.iterdir():
            sync(entry)
        sync(self._folder)
        sync(self._data_dir)

    async def _stop_thread(self) -> None:
        """Once it is done with what it was asked for, perhaps by somebody who was cancelled since."""
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.shutdown)


async def _put_history_back(folder: Path, mark: HistoryMark) -> None:
    """Take off what the history noted after a backup's position. Raises: HistoryFailed, StokerError
    `backup_damaged`."""
    history = SqliteHistory(folder)
    try:
        found = await history.open()
        if found.cluster_id != mark.cluster_id or found.position < mark.position:
            named = f"{found.position} of cluster {found.cluster_id or 'none'}"
            raise refusal_error(
                "backup_damaged",
                f"the history in the backup ends at {named}, before its state",
                "take another backup: this one was put together by hand",
            )
        await history.rewind(mark)
    finally:
        await history.close()
