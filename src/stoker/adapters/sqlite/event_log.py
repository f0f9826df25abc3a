"""Event log of the control plane in SQLite, for asyncio callers.

One thread owns the writing connection; what gathers while it waits for the disk is the caller's next batch. A second
thread writes snapshots and moves the WAL, so that neither delays an append by more than one small transaction; a third
reads, so that whoever follows doesn't wait for a snapshot. All are inside this adapter: nothing above the port knows of
them.

Rules: L1 to L8 of the port, and
       K1  opening reads every kept record; a damaged one is refused with what is known and how to recover
       K2  the newest snapshot is answered; if it is damaged, an older one (or none) is, with a warning, provided
           that the log reaches back to it; otherwise LogDamaged
       K3  records are trimmed behind the older kept snapshot minus `look_back_max`, in transactions of TRIM_ROWS rows
       K4  a cut first sets aside what goes, then the snapshots of it, then forgets it: a crash on the way leaves a log
           that opens, and the same cut again finishes it
       K5  on a full disk it opens and can be read; once there is room, a log that is opened anew can be written
       K6  whoever closes it waits for what its threads are still at, and the event loop goes on meanwhile
Limits: SQLite drops a WAL's tail that fails its checksum; Stoker notices a lost tail only when a snapshot is newer.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final, TypeVar

from stoker.adapters.data_folder.folder_swap import INCOMING_NAME, begin_log_swap
from stoker.adapters.data_folder.marks import must_be_here, replica_id
from stoker.adapters.data_folder.ownership import HeldFolder, check_free_space, hold_folder, unusable
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.log_policy import KEPT, LOOK_BACK_MAX, READ_ROWS, RecordDamaged
from stoker.adapters.sqlite.files import SnapshotFiles, keep_truncated
from stoker.adapters.sqlite.history import SqliteHistory
from stoker.adapters.sqlite.journal import SqliteJournal, SqliteJournalReader
from stoker.adapters.sqlite.recovery_hints import RecoveryHints
from stoker.adapters.sqlite.store import as_os_error, words
from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.state.snapshot_format import SnapshotDamaged
from stoker.ports import (
    Entropy,
    HistoryFailed,
    HistoryMark,
    LogConflict,
    LogDamaged,
    LogFailed,
    LogTrimmed,
    Snapshot,
    Stored,
    Telemetry,
)

TRIM_ROWS: Final = 256
"""Small enough that an append behind one trim waits about as long as behind one append."""
TRIM_WAL_BYTES: Final = 256 * 1024
"""What such a trim adds to the WAL: the pages of rows of a kilobyte, and those of the list of free ones."""
MOVE_WAL_EVERY_BYTES: Final = 4 * 1024 * 1024
_PAGE_BYTES: Final = 4_096

Answer = TypeVar("Answer")


class SqliteLog:
    """The `ReplicaLog` port on one data folder."""

    def __init__(
        self,
        data_dir: Path,
        *,
        telemetry: Telemetry | None = None,
        entropy: Entropy | None = None,
        look_back_max: int = LOOK_BACK_MAX,
    ) -> None:
        self._path = data_dir.absolute()
        self._telemetry = telemetry
        self._entropy = entropy or SystemEntropy()
        self._look_back_max = look_back_max
        self._snapshots = SnapshotFiles(self._path)
        self._way_out = RecoveryHints(self._path, self._snapshots)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="stoker-log")
        self._side = ThreadPoolExecutor(1, thread_name_prefix="stoker-log-side")
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="stoker-log-read")
        self._saving = asyncio.Lock()
        self._folder: HeldFolder | None = None
        self._journal: SqliteJournal | None = None
        self._reader: SqliteJournalReader | None = None
        self._uid = ""
        self._refusal: LogConflict | LogFailed | None = None
        self._spent = ""
        """Why this log is another one now."""
        self._wal_bytes = 0
        self._closed = False

    async def open(self) -> Position:
        """Raises: StokerError (`data_dir_held`, `data_dir_unusable`, `store_too_new`), LogDamaged."""
        assert self._journal is None, "the log is open already"
        end = await self._in(self._writer, self._open)
        await self._put_history_back()
        return end

    @property
    def uid(self) -> str:
        assert self._uid, "the log isn't open"
        return self._uid

    @property
    def promised(self) -> Epoch:
        return self._opened().promised

    @property
    def floor(self) -> Epoch:
        return max(self._opened().epoch, self._opened().promised)

    async def append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        await self._in(self._writer, self._append, epoch, position, tuple(records))

    async def promise(self, epoch: Epoch) -> None:
        """Unlike an append that failed it leaves nothing unknown that matters, so the log goes on."""
        await self._in(self._writer, lambda: self._usable().promise(epoch))

    async def check_room(self, size_bytes: int) -> None:
        await self._in(self._writer, self._check_room, size_bytes)

    async def follow(self, position: Position) -> AsyncIterator[tuple[Position, bytes]]:
        through = self._opened().end
        while position < through:
            try:
                rows = await self._in(self._reading, self._read, position, through, READ_ROWS)
            except LogTrimmed as fault:
                raise LogDamaged(str(fault)) from fault
            for row in rows:
                yield row.position, row.record
            position = rows[-1].position

    async def after(self, position: Position, most: int) -> list[Stored]:
        through = self._opened().end
        if position >= through:
            return []
        return await self._in(self._reading, self._read, position, through, most)

    async def ends(self) -> list[tuple[Epoch, Position]]:
        return list(self._opened().ends)

    async def snapshot(self) -> Snapshot | None:
        found, notes = await self._in(self._side, self._newest_whole)
        for note in notes:
            if self._telemetry is not None:
                self._telemetry.warn("snapshot_damaged", error=note, used=found.position if found else 0)
        return found

    async def save_snapshot(self, position: Position, chunks: Sequence[bytes]) -> None:
        """Keep a snapshot and drop records that it makes superfluous.

        Raises: StokerError `data_dir_unusable` when it can't be written. That harms nothing that was acknowledged, so
        unlike a failed append it doesn't end the log.
        """
        async with self._saving:
            end = self._usable().end
            assert position <= end, f"a snapshot at {position} of a log that ends at {end}"
            try:
                await self._in(self._side, self._snapshots.save, position, tuple(chunks))
            except OSError as fault:
                raise unusable(self._path, fault) from fault
            await self._trim()

    async def cut(self, position: Position) -> str:
        async with self._saving:
            await self._in(self._side, lambda: None)  # one whose saver was cancelled may still be on its way to disk
            return await self._in(self._writer, self._cut, position)

    async def install(self, epoch: Epoch, position: Position, folder: Path) -> str:
        assert folder == self._path / INCOMING_NAME, f"{folder} isn't what was put together in {self._path}"
        async with self._saving:
            return await self._in(self._writer, self._install, epoch, position, folder)

    async def close(self) -> None:
        """Finish what is queued, then let the folder go. Safe to call twice, and after `open` failed."""
        if self._closed:
            return
        self._closed = True
        async with self._saving:
            await self._in(self._reading, self._close_reader)
            await self._in(self._writer, self._close_journal)
        for thread in (self._writer, self._side, self._reading):
            await asyncio.to_thread(thread.shutdown)  # K6
        if self._folder is not None:
            self._folder.release()

    async def _in(self, thread: ThreadPoolExecutor, work: Callable[..., Answer], *args: object) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(thread, work, *args)

    def _opened(self) -> SqliteJournal:
        if self._journal is None:
            raise LogFailed(f"the log in {self._path} isn't open")
        return self._journal

    def _usable(self) -> SqliteJournal:
        """Raises: LogFailed, also once it was cut or replaced."""
        if self._spent:
            raise LogFailed(self._spent)
        return self._opened()

    def _open(self) -> Position:
        with ExitStack() as undo:
            folder = hold_folder(self._path)
            undo.callback(folder.release)
            must_be_here(self._path)
            try:
                self._snapshots.sweep()
                uid = replica_id(self._path, self._entropy)
                journal = SqliteJournal(self._path)
            except RecordDamaged as fault:
                raise self._way_out.damaged(fault) from fault
            except sqlite3.Error as fault:
                raise unusable(self._path, as_os_error(fault)) from fault
            except OSError as fault:
                raise unusable(self._path, fault) from fault
            undo.callback(journal.close)
            newest = max(self._snapshots.positions(), default=0)
            if newest > journal.end:
                raise self._way_out.records_lost(journal, newest)
            undo.pop_all()
        self._folder, self._journal, self._uid = folder, journal, uid
        return journal.end

    async def _put_history_back(self) -> None:
        """L7. What it noted of facts that were cut off never happened."""
        position = self._opened().history_to
        if position is None:
            return
        history = SqliteHistory(self._path)
        try:
            mark = await history.open()
            if mark.position > position:
                await history.rewind(HistoryMark(cluster_id=mark.cluster_id, position=position))
            await self._in(self._writer, self._opened().history_is_back)
        except (HistoryFailed, LogFailed) as fault:
            # It can't be written now; the note stays, and whoever opens the log next tries again.
            if self._telemetry is not None:
                self._telemetry.warn("history_not_put_back", position=position, error=str(fault))
        finally:
            await history.close()

    def _append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        journal = self._usable()
        if self._refusal is not None:
            raise type(self._refusal)(f"this log has already refused: {self._refusal}")
        try:
            journal.append(epoch, position, records)
        except (LogConflict, LogFailed) as fault:
            self._refusal = fault
            raise
        self._wal_grew(sum(len(record) for record in records) + _PAGE_BYTES)

    def _check_room(self, size_bytes: int) -> None:
        self._usable()
        try:
            check_free_space(self._path, size_bytes)
        except OSError as fault:
            raise LogFailed(f"can't write {size_bytes} bytes to {self._path}: {fault.strerror or fault}") from fault

    def _cut(self, position: Position) -> str:
        """Set aside the records and snapshots that go, then forget them (K4)."""
        journal = self._usable()
        if position >= journal.end:
            return ""
        self._must_be_had(position)
        try:
            path = keep_truncated(self._path, journal.tail(position), journal.end)
            self._snapshots.set_aside_after(position)
        except OSError as fault:
            raise LogFailed(f"can't set aside what came after record {position}: {fault.strerror or fault}") from fault
        except sqlite3.Error as fault:
            raise LogFailed(f"can't read what came after record {position}: {words(fault)}") from fault
        except RecordDamaged as fault:
            raise self._way_out.damaged(fault) from fault
        journal.cut(position)
        self._spent = f"the log was cut behind record {position}; open it anew"
        return str(path)

    def _must_be_had(self, position: Position) -> None:
        """Raises: LogTrimmed."""
        journal = self._opened()
        reached = next(
            (at for at in self._snapshots.positions() if at <= position and self._way_out.is_whole(at)), Position(0)
        )
        if journal.first > reached + 1 or not journal.can_end_at(position):
            raise LogTrimmed(
                f"no state at record {position} can be had: the log begins at {journal.first}, and the newest whole "
                f"snapshot before is at {reached}"
            )

    def _install(self, epoch: Epoch, position: Position, folder: Path) -> str:
        mine = self._usable()
        try:
            other = SqliteJournal(folder)
            try:
                found = (other.epoch, other.end, SnapshotFiles(folder).positions())
                assert found == (epoch, position, [position]), f"{folder} holds {found}"
                other.promise(mine.promised)
            finally:
                other.close()
            aside = begin_log_swap(self._path, keep=mine.end > 0 or bool(self._snapshots.positions()))
        except (OSError, RecordDamaged) as fault:
            raise LogFailed(f"can't install {folder}: {fault}") from fault
        except sqlite3.Error as fault:
            raise LogFailed(f"can't install {folder}: {words(fault)}") from fault
        self._spent = "another log has taken the place of this one; open it anew"
        return aside

    def _wal_grew(self, by_bytes: int) -> None:
        self._wal_bytes += by_bytes
        if self._wal_bytes >= MOVE_WAL_EVERY_BYTES:
            self._wal_bytes = 0
            self._side.submit(self._move_wal)

    def _move_wal(self) -> None:
        # What can't be moved now stays in the WAL, which is as durable, and is moved by the writer at its own bound.
        with suppress(sqlite3.Error), closing(self._opened().store.mover()) as db:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")

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

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _read(self, position: Position, through: Position, most: int) -> list[Stored]:
        """Raises: LogTrimmed, LogDamaged, LogFailed."""
        first = self._opened().first
        try:
            self._reader = self._reader or SqliteJournalReader(self._opened().store)
            return self._reader.after(position, through, most)
        except RecordDamaged as fault:
            first = max(first, self._opened().first)
            if fault.position < first:
                raise LogTrimmed(f"records before {first} were trimmed from {self._path}: follow from there") from fault
            raise self._way_out.damaged(fault) from fault
        except sqlite3.Error as fault:
            raise LogFailed(f"can't read {self._path}: {words(fault)}") from fault

    def _newest_whole(self) -> tuple[Snapshot | None, list[str]]:
        """The newest snapshot that is whole and that the log continues, and what is wrong with newer ones."""
        journal = self._opened()
        found: Snapshot | None = None
        damaged: dict[Position, str] = {}
        for position in self._snapshots.positions():
            try:
                found = self._snapshots.load(position)
                break
            except SnapshotDamaged as fault:
                damaged[position] = f"{self._snapshots.path(position)}: {fault}"
        reached, notes = found.position if found is not None else 0, list(damaged.values())
        if journal.first > reached + 1:
            raise self._way_out.out_of_reach(journal.first, reached, notes)
        for position in damaged:
            self._snapshots.set_aside(position)
        return found, notes
