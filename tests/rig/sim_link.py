"""The network between agents and the control plane, and the Link port on it.

A stream is in order and breaks whole, as TCP's does; a unary call may lose its answer after it took effect, and an
instruction may come twice. Partitions cut what is under way and refuse what is new. The network also listens: an
instruction on a stream whose inventory wasn't compared yet is a broken promise, whatever comes of it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from stoker.agent.ports import LinkDown, LinkRefused
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Epoch, NodeName
from stoker.brain.domain.instruction import Instruction
from stoker.brain.domain.report import LogChunk, LogRequest, Registration, Report, TaskFinished, TaskInventory
from stoker.live.sessions import AgentStream, Sessions, Welcome
from stoker.live.streams import BeatAnswer, Message
from stoker.ports import Clock, Entropy
from tests.rig.gate import Gate

T = TypeVar("T")


class SimNetwork:
    """All links of one run."""

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self.clock, self.entropy = clock, entropy
        self.control: Sessions | None = None
        """The control plane that answers now. None = connection refused."""
        self.cut: set[NodeName] = set()
        self.lossy = 0.0
        """Chance that a unary answer is lost, or an instruction is delivered twice."""
        self.open: dict[NodeName, list[SimSession]] = {}
        self.broken_promises: list[str] = []
        self.on_instruction: Callable[[Instruction], None] | None = None
        """Told of what leaves the control plane, at the moment it does."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._broken: dict[NodeName, asyncio.Future[None]] = {}

    async def delay(self) -> None:
        await self.clock.sleep(self.entropy.jitter(0.0002, 0.02))

    def reaches(self, node: NodeName) -> bool:
        return self.control is not None and node not in self.cut

    def partition(self, node: NodeName) -> None:
        self.cut.add(node)
        self.break_streams(node)

    def heal(self, node: NodeName) -> None:
        self.cut.discard(node)

    def break_streams(self, node: NodeName) -> None:
        broken = self._broken.pop(node, None)
        if broken is not None and not broken.done():
            broken.set_result(None)
        for session in tuple(self.open.get(node, ())):
            session.break_now("connection reset")

    def break_all(self) -> None:
        for node in dict.fromkeys((*self.open, *self._broken)):
            self.break_streams(node)
        for task in tuple(self._tasks):
            if self.control is None:
                task.cancel()

    async def close(self) -> None:
        """Nothing is under way any more, and nobody is left to notice late."""
        self.control = None
        self.break_all()
        while self._tasks:
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def call(self, node: NodeName, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the control plane's side. When the connection breaks the caller hears LinkDown at once, and
        the other side goes on with it, unless that process is dead."""
        task = asyncio.get_running_loop().create_task(work)
        broken = self._broken.setdefault(node, asyncio.get_running_loop().create_future())
        try:
            await asyncio.wait((task, broken), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._leave(task)
            raise
        if task.done():
            return task.result()
        self._leave(task)
        raise LinkDown("connection reset")

    def _leave(self, task: "asyncio.Task[Any]") -> None:
        if self.control is None:
            task.cancel()
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        fault = None if task.cancelled() else task.exception()
        if fault is not None and not isinstance(fault, StokerError):  # a refusal that nobody is left to hear
            self.broken_promises.append(f"a servicer broke: {fault!r}")

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task


class SimLink:
    """The Link port of one node's agent; `gate` is that process's."""

    def __init__(self, network: SimNetwork, node: NodeName, gate: Gate | None = None) -> None:
        self._network, self._node = network, node
        self._gate = gate or Gate()

    async def connect(self, registration: Registration) -> "SimSession":
        await self._gate.passed()
        await self._network.delay()
        sessions = self._reach()
        try:
            welcome = await self._network.call(self._node, sessions.register(registration))
            await self._network.delay()
            await self._gate.passed()
            if self._reach() is not sessions:
                raise LinkDown("the control plane went away")
            stream = sessions.attach(welcome.session)
        except StokerError as error:
            raise LinkRefused(error.refusal.message) from error
        return SimSession(self._network, sessions, stream, welcome, self._gate)

    def _reach(self) -> Sessions:
        if not self._network.reaches(self._node) or self._network.control is None:
            raise LinkDown("connection refused")
        return self._network.control


class SimSession:
    """The LinkSession port: two pumps with delays between an agent and `live.sessions`."""

    def __init__(
        self, network: SimNetwork, sessions: Sessions, stream: AgentStream, welcome: Welcome, gate: Gate
    ) -> None:
        self._network, self._sessions, self._stream, self._welcome = network, sessions, stream, welcome
        self._gate = gate
        self._compared = False
        self._up: asyncio.Queue[Report] = asyncio.Queue()
        self._down: asyncio.Queue[Instruction | None] = asyncio.Queue()
        self._logs: asyncio.Queue[LogRequest | None] = asyncio.Queue()
        self._broken = ""
        network.open.setdefault(stream.node, []).append(self)
        self._pumps = [
            network.spawn(self._pump_up()),
            network.spawn(self._pump_down()),
            network.spawn(self._pump_logs()),
        ]

    @property
    def epoch(self) -> Epoch:
        return self._welcome.epoch

    @property
    def heartbeat_s(self) -> float:
        return self._welcome.heartbeat_ms / 1000

    def break_now(self, why: str) -> None:
        if self._broken:
            return
        self._broken = why
        self._network.open[self._stream.node].remove(self)
        for pump in self._pumps:
            pump.cancel()
        self._down.put_nowait(None)
        self._logs.put_nowait(None)
        self._network.spawn(self._notice_late())

    async def _notice_late(self) -> None:
        """The other side notices a dead connection only after a while."""
        await self._network.clock.sleep(self._network.entropy.jitter(0.0, 5.0))
        self._sessions.detach(self._stream)

    async def _pump_up(self) -> None:
        try:
            while True:
                report = await self._up.get()
                await self._network.delay()
                await self._stream.receive(report)
                self._compared = self._compared or isinstance(report, TaskInventory)
        except StokerError as error:
            self.break_now(error.refusal.code)

    async def _pump_down(self) -> None:
        try:
            async for message in self._stream.outgoing():
                self._listen_in(message)
                await self._network.delay()
                if isinstance(message, BeatAnswer):
                    continue
                self._down.put_nowait(message)
                if self._network.entropy.jitter(0, 1) < self._network.lossy:
                    self._down.put_nowait(message)
        except StokerError as error:
            self.break_now(error.refusal.code)
        self.break_now("the control plane closed the stream")

    def _listen_in(self, message: Message) -> None:
        if isinstance(message, BeatAnswer):
            return
        if self._network.on_instruction is not None:
            self._network.on_instruction(message)
        if not self._compared:
            self._network.broken_promises.append(
                f"{message.key} was sent to {self._stream.node} before it was compared"
            )

    async def _pump_logs(self) -> None:
        async for request in self._sessions.log_requests(self._welcome.session):
            await self._network.delay()
            self._logs.put_nowait(request)

    def _check(self) -> None:
        if self._broken:
            raise LinkDown(self._broken)

    async def send(self, report: Report) -> None:
        await self._gate.passed()
        self._check()
        self._up.put_nowait(report)

    async def instructions(self) -> AsyncIterator[Instruction]:
        while (instruction := await self._down.get()) is not None:
            await self._gate.passed()
            yield instruction
        raise LinkDown(self._broken)

    async def finish(self, finished: TaskFinished) -> None:
        await self._gate.passed()
        self._check()
        await self._network.delay()
        self._check()
        lossy = self._network.lossy
        if self._network.entropy.jitter(0, 1) < lossy:
            raise LinkDown("the request was lost")
        try:
            await self._network.call(self._stream.node, self._sessions.finished(finished))
            if self._network.entropy.jitter(0, 1) < lossy:
                await self._network.call(self._stream.node, self._sessions.finished(finished))
        except StokerError as error:
            raise LinkDown(error.refusal.message) from error
        if self._network.entropy.jitter(0, 1) < lossy:
            raise LinkDown("the answer was lost")
        await self._network.delay()
        await self._gate.passed()
        self._check()

    async def log_requests(self) -> AsyncIterator[LogRequest]:
        while (request := await self._logs.get()) is not None:
            await self._gate.passed()
            yield request
        raise LinkDown(self._broken)

    async def send_log(self, chunk: LogChunk) -> None:
        await self._gate.passed()
        self._check()
        self._sessions.log_chunk(self._welcome.session, chunk)

    async def close(self) -> None:
        self.break_now("closed by the agent")
