"""The contracts of the log's ports on the simulated disk, and what only it promises: to say where a commit is."""

import asyncio

import pytest

from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import LogDamaged, LogFailed
from tests.contracts.event_log import ONE, TWO, everything, opened, records
from tests.contracts.replica_log import ReplicaLogContract
from tests.contracts.shared_log import SharedLogContract
from tests.rig.sim_disk import CommitPoint, SimDisk, Trap
from tests.rig.sim_history import SimHistory
from tests.rig.sim_log import SimIncoming, SimLog
from tests.rig.sim_ports import SimClock, SimEntropy
from tests.rig.sim_shared_log import SimSharedLog
from tests.rig.virtual_loop import on_virtual_time, run_virtual


class DiskStore:
    """The contract's store on a simulated disk."""

    def __init__(self, look_back_max: int = 50_000) -> None:
        self.disk = SimDisk()
        self.look_back_max = look_back_max

    def log(self) -> SimLog:
        return SimLog(self.disk, SimClock(), SimEntropy(1), look_back_max=self.look_back_max)

    def other(self) -> "DiskStore":
        return DiskStore()

    def incoming(self) -> SimIncoming:
        return SimIncoming(self.disk, SimClock())

    def history(self) -> SimHistory:
        return SimHistory(self.disk.archive, SimClock())

    def tails(self) -> list[list[tuple[int, bytes]]]:
        return [list(enumerate(tail.records, tail.position + 1)) for tail in self.disk.tails]

    def damage_record(self, position: Position) -> None:
        self.disk.damage_record(position)

    def damage_snapshot(self, position: Position) -> None:
        self.disk.damage_snapshot(position)


class DatabaseStore(DiskStore):
    """The same of a database that several reach."""

    def log(self) -> SimSharedLog:
        return SimSharedLog(self.disk, SimClock(), SimEntropy(1), look_back_max=self.look_back_max)

    async def move_epoch(self, epoch: Epoch) -> None:
        self.disk.move_epoch(epoch)


@on_virtual_time
class TestSimLog(ReplicaLogContract):
    @pytest.fixture
    def store(self) -> DiskStore:
        return DiskStore()


@on_virtual_time
class TestSimLogThatKeepsLittle(ReplicaLogContract):
    @pytest.fixture
    def store(self) -> DiskStore:
        return DiskStore(look_back_max=5)


@on_virtual_time
class TestSimSharedLog(SharedLogContract):
    @pytest.fixture
    def store(self) -> DatabaseStore:
        return DatabaseStore()


