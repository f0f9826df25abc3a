"""Diagnosis of a damaged log in SQLite, with what lets it open again.

Each message says how to recover; tests follow it to the letter.
"""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from stoker.adapters.data_folder.marks import STORE_NAME
from stoker.adapters.log_policy import RecordDamaged
from stoker.adapters.sqlite.files import SnapshotFiles
from stoker.adapters.sqlite.journal import BUSY_TIMEOUT_S, SqliteJournal, SqliteJournalReader
from stoker.adapters.sqlite.store import SqliteStore
from stoker.brain.domain.ids import Position
from stoker.brain.state.snapshot_format import SnapshotDamaged
from stoker.ports import LogDamaged


class RecoveryHints:
    """Hints of one data folder about what a recovery can leave out."""

    def __init__(self, path: Path, snapshots: SnapshotFiles) -> None:
        self._path = path
        self._snapshots = snapshots

    def out_of_reach(self, first: Position, reached: int, notes: Sequence[str]) -> LogDamaged:
        what = "; ".join(notes) if notes else f"{self._path} holds no snapshot"
        have = f"the next older whole snapshot is at {reached}" if reached else "there is no older whole snapshot"
        return LogDamaged(
            f"the state can't be rebuilt: {what}; {have}, and the log begins at record {first}. "
            f"To recover: restore {self._path} from a backup"
        )

    def records_lost(self, journal: SqliteJournal, newest: int) -> LogDamaged:
        return LogDamaged(
            f"{journal.path} ends at record {journal.end}, but {self._snapshots.path(Position(newest))} was taken at "
            f"{newest}: the end of the log is missing. To recover: restore {self._path} from a backup"
        )

    def damaged(self, fault: RecordDamaged) -> LogDamaged:
        store, bad = self._path / STORE_NAME, fault.position
        if bad == 0 or fault.unreadable:
            where = f", from record {bad} on" if bad else ""
            return LogDamaged(
                f"{store} can't be read{where}: {fault}. To recover: copy {self._path} aside, "
                "then restore it from a backup"
            )
        return LogDamaged(f"record {bad} of {store} can't be trusted: {fault}. To recover: {self._way_out(bad)}")

    def _way_out(self, bad: int) -> str:
        """What really lets the log open again, though record `bad` is lost: tests follow it to the letter."""
        store, kept = self._path / STORE_NAME, self._snapshots.positions()
        first, last = self._bounds()
        whole = [at for at in kept if self.is_whole(at)]
        covered = next((at for at in whole if at > bad or at == bad < last), None)
        if covered is not None:
            return (
                f"snapshot {self._snapshots.path(covered).name} holds the state after it, so the current state loses "
                f"nothing without it: copy {self._path} aside, then "
                f"sqlite3 {store} 'DELETE FROM event WHERE position <= {bad}'"
            )
        before = next((at for at in whole if at < bad), 0)
        if before and not first < bad:
            return f"restore {self._path} from a backup: no record before it is left"
        if first > before + 1:
            return f"restore {self._path} from a backup: no whole snapshot reaches record {first}, where the log begins"
        # A snapshot of what is cut off would be a log that lost its end.
        ahead = [str(self._snapshots.path(at)) for at in kept if at >= bad]
        remove = f"rm {' '.join(ahead)} && " if ahead else ""
        return (
            f"restore {self._path} from a backup; without one, copy it aside, then {remove}"
            f"sqlite3 {store} 'DELETE FROM event WHERE position >= {bad}' "
            f"(this forgets all that happened since record {bad - 1})"
        )

    def _bounds(self) -> tuple[int, int]:
        with closing(SqliteJournalReader(SqliteStore(self._path / STORE_NAME, BUSY_TIMEOUT_S))) as reader:
            return reader.bounds()

    def is_whole(self, position: Position) -> bool:
        try:
            self._snapshots.load(position)
        except SnapshotDamaged:
            return False
        return True
