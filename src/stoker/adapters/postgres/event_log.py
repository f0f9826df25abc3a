"""Event log of the control plane in PostgreSQL.

Rules: L1 to L5 of the port, L9 and L10 where it is shared, and
       P1  an append is one statement and so one transaction: it moves the end of the log from where the writer believes
           it to be, under an epoch not below the newest, and adds the rows only if that moved. A stale writer changes
           nothing, whatever locks it thought to hold
       P2  a connection that breaks during an append leaves open whether it was done. A new connection tells where the
           log ends, by a commit, so that a replica has it too: if it bears the mark of that very append it was done, if
           it hasn't moved it is done once more, else another writer was here. So a restart of the server, or a
           take-over by its replica, loses and doubles nothing
       P3  an append waits for as long as the server does, such as for a synchronous replica that is gone; whoever gives
           it up doesn't know whether it was done, so the log takes nothing more
       P4  every row that is read is checked: its place, its epoch's order, its checksum
       P5  the newest snapshot is answered; if it is damaged the older one is, with a warning, provided that the log
           reaches back to it; otherwise LogDamaged. What is looked at together is of one moment, whatever others write
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import psycopg

from stoker.adapters.data_folder.marks import mark_elsewhere, must_be_elsewhere, must_be_of, must_not_be_lost
from stoker.adapters.data_folder.ownership import HeldFolder, hold_folder, unusable
from stoker.adapters.log_policy import KEPT, LOOK_BACK_MAX, RecordDamaged
from stoker.adapters.postgres import log_statements
from stoker.adapters.postgres.connection import LOST, RECONNECT_S, SETTLE, PostgresLink, one, whole
from stoker.adapters.postgres.schema import migrate
from stoker.brain.domain.errors import refusal_error
from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import Clock, Entropy, LogConflict, LogDamaged, LogFailed, LogTrimmed, Snapshot, Stored, Telemetry

TRIM_ROWS: Final = 2_000
POLL_S: Final = 1.0
"""How often somebody who waits for news looks all the same: between him and the server a notice may get lost."""
_GIVEN_UP: Final = "an append was given up before it was known to be done; open the log anew"


class PostgresLogLimits(NamedTuple):
    """Bounds of the log: how much is kept, and how long it waits."""

    look_back_max: int = LOOK_BACK_MAX
    reconnect_s: float = RECONNECT_S


USUAL: Final = PostgresLogLimits()


class PostgresLog:
    """The `EventLog` port on one database, or the `SharedLog` port."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        entropy: Entropy,
        telemetry: Telemetry,
        *,
        shared: bool = False,
        limits: PostgresLogLimits = USUAL,
    ) -> None:
        """`url`: as libpq reads it; several hosts are tried in turn for one that takes writes. `shared`: others have it
        open too, and who may append is said by the lease in the same database."""
        self._link = PostgresLink(url, clock, telemetry, limits.reconnect_s, shared=shared)
        self._shared = shared
        self._clock = clock
        self._entropy = entropy
        self._telemetry = telemetry
        self._look_back_max = limits.look_back_max
        self._appending = asyncio.Lock()
        self._refusal: LogConflict | LogFailed | None = None
        self._end, self._floor = Position(0), Epoch(0)

    async def open(self) -> Position:
        """Raises: StokerError (`store_unreachable`, `store_held`, `store_too_new`), LogDamaged."""
        try:
            async with AsyncExitStack() as undo:
                undo.push_async_callback(self.close)
                await self._link.open()
                await migrate(self._link.writer)
                self._end, self._floor = await self._link.aside(log_statements.proved_end)
                undo.pop_all()
        except (psycopg.Error, LogFailed) as fault:
            raise self._link.unreachable(fault) from fault
        except RecordDamaged as fault:
            raise _damaged(fault) from fault
        return self._end

    @property
    def floor(self) -> Epoch:
        return self._floor

    async def append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        async with self._appending:
            if self._refusal is not None:
                raise self._refusal
            try:
                if records:
                    await self._append(epoch, position, records)
            except (LogConflict, LogFailed) as refusal:
                self._refusal = refusal
                raise
            except asyncio.CancelledError:
                self._refusal = LogFailed(_GIVEN_UP)  # P3
                raise
            self._end = Position(position + len(records))

    async def _append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        """Append by one statement, which is one transaction (P1)."""
        mark = self._entropy.uid()
        values = log_statements.append_values(epoch, position, records, mark=mark, tell=self._shared)
        while True:
            try:
                done = await self._link.write(lambda db: db.execute(log_statements.APPEND, values))
            except psycopg.IntegrityError as fault:
                raise LogConflict(f"another writer has added records after {position}") from fault
            except LOST as fault:
                if await self._was_done(position, mark, fault):
                    return
            except psycopg.Error as fault:
                raise LogFailed(f"PostgreSQL refused the append: {self._link.words(fault)}") from fault
            else:
                if done.rowcount == len(records):
                    return
                raise await self._conflict(epoch, position)

    async def _was_done(self, position: Position, mark: str, fault: psycopg.Error) -> bool:
        """P2, on a new connection."""
        stored, newest = await self._link.again(lambda db: one(db, SETTLE), fault)
        if newest != mark and stored != position:
            raise LogConflict(f"the log ends at {stored}, not at {position}: another writer was here")
        return newest == mark

    async def _conflict(self, epoch: Epoch, position: Position) -> LogConflict:
        try:
            stored, newest = await one(self._link.writer, "SELECT position, epoch FROM stoker_end")
        except psycopg.Error as fault:
            return LogConflict(f"the log doesn't end at {position} under epoch {epoch}: {self._link.words(fault)}")
        if whole(newest) > epoch:
            return LogConflict(f"the log has epoch {newest}; epoch {epoch} is over")
        return LogConflict(f"the log ends at {stored}, not at {position}: another writer was here")

    async def follow(self, position: Position) -> AsyncIterator[tuple[Position, bytes]]:
        """Yield the stored records after a position, to the end as it is at the call (L10)."""
        through = await self._link.aside(log_statements.end)
        if self._shared and position > through:
            raise LogTrimmed(f"the log ends at {through}, before {position}: it isn't the one that it was")
        self._end = max(self._end, through)
        while position < through:
            for row in await self._read(position, through):
                yield row.position, row.record
                position = row.position

    async def _read(self, position: Position, through: Position) -> list[Stored]:
        """P4: the next log_statements. Raises: LogDamaged, LogFailed, LogTrimmed."""
        try:
            return await self._link.aside(partial(log_statements.after, position=position, through=through))
        except RecordDamaged as fault:
            first = await self._link.aside(log_statements.first)
            if fault.position >= first:
                raise _damaged(fault) from fault
            trimmed = f"records before {first} were trimmed: follow from there"
            raise (LogTrimmed(trimmed) if self._shared else LogDamaged(trimmed)) from fault

    async def news(self, position: Position, within_s: float) -> bool:
        due = self._clock.mono() + within_s
        while True:
            left_s = max(0.0, due - self._clock.mono())
            if await self._link.hear(partial(log_statements.reaches_beyond, position=position), min(left_s, POLL_S)):
                return True
            if self._clock.mono() >= due:
                return False

    async def snapshot(self) -> Snapshot | None:
        """Return the newest whole snapshot (P5)."""
        found, damaged, can_be_had = await self._link.aside(log_statements.newest_snapshot)
        for position in damaged:
            used = found.position if found else 0
            self._telemetry.warn("snapshot_damaged", error=f"{position} isn't what was written", used=used)
        if not can_be_had:
            raise LogDamaged(
                "no snapshot is whole to which the log reaches back; recover the database from a backup of it"
            )
        return found

    async def save_snapshot(self, position: Position, chunks: Sequence[bytes]) -> None:
        """Raises: StokerError `store_unreachable` when it can't be written. What was acknowledged is not harmed."""
        assert position <= self._end, f"a snapshot at {position} of a log that ends at {self._end}"
        try:
            await self._link.aside(partial(log_statements.save_snapshot, position=position, chunks=chunks))
            await self._trim()
        except LogFailed as fault:
            raise refusal_error("store_unreachable", str(fault), "it is tried again") from fault

    async def _trim(self) -> None:
        """Behind the older kept snapshot, less the look back; never the last row."""
        kept = await self._link.aside(log_statements.snapshots)
        if len(kept) == KEPT:
            through = Position(min(kept[-1] - self._look_back_max, self._end - 1))
            while await self._link.aside(partial(log_statements.trim, through=through, most=TRIM_ROWS)) == TRIM_ROWS:
                pass

    async def close(self) -> None:
        """Safe to call twice, and after `open` failed."""
        async with self._appending:
            await self._link.close()


