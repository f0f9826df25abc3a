"""Silence is not death: V1 to V4 of `live.liveness`, and families 2 and 4 of faults.md."""

import asyncio

from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.lifecycle import JobState, NodeState
from stoker.brain.domain.reason import ReasonCode
from stoker.brain.state.codec import decode_fact
from stoker.brain.state.events.node import NodeReachable, OrphanTasksFound
from tests.control.stage import Player, Stage, running, stage, virtual
from tests.rig.sim_ports import SimClock

N1 = NodeName("n1")


async def running_job(s: Stage, player: Player) -> JobId:
    job = await s.submit()
    start = await player.next_start()
    await player.say_started(start.key)
    await s.until_state(job, JobState.RUNNING)
    return job


@virtual
async def test_a_silent_node_gets_no_new_work_and_keeps_what_it_has() -> None:
    async with stage() as s:
        player = await s.join("n1")
        job = await running_job(s, player)
        await s.pause(14)
        assert s.state.node_state(N1) is NodeState.READY
        await s.pause(3)
        assert s.state.node_state(N1) is NodeState.UNREACHABLE
        waiting = await s.submit()
        await s.pause(3_000)
        assert s.job(waiting).state is JobState.PENDING
        assert s.job(job).state is JobState.RUNNING
        assert s.job(job).attempts[-1].open_tasks


@virtual
async def test_a_node_that_speaks_again_is_used_again() -> None:
    async with stage() as s:
        player = await s.join("n1")
        job = await running_job(s, player)
        await s.pause(60)
        assert s.state.node_state(N1) is NodeState.UNREACHABLE
        await player.beat()
        assert s.state.node_state(N1) is NodeState.READY
        assert s.job(job).state is JobState.RUNNING
        await s.submit()
        await player.next_start(2)


@virtual
async def test_a_closed_stream_is_not_silence() -> None:
    async with stage() as s:
        player = await s.join("n1")
        job = await running_job(s, player)
        key = player.starts[0].key
        player.leave()
        await s.pause(5)
        assert s.state.node_state(N1) is NodeState.READY
        player = await s.join("n1", 8, running(key))
        assert s.job(job).state is JobState.RUNNING


@virtual
async def test_traffic_lost_for_a_minute_ends_nothing() -> None:
    """faults.md 38 and 39: an agent that can't be asked for a while keeps its job, and nothing is started twice."""
    async with stage() as s:
        player = await s.join("n1")
        other = await s.join("n2")
        beating = asyncio.ensure_future(other.keep_beating())
        job = await running_job(s, player)
        holder = player if player.starts else other
        await s.pause(300)
        assert s.job(job).state is JobState.RUNNING
        assert len(s.job(job).attempts) == 1
        assert len(holder.starts) == 1
        beating.cancel()


@virtual
async def test_our_own_stall_is_nobodys_silence() -> None:
    """faults.md 41: a control plane that was stopped for a minute must not blame its nodes."""
    async with stage() as s:
        player = await s.join("n1")
        beating = asyncio.ensure_future(player.keep_beating())
        await s.pause(7)
        loop = asyncio.get_running_loop()
        loop.now_s += 60  # type: ignore[attr-defined]  # the virtual loop: the whole process stood still
        await s.pause(1)
        assert s.state.node_state(N1) is NodeState.READY
        assert s.notes.counts.get("agent_offline", 0) == 0
        assert s.notes.counts["liveness_check_late"] == 1
        beating.cancel()
        await s.pause(17)
        assert s.state.node_state(N1) is NodeState.UNREACHABLE


@virtual
async def test_after_a_restart_two_hundred_nodes_have_the_full_time_to_come_back() -> None:
    """faults.md 35: no node is down and nothing is started twice because a new process has heard nobody yet."""
    async with stage() as s:
        disk = s.disk
        players = [await s.join(f"n{i}", 1) for i in range(200)]
        jobs = [await s.submit() for _ in range(200)]
        await s.until(lambda: sum(len(player.starts) for player in players) == 200)
        starts = {player.node: player.starts[0] for player in players}
        for player in players:
            await player.say_started(player.starts[0].key)
    async with stage(disk) as s:
        await s.pause(14)
        assert all(s.state.node_state(node) is NodeState.READY for node in starts)
        back = [await s.join(node, 1, running(start.key, *start.gpus)) for node, start in starts.items()]
        await s.pause(1)
        assert not any(player.starts or player.stops for player in back)
        assert all(s.job(job).state is JobState.RUNNING for job in jobs)
        assert all(s.state.node_state(node) is NodeState.READY for node in starts)


