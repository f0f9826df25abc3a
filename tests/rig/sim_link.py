"""The Link port of an agent on the simulated network, which reaches whichever of its addresses lets it in.

An agent's end is a Link; what answers there is `live.sessions`, run by the process of that control plane: a stopped one
takes nothing and says nothing until it goes on, while what it has sent arrives.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

from stoker.agent.addresses import Addresses, first_of
from stoker.agent.ports import BeatAnswered, LinkDown, LinkRefused, LinkSession, LinkStandby
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.gpu_telemetry import FigureWatch
from stoker.brain.domain.ids import Epoch, NodeName
from stoker.brain.domain.instruction import Instruction
from stoker.brain.domain.report import (
    FrameKind,
    LogChunk,
    LogRequest,
    Registration,
    Report,
    TaskFinished,
    TaskInventory,
    TunnelFrame,
)
from stoker.live.sessions import AgentStream, RegistrationReply
from stoker.live.streams import BeatAnswer, Message
from tests.rig.gate import Gate
from tests.rig.sim_network import CALL_S_MAX, CONTROL, Line, Served, SimNetwork

_END: Final = "the control plane closed the stream"


def _nothing() -> None:
    """Nobody wants to know."""


class SimLink:
    """The Link port of one node's agent; `gate` is that process's."""

    def __init__(
        self,
        network: SimNetwork,
        node: NodeName,
        gate: Gate | None = None,
        addresses: Sequence[str] = (CONTROL,),
    ) -> None:
        self._network, self._node, self._addresses = network, node, Addresses(addresses)
        self._gate = gate or Gate()

    @property
    def has_alternatives(self) -> bool:
        return len(self._addresses.all) > 1

    async def connect(self, registration: Registration) -> LinkSession:
        address, session = await first_of(self._addresses, lambda address: self._connect(address, registration))
        session.on_good = lambda: self._addresses.good(address)
        return session

    async def _connect(self, address: str, registration: Registration) -> "SimSession":
        network = self._network
        await self._gate.passed()
        await network.delay()
        served = await self._reach(address)
        try:
            welcome = await network.call(self._node, served, served.sessions.register(registration))
            await network.delay()
            await self._gate.passed()
            if network.controls.get(address) is not served or not self._is_open(address):
                raise LinkDown("the control plane went away")
            stream = served.sessions.attach(welcome.session)
        except StokerError as error:
            standby = error.refusal.code == "not_active"
            raise (LinkStandby if standby else LinkRefused)(error.refusal.message) from error
        return SimSession(network, served, stream, welcome, self._gate)

    async def _reach(self, address: str) -> Served:
        """A cut in either direction lets no connection come about, and nobody says so."""
        if not self._is_open(address) and self.has_alternatives:
            await self._network.clock.sleep(CALL_S_MAX)
        served = self._network.controls.get(address)
        if served is None or not self._is_open(address):
            raise LinkDown("connection refused")
        return served

    def _is_open(self, address: str) -> bool:
        return self._network.passes(self._node, address) and self._network.passes(address, self._node)


class SimSession:
    """The LinkSession port: a line in each direction between an agent and `live.sessions`."""

    def __init__(
        self, network: SimNetwork, served: Served, stream: AgentStream, welcome: RegistrationReply, gate: Gate
    ) -> None:
        self.served = served
        self._network, self._stream, self._welcome, self._gate = network, stream, welcome, gate
        self._compared = False
        self._up: asyncio.Queue[Report] = asyncio.Queue()
        self._down: asyncio.Queue[Instruction | BeatAnswered | FigureWatch | None] = asyncio.Queue()
        self._logs: asyncio.Queue[LogRequest | None] = asyncio.Queue()
        self._broken = ""
        self._left = False
        self.on_good: Callable[[], None] = _nothing
        """Told of whatever comes down the stream."""
        way_up, way_down = (stream.node, served.address), (served.address, stream.node)
        self._line_up: Line[Report] = Line(network, way_up, self._up.put_nowait)
        self._line_down: Line[Message | LogRequest | str] = Line(network, way_down, self._arrived)
        network.open.setdefault(stream.node, []).append(self)
        self._duties = [
            network.spawn(duty, served.process) for duty in (self._take(), self._say(), self._ask_for_logs())
        ]

    @property
    def epoch(self) -> Epoch:
        return self._welcome.epoch

    @property
    def asleep(self) -> bool:
        return not self._gate.is_open

    @property
    def cluster_id(self) -> str:
        return self._welcome.cluster_id

    @property
    def heartbeat_s(self) -> float:
        return self._welcome.heartbeat_ms / 1000

    # --- the control plane's end --------------------------------------------------------------------------------

    async def _take(self) -> None:
        try:
            while True:
                report = await self._up.get()
                await self._stream.receive(report)
                self._compared = self._compared or isinstance(report, TaskInventory)
        except StokerError as error:
            self._end(error.refusal.code)

    async def _say(self) -> None:
        why = _END
        try:
            async for message in self._stream.outgoing():
                self._listen_in(message)
                if self._network.stop_at_message is self.served.process and self.served.process is not None:
                    self.served.process.stop()
                    self._network.stop_at_message = None
                    self._network.give_up_later(self.served.address)
                await asyncio.sleep(0)  # whoever is stopped right here has decided, and sends when it goes on
                self._line_down.put(message)
                if (
                    not isinstance(message, BeatAnswer | FigureWatch)
                    and self._network.entropy.jitter(0, 1) < self._network.lossy
                ):
                    self._line_down.put(message)
        except StokerError as error:
            why = error.refusal.code
        self._end(why)

    async def _ask_for_logs(self) -> None:
        async for request in self.served.sessions.opened(self._welcome.session).log.requests():
            self._line_down.put(request)

    def _end(self, why: str) -> None:
        """The control plane ends the stream: the agent hears it, unless nothing comes through."""
        if not self._left:
            self._left = True
            self.served.sessions.detach(self._stream)
            self._line_down.put(why)
            self._line_up.closed = True

    async def _notice_late(self) -> None:
        """A dead connection is noticed only after a while."""
        await self._network.clock.sleep(self._network.entropy.jitter(0.0, 5.0))
        self.served.sessions.detach(self._stream)

    def _listen_in(self, message: Message) -> None:
        network = self._network
        if network.on_message is not None:
            network.on_message(self.served, message)
        if isinstance(message, BeatAnswer | FigureWatch):
            return
        if network.on_instruction is not None:
            network.on_instruction(message)
        if not self._compared:
            network.broken_promises.append(f"{message.key} was sent to {self._stream.node} before it was compared")

    # --- the agent's end ----------------------------------------------------------------------------------------

    def _arrived(self, message: Message | LogRequest | str) -> None:
        if isinstance(message, str):
            self.break_now(message)
            return
        self.on_good()
        if isinstance(message, LogRequest):
            self._logs.put_nowait(message)
        elif isinstance(message, BeatAnswer):
            self._down.put_nowait(BeatAnswered(sequence=message.sequence, epoch=message.epoch))
        else:
            self._down.put_nowait(message)

    def break_now(self, why: str) -> None:
        if self._broken:
            return
        self._broken = why
        self._line_up.closed = self._line_down.closed = True
        self._network.open[self._stream.node].remove(self)
        for duty in self._duties:
            duty.cancel()
        self._down.put_nowait(None)
        self._logs.put_nowait(None)
        if not self._left:
            self._network.spawn(self._notice_late(), self.served.process)

    def _check(self) -> None:
        if self._broken:
            raise LinkDown(self._broken)

    async def send(self, *reports: Report) -> None:
        await self._gate.passed()
        self._check()
        for report in reports:
            self._line_up.put(report)

    async def instructions(self) -> AsyncGenerator[Instruction | BeatAnswered | FigureWatch, None]:
        while (instruction := await self._down.get()) is not None:
            await self._gate.passed()
            yield instruction
        raise LinkDown(self._broken)

    async def finish(self, *ends: TaskFinished) -> None:
        network, served, node = self._network, self.served, self._stream.node
        await self._gate.passed()
        self._check()
        await network.travel(node, served.address)
        self._check()
        if network.entropy.jitter(0, 1) < network.lossy:
            raise LinkDown("the request was lost")
        try:
            await network.call(node, served, served.sessions.finished(*ends))
            if network.entropy.jitter(0, 1) < network.lossy:
                await network.call(node, served, served.sessions.finished(*ends))
        except StokerError as error:
            raise LinkDown(error.refusal.message) from error
        if network.entropy.jitter(0, 1) < network.lossy:
            raise LinkDown("the answer was lost")
        await network.travel(served.address, node)
        await self._gate.passed()
        self._check()

    async def log_requests(self) -> AsyncGenerator[LogRequest, None]:
        while (request := await self._logs.get()) is not None:
            await self._gate.passed()
            yield request
        raise LinkDown(self._broken)

    async def send_log(self, chunk: LogChunk) -> None:
        await self._gate.passed()
        self._check()
        self.served.sessions.opened(self._welcome.session).log.answer(chunk)

    async def tunnel_frames(self) -> AsyncGenerator[TunnelFrame, None]:
        """Nobody opens one: agents of the rig have no Dialer."""
        await asyncio.Event().wait()
        yield TunnelFrame(tunnel=0, what=FrameKind.END)

    async def send_frame(self, frame: TunnelFrame) -> None:
        self._check()

    async def close(self) -> None:
        self.break_now("closed by the agent")
