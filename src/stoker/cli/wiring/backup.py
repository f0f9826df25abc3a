"""Backup of a control plane into a file, running or stopped.

Rules: U1  written beside, readable by nobody else, synced and renamed: a file of that name is a whole backup.
           What is none (a pipe, a device) is never replaced, and of a link it is the file behind it that is meant
       U2  what comes is proved on its way, also where it goes to standard output
       U3  with a data folder the control plane is asked over its socket there; one that is stopped has its log and
           history opened under the lock that it would hold itself
       U4  a log that isn't the one of that folder's history is refused: the history would be put back to where it ends
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from stoker.adapters.atomic_file import replaced
from stoker.adapters.log_store import history_at
from stoker.brain.domain.errors import StokerError, refuse
from stoker.cli.wiring.token_store import as_owner, log_of_stopped, must_have_its_log, must_have_store, once_free
from stoker.control.backup import Backups
from stoker.live.control_plane import recover_control
from stoker.live.main import as_refusals
from stoker.live.settings.control import ControlSettings
from stoker.ports import History, HistoryMark
from stoker.wire.backup import BackupHead, ByteSource, read_backup
from stoker.wire.client.transport import SocketTransport, Transport
from stoker.wire.endpoints import API_PREFIX
from stoker.wire.local_socket import SOCKET_NAME, is_served

TARGET: Final = f"{API_PREFIX}/backup"
STOPPED: Final = "stopped"
"""What a control plane that doesn't run is called among those that write to its history."""


@contextmanager
def file_to_be(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """Check that a backup file can be written (U1). Raises: StokerError `backup_exists` or `backup_unwritable`."""
    if not force and os.path.lexists(path):
        message = f"{path} is there already"
        raise StokerError(refuse("backup_exists", message, "name another file, or give --force", path=str(path)))
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        hint = "name a file; for a pipe or a device, name `-` and send standard output there"
        raise _unwritable(path, "it is no file", hint)
    try:
        with replaced(path, path.with_name(f".{path.name}.{os.getpid()}.partial")) as out:
            yield out
    except OSError as fault:
        raise _unwritable(
            path, fault.strerror or fault, "name a file where there is room, and where you may write"
        ) from fault


def _unwritable(path: Path, why: object, hint: str) -> StokerError:
    message = f"the backup can't be written to {path}: {why}"
    return StokerError(refuse("backup_unwritable", message, hint, path=str(path)))


def backup_of(transport: Transport, out: BinaryIO) -> BackupHead:
    """Write the backup of a running control plane to `out`.

    Raises: StokerError as it refuses, `no_server`, `no_answer`, `backup_damaged`; the OSError of `out`.
    """
    with transport.opened(TARGET) as answer:
        return read_backup(_Tee(answer, out), {})


def backup_in(data_dir: Path, out: BinaryIO, store_url: str = "") -> BackupHead:
    """U3. `store_url`: of the database with its log; empty = that is in the folder, or not known.

    Raises: the same, and StokerError `data_dir_unusable`, `data_dir_held`, `store_moved`, `store_too_new`,
    `log_damaged`; of a database `store_unreachable` and `store_held`."""
    folder = data_dir.absolute()
    return once_free(folder, lambda: _of_folder(folder, out, store_url))


def _of_folder(folder: Path, out: BinaryIO, store_url: str) -> BackupHead:
    if not is_served(folder / SOCKET_NAME):
        return _of_stopped(folder, out, store_url)
    with closing(SocketTransport(folder / SOCKET_NAME)) as transport:
        return backup_of(transport, out)


class _Tee:
    """U2. What is read there is written here."""

    def __init__(self, source: ByteSource, out: BinaryIO) -> None:
        self._source, self._out = source, out

    def read(self, size: int, /) -> bytes:
        piece = self._source.read(size)
        self._out.write(piece)
        return piece


def _of_stopped(folder: Path, out: BinaryIO, store_url: str) -> BackupHead:
    if store_url:
        import stoker.adapters.postgres.event_log  # noqa: F401  # its libraries may be out of reach for the owner
    else:
        must_have_its_log(folder)
    must_have_store(folder)
    with as_owner(folder), as_refusals():
        return asyncio.run(_taken(folder, out, store_url))


async def _taken(folder: Path, out: BinaryIO, store_url: str) -> BackupHead:
    async with log_of_stopped(folder, store_url) as (log, ports), AsyncExitStack() as opened:
        history = history_at(folder, store_url, STOPPED)
        opened.push_async_callback(history.close)
        end, met = await log.open(), await _mark_in(history_at(folder, store_url, STOPPED))
        if met.position > end:
            raise _another_log(folder)
        control = await recover_control(ControlSettings(data_dir=folder), log, history, ports)
        if met.cluster_id not in ("", control.committer.state.cluster_id):
            raise _another_log(folder)
        backup = await Backups(control).take()
        opened.push_async_callback(backup.close)
        async for piece in backup.pieces():
            out.write(piece)
        return backup.head


async def _mark_in(history: History) -> HistoryMark:
    """How far the history goes that lies there. Raises: HistoryFailed."""
    try:
        return await history.open()
    finally:
        await history.close()


def _another_log(folder: Path) -> StokerError:
    """Return the refusal of a log that isn't the one of the folder's history (U4)."""
    message = f"the log is not the one of the history in {folder}: it ends before that, or is another cluster's"
    return StokerError(refuse("store_moved", message, "let store.url name the database that goes with this data_dir"))
