"""A simulated node: processes that run and end by themselves, and the Runner port on it.

A machine outlives its agents and its runners. The oracle reads the machine, so that a test can say what really ran
and not only what was reported.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any

from stoker.agent.ports import (
    LogSlice,
    RunnerGone,
    RunnerInventory,
    RunnerReport,
    StartTask,
    TaskEnding,
    TaskOver,
    TaskRunning,
)
from stoker.brain.domain.ids import GpuUuid
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause, TaskEnd
from stoker.brain.domain.report import TaskPhase, TaskStatus
from stoker.brain.domain.units import NEVER, Instant
from stoker.ports import Clock, Entropy


@dataclass(slots=True)
class Process:
    """A simulated process tree. `script` is what its command says: seconds to run and how it ends."""

    key: TaskKey
    pid: int
    gpus: tuple[GpuUuid, ...]
    started_at: Instant
    task: asyncio.Task[None] | None = None
    alive: bool = True
    stopped: bool = False
    ending: bool = False


@dataclass(slots=True)
class Machine:
    """One node's hardware, kernel and disk."""

    name: str
    clock: Clock
    entropy: Entropy
    boot_id: str = "boot-1"
    started: dict[TaskKey, int] = field(default_factory=dict)
    """How often the process of each key was started, over the machine's whole life."""
    records: dict[TaskKey, StartTask] = field(default_factory=dict)
    """Start records on disk."""
    ends: dict[TaskKey, TaskOver] = field(default_factory=dict)
    """End records on disk."""
    settled: dict[TaskKey, None] = field(default_factory=dict)
    processes: dict[TaskKey, Process] = field(default_factory=dict)
    ports_taken: set[int] = field(default_factory=set)
    runner: "RunnerProcess | None" = None
    pids: int = 100

    def live(self) -> list[Process]:
        return [process for process in self.processes.values() if process.alive]

    def kill_runner(self) -> None:
        if self.runner is not None:
            self.runner.die()
            self.runner = None

    def reboot(self) -> None:
        """Power goes: processes and runner are gone, disks stay."""
        self.kill_runner()
        for process in self.live():
            end_process(process)
        self.boot_id = f"boot-{int(self.boot_id.split('-')[1]) + 1}"


def end_process(process: Process) -> None:
    process.alive = False
    if process.task is not None and process.task is not asyncio.current_task():
        process.task.cancel()


