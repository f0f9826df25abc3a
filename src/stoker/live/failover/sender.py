"""What does the active send one follower?

Rules: F1  two logs are alike up to the smaller end of the newest epoch that both hold records of: an epoch had one
           writer, who never took anything back
       F2  a follower whose log can't be met, because it is empty or too old for what is kept, gets a backup
       F3  else it gets records in order without gaps: pages of the log until it meets the ring, then what is shipped
       F4  a sign of life goes out whenever nothing else did for `look_s`, also while a backup is made
       F5  nothing leaves once our lease is over
Limits: a frame holds at most FRAME_RECORDS records and FRAME_BYTES, unless one record alone is longer. A page is in
        memory at a time.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from typing import Final, Protocol

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import Member
from stoker.brain.domain.units import Mono
from stoker.live.failover.links import BackupPiece, Frame, Offer, Records, Welcome
from stoker.live.failover.ring import Ring
from stoker.ports import Clock, HistoryFailed, LogDamaged, LogFailed, LogTrimmed, ReplicaLog, Stored

FRAME_RECORDS: Final = 1_000
FRAME_BYTES: Final = 1 << 20
PAGE_BYTES: Final = 4 << 20
"""A page that was larger makes the next one shorter."""
PAGE_ROWS_MIN: Final = 16
PIECE_BYTES: Final = 256 << 10
"""Short pieces of a backup are put together to this, long ones are cut."""


class BackupTaken(Protocol):
    def pieces(self) -> AsyncIterator[bytes]: ...
    async def close(self) -> None: ...


class BackupSource(Protocol):
    """`control.backup.Backups`."""

    async def take(self) -> BackupTaken: ...


class Leader(Protocol):
    """What a stream needs to know of the active's side (`Replication`)."""

    me: Member
    epoch: Epoch
    acknowledged: Position
    log: ReplicaLog
    ring: Ring
    backup_turn: asyncio.Lock
    clock: Clock
    look_s: float

    @property
    def backups(self) -> BackupSource: ...

    def check_leading(self) -> None:
        """F5. Raises: StokerError `not_active`."""
        ...

    async def news(self) -> None:
        """Returns when something was shipped, or after a while."""
        ...

    def joined(self, sender: "Sender", position: Position) -> None:
        """Records are being sent to a follower that has everything up to there."""
        ...

    def confirmed(self, sender: "Sender", position: Position) -> None: ...

    def left(self, sender: "Sender") -> None: ...


def common_log_end(mine: Sequence[tuple[Epoch, Position]], theirs: Sequence[tuple[Epoch, Position]]) -> Position | None:
    """F1. None = nothing shows that they have anything in common."""
    held = dict(theirs)
    return next((min(end, held[epoch]) for epoch, end in mine if epoch in held), None)


