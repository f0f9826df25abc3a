"""Replacement of what a data folder holds, all or nothing, while its lock stays.

What comes lies ready in a folder within, whole and durable. The replacement begins with a note that says so, and
whoever takes the folder next carries it out before anything else is opened.

Rules: W1  before the note is there everything is as it was; once it is there, what came in is what will be opened,
           whatever crashes on the way
       W2  the note has two forms, of which the second begins once everything old has moved out: so that old and new,
           which have the same names, are never taken for each other. Each step may be done again
       W3  what is replaced is kept in a folder of its own: a log in one within, the newest REPLACED_MAX of them, since
           each is a whole store; all that a folder held in one beside it
Shape: a note holds the path of that folder, relative to the data folder; empty = what is replaced isn't kept.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Final

from stoker.adapters.atomic_file import half_written, replaced, sync

LOCK_NAME: Final = "lock"
INCOMING_NAME: Final = "incoming"
REPLACED_MAX: Final = 2
_OUT_NAME: Final = "installing-out"
_IN_NAME: Final = "installing-in"
_LOG_FILE: Final = re.compile(r"(stoker|history)\.db(-wal|-shm)?|snapshot-[0-9]+\.(jsonl|cut|tmp)|snapshot\.damaged")
_STAYS: Final = (LOCK_NAME, INCOMING_NAME, _OUT_NAME, half_written(Path(_OUT_NAME)).name)
_REPLACED: Final = "replaced"


def begin_log_swap(folder: Path, *, keep: bool) -> str:
    """Note that what lies in INCOMING_NAME is the log from the next `hold_folder` on.

    Return where the old one will be; empty = it isn't kept. Raises: OSError; then nothing was changed.
    """
    return _begin(folder, next_numbered(folder / _REPLACED) if keep else None)


def swap_all(folder: Path, aside: Path | None) -> None:
    """Replace everything in a held folder with what lies in INCOMING_NAME.

    Raises: OSError; then nothing was changed, or the next `hold_folder` finishes it.

    `aside`: a folder beside it for what it had; None = it has nothing.
    """
    _begin(folder, aside)
    finish_swap(folder)


def is_swapping(folder: Path) -> bool:
    """Return whether a replacement was begun that isn't finished."""
    return (folder / _OUT_NAME).exists() or (folder / _IN_NAME).exists()


def finish_swap(folder: Path) -> None:
    """Carry out a replacement that was begun, or clear away one that was not.

    Raises: OSError; then it may be called again.
    """
    out, into, incoming = folder / _OUT_NAME, folder / _IN_NAME, folder / INCOMING_NAME
    if out.exists():
        _move_out(folder, out.read_text("utf-8"))
        out.rename(into)
        sync(folder)
    if into.exists():
        _move_in(folder, incoming)
        into.unlink()
        sync(folder)
    if incoming.exists():
        shutil.rmtree(incoming)
    half_written(out).unlink(missing_ok=True)
    for old in numbered(folder / _REPLACED)[:-REPLACED_MAX]:
        shutil.rmtree(old)


def numbered(stem: Path) -> list[Path]:
    """Return the folders of that name with a number behind it, the oldest first."""
    name = re.compile(rf"{re.escape(stem.name)}-([0-9]{{1,9}})")
    numbers = (name.fullmatch(entry.name) for entry in stem.parent.iterdir())
    return [stem.with_name(f"{stem.name}-{number}") for number in sorted(int(match[1]) for match in numbers if match)]


def next_numbered(stem: Path) -> Path:
    """Return one of a number that isn't taken, or the newest one if it is empty: a crash came before the note."""
    taken = numbered(stem)
    if taken and not any(taken[-1].iterdir()):
        return taken[-1]
    return stem.with_name(f"{stem.name}-{int(taken[-1].name.rpartition('-')[2]) + 1 if taken else 1}")


def _begin(folder: Path, aside: Path | None) -> str:
    if aside is not None:
        aside.mkdir(mode=0o700, exist_ok=True)
        sync(aside.parent)
    owner = folder.stat()
    with replaced(folder / _OUT_NAME) as note:
        if os.geteuid() == 0:
            os.fchown(note.fileno(), owner.st_uid, owner.st_gid)  # root may do this for another account
        note.write(os.path.relpath(aside, folder).encode() if aside else b"")
    return str(aside or "")


def _move_out(folder: Path, aside: str) -> None:
    """Move out, or remove, what is replaced; a store comes before what stands beside it."""
    for entry in sorted(folder.iterdir()):
        if entry.name in _STAYS if aside.startswith("..") else not _LOG_FILE.fullmatch(entry.name):
            continue
        if aside:
            entry.rename(folder / aside / entry.name)
        else:
            entry.unlink()
    if aside:
        sync(folder / aside)
    sync(folder)


def _move_in(folder: Path, incoming: Path) -> None:
    for entry in sorted(incoming.iterdir()) if incoming.exists() else ():
        for beside in ("-wal", "-shm"):
            # Made by somebody who had the old store open; it says nothing about this one.
            (folder / f"{entry.name}{beside}").unlink(missing_ok=True)
        entry.rename(folder / entry.name)
    sync(folder)
