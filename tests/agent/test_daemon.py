"""Rules A1 to A7 of `agent/daemon.py`, on virtual time."""

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from stoker.agent.gpu_ports import Holders, NoGpuCare
from stoker.agent.instructions import CALLS_MAX, CHECKPOINT_DIR
from stoker.agent.ports import NoFolders
from stoker.brain.domain.gpu_telemetry import FigureWatch
from stoker.brain.domain.ids import Epoch, JobId
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.report import Beat, Started, TaskInventory, TaskPhase, TaskStatus
from tests.agent.twins import (
    Node,
    TwinControl,
    TwinRunner,
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

# --- the stream -------------------------------------------------------------------------------------------------


@on_virtual_time
async def test_the_first_report_on_each_stream_is_the_inventory() -> None:
    async with Node() as node:
        await node.connected()
        await running(node, gpus=(2,))
        node.control.break_stream()
        await node.connected(streams=2)
        first = node.control.session.reports[0]
        assert isinstance(first, TaskInventory)
        assert first.boot_id == "boot-1"
        assert [(task.key, task.phase, task.gpus) for task in first.tasks] == [(key(1), TaskPhase.RUNNING, (gpu(2),))]


@on_virtual_time
async def test_nothing_is_reported_before_the_runner_gave_its_inventory() -> None:
    """Else the control plane would be told that nothing runs here."""
    runner = TwinRunner()
    runner.can_start = False
    async with Node(runner=runner) as node:
        await asyncio.sleep(20)
        assert [session.reports for session in node.control.sessions] == [[]], "it says only why (A20)"
        runner.can_start = True
        await node.connected()


@on_virtual_time
async def test_a_sign_of_life_goes_out_at_once_and_every_heartbeat_also_while_idle() -> None:
    async with Node() as node:
        await node.connected()
        await asyncio.sleep(60.5)
        beats = [r.sequence for r in node.control.session.reports if isinstance(r, Beat)]
        assert beats == list(range(1, 14))


@on_virtual_time
async def test_a_task_longer_than_many_heartbeats_is_started_once_and_never_touched() -> None:
    async with Node() as node:
        await node.connected()
        await running(node)
        await asyncio.sleep(3_600)
        assert len(node.runner.starts) == 1
        assert node.runner.stops == []
        assert len([r for r in node.control.session.reports if isinstance(r, Started)]) == 1
        assert node.control.finished == []


@on_virtual_time
async def test_a_forgotten_node_registers_again_by_itself() -> None:
    """The control plane drops a node's stream; the agent's next words are its registration."""
    async with Node() as node:
        await node.connected()
        node.control.break_stream()
        await node.connected(streams=2)
        assert node.control.registered == [registration(4), registration(4)]


@on_virtual_time
async def test_a_short_cut_neither_stops_nor_restarts_a_running_task() -> None:
    async with Node() as node:
        await node.connected()
        await running(node)
        node.control.reachable = False
        node.control.break_stream()
        await asyncio.sleep(300)
        node.control.reachable = True
        await node.connected(streams=2)
        assert len(node.runner.starts) == 1
        assert node.runner.stops == []
        assert node.control.finished == []


# --- starts -----------------------------------------------------------------------------------------------------


@on_virtual_time
async def test_a_repeated_start_is_answered_and_not_acted_on() -> None:
    async with Node() as node:
        await node.connected()
        await running(node)
        node.control.tell(start(key(1)))
        await node.until(lambda: len([r for r in node.control.session.reports if isinstance(r, Started)]) == 2)
        first, second = (r for r in node.control.session.reports if isinstance(r, Started))
        assert first == second
        assert len(node.runner.starts) == 1


@on_virtual_time
async def test_a_start_repeated_while_the_first_is_on_its_way_to_the_runner_is_not_acted_on() -> None:
    runner = TwinRunner()
    runner.start_s = 1.0
    async with Node(runner=runner) as node:
        await node.connected()
        node.control.tell(start(key(1)))
        node.control.tell(start(key(1)))
        await node.until(lambda: runner.starts)
        await asyncio.sleep(5)
        assert len(runner.starts) == 1


@on_virtual_time
async def test_a_start_that_comes_after_the_end_is_answered_with_the_end() -> None:
    async with Node() as node:
        await node.connected()
        await running(node)
        node.runner.end(key(1), exited(3))
        await node.until(lambda: key(1) in node.runner.settled)
        node.control.tell(start(key(1)))
        await node.until(lambda: len(node.control.finished) == 2)
        assert [one.end.exit_code for one in node.control.finished] == [3, 3]
        assert len(node.runner.starts) == 1


@on_virtual_time
async def test_a_start_from_an_earlier_stream_is_dropped() -> None:
    runner = TwinRunner()
    runner.start_s = 1.0
    async with Node(runner=runner) as node:
        await node.connected()
        for job in range(1, CALLS_MAX + 1):
            node.control.tell(start(key(job)))
        node.control.tell(start(key(CALLS_MAX + 1)))  # waits behind the others when the stream breaks
        await asyncio.sleep(0.5)
        node.control.break_stream()
        await node.connected(streams=2)
        await asyncio.sleep(60)
        assert len(runner.starts) == CALLS_MAX
        assert [task.start.key for task in runner.starts if task.start.key == key(CALLS_MAX + 1)] == []


@on_virtual_time
async def test_a_start_that_may_have_reached_the_runner_is_in_the_next_inventory() -> None:
    """O2: an inventory without it would let the control plane start it elsewhere."""
    runner = TwinRunner()
    runner.start_s = 1.0
    async with Node(runner=runner) as node:
        await node.connected()
        node.control.tell(start(key(1)))
        await asyncio.sleep(0.5)
        node.control.break_stream()
        await node.connected(streams=2)
        inventory = node.control.session.reports[0]
        assert isinstance(inventory, TaskInventory)
        assert [task.key for task in inventory.tasks] == [key(1)]


@on_virtual_time
async def test_an_instruction_of_an_older_epoch_is_ignored_and_counted() -> None:
    control = TwinControl()
    control.epoch = Epoch(7)
    async with Node(control) as node:
        await node.connected()
        control.tell(start(key(1), epoch=7))
        await node.until(lambda: node.runner.starts)
        control.tell(start(key(2), epoch=6))
        control.tell(stop(key(1), epoch=6))
        await asyncio.sleep(10)
        assert [task.start.key for task in node.runner.starts] == [key(1)]
        assert node.runner.stops == []
        assert node.notes.counts["stale_instructions_total"] == 2


@on_virtual_time
async def test_a_control_plane_of_an_older_epoch_gets_no_stream() -> None:
    async with Node() as node:
        node.control.epoch = Epoch(7)
        await node.connected()
        node.control.epoch = Epoch(6)
        node.control.break_stream()
        await node.until(lambda: len(node.control.sessions) >= 2)
        await asyncio.sleep(5)
        assert all(session.reports == [] for session in node.control.sessions[1:])


@on_virtual_time
async def test_a_start_on_a_gpu_that_is_held_is_the_nodes_failure_and_names_the_holder() -> None:
    """The job did nothing wrong: it is requeued, where a failed start would end it."""
    async with Node() as node:
        await node.connected()
        await running(node, job=1, gpus=(0, 1))
        node.control.tell(start(key(2), gpus=(1, 2)))
        await node.until(lambda: node.control.finished)
        (finished,) = node.control.finished
        assert finished.key == key(2)
        assert finished.end.cause is EndCause.NEVER_STARTED
        assert "GPU-1" in finished.end.error
        assert "job 1, attempt 1, rank 0" in finished.end.error
        assert [task.start.key for task in node.runner.starts] == [key(1)]


@on_virtual_time
async def test_sharers_of_a_gpu_start_beside_each_other_up_to_the_whole_of_it() -> None:
    async with Node() as node:
        await node.connected()
        for job, share in ((1, 500), (2, 400), (3, 200)):
            node.control.tell(replace(start(key(job), gpus=(0,)), gpu_share=share))
        await node.until(lambda: node.control.finished and len(node.runner.starts) == 2)
        (finished,) = node.control.finished
        assert (finished.key, finished.end.cause) == (key(3), EndCause.NEVER_STARTED)
        assert "still hold 0.9 of it" in finished.end.error


@on_virtual_time
async def test_who_has_a_gpu_for_itself_starts_beside_no_sharer_and_no_sharer_beside_it() -> None:
    async with Node() as node:
        await node.connected()
        node.control.tell(replace(start(key(1), gpus=(0,)), gpu_share=1))
        node.control.tell(start(key(2), gpus=(0,)))
        await running(node, job=3, gpus=(1,))
        node.control.tell(replace(start(key(4), gpus=(1,)), gpu_share=1))
        await node.until(lambda: len(node.control.finished) == 2)
        assert sorted(node.finished()) == [(key(2), EndCause.NEVER_STARTED), (key(4), EndCause.NEVER_STARTED)]


@on_virtual_time
async def test_a_gpu_is_free_here_as_soon_as_its_holders_tree_is_gone() -> None:
    async with Node() as node:
        await node.connected()
        await running(node, job=1, gpus=(0,))
        node.runner.end(key(1), exited())
        await node.until(lambda: node.control.finished)
        await running(node, job=2, gpus=(0,))
        assert node.finished() == [(key(1), EndCause.EXITED)]


@on_virtual_time
async def test_a_task_whose_leader_ended_still_holds_its_gpus() -> None:
    async with Node() as node:
        await node.connected()
        await running(node, job=1, gpus=(0,))
        node.runner.leader_ends(key(1))
        node.control.tell(start(key(2), gpus=(0,)))
        await node.until(lambda: node.control.finished)
        assert node.finished() == [(key(2), EndCause.NEVER_STARTED)]


@on_virtual_time
async def test_a_start_on_a_gpu_that_this_node_lacks_fails_and_names_it() -> None:
    async with Node(gpus=1) as node:
        await node.connected()
        node.control.tell(start(key(1), gpus=(0, 5)))
        await node.until(lambda: node.control.finished)
        assert "GPU-5 isn't on this node" in node.control.finished[0].end.error


@on_virtual_time
async def test_a_job_sees_the_nodes_variables_unless_the_control_plane_gave_them() -> None:
    async with Node(folders=_OneFolder()) as node:
        await node.connected()
        node.control.tell(start(key(9), env={"PATH": "/venv/bin", "STOKER_JOB_ID": "9"}))
        await node.until(lambda: node.runner.starts)
        assert node.runner.starts[0].env == {
            "PATH": "/venv/bin",
            "HOME": "/home/agent",
            "STOKER_JOB_ID": "9",
            CHECKPOINT_DIR: "/checkpoints/9",
        }
        assert node.runner.starts[0].folder == "/checkpoints/9", "whoever starts it makes the folder"


@on_virtual_time
async def test_a_job_whose_checkpoint_folder_it_cant_have_now_is_requeued_by_the_node_and_holds_up_nobody() -> None:
    async with Node(folders=_Hanging()) as node:
        await node.connected()
        node.control.tell(start(key(1)))
        await node.until(lambda: node.control.finished)
        assert node.control.finished[0].end.cause is EndCause.NEVER_STARTED
        assert "being removed" in node.control.finished[0].end.error
        assert node.runner.starts == []


class _OneFolder(NoFolders):
    async def claim(self, job: JobId) -> str:
        return f"/checkpoints/{job}"


class _Hanging(NoFolders):
    async def claim(self, job: JobId) -> str:
        raise OSError(110, "it is being removed for more than 2 s", f"/checkpoints/{job}")


# --- stops ------------------------------------------------------------------------------------------------------


@on_virtual_time
async def test_a_stop_reaches_the_runner_with_its_grace() -> None:
    async with Node() as node:
        await node.connected()
        await running(node)
        node.control.tell(stop(key(1)))
        await node.until(lambda: node.control.finished)
        assert node.runner.stops == [(key(1), 10_000)]
        assert node.finished() == [(key(1), EndCause.STOPPED)]


@on_virtual_time
async def test_a_stop_of_a_task_that_never_came_is_answered_with_proof_that_it_is_gone() -> None:
    """Fault 7: a cancel between placement and start must give the GPU back."""
    async with Node() as node:
        await node.connected()
        node.control.tell(stop(key(5)))
        await node.until(lambda: node.control.finished)
        assert node.finished() == [(key(5), EndCause.GONE)]


@on_virtual_time
async def test_what_was_declared_gone_never_starts_afterwards() -> None:
    async with Node() as node:
        await node.connected()
        node.control.tell(stop(key(5)))
        node.control.tell(start(key(5)))
        await node.until(lambda: len(node.control.finished) >= 1)
        await asyncio.sleep(30)
        assert node.runner.starts == []
        assert {cause for _, cause in node.finished()} == {EndCause.GONE}


@on_virtual_time
async def test_a_stop_of_what_ended_an_agents_life_ago_is_answered_too() -> None:
    """The runner keeps the record, not an unsettled end; the control plane must not wait for ever."""
    runner = TwinRunner()
    runner.records[key(1)] = TaskStatus(key=key(1), phase=TaskPhase.ENDED)
    runner.settled.append(key(1))
    async with Node(runner=runner) as node:
        await node.connected()
        node.control.tell(stop(key(1)))
        await node.until(lambda: node.control.finished)
        assert node.finished() == [(key(1), EndCause.GONE)]


@on_virtual_time
async def test_an_ending_task_is_told_at_once_and_in_every_beat() -> None:
    async with Node() as node:
        await node.connected()
        await running(node)
        before = len(node.control.session.reports)
        node.runner.leader_ends(key(1))
        await node.until(lambda: len(node.control.session.reports) > before, within_s=0.1)
        told = node.control.session.reports[-1]
        assert isinstance(told, Beat)
        assert told.ending == (key(1),)
        await asyncio.sleep(5.1)
        later = node.control.session.reports[-1]
        assert isinstance(later, Beat)
        assert later.ending == (key(1),)


# --- figures ----------------------------------------------------------------------------------------------------


class Watched(NoGpuCare):
    """GPUs that say at once that there is news, whenever they are watched."""

    tell: Callable[[], None]

    async def run(self, holders: Callable[[], Holders | None], tell: Callable[[], None]) -> None:
        self.tell = tell

    def watch(self, asked: FigureWatch) -> None:
        self.tell()


@on_virtual_time
async def test_a_control_plane_that_watches_gets_a_beat_when_there_are_figures_and_waits_for_no_heartbeat() -> None:
    def beats() -> int:
        return sum(isinstance(report, Beat) for report in node.control.session.reports)

    async with Node(care=Watched(SimClock())) as node:
        await node.connected()
        before = beats()
        node.control.session.down.put_nowait(FigureWatch(every_ms=1_000, for_ms=10_000))
        await node.until(lambda: beats() == before + 1, within_s=1.0)
