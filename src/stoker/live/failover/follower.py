"""The standby's side of replication: it keeps up with the log of the active.

It dials the active, says what its own log holds, and takes what it is sent: onto its own disk first, then into its
state, then it confirms.

Rules: T1  nothing is taken from a control plane whose epoch is below one that was promised, seen, or is in our log
       T2  frames that wait are taken together: one append, one confirmation
       T3  what is on our disk is in our state when `follow` ends, also when it is cancelled
       T4  what our log holds beyond the active's is cut off, kept aside and told; never merged
       T5  a log that must be cut or replaced ends with LogReplaced: what was in memory is of no use then
       T6  an active that says nothing for a while is dialled anew
Limits: INBOX_BYTES and INBOX_FRAMES are read ahead; the active waits beyond them. REPLAY_ROWS are applied at a stretch.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import groupby
from typing import Final, NoReturn

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import Member
from stoker.brain.failover.inputs import ControlRole, PeerState
from stoker.brain.failover.timing import DEFAULT
from stoker.control.control_ports import ControlPorts
from stoker.live.failover.links import (
    BackupPiece,
    Following,
    Frame,
    Offer,
    PeerDown,
    PeerLink,
    PeerRefused,
    Records,
    Welcome,
)
from stoker.ports import LogConflict, LogTrimmed, ReceivedBackup, ReplicaLog, Stored

INBOX_BYTES: Final = 8 << 20
INBOX_FRAMES: Final = 4_096
REPLAY_ROWS: Final = 200
"""About ten milliseconds' work."""
SIGNS_MAX: Final = 20
"""T6: so many signs of life may be missing."""


class LogReplaced(Exception):
    """The log is another one now: begin a new tenure from what is on disk. The message says why."""


ReceiveBackup = Callable[[AsyncIterator[bytes]], Awaitable[ReceivedBackup]]
"""Puts the pieces of a backup into a folder beside ours. Leaves nothing when it fails or is cancelled.
Raises: StokerError `backup_damaged` and others."""


class _NeedsBackup(Exception):
    """Our log can't be cut as far back as the active's agrees with it: ask for a backup."""


class Follower:
    """Follower of the active's log."""

    def __init__(
        self,
        log: ReplicaLog,
        replay: Callable[[Sequence[Stored]], None],
        ports: ControlPorts,
        me: Member,
        *,
        receive: ReceiveBackup,
        look_s: float = DEFAULT.look_s,
    ) -> None:
        """`log` is open and all that it holds was replayed. `replay` takes what is on our disk into the state.
        `look_s`: how often the active gives a sign of life."""
        self.me = me
        self.position = Position(0)
        """The end of our log; known once `follow` was called."""
        self._log = log
        self._replay = replay
        self._clock = ports.clock
        self._telemetry = ports.telemetry
        self._receive = receive
        self.silent_s_max: Final = SIGNS_MAX * look_s
        self._leader_epoch = Epoch(0)
        self._needs_backup = False
        self._heard_at = self._level_at = self._clock.mono()

    @property
    def lag_s(self) -> float:
        """Greatest age in seconds of what we show, since we last had all that we knew to be acknowledged."""
        return self._clock.mono() - self._level_at

    async def follow(self, link: PeerLink, heard: Callable[[PeerState], None], *, cluster_id: str) -> None:
        """Take what the active behind `link` sends, until cancelled.

        `heard` is told whenever it has spoken; `cluster_id` is that of our state.
        Raises: PeerDown, PeerRefused; LogFailed; LogReplaced.
        """
        while True:
            ends = await self._log.ends()
            self.position = ends[0][1] if ends else Position(0)
            offer = Offer(
                member=self.me,
                cluster_id=cluster_id,
                position=self.position,
                ends=tuple(ends),
                wants_backup=self._needs_backup,
            )
            self._leader_epoch = max(self._leader_epoch, ends[0][0] if ends else Epoch(0))
            try:
                async with (
                    link.follow(offer) as following,
                    aclosing(_ReplicationStream(following, self, heard, link.address)) as stream,
                ):
                    await self._keep_up(following, stream)
            except _NeedsBackup:
                self._needs_backup = True
            except LogConflict as fault:
                raise LogReplaced(f"the log has refused what the active sent: {fault}") from fault

    async def _keep_up(self, following: Following, stream: "_ReplicationStream") -> None:
        welcome = await stream.first()
        self._leader_epoch = welcome.epoch
        if welcome.backup_follows:
            await self._install(stream)
        if welcome.position < self.position:
            await self._cut(welcome.position, stream.address)
        if welcome.position > self.position:
            raise PeerDown(
                f"{stream.address} goes on behind record {welcome.position}, and ours end at {self.position}"
            )
        self._needs_backup = False
        while True:
            rows, acknowledged = _joined(await stream.rows(), self.position, stream.address)
            taking = asyncio.ensure_future(self._take(rows))
            try:
                await asyncio.shield(taking)
            except asyncio.CancelledError:
                await asyncio.wait((taking,))  # T3
                taking.result()
                raise
            if self.position >= acknowledged:
                self._level_at = self._heard_at
            await following.confirm(self.position)

    async def _take(self, rows: Sequence[Stored]) -> None:
        for epoch, group in groupby(rows, key=lambda row: row.epoch):
            some = tuple(group)
            if epoch < self._log.promised:
                # It was promised to a take-over that came to nothing: T1 has seen to it that this active knows.
                await self._log.promise(epoch)
            await self._log.append(epoch, self.position, [row.record for row in some])
            self.position = some[-1].position
            for at in range(0, len(some), REPLAY_ROWS):
                self._replay(some[at : at + REPLAY_ROWS])
                await self._clock.sleep(0)

    async def _cut(self, position: Position, address: str) -> NoReturn:
        """Cut off what our log holds beyond the active's (T4, T5)."""
        records = self.position - position
        try:
            aside = await self._log.cut(position)
        except LogTrimmed as fault:
            self._telemetry.warn("tail_too_old_to_cut", position=position, records=records, error=str(fault))
            raise _NeedsBackup from fault
        if aside:
            self._telemetry.warn("tail_set_aside", path=aside, position=position, records=records, active=address)
        raise LogReplaced(f"its last {records} records, after {position}, are none that the active has: cut off")

    async def _install(self, stream: "_ReplicationStream") -> NoReturn:
        """Put a backup in the place of our log (T5)."""
        self._telemetry.event("backup_awaited", active=stream.address, position=self.position)
        try:
            async with aclosing(stream.pieces()) as pieces:
                received = await self._receive(pieces)
        except StokerError as fault:
            raise PeerRefused(f"{stream.address} sent a backup that is of no use: {fault}") from fault
        aside = await self._log.install(received.epoch, received.position, received.folder)
        self._telemetry.event("backup_installed", position=received.position, old_log=aside)
        raise LogReplaced(f"a backup of the active has taken the place of the log, up to record {received.position}")

    def heard(self) -> None:
        self._heard_at = self._clock.mono()

    def check_epoch(self, epoch: Epoch, address: str) -> None:
        """Refuse an active whose epoch is over (T1). Raises: PeerRefused."""
        if epoch < max(self._leader_epoch, self._log.promised):
            newest = max(self._leader_epoch, self._log.promised)
            raise PeerRefused(f"{address} leads under epoch {epoch}, and epoch {newest} has begun: it is over")


