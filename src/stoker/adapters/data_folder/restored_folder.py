"""How does a data folder come to be from a backup, all or nothing?

Rules: F1  it is made beside the place where it will be, synced as a whole, and put there by one step of the kernel: a
           crash leaves there either what was there before or all of the new one, so that no control plane begins a new
           cluster; and beside it perhaps a hidden folder that the next attempt clears away, or the new one under the
           name that the old one would have. A file system where two folders can't change places (NFS, some of FUSE)
           has neither there for a moment
       F2  what is there already is never removed: a folder that holds more than an old lock is refused, or moved aside.
           What is refused gets nothing put into it. A place where a disk is mounted can't be moved, and is refused
       F3  it belongs to whoever owned the folder that was there, so that root may do this for another account
"""

import ctypes
import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stoker.adapters.data_folder.ownership import LOCK_NAME, hold_folder, sync_file, sync_folder, unusable
from stoker.adapters.sqlite.history import HISTORY_NAME, SqliteHistory
from stoker.adapters.sqlite.journal import begin_behind
from stoker.adapters.sqlite.snapshot_files import SnapshotFiles
from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import HistoryFailed, HistoryMark, LogFailed

ASIDE_MAX: Final = 100
"""Folders of earlier restores beside the one in use."""

_AT_CWD: Final = -100
_RENAME_EXCHANGE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What a log goes on from."""

    cluster_id: str
    base: tuple[Epoch, Position]
    """Of the last record that its state holds."""
    chunks: Sequence[bytes]
    """The snapshot that was taken there."""
    epoch: Epoch
    records: Sequence[bytes]
    """What stands behind it, under that epoch."""

    @property
    def mark(self) -> HistoryMark:
        """How far its history goes."""
        return HistoryMark(cluster_id=self.cluster_id, position=self.base[1])


@contextmanager
def new_folder(path: Path, *, replace: bool) -> Iterator[Path]:
    """A folder to be filled, which is put in the place of `path` once the block is left without an exception.

    `replace`: what is there is moved aside; else it is refused.
    Raises: StokerError `data_dir_not_empty`, `data_dir_held` or `data_dir_unusable`.
    """
    with ExitStack() as undo:
        try:
            path = Path(os.path.realpath(path))  # a link stays, and is to what is put in place
            _must_be_movable(path)
            there = path.is_dir()
            if there:
                if not (path / LOCK_NAME).exists():
                    _check(path, replace=replace)
                undo.callback(hold_folder(path).release)
            _check(path, replace=replace)
            beside = path.with_name(f".{path.name}.restoring")
            undo.callback(hold_folder(beside).release)
            undo.callback(shutil.rmtree, beside, ignore_errors=True)
            _clear(beside)
            yield beside
            _finish(beside, path.stat() if there else None)
            _put_in_place(beside, path)
        except OSError as fault:
            raise unusable(path, fault) from fault
        except (HistoryFailed, LogFailed) as fault:
            message = f"can't make {path}: {fault}"
            hint = "see whether the disk is full; nothing was changed"
            raise StokerError(refuse("data_dir_unusable", message, hint, path=str(path))) from fault


def fill(folder: Path, beginning: Beginning) -> None:
    """Snapshot and log. Raises: OSError, LogFailed."""
    SnapshotFiles(folder).save(beginning.base[1], beginning.chunks)
    begin_behind(folder, beginning.base, beginning.epoch, beginning.records)


async def put_history_back(folder: Path, mark: HistoryMark) -> None:
    """Take off what the history noted after a backup's position. Raises: HistoryFailed, StokerError
    `backup_damaged`."""
    history = SqliteHistory(folder)
    try:
        found = await history.open()
        if found.cluster_id != mark.cluster_id or found.position < mark.position:
            named = f"{found.position} of cluster {found.cluster_id or 'none'}"
            raise StokerError(
                refuse(
                    "backup_damaged",
                    f"the history in the backup ends at {named}, before its state",
                    "take another backup: this one was put together by hand",
                )
            )
        await history.rewind(mark)
    finally:
        await history.close()


def history_in(folder: Path) -> Path:
    return folder / HISTORY_NAME


def _must_be_movable(path: Path) -> None:
    """F2"""
    if path.is_mount():
        message = f"{path} is where a disk is mounted, and can't be put in place as a whole"
        hint = f"restore into a new folder on that disk, such as {path / 'restored'}, and let data_dir name it"
        raise StokerError(refuse("data_dir_unusable", message, hint, path=str(path)))


def _check(path: Path, *, replace: bool) -> None:
    """F2"""
    if replace or not path.is_dir() or not (others := _others(path)):
        return
    named = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
    raise StokerError(
        refuse(
            "data_dir_not_empty",
            f"{path} isn't empty: it holds {named}",
            "name a new folder; with --force it is moved aside, and kept",
            path=str(path),
        )
    )


def _others(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.name != LOCK_NAME)


def _clear(folder: Path) -> None:
    """What an earlier attempt left."""
    for name in _others(folder):
        (folder / name).unlink()


def _finish(folder: Path, like: os.stat_result | None) -> None:
    """F1, F3"""
    for entry in (folder, *folder.iterdir()):
        if like is not None and (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(entry, like.st_uid, like.st_gid)
        sync_file(entry)
    if like is not None:
        folder.chmod(like.st_mode & 0o777)


def _put_in_place(folder: Path, path: Path) -> None:
    if path.is_dir() and _others(path):
        _change_places(folder, path, _aside(path))
    else:
        (path / LOCK_NAME).unlink(missing_ok=True)
        folder.rename(path)
    sync_folder(path.parent)


def _change_places(folder: Path, path: Path, aside: Path) -> None:
    """F1. The new one has the name where the old one will be kept before they do: under the hidden one the old one
    would be cleared away."""
    folder.rename(aside)
    try:
        exchange(aside, path)
    except OSError as fault:
        aside.rename(folder)
        if fault.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        path.rename(aside)
        try:
            folder.rename(path)
        except OSError:
            aside.rename(path)
            raise


def exchange(one: Path, other: Path) -> None:
    """Each gets the other's name, in one step: renameat2(2) with RENAME_EXCHANGE. Raises: OSError, with EINVAL where
    the file system can't."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        raise OSError(errno.ENOSYS, "this C library has no renameat2") from None
    names = [ctypes.c_char_p(os.fsencode(each)) for each in (one, other)]
    if renameat2(_AT_CWD, names[0], _AT_CWD, names[1], ctypes.c_uint(_RENAME_EXCHANGE)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one), None, str(other))


def _aside(path: Path) -> Path:
    for number in range(1, ASIDE_MAX + 1):
        aside = path.with_name(f"{path.name}.before-restore-{number}")
        if not aside.exists():
            return aside
    message = f"{ASIDE_MAX} folders of earlier restores are beside {path}"
    raise StokerError(refuse("data_dir_not_empty", message, "remove those that nobody needs", path=str(path)))
