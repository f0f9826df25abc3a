"""What must every EventLog do? Inherit this, give a `store`, and the rules run on it.

A store outlives the logs opened on it, as a data folder outlives processes: `store.log()` is the next process. Tests
cite the rules of the port (L1 to L5); what only a real disk can show is tested beside the adapter.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import pytest

from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import EventLog, LogConflict, LogDamaged, LogFailed

ONE = Epoch(1)
TWO = Epoch(2)


Log = TypeVar("Log", bound=EventLog)
Log_co = TypeVar("Log_co", bound=EventLog, covariant=True)


class LogStore(Protocol[Log_co]):
    """Where a log keeps things."""

    def log(self) -> Log_co:
        """A log on this store that nobody has opened yet."""
        ...

    def damage_record(self, position: Position) -> None:
        """Change one byte of a stored record. The store isn't open."""
        ...

    def damage_snapshot(self, position: Position) -> None:
        """Change one byte of a stored snapshot. The store isn't open."""
        ...


@asynccontextmanager
async def opened(store: LogStore[Log]) -> AsyncIterator[tuple[Log, Position]]:
    log = store.log()
    try:
        yield log, await log.open()
    finally:
        await log.close()


async def everything(log: EventLog, after: int = 0) -> list[tuple[int, bytes]]:
    return [(int(position), record) async for position, record in log.follow(Position(after))]


def records(first: int, count: int) -> list[bytes]:
    return [f'{{"n":{n}}}'.encode() for n in range(first, first + count)]


def numbered(first: int, count: int) -> list[tuple[int, bytes]]:
    return list(enumerate(records(first, count), start=first))


