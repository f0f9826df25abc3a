"""How does the event log live in SQLite, seen from asyncio?

One thread owns the writing connection; what gathers while it waits for the disk is the caller's next batch. A second
thread writes snapshots, reads history and moves the WAL, so that none of these delays an append by more than one small
transaction. Both are inside this adapter: nothing above the port knows of them.

Rules: L1 to L5 of the port, and
       K1  opening reads every kept record; a damaged one is refused with what is known and how to recover
       K2  the newest snapshot is answered; if it is damaged, an older one (or none) is, with a warning, provided
           that the log reaches back to it; otherwise LogDamaged
       K3  records are trimmed behind the older kept snapshot minus `look_back_max`, in transactions of TRIM_ROWS rows
Limits: SQLite drops a WAL's tail that fails its checksum; Stoker notices a lost tail only when a snapshot is newer.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, TypeVar

from stoker.adapters.data_folder import HeldFolder, hold_folder, unusable
from stoker.adapters.record_check import RecordDamaged
from stoker.adapters.snapshot_files import KEPT, SnapshotFiles, StoredSnapshot
from stoker.adapters.sqlite_journal import STORE_NAME, Journal, JournalReader, as_os_error, move_wal
from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.state.snapshot_frame import SnapshotDamaged
from stoker.ports import LogConflict, LogDamaged, LogFailed, Snapshot, Telemetry

LOOK_BACK_MAX: Final = 50_000
TRIM_ROWS: Final = 256
"""Small enough that an append behind one trim waits about as long as behind one append."""
TRIM_WAL_BYTES: Final = 256 * 1024
"""What such a trim adds to the WAL: the pages of rows of a kilobyte, and those of the list of free ones."""
MOVE_WAL_EVERY_BYTES: Final = 4 * 1024 * 1024
_PAGE_BYTES: Final = 4_096

Answer = TypeVar("Answer")


class SqliteLog:
    """The `EventLog` port on one data folder."""

    def __init__(
        self, data_dir: Path, *, telemetry: Telemetry | None = None, look_back_max: int = LOOK_BACK_MAX
    ) -> None:
        self._path = data_dir.absolute()
        self._telemetry = telemetry
        self._look_back_max = look_back_max
        self._snapshots = SnapshotFiles(self._path)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="stoker-log")
        self._side = ThreadPoolExecutor(1, thread_name_prefix="stoker-log-side")
        self._saving = asyncio.Lock()
        self._folder: HeldFolder | None = None
        self._journal: Journal | None = None
        self._refusal: LogConflict | LogFailed | None = None
        self._wal_bytes = 0
        self._closed = False

    async def open(self) -> Position:
        """Raises: StokerError (`data_dir_held`, `data_dir_unusable`, `store_too_new`), LogDamaged."""
        assert self._journal is None, "the log is open already"
        return await self._in(self._writer, self._open)

    async def append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        await self._in(self._writer, self._append, epoch, position, tuple(records))

    async def follow(self, position: Position) -> AsyncIterator[tuple[Position, bytes]]:
        journal = self._opened()
        through = journal.end
        reader = await self._in(self._side, JournalReader, journal.path)
        try:
            while position < through:
                rows = await self._in(self._side, self._read, reader, position, through)
                for row in rows:
                    yield row
                position = rows[-1][0]
        finally:
            reader.close()

    async def snapshot(self) -> Snapshot | None:
        found, notes = await self._in(self._side, self._newest_whole)
        for note in notes:
            if self._telemetry is not None:
                self._telemetry.warn("snapshot_damaged", error=note, used=found.position if found else 0)
        return found

    async def save_snapshot(self, position: Position, chunks: Sequence[bytes]) -> None:
        """Raises: StokerError `data_dir_unusable` when it can't be written. That harms nothing that was acknowledged,
        so unlike a failed append it doesn't end the log."""
        end = self._opened().end
        assert position <= end, f"a snapshot at {position} of a log that ends at {end}"
        async with self._saving:
            try:
                await self._in(self._side, self._snapshots.save, position, tuple(chunks))
            except OSError as fault:
                raise unusable(self._path, fault) from fault
            await self._trim()

    async def close(self) -> None:
        """Finish what is queued, then let the folder go. Safe to call twice, and after `open` failed."""
        if self._closed:
            return
        self._closed = True
        async with self._saving:
            await self._in(self._writer, self._close_journal)
        self._writer.shutdown()
        self._side.shutdown()
        if self._folder is not None:
            self._folder.release()

    async def _in(self, thread: ThreadPoolExecutor, work: Callable[..., Answer], *args: object) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(thread, work, *args)

    def _opened(self) -> Journal:
        if self._journal is None:
            raise LogFailed(f"the log in {self._path} isn't open")
        return self._journal

    def _open(self) -> Position:
        with ExitStack() as undo:
            folder = hold_folder(self._path)
            undo.callback(folder.release)
            try:
                self._snapshots.sweep()
                journal = Journal(self._path)
            except RecordDamaged as fault:
                raise self._damaged(fault) from fault
            except sqlite3.Error as fault:
                raise unusable(self._path, as_os_error(fault)) from fault
            except OSError as fault:
                raise unusable(self._path, fault) from fault
            undo.callback(journal.close)
            newest = max(self._snapshots.positions(), default=0)
            if newest > journal.end:
                raise self._tail_lost(journal, newest)
            undo.pop_all()
        self._folder, self._journal = folder, journal
        return journal.end

    def _append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        if self._refusal is not None:
            raise type(self._refusal)(f"this log has already refused: {self._refusal}")
        try:
            self._opened().append(epoch, position, records)
        except (LogConflict, LogFailed) as fault:
            self._refusal = fault
            raise
        self._wal_grew(sum(len(record) for record in records) + _PAGE_BYTES)

    def _wal_grew(self, by_bytes: int) -> None:
        self._wal_bytes += by_bytes
        if self._wal_bytes >= MOVE_WAL_EVERY_BYTES:
            self._wal_bytes = 0
            self._side.submit(self._move_wal)

    def _move_wal(self) -> None:
        # What can't be moved now stays in the WAL, which is as durable, and is moved by the writer at its own bound.
        with suppress(sqlite3.Error):
            move_wal(self._opened().path)

    async def _trim(self) -> None:
        kept = await self._in(self._side, self._snapshots.positions)
        if len(kept) < KEPT:
            return
        # Each batch is queued on its own, so appends that came meanwhile go first.
        while await self._in(self._writer, self._trim_batch, kept[-1] - self._look_back_max):
            pass

    def _trim_batch(self, through: int) -> int:
        if self._refusal is not None:
            return 0
        try:
            removed = self._opened().trim(through, TRIM_ROWS)
        except LogFailed as fault:
            self._refusal = fault
            raise
        # Left to itself the writer would move what many trims wrote all at once: nearly 100 ms.
        self._wal_grew(TRIM_WAL_BYTES if removed else 0)
        return removed

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _read(self, reader: JournalReader, position: Position, through: Position) -> list[tuple[Position, bytes]]:
        first = self._opened().first
        try:
            return reader.after(position, through)
        except RecordDamaged as fault:
            first = max(first, self._opened().first)
            if fault.position < first:
                raise LogDamaged(f"records before {first} were trimmed from {self._path}: follow from there") from fault
            raise self._damaged(fault) from fault

    def _newest_whole(self) -> tuple[StoredSnapshot | None, list[str]]:
        """The newest snapshot that is whole and that the log continues, and what is wrong with newer ones."""
        journal = self._opened()
        notes: list[str] = []
        found: StoredSnapshot | None = None
        damaged: list[Position] = []
        for position in self._snapshots.positions():
            try:
                found = self._snapshots.load(position)
                break
            except SnapshotDamaged as fault:
                notes.append(f"{self._snapshots.path(position)}: {fault}")
                damaged.append(position)
        reached = found.position if found is not None else 0
        if journal.first > reached + 1:
            raise self._out_of_reach(journal.first, reached, notes)
        for position in damaged:
            self._snapshots.set_aside(position)
        return found, notes

    def _out_of_reach(self, first: Position, reached: int, notes: Sequence[str]) -> LogDamaged:
        what = "; ".join(notes) if notes else f"{self._path} holds no snapshot"
        have = f"the next older whole snapshot is at {reached}" if reached else "there is no older whole snapshot"
        return LogDamaged(
            f"the state can't be rebuilt: {what}; {have}, and the log begins at record {first}. "
            f"To recover: restore {self._path} from a backup"
        )

    def _tail_lost(self, journal: Journal, newest: int) -> LogDamaged:
        return LogDamaged(
            f"{journal.path} ends at record {journal.end}, but {self._snapshots.path(Position(newest))} was taken at "
            f"{newest}: the end of the log is missing. To recover: restore {self._path} from a backup"
        )

    def _damaged(self, fault: RecordDamaged) -> LogDamaged:
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
        whole = [at for at in kept if self._is_whole(at)]
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
        reader = JournalReader(self._path / STORE_NAME)
        try:
            return reader.bounds()
        finally:
            reader.close()

    def _is_whole(self, position: Position) -> bool:
        try:
            self._snapshots.load(position)
        except SnapshotDamaged:
            return False
        return True
