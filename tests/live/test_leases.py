"""What a control plane makes of a long silence: V4 and V5 of `live.liveness`, S5 of `live.sessions`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stoker.agent.backoff import CEILING_S
from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.lifecycle import JobState, NodeState, Outcome
from stoker.brain.domain.policy import surely_over_ms
from stoker.live.liveness import RETURN_S
from stoker.live.settings.control import AgentsSettings, ControlSettings
from tests.control.stage import Player, Stage, running, stage, virtual
from tests.rig.sim_log import SimDisk

N1 = NodeName("n1")
LEASE_S = 60
OVER_S = surely_over_ms(LEASE_S * 1_000) / 1_000
LEASES = ControlSettings(agents=AgentsSettings(attempt_lease_s=LEASE_S))


@asynccontextmanager
async def leased(disk: SimDisk | None = None) -> AsyncIterator[Stage]:
    async with stage(disk, settings=LEASES) as s:
        yield s


async def running_job(s: Stage, player: Player) -> JobId:
    job = await s.submit()
    start = await player.next_start()
    assert start.lease_ms == LEASE_S * 1_000
    await player.say_started(start.key)
    await s.until_state(job, JobState.RUNNING)
    return job


def stall(seconds: float) -> None:
    """The whole process stands still."""
    asyncio.get_running_loop().now_s += seconds  # type: ignore[attr-defined]  # the virtual loop


@virtual
async def test_a_dead_nodes_work_is_started_elsewhere_by_itself_and_not_before_its_lease_is_surely_over() -> None:
    async with leased() as s:
        player = await s.join("n1", leases=True)
        job = await running_job(s, player)
        other = await s.join("n2", leases=True)
        beating = asyncio.ensure_future(other.keep_beating())
        await s.pause(OVER_S - 1)
        assert s.state.node_state(N1) is NodeState.UNREACHABLE
        assert s.job(job).state is JobState.RUNNING
        await s.pause(3)
        start = await other.next_start()
        assert (start.key.job, start.key.attempt) == (job, 2)
        assert s.job(job).attempts[0].outcome is Outcome.LOST
        (line,) = (line for line in s.notes.lines if " agent_lost " in line)
        assert "agent_id=n1 silent_s=7" in line
        beating.cancel()


@virtual
async def test_without_a_lease_a_dead_nodes_work_waits_for_it() -> None:
    async with stage() as s:
        player = await s.join("n1", leases=True)
        job = await s.submit()
        start = await player.next_start()
        assert start.lease_ms == 0
        await player.say_started(start.key)
        await s.pause(3_000)
        assert s.job(job).state is JobState.RUNNING


@virtual
async def test_a_word_in_time_begins_the_count_anew() -> None:
    async with leased() as s:
        player = await s.join("n1", leases=True)
        job = await running_job(s, player)
        for _ in range(5):
            await s.pause(OVER_S - 2)
            await player.beat()
        assert s.job(job).state is JobState.RUNNING
        assert len(player.starts) == 1


@virtual
async def test_our_own_absence_is_no_part_of_a_lease() -> None:
    """A control plane that was stopped for half an hour has heard nobody, and must not give anybody's work away."""
    async with leased() as s:
        player = await s.join("n1", leases=True)
        job = await running_job(s, player)
        await s.pause(OVER_S - 5)
        stall(1_800)
        await s.pause(2)
        assert s.job(job).state is JobState.RUNNING
        await player.beat()
        await s.pause(OVER_S - 2)
        assert s.job(job).state is JobState.RUNNING


@virtual
async def test_a_restart_counts_the_silence_anew() -> None:
    async with leased() as s:
        disk = s.disk
        job = await running_job(s, await s.join("n1", leases=True))
        await s.pause(OVER_S - 5)
    async with leased(disk) as s:
        await s.pause(OVER_S - 2)
        assert s.job(job).state is JobState.RUNNING
        await s.pause(4)
        assert s.job(job).state is JobState.PENDING
        assert s.job(job).attempts[0].outcome is Outcome.LOST


