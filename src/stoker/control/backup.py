"""Backups of a control plane: taking one while it works, and making a log to go on with from one.

Rules: B1  a backup is of one position, taken in slices between which others run, as snapshots are, and sent only once
           that position is durable
       B2  all that happened up to there is in its history too; what happened after may be, and is taken off again when
           it is restored
       B3  one at a time: a second one is refused, never queued
       B4  whatever ends it, the copy of the history is gone
       B5  what comes in is proved on its way; what can't be proved leaves nothing behind and changes nothing
       B6  a standby goes on under the epoch and with the ids of its backup: it is the same cluster. What a restored
           cluster begins with is decided by the brain: `admit.leadership.restore`
Costs: beside a backup of 95,000 jobs the slowest append took 4 ms, beside one of 400 MB of history 9 (without: 6).
Limits: the state is held in memory as bytes until it is sent, or all of it is there, a kilobyte for each job.
"""

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import UNSET

from stoker.brain.domain.access import OWNER
from stoker.brain.domain.errors import Refusal, StokerError, refusal_error
from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.units import Instant
from stoker.brain.state.admit.dispatch import admit
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact, encode_fact, load_snapshot, snapshot_chunks
from stoker.brain.state.commands import RestoreCluster
from stoker.brain.state.snapshot_format import SnapshotDamaged, framed, unframed
from stoker.control.control_plane import ControlPlane
from stoker.control.snapshots import REST_S
from stoker.ports import Clock, Entropy, HistoryCopy, HistoryFailed, Incoming, LogBeginning, ReceivedBackup
from stoker.wire.backup import (
    HISTORY,
    SNAPSHOT,
    BackupHead,
    BackupWriter,
    Counts,
    Part,
    Sink,
    StreamingBackupReader,
    damaged,
)
from stoker.wire.endpoints import PRODUCT

SLICE_BYTES: Final = 4 * 1024
"""Longer pieces are chunks of the state, after each of which others get a turn."""


class Backups:
    """The backups of one control plane."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self.running = False

    async def take(self) -> "Backup":
        """Take a backup, which the caller closes.

        Raises: StokerError `backup_running`, `history_unavailable` or `log_failed`.
        """
        if self.running:  # B3
            message = "another backup is being taken"
            raise refusal_error("backup_running", message, "wait until it is there, then ask again")
        self.running = True
        try:
            return await self._taken()
        except HistoryFailed as fault:
            self.running = False
            raise _no_history(str(fault)) from fault
        except BaseException:
            self.running = False
            raise

    async def _taken(self) -> "Backup":
        control = self._control
        state = control.committer.state
        position, epoch, counts = state.position, state.epoch, _counts(state)
        slices = snapshot_chunks(state)
        chunks = [next(slices)]  # from here on it is of this position, whatever happens meanwhile
        for chunk in slices:
            chunks.append(chunk)
            await control.clock.sleep(REST_S)
        await control.committer.settled()
        if not await control.history.flush(position):  # B2
            raise _no_history(control.history.fault)
        pieces, snapshot = await _framed(position, chunks, control.clock)
        copy = await control.history.store.copy()
        try:
            head = BackupHead(
                version=PRODUCT,
                cluster_id=state.cluster_id,
                epoch=epoch,
                position=position,
                made_at=control.clock.now(),
                counts=counts,
                parts=(snapshot, Part(name=HISTORY, size=copy.size, sha256=copy.sha256)),
            )
        except BaseException:
            await copy.close()
            raise
        return Backup(self, head, pieces, copy)


class Backup:
    """One that was taken, and is yet to be sent."""

    def __init__(self, owner: Backups, head: BackupHead, snapshot: Sequence[bytes], history: HistoryCopy) -> None:
        self.head = head
        self._owner = owner
        self._snapshot = snapshot
        self._history = history
        self._writing = BackupWriter(head)
        self.size: Final = self._writing.size
        """Bytes of the whole."""

    async def pieces(self) -> AsyncIterator[bytes]:
        """The whole, once. Raises: HistoryFailed."""
        writing = self._writing
        snapshot, history = self.head.parts
        yield writing.head()
        yield writing.before(snapshot)
        for piece in self._snapshot:
            yield writing.passed(piece)
        self._snapshot = ()
        yield writing.after(snapshot) + writing.before(history)
        while piece := await self._history.read():
            yield writing.passed(piece)
        yield writing.after(history)
        yield writing.end()

    async def close(self) -> None:
        """Drop the copy of the history (B4). Safe to call twice."""
        self._snapshot = ()
        self._owner.running = False
        await self._history.close()


async def _framed(position: Position, chunks: Sequence[bytes], clock: Clock) -> tuple[list[bytes], Part]:
    """The snapshot's frame in pieces, summed up in slices."""
    summed = hashlib.sha256()
    pieces: list[bytes] = []
    for piece in framed(position, chunks):
        summed.update(piece)
        pieces.append(piece)
        if len(piece) > SLICE_BYTES:
            await clock.sleep(REST_S)
    return pieces, Part(name=SNAPSHOT, size=sum(map(len, pieces)), sha256=summed.hexdigest())


