"""What agents are told and when: O1 to O5 of `live.outbox`."""

import asyncio

from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.instruction import Start, StopNotice, TaskKey
from stoker.brain.domain.job import EndCause, StopCause, WarnSignal
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.plan import Plan, Preempt, Victim
from stoker.brain.domain.report import TaskPhase, TaskStatus
from tests.control.stage import Player, Stage, running, stage, virtual


@virtual
async def test_no_start_leaves_before_the_placement_is_durable() -> None:
    async with stage() as s:
        player = await s.join("n1")
        s.log.gate.clear()
        submitting = asyncio.ensure_future(s.submit())
        await s.pause(6)  # the loop's period: it sees the job in the state and places it, all of it ahead of the disk
        assert [job.state for job in s.state.jobs.values()] == [JobState.STARTING]
        assert not player.starts
        s.log.gate.set()
        await submitting
        await player.next_start()


@virtual
async def test_no_stop_leaves_before_the_cancel_is_durable() -> None:
    async with stage() as s:
        player = await s.join("n1")
        job = await s.submit()
        start = await player.next_start()
        await player.say_started(start.key)
        await s.until_state(job, JobState.RUNNING)
        await s.pause()
        s.log.gate.clear()
        cancelling = asyncio.ensure_future(s.cancel(job))
        await s.pause()
        assert s.job(job).state is JobState.STOPPING
        assert not player.stops
        s.log.gate.set()
        await cancelling
        assert [(stop.key, stop.cause) for stop in player.stops] == [(start.key, StopCause.CANCELLED)]


@virtual
async def test_a_durable_fact_brings_out_nothing_of_the_same_job_that_is_not_durable_yet() -> None:
    """Rank 0 has started, durably; the cancel that the state already shows is still on its way to the disk."""
    async with stage() as s:
        first, second = await s.join("n1", 1), await s.join("n2", 1)
        job = await s.submit(gpus=1, tasks=2)
        start = await _first_start(s, first, second)
        leader, other = (first, second) if first.starts else (second, first)
        await s.pause()
        s.log.gate.clear()
        await leader.say_started(start.key)
        await s.pause(0.1)
        cancelling = asyncio.ensure_future(s.cancel(job))
        await s.pause(0.1)
        s.log.let_through(1)
        await s.pause(0.5)
        assert s.job(job).state is JobState.STOPPING
        assert not leader.stops
        assert not other.stops
        assert not other.starts
        s.log.gate.set()
        await cancelling
        await s.pause(0.1)
        assert len(leader.stops) == len(other.stops) == 1
        assert not other.starts


@virtual
async def test_a_stream_that_opens_hears_of_nothing_that_came_after_its_inventory_and_is_not_durable() -> None:
    async with stage() as s:
        await s.join("n1")
        job = await s.submit()
        await s.pause()
        player = await s.register("n1")
        s.log.gate.clear()
        first = asyncio.ensure_future(s.submit())
        await s.pause(0.1)
        second = asyncio.ensure_future(s.submit())
        joining = asyncio.ensure_future(player.say_inventory())
        await s.pause(0.1)
        s.log.let_through(1)
        await s.pause(0.1)
        assert first.done()
        cancelling = asyncio.ensure_future(s.cancel(job))
        await s.pause(0.1)
        s.log.let_through(1)
        await s.pause(0.1)
        assert second.done()
        assert joining.done()
        assert not cancelling.done()
        assert not player.stops
        assert not player.starts
        s.log.gate.set()
        await cancelling
        await s.pause(0.1)
        assert [stop.key.job for stop in player.stops] == [job]


@virtual
async def test_a_start_that_the_node_is_about_to_carry_out_is_not_sent_again() -> None:
    async with stage() as s:
        old = await s.join("n1")
        job = await s.submit()
        start = await old.next_start()
        old.leave()
        await s.join("n1", 8, TaskStatus(key=start.key, phase=TaskPhase.STARTING, gpus=start.gpus))
        player = await s.join("n1", 8, TaskStatus(key=start.key, phase=TaskPhase.STARTING, gpus=start.gpus))
        await s.pause(5)
        assert s.job(job).state is JobState.STARTING
        assert not player.starts


