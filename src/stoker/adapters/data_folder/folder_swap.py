"""How does a control plane's log become another one, in a folder whose lock, socket and id stay?

The other log lies ready in a folder within, whole and durable. To install it is to write a note that says so; whoever
opens the log next carries the note out before anything else is opened.

Rules: W1  before the note is there everything is as it was; once it is there, the other log is the one that will be
           opened, whatever crashes on the way
       W2  the note has two forms, of which the second begins once everything old has moved out: so that old and new,
           which have the same names, are never taken for each other. Each step may be done again
       W3  what is replaced is kept in a folder of its own, the newest REPLACED_MAX of them: each is a whole store
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stoker.adapters.atomic_file import half_written, write_atomic
from stoker.adapters.data_folder.ownership import sync_folder

INCOMING_NAME: Final = "incoming"
REPLACED_MAX: Final = 2
_OUT_NAME: Final = "installing-out"
_IN_NAME: Final = "installing-in"
_MOVED: Final = re.compile(r"(stoker|history)\.db(-wal|-shm)?|snapshot-[0-9]+\.(jsonl|cut|tmp)|snapshot\.damaged")
_BESIDE: Final = ("-wal", "-shm")
_REPLACED: Final = re.compile(r"replaced-([0-9]{1,9})")


def begin_swap(folder: Path, *, keep: bool) -> str:
    """Let what lies in INCOMING_NAME be the log from the next open on. Where the old one will be; empty = it isn't
    kept. Raises: OSError; then nothing was changed."""
    aside = _next_replaced(folder) if keep else ""
    if aside:
        (folder / aside).mkdir(mode=0o700)
        sync_folder(folder)
    write_atomic(folder / _OUT_NAME, aside.encode())
    return str(folder / aside) if aside else ""


def is_swapping(folder: Path) -> bool:
    """Is there a note?"""
    return (folder / _OUT_NAME).exists() or (folder / _IN_NAME).exists()


def finish_swap(folder: Path) -> None:
    """Carry out what was begun, or clear away what never came to it. Raises: OSError; then it may be called again."""
    out, into, incoming = folder / _OUT_NAME, folder / _IN_NAME, folder / INCOMING_NAME
    if out.exists():
        _move_out(folder, out.read_text("utf-8"))
        out.rename(into)
        sync_folder(folder)
    if into.exists():
        _move_in(folder, incoming)
        into.unlink()
        sync_folder(folder)
    if incoming.exists():
        shutil.rmtree(incoming)
    half_written(out).unlink(missing_ok=True)
    for old in _replaced(folder)[:-REPLACED_MAX]:
        shutil.rmtree(folder / old)


def _move_out(folder: Path, aside: str) -> None:
    for entry in _moved(folder):
        if aside:
            entry.rename(folder / aside / entry.name)
        else:
            entry.unlink()
    if aside:
        sync_folder(folder / aside)
    sync_folder(folder)


def _move_in(folder: Path, incoming: Path) -> None:
    for entry in _moved(incoming) if incoming.exists() else ():
        for beside in _BESIDE:
            # Made by somebody who had the old store open; it says nothing about this one.
            (folder / f"{entry.name}{beside}").unlink(missing_ok=True)
        entry.rename(folder / entry.name)
    sync_folder(folder)


def _moved(folder: Path) -> Iterator[Path]:
    """What belongs to a log; a store comes before what stands beside it."""
    yield from sorted(entry for entry in folder.iterdir() if _MOVED.fullmatch(entry.name))


def _replaced(folder: Path) -> list[str]:
    """The oldest first."""
    numbers = (_REPLACED.fullmatch(entry.name) for entry in folder.iterdir())
    return [f"replaced-{number}" for number in sorted(int(match[1]) for match in numbers if match)]


def _next_replaced(folder: Path) -> str:
    """A number that isn't taken, or the newest one if its folder is empty: a crash came before the note."""
    taken = _replaced(folder)
    if taken and not any((folder / taken[-1]).iterdir()):
        (folder / taken[-1]).rmdir()
        return taken[-1]
    return f"replaced-{int(taken[-1].removeprefix('replaced-')) + 1 if taken else 1}"
