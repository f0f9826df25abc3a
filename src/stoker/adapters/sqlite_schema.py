"""How is the schema of an SQLite store brought up to date?

Rules: S1  steps are numbered files of SQL in one folder; each is one transaction together with its number
       S2  a store of another program, or of a newer Stoker, is left as it is
"""

import sqlite3
from pathlib import Path

from stoker.brain.domain.errors import StokerError, refuse


class ForeignStore(Exception):
    """An SQLite database, but not the one that belongs here."""


def migrate(db: sqlite3.Connection, path: Path, steps_in: Path, application_id: int) -> None:
    """Run the steps that are missing. Raises: StokerError `store_too_new`, ForeignStore, sqlite3.Error."""
    steps = sorted(steps_in.glob("[0-9][0-9][0-9][0-9]_*.sql"))
    newest = int(steps[-1].name[:4])
    have = int(db.execute("PRAGMA user_version").fetchone()[0])
    if have > newest:
        raise StokerError(
            refuse(
                "store_too_new",
                f"{path} has schema {have}; this Stoker knows schemas up to {newest}",
                "start the version of Stoker that wrote it, or a newer one",
            )
        )
    if have and db.execute("PRAGMA application_id").fetchone()[0] != application_id:
        raise ForeignStore("it is an SQLite database, but not one of Stoker's")
    for step in steps:
        if (number := int(step.name[:4])) > have:
            db.executescript(f"BEGIN IMMEDIATE;\n{step.read_text('utf-8')}\nPRAGMA user_version = {number};\nCOMMIT;")
