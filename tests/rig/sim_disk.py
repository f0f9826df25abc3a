"""What survives the process: a disk, or a database that several processes reach.

A trap set on it says when a process comes past a point of its commit, so that it can be killed right there.
"""

import asyncio
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from stoker.brain.domain.ids import Epoch, Position
from tests.rig.sim_history import SimArchive

NO_EPOCH: Final = Epoch(0)


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
    IN_PROMISE = "in_promise"
    """A promise is being written; the old one holds."""
    IN_CUT = "in_cut"
    """A tail is being set aside; it is still the log's."""
    IN_INSTALL = "in_install"
    """Another log lies ready; the old one is in place."""


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
class SimSnapshot:
    position: Position
    chunks: Sequence[bytes]
    crc: int = 0

    @property
    def is_whole(self) -> bool:
        return self.crc == checksum(self.chunks)


class Tail(NamedTuple):
    """What came after a position at which a log was cut."""

    position: Position
    epochs: tuple[Epoch, ...]
    records: tuple[bytes, ...]


class Content(NamedTuple):
    """A log that isn't in use: one that has come in, or one that was replaced."""

    base: tuple[Epoch, Position]
    """Behind what its records stand."""
    epochs: tuple[Epoch, ...]
    records: tuple[bytes, ...]
    snapshots: tuple[SimSnapshot, ...]
    archive: SimArchive


@dataclass(slots=True)
class SimDisk:
    """What is on the platter, of one control plane or of a database that several reach."""

    records: list[bytes] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    crcs: list[int] = field(default_factory=list)
    first: int = 1
    """Position of the oldest record kept."""
    snapshots: list[SimSnapshot] = field(default_factory=list)
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
    uid: str = ""
    """Empty = drawn when it is asked for."""
    base_epoch: Epoch = NO_EPOCH
    """Of the record before `first`."""
    promised: Epoch = NO_EPOCH
    rewound_to: Position | None = None
    """What the history is to be put back to once the log is opened."""
    incoming: Content | None = None
    """Another log, whole."""
    installing: bool = False
    """The next `open` puts it in place."""
    tails: list[Tail] = field(default_factory=list)
    replaced: list[Content] = field(default_factory=list)
    sync_fails: bool = False
    """fsync answers with an error: what was written is on the platter, or isn't."""
    tears: bool = False
    """A batch under way at a death leaves a part of itself behind, which whoever opens the log recognizes."""
    torn: Tail | None = None
    swept: int = 0
    """How many torn batches were recognized."""
    cut_off: set[str] = field(default_factory=set)
    """Which processes can't reach it, where it is a database."""
    moved_to: Epoch = NO_EPOCH
    """Epoch to which the lease has moved a shared log."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, with each batch."""

    def __post_init__(self) -> None:
        self.crcs = self.crcs or [zlib.crc32(record) for record in self.records]

    @property
    def end(self) -> Position:
        return Position(self.first - 1 + len(self.records))

    @property
    def epoch(self) -> Epoch:
        """Of the newest record."""
        return self.epochs[-1] if self.epochs else self.base_epoch

    def move_epoch(self, epoch: Epoch) -> None:
        """The lease is given to another epoch, in the same transaction (L9)."""
        self.moved_to = max(self.moved_to, epoch)

    def put(self, epoch: Epoch, records: Sequence[bytes]) -> None:
        self.records.extend(records)
        self.epochs.extend([epoch] * len(records))
        self.crcs.extend(zlib.crc32(record) for record in records)
        news, self.news = self.news, asyncio.Event()
        news.set()
        if self.on_write is not None:
            self.on_write(records)

    def content(self) -> Content:
        base = (self.base_epoch, Position(self.first - 1))
        return Content(base, tuple(self.epochs), tuple(self.records), tuple(self.snapshots), self.archive)

    def become(self, content: Content) -> None:
        self.base_epoch, position = content.base
        self.first = position + 1
        self.epochs, self.records = list(content.epochs), list(content.records)
        self.crcs = [zlib.crc32(record) for record in self.records]
        self.snapshots, self.archive = list(content.snapshots), content.archive

    def damage_record(self, position: Position) -> None:
        at = position - self.first
        self.records[at] = bytes([self.records[at][0] ^ 1]) + self.records[at][1:]

    def damage_snapshot(self, position: Position) -> None:
        self.snapshots = [
            SimSnapshot(kept.position, kept.chunks, kept.crc ^ (kept.position == position)) for kept in self.snapshots
        ]

    def passes(self, point: CommitPoint) -> None:
        if self.trap is not None:
            self.trap.passes(point)


def checksum(chunks: Sequence[bytes]) -> int:
    crc = zlib.crc32(str([len(chunk) for chunk in chunks]).encode())
    for chunk in chunks:
        crc = zlib.crc32(chunk, crc)
    return crc
