"""What must every ReplicaLog do? All that an EventLog must, and L6 to L8 of the port. Inherit this, give a `store`."""

from collections.abc import Sequence
from typing import Protocol

import pytest

from stoker.brain.domain.ids import Epoch, NodeName, Position
from stoker.brain.domain.units import Instant
from stoker.brain.domain.usage import CapacityChange
from stoker.ports import (
    EPOCHS_MAX,
    History,
    HistoryBatch,
    HistoryMark,
    Incoming,
    LogBeginning,
    LogConflict,
    LogFailed,
    LogTrimmed,
    ReplicaLog,
    Stored,
)
from tests.contracts.event_log import ONE, TWO, EventLogContract, LogStore, everything, numbered, opened, records

THREE = Epoch(3)
CLUSTER = "0190a5f0-0000-7000-8000-000000000001"


class ReplicaStore(LogStore[ReplicaLog], Protocol):
    """Where such a log keeps things, beside a history."""

    look_back_max: int

    def other(self) -> "ReplicaStore":
        """One that has nothing to do with this one."""
        ...

    def incoming(self) -> Incoming: ...
    def history(self) -> History: ...
    def tails(self) -> list[list[tuple[int, bytes]]]:
        """What was set aside, the oldest cut first: positions and records."""
        ...


async def extended(store: ReplicaStore, epoch: Epoch, count: int, *snapshots: int) -> None:
    """The next process adds records, and takes snapshots."""
    async with opened(store) as (log, end):
        await log.append(epoch, end, records(end + 1, count))
        for position in snapshots:
            await log.save_snapshot(Position(position), [b"at", str(position).encode()])


async def cut(store: ReplicaStore, position: int) -> str:
    log = store.log()
    await log.open()
    try:
        return await log.cut(Position(position))
    finally:
        await log.close()


async def found(store: ReplicaStore) -> tuple[int, int, list[tuple[int, bytes]], list[tuple[Epoch, Position]]]:
    """End, newest snapshot, what follows it, and the ends of epochs, as the next process finds them."""
    log = store.log()
    end = await log.open()
    try:
        kept = await log.snapshot()
        after = kept.position if kept else 0
        return end, after, await everything(log, after=after), await log.ends()
    finally:
        await log.close()


async def noted(store: ReplicaStore, first: int, last: int) -> None:
    """The history holds a fact of each of these positions."""
    history = store.history()
    try:
        await history.open()
        offers = [
            CapacityChange(node=NodeName("n"), at=Instant(at), gpus=1, position=Position(at))
            for at in range(first, last + 1)
        ]
        mark = HistoryMark(cluster_id=CLUSTER, position=Position(last))
        await history.record(HistoryBatch(mark=mark, offers=offers))
    finally:
        await history.close()


async def history_reaches(store: ReplicaStore) -> tuple[HistoryMark, list[int]]:
    """The history's mark, and of which positions it holds facts."""
    history = store.history()
    try:
        return await history.open(), [offer.position for offer in await history.offers(Instant(0), Instant(1_000))]
    finally:
        await history.close()


async def installed(store: ReplicaStore, epoch: Epoch, position: int, chunks: Sequence[bytes] = (b"state",)) -> str:
    """Another log, whose history reaches three facts beyond it, comes in and is installed."""
    other = store.other()
    await noted(other, position - 5, position + 3)
    log = store.log()
    await log.open()
    try:
        incoming = store.incoming()
        await incoming.begin()
        history = other.history()
        await history.open()
        copy = await history.copy()
        while piece := await copy.read():
            await incoming.write(piece)
        await copy.close()
        await history.close()
        folder = await incoming.finish(LogBeginning(CLUSTER, (epoch, Position(position)), chunks, epoch))
        return await log.install(epoch, Position(position), folder)
    finally:
        await log.close()


