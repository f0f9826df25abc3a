"""The log on a simulated disk that survives the process: one of one's own.

A crash of the process between append and answer loses the batch or keeps it whole, as the seed decides: SQLite's
transaction is simulated at that grain. What an `append` that returned holds is never lost.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import (
    EPOCHS_MAX,
    Clock,
    Entropy,
    HistoryFailed,
    HistoryMark,
    LogBeginning,
    LogConflict,
    LogDamaged,
    LogFailed,
    LogTrimmed,
    Snapshot,
    Stored,
)
from tests.rig.sim_disk import CommitPoint, Content, SimDisk, SimSnapshot, Tail, Trap, checksum
from tests.rig.sim_history import SimHistory, archive_in

INCOMING: Final = Path("incoming")
ASIDE_MAX: Final = 20
KEPT: Final = 2
"""Snapshots."""
"""Tails, and logs that were replaced, that are kept."""


class SimLog:
    """The ReplicaLog port of one process on a disk."""

    def __init__(self, disk: SimDisk, clock: Clock, entropy: Entropy, *, look_back_max: int = 1_000_000) -> None:
        self._disk, self._clock, self._entropy = disk, clock, entropy
        self._look_back_max = look_back_max
        self._refusal: Exception | None = LogFailed("the log isn't open")
        self._turn = asyncio.Lock()

    async def open(self) -> Position:
        disk = self._disk
        disk.holder = self
        if disk.torn is not None:
            disk.torn, disk.swept = None, disk.swept + 1
        self._finish_install()
        await self._put_history_back()
        self._refusal = None
        return disk.end

    async def append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        async with self._turn:
            await self._append(epoch, position, records)
        self._disk.passes(CommitPoint.BETWEEN_BATCHES)

    async def _append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        if self._refusal is not None:
            raise self._refusal
        took_s = self._entropy.jitter(0.0001, 0.003) + self._disk.stall_s
        trapped = self._disk.trap is not None
        self._disk.passes(CommitPoint.BEFORE_WRITE)
        try:
            await self._clock.sleep(took_s)
        except asyncio.CancelledError:
            # The process dies while the transaction is under way: it may have reached the platter all the same.
            if not trapped and self._entropy.jitter(0, 1) < 0.5:
                self._write(epoch, position, records)
            elif self._disk.tears:
                self._disk.torn = Tail(position, (epoch,), tuple(records[: len(records) // 2]))
            raise
        self._write(epoch, position, records)
        self._disk.passes(CommitPoint.BEFORE_ANSWER)
        await self._clock.sleep(self._entropy.jitter(0.0001, 0.002))

    def _write(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        disk = self._disk
        if not self._holds() or position != disk.end or epoch < self.floor:
            known = f"the log is at {disk.end}, and takes nothing below epoch {self.floor}"
            self._refusal = LogConflict(f"append at {position} under epoch {epoch}; {known}")
        elif disk.full:
            disk.refused += 1
            self._refusal = LogFailed("no space left on device")
        elif disk.sync_fails:
            disk.refused += 1
            self._refusal = LogFailed("input/output error")
            if self._entropy.jitter(0, 1) < 0.5:
                disk.put(epoch, records)
        if self._refusal is not None:
            raise self._refusal
        disk.put(epoch, records)

    def _holds(self) -> bool:
        return self._disk.holder is self

    @property
    def floor(self) -> Epoch:
        """L2"""
        return max(self._disk.epoch, self._disk.promised)

    async def follow(self, position: Position) -> AsyncIterator[tuple[Position, bytes]]:
        disk = self._disk
        if position + 1 < disk.first and disk.records:
            raise self._trimmed(position)
        for at in range(position + 1, disk.end + 1):
            if at < disk.first:
                raise self._trimmed(position)
            yield Position(at), self._record(at)

    def _trimmed(self, position: Position) -> Exception:
        return LogDamaged(f"records before {self._disk.first} were trimmed: follow from there, not from {position}")

    def _record(self, at: int) -> bytes:
        disk = self._disk
        record = disk.records[at - disk.first]
        if zlib.crc32(record) != disk.crcs[at - disk.first]:
            raise LogDamaged(f"record {at} can't be trusted. To recover: restore the disk from a backup")
        return record

    async def snapshot(self) -> Snapshot | None:
        found = self._newest_whole(self._disk.end)
        reached = found.position if found is not None else 0
        if self._disk.first > reached + 1:
            raise LogDamaged(f"the log begins at record {self._disk.first}, and the newest whole snapshot is {reached}")
        return Snapshot(found.position, found.chunks) if found is not None else None

    def _newest_whole(self, through: int) -> SimSnapshot | None:
        kept = reversed(self._disk.snapshots)
        return next((each for each in kept if each.is_whole and each.position <= through), None)

    async def save_snapshot(self, position: Position, chunks: Sequence[bytes]) -> None:
        if self._disk.full:
            raise LogFailed("no space left on device")
        saved = SimSnapshot(position, tuple(chunks), checksum(chunks))
        self._disk.passes(CommitPoint.IN_SNAPSHOT)
        await self._clock.sleep(self._entropy.jitter(0.001, 0.05))
        if self._refusal is not None:
            raise self._refusal
        kept = {each.position: each for each in (*self._disk.snapshots, saved)}
        self._disk.snapshots = [kept[each] for each in sorted(kept)[-KEPT:]]
        self._disk.passes(CommitPoint.BEFORE_TRIM)
        await self._clock.sleep(0)
        self._trim(self._disk.snapshots[0].position - self._look_back_max)

    def _trim(self, through: int) -> None:
        disk = self._disk
        drop = min(max(0, through + 1 - disk.first), max(0, len(disk.records) - 1))
        if drop:
            disk.base_epoch = disk.epochs[drop - 1]
        del disk.records[:drop], disk.epochs[:drop], disk.crcs[:drop]
        disk.first += drop

    async def close(self) -> None:
        self._refusal = LogFailed("the log is closed")
        if self._disk.holder is self:
            self._disk.holder = None

    # --- what a log of one's own does beyond that -----------------------------------------------------------------

    @property
    def uid(self) -> str:
        self._disk.uid = self._disk.uid or self._entropy.uid()
        return self._disk.uid

    @property
    def promised(self) -> Epoch:
        return self._disk.promised

    async def promise(self, epoch: Epoch) -> None:
        async with self._turn:
            self._disk.passes(CommitPoint.IN_PROMISE)
            await self._touch()
            self._disk.promised = epoch

    async def check_room(self, size_bytes: int) -> None:
        async with self._turn:
            await self._touch()

    async def after(self, position: Position, most: int) -> list[Stored]:
        await self._clock.sleep(self._entropy.jitter(0.0001, 0.002))
        disk = self._disk
        if position + 1 < disk.first:
            raise LogTrimmed(f"records before {disk.first} were trimmed")
        through = min(disk.end, position + most)
        return [
            Stored(Position(at), disk.epochs[at - disk.first], self._record(at))
            for at in range(position + 1, through + 1)
        ]

    async def ends(self) -> list[tuple[Epoch, Position]]:
        disk = self._disk
        found = {disk.base_epoch: Position(disk.first - 1)} if disk.base_epoch else {}
        found |= {epoch: Position(at) for at, epoch in enumerate(disk.epochs, disk.first)}
        return sorted(found.items(), reverse=True)[:EPOCHS_MAX]

    async def cut(self, position: Position) -> str:
        disk = self._disk
        async with self._turn:
            if position >= disk.end:
                return ""
            known = self._newest_whole(position)
            reached = known.position if known is not None else 0
            if disk.first > reached + 1 or (position == disk.first - 1 and position and not disk.base_epoch):
                raise LogTrimmed(f"no state at {position} can be had: the log begins at {disk.first}")
            self._refusal = LogFailed("the log was cut; open it anew")
            disk.passes(CommitPoint.IN_CUT)
            await self._touch()
            keep = position + 1 - disk.first
            tail = Tail(position, tuple(disk.epochs[keep:]), tuple(disk.records[keep:]))
            disk.tails = [*disk.tails, tail][-ASIDE_MAX:]
            del disk.records[keep:], disk.epochs[keep:], disk.crcs[keep:]
            disk.snapshots = [kept for kept in disk.snapshots if kept.position <= position]
            disk.rewound_to = position
            return f"tail-{tail.epochs[0]}-{position + 1}-{position + len(tail.records)}"

    async def install(self, epoch: Epoch, position: Position, folder: Path) -> str:
        disk = self._disk
        async with self._turn:
            assert folder == INCOMING, f"{folder} isn't on this disk"
            assert disk.incoming is not None, "nothing has come in"
            assert disk.incoming.base == (epoch, position), f"what came in stands behind {disk.incoming.base}"
            self._refusal = LogFailed("the log was replaced; open it anew")
            disk.passes(CommitPoint.IN_INSTALL)
            await self._touch()
            disk.installing = True
            return f"replaced-{len(disk.replaced) + 1}" if disk.end or disk.snapshots else ""

    def _finish_install(self) -> None:
        disk = self._disk
        if disk.installing and disk.incoming is not None:
            if disk.end or disk.snapshots:
                disk.replaced = [*disk.replaced, disk.content()][-ASIDE_MAX:]
            disk.become(disk.incoming)
            disk.rewound_to = None
        disk.installing, disk.incoming = False, None

    async def _put_history_back(self) -> None:
        disk = self._disk
        if disk.rewound_to is None:
            return
        history = SimHistory(disk.archive, self._clock, took_s=0)
        try:
            mark = await history.open()
            if mark.position > disk.rewound_to:
                await history.rewind(HistoryMark(cluster_id=mark.cluster_id, position=disk.rewound_to))
        except HistoryFailed:
            return  # again with the next open
        disk.rewound_to = None

    async def _touch(self) -> None:
        """A small write. Raises: LogFailed; then it wasn't done."""
        disk = self._disk
        await self._clock.sleep(self._entropy.jitter(0.0001, 0.003) + disk.stall_s)
        if not self._holds():
            raise LogFailed("the log isn't open")
        if disk.full or disk.sync_fails:
            disk.refused += 1
            raise LogFailed("no space left on device" if disk.full else "input/output error")


