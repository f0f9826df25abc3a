"""What must every SharedLog do? All that an EventLog must, and L9 and L10 of the port. Inherit this, give a `store`."""

import asyncio
from typing import Protocol

import pytest

from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import LogConflict, LogTrimmed, SharedLog
from tests.contracts.event_log import ONE, TWO, EventLogContract, LogStore, everything, numbered, opened, records


class SharedStore(LogStore[SharedLog], Protocol):
    """Where such a log keeps things."""

    look_back_max: int

    async def move_epoch(self, epoch: Epoch) -> None:
        """Another control plane takes the lease."""
        ...


class SharedLogContract(EventLogContract):
    @pytest.fixture
    def store(self) -> SharedStore:
        raise NotImplementedError("the implementation under test")

    async def test_several_processes_have_it_open(self, store: SharedStore) -> None:
        async with opened(store) as (one, _), opened(store) as (two, _):
            await one.append(ONE, Position(0), records(1, 3))
            assert await everything(two) == numbered(1, 3)
            await two.append(TWO, Position(3), records(4, 2))
            assert await everything(one) == numbered(1, 5)

    async def test_l9_whoever_was_replaced_in_the_lease_adds_nothing(self, store: SharedStore) -> None:
        async with opened(store) as (stale, _), opened(store) as (fresh, _):
            await stale.append(ONE, Position(0), records(1, 2))
            await store.move_epoch(TWO)
            with pytest.raises(LogConflict, match=r"epoch"):
                await stale.append(ONE, Position(2), [b"stale"])
            await fresh.append(TWO, Position(2), records(3, 1))
            assert await everything(fresh) == numbered(1, 3)

    async def test_l9_whoever_comes_after_a_lease_that_came_to_nothing_knows_where_to_begin(
        self, store: SharedStore
    ) -> None:
        async with opened(store) as (log, _):
            await log.append(ONE, Position(0), records(1, 2))
        await store.move_epoch(TWO)
        async with opened(store) as (log, end):
            assert (log.floor, end) == (2, 2)

    async def test_l9_of_two_writers_at_one_position_one_gets_through(self, store: SharedStore) -> None:
        async with opened(store) as (one, _), opened(store) as (two, _):
            ends = await asyncio.gather(
                one.append(ONE, Position(0), [b"a", b"b"]),
                two.append(ONE, Position(0), [b"c"]),
                return_exceptions=True,
            )
            assert sorted(type(end).__name__ for end in ends) == ["LogConflict", "NoneType"]
            kept = [record for _, record in await everything(one)]
            assert kept == ([b"a", b"b"] if ends[0] is None else [b"c"])

    @pytest.mark.parametrize("late", [5, 15])
    async def test_l5_an_older_state_that_is_saved_late_is_not_the_newest(self, store: SharedStore, late: int) -> None:
        """Whoever was active before had begun to save it."""
        store.look_back_max = 2
        async with opened(store) as (stale, _), opened(store) as (fresh, _):
            await stale.append(ONE, Position(0), records(1, 30))
            assert await everything(fresh) == numbered(1, 30)
            for position in (10, 20):
                await fresh.save_snapshot(Position(position), [b"at"])
            await stale.save_snapshot(Position(late), [b"at"])
            found = await fresh.snapshot()
            assert found is not None
            assert found.position == 20
            assert len(await everything(fresh, after=20)) == 10

    async def test_l10_following_goes_to_the_end_as_it_is_now(self, store: SharedStore) -> None:
        async with opened(store) as (standby, _):
            async with opened(store) as (active, _):
                await active.append(ONE, Position(0), records(1, 2_500))
            assert await everything(standby) == numbered(1, 2_500)
            assert await everything(standby, after=2_500) == []

    async def test_l10_what_others_have_trimmed_is_told_and_not_skipped(self, store: SharedStore) -> None:
        store.look_back_max = 2
        async with opened(store) as (standby, _), opened(store) as (active, _):
            await active.append(ONE, Position(0), records(1, 30))
            for position in (10, 20):
                await active.save_snapshot(Position(position), [b"at"])
            with pytest.raises(LogTrimmed):
                await everything(standby, after=3)
            assert len(await everything(standby, after=8)) == 22
            found = await standby.snapshot()
            assert found is not None
            assert found.position == 20

    async def test_l10_a_log_that_ends_before_what_was_read_of_it_is_told(self, store: SharedStore) -> None:
        """It was put back: what was read isn't in it, and what comes next is something else."""
        async with opened(store) as (standby, _), opened(store) as (active, _):
            await active.append(ONE, Position(0), records(1, 3))
            with pytest.raises(LogTrimmed):
                await everything(standby, after=4)

    async def test_news_come_at_once_when_there_are_records_already(self, store: SharedStore) -> None:
        async with opened(store) as (standby, _), opened(store) as (active, _):
            await active.append(ONE, Position(0), records(1, 2))
            assert await standby.news(Position(1), 30)
            assert not await standby.news(Position(2), 0.01)

    async def test_news_wake_whoever_waits_for_them(self, store: SharedStore) -> None:
        async with opened(store) as (standby, _), opened(store) as (active, _):
            for end in range(5):
                waiting = asyncio.ensure_future(standby.news(Position(end), 30))
                await asyncio.wait((waiting,), timeout=0.02)
                assert not waiting.done()
                await active.append(ONE, Position(end), records(end + 1, 1))
                async with asyncio.timeout(20):
                    assert await waiting
                assert await everything(standby, after=end) == numbered(end + 1, 1)

    async def test_whoever_waits_for_news_may_give_up_and_ask_again(self, store: SharedStore) -> None:
        async with opened(store) as (standby, _), opened(store) as (active, _):
            for _ in range(5):
                waiting = asyncio.ensure_future(standby.news(Position(0), 30))
                await asyncio.wait((waiting,), timeout=0.01)
                waiting.cancel()
                await asyncio.wait((waiting,))
            await active.append(ONE, Position(0), records(1, 1))
            assert await standby.news(Position(0), 30)
            assert await everything(standby) == numbered(1, 1)
