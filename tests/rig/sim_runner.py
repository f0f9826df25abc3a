"""A simulated runner, the process that starts jobs on a simulated machine, and the Runner port on it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from stoker.agent.ports import (
    LogSlice,
    NoFolders,
    RunnerGone,
    RunnerHealth,
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
from stoker.brain.domain.policy import LEASE_KILL_MS
from stoker.brain.domain.report import TaskPhase, TaskStatus
from stoker.brain.domain.units import NEVER, Mono
from tests.rig.gate import Gate
from tests.rig.sim_machine import LINGER, LINGER_S, TRAP, Machine, Process, end_process

BUSY: Final = 0.1
"""Chance that a call to the runner takes up to a second."""
CONNECT_S: Final = 10.0
"""How long an agent waits for a runner that says nothing."""
KILL_S: Final = (0.0, 0.9 * LEASE_KILL_MS / 1000)
"""How long after the end of a lease its processes are gone, where nothing was frozen."""


class RunnerProcess:
    """The runner's own process on a machine: dies by `die`, else lives for ever."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.dead = False
        self._listener: asyncio.Queue[RunnerReport] | None = None
        self._answered_s = 0.0
        """When the newest beat was sent that was answered; in memory only, so a new runner knows of none."""
        self._look: asyncio.Task[None] | None = None
        self.gate = Gate()
        """Shut while it is stopped."""
        self._unwritten: dict[TaskKey, TaskOver] = {}
        """Ends for which the disk has no room yet; in memory only."""
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
                self._end(key, TaskEnd(cause=cause, at=machine.clock.now(), error=error))

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
            if phase is not TaskPhase.ENDED and (key in self._unwritten or (process is not None and process.ending)):
                phase = TaskPhase.ENDING
            at = process.started_at if process else NEVER
            start = record.start
            share = start.gpu_share
            statuses.append(TaskStatus(key=key, phase=phase, gpus=start.gpus, gpu_share=share, started_at=at))
        ends = tuple(over for key, over in machine.ends.items() if key not in machine.settled)
        return RunnerInventory(
            tasks=tuple(statuses),
            ends=ends,
            keeps_leases=machine.guarded,
            fault=self.fault,
            tasks_max=machine.tasks_max,
            short_of=f"{machine.tasks_max} open files" if machine.tasks_max else "",
        )

    @property
    def fault(self) -> str:
        return "its journal can't be written: no space left on device" if self.machine.disk_full else ""

    def say(self, report: RunnerReport) -> None:
        if self._listener is not None and not self.dead:
            self._listener.put_nowait(report)

    def die(self) -> None:
        self.say(RunnerGone(error="killed"))
        self.dead = True
        self.gate.open()
        if self._look is not None:
            self._look.cancel()

    # --- what it is told ----------------------------------------------------------------------------------------

    async def start(self, task: StartTask) -> None:
        machine, key = self.machine, task.start.key
        await self.gate.passed()
        if self.dead:
            return
        if key in machine.records:
            self._answer_known(key)
            return
        if machine.disk_full:  # R2: of such a start nothing is kept but in the agent's memory
            self.say(TaskOver(key=key, end=self._unstarted("its record can't be written: no space left on device")))
            return
        machine.records[key] = task  # R2: on disk before the process exists
        machine.booted[key] = machine.boot_id
        machine.recorded.set()
        if machine.guarded and self._look is None and task.start.lease_ms:
            self._look = asyncio.get_running_loop().create_task(self._keep_leases())
        await machine.sleep(machine.entropy.jitter(0.0005, 0.004))
        await self.gate.passed()
        if machine.guarded and not self.dead:
            self.end_leases()  # nothing begins whose lease is over
        if self.dead or key in machine.ends or key in self._unwritten:
            return
        refusal = self._refusal(key)
        if refusal:
            self._end(key, self._unstarted(refusal))
            return
        if task.start.probe_port in machine.ports_taken and task.start.probe_port:
            self._end(key, TaskEnd(cause=EndCause.PORT_TAKEN, at=machine.clock.now(), error="port taken"))
            return
        process = machine.begin_process(task)
        process.task = asyncio.get_running_loop().create_task(self._live(process, task))
        self.say(TaskRunning(key=key, pid=process.pid, at=process.started_at))

    def _refusal(self, key: TaskKey) -> str:
        """Why this machine can't start it."""
        machine = self.machine
        if key in machine.revoked:
            return "the agent has given it up, since this runner didn't answer"
        if machine.sick:
            return "this node can't start it: no process can be made (EAGAIN)"
        if machine.tasks_max and len(machine.left()) >= machine.tasks_max:
            return f"this node's runner already holds {machine.tasks_max} tasks, the most it takes"
        return ""

    def _unstarted(self, error: str) -> TaskEnd:
        return TaskEnd(cause=EndCause.NEVER_STARTED, at=self.machine.clock.now(), error=error)

    def _answer_known(self, key: TaskKey) -> None:
        """R1: what the record knows; never a second start."""
        process = self.machine.processes.get(key)
        if key in self.machine.ends:
            self.say(self.machine.ends[key])
        elif process is not None:
            self.say(TaskRunning(key=key, pid=process.pid, at=process.started_at))
            if process.ending:
                self.say(TaskEnding(key=key))

    async def stop(self, key: TaskKey, grace_ms: int, warning: TaskWarning | None = None) -> None:
        await self.gate.passed()
        machine, process = self.machine, self.machine.processes.get(key)
        if process is None and key in machine.records and key not in machine.ends:
            end = TaskEnd(cause=EndCause.STOPPED, at=machine.clock.now(), error="before its process was started")
            self._end(key, end)
            return
        if process is None or not process.alive or process.stopped:
            return
        self._say_ending(process)
        if warning is not None and not await self._warned(process, warning):
            return
        process.stopped = True
        stubborn = TRAP in str(machine.records[key].start.command)
        await machine.sleep(grace_ms / 1000 + 0.01 if stubborn else machine.entropy.jitter(0.001, 0.2))
        await self.gate.passed()
        if not self.dead and process.alive:
            end_process(process)
            self._end(key, self._stopped_end(process, 9 if stubborn else 15))

    async def _warned(self, process: Process, warning: TaskWarning) -> bool:
        """Warn a process, and return after the lead whether it is still to be terminated."""
        if process.to_be_stopped:
            return False  # an earlier stop does that
        process.to_be_stopped = True
        process.signals += [warning.signal] if warning.signal else []
        await self.machine.sleep(warning.lead_ms / 1000)
        await self.gate.passed()
        return not self.dead and process.alive and not process.stopped

    def warn(self, key: TaskKey, warning: TaskWarning, once: int) -> None:
        process = self.machine.processes.get(key)
        if process is None or not process.alive or process.ending or process.warned == once:
            return
        process.warned = once
        process.signals += [warning.signal] if warning.signal else []

    # --- leases -------------------------------------------------------------------------------------------------

    def answered(self, at_s: float) -> None:
        """An active control plane has answered a beat that was sent then, by the machine's clock."""
        self._answered_s = max(self._answered_s, min(at_s, self.machine.clock.mono()))

    def _leased(self) -> dict[TaskKey, float]:
        """When the lease of each task that has one ends."""
        machine = self.machine
        return {
            key: self._answered_s + record.start.lease_ms / 1000
            for key, record in machine.records.items()
            if key not in machine.ends and key not in self._unwritten and record.start.lease_ms
        }

    async def _keep_leases(self) -> None:
        """Look when the first of them may end, and kill a while after it has."""
        machine = self.machine
        while leased := self._leased():
            left_s = min(leased.values()) - machine.clock.mono()
            if left_s > 0:
                await machine.sleep(left_s + 1e-6)
            else:
                await machine.sleep(machine.entropy.jitter(*KILL_S))
                self.end_leases()
                await self.gate.passed()
        self._look = None

    def end_leases(self) -> None:
        """Kill without grace. A start that waits for the disk never comes to be. While the runner is stopped its guard
        does it, and the ends are recorded once it goes on."""
        now = self.machine.clock.mono()
        for key, until_s in self._leased().items():
            if now > until_s:
                process = self.machine.processes.get(key)
                if process is not None:
                    end_process(process)
                if not self.gate.is_open:
                    continue
                end = TaskEnd(cause=EndCause.LEASE_ENDED, at=self.machine.clock.now(), error="its lease is over")
                self._end(key, end)

    def settle(self, key: TaskKey) -> None:
        if key in self.machine.ends:
            self.machine.settled[key] = None

    def recall(self, key: TaskKey) -> None:
        over = self.machine.ends.get(key)
        if over is not None or key not in self.machine.records:
            self.say(over or TaskForgotten(key=key))

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
        for process in self.machine.left():
            end_process(process)
            self._end(process.key, self._stopped_end(process, 9))

    # --- the lives of processes ---------------------------------------------------------------------------------

    async def _live(self, process: Process, task: StartTask) -> None:
        """The command is `SECONDS EXIT_CODE [trap|linger]`: what the process does, told in words."""
        seconds, exit_code, *words = str(task.start.command).split()
        clock = self.machine.clock
        await self.machine.sleep(float(seconds))
        process.exit_code = int(exit_code)
        if LINGER in words:
            self._whoever_runs(lambda runner: runner._say_ending(process))
            await self.machine.sleep(LINGER_S)
        process.alive = False
        while self.machine.runner is not None and not self.machine.runner.gate.is_open:
            await self.machine.runner.gate.passed()
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
        """It is told once its record is on disk."""
        if key in self.machine.ends or key in self._unwritten or self.dead:
            return
        self._unwritten[key] = TaskOver(key=key, end=end)
        if not self.machine.disk_full:
            self.write_waiting()

    def write_waiting(self) -> None:
        for key, over in self._unwritten.items():
            self.machine.ends[key] = over
            self.say(over)
        self._unwritten.clear()


