"""Rules D1 to D5 of `agent/delivery.py`, and A8 of `agent/daemon.py` (the runner dies), on virtual time."""

import asyncio
from collections.abc import Collection

import pytest

from stoker.agent.gpu_ports import NoGpuCare
from stoker.agent.logs import LOG_BYTES_MAX
from stoker.brain.domain.ids import GpuUuid
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.report import LogRequest, Registration, Started, TaskInventory, TaskPhase, sum_of
from tests.agent.twins import (
    Node,
    TwinControl,
    TwinRunner,
    TwinSession,
    exited,
    gpu,
    key,
    on_virtual_time,
    registration,
    running,
    start,
    stop,
)
from tests.rig.sim_ports import SimClock
from tests.rig.virtual_loop import run_virtual

# --- ends -------------------------------------------------------------------------------------------------------


@on_virtual_time
async def test_an_end_is_repeated_until_it_is_answered_and_only_then_settled() -> None:
    async with Node() as node:
        node.control.loses_ends = True
        await node.connected()
        await running(node)
        node.runner.end(key(1), exited(4))
        await asyncio.sleep(60)
        assert node.runner.settled == []
        node.control.loses_ends = False
        await node.until(lambda: node.runner.settled)
        assert [one.end.exit_code for one in node.control.finished] == [4]


@on_virtual_time
async def test_an_end_whose_answer_was_lost_is_sent_again() -> None:
    async with Node() as node:
        node.control.loses_answers = True
        await node.connected()
        await running(node)
        node.runner.end(key(1), exited())
        await node.until(lambda: len(node.control.finished) >= 2)
        node.control.loses_answers = False
        await node.until(lambda: node.runner.settled)
        assert set(node.finished()) == {(key(1), EndCause.EXITED)}


@on_virtual_time
async def test_ends_from_a_time_without_control_plane_arrive_soon_after_it_is_back() -> None:
    """Fault 10: partition the agent, let the work end, heal: the ledger comes back to zero."""
    async with Node() as node:
        await node.connected()
        for job in range(1, 41):
            await running(node, job=job)
        node.control.reachable = False
        node.control.break_stream()
        for job in range(1, 41):
            node.runner.end(key(job), exited(job % 3))
        await asyncio.sleep(600)
        node.control.reachable = True
        await node.connected(streams=2)
        await node.until(lambda: len(node.runner.settled) == 40, within_s=2)
        assert {one.key: one.end.exit_code for one in node.control.finished} == {key(j): j % 3 for j in range(1, 41)}


@on_virtual_time
async def test_one_end_that_hangs_holds_up_no_other() -> None:
    async with Node() as node:
        await node.connected()
        await running(node, job=1)
        await running(node, job=2)
        node.control.commit_s = 25.0
        node.runner.end(key(1), exited())
        await asyncio.sleep(0.1)
        node.control.commit_s = 0.001
        node.runner.end(key(2), exited())
        await node.until(lambda: node.finished() == [(key(2), EndCause.EXITED)], within_s=1)


@on_virtual_time
async def test_a_restarted_agent_readopts_running_work_and_delivers_ends_of_its_absence() -> None:
    """Fault 34: kill -9 the agent under a job, restart it: same task, exit code kept."""
    control, runner = TwinControl(), TwinRunner()
    async with Node(control, runner) as node:
        await node.connected()
        await running(node, job=1, gpus=(0,))
        await running(node, job=2, gpus=(1,))
    runner.end(key(2), exited(42))
    async with Node(control, runner) as node:
        await node.connected(streams=2)
        inventory = control.session.reports[0]
        assert isinstance(inventory, TaskInventory)
        phases = {task.key: task.phase for task in inventory.tasks}
        assert phases == {key(1): TaskPhase.RUNNING, key(2): TaskPhase.ENDED}
        await node.until(lambda: control.finished)
        assert [(one.key, one.end.exit_code) for one in control.finished] == [(key(2), 42)]
        control.tell(start(key(1), gpus=(0,)))
        await node.until(lambda: any(isinstance(report, Started) for report in control.session.reports))
        assert len(runner.starts) == 2


@on_virtual_time
async def test_stopping_the_agent_neither_stops_nor_completes_a_task() -> None:
    """Fault 42: a stopped agent marked the running task completed."""
    control, runner = TwinControl(), TwinRunner()
    async with Node(control, runner) as node:
        await node.connected()
        await running(node)
    assert runner.stops == []
    assert control.finished == []
    assert not runner.was_shut_down


@on_virtual_time
async def test_an_end_that_is_asked_for_while_it_is_on_its_way_is_sent_once_more() -> None:
    """It may have arrived before the inventory that named its task as running: then the ledger still waits for it."""
    async with Node() as node:
        await node.connected()
        await running(node)
        node.control.commit_s = 1.0
        node.runner.end(key(1), exited(3))
        await asyncio.sleep(0.5)
        node.control.tell(stop(key(1)))
        await node.until(lambda: len(node.control.finished) == 2)
        await node.until(lambda: node.runner.settled == [key(1)])


