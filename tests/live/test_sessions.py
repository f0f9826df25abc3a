"""One agent's stream in nouns: S1 to S6 and S9 of `live.sessions`, and what users and faults.md report of agents."""

import asyncio

import pytest

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.gpu_telemetry import FigureWatch
from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.lifecycle import JobState, NodeState
from stoker.brain.domain.report import Beat, LogChunk, TaskInventory
from stoker.brain.state.commands import Command, ForgetNode, ReportStarted
from stoker.brain.state.events.union import Event
from stoker.control.control_ports import LogPlace
from stoker.live import streams
from stoker.live.node_figures import WATCHED_MAX
from tests.control.stage import ANNA, Player, Stage, running, stage, virtual


@virtual
async def test_a_job_runs_from_submit_to_exit_code() -> None:
    async with stage() as s:
        player = await s.join("n1")
        job = await s.submit(gpus=2)
        start = await player.next_start()
        assert start.env["CUDA_VISIBLE_DEVICES"] == ",".join(start.gpus)
        await player.say_started(start.key)
        await s.until_state(job, JobState.RUNNING)
        await player.end(start.key, exit_code=3)
        assert s.job(job).state is JobState.FAILED
        assert s.job(job).exit_code == 3


@virtual
async def test_a_task_longer_than_many_heartbeats_is_started_once() -> None:
    async with stage() as s:
        player = await s.join("n1")
        job = await s.submit()
        start = await player.next_start()
        await player.say_started(start.key)
        for _ in range(50):
            await player.beat()
            await s.pause(5)
        assert len(player.starts) == 1
        assert not player.stops
        assert s.job(job).state is JobState.RUNNING


@virtual
async def test_an_instruction_waits_for_no_heartbeat() -> None:
    async with stage() as s:
        player = await s.join("n1")
        before = s.control.clock.mono()
        await s.submit()
        await player.next_start()
        assert s.control.clock.mono() - before < 0.5


@virtual
async def test_registering_again_changes_no_capacity_and_ends_no_task() -> None:
    async with stage() as s:
        player = await s.join("n1", 4)
        job = await s.submit(gpus=3)
        start = await player.next_start()
        await player.say_started(start.key)
        for _ in range(3):
            player.leave()
            player = await s.join("n1", 4, running(start.key, *start.gpus))
        assert s.job(job).state is JobState.RUNNING
        assert len(s.state.indexes.free[NodeName("n1")].gpus) == 1
        assert not player.starts


@virtual
async def test_a_repeated_or_late_end_is_acknowledged_and_changes_nothing() -> None:
    async with stage() as s:
        player = await s.join("n1", 1)
        first = await s.submit()
        start = await player.next_start()
        await player.say_started(start.key)
        await player.end(start.key)
        second = await s.submit()
        await player.next_start(2)
        for _ in range(3):
            await player.end(start.key, exit_code=9)
        assert (s.job(first).state, s.job(first).exit_code) == (JobState.SUCCEEDED, 0)
        assert s.job(second).state is JobState.STARTING
        assert not s.state.indexes.free[NodeName("n1")].gpus


@virtual
async def test_nothing_starts_on_a_stream_before_its_inventory_was_compared_durably() -> None:
    async with stage() as s:
        old = await s.join("n1")
        await s.submit()
        await old.next_start()
        player = await s.register("n1")
        await s.pause()
        assert not player.starts
        s.log.gate.clear()
        comparing = asyncio.ensure_future(player.say_inventory(running(TaskKey(old.starts[0].key.job, 9, 0))))
        await s.pause()
        assert not player.starts
        s.log.gate.set()
        await comparing
        await player.next_start()


@virtual
async def test_a_start_that_the_node_never_saw_is_sent_again_on_the_next_stream() -> None:
    async with stage() as s:
        old = await s.join("n1")
        await s.submit()
        lost = await old.next_start()
        old.leave()
        player = await s.join("n1")
        assert (await player.next_start()).key == lost.key


@virtual
async def test_a_start_that_the_node_reports_is_never_sent_again() -> None:
    async with stage() as s:
        old = await s.join("n1")
        job = await s.submit()
        start = await old.next_start()
        old.leave()
        player = await s.join("n1", 8, running(start.key, *start.gpus))
        await s.pause(30)
        assert not player.starts
        assert s.job(job).state is JobState.RUNNING


@virtual
async def test_the_newest_stream_of_a_node_replaces_the_older() -> None:
    async with stage() as s:
        old = await s.join("n1")
        new = await s.join("n1")
        await old.over.wait()
        assert isinstance(old.ended, StokerError)
        assert old.ended.refusal.code == "session_replaced"
        with pytest.raises(StokerError):
            await old.beat()
        await s.submit()
        await new.next_start()
        old.leave()  # the late goodbye of the old connection takes nothing from the new one
        assert s.control.sessions.connected(new.node)
        await new.beat()
        await s.until(lambda: len(new.beats) == 1)


