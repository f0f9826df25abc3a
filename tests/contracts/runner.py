"""What must every Runner do? Inherit this, give a `node`, and the rules run on it.

A node outlives the agents and the runner on it: `node.agent()` is the next agent process. Tests cite the rules of the
port (R1 to R9); what only real processes can show is in `tests/real/test_runner*.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import msgspec
import pytest

from stoker.agent.ports import (
    Runner,
    RunnerGone,
    RunnerInventory,
    RunnerReport,
    StartTask,
    TaskEnding,
    TaskForgotten,
    TaskOver,
    TaskRunning,
    TaskWarning,
)
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause, TaskEnd
from stoker.brain.domain.report import TaskPhase
from stoker.brain.domain.units import Mono

WAIT_S_MAX = 20.0
"""Far above what anything here needs: a test that hangs fails instead."""
LONG_S = 300.0
POLL_S = 0.01

ReportT = TypeVar("ReportT")


def warning(number: int = 10, lead_s: float = 0.0) -> TaskWarning:
    return TaskWarning(signal=number, text="{}\n", lead_ms=int(lead_s * 1_000))


class RunnerNode(Protocol):
    """A machine on which tasks run."""

    def agent(self) -> Runner:
        """The Runner port of an agent that has just been started."""
        ...

    def task(self, key: TaskKey, *, lasts_s: float, exit_code: int = 0, stubborn: bool = False) -> StartTask:
        """A task that ends by itself after `lasts_s`; a stubborn one doesn't end on a terminate signal."""
        ...

    def noting(self, key: TaskKey, number: int) -> StartTask:
        """A task that goes on and on, and notes each signal of that number."""
        ...

    def signals(self, key: TaskKey) -> int:
        """How many it has noted."""
        ...

    def on_port(self, task: StartTask, *, taken: bool) -> StartTask:
        """The same task with a port to probe, which somebody listens on or nobody does."""
        ...

    def kill_runner(self) -> None:
        """As kill -9 does."""
        ...

    def now(self) -> Mono:
        """On the clock of its agents."""
        ...

    def lives(self, key: TaskKey) -> bool:
        """Is any process of it there?"""
        ...

    def starts(self, key: TaskKey) -> int:
        """How often a process was started for it."""
        ...


