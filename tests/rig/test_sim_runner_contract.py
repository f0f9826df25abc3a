"""The Runner contract on the simulated twin, on virtual time: what it promises, every runner does."""

import msgspec
import pytest

from stoker.agent.ports import StartTask, TaskEnding
from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.instruction import Start, TaskKey
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.report import TaskPhase
from stoker.brain.domain.units import Mono
from tests.contracts.runner import LONG_S, RunnerContract, agent_on, key
from tests.rig.sim_machine import Machine
from tests.rig.sim_ports import SimClock, SimEntropy
from tests.rig.sim_runner import SimRunner
from tests.rig.virtual_loop import on_virtual_time

_TAKEN_PORT = 20_000


class SimNode:
    """The contract's node on a simulated machine."""

    def __init__(self) -> None:
        self.machine = Machine(
            name="n1", clock=SimClock(), entropy=SimEntropy(1), ports_taken={_TAKEN_PORT}, guarded=True
        )

    def agent(self) -> SimRunner:
        return SimRunner(self.machine)

    def task(self, key: TaskKey, *, lasts_s: float, exit_code: int = 0, stubborn: bool = False) -> StartTask:
        return self.told(key, f"{lasts_s} {exit_code} {'trap' if stubborn else ''}")

    def told(self, key: TaskKey, command: str) -> StartTask:
        start = Start(key=key, epoch=Epoch(1), command=command, env={}, workdir="", gpus=(), cpus=1, memory_mb=0)
        return StartTask(start=start, env={})

    def noting(self, key: TaskKey, number: int) -> StartTask:
        return self.told(key, f"{LONG_S} 0")

    def signals(self, key: TaskKey) -> int:
        return len(self.machine.processes[key].signals)

    def on_port(self, task: StartTask, *, taken: bool) -> StartTask:
        start = msgspec.structs.replace(task.start, probe_port=_TAKEN_PORT if taken else _TAKEN_PORT + 1)
        return msgspec.structs.replace(task, start=start)

    def kill_runner(self) -> None:
        self.machine.kill_runner()

    def now(self) -> Mono:
        return self.machine.clock.mono()

    def lives(self, key: TaskKey) -> bool:
        return any(process.key == key for process in self.machine.live())

    def starts(self, key: TaskKey) -> int:
        return self.machine.started.get(key, 0)


@on_virtual_time
class TestSimRunner(RunnerContract):
    @pytest.fixture
    def node(self) -> SimNode:
        return SimNode()

    async def test_settling_an_unknown_task_does_nothing(self, node: SimNode) -> None:
        async with agent_on(node) as agent:
            await agent.runner.settle(key(99))
            await agent.runner.start(node.task(key(99), lasts_s=0.1, exit_code=4))
            await agent.end(key(99))
        async with agent_on(node) as agent:
            (over,) = (await agent.inventory()).ends
            assert over.end.exit_code == 4

    async def test_a_settled_end_stays_known_so_that_its_start_never_acts_again(self, node: SimNode) -> None:
        """R1, R4."""
        async with agent_on(node) as agent:
            await agent.runner.start(node.task(key(1), lasts_s=0.1))
            await agent.end(key(1))
            await agent.runner.settle(key(1))
        async with agent_on(node) as agent:
            found = await agent.inventory()
            assert [status.phase for status in found.tasks] == [TaskPhase.ENDED]
            assert found.ends == ()
            await agent.runner.start(node.task(key(1), lasts_s=0.1))
            assert (await agent.end(key(1))).cause is EndCause.EXITED
        assert node.starts(key(1)) == 1

    async def test_a_leader_that_left_a_child_is_ending_until_the_child_is_gone(self, node: SimNode) -> None:
        async with agent_on(node) as agent:
            await agent.runner.start(node.told(key(1), "1 3 linger"))
            await agent.running(key(1))
            await agent.hear(TaskEnding)
            assert node.lives(key(1))
            assert (await agent.end(key(1))).exit_code == 3
            assert not node.lives(key(1))

    async def test_after_a_reboot_what_ran_is_reported_as_rebooted(self, node: SimNode) -> None:
        async with agent_on(node) as agent:
            await agent.runner.start(node.task(key(1), lasts_s=LONG_S))
            await agent.running(key(1))
            node.machine.reboot()
        async with agent_on(node) as agent:
            (over,) = (await agent.inventory()).ends
            assert over.end.cause is EndCause.NODE_REBOOTED
            assert not node.lives(key(1))
