"""The Lease contract on simulated shared storage, and its faults: slow, cut off, lost and late on purpose."""

import asyncio

import pytest

from stoker.ports import LeaseUnreachable
from tests.contracts.lease import LeaseContract, lease_record
from tests.rig.process import SimProcess
from tests.rig.sim_lease import TIMEOUT_S, SharedPlace, SimLease
from tests.rig.sim_ports import SimClock, SimEntropy
from tests.rig.virtual_loop import on_virtual_time


class Shared:
    """The contract's place on simulated storage."""

    def __init__(self) -> None:
        self.storage, self._entropy = SharedPlace(), SimEntropy(1)

    def lease(self, who: str = "") -> SimLease:
        return SimLease(self.storage, SimClock(), self._entropy, who=who)

    def damage(self) -> None:
        self.storage.damaged = self.storage.newest


@on_virtual_time
class TestSimLease(LeaseContract):
    @pytest.fixture
    def place(self) -> Shared:
        return Shared()


async def unreachable(lease: SimLease, version: int) -> float:
    """Seconds waited."""
    began = asyncio.get_running_loop().time()
    with pytest.raises(LeaseUnreachable):
        await lease.put(lease_record(version))
    return asyncio.get_running_loop().time() - began


@on_virtual_time
class TestFaults:
    async def test_z5_who_is_cut_off_waits_no_longer_than_promised_and_others_dont_notice(self) -> None:
        shared = Shared()
        shared.storage.cut.add("a")
        assert await unreachable(shared.lease("a"), 1) <= TIMEOUT_S
        assert await shared.lease("b").read() is None
        assert await shared.lease("b").put(lease_record(1)) is True

    async def test_z4_an_answer_that_was_lost_leaves_the_version_behind(self) -> None:
        shared = Shared()
        shared.storage.lossy = 1.0
        await unreachable(shared.lease(), 1)
        shared.storage.lossy = 0.0
        assert await shared.lease().read() == lease_record(1)
        assert await shared.lease().put(lease_record(1)) is True

    async def test_a_late_write_takes_a_place_that_is_free_and_none_that_is_taken(self) -> None:
        shared = Shared()
        shared.storage.late = 1.0
        await unreachable(shared.lease(), 1)
        shared.storage.late = 0.0
        assert await shared.lease().put(lease_record(1, "quicker", by="b")) is True
        await asyncio.sleep(10)
        assert await shared.lease().read() == lease_record(1, "quicker", by="b")
        shared.storage.late = 1.0
        await unreachable(shared.lease(), 2)
        await asyncio.sleep(10)
        assert await shared.lease().read() == lease_record(2)

    async def test_z3_who_is_stopped_within_a_write_undoes_nothing_when_it_goes_on(self) -> None:
        shared, process = Shared(), SimProcess("a")
        putting = process.visit(shared.lease().put(lease_record(1)))
        await asyncio.sleep(0.0001)
        process.stop()
        await asyncio.sleep(5)
        assert await shared.lease().put(lease_record(1, "quicker", by="b")) is True
        process.go_on()
        assert await putting is False
        assert await shared.lease().read() == lease_record(1, "quicker", by="b")
