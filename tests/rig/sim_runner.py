"""A simulated node: processes that run and end by themselves, and the Runner port on it.

A machine outlives its agents and its runners. The oracle reads the machine, so that a test can say what really ran
and not only what was reported.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

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
from tests.rig.gate import Gate

TRAP: Final = "trap"
"""In a command: its process ignores the terminate signal."""
LINGER: Final = "linger"
"""In a command: its leader leaves a child behind, which goes on for LINGER_S."""
LINGER_S: Final = 2.0
BUSY: Final = 0.1
"""Chance that a call to the runner takes up to a second."""


@dataclass(slots=True)
class Process:
    """A simulated process tree."""

    key: TaskKey
    pid: int
    gpus: tuple[GpuUuid, ...]
    started_at: Instant
    task: asyncio.Task[None] | None = None
    alive: bool = True
    """Does any of the tree live?"""
    exit_code: int | None = None
    """What its leader really exited with. None = it didn't exit by itself (yet)."""
    stopped: bool = False
    ending: bool = False
    signals: list[int] = field(default_factory=list)
    """Those of people, in order. A simulated process notes them and goes on."""


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
    booted: dict[TaskKey, str] = field(default_factory=dict)
    """The boot id in each start record."""
    ends: dict[TaskKey, TaskOver] = field(default_factory=dict)
    """End records on disk."""
    settled: dict[TaskKey, None] = field(default_factory=dict)
    processes: dict[TaskKey, Process] = field(default_factory=dict)
    ports_taken: set[int] = field(default_factory=set)
    runner: "RunnerProcess | None" = None
    pids: int = 100
    recorded: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever a start record is written: its process isn't there yet."""
    on_start: "Callable[[Machine, Process], None] | None" = None
    """Called whenever a process begins to live."""

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

    def begin_process(self, task: StartTask) -> Process:
        key = task.start.key
        self.pids += 1
        process = self.processes[key] = Process(key, self.pids, task.start.gpus, self.clock.now())
        self.started[key] = self.started.get(key, 0) + 1
        if self.on_start is not None:
            self.on_start(self, process)
        return process


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
        self._sweep()

    def _sweep(self) -> None:
        """R5: whatever an earlier runner left open is killed, and its end says why."""
        machine = self.machine
        for key in machine.records:
            if key not in machine.ends:
                process = machine.processes.get(key)
                if process is not None and process.alive:
                    end_process(process)
                cause, error = self._cause_of_loss(key, process)
                self._record_end(key, TaskEnd(cause=cause, at=machine.clock.now(), error=error))

    def _cause_of_loss(self, key: TaskKey, process: Process | None) -> tuple[EndCause, str]:
        if self.machine.booted[key] != self.machine.boot_id:
            return EndCause.NODE_REBOOTED, "the node was rebooted"
        if process is None:
            return EndCause.NEVER_STARTED, "no process"
        # It was killed just now, or ended while no runner was there to see how.
        return EndCause.RUNNER_LOST, "the runner was killed"

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

    # --- what it is told ----------------------------------------------------------------------------------------

    async def start(self, task: StartTask) -> None:
        machine, key = self.machine, task.start.key
        if key in machine.records:
            self._answer_known(key)
            return
        machine.records[key] = task  # R2: on disk before the process exists
        machine.booted[key] = machine.boot_id
        machine.recorded.set()
        await machine.clock.sleep(machine.entropy.jitter(0.0005, 0.004))
        if self.dead or key in machine.ends:
            return
        if task.start.probe_port in machine.ports_taken and task.start.probe_port:
            self._end(key, TaskEnd(cause=EndCause.PORT_TAKEN, at=machine.clock.now(), error="port taken"))
            return
        process = machine.begin_process(task)
        process.task = asyncio.get_running_loop().create_task(self._live(process, task))
        self.say(TaskRunning(key=key, pid=process.pid, at=process.started_at))

    def _answer_known(self, key: TaskKey) -> None:
        """R1: what the record knows; never a second start."""
        process = self.machine.processes.get(key)
        if key in self.machine.ends:
            self.say(self.machine.ends[key])
        elif process is not None:
            self.say(TaskRunning(key=key, pid=process.pid, at=process.started_at))
            if process.ending:
                self.say(TaskEnding(key=key))

    async def stop(self, key: TaskKey, grace_ms: int) -> None:
        machine, process = self.machine, self.machine.processes.get(key)
        if process is None and key in machine.records and key not in machine.ends:
            end = TaskEnd(cause=EndCause.STOPPED, at=machine.clock.now(), error="before its process was started")
            self._end(key, end)
            return
        if process is None or not process.alive or process.stopped:
            return
        self._say_ending(process)
        process.stopped = True
        stubborn = TRAP in str(machine.records[key].start.command)
        await machine.clock.sleep(grace_ms / 1000 + 0.01 if stubborn else machine.entropy.jitter(0.001, 0.2))
        if not self.dead and process.alive:
            end_process(process)
            self._end(key, self._stopped_end(process, 9 if stubborn else 15))

    def signal(self, key: TaskKey, number: int) -> None:
        process = self.machine.processes.get(key)
        if process is not None and process.alive:
            process.signals.append(number)

    def _stopped_end(self, process: Process, signal: int) -> TaskEnd:
        at = self.machine.clock.now()
        if process.exit_code is not None:  # its leader had ended by itself
            return TaskEnd(cause=EndCause.EXITED, at=at, exit_code=process.exit_code)
        return TaskEnd(cause=EndCause.STOPPED, at=at, signal=signal)

    def kill_all(self) -> None:
        for process in self.machine.live():
            end_process(process)
            self._end(process.key, self._stopped_end(process, 9))

    # --- the lives of processes ---------------------------------------------------------------------------------

    async def _live(self, process: Process, task: StartTask) -> None:
        """The command is `SECONDS EXIT_CODE [trap|linger]`: what the process does, told in words."""
        seconds, exit_code, *words = str(task.start.command).split()
        clock = self.machine.clock
        await clock.sleep(float(seconds))
        process.exit_code = int(exit_code)
        if LINGER in words:
            self._whoever_runs(lambda runner: runner._say_ending(process))
            await clock.sleep(LINGER_S)
        process.alive = False
        end = TaskEnd(cause=EndCause.EXITED, at=clock.now(), exit_code=process.exit_code)
        self._whoever_runs(lambda runner: runner._end(process.key, end))

    def _whoever_runs(self, notice: "Callable[[RunnerProcess], None]") -> None:
        """Without a runner nobody notices; the next runner's sweep says what happened."""
        if self.machine.runner is not None:
            notice(self.machine.runner)

    def _say_ending(self, process: Process) -> None:
        if not process.ending:
            process.ending = True
            self.say(TaskEnding(key=process.key))

    def _end(self, key: TaskKey, end: TaskEnd) -> None:
        if key not in self.machine.ends and not self.dead:
            self._record_end(key, end)
            self.say(self.machine.ends[key])

    def _record_end(self, key: TaskKey, end: TaskEnd) -> None:
        self.machine.ends[key] = TaskOver(key=key, end=end)