class Listener:
    """All that one agent hears from its runner."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.heard: list[RunnerReport] = []
        self._news = asyncio.Event()
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for report in self.runner.reports():
            self.heard.append(report)
            self._news.set()

    async def hear(self, kind: type[ReportT], wanted: Callable[[ReportT], bool] = lambda report: True) -> ReportT:
        """The first such report, waited for."""
        async with asyncio.timeout(WAIT_S_MAX):
            while True:
                for report in self.heard:
                    if isinstance(report, kind) and wanted(report):
                        return report
                self._news.clear()
                await self._news.wait()

    async def inventory(self) -> RunnerInventory:
        return await self.hear(RunnerInventory)

    async def running(self, key: TaskKey) -> TaskRunning:
        return await self.hear(TaskRunning, lambda report: report.key == key)

    async def end(self, key: TaskKey) -> TaskEnd:
        return (await self.hear(TaskOver, lambda report: report.key == key)).end

    async def known_end(self, key: TaskKey) -> TaskEnd:
        """Of a task that may have ended before this agent came: in the inventory, or following it."""
        ends = {over.key: over.end for over in (await self.inventory()).ends}
        end = ends.get(key) or await self.end(key)
        assert end.cause is EndCause.EXITED or end.error, "people are told why"
        return end

    async def noted(self, node: RunnerNode, key: TaskKey, count: int) -> None:
        """Return once a task has noted so many signals."""
        async with asyncio.timeout(WAIT_S_MAX):
            while node.signals(key) < count:
                await asyncio.sleep(POLL_S)

    async def begun(self, node: RunnerNode, key: TaskKey) -> None:
        """It runs and does what its command says; a stubborn one ignores signals from here on."""
        await self.running(key)
        async with asyncio.timeout(WAIT_S_MAX):
            while not node.starts(key):
                await asyncio.sleep(POLL_S)

    def overs(self, key: TaskKey) -> list[TaskOver]:
        return [report for report in self.heard if isinstance(report, TaskOver) and report.key == key]

    async def leave(self) -> None:
        self._listening.cancel()
        await asyncio.wait({self._listening})
        close = getattr(self.runner, "close", None)
        if close is not None:
            await close()


@asynccontextmanager
async def agent_on(node: RunnerNode) -> AsyncIterator[Listener]:
    """An agent that connects, and at the end dies without a word."""
    runner = node.agent()
    await runner.connect()
    listener = Listener(runner)
    try:
        yield listener
    finally:
        await listener.leave()


def leased(task: StartTask, lease_ms: int) -> StartTask:
    return msgspec.structs.replace(task, start=msgspec.structs.replace(task.start, lease_ms=lease_ms))


def key(job: int, rank: int = 0) -> TaskKey:
    return TaskKey(JobId(job), 1, rank)


class RunnerContract:
    @pytest.fixture
    def node(self) -> RunnerNode:
        raise NotImplementedError("the implementation under test")

    async def test_the_first_report_is_an_inventory_and_a_new_node_has_nothing(self, node: RunnerNode) -> None:
        async with agent_on(node) as agent:
            inventory = await agent.inventory()
            assert (agent.heard, inventory.tasks, inventory.ends) == ([inventory], (), ())

    async def test_a_task_is_reported_running_and_then_over_with_its_exit_code(self, node: RunnerNode) -> None:
        async with agent_on(node) as agent:
            await agent.runner.start(node.task(key(1), lasts_s=0.1, exit_code=7))
            running = await agent.running(key(1))
            end = await agent.end(key(1))
            assert running.pid > 0
            assert (end.cause, end.exit_code, end.signal) == (EndCause.EXITED, 7, 0)
            order = [report for report in agent.heard if isinstance(report, TaskRunning | TaskOver)]
            assert order[0] == running, "running comes before over"

    async def test_the_same_start_twice_acts_once(self, node: RunnerNode) -> None:
        """R1: instructions arrive at least once."""
        async with agent_on(node) as agent:
            task = node.task(key(1), lasts_s=0.3)
            await agent.runner.start(task)
            await agent.runner.start(task)
            await agent.end(key(1))
            await agent.runner.start(task)
            await agent.runner.start(node.task(key(2), lasts_s=0.1))
            await agent.end(key(2))
            assert node.starts(key(1)) == 1

    async def test_a_stop_ends_the_task_as_stopped_and_nothing_of_it_lives(self, node: RunnerNode) -> None:
        async with agent_on(node) as agent:
            await agent.runner.start(node.task(key(1), lasts_s=LONG_S))
            await agent.running(key(1))
            await agent.runner.stop(key(1), 10_000)
            end = await agent.end(key(1))
            assert (end.cause, end.exit_code, end.signal) == (EndCause.STOPPED, None, 15)
            assert not node.lives(key(1))

    async def test_a_task_that_ignores_the_terminate_signal_is_killed_after_the_grace(self, node: RunnerNode) -> None:
        async with agent_on(node) as agent:
            await agent.runner.start(node.task(key(1), lasts_s=LONG_S, stubborn=True))
            await agent.begun(node, key(1))
            await agent.runner.stop(key(1), 300)
            await agent.hear(TaskEnding)
            end = await agent.end(key(1))
            assert (end.cause, end.signal) == (EndCause.STOPPED, 9)
            assert not node.lives(key(1))

    async def test_stopping_twice_gives_one_end(self, node: RunnerNode) -> None:
        """R3."""
        async with agent_on(node) as agent:
            await agent.runner.start(node.task(key(1), lasts_s=LONG_S, stubborn=True))
            await agent.begun(node, key(1))
            await agent.runner.stop(key(1), 300)
            await agent.runner.stop(key(1), 300)
            await agent.end(key(1))
            await agent.runner.stop(key(1), 0)
            await agent.runner.start(node.task(key(2), lasts_s=0.1))
            await agent.end(key(2))
            assert len(agent.overs(key(1))) == 1

    async def test_stopping_an_unknown_task_does_nothing(self, node: RunnerNode) -> None:
        async with agent_on(node) as agent:
            await agent.runner.stop(key(99), 0)
            await agent.runner.start(node.task(key(1), lasts_s=0.1))
            await agent.end(key(1))
            assert not agent.overs(key(99))

    async def test_a_port_that_somebody_listens_on_ends_the_task_before_it_starts(self, node: RunnerNode) -> None:
        async with agent_on(node) as agent:
            await agent.runner.start(node.on_port(node.task(key(1), lasts_s=0.1), taken=True))
            await agent.runner.start(node.on_port(node.task(key(2), lasts_s=0.1), taken=False))
            assert (await agent.end(key(1))).cause is EndCause.PORT_TAKEN
            assert (await agent.end(key(2))).cause is EndCause.EXITED
            assert node.starts(key(1)) == 0

    async def test_the_next_agent_adopts_what_runs_and_hears_its_exit_code(self, node: RunnerNode) -> None:
        async with agent_on(node) as first:
            await first.runner.start(node.task(key(1), lasts_s=1.0, exit_code=5))
            await first.running(key(1))
        async with agent_on(node) as second:
            (status,) = (await second.inventory()).tasks
            assert (status.key, status.phase) == (key(1), TaskPhase.RUNNING)
            assert (await second.end(key(1))).exit_code == 5
        assert node.starts(key(1)) == 1

    async def test_an_end_is_offered_to_each_agent_until_the_control_plane_has_it(self, node: RunnerNode) -> None:
        """R4."""
        async with agent_on(node) as first:
            await first.runner.start(node.task(key(1), lasts_s=0.1, exit_code=3))
            await first.end(key(1))
        async with agent_on(node) as second:
            (over,) = (await second.inventory()).ends
            assert (over.key, over.end.exit_code) == (key(1), 3)
            await second.runner.settle(key(1))
            await second.runner.start(node.task(key(2), lasts_s=0.1))
            await second.end(key(2))
        async with agent_on(node) as third:
            assert [over.key for over in (await third.inventory()).ends] == [key(2)]

    async def test_when_the_runner_is_killed_the_next_one_sweeps_and_says_so(self, node: RunnerNode) -> None:
        """R5."""
        async with agent_on(node) as agent:
            await agent.runner.start(node.task(key(1), lasts_s=LONG_S, stubborn=True))
            await agent.begun(node, key(1))
            node.kill_runner()
            await agent.hear(RunnerGone)
            assert isinstance(agent.heard[-1], RunnerGone), "nothing follows it"
        async with agent_on(node) as agent:
            assert (await agent.known_end(key(1))).cause is EndCause.RUNNER_LOST
            assert not node.lives(key(1))
            assert node.starts(key(1)) == 1

    async def test_ends_outlive_the_runner(self, node: RunnerNode) -> None:
        """R2."""
        async with agent_on(node) as agent:
            await agent.runner.start(node.task(key(1), lasts_s=0.1, exit_code=9))
            await agent.end(key(1))
            node.kill_runner()
            await agent.hear(RunnerGone)
        async with agent_on(node) as agent:
            (over,) = (await agent.inventory()).ends
            assert (over.key, over.end.cause, over.end.exit_code) == (key(1), EndCause.EXITED, 9)
            await agent.runner.start(node.task(key(1), lasts_s=0.1))
            await agent.runner.start(node.task(key(2), lasts_s=0.1))
            await agent.end(key(2))
        assert node.starts(key(1)) == 1, "R1 holds across runners"

    async def test_calls_on_a_runner_that_is_gone_raise_os_error(self, node: RunnerNode) -> None:
        async with agent_on(node) as agent:
            await agent.inventory()
            node.kill_runner()
            await agent.hear(RunnerGone)
            with pytest.raises(OSError, match="runner"):
                await agent.runner.start(node.task(key(1), lasts_s=0.1))
        assert node.starts(key(1)) == 0

    async def test_output_of_an_unknown_task_is_an_os_error(self, node: RunnerNode) -> None:
        async with agent_on(node) as agent:
            with pytest.raises(OSError, match=r"no(ne)? "):
                await agent.runner.read_log(key(99), 0, 100)

    async def test_a_runner_that_renounces_leaves_no_process_and_no_record(self, node: RunnerNode) -> None:
        async with agent_on(node) as agent:
            for job in (1, 2):
                await agent.runner.start(node.task(key(job), lasts_s=0.1))
                await agent.end(key(job))
            await agent.runner.settle(key(1))
            await agent.runner.start(node.task(key(3), lasts_s=LONG_S, stubborn=True))
            await agent.begun(node, key(3))
            await agent.runner.renounce()
            await agent.hear(RunnerGone)
            assert not node.lives(key(3))
        async with agent_on(node) as agent:
            inventory = await agent.inventory()
            assert (inventory.tasks, inventory.ends) == ((), ())
            await agent.runner.start(node.task(key(1), lasts_s=0.1, exit_code=8))
            assert (await agent.end(key(1))).exit_code == 8, "it is another job's task now"

    async def test_shutdown_leaves_no_process_and_ends_the_runner(self, node: RunnerNode) -> None:
        async with agent_on(node) as agent:
            await agent.runner.start(node.task(key(1), lasts_s=LONG_S, stubborn=True))
            await agent.begun(node, key(1))
            await agent.runner.shutdown()
            await agent.hear(RunnerGone)
            assert not node.lives(key(1))

    async def test_a_task_whose_lease_is_over_is_killed_without_grace_and_says_so(self, node: RunnerNode) -> None:
        """R8, also when nobody is there to hear of it."""
        async with agent_on(node) as agent:
            await agent.runner.answered(node.now())
            await agent.runner.start(leased(node.task(key(1), lasts_s=LONG_S, stubborn=True), 600))
            await agent.runner.start(node.task(key(2), lasts_s=LONG_S))
            await agent.begun(node, key(1))
            await agent.begun(node, key(2))
        async with asyncio.timeout(WAIT_S_MAX):
            while node.lives(key(1)):
                await asyncio.sleep(POLL_S)
        async with agent_on(node) as agent:
            assert (await agent.known_end(key(1))).cause is EndCause.LEASE_ENDED
            assert node.lives(key(2)), "it has no lease"

    async def test_a_task_lives_on_while_beats_are_answered(self, node: RunnerNode) -> None:
        async with agent_on(node) as agent:
            sent = node.now()
            await agent.runner.answered(sent)  # R8
            await agent.runner.start(leased(node.task(key(1), lasts_s=LONG_S), 1_000))
            await agent.begun(node, key(1))
            for _ in range(8):
                await agent.runner.answered(sent)
                sent = node.now()
                await asyncio.sleep(0.25)
            assert node.lives(key(1)), "twice its lease has passed"
            assert (await agent.end(key(1))).cause is EndCause.LEASE_ENDED
            assert not node.lives(key(1))

    async def test_a_start_that_comes_when_its_lease_is_over_is_ended_by_that(self, node: RunnerNode) -> None:
        async with agent_on(node) as agent:
            await agent.runner.answered(Mono(node.now() - 2.0))
            await agent.runner.start(leased(node.task(key(1), lasts_s=LONG_S), 1_000))
            assert (await agent.end(key(1))).cause is EndCause.LEASE_ENDED
            assert not node.lives(key(1))

    async def test_an_end_that_the_control_plane_had_is_recalled_and_one_that_nobody_knows_is_forgotten(
        self, node: RunnerNode
    ) -> None:
        async with agent_on(node) as first:
            await first.runner.start(node.task(key(1), lasts_s=0.1, exit_code=3))
            await first.end(key(1))
            await first.runner.settle(key(1))
            await first.runner.start(node.task(key(2), lasts_s=LONG_S))
            await first.begun(node, key(2))
        async with agent_on(node) as second:
            inventory = await second.inventory()
            assert [one.key for one in inventory.tasks if one.phase is TaskPhase.ENDED] == [key(1)]
            assert inventory.ends == ()
            await second.runner.recall(key(2))
            await second.runner.recall(key(9))
            await second.runner.recall(key(1))
            assert (await second.end(key(1))).exit_code == 3
            assert (await second.hear(TaskForgotten)).key == key(9)
            assert not any(isinstance(report, TaskRunning) for report in second.heard), "nothing of what is open"
        assert node.starts(key(1)) == 1

    async def test_a_signal_reaches_an_open_task_and_an_unknown_one_is_ignored(self, node: RunnerNode) -> None:
        """R7."""
        async with agent_on(node) as agent:
            await agent.runner.signal(key(99), 10)
            await agent.runner.start(node.noting(key(1), 10))
            await agent.begun(node, key(1))
            await agent.runner.signal(key(1), 10)
            await agent.runner.signal(key(1), 10)
            await agent.noted(node, key(1), 1)
            await agent.runner.stop(key(1), 0)
            await agent.end(key(1))
            await agent.runner.signal(key(1), 10)
            await agent.runner.start(node.task(key(2), lasts_s=0.1))
            assert (await agent.end(key(2))).clean

    async def test_a_stop_with_a_warning_signals_first_and_terminates_after_the_lead(self, node: RunnerNode) -> None:
        """R9."""
        async with agent_on(node) as agent:
            await agent.runner.start(node.noting(key(1), 10))
            await agent.begun(node, key(1))
            await agent.runner.stop(key(1), 10_000, warning(10, lead_s=1.0))
            await agent.runner.stop(key(1), 10_000, warning(10, lead_s=1.0))
            await agent.noted(node, key(1), 1)
            assert node.lives(key(1))
            end = await agent.end(key(1))
            assert (end.cause, end.signal) == (EndCause.STOPPED, 15)
            assert node.signals(key(1)) == 1, "the same stop once more changes nothing"

    async def test_a_stop_without_a_warning_does_not_wait_for_the_lead_of_an_earlier_one(
        self, node: RunnerNode
    ) -> None:
        """R9: who cancels a job that is being warned need not wait."""
        async with agent_on(node) as agent:
            await agent.runner.start(node.noting(key(1), 10))
            await agent.begun(node, key(1))
            await agent.runner.stop(key(1), 10_000, warning(10, lead_s=LONG_S))
            await agent.noted(node, key(1), 1)
            await agent.runner.stop(key(1), 10_000)
            assert (await agent.end(key(1))).cause is EndCause.STOPPED

    async def test_a_task_that_ends_by_itself_while_it_is_warned_is_over_at_once(self, node: RunnerNode) -> None:
        async with agent_on(node) as agent:
            await agent.runner.start(node.task(key(1), lasts_s=0.5))
            await agent.begun(node, key(1))
            await agent.runner.stop(key(1), 10_000, warning(0, lead_s=LONG_S))
            assert (await agent.end(key(1))).exit_code == 0

    async def test_a_warning_without_a_stop_is_given_once_for_each_number_and_ends_nothing(
        self, node: RunnerNode
    ) -> None:
        async with agent_on(node) as agent:
            await agent.runner.warn(key(99), warning(), 60)
            await agent.runner.start(node.noting(key(1), 10))
            await agent.begun(node, key(1))
            await agent.runner.warn(key(1), warning(), 60)
            await agent.noted(node, key(1), 1)
            await agent.runner.warn(key(1), warning(), 60)
            await agent.runner.warn(key(1), warning(), 120)
            await agent.noted(node, key(1), 2)
            assert node.lives(key(1))
            await agent.runner.stop(key(1), 0)
            await agent.end(key(1))
            assert node.signals(key(1)) == 2