@on_virtual_time
async def test_an_end_that_is_asked_for_while_the_runner_is_told_that_it_may_go_is_sent_once_more() -> None:
    class SlowRunner(TwinRunner):
        async def settle(self, key: TaskKey) -> None:
            await asyncio.sleep(1)
            await super().settle(key)

    async with Node(runner=SlowRunner()) as node:
        await node.connected()
        await running(node)
        node.runner.end(key(1), exited(3))
        await node.until(lambda: node.control.finished)
        await asyncio.sleep(0.5)
        node.control.tell(stop(key(1)))
        await node.until(lambda: len(node.control.finished) == 2)


# --- the runner dies --------------------------------------------------------------------------------------------


@on_virtual_time
async def test_tasks_of_a_killed_runner_are_reported_lost_on_a_new_stream() -> None:
    async with Node() as node:
        await node.connected()
        await running(node, gpus=(0,))
        node.runner.die()
        await node.connected(streams=2)
        await node.until(lambda: node.control.finished)
        assert node.finished() == [(key(1), EndCause.RUNNER_LOST)]
        await running(node, job=2, gpus=(0,))


async def die_during_a_start(node: Node, runner: TwinRunner) -> None:
    await node.connected()
    node.control.tell(start(key(1), gpus=(0,)))
    await asyncio.sleep(0.5)
    runner.die()


@on_virtual_time
async def test_a_start_that_died_with_the_runner_is_in_no_inventory_and_may_come_again() -> None:
    runner = TwinRunner()
    runner.start_s = 1.0
    async with Node(runner=runner) as node:
        await die_during_a_start(node, runner)
        await node.connected(streams=2)
        inventory = node.control.session.reports[0]
        assert isinstance(inventory, TaskInventory)
        assert inventory.tasks == ()
        node.control.tell(start(key(1), gpus=(0,)))
        await node.until(lambda: runner.starts)
        await asyncio.sleep(5)
        assert len(runner.starts) == 1


@on_virtual_time
async def test_a_start_of_the_old_stream_that_takes_its_time_reaches_no_later_runner() -> None:
    runner = TwinRunner()
    runner.start_s = 30.0
    async with Node(runner=runner) as node:
        await die_during_a_start(node, runner)
        await asyncio.sleep(20)
        assert runner.connects == 1, "the next one is only connected once that call is over"
        await node.connected(streams=2)
        assert runner.starts == []


@on_virtual_time
async def test_an_end_that_could_not_be_settled_is_offered_again_by_the_next_runner() -> None:
    async with Node() as node:
        await node.connected()
        await running(node)
        node.control.commit_s = 1.0
        node.runner.end(key(1), exited(5))
        await asyncio.sleep(0.5)
        node.runner.alive = False  # dies before the settle reaches it, noticed a little later
        await node.until(lambda: node.control.finished)
        node.runner.die()
        await node.until(lambda: node.runner.settled)
        assert {one.end.exit_code for one in node.control.finished} == {5}


# --- the node changes -------------------------------------------------------------------------------------------


@on_virtual_time
async def test_a_node_whose_driver_came_up_late_registers_anew_and_keeps_its_work() -> None:
    """Faults 45 and 69: the agent starts with zero GPUs, later there are four."""
    async with Node(gpus=0) as node:
        await node.connected()
        await running(node)
        node.daemon.amend(registration(4))
        await node.connected(streams=2)
        assert [len(one.inventory.gpus) for one in node.control.registered] == [0, 4]
        await running(node, job=2, gpus=(3,))
        assert node.runner.stops == []


@on_virtual_time
async def test_an_amendment_while_the_agent_is_registering_is_registered_too() -> None:
    """There is no stream to cut then, and the control plane would keep the older inventory."""

    class FarControl(TwinControl):
        async def connect(self, registration: Registration) -> TwinSession:
            session = await super().connect(registration)
            await asyncio.sleep(1)
            return session

    async with Node(FarControl()) as node:
        await node.until(lambda: node.control.registered)
        node.daemon.amend(registration(6))
        await asyncio.sleep(60)
        assert node.control.registered[-1] == registration(6)
        assert not node.control.session.broken.is_set()


@on_virtual_time
async def test_a_look_that_found_nothing_new_breaks_no_stream() -> None:
    async with Node(gpus=2) as node:
        await node.connected()
        node.daemon.amend(registration(2))
        await asyncio.sleep(30)
        assert len(node.control.sessions) == 1


# --- logs -------------------------------------------------------------------------------------------------------


@on_virtual_time
async def test_output_is_read_by_offset_and_from_the_end() -> None:
    async with Node() as node:
        await node.connected()
        node.runner.outputs[key(1)] = b"hello world"
        for number, offset in ((1, 6), (2, -5)):
            node.control.session.wanted.put_nowait(LogRequest(request=number, key=key(1), offset=offset, limit=100))
        await node.until(lambda: len(node.control.chunks) == 2)
        assert [(c.request, c.offset, c.data, c.size) for c in node.control.chunks] == [
            (1, 6, b"world", 11),
            (2, 6, b"world", 11),
        ]


