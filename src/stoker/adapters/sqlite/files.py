"""Files beside the store of a log: snapshots, and the records that a cut removed from it.

Shape: a snapshot has that of `brain.state.snapshot_format`. A cut makes a file of lines of JSON: `position`, `epoch`
       and `record`, or `base64` where a record isn't JSON.
Rules: N1  written beside, synced, renamed, folder synced: a crash leaves the old files and perhaps a `.tmp`
       N2  the newest KEPT snapshots stay; the older one is what recovery falls back to when the newest is damaged
       N3  a snapshot is answered only when head, lengths, tail and checksum agree
       N4  a file of removed records is durable before the log forgets them; the newest TRUNCATED_MAX stay, and nobody
           reads them but people
"""

import base64
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from stoker.adapters.atomic_file import replaced, sync
from stoker.adapters.log_policy import KEPT
from stoker.brain.domain.ids import Position
from stoker.brain.state.snapshot_format import SnapshotDamaged, framed, unframed
from stoker.ports import Snapshot, Stored

SYNC_EVERY_BYTES: Final = 256 * 1024
"""One big sync at the end would make every fsync of the log wait for it; small ones let the log pass between: 16 ms
with 2 MiB at a time, 2 ms with this."""
FREE_EVERY_BYTES: Final = 8 * 1024 * 1024
"""The same of a file that goes: 100 MiB freed at once held up the log for 20 ms, freed bit by bit for 5."""

TRUNCATED_MAX: Final = 20

_NAME: Final = re.compile(r"snapshot-([0-9]{1,19})\.jsonl")
_CUT: Final = ".cut"
_DAMAGED_NAME: Final = "snapshot.damaged"
_TRUNCATED_NAME: Final = re.compile(r"tail-[0-9]{1,19}-[0-9]{1,19}-[0-9]{1,19}\.jsonl")
_TRUNCATED_HALF: Final = "tail.tmp"


class SnapshotFiles:
    """The snapshots in one data folder. Used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def positions(self) -> list[Position]:
        """The snapshots that are there, newest first, whole or not."""
        names = (_NAME.fullmatch(entry.name) for entry in self._folder.iterdir())
        return sorted((Position(int(name[1])) for name in names if name is not None), reverse=True)

    def path(self, position: Position) -> Path:
        return self._folder / f"snapshot-{position:016d}.jsonl"

    def sweep(self) -> None:
        """Remove what a crash left half written."""
        for leftover in self._folder.glob("snapshot-*.tmp"):
            leftover.unlink()
        (self._folder / _TRUNCATED_HALF).unlink(missing_ok=True)

    def save(self, position: Position, chunks: Sequence[bytes]) -> None:
        """Write one and drop all but the newest KEPT. Raises OSError; then the older files are untouched."""
        path = self.path(position)
        with replaced(path, path.with_suffix(".tmp")) as file:
            _write(file, framed(position, chunks))
        for old in self.positions()[KEPT:]:
            self._drop(self.path(old))

    def _drop(self, path: Path) -> None:
        """No longer a snapshot by its name before it is no longer whole (N1)."""
        going = path.with_suffix(".tmp")
        path.replace(going)
        with going.open("r+b", buffering=0) as file:
            left = file.seek(0, os.SEEK_END)
            while left > 0:
                left = file.seek(max(0, left - FREE_EVERY_BYTES))
                file.truncate()
                os.fsync(file.fileno())
        going.unlink()

    def load(self, position: Position) -> Snapshot:
        """Raises: SnapshotDamaged, also when the file can't be read."""
        try:
            data = self.path(position).read_bytes()
        except OSError as fault:
            raise SnapshotDamaged(fault.strerror or str(fault)) from fault
        return Snapshot(position, unframed(position, data))

    def set_aside_after(self, position: Position) -> None:
        """Set aside the snapshots of records that are about to be cut off; the newest KEPT are kept.

        Doing it again is harmless. Raises: OSError.
        """
        for later in self.positions():
            if later > position:
                path = self.path(later)
                path.replace(path.with_suffix(_CUT))
        sync(self._folder)
        for old in sorted(self._folder.glob(f"snapshot-*{_CUT}"))[:-KEPT]:
            self._drop(old)

    def set_aside(self, position: Position) -> Path:
        """Rename a damaged file, so that it is neither counted nor lost. One such file is kept."""
        aside = self._folder / _DAMAGED_NAME
        self.path(position).replace(aside)
        sync(self._folder)
        return aside


def _write(file: BinaryIO, lines: Iterator[bytes]) -> None:
    gathered: list[bytes] = []
    size = 0
    for line in lines:
        gathered.append(line)
        size += len(line)
        if size >= SYNC_EVERY_BYTES:
            _put(file, b"".join(gathered))
            gathered, size = [], 0
    _put(file, b"".join(gathered))


def _put(file: BinaryIO, data: bytes) -> None:
    for at in range(0, len(data), SYNC_EVERY_BYTES):
        file.write(data[at : at + SYNC_EVERY_BYTES])
        file.flush()
        os.fsync(file.fileno())


def keep_truncated(folder: Path, rows: Iterator[Stored], last: Position) -> Path:
    """Set aside the records up to `last`, of which there is at least one.

    Raises: OSError; whatever reading them raises.
    """
    first = next(rows)
    path = folder / f"tail-{first.epoch}-{first.position}-{last}.jsonl"
    with replaced(path, folder / _TRUNCATED_HALF) as file:
        file.write(_truncated_line(first))
        file.writelines(map(_truncated_line, rows))
    for old in truncated_files(folder)[:-TRUNCATED_MAX]:
        old.unlink(missing_ok=True)
    return path


def truncated_files(folder: Path) -> list[Path]:
    """Those that are kept, the oldest first."""
    return sorted((entry for entry in folder.iterdir() if _TRUNCATED_NAME.fullmatch(entry.name)), key=_numbers)


def _numbers(path: Path) -> tuple[int, ...]:
    """By epoch, then by position."""
    return tuple(map(int, re.findall("[0-9]+", path.name)))


def _truncated_line(row: Stored) -> bytes:
    try:
        msgspec.json.decode(row.record)
        is_line = b"\n" not in row.record
    except (msgspec.DecodeError, UnicodeDecodeError):
        is_line = False
    kept = {"record": msgspec.Raw(row.record)} if is_line else {"base64": base64.b64encode(row.record).decode()}
    return msgspec.json.encode({"position": row.position, "epoch": row.epoch, **kept}) + b"\n"
