"""What must every Clock do? Inherit this, give a `clock`, and the rules run on it."""

import asyncio

import pytest

from stoker.ports import Clock


class ClockContract:
    @pytest.fixture
    def clock(self) -> Clock:
        raise NotImplementedError("the implementation under test")

    async def test_both_clocks_move_by_what_was_slept(self, clock: Clock) -> None:
        wall, mono = clock.now(), clock.mono()
        await clock.sleep(0.02)
        slept_s = clock.mono() - mono
        assert slept_s >= 0.019
        assert abs((clock.now() - wall) / 1_000 - slept_s) < 0.05

    async def test_neither_clock_runs_backwards(self, clock: Clock) -> None:
        seen = [(clock.now(), clock.mono()) for _ in range(1_000)]
        assert seen == sorted(seen)

    async def test_a_negative_wait_is_over_at_once_but_lets_others_run(self, clock: Clock) -> None:
        others: list[str] = []

        async def other() -> None:
            others.append("ran")

        task = asyncio.ensure_future(other())
        await clock.sleep(-5)
        await clock.sleep(0)
        assert others == ["ran"]
        await task

    async def test_sleepers_wake_in_the_order_of_their_times(self, clock: Clock) -> None:
        woke: list[str] = []

        async def sleeper(name: str, seconds: float) -> None:
            await clock.sleep(seconds)
            woke.append(name)

        await asyncio.gather(sleeper("late", 0.06), sleeper("soon", 0.01), sleeper("middle", 0.03))
        assert woke == ["soon", "middle", "late"]

    def test_wall_time_is_milliseconds_since_1970(self, clock: Clock) -> None:
        assert 1_600_000_000_000 < clock.now() < 4_000_000_000_000
