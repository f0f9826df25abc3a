"""How does a standby that is too far behind become one that can follow?

The active streams a backup; it is proved on its way and put together beside our own log, which stays as it is until the
other one is whole.

Rules: R1  what can't be proved leaves nothing behind and changes nothing
       R2  unlike what `stoker restore` does, no epoch and no id is skipped: it is the same cluster, which goes on
Limits: the state is held in memory as bytes until all of it is there, a kilobyte for each job.
"""

from collections.abc import AsyncIterator

from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import load_snapshot
from stoker.brain.state.snapshot_format import SnapshotDamaged, unframed
from stoker.live.failover.follower import ReceivedBackup
from stoker.ports import HistoryMark, Incoming
from stoker.wire.backup import HISTORY, SNAPSHOT, BackupHead, StreamingBackupReader, damaged


async def receive_backup(pieces: AsyncIterator[bytes], incoming: Incoming) -> ReceivedBackup:
    """A whole backup. Raises: StokerError `backup_damaged`, `backup_foreign` or `backup_too_new`; LogFailed when it
    can't be kept; whatever `pieces` raises."""
    try:
        return await _receive(pieces, incoming)
    except BaseException:
        await incoming.drop()  # R1
        raise


async def _receive(pieces: AsyncIterator[bytes], incoming: Incoming) -> ReceivedBackup:
    snapshot = bytearray()
    history: list[bytes] = []
    backup = StreamingBackupReader({SNAPSHOT: snapshot.extend, HISTORY: history.append})
    await incoming.begin()
    async for piece in pieces:
        backup.passed(piece)
        for some in history:
            await incoming.write(some)
        history.clear()
    head = backup.end()
    chunks, _ = proved(head, bytes(snapshot))
    mark = HistoryMark(cluster_id=head.cluster_id, position=Position(head.position))
    epoch = Epoch(head.epoch)
    return ReceivedBackup(epoch, mark.position, await incoming.finish(mark, epoch, chunks))


def proved(head: BackupHead, snapshot: bytes) -> tuple[tuple[bytes, ...], ClusterState]:
    """The state that a backup names, as its chunks and as what they are of. Raises: StokerError `backup_damaged`."""
    try:
        chunks = unframed(Position(head.position), snapshot)
        state = load_snapshot(chunks)
    except (SnapshotDamaged, ValueError, RecursionError) as fault:
        raise damaged(f"its state can't be read: {fault}") from fault
    if (state.cluster_id, state.epoch, state.position) != (head.cluster_id, head.epoch, head.position):
        raise damaged("its state is not the one that it names")
    return chunks, state
