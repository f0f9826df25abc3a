"""A machine that sleeps, and a wall clock that is corrected while the control plane runs."""

import asyncio

import pytest

from stoker.brain.domain.access import OWNER, Caller, Role, Token, TokenId
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.units import HOUR_MS, SECOND_MS, later
from stoker.brain.state.codec import decode_fact
from stoker.brain.state.commands import CreateToken
from stoker.brain.state.events.leadership import ClockMoved
from tests.control.stage import Stage, stage, virtual
from tests.rig.sim_ports import SimClock

HOUR_S = 3_600
ONE = JobId(1)


async def running(s: Stage, limit_s: float) -> None:
    player = await s.join("n1")
    await s.submit(time_limit_ms=int(limit_s * SECOND_MS))
    await player.say_started((await player.next_start()).key)


def moves(s: Stage) -> list[int]:
    facts = (decode_fact(record).event for record in s.disk.records)
    return [event.by_ms for event in facts if isinstance(event, ClockMoved)]


@virtual
@pytest.mark.parametrize("how", ["suspend", "correct"])
async def test_a_time_limit_is_not_shortened_by_a_suspend_or_by_a_corrected_clock(how: str) -> None:
    clock = SimClock()
    async with stage(clock=clock) as s:
        await running(s, 100)
        await s.pause(50)
        getattr(clock, how)(10 * HOUR_S)
        began = clock.awake()
        await s.until(lambda: s.job(ONE).state is JobState.STOPPING)
        assert 49 < clock.awake() - began < 52
        assert s.committer.now() == clock.now()
        assert [round(by_ms / HOUR_MS, 2) for by_ms in moves(s)] == [10]
        assert any("clock_moved by_ms=36000" in line for line in s.notes.lines)


@virtual
async def test_a_time_limit_is_not_lengthened_by_a_clock_that_is_set_back_in_a_living_process() -> None:
    clock = SimClock()
    async with stage(clock=clock) as s:
        await s.pause(2 * HOUR_S)
        await running(s, 100)
        clock.correct(-HOUR_S)
        began = clock.awake()
        await s.until(lambda: s.job(ONE).state is JobState.STOPPING, within_s=200)
        assert 99 < clock.awake() - began < 132
        assert 0.9 * HOUR_MS < s.committer.ahead_ms < HOUR_MS
        times = [decode_fact(record).at for record in s.disk.records]
        assert times == sorted(times)
        await s.pause(2 * HOUR_S)
        assert s.committer.ahead_ms == 0
        assert s.committer.now() == clock.now()
        assert len(moves(s)) < 150


@virtual
async def test_a_time_limit_is_not_shortened_when_a_clock_that_was_set_back_is_set_right_again() -> None:
    """The log's time falls behind meanwhile, and then catches up at once."""
    clock = SimClock()
    async with stage(clock=clock) as s:
        await s.pause(60)
        clock.correct(-20)
        await s.pause(20)
        assert await lived_s(s, clock, forward_s=20) > 4.9


@virtual
async def test_a_time_limit_of_seconds_is_not_shortened_by_corrections_of_less_than_a_second() -> None:
    clock = SimClock()
    async with stage(clock=clock) as s:
        clock.correct(-0.9)
        await s.pause(3)
        assert await lived_s(s, clock, forward_s=1.8) > 4.8


async def lived_s(s: Stage, clock: SimClock, forward_s: float) -> float:
    """For how long a job with a limit of five seconds runs while the clock is set forward."""
    await running(s, 5)
    began = clock.awake()
    clock.correct(forward_s)
    await s.until(lambda: s.job(ONE).state is JobState.STOPPING, within_s=60)
    return clock.awake() - began


@virtual
@pytest.mark.parametrize("how", ["suspend", "correct"])
async def test_a_time_to_begin_is_met_right_after_a_suspend_and_after_a_corrected_clock(how: str) -> None:
    clock = SimClock()
    async with stage(clock=clock) as s:
        player = await s.join("n1")
        await s.submit(begin=later(clock.now(), HOUR_MS))
        await s.pause(10)
        getattr(clock, how)(HOUR_S)
        assert not player.starts
        began = clock.awake()
        await player.next_start()
        assert clock.awake() - began < 6


@virtual
@pytest.mark.parametrize("how", ["suspend", "correct"])
async def test_a_token_that_has_expired_meanwhile_ends_what_is_open(how: str) -> None:
    clock = SimClock()
    async with stage(clock=clock) as s:
        token = Token(
            id=TokenId("t1"),
            digest="0" * 64,
            role=Role.VIEWER,
            expires_at=later(clock.now(), HOUR_MS),
        )
        await s.committer.ask(CreateToken(by=OWNER.principal, token=token))
        caller = Caller(principal=token.principal, role=token.role, token=token.id)
        watching = asyncio.ensure_future(s.control.access.watch(caller))
        await s.pause(10)
        assert s.control.access.holds(caller)
        getattr(clock, how)(HOUR_S)
        assert not s.control.access.holds(caller)
        async with asyncio.timeout(6):
            await watching


@virtual
async def test_what_moved_is_remembered_by_the_next_process() -> None:
    clock = SimClock()
    async with stage(clock=clock) as s:
        disk = s.disk
        await running(s, 100)
        clock.correct(HOUR_S)
        await s.pause(20)
    async with stage(disk, clock=clock) as s:
        assert s.state.clock_moved_ms // HOUR_MS == 1
        began = clock.awake()
        await s.until(lambda: s.job(ONE).state is JobState.STOPPING, within_s=120)
        assert 70 < clock.awake() - began < 85
