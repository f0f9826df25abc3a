"""The Runner contract on the simulated twin, so that the rig can't promise what no runner does."""

import msgspec
import pytest

from stoker.adapters.clock import SystemClock
from stoker.adapters.entropy import SystemEntropy
from stoker.agent.ports import StartTask
from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.instruction import Start, TaskKey
from tests.contracts.runner import RunnerContract
from tests.rig.sim_runner import Machine, SimRunner

_TAKEN_PORT = 20_000


class SimNode:
    """The contract's node on a simulated machine."""

    def __init__(self) -> None:
        self.machine = Machine(name="n", clock=SystemClock(), entropy=SystemEntropy(), ports_taken={_TAKEN_PORT})

    def agent(self) -> SimRunner:
        return SimRunner(self.machine)

    def task(self, key: TaskKey, *, lasts_s: float, exit_code: int = 0, stubborn: bool = False) -> StartTask:
        command = f"{lasts_s} {exit_code} {'trap' if stubborn else ''}"
        start = Start(key=key, epoch=Epoch(1), command=command, env={}, workdir="", gpus=(), cpus=1, memory_mb=0)
        return StartTask(start=start, env={})

    def on_port(self, task: StartTask, *, taken: bool) -> StartTask:
        start = msgspec.structs.replace(task.start, probe_port=_TAKEN_PORT if taken else _TAKEN_PORT + 1)
        return msgspec.structs.replace(task, start=start)

    def kill_runner(self) -> None:
        self.machine.kill_runner()

    def lives(self, key: TaskKey) -> bool:
        return any(process.key == key for process in self.machine.live())

    def starts(self, key: TaskKey) -> int:
        return self.machine.started.get(key, 0)


class TestSimulatedRunner(RunnerContract):
    @pytest.fixture
    def node(self) -> SimNode:
        return SimNode()
