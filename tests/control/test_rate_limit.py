"""How often may one principal ask, and what of wrong tokens? R1 to R4 of `control.rate_limit`."""

import asyncio

import pytest

from stoker.brain.domain.errors import Refusal, StokerError
from stoker.brain.domain.ids import Principal
from stoker.brain.domain.units import Instant, Mono
from stoker.control import rate_limit as live_rates
from stoker.control.control_ports import ControlPorts
from stoker.control.rate_limit import MINUTE_S, ConcurrencyLimit, RateLimit, WrongTokens

ADA, BEN = Principal("user:ada"), Principal("user:ben")


class Hand:
    """A clock moved by hand, that notes what is told."""

    def __init__(self) -> None:
        self.at = 1_000.0
        self.told: list[str] = []
        self.counted = 0

    def now(self) -> Instant:
        raise AssertionError

    def mono(self) -> Mono:
        return Mono(self.at)

    def awake(self) -> Mono:
        raise AssertionError

    async def sleep(self, seconds: float) -> None:
        raise AssertionError

    def uid(self) -> str:
        raise AssertionError

    def seed(self) -> int:
        raise AssertionError

    def jitter(self, low: float, high: float) -> float:
        raise AssertionError

    def event(self, name: str, **fields: object) -> None:
        self.told.append(name)

    def warn(self, name: str, **fields: object) -> None:
        self.told.append(name)

    def count(self, name: str, by: int = 1, **labels: str) -> None:
        self.counted += by

    def gauge(self, name: str, value: float, **labels: str) -> None:
        raise AssertionError

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        raise AssertionError


@pytest.fixture
def hand() -> Hand:
    return Hand()


def control_ports(hand: Hand) -> ControlPorts:
    return ControlPorts(clock=hand, entropy=hand, telemetry=hand)


def refused(rates: RateLimit, principal: Principal) -> Refusal | None:
    try:
        rates.take(principal)
    except StokerError as fault:
        return fault.refusal
    return None


def noted(wrong: WrongTokens) -> Refusal | None:
    try:
        wrong.note()
    except StokerError as fault:
        return fault.refusal
    return None


def test_without_a_rate_nobody_is_refused(hand: Hand) -> None:
    rates = RateLimit(control_ports(hand), per_second=0)
    assert not any(refused(rates, ADA) for _ in range(10_000))


def test_a_burst_of_two_seconds_fits_and_the_next_request_does_not(hand: Hand) -> None:
    rates = RateLimit(control_ports(hand), per_second=5)
    assert [refused(rates, ADA) is None for _ in range(11)] == [True] * 10 + [False]


def test_who_waits_as_long_as_he_is_told_is_let_in(hand: Hand) -> None:
    rates = RateLimit(control_ports(hand), per_second=0.25)
    assert refused(rates, ADA) is None
    refusal = refused(rates, ADA)
    assert refusal is not None
    assert refusal.code == "rate_limited"
    assert refusal.facts["retry_after_s"] == 4
    hand.at += 3.9
    assert refused(rates, ADA) is not None
    hand.at += 0.1
    assert refused(rates, ADA) is None


def test_a_refused_request_takes_nothing(hand: Hand) -> None:
    rates = RateLimit(control_ports(hand), per_second=1)
    assert [refused(rates, ADA) is None for _ in range(100)].count(True) == 2
    hand.at += 1
    assert refused(rates, ADA) is None


def test_who_comes_seldom_gathers_no_more_than_a_burst(hand: Hand) -> None:
    rates = RateLimit(control_ports(hand), per_second=1)
    refused(rates, ADA)
    hand.at += 1_000_000
    assert [refused(rates, ADA) is None for _ in range(5)].count(True) == 2


def test_one_principal_never_takes_from_another(hand: Hand) -> None:
    rates = RateLimit(control_ports(hand), per_second=1)
    assert [refused(rates, ADA) is None for _ in range(5)].count(True) == 2
    assert refused(rates, BEN) is None


def test_the_table_of_principals_has_a_bound(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_rates, "PRINCIPALS_MAX", 3)
    rates = RateLimit(control_ports(hand), per_second=1)
    for name in ("a", "b", "c", "d", "e"):
        rates.take(Principal(name))
    assert len(rates._buckets) == 3


def test_wrong_tokens_are_refused_one_by_one_up_to_the_bound_and_then_all_told_to_wait(hand: Hand) -> None:
    wrong = WrongTokens(control_ports(hand), wrong_max=10)
    assert [noted(wrong) for _ in range(10)] == [None] * 10
    refusal = noted(wrong)
    assert refusal is not None
    assert refusal.code == "too_many_wrong_tokens"
    assert refusal.facts["retry_after_s"] == 60
    hand.at += MINUTE_S - 0.5
    refusal = noted(wrong)
    assert refusal is not None
    assert refusal.facts["retry_after_s"] == 1
    hand.at += 0.5
    assert noted(wrong) is None


def test_the_log_has_one_line_a_minute_about_wrong_tokens_and_a_meter_counts_all(hand: Hand) -> None:
    wrong = WrongTokens(control_ports(hand), wrong_max=10)
    for _ in range(100):
        noted(wrong)
    assert hand.told == ["too_many_wrong_tokens"]
    assert hand.counted == 100
    hand.at += MINUTE_S
    for _ in range(100):
        noted(wrong)
    assert hand.told == ["too_many_wrong_tokens"] * 2


async def test_r4_so_many_turns_are_taken_at_once_and_nobody_waits_for_another_tenant() -> None:
    turns, going, done = ConcurrencyLimit(2), list[str](), asyncio.Event()

    async def take(whose: str) -> None:
        async with turns.taken(whose):
            going.append(whose)
            await done.wait()

    async with asyncio.TaskGroup() as tasks:
        for whose in ["a"] * 4 + ["b"]:
            tasks.create_task(take(whose))
        for _ in range(5):
            await asyncio.sleep(0)
        assert sorted(going) == ["a", "a", "b"]
        done.set()
    assert sorted(going) == ["a"] * 4 + ["b"]
    assert not turns.waiting