class SimRunner:
    """The Runner port of one agent process on a machine; `gate` is that process's."""

    def __init__(self, machine: Machine, gate: Gate | None = None) -> None:
        self._machine = machine
        self._gate = gate or Gate()
        self._runner: RunnerProcess | None = None
        self._queue: asyncio.Queue[RunnerReport] | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        if self._machine.runner is None:
            await self._machine.clock.sleep(self._machine.entropy.jitter(0.01, 0.1))
            if self._machine.runner is None:
                self._machine.runner = RunnerProcess(self._machine)
        await self._gate.passed()
        self._runner = self._machine.runner
        if self._runner is None:
            raise OSError("the runner ended at once")
        self._queue = self._runner.attach()

    async def reports(self) -> AsyncIterator[RunnerReport]:
        assert self._queue is not None, "reports before connect"
        while True:
            report = await self._queue.get()
            await self._gate.passed()
            yield report
            if isinstance(report, RunnerGone):
                return

    async def _reach(self) -> RunnerProcess:
        """The socket takes a message at once, unless its buffer is full or the machine is busy."""
        await self._gate.passed()
        if self._machine.entropy.jitter(0, 1) < BUSY:
            await self._machine.clock.sleep(self._machine.entropy.jitter(0.0, 1.0))
            await self._gate.passed()
        if self._runner is None or self._runner.dead:
            raise OSError("the runner is gone")
        return self._runner

    async def start(self, task: StartTask) -> None:
        runner = await self._reach()
        # The socket takes the message; the runner acts on its own time, also if this agent dies now.
        self._leave(runner.start(task))

    async def stop(self, key: TaskKey, grace_ms: int) -> None:
        runner = await self._reach()
        self._leave(runner.stop(key, grace_ms))

    def _leave(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def signal(self, key: TaskKey, number: int) -> None:
        runner = await self._reach()
        runner.signal(key, number)

    async def settle(self, key: TaskKey) -> None:
        await self._reach()
        if key in self._machine.ends:
            self._machine.settled[key] = None

    async def read_log(self, key: TaskKey, offset: int, limit: int) -> LogSlice:
        """A simulated process writes nothing."""
        await self._gate.passed()
        if key not in self._machine.records:
            raise OSError("no such output")
        return LogSlice(offset=0, data=b"", size=0, ended=key in self._machine.ends)

    async def shutdown(self) -> None:
        runner = await self._reach()
        runner.kill_all()
        self._machine.kill_runner()
