"""A disk that survives the process, and the EventLog port on it.

A crash of the process between append and answer loses the batch or keeps it whole, as the seed decides: SQLite's
transaction is simulated at that grain. What an `append` that returned holds is never lost. A trap set on the disk says
when a process comes past a point of its commit, so that it can be killed right there.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import Clock, Entropy, LogConflict, LogDamaged, LogFailed
from tests.rig.sim_history import SimArchive


class CommitPoint(StrEnum):
    """Where a process may be on its way through its disk."""

    BEFORE_WRITE = "before_write"
    """The batch is on its way; nothing of it is on the platter."""
    BEFORE_ANSWER = "before_answer"
    """All of it is on the platter; nobody was told."""
    BETWEEN_BATCHES = "between_batches"
    """`append` has returned: answers and instructions leave now."""
    IN_SNAPSHOT = "in_snapshot"
    """A snapshot is being written; it isn't there."""
    BEFORE_TRIM = "before_trim"
    """The snapshot is there; the records it makes superfluous are too."""


class Trap:
    """Springs the `nth` time that a process comes past a point."""

    def __init__(self, point: CommitPoint, nth: int = 1) -> None:
        self.sprung = asyncio.Event()
        self._point, self._left = point, nth

    def passes(self, point: CommitPoint) -> None:
        if point is self._point and self._left > 0:
            self._left -= 1
            if self._left == 0:
                self.sprung.set()


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    position: Position
    chunks: Sequence[bytes]
    crc: int = 0

    @property
    def is_whole(self) -> bool:
        return self.crc == checksum(self.chunks)


@dataclass(slots=True)
class SimDisk:
    """What is on the platter."""

    records: list[bytes] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    crcs: list[int] = field(default_factory=list)
    first: int = 1
    """Position of the oldest record kept."""
    snapshots: list[StoredSnapshot] = field(default_factory=list)
    full: bool = False
    refused: int = 0
    """How many writes it had no room for."""
    stall_s: float = 0.0
    """How much longer than usual each write takes."""
    trap: Trap | None = None
    on_write: Callable[[Sequence[bytes]], None] | None = None
    """Told of records once they are on the platter."""
    holder: object | None = None
    archive: SimArchive = field(default_factory=SimArchive)
    """The history's store on the same disk."""

    def __post_init__(self) -> None:
        self.crcs = self.crcs or [zlib.crc32(record) for record in self.records]

    @property
    def end(self) -> Position:
        return Position(self.first - 1 + len(self.records))

    def damage_record(self, position: Position) -> None:
        at = position - self.first
        self.records[at] = bytes([self.records[at][0] ^ 1]) + self.records[at][1:]

    def damage_snapshot(self, position: Position) -> None:
        self.snapshots = [
            StoredSnapshot(kept.position, kept.chunks, kept.crc ^ (kept.position == position))
            for kept in self.snapshots
        ]

    def passes(self, point: CommitPoint) -> None:
        if self.trap is not None:
            self.trap.passes(point)


class SimLog:
    """The EventLog port of one process on a disk."""

    def __init__(self, disk: SimDisk, clock: Clock, entropy: Entropy, *, look_back_max: int = 1_000_000) -> None:
        self._disk, self._clock, self._entropy = disk, clock, entropy
        self._look_back_max = look_back_max
        self._refusal: Exception | None = LogFailed("the log isn't open")
        self._turn = asyncio.Lock()

    async def open(self) -> Position:
        self._disk.holder = self
        self._refusal = None
        return self._disk.end

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
            raise
        self._write(epoch, position, records)
        self._disk.passes(CommitPoint.BEFORE_ANSWER)
        await self._clock.sleep(self._entropy.jitter(0.0001, 0.002))

    def _write(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        disk = self._disk
        newest = disk.epochs[-1] if disk.epochs else Epoch(0)
        if disk.holder is not self or position != disk.end or epoch < newest:
            self._refusal = LogConflict(f"append at {position} under epoch {epoch}; the log is at {disk.end}, {newest}")
        elif disk.full:
            disk.refused += 1
            self._refusal = LogFailed("no space left on device")
        if self._refusal is not None:
            raise self._refusal
        disk.records.extend(records)
        disk.epochs.extend([epoch] * len(records))
        disk.crcs.extend(zlib.crc32(record) for record in records)
        if disk.on_write is not None:
            disk.on_write(records)

    async def follow(self, position: Position) -> AsyncIterator[tuple[Position, bytes]]:
        disk = self._disk
        if position + 1 < disk.first and disk.records:
            raise LogDamaged(f"records before {disk.first} were trimmed: follow from there")
        for at in range(position + 1, disk.end + 1):
            record = disk.records[at - disk.first]
            if zlib.crc32(record) != disk.crcs[at - disk.first]:
                raise LogDamaged(f"record {at} can't be trusted. To recover: restore the disk from a backup")
            yield Position(at), record

    async def snapshot(self) -> StoredSnapshot | None:
        found = next((kept for kept in reversed(self._disk.snapshots) if kept.is_whole), None)
        reached = found.position if found is not None else 0
        if self._disk.first > reached + 1:
            raise LogDamaged(f"the log begins at record {self._disk.first}, and the newest whole snapshot is {reached}")
        return found

    async def save_snapshot(self, position: Position, chunks: Sequence[bytes]) -> None:
        if self._disk.full:
            raise LogFailed("no space left on device")
        saved = StoredSnapshot(position, tuple(chunks), checksum(chunks))
        self._disk.passes(CommitPoint.IN_SNAPSHOT)
        await self._clock.sleep(self._entropy.jitter(0.001, 0.05))
        self._disk.snapshots = [*self._disk.snapshots[-1:], saved]
        self._disk.passes(CommitPoint.BEFORE_TRIM)
        await self._clock.sleep(0)
        self._trim(self._disk.snapshots[0].position - self._look_back_max)

    def _trim(self, through: int) -> None:
        disk = self._disk
        drop = min(max(0, through + 1 - disk.first), max(0, len(disk.records) - 1))
        del disk.records[:drop], disk.epochs[:drop], disk.crcs[:drop]
        disk.first += drop

    async def close(self) -> None:
        self._refusal = LogFailed("the log is closed")
        if self._disk.holder is self:
            self._disk.holder = None


def checksum(chunks: Sequence[bytes]) -> int:
    crc = zlib.crc32(str([len(chunk) for chunk in chunks]).encode())
    for chunk in chunks:
        crc = zlib.crc32(chunk, crc)
    return crc