class FolderPostgresLog(PostgresLog):
    """The log of a data folder that has the rest: history, lock and socket."""

    def __init__(
        self,
        folder: Path,
        url: str,
        clock: Clock,
        entropy: Entropy,
        telemetry: Telemetry,
        *,
        shared: bool = False,
    ) -> None:
        super().__init__(url, clock, entropy, telemetry, shared=shared)
        self._folder = folder.absolute()
        self._held: HeldFolder | None = None
        self._begun = False

    async def open(self) -> Position:
        """Raises: StokerError also as `hold_folder` does, and `store_moved`."""
        self._held = hold_folder(self._folder)
        must_be_elsewhere(self._folder)
        end = await super().open()
        try:
            cluster_id = await self._link.aside(log_statements.cluster_of) if end else ""
            must_be_of(self._folder, cluster_id)
            mark_elsewhere(self._folder, begun=False)
            if not end:
                must_not_be_lost(self._folder)
        except OSError as fault:
            raise unusable(self._folder, fault) from fault
        except LogFailed as fault:
            raise self._link.unreachable(fault) from fault
        if end:
            self._note_begun(cluster_id)
        return end

    async def append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        await super().append(epoch, position, records)
        if not self._begun:
            self._note_begun(await self._cluster())

    async def _cluster(self) -> str:
        """Whose log it is; empty where that can't be read now: the next start does."""
        with suppress(LogFailed):
            return await self._link.aside(log_statements.cluster_of)
        return ""

    def _note_begun(self, cluster_id: str) -> None:
        """Once. A full disk keeps nobody from his log."""
        with suppress(OSError):
            mark_elsewhere(self._folder, begun=True, cluster_id=cluster_id)
        self._begun = True

    async def close(self) -> None:
        await super().close()
        if self._held is not None:
            self._held.release()


def _damaged(fault: RecordDamaged) -> LogDamaged:
    hint = "recover the database from a backup of it, or ask for help with this message"
    return LogDamaged(f"record {fault.position} can't be trusted: {fault}; {hint}")