def _counts(state: ClusterState) -> Counts:
    return Counts(jobs=len(state.jobs), nodes=len(state.nodes), tenants=len(state.tenants), tokens=len(state.tokens))


def _no_history(why: str) -> StokerError:
    message = f"the history can't be copied now: {why}"
    hint = "see whether the disk of data_dir is full or broken; jobs go on meanwhile"
    return refusal_error("history_unavailable", message, hint)


class ProvedBackup(NamedTuple):
    """A backup whose state can be read."""

    head: BackupHead
    chunks: Sequence[bytes]
    """The snapshot."""
    state: ClusterState
    """What the chunks are of."""


def proved(head: BackupHead, snapshot: bytes) -> ProvedBackup:
    """Read the state that a backup names. Raises: StokerError `backup_damaged`."""
    try:
        chunks = unframed(Position(head.position), snapshot)
        state = load_snapshot(chunks)
    except (SnapshotDamaged, ValueError, RecursionError) as fault:
        raise damaged(f"its state can't be read: {fault}") from fault
    if (state.cluster_id, state.epoch, state.position) != (head.cluster_id, head.epoch, head.position):
        raise damaged("its state is not the one that it names")
    return ProvedBackup(head, chunks, state)


async def receive_backup(pieces: AsyncIterator[bytes], incoming: Incoming) -> ReceivedBackup:
    """Make a log to go on with from a whole backup, for a standby (B6).

    Raises: StokerError `backup_damaged`, `backup_foreign` or `backup_too_new`; LogFailed when it can't be kept;
    whatever `pieces` raises.
    """
    try:
        snapshot = bytearray()
        head = await _receive(pieces, incoming, {SNAPSHOT: snapshot.extend})
        chunks = proved(head, bytes(snapshot)).chunks
        epoch, position = Epoch(head.epoch), Position(head.position)
        beginning = LogBeginning(head.cluster_id, (epoch, position), chunks, epoch)
        return ReceivedBackup(epoch, position, await incoming.finish(beginning))
    except BaseException:
        await incoming.drop()  # B5
        raise


async def restore_into(
    incoming: Incoming, backup: ProvedBackup, beginning: LogBeginning, pieces: AsyncIterator[bytes]
) -> None:
    """Make what a restored cluster goes on with from a backup that is read once more.

    Raises: as `receive_backup`; StokerError `backup_damaged` also when it has changed meanwhile.
    """
    try:
        if await _receive(pieces, incoming, {}) != backup.head:
            raise damaged("it was changed meanwhile")
        await incoming.finish(beginning)
    except BaseException:
        await incoming.drop()  # B5
        raise


def restored_beginning(backup: ProvedBackup, clock: Clock, entropy: Entropy) -> LogBeginning:
    """Return what a restored cluster begins with (B6); the state goes on with it. Raises: StokerError."""
    state, by = backup.state, OWNER.principal
    base, now = (state.epoch, state.position), Instant(max(clock.now(), state.last_at))
    events = admit(state, RestoreCluster(by=by), now, entropy.uid)
    if isinstance(events, Refusal):
        raise StokerError(events)
    records: list[bytes] = []
    for event in events:
        fact = Fact(at=now, by=by, event=event, joined=True if records else UNSET)
        apply(state, fact, Position(state.position + 1))
        records.append(encode_fact(fact))
    return LogBeginning(state.cluster_id, base, backup.chunks, state.epoch, records)


async def _receive(pieces: AsyncIterator[bytes], incoming: Incoming, sinks: Mapping[str, Sink]) -> BackupHead:
    """Write the history of a backup to `incoming`, its other parts to `sinks`; return its head once all is proved."""
    history: list[bytes] = []
    backup = StreamingBackupReader({**sinks, HISTORY: history.append})
    await incoming.begin()
    async for piece in pieces:
        backup.passed(piece)
        for some in history:
            await incoming.write(some)
        history.clear()
    return backup.end()