@virtual
async def test_a_new_stream_hears_of_nothing_that_is_not_durable() -> None:
    async with stage() as s:
        await s.join("n1")
        s.log.gate.clear()
        submitting = asyncio.ensure_future(s.submit())
        await s.pause(6)
        assert [job.state for job in s.state.jobs.values()] == [JobState.STARTING]
        joining = asyncio.ensure_future(s.join("n1"))
        await s.pause()
        assert not joining.done()
        s.log.gate.set()
        await submitting
        player = await joining
        await player.next_start()
        await s.pause()
        assert len(player.starts) == 1


@virtual
async def test_a_job_cancelled_before_its_start_left_is_only_stopped() -> None:
    async with stage() as s:
        old = await s.join("n1")
        job = await s.submit()
        await old.next_start()
        old.leave()
        await s.cancel(job)
        player = await s.join("n1")
        await s.until(lambda: bool(player.stops))
        assert not player.starts
        await player.end(player.stops[0].key, cause=EndCause.GONE)
        assert s.job(job).state is JobState.CANCELLED


@virtual
async def test_a_gpu_is_offered_again_only_once_the_cancelled_task_is_gone() -> None:
    """Cancel between placement and the agent's answer (faults.md 7): the GPU must come back, and not too early."""
    async with stage() as s:
        player = await s.join("n1", 1)
        job = await s.submit()
        start = await player.next_start()
        await s.cancel(job)
        waiting = await s.submit()
        await s.pause(10)
        assert s.job(waiting).state is JobState.PENDING
        await player.end(start.key, cause=EndCause.STOPPED)
        await player.next_start(2)


@virtual
async def test_rank_zero_goes_first_and_the_others_once_it_has_started() -> None:
    async with stage() as s:
        first, second = await s.join("n1", 2), await s.join("n2", 2)
        await s.submit(gpus=2, tasks=2)
        await s.until(lambda: bool(first.starts or second.starts))
        await s.pause()
        starts = [*first.starts, *second.starts]
        assert [start.key.rank for start in starts] == [0]
        assert starts[0].probe_port
        leader, other = (first, second) if first.starts else (second, first)
        await leader.say_started(starts[0].key)
        follower = await other.next_start()
        assert follower.key.rank == 1
        assert follower.probe_port == 0
        assert follower.env["MASTER_PORT"] == str(starts[0].probe_port)


@virtual
async def test_a_task_alone_gets_its_port_from_its_node_which_is_told_whose_ports_it_may_not_choose() -> None:
    async with stage() as s:
        player = await s.join("n1", 1)
        await s.submit(gpus=1)
        start = await player.next_start()
        policy = s.committer.state.policy
        assert (start.gang_port_min, start.gang_port_max) == (policy.port_min, policy.port_max)
        assert "MASTER_PORT" not in start.env
        assert start.host_file.endswith(" slots=1\n")


@virtual
async def test_a_gang_gets_its_port_from_the_engine_and_each_rank_the_same_host_file() -> None:
    async with stage() as s:
        first, second = await s.join("n1", 2), await s.join("n2", 2)
        await s.submit(gpus=2, tasks=2)
        leader = await _first_start(s, first, second)
        player = first if leader in first.starts else second
        await player.say_started(leader.key)
        follower = await (second if player is first else first).next_start()
        assert leader.gang_port_max == follower.gang_port_max == 0
        assert leader.host_file == follower.host_file
        assert sum(int(line.partition("slots=")[2]) for line in leader.host_file.splitlines()) == 4


