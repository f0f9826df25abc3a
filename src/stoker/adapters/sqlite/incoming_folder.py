"""How is another log put together beside the one in use?

In a folder within the data folder, so that its files can be renamed into their places. The `Incoming` port; what a
backup's bytes mean is known to whoever hands them over.
"""

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from stoker.adapters.data_folder.folder_swap import INCOMING_NAME, is_swapping
from stoker.adapters.data_folder.ownership import make_private, sync_file, sync_folder
from stoker.adapters.data_folder.restored_folder import Beginning, fill, history_in, put_history_back
from stoker.brain.domain.ids import Epoch
from stoker.ports import HistoryFailed, HistoryMark, LogFailed

Answer = TypeVar("Answer")


class IncomingFolder:
    """The `Incoming` port on a data folder."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir: Final = data_dir.absolute()
        self._folder: Final = self._data_dir / INCOMING_NAME
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

    async def finish(self, mark: HistoryMark, epoch: Epoch, chunks: Sequence[bytes]) -> Path:
        base = (epoch, mark.position)
        beginning = Beginning(cluster_id=mark.cluster_id, base=base, chunks=chunks, epoch=epoch, records=())
        await self._in(self._close_history)
        try:
            await put_history_back(self._folder, mark)
        except HistoryFailed as fault:
            raise LogFailed(f"can't write {self._folder}: {fault}") from fault
        await self._in(lambda: fill(self._folder, beginning))
        await self._in(self._sync)
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
        path = history_in(self._folder)
        make_private(path)
        self._history = path.open("wb")  # here, so that it is known to `drop` when nobody waits for us any more

    def _close_history(self) -> None:
        assert self._history is not None, "it wasn't begun"
        self._history.flush()
        os.fsync(self._history.fileno())
        self._history.close()
        self._history = None

    def _sync(self) -> None:
        for entry in self._folder.iterdir():
            sync_file(entry)
        sync_folder(self._folder)
        sync_folder(self._data_dir)

    async def _stop_thread(self) -> None:
        """Once it is done with what it was asked for, perhaps by somebody who was cancelled since."""
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.shutdown)