class RunnerProcess:
    """The runner's own process on a machine: dies by `die`, else lives for ever."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.dead = False
        self._listener: asyncio.Queue[RunnerReport] | None = None
        self._lost: dict[TaskKey, str] = {}
        self._sweep()

    def _sweep(self) -> None:
        """R5: whatever an earlier runner left open is killed and ends `runner_lost`."""
        machine = self.machine
        for key in machine.records:
            if key in machine.ends:
                continue
            process = machine.processes.get(key)
            if process is not None and process.alive:
                end_process(process)
                self._record_end(
                    key, TaskEnd(cause=EndCause.RUNNER_LOST, at=machine.clock.now(), error="runner killed")
                )
            elif process is not None:
                # It ended, or was killed with the machine, while no runner was there to see how.
                self._record_end(key, TaskEnd(cause=EndCause.RUNNER_LOST, at=machine.clock.now(), error="unseen end"))
            else:
                self._record_end(key, TaskEnd(cause=EndCause.NEVER_STARTED, at=machine.clock.now(), error="no process"))

    def attach(self) -> asyncio.Queue[RunnerReport]:
        """A new agent connection; the older one hears no more."""
        queue: asyncio.Queue[RunnerReport] = asyncio.Queue()
        self._listener = queue
        queue.put_nowait(self._inventory())
        return queue

    def _inventory(self) -> RunnerInventory:
        machine = self.machine
        statuses = []
        for key, record in machine.records.items():
            process = machine.processes.get(key)
            phase = TaskPhase.ENDED if key in machine.ends else TaskPhase.RUNNING if process else TaskPhase.STARTING
            if process is not None and process.ending and phase is TaskPhase.RUNNING:
                phase = TaskPhase.ENDING
            at = process.started_at if process else NEVER
            statuses.append(TaskStatus(key=key, phase=phase, gpus=record.start.gpus, started_at=at))
        ends = tuple(over for key, over in machine.ends.items() if key not in machine.settled)
        return RunnerInventory(tasks=tuple(statuses), ends=ends)

    def say(self, report: RunnerReport) -> None:
        if self._listener is not None and not self.dead:
            self._listener.put_nowait(report)

    def die(self) -> None:
        self.say(RunnerGone(error="killed"))
        self.dead = True

    async def start(self, task: StartTask) -> None:
        machine, key = self.machine, task.start.key
        if key in machine.records:
            return
        machine.records[key] = task  # R2: on disk before the process exists
        await machine.clock.sleep(machine.entropy.jitter(0.0005, 0.004))
        if self.dead:
            return
        if task.start.probe_port in machine.ports_taken and task.start.probe_port:
            self._end(key, TaskEnd(cause=EndCause.PORT_TAKEN, at=machine.clock.now(), error="port taken"))
            return
        machine.pids += 1
        process = Process(key, machine.pids, task.start.gpus, machine.clock.now())
        machine.processes[key] = process
        machine.started[key] = machine.started.get(key, 0) + 1
        process.task = asyncio.get_running_loop().create_task(self._live(process, task))
        self.say(TaskRunning(key=key, pid=process.pid, at=process.started_at))

    async def _live(self, process: Process, task: StartTask) -> None:
        """The command is `SECONDS EXIT_CODE [trap]`: what the process does, told in words."""
        seconds, exit_code, *_ = str(task.start.command).split()
        await self.machine.clock.sleep(float(seconds))
        process.alive = False
        self._end_alive(
            process.key, TaskEnd(cause=EndCause.EXITED, at=self.machine.clock.now(), exit_code=int(exit_code))
        )

    def _end_alive(self, key: TaskKey, end: TaskEnd) -> None:
        """A process ended; its runner is whoever runs now. Without one the next runner's sweep says what happened."""
        runner = self.machine.runner
        if runner is not None:
            runner._end(key, end)

    def _end(self, key: TaskKey, end: TaskEnd) -> None:
        if key not in self.machine.ends and not self.dead:
            self._record_end(key, end)
            self.say(self.machine.ends[key])

    def _record_end(self, key: TaskKey, end: TaskEnd) -> None:
        self.machine.ends[key] = TaskOver(key=key, end=end)

    async def stop(self, key: TaskKey, grace_ms: int) -> None:
        process = self.machine.processes.get(key)
        if process is None or not process.alive or process.stopped:
            return
        process.stopped = process.ending = True
        self.say(TaskEnding(key=key))
        stubborn = "trap" in str(self.machine.records[key].start.command)
        delay = grace_ms / 1000 + 0.01 if stubborn else self.machine.entropy.jitter(0.001, 0.2)
        await self.machine.clock.sleep(delay)
        if self.dead or not process.alive:
            return
        end_process(process)
        at = self.machine.clock.now()
        self._end(key, TaskEnd(cause=EndCause.STOPPED, at=at, signal=9 if stubborn else 15))


class SimRunner:
    """The Runner port of one agent process on a machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._runner: RunnerProcess | None = None
        self._queue: asyncio.Queue[RunnerReport] | None = None
        self._stops: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        if self._machine.runner is None:
            await self._machine.clock.sleep(self._machine.entropy.jitter(0.01, 0.1))
            if self._machine.runner is None:
                self._machine.runner = RunnerProcess(self._machine)
        self._runner = self._machine.runner
        self._queue = self._runner.attach()

    async def reports(self) -> AsyncIterator[RunnerReport]:
        assert self._queue is not None, "reports before connect"
        while True:
            report = await self._queue.get()
            yield report
            if isinstance(report, RunnerGone):
                return

    def _alive(self) -> RunnerProcess:
        if self._runner is None or self._runner.dead:
            raise OSError("the runner is gone")
        return self._runner

    async def start(self, task: StartTask) -> None:
        runner = self._alive()
        # The socket takes the message; the runner acts on its own time, also if this agent dies now.
        self._detach(runner.start(task))

    async def stop(self, key: TaskKey, grace_ms: int) -> None:
        self._detach(self._alive().stop(key, grace_ms))

    def _detach(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    async def settle(self, key: TaskKey) -> None:
        self._alive()
        self._machine.settled[key] = None

    async def read_log(self, key: TaskKey, offset: int, limit: int) -> LogSlice:
        if key not in self._machine.records:
            raise OSError("no such output")
        return LogSlice(offset=0, data=b"", size=0, ended=key in self._machine.ends)

    async def shutdown(self) -> None:
        for process in self._machine.live():
            end_process(process)
        self._machine.kill_runner()