@virtual
async def test_an_unreachable_node_is_used_only_after_its_inventory_was_compared() -> None:
    """Else a pass between the two could give away GPUs on which a stray still runs."""
    async with stage() as s:
        await s.join("n1")
        await s.pause(60)
        player = await s.register("n1")
        assert s.state.node_state(N1) is NodeState.UNREACHABLE
        await player.say_inventory(running(TaskKey(JobId(99), 1, 0), "n1-0"))
        assert s.state.node_state(N1) is NodeState.READY
        facts = [decode_fact(record).event for record in s.disk.records]
        assert [type(event) for event in facts[-2:]] == [OrphanTasksFound, NodeReachable]


@virtual
async def test_a_node_down_during_a_restart_keeps_its_place_in_the_ledger() -> None:
    """faults.md 24: the layout of a node that is away is not forgotten, so its jobs wait for it and don't fail."""
    async with stage() as s:
        disk = s.disk
        player = await s.join("n1")
        job = await running_job(s, player)
    async with stage(disk) as s:
        await s.pause(120)
        assert s.state.node_state(N1) is NodeState.UNREACHABLE
        assert len(s.state.nodes[N1].inventory.gpus) == 8
        assert s.job(job).state is JobState.RUNNING
        await s.submit(gpus=8)
        key = s.job(job).id
        assert key in s.state.indexes.on_node[N1]


@virtual
async def test_a_stopped_agent_that_wakes_up_gets_its_job_started() -> None:
    """faults.md 21: assigned while the agent stood still for a minute, started when it goes on."""
    async with stage() as s:
        player = await s.join("n1")
        player._listening.cancel()
        job = await s.submit()
        await s.pause(60)
        assert s.job(job).state is JobState.STARTING
        player = await s.join("n1")
        start = await player.next_start()
        await player.say_started(start.key)
        await s.until_state(job, JobState.RUNNING)


@virtual
async def test_after_a_restart_work_goes_to_the_node_that_is_back_at_once_and_not_to_one_that_is_not() -> None:
    async with stage() as s:
        disk = s.disk
        for name in ("n1", "n2"):
            await s.join(name)
    async with stage(disk) as s:
        job = await s.submit(gpus=8)
        await s.pause(5)
        assert s.why(job).code is ReasonCode.NODES_RETURNING
        assert s.state.node_state(N1) is NodeState.READY, "its silence is none of its own yet"
        player = await s.join("n2")
        back_at = s.control.clock.mono()
        assert (await player.next_start()).key.job == job
        assert s.control.clock.mono() - back_at < 0.05
        late = await s.submit(gpus=8)
        await s.pause(5)
        assert s.job(late).state is JobState.PENDING
        await (await s.join("n1")).next_start()


@virtual
async def test_a_node_is_silent_since_it_was_last_heard_of() -> None:
    async with stage() as s:
        disk = s.disk
        player = await s.join("n1")
        await s.pause(7.3)
        await player.beat()
        heard_at = s.control.clock.now()
        await s.until(lambda: s.state.node_state(N1) is NodeState.UNREACHABLE)
        assert abs(s.state.nodes[N1].silent_since - heard_at) <= 2
    async with stage(disk, clock=SimClock(3_600.0)) as s:
        assert abs(s.state.nodes[N1].silent_since - heard_at) <= 2, "a restart of ours doesn't change that"


@virtual
async def test_a_node_that_is_not_heard_of_after_a_restart_is_silent_since_then() -> None:
    async with stage() as s:
        disk = s.disk
        await s.join("n1")
    async with stage(disk, clock=SimClock(3_600.0)) as s:
        began_at = s.control.clock.now()
        await s.until(lambda: s.state.node_state(N1) is NodeState.UNREACHABLE)
        assert abs(s.state.nodes[N1].silent_since - began_at) <= 2
