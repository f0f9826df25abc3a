"""A simulated process that is stopped stands still in every part, and goes on where it stood."""

import asyncio
from contextlib import suppress

import pytest

from tests.rig.process import SimProcess, within
from tests.rig.sim_ports import SimClock
from tests.rig.virtual_loop import Deadlock, on_virtual_time, run_virtual


@on_virtual_time
class TestWaiting:
    async def test_a_wait_for_less_than_the_clock_can_tell_takes_time_all_the_same(self) -> None:
        """Two control planes stood still so after 4.5 hours, where a slow clock has a bit more than the loop."""
        loop, clock = asyncio.get_running_loop(), SimClock(rate=0.9916470971598467)
        await asyncio.sleep(16385.1774453037)
        began_s = loop.time()
        due = clock.mono() + 1.8189894035458565e-12
        assert began_s + (due - clock.mono()) == began_s
        for _ in range(100_000):
            with suppress(TimeoutError):
                async with asyncio.timeout(due - clock.mono()):
                    await asyncio.Event().wait()
            if clock.mono() >= due:
                break
        assert began_s < loop.time() < began_s + 1e-9, "time stands still"


@on_virtual_time
class TestStopping:
    async def test_timers_timeouts_and_answers_of_a_stopped_process_wait_until_it_goes_on(self) -> None:
        process, done = SimProcess("a"), asyncio.Event()
        seen: list[tuple[str, float]] = []
        loop = asyncio.get_running_loop()

        async def sleeps() -> None:
            await asyncio.sleep(5)
            seen.append(("slept", loop.time()))

        async def times_out() -> None:
            try:
                async with asyncio.timeout(3):
                    await asyncio.Event().wait()
            except TimeoutError:
                seen.append(("timed out", loop.time()))

        async def waits() -> None:
            await done.wait()
            seen.append(("heard", loop.time()))

        for work in (sleeps(), times_out(), waits()):
            process.start(work)
        await asyncio.sleep(1)
        process.stop()
        done.set()
        await asyncio.sleep(9)
        assert seen == []
        process.go_on()
        await asyncio.sleep(0.001)
        assert seen == [("heard", 10.0), ("timed out", 10.0), ("slept", 10.0)]

    async def test_whoever_waits_for_a_stopped_process_from_outside_may_give_up(self) -> None:
        process = SimProcess("a")
        visit = within(process, asyncio.sleep(1))
        process.stop()
        done, _ = await asyncio.wait((visit,), timeout=5)
        assert not done
        process.go_on()
        await visit

    async def test_a_stopped_process_can_be_killed_and_runs_no_step_more(self) -> None:
        process = SimProcess("a")
        seen: list[str] = []

        async def work() -> None:
            await asyncio.sleep(1)
            seen.append("ran")

        process.start(work())
        await asyncio.sleep(0)
        process.stop()
        await asyncio.sleep(2)
        await process.kill()
        assert seen == []

    async def test_a_process_that_is_not_stopped_is_no_other_than_without_processes(self) -> None:
        process = SimProcess("a")
        assert await within(process, asyncio.sleep(1, "slept")) == "slept"
        assert asyncio.get_running_loop().time() == 1.0


def test_when_nothing_is_left_to_wait_for_the_loop_says_so() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_virtual(wait)


@on_virtual_time
class TestClock:
    async def test_a_quick_clock_counts_more_and_sleeps_less(self) -> None:
        quick, even = SimClock(rate=1.25), SimClock()
        began = quick.mono(), even.mono()
        await quick.sleep(10)
        assert (quick.mono() - began[0], even.mono() - began[1]) == (10.0, 8.0)
