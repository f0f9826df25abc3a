"""A control plane and a runner in a few lines, for tests of the daemon alone, on virtual time.

Honest where it matters: the link drops what was on the way when it breaks, the runner acts once per key, and a call on
anything broken raises what the ports say.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from stoker.agent.daemon import Daemon
from stoker.agent.launch import Folders, NoFolders
from stoker.agent.ports import (
    AgentPorts,
    BeatAnswered,
    Fence,
    LeasesUnkept,
    LinkDown,
    LinkRefused,
    LinkStandby,
    LogSlice,
    NoFence,
    RunnerGone,
    RunnerInventory,
    RunnerReport,
    StartTask,
    TaskEnding,
    TaskForgotten,
    TaskOver,
    TaskRunning,
)
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import Epoch, GpuUuid, JobId, NodeName
from stoker.brain.domain.instruction import Instruction, Start, Stop, TaskKey
from stoker.brain.domain.job import EndCause, TaskEnd
from stoker.brain.domain.node import Inventory
from stoker.brain.domain.report import (
    Beat,
    LogChunk,
    LogRequest,
    Registration,
    Report,
    Started,
    TaskFinished,
    TaskPhase,
    TaskStatus,
)
from stoker.brain.domain.units import Instant, Mono
from tests.rig.virtual_loop import run_virtual
from tests.rig.world import Notes, SimClock

T = TypeVar("T")


class HighDice:
    """Always the longest pause."""

    def uid(self) -> str:
        return "uid"

    def seed(self) -> int:
        return 1

    def jitter(self, low: float, high: float) -> float:
        return high


class TwinSession:
    def __init__(self, control: "TwinControl", epoch: Epoch) -> None:
        self.control = control
        self.epoch = epoch
        self.cluster_id = control.cluster_id
        self.heartbeat_s = control.heartbeat_s
        self.reports: list[Report] = []
        self.broken = asyncio.Event()
        self.down: asyncio.Queue[Instruction | BeatAnswered] = asyncio.Queue()
        self.wanted: asyncio.Queue[LogRequest] = asyncio.Queue()

    def _check(self) -> None:
        if self.broken.is_set():
            raise LinkDown("twin: the stream is broken")

    async def send(self, report: Report) -> None:
        self._check()
        self.reports.append(report)
        if isinstance(report, Beat) and self.control.answers_beats:
            epoch = self.control.answer_epoch or self.epoch
            self.down.put_nowait(BeatAnswered(sequence=report.sequence, epoch=epoch))

    async def instructions(self) -> AsyncIterator[Instruction | BeatAnswered]:
        while True:
            yield await self._next(self.down)

    async def log_requests(self) -> AsyncIterator[LogRequest]:
        while True:
            yield await self._next(self.wanted)

    async def _next(self, queue: "asyncio.Queue[T]") -> T:
        taking, broken = asyncio.ensure_future(queue.get()), asyncio.ensure_future(self.broken.wait())
        try:
            await asyncio.wait({taking, broken}, return_when=asyncio.FIRST_COMPLETED)
            self._check()
            return taking.result()
        finally:
            taking.cancel()
            broken.cancel()

    async def finish(self, finished: TaskFinished) -> None:
        self._check()
        await asyncio.sleep(self.control.commit_s)
        self._check()
        if self.control.loses_ends:
            raise LinkDown("twin: no answer")
        self.control.finished.append(finished)
        if self.control.loses_answers:
            raise LinkDown("twin: the answer was lost")

    async def send_log(self, chunk: LogChunk) -> None:
        self._check()
        self.control.chunks.append(chunk)

    async def close(self) -> None:
        self.broken.set()


class TwinControl:
    """The Link port, and the control plane behind it."""

    def __init__(self) -> None:
        self.epoch = Epoch(1)
        self.heartbeat_s = 5.0
        self.commit_s = 0.001
        self.reachable = True
        self.refusal = ""
        self.is_standby = False
        self.has_alternatives = False
        self.answers_beats = True
        self.answer_epoch = Epoch(0)
        """Under which it answers them. 0 = its own."""
        self.cluster_id = "cluster-1"
        self.loses_ends = False
        self.loses_answers = False
        self.sessions: list[TwinSession] = []
        self.registered: list[Registration] = []
        self.tries_at: list[float] = []
        self.finished: list[TaskFinished] = []
        self.chunks: list[LogChunk] = []

    async def connect(self, registration: Registration) -> TwinSession:
        self.tries_at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.001)
        if not self.reachable:
            raise LinkDown("twin: nobody answers")
        if self.is_standby:
            raise LinkStandby("twin: a standby")
        if self.refusal:
            raise LinkRefused(self.refusal)
        self.registered.append(registration)
        self.sessions.append(self.session_of())
        return self.sessions[-1]

    def session_of(self) -> TwinSession:
        return TwinSession(self, self.epoch)

    @property
    def session(self) -> TwinSession:
        return self.sessions[-1]

    def tell(self, instruction: Instruction) -> None:
        self.session.down.put_nowait(instruction)

    def break_stream(self) -> None:
        self.session.broken.set()


class TwinRunner:
    """The Runner port over no processes: a task runs until the test ends it."""

    def __init__(self) -> None:
        self.starts: list[StartTask] = []
        self.stops: list[tuple[TaskKey, int]] = []
        self.signals: list[tuple[TaskKey, int]] = []
        self.settled: list[TaskKey] = []
        self.recalled: list[TaskKey] = []
        self.answered_at: list[Mono] = []
        self.records: dict[TaskKey, TaskStatus] = {}
        self.ends: dict[TaskKey, TaskOver] = {}
        self.outputs: dict[TaskKey, bytes] = {}
        self.alive = False
        self.can_start = True
        self.keeps_leases = False
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
        self._reports.put_nowait(RunnerInventory(tasks=tasks, ends=offered, keeps_leases=self.keeps_leases))

    async def reports(self) -> AsyncIterator[RunnerReport]:
        while True:
            report = await self._reports.get()
            yield report
            if isinstance(report, RunnerGone):
                return

    def _check(self) -> None:
        if not self.alive:
            raise ConnectionResetError("twin: the runner is dead")

    async def start(self, task: StartTask) -> None:
        await asyncio.sleep(self.start_s)
        self._check()
        key = task.start.key
        if key in self.ends:
            self._reports.put_nowait(self.ends[key])
            return
        assert key not in self.records, f"a runner twin was asked to start {key} twice"
        self.starts.append(task)
        self.records[key] = TaskStatus(
            key=key, phase=TaskPhase.RUNNING, gpus=task.start.gpus, started_at=SimClock().now()
        )
        self._reports.put_nowait(TaskRunning(key=key, pid=4_000 + len(self.starts), at=SimClock().now()))

    async def stop(self, key: TaskKey, grace_ms: int) -> None:
        self._check()
        self.stops.append((key, grace_ms))
        if key in self.records and key not in self.ends:
            self._reports.put_nowait(TaskEnding(key=key))
            self.end(key, TaskEnd(cause=EndCause.STOPPED, at=SimClock().now(), signal=15))

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
        self.records[key] = TaskStatus(key=key, phase=TaskPhase.ENDING, gpus=self.records[key].gpus)
        self._reports.put_nowait(TaskEnding(key=key))

    def end(self, key: TaskKey, end: TaskEnd) -> None:
        status = self.records[key]
        self.records[key] = TaskStatus(key=key, phase=TaskPhase.ENDED, started_at=status.started_at)
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


class Node:
    """One daemon between its twins. `async with` runs it."""

    def __init__(
        self,
        control: TwinControl | None = None,
        runner: TwinRunner | None = None,
        *,
        gpus: int = 4,
        folders: Folders | None = None,
        account: str = "root",
        fence: Fence | None = None,
    ) -> None:
        self.control = control or TwinControl()
        self.runner = runner or TwinRunner()
        self.notes = Notes(SimClock(), "node-1")
        ports = AgentPorts(
            link=self.control,
            runner=self.runner,
            clock=SimClock(),
            entropy=HighDice(),
            telemetry=self.notes,
            folders=folders or NoFolders(),
            fence=fence or NoFence(),
        )
        self.daemon = Daemon(registration(gpus, account), ports, node_env={"PATH": "/node/bin", "HOME": "/home/agent"})

    async def __aenter__(self) -> "Node":
        self._task = asyncio.ensure_future(self.daemon.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.result()  # a defect of the daemon fails the test

    async def until(self, true: Callable[[], object], within_s: float = 120.0) -> None:
        """Let virtual time pass until `true`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while not true():
            assert not self._task.done(), f"the daemon ended: {self._task}"
            assert loop.time() < deadline, f"it didn't come true within {within_s} s: {self.notes.lines[-5:]}"
            await asyncio.sleep(0.01)

    async def connected(self, streams: int = 1) -> None:
        await self.until(lambda: len(self.control.sessions) >= streams and self.control.session.reports)

    def finished(self) -> list[tuple[TaskKey, EndCause]]:
        return [(one.key, one.end.cause) for one in self.control.finished]


