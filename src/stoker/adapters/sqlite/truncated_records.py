"""Files that keep the records which a cut removes from a log.

Shape: a file for each cut, of lines of JSON: `position`, `epoch` and `record`, or `base64` where a record isn't JSON.
Rules: C1  a file is there whole or not at all, and durable before the log forgets what is in it
       C2  the newest TAILS_MAX stay
       C3  nobody reads them but people
"""

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from stoker.adapters.atomic_file import replaced
from stoker.brain.domain.ids import Position
from stoker.ports import Stored

TRUNCATED_MAX: Final = 20
_HALF: Final = "tail.tmp"
_NAME: Final = re.compile(r"tail-[0-9]{1,19}-[0-9]{1,19}-[0-9]{1,19}\.jsonl")


class _TruncatedRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    position: int
    epoch: int
    record: msgspec.Raw = msgspec.Raw()
    base64: str = ""


def keep_truncated(folder: Path, rows: Iterator[Stored], last: Position) -> Path:
    """Set aside the records up to `last`, of which there is at least one.

    Raises: OSError; whatever reading them raises.
    """
    first = next(rows)
    path = folder / f"tail-{first.epoch}-{first.position}-{last}.jsonl"
    with replaced(path, folder / _HALF) as file:
        file.write(_line(first))
        file.writelines(map(_line, rows))
    for old in truncated_files(folder)[:-TRUNCATED_MAX]:
        old.unlink(missing_ok=True)
    return path


def truncated_files(folder: Path) -> list[Path]:
    """Those that are kept, the oldest first."""
    return sorted((entry for entry in folder.iterdir() if _NAME.fullmatch(entry.name)), key=_order)


def _order(path: Path) -> tuple[int, ...]:
    """By epoch, then by position."""
    return tuple(map(int, re.findall("[0-9]+", path.name)))


def sweep_truncated(folder: Path) -> None:
    """Remove what a crash left half written. Raises: OSError."""
    (folder / _HALF).unlink(missing_ok=True)


def _line(row: Stored) -> bytes:
    return msgspec.json.encode(_as_text(row)) + b"\n"


def _as_text(row: Stored) -> _TruncatedRecord:
    try:
        msgspec.json.decode(row.record)
        if b"\n" not in row.record:
            return _TruncatedRecord(position=row.position, epoch=row.epoch, record=msgspec.Raw(row.record))
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    return _TruncatedRecord(position=row.position, epoch=row.epoch, base64=base64.b64encode(row.record).decode())
