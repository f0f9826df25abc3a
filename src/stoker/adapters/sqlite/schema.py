"""Schema migrations of SQLite stores.

Rules: S1  steps are numbered files of SQL in one folder; each is one transaction together with its number
       S2  a store of another program, or of a newer Stoker, is left as it is
"""

import sqlite3
from pathlib import Path
from typing import Final

from stoker.brain.domain.errors import Refusal, StokerError, refuse

LOG_STEPS: Final = Path(__file__).parent / "migrations"
HISTORY_STEPS: Final = LOG_STEPS / "history"
_MAGIC: Final = b"SQLite format 3\x00"
_VERSION_AT: Final = slice(60, 64)
"""Of `user_version` in the header of the file (sqlite.org/fileformat.html, 1.3)."""


class ForeignStore(Exception):
    """An SQLite database, but not the one that belongs here."""


def migrate(db: sqlite3.Connection, path: Path, steps_in: Path, application_id: int) -> None:
    """Run the steps that are missing. Raises: StokerError `store_too_new`, ForeignStore, sqlite3.Error."""
    steps = _steps(steps_in)
    have = int(db.execute("PRAGMA user_version").fetchone()[0])
    if newer := _newer(path, have, steps):
        raise StokerError(newer)
    if have and db.execute("PRAGMA application_id").fetchone()[0] != application_id:
        raise ForeignStore("it is an SQLite database, but not one of Stoker's")
    for step in steps:
        if (number := int(step.name[:4])) > have:
            db.executescript(f"BEGIN IMMEDIATE;\n{step.read_text('utf-8')}\nPRAGMA user_version = {number};\nCOMMIT;")


def newer_schema(path: Path, steps_in: Path) -> Refusal | None:
    """Return whether `migrate` would refuse this file as too new, judged by its header.

    To open it may be to change it; what a killed process left beside the file isn't seen. Raises: OSError.
    """
    with path.open("rb") as file:
        header = file.read(_VERSION_AT.stop)
    if not header.startswith(_MAGIC):
        return None
    return _newer(path, int.from_bytes(header[_VERSION_AT], "big", signed=True), _steps(steps_in))


def _steps(steps_in: Path) -> list[Path]:
    return sorted(steps_in.glob("[0-9][0-9][0-9][0-9]_*.sql"))


def _newer(path: Path, have: int, steps: list[Path]) -> Refusal | None:
    newest = int(steps[-1].name[:4])
    if have <= newest:
        return None
    return refuse(
        "store_too_new",
        f"{path} has schema {have}; this Stoker knows schemas up to {newest}",
        "start the version of Stoker that wrote it, or a newer one",
    )