@virtual
async def test_a_failed_member_stops_the_others() -> None:
    async with stage() as s:
        first, second = await s.join("n1", 1), await s.join("n2", 1)
        job = await s.submit(gpus=1, tasks=2)
        leader = first if (await _first_start(s, first, second)) in first.starts else second
        other = second if leader is first else first
        await leader.say_started(leader.starts[0].key)
        follower = await other.next_start()
        await other.say_started(follower.key)
        await s.until_state(job, JobState.RUNNING)
        await other.end(follower.key, exit_code=1)
        await s.until(lambda: bool(leader.stops))
        assert leader.stops[0].cause is StopCause.MEMBER_ENDED
        assert not other.stops
        await leader.end(leader.starts[0].key, cause=EndCause.STOPPED)
        assert (s.job(job).state, s.job(job).exit_code) == (JobState.FAILED, 1)


@virtual
async def test_a_stop_reaches_the_agent_that_has_the_task_and_no_other_on_that_machine() -> None:
    """Fault 172."""
    async with stage() as s:
        first, second = await s.join("n1", 1), await s.join("n2", 1)
        jobs = [await s.submit(gpus=1) for _ in range(2)]
        await s.until(lambda: bool(first.starts and second.starts))
        for player in (first, second):
            await player.say_started(player.starts[0].key)
        stopped = first.starts[0].key.job
        assert stopped in jobs
        await s.cancel(stopped)
        await s.until(lambda: bool(first.stops))
        await s.pause(6)
        assert ([stop.key.job for stop in first.stops], second.stops) == ([stopped], [])


async def _first_start(s: Stage, first: Player, second: Player) -> Start:
    await s.until(lambda: bool(first.starts or second.starts))
    return (first.starts or second.starts)[0]


@virtual
async def test_a_stop_is_said_once_per_stream_and_again_on_the_next() -> None:
    async with stage() as s:
        player = await s.join("n1")
        job = await s.submit()
        start = await player.next_start()
        await s.cancel(job)
        await s.cancel(job)
        await player.say_started(start.key)
        await s.pause(30)
        assert len(player.stops) == 1
        player.leave()
        again = await s.join("n1", 8, running(start.key, *start.gpus))
        await s.until(lambda: bool(again.stops))
        assert [stop.key for stop in again.stops] == [start.key]


@virtual
async def test_a_job_past_its_time_limit_is_stopped() -> None:
    async with stage() as s:
        player = await s.join("n1")
        job = await s.submit(time_limit_ms=60_000)
        start = await player.next_start()
        await player.say_started(start.key)
        began = s.control.clock.mono()
        await s.until(lambda: bool(player.stops), within_s=120)
        assert 59.9 < s.control.clock.mono() - began < 60.5
        assert player.stops[0].cause is StopCause.TIMEOUT
        await player.end(start.key, cause=EndCause.STOPPED)
        assert s.job(job).state is JobState.TIMEOUT


@virtual
async def test_after_a_restart_an_unconfirmed_start_is_sent_and_a_running_task_is_left_alone() -> None:
    async with stage() as s:
        disk = s.disk
        player = await s.join("n1", 2)
        running_job = await s.submit()
        start = await player.next_start()
        await player.say_started(start.key)
        await s.until_state(running_job, JobState.RUNNING)
        unconfirmed = await s.submit()
        await player.next_start(2)
    async with stage(disk) as s:
        again = await s.register("n1", 2)
        await again.say_inventory(running(start.key, *start.gpus))
        sent = await again.next_start()
        await s.pause(5)
        assert [sent.key.job] == [unconfirmed] == [start.key.job for start in again.starts]
        assert sent.epoch == s.state.epoch == 2
        assert s.job(running_job).state is JobState.RUNNING
        assert s.state.indexes.free[NodeName("n1")].gpus == ()


@virtual
async def test_a_stream_that_lasts_remembers_no_task_that_has_ended() -> None:
    async with stage() as s:
        player = await s.join("n1", 1)
        for turn in range(20):
            job = await s.submit(retries_max=1)
            start = await player.next_start(turn + 1)
            await player.say_started(start.key)
            if turn % 2:
                await s.cancel(job)
            await player.end(start.key, cause=EndCause.STOPPED if turn % 2 else EndCause.EXITED)
        stream = s.control.sessions.outbox._streams[player.node]
        assert (dict(stream.started), dict(stream.stopped)) == ({}, {})
        assert len(player.stops) == 10


