"""A control plane and a runner in a few lines, for tests of the daemon alone, on virtual time.

Honest where it matters: the link drops what was on the way when it breaks, the runner acts once per key, and a call on
anything broken raises what the ports say.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from msgspec.structs import replace

from stoker.agent.container_ports import Containers, NoContainers
from stoker.agent.daemon import Daemon
from stoker.agent.gpu_ports import GpuCare
from stoker.agent.instructions import TaskRules
from stoker.agent.ports import (
    AgentPorts,
    BeatAnswered,
    Fence,
    Folders,
    LinkDown,
    LinkRefused,
    LinkStandby,
    NoFence,
    NoFolders,
    Obeyed,
)
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.gpu_telemetry import FigureWatch
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
    TunnelFrame,
)
from stoker.brain.domain.units import Instant
from tests.agent.twin_runner import TwinRunner
from tests.rig.sim_ports import Notes, SimClock
from tests.rig.virtual_loop import run_virtual

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
        self.down: asyncio.Queue[Instruction | BeatAnswered | FigureWatch] = asyncio.Queue()
        self.wanted: asyncio.Queue[LogRequest] = asyncio.Queue()
        self.tunnels: asyncio.Queue[TunnelFrame] = asyncio.Queue()

    def _check(self) -> None:
        if self.broken.is_set():
            raise LinkDown("twin: the stream is broken")

    async def send(self, *reports: Report) -> None:
        self._check()
        for report in reports:
            self.reports.append(report)
            if isinstance(report, Beat) and self.control.answers_beats:
                epoch = self.control.answer_epoch or self.epoch
                self.down.put_nowait(BeatAnswered(sequence=report.sequence, epoch=epoch))

    async def instructions(self) -> AsyncGenerator[Instruction | BeatAnswered | FigureWatch, None]:
        while True:
            yield await self._next(self.down)

    async def log_requests(self) -> AsyncGenerator[LogRequest, None]:
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

    async def finish(self, *ends: TaskFinished) -> None:
        self._check()
        await asyncio.sleep(self.control.commit_s)
        self._check()
        if self.control.loses_ends:
            raise LinkDown("twin: no answer")
        self.control.finished.extend(ends)
        if self.control.loses_answers:
            raise LinkDown("twin: the answer was lost")

    async def send_log(self, chunk: LogChunk) -> None:
        self._check()
        self.control.chunks.append(chunk)

    async def tunnel_frames(self) -> AsyncGenerator[TunnelFrame, None]:
        while True:
            yield await self._next(self.tunnels)

    async def send_frame(self, frame: TunnelFrame) -> None:
        self._check()
        self.control.frames.append(frame)

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
        self.frames: list[TunnelFrame] = []

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


class BrokenFence(NoFence):
    """Its disk takes nothing while it is broken."""

    def __init__(self, number: int) -> None:
        """`number`: of the error, in `errno`."""
        super().__init__()
        self.is_broken = False
        self._number = number

    async def keep(self, obeyed: Obeyed) -> None:
        if self.is_broken:
            raise OSError(self._number, os.strerror(self._number))
        await super().keep(obeyed)


class Node:
    """One daemon between its twins. `async with` runs it."""

    def __init__(  # noqa: PLR0913  # a builder: each test names the one or two that it is about
        self,
        control: TwinControl | None = None,
        runner: TwinRunner | None = None,
        *,
        gpus: int = 4,
        folders: Folders | None = None,
        account: str = "root",
        fence: Fence | None = None,
        rules: TaskRules | None = None,
        care: GpuCare | None = None,
        containers: Containers | None = None,
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
            gpus=care,
            containers=containers or NoContainers(),
        )
        env = {"PATH": "/node/bin", "HOME": "/home/agent"}
        made = registration(gpus, account)
        if containers is not None:
            kinds = replace(made.inventory, executors=("process", "container"))
            made = replace(made, inventory=kinds)
        self.daemon = Daemon(made, ports, node_env=env, rules=rules)

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