class Sender:
    """One follower's stream."""

    def __init__(self, leader: Leader, offer: Offer) -> None:
        self.member: Final = offer.member
        self._leader = leader
        self._offer = offer
        self._sent = Position(0)
        self._said_at: Mono = leader.clock.mono()
        self._page_rows = FRAME_RECORDS
        self.closed = False

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """Until the stream is of no use any more. Raises: StokerError `not_active` and others."""
        try:
            common = await self._common()
            async with aclosing(self._backup() if common is None else self._rows(common)) as stream:
                async for frame in stream:
                    self._leader.check_leading()
                    if self.closed:
                        return
                    self._said_at = self._leader.clock.mono()
                    yield frame
        except (LogDamaged, LogFailed) as fault:
            message = f"the log of {self._leader.me.name} can't be read: {fault}"
            raise StokerError(refuse("log_failed", message, "see what it writes to its own log")) from fault
        finally:
            self.close()

    def confirm(self, position: Position) -> None:
        """The follower's disk holds everything up to there. Raises: StokerError `malformed_message`."""
        if self.closed:
            return
        if position > self._sent:
            raise StokerError(
                refuse(
                    "malformed_message",
                    f"{self.member.name} says that it has record {position}, and was sent records up to {self._sent}",
                    "is it of this version?",
                )
            )
        self._leader.confirmed(self, position)

    def close(self) -> None:
        """Safe to call twice."""
        if not self.closed:
            self.closed = True
            self._leader.left(self)

    async def _common(self) -> Position | None:
        """F1, F2. Where rows begin; None = a backup is needed."""
        offer, log = self._offer, self._leader.log
        if offer.wants_backup:
            return None
        common = Position(0) if offer.position == 0 else common_log_end(await log.ends(), offer.ends)
        if common is None or common > offer.position:
            return None
        with suppress(LogTrimmed):
            await log.after(common, 1)
            return common
        return None

    async def _rows(self, common: Position) -> AsyncGenerator[Frame, None]:
        """F3"""
        leader = self._leader
        yield Welcome(leader=leader.me, epoch=leader.epoch, position=common)
        if common < self._offer.position:
            return  # it cuts its log, and asks anew
        self._sent = common
        leader.joined(self, common)
        while True:
            rows = leader.ring.after(self._sent, FRAME_RECORDS)
            if rows is None:
                rows = await self._page()
            for frame in self._framed(rows):
                self._sent = Position(frame.position + len(frame.records))
                yield frame
            if self._is_quiet():
                yield self._sign_of_life()  # something may have been shipped meanwhile
            elif not rows:
                await leader.news()

    async def _page(self) -> list[Stored]:
        """Raises: StokerError `log_trimmed`: it fell behind so far that it needs a backup, and asks anew."""
        try:
            rows = await self._leader.log.after(self._sent, self._page_rows)
        except LogTrimmed as fault:
            message = f"the log no longer reaches back to record {self._sent}"
            raise StokerError(refuse("log_trimmed", message, "connect again: a backup is sent then")) from fault
        size = sum(len(row.record) for row in rows)
        if size > PAGE_BYTES:
            self._page_rows = max(PAGE_ROWS_MIN, self._page_rows // 2)
        elif size < PAGE_BYTES // 4:
            self._page_rows = min(FRAME_RECORDS, self._page_rows * 2)
        return rows

    def _framed(self, rows: Sequence[Stored]) -> list[Records]:
        """In frames of one epoch each, within their bounds."""
        frames: list[Records] = []
        begin = size = 0
        for at, row in enumerate(rows):
            if at > begin and (row.epoch != rows[begin].epoch or size + len(row.record) > FRAME_BYTES):
                frames.append(self._frame(rows[begin:at]))
                begin, size = at, 0
            size += len(row.record)
        if rows:
            frames.append(self._frame(rows[begin:]))
        return frames

    def _frame(self, rows: Sequence[Stored]) -> Records:
        return Records(
            leader_epoch=self._leader.epoch,
            epoch=rows[0].epoch,
            position=Position(rows[0].position - 1),
            records=[row.record for row in rows],
            acknowledged=self._leader.acknowledged,
        )

    def _is_quiet(self) -> bool:
        """F4"""
        return self._leader.clock.mono() - self._said_at >= self._leader.look_s

    def _sign_of_life(self) -> Records:
        leader = self._leader
        return Records(
            leader_epoch=leader.epoch,
            epoch=leader.epoch,
            position=self._sent,
            records=(),
            acknowledged=leader.acknowledged,
        )

    async def _backup(self) -> AsyncGenerator[Frame, None]:
        """F2"""
        leader = self._leader
        yield Welcome(leader=leader.me, epoch=leader.epoch, position=Position(0), backup_follows=True)
        taking = asyncio.ensure_future(self._take())
        try:
            while not taking.done():
                await asyncio.wait((taking,), timeout=leader.look_s)
                if not taking.done():
                    yield self._sign_of_life()
            async for piece in _pieces(taking.result().pieces()):
                yield BackupPiece(piece)
            yield BackupPiece(b"")
        except HistoryFailed as fault:
            message = f"the history can't be copied now: {fault}"
            raise StokerError(refuse("history_unavailable", message, "the follower asks again by itself")) from fault
        finally:
            await self._give_back(taking)

    async def _take(self) -> BackupTaken:
        """One at a time: others wait here, and those of people are waited for. Who gets one gives the turn back."""
        leader = self._leader
        await leader.backup_turn.acquire()
        try:
            while True:
                try:
                    return await leader.backups.take()
                except StokerError as fault:
                    if fault.refusal.code != "backup_running":
                        raise
                await leader.clock.sleep(leader.look_s)
        except BaseException:
            leader.backup_turn.release()
            raise

    async def _give_back(self, taking: "asyncio.Future[BackupTaken]") -> None:
        """However the stream ended, perhaps while the backup was being made."""
        if not taking.done():
            taking.cancel()
            await asyncio.wait((taking,))
        if not taking.cancelled() and taking.exception() is None:
            await taking.result().close()
            self._leader.backup_turn.release()


async def _pieces(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in pieces of a handy size."""
    gathered = bytearray()
    async for piece in pieces:
        gathered += piece
        while len(gathered) >= PIECE_BYTES:
            yield bytes(gathered[:PIECE_BYTES])
            del gathered[:PIECE_BYTES]
    if gathered:
        yield bytes(gathered)
