"""A data folder as the contract of the EventLog port wants a store: it outlives the logs opened on it."""

import json
import sqlite3
from pathlib import Path

from stoker.adapters.sqlite.event_log import SqliteLog
from stoker.adapters.sqlite.files import truncated_files
from stoker.adapters.sqlite.history import SqliteHistory
from stoker.adapters.sqlite.incoming_folder import IncomingFolder
from stoker.brain.domain.ids import Position


class FolderStore:
    """A data folder, in which each `log()` is another process."""

    def __init__(self, folder: Path, look_back_max: int = 50_000) -> None:
        self.folder = folder
        self.look_back_max = look_back_max
        self.warnings: list[tuple[str, dict[str, object]]] = []

    def log(self) -> SqliteLog:
        return SqliteLog(self.folder, telemetry=self, look_back_max=self.look_back_max)

    def other(self) -> "FolderStore":
        return FolderStore(self.folder.with_name("other"))

    def incoming(self) -> IncomingFolder:
        return IncomingFolder(self.folder)

    def history(self) -> SqliteHistory:
        self.folder.mkdir(exist_ok=True)
        return SqliteHistory(self.folder)

    def tails(self) -> list[list[tuple[int, bytes]]]:
        return [[_kept(line) for line in path.read_text().splitlines()] for path in truncated_files(self.folder)]

    def damage_record(self, position: Position) -> None:
        self.sql(f"UPDATE event SET record = x'00' || substr(record, 2) WHERE position = {position}")

    def damage_snapshot(self, position: Position) -> None:
        path = self.snapshot_path(position)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    def snapshot_path(self, position: int) -> Path:
        return self.folder / f"snapshot-{position:016d}.jsonl"

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        db = sqlite3.connect(self.folder / "stoker.db", isolation_level=None)
        try:
            return db.execute(statement).fetchall()
        finally:
            db.close()

    # The part of Telemetry that a log uses, and the rest of the port.
    def warn(self, name: str, **fields: object) -> None:
        self.warnings.append((name, fields))

    def event(self, name: str, **fields: object) -> None: ...
    def count(self, name: str, by: int = 1, **labels: str) -> None: ...
    def gauge(self, name: str, value: float, **labels: str) -> None: ...
    def observe(self, name: str, seconds: float, **labels: str) -> None: ...


def _kept(line: str) -> tuple[int, bytes]:
    kept = json.loads(line)
    return kept["position"], json.dumps(kept["record"], separators=(",", ":")).encode()
