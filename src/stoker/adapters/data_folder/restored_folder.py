"""A data folder whose content comes from a backup, all or nothing.

Rules: F1  what comes is put together within the folder and takes the place of all that is there in one replacement
           (`folder_swap`): a crash leaves there what was there before or all of the new, once somebody takes the folder
       F2  what is there already is never removed: a folder that holds more than an old lock is refused, or all in it is
           moved aside. What is refused gets nothing put into it. A place where a disk is mounted is refused: nothing
           can be moved from it to beside it
       F3  it belongs to whoever owned the folder that was there, so that root may do this for another account
       F4  the certificate authority that was there is there afterwards: no backup has it, and whoever has joined or
           logged in knows the control plane by it
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from stoker.adapters.atomic_file import sync
from stoker.adapters.data_folder.folder_swap import (
    INCOMING_NAME,
    LOCK_NAME,
    is_swapping,
    next_numbered,
    numbered,
    swap_all,
)
from stoker.adapters.data_folder.ownership import hold_folder, unusable
from stoker.brain.domain.errors import refusal_error
from stoker.ports import HistoryFailed, LogFailed

AUTHORITY_NAME: Final = "ca"
"""The folder of the certificate authority in a data folder, unless settings name another place."""
ASIDE_MAX: Final = 100
"""Folders of earlier restores beside the one in use."""


@contextmanager
def restored_folder(path: Path, *, replace: bool) -> Iterator[Path]:
    """Yield a held data folder; what lies in INCOMING_NAME when the block ends becomes its content.

    `replace`: what is there is moved aside; otherwise it is refused.
    Raises: StokerError `data_dir_not_empty`, `data_dir_held` or `data_dir_unusable`.
    """
    path = Path(os.path.realpath(path))  # a link stays, and is to what is restored
    with ExitStack() as undo:
        try:
            _must_be_movable(path)
            if not (path / LOCK_NAME).exists():
                _check(path, replace=replace)
            is_new = not path.exists()
            undo.callback(hold_folder(path).release)
            undo.callback(_clear, path, is_new=is_new)
            _check(path, replace=replace)
            yield path
            if (path / AUTHORITY_NAME).is_dir():
                shutil.copytree(path / AUTHORITY_NAME, path / INCOMING_NAME / AUTHORITY_NAME)
            _give_to_owner(path)
            swap_all(path, _aside(path) if _others(path) else None)
            sync(path.parent)
        except OSError as fault:
            raise unusable(path, fault) from fault
        except LogFailed as fault:
            if isinstance(fault.__cause__, OSError):
                raise unusable(path, fault.__cause__) from fault
            message = f"can't make {path}: {fault.__cause__ if isinstance(fault.__cause__, HistoryFailed) else fault}"
            hint = "see whether the disk is full; nothing was changed"
            raise refusal_error("data_dir_unusable", message, hint, path=str(path)) from fault


def _must_be_movable(path: Path) -> None:
    """Refuse a folder whose contents may not be moved aside (F2)."""
    if path.is_mount():
        message = f"{path} is where a disk is mounted, and can't be put in place as a whole"
        hint = f"restore into a new folder on that disk, such as {path / 'restored'}, and let data_dir name it"
        raise refusal_error("data_dir_unusable", message, hint, path=str(path))


def _check(path: Path, *, replace: bool) -> None:
    """Refuse a folder that holds more than an old lock (F2)."""
    if replace or not path.is_dir() or not (others := _others(path)):
        return
    named = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
    raise refusal_error(
        "data_dir_not_empty",
        f"{path} isn't empty: it holds {named}",
        "name a new folder; with --force it is moved aside, and kept",
        path=str(path),
    )


def _others(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.name not in (LOCK_NAME, INCOMING_NAME))


def _clear(path: Path, *, is_new: bool) -> None:
    """Leave nothing of what didn't come to a replacement, nor of a folder that was made for it."""
    with suppress(OSError):
        if not is_swapping(path):
            shutil.rmtree(path / INCOMING_NAME, ignore_errors=True)
        if is_new and not is_swapping(path) and not _others(path):
            (path / LOCK_NAME).unlink()
            path.rmdir()


def _give_to_owner(path: Path) -> None:
    """Give what was put together to the folder's owner, before it takes its place (F1, F3)."""
    incoming, owner = path / INCOMING_NAME, path.stat()
    for entry in (path / LOCK_NAME, *incoming.rglob("*"), incoming):
        if (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(entry, owner.st_uid, owner.st_gid)
        sync(entry)


def _aside(path: Path) -> Path:
    """A new folder beside, that is owned and open to others as this one is."""
    stem = path.with_name(f"{path.name}.before-restore")
    if len(numbered(stem)) >= ASIDE_MAX:
        message = f"{ASIDE_MAX} folders of earlier restores are beside {path}"
        raise refusal_error("data_dir_not_empty", message, "remove those that nobody needs", path=str(path))
    aside, like = next_numbered(stem), path.stat()
    aside.mkdir(exist_ok=True)
    if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(aside, like.st_uid, like.st_gid)
    aside.chmod(like.st_mode & 0o777)
    return aside
