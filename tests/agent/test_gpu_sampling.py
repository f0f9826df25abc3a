"""Rules S1 to S3 of `agent/gpu_sampling.py`, on virtual time."""

import asyncio
from collections.abc import Collection, Sequence

import pytest

from stoker.agent.gpu_monitor import NothingToAsk
from stoker.agent.gpu_sampling import FirstThatAnswers, OneAtATime, SeldomLooks
from stoker.brain.domain.gpu_telemetry import GpuLook, GpuSample
from stoker.brain.domain.ids import GpuUuid
from tests.agent.twins import on_virtual_time
from tests.rig.sim_ports import SimClock

TAKES_S = 0.5


class Driver:
    """Two GPUs, whose memory in use counts the looks."""

    def __init__(self, fault: OSError | None = None) -> None:
        self.fault = fault
        self.asked: list[tuple[float, Sequence[int] | None]] = []
        self.asking = 0

    async def __call__(self, indexes: Sequence[int] | None, held: Collection[GpuUuid]) -> GpuLook:
        self.asked.append((SimClock().mono() - 77.0, indexes))
        self.asking += 1
        assert self.asking == 1, "one at a time"
        await SimClock().sleep(TAKES_S)
        self.asking -= 1
        if self.fault is not None:
            raise self.fault
        used = len(self.asked)
        return GpuLook(samples=tuple(GpuSample(uuid=GpuUuid(f"GPU-{i}"), index=i, memory_used_mb=used) for i in (0, 1)))


def used(look: GpuLook) -> list[int | None]:
    return [sample.memory_used_mb for sample in look.samples]


@on_virtual_time
async def test_s1_a_driver_is_asked_one_question_at_a_time() -> None:
    driver = Driver()
    sample = OneAtATime(driver)
    await asyncio.gather(*[sample((0,), ()) for _ in range(3)])
    assert [at for at, _ in driver.asked] == [0.0, 0.5, 1.0]


@on_virtual_time
async def test_s2_no_look_begins_too_soon_and_all_who_ask_meanwhile_share_the_next() -> None:
    driver = Driver()
    sample = SeldomLooks(driver, SimClock(), 5.0)
    assert used(await sample(None, ())) == [1, 1]
    looks = await asyncio.gather(*[sample((i,), ()) for i in (0, 1, 0)])
    assert [used(look) for look in looks] == [[2], [2], [2]], "each saw what was after it asked"
    assert driver.asked == [(0.0, None), (5.0, None)]
    await SimClock().sleep(20.0)
    assert used(await sample((1,), ())) == [3]
    assert driver.asked[-1][0] == 25.5, "who asks seldom doesn't wait"


@on_virtual_time
async def test_s2_one_who_asks_during_a_look_waits_for_the_next() -> None:
    """What it asks about may have ended after that look began."""
    driver = Driver()
    sample = SeldomLooks(driver, SimClock(), 5.0)
    first = asyncio.ensure_future(sample(None, ()))
    await SimClock().sleep(0.1)
    assert used(await sample((0,), ())) == [2]
    assert used(await first) == [1, 1]


@on_virtual_time
async def test_s2_a_look_that_fails_is_nobodys_answer() -> None:
    driver = Driver(OSError("exit 9"))
    sample = SeldomLooks(driver, SimClock(), 5.0)
    told = await asyncio.gather(sample(None, ()), sample((0,), ()), return_exceptions=True)
    assert [str(each) for each in told] == ["exit 9", "exit 9"]
    driver.fault = None
    assert used(await sample((0,), ())) == [3]
    assert [at for at, _ in driver.asked] == [0.0, 5.0, 10.0]


@on_virtual_time
async def test_s3_the_second_is_asked_where_the_first_has_nothing_or_refuses_and_not_where_it_hangs() -> None:
    second = Driver()
    for fault in (NothingToAsk("no library"), OSError("Driver Not Loaded")):
        assert len((await FirstThatAnswers(Driver(fault), second, TimeoutError)(None, ())).samples) == 2
    with pytest.raises(TimeoutError):
        await FirstThatAnswers(Driver(TimeoutError("hangs")), second, TimeoutError)(None, ())
    assert len(second.asked) == 2
    with pytest.raises(OSError, match="Driver Not Loaded"):
        await FirstThatAnswers(Driver(OSError("Driver Not Loaded")), Driver(NothingToAsk("none")), TimeoutError)(
            None, ()
        )
