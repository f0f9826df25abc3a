"""The Runner port over no processes, for tests of the daemon alone."""

import asyncio
from collections.abc import AsyncGenerator

import msgspec

from stoker.agent.ports import (
    LeasesUnkept,
    LogSlice,
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
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause, TaskEnd
from stoker.brain.domain.report import TaskPhase, TaskStatus
from stoker.brain.domain.units import Mono
from tests.rig.sim_ports import SimClock


class TwinRunner:
    """The Runner port over no processes: a task runs until the test ends it."""

    def __init__(self) -> None:
        self.starts: list[StartTask] = []
        self.stops: list[tuple[TaskKey, int]] = []
        self.signals: list[tuple[TaskKey, int]] = []
        self.warnings: list[tuple[TaskKey, TaskWarning]] = []
        self.settled: list[TaskKey] = []
        self.recalled: list[TaskKey] = []
        self.answered_at: list[Mono] = []
        self.records: dict[TaskKey, TaskStatus] = {}
        self.ends: dict[TaskKey, TaskOver] = {}
        self.outputs: dict[TaskKey, bytes] = {}
        self.alive = False
        self.can_start = True
        self.keeps_leases = False
        self.cgroups = True
        self.runs_containers = True
        self.fault: str | None = ""
        self.stopped = False
        """As SIGSTOP does: it doesn't answer questions."""
        self.asked = 0
        self.revoked: list[TaskKey] = []
        self.start_s = 0.002
        self.connects = 0
        self.renounced = 0
        self.was_shut_down = False
        self._reports: asyncio.Queue[RunnerReport] = asyncio.Queue()

    async def connect(self) -> None:
        self.connects += 1
        if not self.can_start:
            raise OSError("twin: no runner can be started")
        self.alive = True
        self._reports = asyncio.Queue()
        offered = tuple(over for key, over in self.ends.items() if key not in self.settled)
        tasks = tuple(self.records.values())
        kept = RunnerInventory(
            tasks=tasks, ends=offered, keeps_leases=self.keeps_leases, fault=self.fault, cgroups=self.cgroups
        )
        kept = msgspec.structs.replace(kept, runs_containers=self.runs_containers)
        self._reports.put_nowait(kept)

    async def reports(self) -> AsyncGenerator[RunnerReport, None]:
        while True:
            report = await self._reports.get()
            yield report
            if isinstance(report, RunnerGone):
                return

    def _check(self) -> None:
        if not self.alive:
            raise ConnectionResetError("twin: the runner is dead")

    async def start(self, task: StartTask) -> None:
        await SimClock().sleep(self.start_s)
        self._check()
        key = task.start.key
        if self.stopped:
            return
        if key in self.ends:
            self._reports.put_nowait(self.ends[key])
            return
        assert key not in self.records, f"a runner twin was asked to start {key} twice"
        self.starts.append(task)
        self.records[key] = TaskStatus(
            key=key,
            phase=TaskPhase.RUNNING,
            gpus=task.start.gpus,
            gpu_share=task.start.gpu_share,
            started_at=SimClock().now(),
        )
        self._reports.put_nowait(TaskRunning(key=key, pid=4_000 + len(self.starts), at=SimClock().now()))

    async def stop(self, key: TaskKey, grace_ms: int, warning: TaskWarning | None = None) -> None:
        self._check()
        if warning is not None:
            self.warnings.append((key, warning))
        self.stops.append((key, grace_ms))
        if key in self.records and key not in self.ends:
            self._reports.put_nowait(TaskEnding(key=key))
            self.end(key, TaskEnd(cause=EndCause.STOPPED, at=SimClock().now(), signal=15))

    async def warn(self, key: TaskKey, warning: TaskWarning, once: int) -> None:
        self._check()
        self.warnings.append((key, warning))

    async def signal(self, key: TaskKey, number: int) -> None:
        self._check()
        self.signals.append((key, number))

    async def settle(self, key: TaskKey) -> None:
        self._check()
        self.settled.append(key)

    async def recall(self, key: TaskKey) -> None:
        self._check()
        self.recalled.append(key)
        self._reports.put_nowait(self.ends.get(key) or TaskForgotten(key=key))

    async def answered(self, at: Mono) -> None:
        self._check()
        self.answered_at.append(at)

    def revoke(self, key: TaskKey) -> bool:
        self.revoked.append(key)
        return key not in self.records

    def ask(self) -> None:
        self.asked += 1
        if not self.stopped:
            self.answer()

    def answer(self) -> None:
        self.stopped = False
        self._reports.put_nowait(RunnerHealth(fault=self.fault or ""))

    async def read_log(self, key: TaskKey, offset: int, limit: int) -> LogSlice:
        self._check()
        if key not in self.outputs:
            raise FileNotFoundError(f"no output of {key}")
        output = self.outputs[key]
        begin = max(0, len(output) + offset) if offset < 0 else offset
        return LogSlice(offset=begin, data=output[begin : begin + limit], size=len(output), ended=key in self.ends)

    async def renounce(self) -> None:
        self._check()
        self.renounced += 1
        self.records.clear()
        self.ends.clear()
        self.settled.clear()
        self.die(and_sweep=False)

    async def shutdown(self) -> None:
        self.was_shut_down = True

    def lose_guard(self) -> None:
        self.keeps_leases = False
        self._reports.put_nowait(LeasesUnkept())

    def leader_ends(self, key: TaskKey) -> None:
        self.records[key] = TaskStatus(
            key=key, phase=TaskPhase.ENDING, gpus=self.records[key].gpus, gpu_share=self.records[key].gpu_share
        )
        self._reports.put_nowait(TaskEnding(key=key))

    def end(self, key: TaskKey, end: TaskEnd) -> None:
        status = self.records[key]
        self.records[key] = msgspec.structs.replace(status, phase=TaskPhase.ENDED)
        self.ends[key] = TaskOver(key=key, end=end)
        self._reports.put_nowait(self.ends[key])

    def die(self, *, and_sweep: bool = True) -> None:
        """Kill -9. The next runner reports what this one left open as lost."""
        self.alive = False
        if and_sweep:
            for key in [key for key in self.records if key not in self.ends]:
                end = TaskEnd(cause=EndCause.RUNNER_LOST, at=SimClock().now(), error="the runner was killed")
                self.ends[key] = TaskOver(key=key, end=end)
                self.records[key] = TaskStatus(key=key, phase=TaskPhase.ENDED)
        self._reports.put_nowait(RunnerGone(error="twin: killed"))