@virtual
async def test_a_stream_that_lasts_remembers_no_orphan_task_that_has_ended() -> None:
    async with stage() as s:
        strays = [TaskKey(JobId(90 + i), 1, 0) for i in range(3)]
        player = await s.join("n1", 4, *(running(key, f"n1-{i}") for i, key in enumerate(strays)))
        await s.until(lambda: len(player.stops) == 3)
        stream = s.control.sessions.outbox._streams[player.node]
        assert not stream.started
        for key in strays:
            await player.end(key, cause=EndCause.STOPPED)
        assert not stream.stopped
        assert len(player.stops) == 3


async def _preempted(s: Stage, player: Player) -> tuple[JobId, JobId, Start]:
    """A job with a signal and a lead that gives way to another one."""
    low = await s.submit(priority=100, preemptible=True, warn=WarnSignal(10, 90_000))
    start = await player.next_start()
    await player.say_started(start.key)
    high = await s.submit(priority=1_000)
    placement = s.job(low).attempts[0].tasks[0].placement
    preempt = Preempt(job=high, tasks=(placement,), victims=(Victim(low, 1),), cause=StopCause.PREEMPTED)
    plan = Plan(actions=(preempt,), reasons={})
    assert await s.committer.settle(plan, decided_at=s.state.position, seed=1) == 1
    return low, high, start


@virtual
async def test_a_job_that_gives_way_is_given_notice_with_its_stop_again_on_the_next_stream() -> None:
    async with stage() as s:
        player = await s.join("n1", 1)
        _, high, start = await _preempted(s, player)
        await s.until(lambda: bool(player.stops))
        notice = StopNotice(cause=StopCause.PREEMPTED, lead_ms=90_000, signal=10, for_job=str(high))
        assert [(stop.cause, stop.notice) for stop in player.stops] == [(StopCause.PREEMPTED, notice)]
        player.leave()
        again = await s.join("n1", 1, running(start.key, *start.gpus))
        await s.until(lambda: bool(again.stops))
        assert again.stops[0].notice == notice


@virtual
async def test_who_cancels_a_job_that_gives_way_does_not_wait_for_its_lead() -> None:
    async with stage() as s:
        player = await s.join("n1", 1)
        low, _, _ = await _preempted(s, player)
        await s.cancel(low)
        await s.until(lambda: len(player.stops) == 2)
        assert (player.stops[1].cause, player.stops[1].notice) == (StopCause.CANCELLED, None)
        await s.cancel(low)
        await s.pause(30)
        assert len(player.stops) == 2


@virtual
async def test_o9_a_job_is_given_notice_of_its_time_limit_once_per_stream_with_what_is_left_of_it() -> None:
    async with stage() as s:
        player = await s.join("n1", 1)
        job = await s.submit(time_limit_ms=300_000, warn=WarnSignal(12, 120_000))
        start = await player.next_start()
        await player.say_started(start.key)
        await s.until(lambda: bool(player.warnings), within_s=200)
        (warn,) = player.warnings
        assert (warn.key, warn.limit_ms, warn.notice.cause, warn.notice.signal) == (
            start.key,
            300_000,
            StopCause.TIMEOUT,
            12,
        )
        assert 115_000 < warn.notice.lead_ms <= 120_000
        assert not player.stops
        player.leave()
        await s.pause(60)
        again = await s.join("n1", 1, running(start.key, *start.gpus))
        await s.until(lambda: bool(again.warnings))
        assert again.warnings[0].notice.lead_ms < 65_000, "the runner knows that it was given"
        await s.until(lambda: bool(again.stops), within_s=100)
        assert len(again.warnings) == 1
        assert s.job(job).attempts[0].signalled_limit_ms == 300_000