@virtual
async def test_a_stream_replaced_while_its_inventory_was_compared_gives_no_instruction() -> None:
    async with stage() as s:
        old = await s.register("n1")
        await s.submit()
        s.log.gate.clear()
        registering = asyncio.ensure_future(s.register("n1", 4))
        await s.pause(0.1)
        comparing = asyncio.ensure_future(old.say_inventory())
        await s.pause(0.1)
        s.log.gate.set()
        new = await registering
        with pytest.raises(StokerError) as refused:
            await comparing
        assert refused.value.refusal.code == "session_replaced"
        await new.say_inventory()
        await new.next_start()
        assert not old.starts


@virtual
async def test_a_stream_that_begins_without_an_inventory_is_refused() -> None:
    async with stage() as s:
        player = await s.register("n1")
        with pytest.raises(StokerError) as refused:
            await player.beat()
        assert refused.value.refusal.code == "inventory_first"


@virtual
async def test_an_unknown_session_is_told_to_register_again() -> None:
    async with stage() as s:
        with pytest.raises(StokerError) as refused:
            s.control.sessions.attach("no-such-session")
        assert refused.value.refusal.code == "session_unknown"


@virtual
async def test_every_beat_is_answered_with_the_epoch() -> None:
    async with stage() as s:
        player = await s.join("n1")
        await player.beat()
        await s.until(lambda: bool(player.beats))
        assert player.beats[0].epoch == s.state.epoch
        assert player.beats[0].sequence == 1


@virtual
async def test_a_slow_agent_loses_its_stream_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "INSTRUCTIONS_MAX", 2)
    async with stage() as s:
        player = await s.register("n1")
        player._listening.cancel()
        await player.say_inventory()
        jobs = [await s.submit() for _ in range(4)]
        await s.pause()
        with pytest.raises(StokerError) as refused:
            await player.beat()
        assert refused.value.refusal.code == "stream_overflow"
        monkeypatch.undo()
        again = await s.join("n1")
        await again.next_start(4)
        assert sorted(start.key.job for start in again.starts) == jobs


@virtual
async def test_a_forgotten_node_loses_its_stream_and_comes_back_by_registering() -> None:
    async with stage() as s:
        player = await s.join("n1")
        await s.committer.ask(ForgetNode(by=ANNA, node=player.node, force=True))
        await player.over.wait()
        again = await s.join("n1")
        assert s.state.node_state(again.node) is NodeState.READY
        await s.submit()
        await again.next_start()


@virtual
async def test_an_orphan_task_is_told_to_stop_and_its_gpus_are_free_once_it_ended() -> None:
    async with stage() as s:
        stray = TaskKey((await s.submit(gpus=100)), 7, 0)
        player = await s.join("n1", 2, running(stray, "n1-0", "n1-1"))
        await s.until(lambda: bool(player.stops))
        assert (player.stops[0].key, player.stops[0].cause) == (stray, None)
        job = await s.submit(gpus=2)
        await s.pause(10)
        assert s.job(job).state is JobState.PENDING
        await player.end(stray, cause=EndCause.STOPPED)
        await player.next_start()


@virtual
async def test_the_leader_of_a_task_that_ended_makes_it_stopping() -> None:
    async with stage() as s:
        player = await s.join("n1")
        job = await s.submit()
        start = await player.next_start()
        await player.say_started(start.key)
        await player.beat(start.key)
        await s.until_state(job, JobState.STOPPING)
        assert not player.stops


@virtual
async def test_a_report_about_a_task_nobody_knows_costs_no_stream() -> None:
    async with stage() as s:
        player = await s.join("n1")
        await player.stream.receive(Beat(sequence=1, ending=(TaskKey(JobId(99), 1, 0),)))
        await player.beat()
        await s.until(lambda: len(player.beats) >= 1)
        assert not player.over.is_set()


@virtual
async def test_a_started_that_is_refused_ends_the_stream_and_the_next_inventory_says_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage() as s:
        player = await s.join("n1")
        job = await s.submit()
        start = await player.next_start()
        tell = s.committer.tell

        def busy(command: Command) -> tuple[Event, ...]:
            if isinstance(command, ReportStarted):
                raise StokerError(refuse("overloaded", "too much waits for the disk", "try again"))
            return tell(command)

        with monkeypatch.context() as patch:
            patch.setattr(s.committer, "tell", busy)
            with pytest.raises(StokerError):
                await player.say_started(start.key)
        await player.over.wait()
        assert isinstance(player.ended, StokerError)
        assert player.ended.refusal.code == "overloaded"
        assert s.job(job).state is JobState.STARTING
        await s.join("n1", 8, running(start.key, *start.gpus))
        assert s.job(job).state is JobState.RUNNING


# --- output of tasks ----------------------------------------------------------------------------------------------


async def read(s: Stage, node: str = "n1") -> LogChunk:
    key = TaskKey(await s.submit(), 1, 0)
    return await s.control.sessions.read_log(LogPlace(NodeName(node), key), 0, 100)