class ReplicaLogContract(EventLogContract):
    @pytest.fixture
    def store(self) -> ReplicaStore:
        raise NotImplementedError("the implementation under test")

    # --- who it is, and what it promised ----------------------------------------------------------------------------

    async def test_its_uid_is_the_same_in_every_process(self, store: ReplicaStore) -> None:
        seen: list[str] = []
        for _ in range(2):
            async with opened(store) as (log, _):
                seen.append(log.uid)
        assert seen[0] == seen[1]
        assert seen[0]

    async def test_l6_what_was_promised_refuses_older_epochs_also_after_a_restart(self, store: ReplicaStore) -> None:
        await extended(store, ONE, 2)
        async with opened(store) as (log, _):
            assert log.promised == 0
            await log.promise(THREE)
            assert log.promised == 3
        for _ in range(2):
            async with opened(store) as (log, end):
                assert (log.promised, log.floor) == (3, 3)
                with pytest.raises(LogConflict, match=r"epoch 3\b"):
                    await log.append(TWO, end, [b"{}"])
        await extended(store, THREE, 1)
        assert (await found(store))[0] == 3

    async def test_l6_a_promise_that_came_to_nothing_can_be_withdrawn(self, store: ReplicaStore) -> None:
        await extended(store, ONE, 2)
        async with opened(store) as (log, _):
            await log.promise(THREE)
            await log.promise(TWO)
            await log.append(TWO, Position(2), records(3, 1))
        async with opened(store) as (log, end):
            assert (log.promised, end) == (2, 3)

    async def test_l6_no_promise_lets_an_epoch_below_the_newest_record_in(self, store: ReplicaStore) -> None:
        await extended(store, TWO, 2)
        async with opened(store) as (log, end):
            await log.promise(ONE)
            with pytest.raises(LogConflict):
                await log.append(ONE, end, [b"{}"])

    # --- what a follower is sent ------------------------------------------------------------------------------------

    async def test_records_are_read_in_pages_with_their_epochs(self, store: ReplicaStore) -> None:
        await extended(store, ONE, 3)
        await extended(store, TWO, 2)
        async with opened(store) as (log, _):
            rows = [Stored(Position(at), ONE if at <= 3 else TWO, record) for at, record in numbered(1, 5)]
            assert await log.after(Position(0), 2) == rows[:2]
            assert await log.after(Position(2), 10) == rows[2:]
            assert await log.after(Position(5), 10) == []

    async def test_a_page_sees_what_was_appended_just_now(self, store: ReplicaStore) -> None:
        async with opened(store) as (log, _):
            for end in range(5):
                await log.append(ONE, Position(end), records(end + 1, 1))
                assert await log.after(Position(end), 10) == [Stored(Position(end + 1), ONE, records(end + 1, 1)[0])]

    async def test_what_was_trimmed_is_told_and_not_skipped(self, store: ReplicaStore) -> None:
        store.look_back_max = 2
        await extended(store, ONE, 30, 10, 20)
        async with opened(store) as (log, _):
            with pytest.raises(LogTrimmed):
                await log.after(Position(7), 10)
            assert [row.position for row in await log.after(Position(8), 3)] == [9, 10, 11]

    async def test_the_ends_of_epochs_are_known_newest_first(self, store: ReplicaStore) -> None:
        async with opened(store) as (log, _):
            assert await log.ends() == []
        await extended(store, ONE, 3)
        await extended(store, THREE, 2)
        async with opened(store) as (log, end):
            assert await log.ends() == [(3, 5), (1, 3)]
            await log.append(Epoch(7), end, records(6, 1))
            await log.append(Epoch(7), Position(6), records(7, 1))
            assert await log.ends() == [(7, 7), (3, 5), (1, 3)]

    async def test_the_ends_of_epochs_reach_back_to_the_record_before_the_oldest(self, store: ReplicaStore) -> None:
        store.look_back_max = 0
        await extended(store, ONE, 5)
        await extended(store, TWO, 10)
        await extended(store, THREE, 10, 15, 20)
        for _ in range(2):
            assert (await found(store))[3] == [(3, 25), (2, 15)]

    async def test_the_ends_of_epochs_have_a_bound(self, store: ReplicaStore) -> None:
        async with opened(store) as (log, _):
            for at in range(EPOCHS_MAX + 10):
                await log.append(Epoch(at + 1), Position(at), records(at + 1, 1))
            newest = [(Epoch(at), Position(at)) for at in range(EPOCHS_MAX + 10, 10, -1)]
            assert await log.ends() == newest
        assert (await found(store))[3] == newest

    # --- cutting ----------------------------------------------------------------------------------------------------

    async def test_l7_a_cut_log_ends_there_and_goes_on_as_if_nothing_had_come(self, store: ReplicaStore) -> None:
        await extended(store, ONE, 5)
        await extended(store, TWO, 4)
        assert await cut(store, 6)
        assert await found(store) == (6, 0, numbered(1, 6), [(2, 6), (1, 5)])
        async with opened(store) as (log, end):
            await log.append(THREE, end, [b"other"])
        assert await found(store) == (7, 0, [*numbered(1, 6), (7, b"other")], [(3, 7), (2, 6), (1, 5)])
        assert store.tails() == [numbered(7, 3)]

    async def test_l7_a_cut_to_the_end_of_an_older_epoch_lets_that_epoch_go_on(self, store: ReplicaStore) -> None:
        await extended(store, ONE, 5)
        await extended(store, THREE, 4)
        await cut(store, 5)
        await extended(store, TWO, 1)
        assert (await found(store))[3] == [(2, 6), (1, 5)]

    async def test_l7_snapshots_of_what_was_cut_off_are_not_answered(self, store: ReplicaStore) -> None:
        await extended(store, ONE, 9, 3, 8)
        await cut(store, 7)
        assert await found(store) == (7, 3, numbered(4, 4), [(1, 7)])

    async def test_l7_a_cut_right_behind_a_snapshot_leaves_nothing_but_that(self, store: ReplicaStore) -> None:
        store.look_back_max = 0
        await extended(store, ONE, 9)
        await extended(store, TWO, 9, 9, 12)
        await cut(store, 9)
        assert await found(store) == (9, 9, [], [(1, 9)])
        await extended(store, ONE, 1)
        assert await found(store) == (10, 9, numbered(10, 1), [(1, 10)])

    @pytest.mark.parametrize("position", [9, 10])
    async def test_l7_what_cannot_be_had_any_more_is_refused_and_nothing_changes(
        self, store: ReplicaStore, position: int
    ) -> None:
        store.look_back_max = 0
        await extended(store, ONE, 20, 10, 15)
        before = await found(store)
        if position == 10:
            store.damage_snapshot(Position(10))
        with pytest.raises(LogTrimmed):
            await cut(store, position)
        assert await found(store) == before
        assert store.tails() == []

    @pytest.mark.parametrize("position", [5, 6])
    async def test_l7_where_nothing_comes_after_nothing_is_kept(self, store: ReplicaStore, position: int) -> None:
        await extended(store, ONE, 5)
        assert await cut(store, position) == ""
        assert (await found(store))[0] == 5
        assert store.tails() == []

    async def test_l7_a_log_that_was_cut_takes_nothing_more_from_this_process(self, store: ReplicaStore) -> None:
        await extended(store, ONE, 9)
        async with opened(store) as (log, _):
            await log.cut(Position(5))
            for position in (5, 9):
                with pytest.raises(LogFailed):
                    await log.append(ONE, Position(position), [b"{}"])
            with pytest.raises(Exception, match="anew"):
                await log.save_snapshot(Position(9), [b"{}"])
        assert (await found(store))[:2] == (5, 0)

    async def test_l7_the_promise_outlives_the_cut(self, store: ReplicaStore) -> None:
        await extended(store, ONE, 5)
        async with opened(store) as (log, _):
            await log.promise(TWO)
            await log.cut(Position(3))
        async with opened(store) as (log, _):
            assert log.promised == 2

    async def test_l7_the_history_is_put_back_too(self, store: ReplicaStore) -> None:
        await extended(store, ONE, 9)
        await noted(store, 1, 8)
        await cut(store, 6)
        async with opened(store):
            mark, known = await history_reaches(store)
        assert (mark, known) == (HistoryMark(cluster_id=CLUSTER, position=Position(6)), [1, 2, 3, 4, 5, 6])

    async def test_l7_a_history_that_ends_before_the_cut_stays_as_it_is(self, store: ReplicaStore) -> None:
        await extended(store, ONE, 9)
        await noted(store, 1, 4)
        await cut(store, 6)
        async with opened(store):
            assert await history_reaches(store) == (HistoryMark(cluster_id=CLUSTER, position=Position(4)), [1, 2, 3, 4])

    async def test_l7_only_so_many_tails_are_kept(self, store: ReplicaStore) -> None:
        for turn in range(25):
            await extended(store, Epoch(turn + 1), 2)
            await cut(store, 1)
        tails = store.tails()
        assert len(tails) == 20
        assert tails[-1] == numbered(2, 2)

    # --- becoming another log ---------------------------------------------------------------------------------------

    async def test_l8_an_installed_log_goes_on_behind_its_snapshot(self, store: ReplicaStore) -> None:
        await extended(store, ONE, 9, 5)
        assert await installed(store, TWO, 100, [b"state", b"more"])
        for _ in range(2):
            assert await found(store) == (100, 100, [], [(2, 100)])
        async with opened(store) as (log, _):
            kept = await log.snapshot()
            assert kept is not None
            assert list(kept.chunks) == [b"state", b"more"]
        await extended(store, TWO, 2)
        assert await found(store) == (102, 100, numbered(101, 2), [(2, 102)])

    async def test_l8_an_installed_log_knows_under_which_epoch_it_begins(self, store: ReplicaStore) -> None:
        await installed(store, TWO, 100)
        async with opened(store) as (log, end):
            with pytest.raises(LogConflict):
                await log.append(ONE, end, [b"{}"])

    async def test_l8_its_history_comes_along_and_reaches_no_further(self, store: ReplicaStore) -> None:
        await extended(store, ONE, 9)
        await noted(store, 1, 9)
        await installed(store, TWO, 100)
        async with opened(store):
            mark, known = await history_reaches(store)
        assert mark == HistoryMark(cluster_id=CLUSTER, position=Position(100))
        assert known == [95, 96, 97, 98, 99, 100]

    async def test_l8_uid_and_promise_stay(self, store: ReplicaStore) -> None:
        await extended(store, ONE, 9)
        async with opened(store) as (log, _):
            uid = log.uid
            await log.promise(THREE)
        await installed(store, TWO, 100)
        async with opened(store) as (log, end):
            assert (log.uid, log.promised) == (uid, 3)
            with pytest.raises(LogConflict):
                await log.append(TWO, end, [b"{}"])

    async def test_l8_in_place_of_an_empty_log_nothing_is_kept_aside(self, store: ReplicaStore) -> None:
        assert await installed(store, TWO, 100) == ""
        assert (await found(store))[0] == 100

    async def test_l8_what_came_in_and_was_dropped_changes_nothing(self, store: ReplicaStore) -> None:
        await extended(store, ONE, 9)
        incoming = store.incoming()
        await incoming.begin()
        await incoming.write(b"half")
        await incoming.drop()
        await incoming.drop()
        assert (await found(store))[0] == 9

    async def test_l8_a_log_is_replaced_again_and_again(self, store: ReplicaStore) -> None:
        for turn in range(1, 5):
            await installed(store, Epoch(turn), turn * 100, [str(turn).encode()])
            assert await found(store) == (turn * 100, turn * 100, [], [(turn, turn * 100)])
            await extended(store, Epoch(turn), 5)
        assert (await found(store))[0] == 405
