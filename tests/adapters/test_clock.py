"""The machine's clock and dice: the contract, and what only they promise."""

import time
from uuid import UUID

import pytest

from stoker.adapters.clock import LOOK_S, STEP_MAX_S, Readings, SystemClock
from stoker.adapters.entropy import SystemEntropy
from tests.contracts.clock import ClockContract


class TestSystemClock(ClockContract):
    @pytest.fixture
    def clock(self) -> SystemClock:
        return SystemClock()


class Machine:
    """The clocks of a machine, in seconds."""

    def __init__(self) -> None:
        self.wall, self.boot, self.awake = 1_800_000_000.0, 500.0, 400.0
        self.clock = SystemClock(Readings(*(lambda name=name: int(getattr(self, name) * 1e9) for name in vars(self))))
        self.began = self.clock.now(), self.clock.mono(), self.clock.awake()

    def live(self, seconds: float) -> None:
        self.wall, self.boot, self.awake = self.wall + seconds, self.boot + seconds, self.awake + seconds

    def sleep(self, seconds: float) -> None:
        self.wall, self.boot = self.wall + seconds, self.boot + seconds

    def since(self) -> tuple[float, ...]:
        """Seconds of each clock since the beginning."""
        now = self.clock.now() / 1_000, self.clock.mono(), self.clock.awake()
        began = self.began[0] / 1_000, *self.began[1:]
        return tuple(round(after - before, 3) for after, before in zip(now, began, strict=True))


def test_after_a_suspend_the_time_is_right_at_once_and_no_time_was_lived_through() -> None:
    machine = Machine()
    machine.live(1)
    machine.sleep(36_000)
    assert machine.since() == (36_001, 36_001, 1)


@pytest.mark.parametrize("by_s", [-3_000, 3_000])
def test_a_corrected_wall_clock_is_followed_within_seconds_and_by_nothing_else(by_s: float) -> None:
    machine = Machine()
    machine.wall += by_s
    machine.live(LOOK_S)
    assert machine.since() == (by_s + LOOK_S, LOOK_S, LOOK_S)


def test_a_step_is_bounded_at_each_look_so_that_a_glitch_carries_nothing_away() -> None:
    machine = Machine()
    machine.wall += 10 * STEP_MAX_S
    machine.live(LOOK_S)
    assert [machine.since()[0] for _ in range(3)] == [STEP_MAX_S + LOOK_S] * 3
    machine.live(LOOK_S)
    assert machine.since()[0] == 2 * (STEP_MAX_S + LOOK_S)
    machine.wall -= 10 * STEP_MAX_S
    machine.live(LOOK_S)
    assert machine.since()[0] == STEP_MAX_S + 3 * LOOK_S
    machine.live(LOOK_S)
    assert machine.since()[0] == 4 * LOOK_S


def test_a_process_that_had_to_wait_between_two_readings_takes_that_for_no_step() -> None:
    machine = Machine()
    machine.wall += 0.09
    machine.live(LOOK_S)
    assert machine.since()[0] == LOOK_S


def test_now_starts_at_the_wall_clock() -> None:
    assert abs(SystemClock().now() - time.time_ns() // 1_000_000) < 1_000


def test_two_monotonic_clocks_are_hours_apart_so_that_mixing_them_shows() -> None:
    readings = {round(SystemClock().mono()) for _ in range(5)}
    assert len(readings) == 5
    assert all(abs(reading - time.monotonic()) >= 9_999 for reading in readings)


def test_uids_are_uuids_of_version_seven_and_sort_by_birth() -> None:
    entropy = SystemEntropy()
    uids = [entropy.uid() for _ in range(100)]
    assert {UUID(uid).version for uid in uids} == {7}
    assert len(set(uids)) == 100
    assert uids == sorted(uids)


def test_seeds_fit_63_bits_and_jitter_stays_in_its_range() -> None:
    entropy = SystemEntropy()
    seeds = [entropy.seed() for _ in range(100)]
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)
    draws = [entropy.jitter(1.0, 2.0) for _ in range(100)]
    assert all(1.0 <= draw <= 2.0 for draw in draws)
    assert len(set(draws)) > 90
