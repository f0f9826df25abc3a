"""The machine's clock and dice: the contract, and what only they promise."""

import time
from uuid import UUID

import pytest

from stoker.adapters.clock import SystemClock
from stoker.adapters.entropy import SystemEntropy
from tests.contracts.clock import ClockContract


class TestSystemClock(ClockContract):
    @pytest.fixture
    def clock(self) -> SystemClock:
        return SystemClock()


def test_a_step_of_the_wall_clock_never_reaches_a_living_process(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    before = clock.now()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 0 <= clock.now() - before < 60_000


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