class SimFolders(NoFolders):
    """The Folders port of a machine whose disk for them may be full."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def claim(self, job: JobId) -> str:
        if self._machine.folders_full:
            raise OSError("no space left on device")
        return await super().claim(job)


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
        if self._runner is not None and not self._runner.gate.is_open:
            with suppress(TimeoutError):
                async with asyncio.timeout(CONNECT_S):
                    await self._runner.gate.passed()
        if self._runner is None or self._runner.dead or not self._runner.gate.is_open:
            raise OSError("the runner ended at once, or doesn't answer")
        self._queue = self._runner.attach()

    async def reports(self) -> AsyncGenerator[RunnerReport, None]:
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

    async def stop(self, key: TaskKey, grace_ms: int, warning: TaskWarning | None = None) -> None:
        runner = await self._reach()
        self._leave(runner.stop(key, grace_ms, warning))

    async def warn(self, key: TaskKey, warning: TaskWarning, once: int) -> None:
        runner = await self._reach()
        self._tell(runner, lambda: runner.warn(key, warning, once))

    def _leave(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def signal(self, key: TaskKey, number: int) -> None:
        runner = await self._reach()
        self._tell(runner, lambda: runner.signal(key, number))

    async def settle(self, key: TaskKey) -> None:
        runner = await self._reach()
        self._tell(runner, lambda: runner.settle(key))

    async def recall(self, key: TaskKey) -> None:
        runner = await self._reach()
        self._tell(runner, lambda: runner.recall(key))

    async def answered(self, at: Mono) -> None:
        await self._gate.passed()
        runner = self._runner
        if runner is None or runner.dead:
            raise OSError("the runner is gone")
        self._tell(runner, lambda: runner.answered(at))

    def _tell(self, runner: RunnerProcess, deed: Callable[[], None]) -> None:
        """A stopped runner reads it when it goes on."""

        async def late() -> None:
            await runner.gate.passed()
            if not runner.dead:
                deed()

        if runner.gate.is_open:
            deed()
        else:
            self._leave(late())

    def revoke(self, key: TaskKey) -> bool:
        """As by a file that both would have to make: it is whose who is first."""
        machine = self._machine
        if key in machine.processes or key in machine.ends:
            return False
        machine.revoked[key] = None
        return True

    def ask(self) -> None:
        runner = self._runner
        if runner is not None:
            self._tell(runner, lambda: runner.say(RunnerHealth(fault=runner.fault)))

    async def read_log(self, key: TaskKey, offset: int, limit: int) -> LogSlice:
        """A simulated process writes nothing."""
        await self._gate.passed()
        if key not in self._machine.records:
            raise OSError("no such output")
        return LogSlice(offset=0, data=b"", size=0, ended=key in self._machine.ends)

    async def renounce(self) -> None:
        runner = await self._reach()
        runner.kill_all()
        for records in (self._machine.records, self._machine.booted, self._machine.ends, self._machine.settled):
            records.clear()
        self._machine.kill_runner()

    async def shutdown(self) -> None:
        runner = await self._reach()
        runner.kill_all()
        self._machine.kill_runner()