@virtual
async def test_output_is_read_from_the_node_that_has_it() -> None:
    async with stage() as s:
        player = await s.join("n1")
        reading = asyncio.ensure_future(read(s))
        async for request in s.control.sessions.opened(player.session).log.requests():
            chunk = LogChunk(request=request.request, offset=0, data=b"hello", size=5, ended=True)
            s.control.sessions.opened(player.session).log.answer(chunk)
            break
        assert (await reading).data == b"hello"


@virtual
async def test_output_of_a_node_without_a_stream_is_unreachable() -> None:
    async with stage() as s:
        with pytest.raises(StokerError) as refused:
            await read(s)
        assert refused.value.refusal.code == "node_unreachable"


@virtual
async def test_an_agent_that_answers_no_read_is_given_up_after_a_while() -> None:
    async with stage() as s:
        await s.join("n1")
        began = s.control.clock.mono()
        with pytest.raises(StokerError) as refused:
            await read(s)
        assert refused.value.refusal.code == "node_unreachable"
        assert s.control.clock.mono() - began < 15


@virtual
async def test_a_read_ends_with_the_stream_that_it_waits_for() -> None:
    async with stage() as s:
        player = await s.join("n1")
        reading = asyncio.ensure_future(read(s))
        await s.pause()
        player.leave()
        with pytest.raises(StokerError) as refused:
            await reading
        assert refused.value.refusal.code == "node_unreachable"


@virtual
async def test_output_that_the_node_does_not_have_is_unavailable() -> None:
    async with stage() as s:
        player = await s.join("n1")
        reading = asyncio.ensure_future(read(s))
        async for request in s.control.sessions.opened(player.session).log.requests():
            chunk = LogChunk(request=request.request, offset=0, data=b"", size=0, ended=True, error="no such file")
            s.control.sessions.opened(player.session).log.answer(chunk)
            break
        with pytest.raises(StokerError) as refused:
            await reading
        assert refused.value.refusal.code == "log_unavailable"
        assert "no such file" in refused.value.refusal.message


@virtual
async def test_reads_beyond_the_bound_are_refused_at_once() -> None:
    async with stage() as s:
        await s.join("n1")
        reads = [asyncio.ensure_future(read(s)) for _ in range(65)]
        done, _ = await asyncio.wait(reads, timeout=5)
        (refused,) = [task.exception() for task in done]
        assert isinstance(refused, StokerError)
        assert refused.refusal.code == "too_many_streams"
        await asyncio.wait(reads)
        assert all(task.exception() for task in reads)


@virtual
async def test_an_end_that_the_node_keeps_and_this_log_lacks_is_asked_for_and_its_task_is_not_taken_for_gone() -> None:
    """S9: the log is older than the end, as after a restore."""
    async with stage() as s:
        player = await s.join("n1")
        job, other = await s.submit(), await s.submit()
        start, second = await player.next_start(), await player.next_start(2)
        await player.say_started(start.key)
        player.leave()
        player = await s.register("n1")
        kept = (TaskKey(JobId(9_999), 1, 0), start.key, second.key)
        await player.stream.receive(TaskInventory(boot_id="boot-1", tasks=(), kept=kept))
        await s.until(lambda: len(player.stops) == 2)
        assert {stop.key for stop in player.stops} == {start.key, second.key}, "what it doesn't know it doesn't ask for"
        assert player.starts == [], "the node knows the second one too"
        assert s.job(job).state is JobState.RUNNING
        await player.end(start.key, exit_code=7)
        await player.end(second.key, exit_code=0)
        assert (s.job(job).exit_code, len(s.job(job).attempts)) == (7, 1)
        assert (s.job(other).exit_code, len(s.job(other).attempts)) == (0, 1)


@virtual
async def test_a_node_whose_figures_are_read_is_told_so_once_its_inventory_was_compared_and_on_each_stream() -> None:
    def watches(player: Player) -> int:
        return sum(isinstance(message, FigureWatch) for message in player.heard)

    async with stage() as s:
        player = await s.register("n1")
        s.control.sessions.watch_figures([player.node])
        await s.pause(1)
        assert watches(player) == 0, "nothing leaves before the inventory"
        await player.say_inventory()
        for _ in range(3):
            s.control.sessions.watch_figures([player.node, NodeName("nobody")])
            await s.pause(0.1)
        assert watches(player) == 1
        player.leave()
        player = await s.join("n1")
        s.control.sessions.watch_figures([player.node])
        await s.pause(0.1)
        assert watches(player) == 1, "a new stream is told anew"
        for number in range(WATCHED_MAX):
            await s.join(f"other-{number}")
        await s.pause(20)
        s.control.sessions.watch_figures(list(s.state.nodes))
        await s.pause(0.1)
        assert watches(player) == 1, "a page of more nodes than that has them as they come"