class EventLogContract:
    @pytest.fixture
    def store(self) -> LogStore[EventLog]:
        raise NotImplementedError("the implementation under test")

    async def test_an_empty_store_opens_at_zero_and_has_nothing_to_tell(self, store: LogStore[EventLog]) -> None:
        async with opened(store) as (log, end):
            assert end == 0
            assert await everything(log) == []
            assert await log.snapshot() is None

    async def test_what_was_appended_is_followed_in_order_without_gaps(self, store: LogStore[EventLog]) -> None:
        async with opened(store) as (log, _):
            await log.append(ONE, Position(0), records(1, 3))
            await log.append(ONE, Position(3), records(4, 2))
            assert await everything(log) == numbered(1, 5)

    async def test_a_long_log_is_followed_whole(self, store: LogStore[EventLog]) -> None:
        async with opened(store) as (log, _):
            await log.append(ONE, Position(0), records(1, 2_500))
            assert await everything(log) == numbered(1, 2_500)

    async def test_following_begins_after_the_position_asked_for(self, store: LogStore[EventLog]) -> None:
        async with opened(store) as (log, _):
            await log.append(ONE, Position(0), records(1, 5))
            assert await everything(log, after=3) == numbered(4, 2)
            assert await everything(log, after=5) == []

    async def test_following_ends_at_the_end_of_the_moment_it_began(self, store: LogStore[EventLog]) -> None:
        async with opened(store) as (log, _):
            await log.append(ONE, Position(0), records(1, 2))
            seen: list[int] = []
            async for position, _ in log.follow(Position(0)):
                seen.append(position)
                if len(seen) == 1:
                    await log.append(ONE, Position(2), records(3, 2))
            assert seen == [1, 2]

    async def test_acknowledged_records_are_there_for_the_next_process(self, store: LogStore[EventLog]) -> None:
        async with opened(store) as (log, _):
            await log.append(ONE, Position(0), records(1, 3))
        async with opened(store) as (log, end):
            assert end == 3
            assert await everything(log) == numbered(1, 3)

    @pytest.mark.parametrize("record", [b"", b"\n", b"\x00\xff", b'{"t":"\xc3\xbc"}', b"x" * 3_000_000])
    async def test_a_record_is_kept_byte_for_byte(self, store: LogStore[EventLog], record: bytes) -> None:
        async with opened(store) as (log, _):
            await log.append(ONE, Position(0), [record])
        async with opened(store) as (log, _):
            assert await everything(log) == [(1, record)]

    @pytest.mark.parametrize("position", [0, 1, 3, 99])
    async def test_l2_an_append_anywhere_but_at_the_end_conflicts(
        self, store: LogStore[EventLog], position: int
    ) -> None:
        async with opened(store) as (log, _):
            await log.append(ONE, Position(0), records(1, 2))
            with pytest.raises(LogConflict):
                await log.append(ONE, Position(position), [b"{}"])
        async with opened(store) as (log, end):
            assert end == 2
            assert await everything(log) == numbered(1, 2)

    async def test_l2_an_older_epoch_conflicts_also_after_a_restart(self, store: LogStore[EventLog]) -> None:
        async with opened(store) as (log, _):
            await log.append(ONE, Position(0), [b"{}"])
            await log.append(TWO, Position(1), [b"{}"])
        async with opened(store) as (log, end):
            assert end == 2
            with pytest.raises(LogConflict):
                await log.append(ONE, Position(2), [b"{}"])

    async def test_l2_the_same_and_a_newer_epoch_go_on(self, store: LogStore[EventLog]) -> None:
        async with opened(store) as (log, _):
            await log.append(ONE, Position(0), [b"{}"])
            await log.append(ONE, Position(1), [b"{}"])
            await log.append(Epoch(7), Position(2), [b"{}"])
            assert len(await everything(log)) == 3

    async def test_l2_the_floor_is_the_epoch_of_the_newest_record(self, store: LogStore[EventLog]) -> None:
        async with opened(store) as (log, _):
            assert log.floor == 0
            await log.append(TWO, Position(0), [b"{}"])
        async with opened(store) as (log, _):
            assert log.floor == 2

    async def test_l3_after_a_conflict_nothing_more_is_accepted(self, store: LogStore[EventLog]) -> None:
        async with opened(store) as (log, _):
            with pytest.raises(LogConflict):
                await log.append(ONE, Position(5), [b"{}"])
            with pytest.raises(LogConflict):
                await log.append(ONE, Position(0), [b"{}"])
        async with opened(store) as (_, end):
            assert end == 0

    async def test_a_closed_log_accepts_nothing(self, store: LogStore[EventLog]) -> None:
        log = store.log()
        await log.open()
        await log.close()
        await log.close()  # twice is harmless
        with pytest.raises((LogFailed, RuntimeError)):
            await log.append(ONE, Position(0), [b"{}"])

    async def test_appends_issued_in_order_are_kept_in_order(self, store: LogStore[EventLog]) -> None:
        async with opened(store) as (log, _):
            await asyncio.gather(*(log.append(ONE, Position(n), records(n + 1, 1)) for n in range(50)))
            assert await everything(log) == numbered(1, 50)

    async def test_twenty_appenders_of_one_log_never_see_it_locked(self, store: LogStore[EventLog]) -> None:
        """faults.md 130: `database is locked` reached users."""
        async with opened(store) as (log, _):
            turn, end = asyncio.Lock(), itertools.count()

            async def appender() -> None:
                for _ in range(10):
                    async with turn:
                        await log.append(ONE, Position(next(end)), [b"{}"])

            readers = [everything(log) for _ in range(5)]
            await asyncio.gather(*(appender() for _ in range(20)), *readers)
            assert len(await everything(log)) == 200

    @pytest.mark.parametrize("chunks", [[b"{}"], [b'{"a":1}', b"", b"\n", b"\xff\x00"], [], [b"x" * 3_000_000, b"y"]])
    async def test_l5_a_snapshot_is_answered_as_it_was_saved(
        self, store: LogStore[EventLog], chunks: list[bytes]
    ) -> None:
        async with opened(store) as (log, _):
            await log.append(ONE, Position(0), records(1, 3))
            await log.save_snapshot(Position(2), chunks)
        async with opened(store) as (log, end):
            found = await log.snapshot()
            assert end == 3
            assert found is not None
            assert (found.position, list(found.chunks)) == (2, chunks)
            assert await everything(log, after=2) == numbered(3, 1)

    async def test_l5_the_newest_snapshot_is_the_one_answered(self, store: LogStore[EventLog]) -> None:
        async with opened(store) as (log, _):
            await log.append(ONE, Position(0), records(1, 9))
            for position in (3, 5, 9):
                await log.save_snapshot(Position(position), [b"at", str(position).encode()])
            found = await log.snapshot()
            assert found is not None
            assert (found.position, list(found.chunks)) == (9, [b"at", b"9"])

    async def test_l5_a_damaged_newest_snapshot_gives_way_to_the_one_before(self, store: LogStore[EventLog]) -> None:
        async with opened(store) as (log, _):
            await log.append(ONE, Position(0), records(1, 9))
            await log.save_snapshot(Position(3), [b"older"])
            await log.save_snapshot(Position(6), [b"newer"])
        store.damage_snapshot(Position(6))
        async with opened(store) as (log, _):
            found = await log.snapshot()
            assert found is not None
            assert (found.position, list(found.chunks)) == (3, [b"older"])
            assert await everything(log, after=3) == numbered(4, 6)

    async def test_one_changed_byte_in_a_record_is_refused_and_the_message_says_where(
        self, store: LogStore[EventLog]
    ) -> None:
        """faults.md 125: unreadable records were dropped in silence."""
        async with opened(store) as (log, _):
            await log.append(ONE, Position(0), records(1, 5))
        store.damage_record(Position(3))
        with pytest.raises(LogDamaged, match=r"record 3\b.*recover"):
            async with opened(store) as (log, _):
                await everything(log)

    async def test_twenty_rounds_of_snapshot_compaction_and_restart_lose_nothing(
        self, store: LogStore[EventLog]
    ) -> None:
        """faults.md 124: a controller couldn't restart after its log was compacted."""
        for turn in range(20):
            async with opened(store) as (log, end):
                found = await log.snapshot()
                kept = b"".join(found.chunks) if found is not None else b""
                after = found.position if found is not None else 0
                replayed = kept + b"".join(record for _, record in await everything(log, after=after))
                assert replayed == b"".join(records(1, turn * 30))
                await log.append(Epoch(turn + 1), end, records(end + 1, 30))
                middle = Position(end + 20)
                await log.save_snapshot(middle, [b"".join(records(1, middle))])