@on_virtual_time
async def test_a_greedy_log_request_is_answered_with_one_mebibyte() -> None:
    async with Node() as node:
        await node.connected()
        node.runner.outputs[key(1)] = bytes(3 * LOG_BYTES_MAX)
        node.control.session.wanted.put_nowait(LogRequest(request=1, key=key(1), offset=0, limit=1 << 40))
        await node.until(lambda: node.control.chunks)
        assert len(node.control.chunks[0].data) == LOG_BYTES_MAX


@on_virtual_time
async def test_a_log_that_isnt_there_is_answered_with_the_reason() -> None:
    async with Node() as node:
        await node.connected()
        node.control.session.wanted.put_nowait(LogRequest(request=8, key=key(1), offset=0, limit=10))
        await node.until(lambda: node.control.chunks)
        assert node.control.chunks[0].request == 8
        assert "no output" in node.control.chunks[0].error


# --- any order --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment_ms", range(0, 60, 3))
def test_whenever_the_stream_breaks_each_task_runs_once_and_each_end_arrives(moment_ms: int) -> None:
    async def story() -> None:
        runner = TwinRunner()
        runner.start_s = 0.02
        async with Node(runner=runner) as node:
            await node.connected()
            node.control.tell(start(key(1), gpus=(0,)))
            await asyncio.sleep(moment_ms / 1_000)
            node.control.break_stream()
            await node.connected(streams=2)
            inventory = node.control.session.reports[0]
            assert isinstance(inventory, TaskInventory)
            if key(1) not in [task.key for task in inventory.tasks]:
                node.control.tell(start(key(1), gpus=(0,)))  # C3 of the ledger: its start is sent again
            await node.until(lambda: runner.starts)
            runner.end(key(1), exited(6))
            await node.until(lambda: runner.settled)
            assert len(runner.starts) == 1
            assert {one.end.exit_code for one in node.control.finished} == {6}

    run_virtual(story)


# --- the gate ---------------------------------------------------------------------------------------------------


class Gate(NoGpuCare):
    """GPUs that are clean once it is opened."""

    def __init__(self) -> None:
        super().__init__(SimClock())
        self.opened = asyncio.Event()
        self.asked: list[tuple[list[str], bool]] = []
        self.fault = ""

    async def released(self, gpus: Collection[GpuUuid], *, went_well: bool) -> str:
        self.asked.append((list(gpus), went_well))
        await self.opened.wait()
        return self.fault


@on_virtual_time
async def test_an_end_is_told_only_once_the_gpus_of_its_task_are_clean_and_holds_up_no_other() -> None:
    gate = Gate()
    async with Node(care=gate) as node:
        await node.connected()
        await running(node, 1, gpus=(0, 1))
        await running(node, 2)
        node.runner.end(key(1), exited(4))
        node.runner.end(key(2), exited())
        await node.until(lambda: node.runner.settled)
        node.control.break_stream()
        await node.connected(streams=2)
        await asyncio.sleep(30)
        assert (gate.asked, node.finished()) == ([([gpu(0), gpu(1)], False)], [(key(2), EndCause.EXITED)])
        beat = node.daemon._observed.beat()
        assert (beat.ending, beat.tasks_sum) == ((key(1),), sum_of([key(1)])), "it is ending, as far as anybody knows"
        gate.fault = "GPU 0 (GPU-0): GPU is lost"
        gate.opened.set()
        await node.until(lambda: len(node.runner.settled) == 2)
        assert node.control.finished[-1].end.gpu_fault == gate.fault


@on_virtual_time
async def test_ends_from_the_absence_of_an_agent_are_told_only_once_their_gpus_are_clean_too() -> None:
    control, runner, gate = TwinControl(), TwinRunner(), Gate()
    async with Node(control, runner) as node:
        await node.connected()
        await running(node, 1, gpus=(0, 1))
        await running(node, 2)
    runner.end(key(1), exited())
    runner.end(key(2), exited())
    async with Node(control, runner, care=gate) as node:
        await node.connected(streams=2)
        await asyncio.sleep(30)
        assert (gate.asked, node.finished()) == ([([gpu(0), gpu(1)], True)], [(key(2), EndCause.EXITED)])
        gate.opened.set()
        await node.until(lambda: len(runner.settled) == 2)


@on_virtual_time
async def test_an_end_waits_for_the_registration_that_no_longer_offers_a_gpu_which_is_not_clean() -> None:
    class Dirty(Gate):
        async def released(self, gpus: Collection[GpuUuid], *, went_well: bool) -> str:
            node.daemon.amend(registration(3))
            return ""

    async with Node(care=Dirty()) as node:
        await node.connected()
        await running(node, 1, gpus=(3,))
        node.runner.end(key(1), exited())
        await node.until(lambda: node.control.finished)
        assert [len(each.inventory.gpus) for each in node.control.registered] == [4, 3]
        first, second = node.control.sessions
        assert first.broken.is_set()
        assert not second.broken.is_set()