@virtual
async def test_after_a_take_over_nobody_is_unreachable_before_every_agent_can_have_tried_again() -> None:
    """faults.md 35: a new leader that goes by the heartbeats of the old one marks healthy nodes down."""
    assert RETURN_S == CEILING_S
    async with stage() as s:
        disk = s.disk
        for number in range(200):
            await s.join(f"n{number}", 1)
        await s.pause(12)
    async with stage(disk) as s:
        await s.pause(10)
        s.control.nodes.liveness.begin()
        await s.pause(15 + RETURN_S - 1)
        assert all(s.state.node_state(node) is NodeState.READY for node in s.state.nodes)
        assert s.notes.counts.get("agent_offline", 0) == 0
        await s.join("n7", 1)
        await s.pause(17)
        states = [s.state.node_state(node) for node in s.state.nodes]
        assert states == [NodeState.UNREACHABLE] * 200


@virtual
async def test_who_was_heard_since_the_take_over_has_the_usual_time() -> None:
    async with stage() as s:
        disk = s.disk
        await s.join("n1", 1)
    async with stage(disk) as s:
        await s.join("n1", 1)
        await s.pause(14)
        assert s.state.node_state(N1) is NodeState.READY
        await s.pause(3)
        assert s.state.node_state(N1) is NodeState.UNREACHABLE


@virtual
async def test_the_stream_of_a_node_whose_work_was_settled_ends_so_that_it_says_what_it_runs() -> None:
    """Its agent was only suspended. On the old stream a late word would put GPUs into service that nobody has seen."""
    async with leased() as s:
        player = await s.join("n1", 1, leases=True)
        job = await running_job(s, player)
        gpus = player.starts[0].gpus
        await s.pause(OVER_S + 2)
        assert s.job(job).state is JobState.PENDING
        assert player.ended is not None
        assert player.ended.refusal.code == "node_lost"
        back = await s.register("n1", 1, leases=True)
        assert s.state.node_state(N1) is NodeState.UNREACHABLE
        await back.say_inventory()
        assert s.state.nodes[N1].strays == ()
        start = await back.next_start()
        assert (start.key.attempt, start.gpus) == (2, gpus)


@virtual
async def test_a_broken_lease_is_told_loudly_and_its_task_is_stopped() -> None:
    async with leased() as s:
        player = await s.join("n1", 1, leases=True)
        job = await running_job(s, player)
        key, gpus = player.starts[0].key, player.starts[0].gpus
        await s.pause(OVER_S + 2)
        back = await s.join("n1", 1, running(key, *gpus), leases=True)
        await s.pause()
        assert [stop.key for stop in back.stops] == [key]
        assert not back.starts
        (line,) = (line for line in s.notes.lines if " lease_broken " in line)
        assert f"agent_id=n1 attempt=1 rank=0 task_id={job}" in line
        await back.end(key, cause=EndCause.STOPPED)
        start = await back.next_start()
        assert start.key.attempt == 2


@virtual
async def test_a_gang_is_started_again_once_the_ranks_elsewhere_are_gone() -> None:
    async with leased() as s:
        one, two = await s.join("n1", 1, leases=True), await s.join("n2", 1, leases=True)
        job = await s.submit(tasks=2)
        for player in (one, two):
            start = await player.next_start()
            await player.say_started(start.key)
        beating = asyncio.ensure_future(two.keep_beating())
        await s.pause(OVER_S + 2)
        (stop,) = two.stops
        assert s.job(job).state is JobState.STOPPING
        await s.join("n3", 1, leases=True)
        await s.pause(2)
        assert s.job(job).state is JobState.STOPPING
        await two.end(stop.key, cause=EndCause.STOPPED)
        await s.until(lambda: len(s.job(job).attempts) == 2)
        beating.cancel()


@virtual
async def test_a_standby_that_becomes_active_counts_nothing_that_went_before() -> None:
    """It wasn't listening: what its predecessor heard meanwhile is unknown to it."""
    async with leased() as s:
        player = await s.join("n1", leases=True)
        job = await running_job(s, player)
        await s.pause(OVER_S - 5)
        s.control.nodes.liveness.begin()
        assert s.control.nodes.liveness.silence_s(N1) == 0
        await s.pause(OVER_S - 2)
        assert s.job(job).state is JobState.RUNNING
        await s.pause(4)
        assert s.job(job).state is JobState.PENDING