class _ReplicationStream:
    """Frames of one stream, checked for the epoch of their sender.

    They are read ahead of our disk, so that what comes while that is busy is taken together.
    """

    def __init__(
        self, following: Following, follower: Follower, heard: Callable[[PeerState], None], address: str
    ) -> None:
        self.address = address
        self._following = following
        self._follower = follower
        self._heard = heard
        self._leader = Member(name="", uid="")
        self._kept: list[Frame] = []
        """What came together with the first frame."""
        self._inbox: deque[Frame] = deque()
        self._bytes = 0
        self._room, self._news = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._reading = asyncio.create_task(self._read(), name="replication-inbox")

    async def aclose(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def first(self) -> Welcome:
        welcome, *self._kept = await self._next()
        if not isinstance(welcome, Welcome):
            raise PeerDown(f"{self.address} doesn't begin as it should")
        self._follower.check_epoch(welcome.epoch, self.address)
        self._leader = welcome.leader
        self._tell(welcome.epoch, welcome.position)
        return welcome

    async def rows(self) -> list[Records]:
        """Return all frames that wait (T2)."""
        rows: list[Records] = []
        for frame in await self._next():
            if not isinstance(frame, Records):
                raise PeerDown(f"{self.address} sent something else than records")
            self._follower.check_epoch(frame.leader_epoch, self.address)
            rows.append(frame)
        self._tell(rows[-1].leader_epoch, Position(rows[-1].position + len(rows[-1].records)))
        return rows

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        while True:
            for frame in await self._next():
                if isinstance(frame, BackupPiece):
                    if not frame.data:
                        return
                    yield frame.data
                elif not isinstance(frame, Records) or frame.records:
                    raise PeerDown(f"{self.address} sent something else than a backup")

    async def _next(self) -> list[Frame]:
        """Return all frames that have come, or the next ones. Raises: PeerDown, PeerRefused, once all were taken.

        An active that says nothing for a while is down (T6).
        """
        if self._kept:
            frames, self._kept = self._kept, []
            return frames
        try:
            async with asyncio.timeout(self._follower.silent_s_max):
                await self._news.wait()
        except TimeoutError as fault:
            raise PeerDown(f"{self.address} has said nothing for {self._follower.silent_s_max:g} s") from fault
        frames = list(self._inbox)
        if not frames:
            self._reading.result()
            raise PeerDown("the stream has ended")
        self._inbox.clear()
        self._bytes = 0
        self._room.set()
        if not self._reading.done():
            self._news.clear()
        self._follower.heard()
        return frames

    async def _read(self) -> None:
        try:
            async for frame in self._following.frames():
                await self._room.wait()
                self._inbox.append(frame)
                self._bytes += _size(frame)
                if self._bytes >= INBOX_BYTES or len(self._inbox) >= INBOX_FRAMES:
                    self._room.clear()
                self._news.set()
        finally:
            self._news.set()

    def _tell(self, epoch: Epoch, position: Position) -> None:
        self._heard(PeerState(member=self._leader, role=ControlRole.ACTIVE, epoch=epoch, position=position))


def _joined(frames: Sequence[Records], position: Position, address: str) -> tuple[list[Stored], Position]:
    """Return the records of all frames, which must go on behind `position`, and what was acknowledged."""
    rows: list[Stored] = []
    end = position
    for frame in frames:
        if frame.position != end:
            raise PeerDown(f"{address} sent records behind {frame.position} where {end} was to go on")
        rows.extend(Stored(Position(at), frame.epoch, record) for at, record in enumerate(frame.records, end + 1))
        end = Position(end + len(frame.records))
    return rows, frames[-1].acknowledged


def _size(frame: Frame) -> int:
    if isinstance(frame, Records):
        return sum(map(len, frame.records))
    return len(frame.data) if isinstance(frame, BackupPiece) else 0
