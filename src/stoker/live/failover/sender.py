"""Stream of the active to one follower, and the ring of new records from which all streams are fed.

Each follower has a place of its own in the log; one that falls behind the ring reads the log instead. So no follower
makes the writer wait, and none costs more memory for being slow.

Rules: F1  two logs are alike up to the smaller end of the newest epoch that both hold records of: an epoch had one
           writer, who never took anything back
       F2  a follower whose log can't be met, because it is empty or too old for what is kept, gets a backup
       F3  else it gets records in order without gaps: pages of the log until it meets the ring, then what is shipped
       F4  a sign of life goes out whenever nothing else did for `look_s`, also while a backup is made
       F5  nothing leaves once our lease is over
       R1  what a batch shipped before the newest one holds may leave the ring: it is in the log, for the writer has one
           append under way at a time. The newest batch stays whole, however large
Limits: the ring holds RECORDS_MAX records and BYTES_MAX, or the newest batch. A frame holds at most FRAME_RECORDS
        records and FRAME_BYTES, unless one record alone is longer. A page is in memory at a time.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.units import Mono
from stoker.control.backup import Backup
from stoker.live.failover.links import BackupPiece, Frame, Offer, Records, Welcome
from stoker.ports import HistoryFailed, LogDamaged, LogFailed, LogTrimmed, Stored

if TYPE_CHECKING:  # they know each other
    from stoker.live.failover.replication import Replication

RECORDS_MAX: Final = 10_000
BYTES_MAX: Final = 8 << 20
_COMPACT: Final = 1_000
"""Slots of dropped records that are kept at least, so that dropping costs nothing each time."""
FRAME_RECORDS: Final = 1_000
FRAME_BYTES: Final = 1 << 20
PAGE_BYTES: Final = 4 << 20
"""A page that was larger makes the next one shorter."""
PAGE_ROWS_MIN: Final = 16
PIECE_BYTES: Final = 256 << 10
"""Short pieces of a backup are put together to this, long ones are cut."""


class Ring:
    """Ring of the newest records of a log that ends at `end`."""

    def __init__(self, end: Position, *, records_max: int = RECORDS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self.end = end
        self._rows: list[Stored] = []
        self._gone = 0
        """How many of `_rows`, from the left, count no more."""
        self._bytes = 0
        self._records_max, self._bytes_max = records_max, bytes_max

    @property
    def begin(self) -> Position:
        """Position behind which everything is in the ring."""
        return Position(self.end - (len(self._rows) - self._gone))

    def add(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        assert position == self.end, f"records behind {position} in a ring that ends at {self.end}"
        self._rows.extend(Stored(Position(at), epoch, record) for at, record in enumerate(records, start=position + 1))
        self._bytes += sum(map(len, records))
        self.end = Position(position + len(records))
        while self._gone < len(self._rows) - len(records) and self._is_full():
            self._bytes -= len(self._rows[self._gone].record)
            self._gone += 1
        if self._gone > _COMPACT and self._gone * 2 > len(self._rows):
            del self._rows[: self._gone]
            self._gone = 0

    def after(self, position: Position, most: int) -> list[Stored] | None:
        """Return at most `most` records after `position`; none = that is the end. None = the ring begins later."""
        if position < self.begin:
            return None
        at = self._gone + (position - self.begin)
        return self._rows[at : at + most]

    def _is_full(self) -> bool:
        return len(self._rows) - self._gone > self._records_max or self._bytes > self._bytes_max


def common_log_end(mine: Sequence[tuple[Epoch, Position]], theirs: Sequence[tuple[Epoch, Position]]) -> Position | None:
    """Return up to where two logs are alike (F1); None = nothing shows that they have anything in common.

    Each is given as the last position of each epoch of which it holds records, newest first.
    """
    held = dict(theirs)
    return next((min(end, held[epoch]) for epoch, end in mine if epoch in held), None)


class Sender:
    """The stream to one follower."""

    def __init__(self, leader: "Replication", offer: Offer) -> None:
        self.member: Final = offer.member
        self._leader = leader
        self._offer = offer
        self._sent = Position(0)
        self._said_at: Mono = leader.clock.mono()
        self._page_rows = FRAME_RECORDS
        self.closed = False

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """Return what to send until the stream is of no use any more. Raises: StokerError `not_active` and others."""
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
        """Note that the follower's disk holds everything up to there. Raises: StokerError `malformed_message`."""
        if self.closed:
            return
        if position > self._sent:
            message = f"{self.member.name} says that it has record {position}, and was sent records up to {self._sent}"
            raise StokerError(refuse("malformed_message", message, "is it of this version?"))
        self._leader.confirmed(self, position)

    def close(self) -> None:
        """End the stream. Safe to call twice."""
        if not self.closed:
            self.closed = True
            self._leader.left(self)

    async def _common(self) -> Position | None:
        """Return where rows begin (F1); None = a backup is needed (F2)."""
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
        """Send records in order (F3)."""
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
            if leader.clock.mono() - self._said_at >= leader.look_s:
                yield self._frame()  # F4; something may have been shipped meanwhile
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
        """Put rows into frames of one epoch each, within their bounds."""
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

    def _frame(self, rows: Sequence[Stored] = ()) -> Records:
        """Return the frame of these rows; of none, a sign of life."""
        leader = self._leader
        return Records(
            leader_epoch=leader.epoch,
            epoch=rows[0].epoch if rows else leader.epoch,
            position=Position(rows[0].position - 1) if rows else self._sent,
            records=tuple(row.record for row in rows),
            acknowledged=leader.acknowledged,
        )

    async def _backup(self) -> AsyncGenerator[Frame, None]:
        """Send a whole backup (F2)."""
        leader = self._leader
        yield Welcome(leader=leader.me, epoch=leader.epoch, position=Position(0), backup_follows=True)
        taking = asyncio.ensure_future(self._take())
        try:
            while not taking.done():
                await asyncio.wait((taking,), timeout=leader.look_s)
                if not taking.done():
                    yield self._frame()
            async for piece in _pieces(taking.result().pieces()):
                yield BackupPiece(piece)
            yield BackupPiece(b"")
        except HistoryFailed as fault:
            message = f"the history can't be copied now: {fault}"
            raise StokerError(refuse("history_unavailable", message, "the follower asks again by itself")) from fault
        finally:
            await self._give_back(taking)

    async def _take(self) -> Backup:
        """Take a backup in turn, after those of other streams and of people. Its taker gives the turn back."""
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

    async def _give_back(self, taking: "asyncio.Future[Backup]") -> None:
        """Close the backup however the stream ended, perhaps while it was being made."""
        if not taking.done():
            taking.cancel()
            await asyncio.wait((taking,))
        if not taking.cancelled() and taking.exception() is None:
            await taking.result().close()
            self._leader.backup_turn.release()


async def _pieces(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Cut and join the same bytes into pieces of PIECE_BYTES."""
    gathered = bytearray()
    async for piece in pieces:
        gathered += piece
        while len(gathered) >= PIECE_BYTES:
            yield bytes(gathered[:PIECE_BYTES])
            del gathered[:PIECE_BYTES]
    if gathered:
        yield bytes(gathered)
