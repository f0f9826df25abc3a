"""A disk that survives the process, and the EventLog port on it.

A crash of the process between append and answer loses the batch or keeps it whole, as the seed decides: SQLite's
transaction is simulated at that grain. What an `append` that returned holds is never lost.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import Clock, Entropy, LogConflict, LogFailed


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    position: Position
    chunks: Sequence[bytes]


@dataclass(slots=True)
class SimDisk:
    """What is on the platter."""

    records: list[bytes] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    first: int = 1
    """Position of the oldest record kept."""
    snapshots: list[StoredSnapshot] = field(default_factory=list)
    full: bool = False
    holder: object | None = None

    @property
    def end(self) -> Position:
        return Position(self.first - 1 + len(self.records))


class SimLog:
    """The EventLog port of one process on a disk."""

    def __init__(self, disk: SimDisk, clock: Clock, entropy: Entropy, *, look_back_max: int = 1_000_000) -> None:
        self._disk, self._clock, self._entropy = disk, clock, entropy
        self._look_back_max = look_back_max
        self._refusal: Exception | None = None

    async def open(self) -> Position:
        self._disk.holder = self
        return self._disk.end

    async def append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        if self._refusal is not None:
            raise self._refusal
        before = self._entropy.jitter(0.0001, 0.003)
        try:
            await self._clock.sleep(before)
        except asyncio.CancelledError:
            # The process dies while the transaction is under way: it may have reached the platter all the same.
            if self._entropy.jitter(0, 1) < 0.5:
                self._write(epoch, position, records)
            raise
        self._write(epoch, position, records)
        await self._clock.sleep(self._entropy.jitter(0.0001, 0.002))

    def _write(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        disk = self._disk
        newest = disk.epochs[-1] if disk.epochs else Epoch(0)
        if disk.holder is not self or position != disk.end or epoch < newest:
            self._refusal = LogConflict(f"append at {position} under epoch {epoch}; the log is at {disk.end}, {newest}")
        elif disk.full:
            self._refusal = LogFailed("no space left on device")
        if self._refusal is not None:
            raise self._refusal
        disk.records.extend(records)
        disk.epochs.extend([epoch] * len(records))

    async def follow(self, position: Position) -> AsyncIterator[tuple[Position, bytes]]:
        for at in range(max(position + 1, self._disk.first), self._disk.end + 1):
            yield Position(at), self._disk.records[at - self._disk.first]

    async def snapshot(self) -> StoredSnapshot | None:
        return self._disk.snapshots[-1] if self._disk.snapshots else None

    async def save_snapshot(self, position: Position, chunks: Sequence[bytes]) -> None:
        saved = StoredSnapshot(position, tuple(chunks))
        await self._clock.sleep(self._entropy.jitter(0.001, 0.05))
        self._disk.snapshots = [*self._disk.snapshots[-1:], saved]
        keep_from = self._disk.snapshots[0].position - self._look_back_max
        drop = max(0, keep_from + 1 - self._disk.first)
        del self._disk.records[:drop]
        del self._disk.epochs[:drop]
        self._disk.first += drop

    async def close(self) -> None:
        if self._disk.holder is self:
            self._disk.holder = None