class SimIncoming:
    """The Incoming port on a disk."""

    def __init__(self, disk: SimDisk, clock: Clock) -> None:
        self._disk, self._clock = disk, clock
        self._history = b""

    async def begin(self) -> None:
        await self.drop()

    async def write(self, piece: bytes) -> None:
        self._history += piece
        await self._written()

    async def finish(self, beginning: LogBeginning) -> Path:
        mark = beginning.mark
        archive = archive_in(self._history)
        history = SimHistory(archive, self._clock)
        found = await history.open()
        assert found.cluster_id == mark.cluster_id, "the history of another cluster"
        await history.rewind(mark)
        await self._written()
        snapshot = SimSnapshot(mark.position, tuple(beginning.chunks), checksum(beginning.chunks))
        self._disk.incoming = Content(beginning.base, (), (), (snapshot,), archive)
        return INCOMING

    async def drop(self) -> None:
        self._history = b""
        if not self._disk.installing:
            self._disk.incoming = None

    async def _written(self) -> None:
        await self._clock.sleep(self._disk.stall_s)
        if self._disk.full:
            self._disk.refused += 1
            raise LogFailed("no space left on device")


__all__ = ["CommitPoint", "SimDisk", "SimIncoming", "SimLog", "SimSnapshot", "Trap"]