def registration(gpus: int, account: str = "root") -> Registration:
    devices = tuple(Gpu(uuid=gpu(i), index=i, model="V100", memory_mb=16_384, simulated=True) for i in range(gpus))
    inventory = Inventory(
        boot_id="boot-1", address="10.0.0.1", gpus=devices, cpus=16, memory_mb=65_536, account=account
    )
    return Registration(node=NodeName("node-1"), inventory=inventory)


def gpu(index: int) -> GpuUuid:
    return GpuUuid(f"GPU-{index}")


def key(job: int, attempt: int = 1, rank: int = 0) -> TaskKey:
    return TaskKey(JobId(job), attempt, rank)


def start(of: TaskKey, *, gpus: Iterable[int] = (), epoch: int = 1, env: dict[str, str] | None = None) -> Start:
    return Start(
        key=of,
        epoch=Epoch(epoch),
        command="true",
        env=env or {},
        workdir="",
        gpus=tuple(gpu(i) for i in gpus),
        cpus=1,
        memory_mb=0,
    )


def stop(of: TaskKey, *, epoch: int = 1) -> Stop:
    return Stop(key=of, epoch=Epoch(epoch), grace_ms=10_000)


def exited(code: int = 0) -> TaskEnd:
    return TaskEnd(cause=EndCause.EXITED, at=Instant(1), exit_code=code)


Story = Callable[[], Coroutine[Any, Any, None]]


def on_virtual_time(story: Story) -> Callable[[], None]:
    def test() -> None:
        run_virtual(story)

    test.__name__, test.__doc__ = story.__name__, story.__doc__
    return test


async def running(node: Node, job: int = 1, gpus: tuple[int, ...] = ()) -> None:
    """Start a task and wait until the control plane knows that it runs."""
    node.control.tell(start(key(job), gpus=gpus))
    await node.until(lambda: any(isinstance(r, Started) and r.key == key(job) for r in node.control.session.reports))
