"""The EventLog contract on the simulated disk, and what only it promises: to say where a commit is."""

import asyncio

import pytest

from stoker.brain.domain.ids import Position
from stoker.ports import LogDamaged, LogFailed
from tests.contracts.event_log import ONE, EventLogContract, everything, opened, records
from tests.rig.sim_log import CommitPoint, SimDisk, SimLog, Trap
from tests.rig.virtual_loop import on_virtual_time, run_virtual
from tests.rig.world import SimClock, SimEntropy


class DiskStore:
    """The contract's store on a simulated disk."""

    def __init__(self, look_back_max: int = 50_000) -> None:
        self.disk = SimDisk()
        self._look_back_max = look_back_max

    def log(self) -> SimLog:
        return SimLog(self.disk, SimClock(), SimEntropy(1), look_back_max=self._look_back_max)

    def damage_record(self, position: Position) -> None:
        self.disk.damage_record(position)

    def damage_snapshot(self, position: Position) -> None:
        self.disk.damage_snapshot(position)


@on_virtual_time
class TestSimLog(EventLogContract):
    @pytest.fixture
    def store(self) -> DiskStore:
        return DiskStore()


@on_virtual_time
class TestSimLogThatKeepsLittle(EventLogContract):
    @pytest.fixture
    def store(self) -> DiskStore:
        return DiskStore(look_back_max=5)


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
