"""How does a standby come by another log than its own?

Rules: R1  a backup that comes in is put together beside what there is, proved byte by byte, and only then named
       R2  nothing is left of one that is broken off or no good
       R3  the log is changed between two lives: when nothing reads it, or the history beside it, any more
Limits: the state is held in memory as bytes until the backup is whole, as its sender does.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.state.snapshot_frame import SnapshotDamaged, unframed
from stoker.ports import HistoryMark, Incoming
from stoker.wire.backup import HISTORY, SNAPSHOT, PassingBackup, damaged


class StartOver(Exception):
    """The log must become another one. `change` does it, once nothing of this life uses the log, and after the history
    was closed; then another life begins from what is on disk, also if it failed. The message says why."""

    def __init__(self, why: str, change: Callable[[], Awaitable[None]]) -> None:
        super().__init__(why)
        self.change = change
        """R3. Raises: LogFailed."""


class Received(NamedTuple):
    """A backup that has come in whole, in a form that `ReplicaLog.install` takes."""

    epoch: Epoch
    position: Position
    folder: Path


class Receiving:
    """What comes in from others. It outlives lives."""

    def __init__(self, incoming: Incoming) -> None:
        self.needed = False
        """Our log can't be cut as far back as the active's agrees with it, so only a backup helps."""
        self._incoming = incoming

    async def receive(self, pieces: AsyncIterator[bytes], cluster_id: str) -> Received:
        """R1, R2. `cluster_id` is ours; empty = any will do.

        Raises: StokerError `backup_damaged`, `backup_foreign`, `backup_too_new` or `other_cluster`; LogFailed; whatever
        `pieces` raises.
        """
        try:
            await self._incoming.begin()
            return await self._put_together(pieces, cluster_id)
        except BaseException:
            await self._incoming.drop()
            raise

    async def _put_together(self, pieces: AsyncIterator[bytes], cluster_id: str) -> Received:
        snapshot = bytearray()
        history: list[bytes] = []
        passing = PassingBackup({SNAPSHOT: snapshot.extend, HISTORY: history.append})
        async for piece in pieces:
            passing.passed(piece)
            for some in history:
                await self._incoming.write(some)
            history.clear()
        head = passing.end()
        if cluster_id and head.cluster_id != cluster_id:
            message = f"the backup is of cluster {head.cluster_id}, and this control plane holds {cluster_id}"
            raise StokerError(refuse("other_cluster", message, "name the right peers"))
        position = Position(head.position)
        try:
            chunks = unframed(position, bytes(snapshot))
        except SnapshotDamaged as fault:
            raise damaged(f"its state can't be read: {fault}") from fault
        mark = HistoryMark(cluster_id=head.cluster_id, position=position)
        folder = await self._incoming.finish(mark, Epoch(head.epoch), chunks)
        return Received(Epoch(head.epoch), position, folder)