@on_virtual_time
class TestFaults:
    async def test_what_was_trimmed_is_refused_and_not_skipped(self) -> None:
        store = DiskStore(look_back_max=2)
        async with opened(store) as (log, _):
            await log.append(ONE, Position(0), records(1, 20))
            for position in (10, 20):
                await log.save_snapshot(Position(position), [b"{}"])
            assert store.disk.first == 9
            with pytest.raises(LogDamaged, match="trimmed"):
                await everything(log, after=7)
            assert len(await everything(log, after=8)) == 12

    async def test_a_full_disk_takes_no_record_and_after_that_nothing_from_this_process(self) -> None:
        store = DiskStore()
        async with opened(store) as (log, _):
            store.disk.full = True
            with pytest.raises(LogFailed):
                await log.append(ONE, Position(0), records(1, 1))
            store.disk.full = False
            with pytest.raises(LogFailed):
                await log.append(ONE, Position(0), records(1, 1))
        async with opened(store) as (log, end):
            assert end == 0
            await log.append(ONE, Position(0), records(1, 1))

    async def test_a_failed_sync_ends_the_log_for_this_process_and_leaves_all_of_the_batch_or_nothing(self) -> None:
        kept: set[int] = set()
        for _ in range(20):
            store = DiskStore()
            async with opened(store) as (log, _):
                await log.append(ONE, Position(0), records(1, 1))
                store.disk.sync_fails = True
                with pytest.raises(LogFailed):
                    await log.append(ONE, Position(1), records(2, 3))
                store.disk.sync_fails = False
                with pytest.raises(LogFailed):
                    await log.append(ONE, Position(1), records(2, 3))
            async with opened(store) as (_, end):
                kept.add(end)
        assert kept <= {1, 4}

    async def test_a_promise_on_a_full_disk_fails_and_can_be_made_once_there_is_room(self) -> None:
        store = DiskStore()
        async with opened(store) as (log, _):
            store.disk.full = True
            with pytest.raises(LogFailed):
                await log.promise(TWO)
            assert log.promised == 0
            store.disk.full = False
            await log.promise(TWO)
            await log.append(TWO, Position(0), records(1, 1))

    async def test_a_cut_that_found_no_room_changes_nothing_and_can_be_done_again(self) -> None:
        store = DiskStore()
        async with opened(store) as (log, _):
            await log.append(ONE, Position(0), records(1, 5))
            store.disk.full = True
            with pytest.raises(LogFailed):
                await log.cut(Position(3))
            assert store.disk.end == 5
            store.disk.full = False
            assert await log.cut(Position(3))
        async with opened(store) as (_, end):
            assert end == 3

    async def test_a_shared_log_that_is_out_of_reach_fails_in_time_and_takes_nothing_more(self) -> None:
        store = DatabaseStore()
        async with opened(store) as (log, _):
            store.disk.cut_off.add("")
            for _ in range(2):
                with pytest.raises(LogFailed):
                    await log.append(ONE, Position(0), records(1, 1))
            with pytest.raises(LogFailed):
                await log.news(Position(0), 1)
            store.disk.cut_off.clear()
            with pytest.raises(LogFailed):
                await log.append(ONE, Position(0), records(1, 1))
        assert store.disk.end == 0


def test_what_a_death_leaves_of_a_batch_that_was_torn_is_recognized_and_dropped() -> None:
    async def story() -> None:
        store = DiskStore()
        store.disk.tears = True
        store.disk.trap = Trap(CommitPoint.BEFORE_WRITE)
        log = store.log()
        await log.open()
        dying = asyncio.ensure_future(log.append(ONE, Position(0), records(1, 4)))
        await store.disk.trap.sprung.wait()
        dying.cancel()
        await asyncio.wait({dying})
        assert store.disk.torn is not None
        async with opened(store) as (_, end):
            assert (end, store.disk.swept) == (0, 1)

    run_virtual(story)


@pytest.mark.parametrize("point", [CommitPoint.IN_PROMISE, CommitPoint.IN_CUT])
def test_a_death_on_the_way_to_another_log_leaves_the_old_one(point: CommitPoint) -> None:
    async def story() -> None:
        store = DiskStore()
        store.disk.trap = Trap(point)
        log = store.log()
        await log.open()
        await log.append(ONE, Position(0), records(1, 5))
        work = log.promise(TWO) if point is CommitPoint.IN_PROMISE else log.cut(Position(3))
        dying = asyncio.ensure_future(work)
        await store.disk.trap.sprung.wait()
        dying.cancel()
        await asyncio.wait({dying})
        async with opened(store) as (again, end):
            assert (end, again.promised) == (5, 0)

    run_virtual(story)


@pytest.mark.parametrize(
    ("point", "kept"),
    [(CommitPoint.BEFORE_WRITE, 1), (CommitPoint.BEFORE_ANSWER, 2), (CommitPoint.BETWEEN_BATCHES, 2)],
)
def test_a_process_killed_at_a_point_of_its_second_commit_leaves_what_that_point_says(
    point: CommitPoint, kept: int
) -> None:
    async def story() -> None:
        store = DiskStore()
        store.disk.trap = Trap(point, 2)
        log = store.log()
        await log.open()
        await log.append(ONE, Position(0), records(1, 1))
        dying = asyncio.ensure_future(log.append(ONE, Position(1), records(2, 1)))
        await store.disk.trap.sprung.wait()
        dying.cancel()
        await asyncio.wait({dying})
        assert store.disk.end == kept

    run_virtual(story)
