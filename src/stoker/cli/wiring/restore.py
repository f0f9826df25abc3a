"""Restore of a backup file into the data folder of a control plane, or into an empty database beside it.

Rules: R1  the whole file is read and proved before anything is written, and once more while it is written
       R2  what a newer version wrote is refused: it may say what this one would overlook
       R4  a log that is to be in a database is written there first, and kept once the folder is in its place: a cut
           between the two leaves a folder that waits for that log, and the one that was there before beside it
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Final

from stoker.adapters.clock import SystemClock
from stoker.adapters.data_folder.restored_folder import restored_folder
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.logs import StructuredTelemetry
from stoker.adapters.sqlite.incoming_folder import IncomingFolder
from stoker.cli.wiring.token_store import as_owner
from stoker.control.backup import ProvedBackup, proved, restore_into, restored_beginning
from stoker.ports import LogBeginning
from stoker.wire.backup import SNAPSHOT, damaged, foreign, read_backup, too_new
from stoker.wire.endpoints import PRODUCT

_PIECE_BYTES: Final = 256 * 1024


def restore_backup(file: Path, data_dir: Path, *, force: bool, store_url: str = "") -> ProvedBackup:
    """Restore a backup, and return it with the state that the cluster goes on with.

    `store_url`: of the database for the log; empty = it is in the folder too.
    Raises: StokerError `backup_foreign`, `backup_too_new`, `backup_damaged`, `data_dir_not_empty`,
    `data_dir_held`, `data_dir_unusable`; of a database `store_not_empty`, `store_unreachable`, `store_held`,
    `store_too_new`, `extra_missing`.
    """
    backup = proved_file(file)
    beginning = restored_beginning(backup, SystemClock(), SystemEntropy())
    asyncio.run(_put_in_place(file, backup, beginning, data_dir, force=force, store_url=store_url))
    return backup


def proved_file(file: Path) -> ProvedBackup:
    """Read a backup to its end, and return it with its state.

    Raises: StokerError `backup_foreign`, `backup_too_new` or `backup_damaged`.
    """
    snapshot = bytearray()
    with _opened(file) as source:
        head = read_backup(source, {SNAPSHOT: snapshot.extend})
    if _release(head.version) > _release(PRODUCT):
        raise too_new(f"was written by version {head.version}; this is {PRODUCT}")
    return proved(head, bytes(snapshot))


async def _put_in_place(
    file: Path, backup: ProvedBackup, beginning: LogBeginning, data_dir: Path, *, force: bool, store_url: str
) -> None:
    """Put the folder in its place, and keep the database's log after that (R4)."""
    owner = as_owner(data_dir) if data_dir.is_dir() else nullcontext()
    async with AsyncExitStack() as database:
        with restored_folder(data_dir, replace=force) as folder, _opened(file) as source:
            incoming = IncomingFolder(folder, log_elsewhere=bool(store_url))
            await restore_into(incoming, backup, beginning, source.pieces())
            if store_url:
                await database.enter_async_context(_filled_database(store_url, beginning, owner))


def _filled_database(
    url: str, beginning: LogBeginning, owner: AbstractContextManager[None]
) -> AbstractAsyncContextManager[None]:
    """Its tables belong to whoever starts the control plane: the owner of the folder, if there is one."""
    # Only who asks for it needs the driver.
    from stoker.adapters.postgres.restored_database import filled_database

    clock = SystemClock()
    return filled_database(url, beginning, clock, StructuredTelemetry(clock, level="error"), account=owner)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall("[0-9]+", version)[:3])


@contextmanager
def _opened(file: Path) -> Iterator["_File"]:
    try:
        if not file.is_file():
            raise foreign(f"{file} is no file, and a backup is read twice", "put it into a file first")
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as fault:
        raise damaged(f"{file} can't be read: {fault.strerror}") from fault
    try:
        yield _File(file, fd)
    finally:
        os.close(fd)


class _File:
    """A file whose own faults can be told from those of where its bytes go."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path, self._fd = path, fd

    def read(self, size: int, /) -> bytes:
        try:
            return os.read(self._fd, size)
        except OSError as fault:
            raise damaged(f"{self._path} can't be read: {fault.strerror}") from fault

    async def pieces(self) -> AsyncIterator[bytes]:
        while piece := self.read(_PIECE_BYTES):
            yield piece
