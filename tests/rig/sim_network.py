"""The network between agents and control planes: who reaches whom, what is under way, and what breaks.

A stream is in order and breaks whole, as TCP's does. A cut, in one direction or in both, holds what is under way: it
arrives once the cut is mended, unless the connection was given up before, which either side does after a while without
an answer. The network also listens: an instruction on a stream whose inventory wasn't compared yet is a broken promise,
whatever comes of it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from stoker.agent.ports import LinkDown
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.instruction import Instruction
from stoker.live.sessions import Sessions
from stoker.live.streams import Message
from stoker.ports import Clock, Entropy
from tests.rig.process import SimProcess, within

T = TypeVar("T")
CONTROL: Final = "control"
"""The address of the only control plane, where there is one."""
CALL_S_MAX: Final = 10.0
"""How long an agent waits for a connection or for the answer to its registration."""
KEEPALIVE_S: Final = (10.0, 20.0)
"""After how long without an answer a connection is given up."""
_NOWHERE: Final = Context()
"""What is under way belongs to no process, and arrives whoever is stopped."""


@dataclass(frozen=True, slots=True)
class Served:
    """A control plane that listens. `process` is the one that does its work; None = one that is never stopped."""

    address: str
    sessions: Sessions
    process: SimProcess | None = None


class Breakable(Protocol):
    """An open connection of an agent."""

    @property
    def served(self) -> Served: ...
    @property
    def asleep(self) -> bool:
        """Is the agent stopped? Then it gives nothing up."""
        ...

    def break_now(self, why: str) -> None: ...


class Line(Generic[T]):
    """One direction of one connection: what is put in arrives in order, later."""

    def __init__(self, network: "SimNetwork", way: tuple[str, str], deliver: Callable[[T], None]) -> None:
        self._network, self._way, self._deliver = network, way, deliver
        self._latest_s = 0.0
        self._waiting: deque[T] = deque()
        self.closed = False

    def put(self, message: T) -> None:
        loop = asyncio.get_running_loop()
        self._latest_s = max(self._latest_s + 1e-6, loop.time() + self._network.one_way_s())
        loop.call_at(self._latest_s, self._arrive, message, context=_NOWHERE)

    def _arrive(self, message: T) -> None:
        if self.closed:
            return
        if self._waiting or not self._network.passes(*self._way):
            if not self._waiting:
                self._network.when_mended(self._way, self._flush)
            self._waiting.append(message)
        else:
            self._deliver(message)

    def _flush(self) -> None:
        while self._waiting and not self.closed:
            self._deliver(self._waiting.popleft())


class SimNetwork:
    """All links of one run."""

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self.clock, self.entropy = clock, entropy
        self.controls: dict[str, Served] = {}
        """The control planes that answer now. Elsewhere a connection is refused."""
        self.lossy = 0.0
        """Chance that a unary answer is lost, or an instruction is delivered twice."""
        self.slow_s = 0.0
        """How much longer than usual everything takes."""
        self.open: dict[NodeName, list[Breakable]] = {}
        self.broken_promises: list[str] = []
        self.on_instruction: Callable[[Instruction], None] | None = None
        """Told of what leaves a control plane, at the moment it does."""
        self.on_message: Callable[[Served, Message], None] | None = None
        self.stop_at_message: SimProcess | None = None
        """This process stands still from the next message on that it decides to send."""
        self._cuts: set[tuple[str, str]] = set()
        self._on_mended: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._broken: dict[tuple[NodeName, str], asyncio.Future[None]] = {}

    # --- who listens --------------------------------------------------------------------------------------------

    @property
    def control(self) -> Sessions | None:
        """Of the only control plane. None = connection refused."""
        served = self.controls.get(CONTROL)
        return served.sessions if served else None

    def serve(self, served: Served) -> None:
        self.controls[served.address] = served

    def go_dark(self, address: str, sessions: Sessions) -> None:
        """Whoever asks there from now on is refused, unless another has begun to listen there meanwhile."""
        served = self.controls.get(address)
        if served is not None and served.sessions is sessions:
            del self.controls[address]

    # --- delays and cuts ----------------------------------------------------------------------------------------

    def one_way_s(self) -> float:
        return self.entropy.jitter(0.0002, 0.02) + self.slow_s

    async def delay(self) -> None:
        await self.clock.sleep(self.one_way_s())

    def passes(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) not in self._cuts

    async def travel(self, sender: str, receiver: str) -> None:
        """Returns when something that leaves now has arrived."""
        await self.delay()
        while not self.passes(sender, receiver):
            mended = asyncio.Event()
            self.when_mended((sender, receiver), mended.set)
            await mended.wait()

    def when_mended(self, way: tuple[str, str], then: Callable[[], None]) -> None:
        self._on_mended.setdefault(way, []).append(then)

    def cut(self, sender: str, receiver: str) -> None:
        """One way only. Connections are given up after a while."""
        self._cuts.add((sender, receiver))

    def mend(self, sender: str, receiver: str) -> None:
        self._cuts.discard((sender, receiver))
        for then in self._on_mended.pop((sender, receiver), []):
            then()

    def partition(self, node: NodeName) -> None:
        """Between a node and every control plane, both ways, and noticed by the agent at once."""
        for address in self._addresses():
            self.cut(node, address)
            self.cut(address, node)
        self.break_streams(node)

    def heal(self, node: NodeName) -> None:
        for way in sorted(self._cuts):
            if node in way:
                self.mend(*way)

    def mend_all(self) -> None:
        for way in sorted(self._cuts):
            self.mend(*way)

    def _addresses(self) -> list[str]:
        return sorted({*self.controls, CONTROL})

    # --- what breaks --------------------------------------------------------------------------------------------

    def break_streams(self, node: NodeName, address: str | None = None) -> None:
        """Those of a node to one control plane, or all."""
        for key in [key for key in self._broken if key[0] == node and address in (None, key[1])]:
            broken = self._broken.pop(key)
            if not broken.done():
                broken.set_result(None)
        for session in tuple(self.open.get(node, ())):
            if address in (None, session.served.address):
                session.break_now("connection reset")

    def break_all(self, address: str | None = None) -> None:
        """A process is gone: those whom its kernel can still reach hear it."""
        nodes = dict.fromkeys((*self.open, *(node for node, _ in self._broken)))
        for node in nodes:
            if address is None or self.passes(address, node):
                self.break_streams(node, address)

    def give_up_later(self, address: str, node: NodeName | None = None) -> None:
        """A connection that is cut, or whose other end doesn't run, is given up by the agent after a while."""
        for each, sessions in self.open.items():
            for session in sessions:
                if session.served.address == address and node in (None, each):
                    self.spawn(self._give_up(each, session))

    async def _give_up(self, node: NodeName, session: Breakable) -> None:
        await self.clock.sleep(self.entropy.jitter(*KEEPALIVE_S))
        while session.asleep:
            await self.clock.sleep(self.entropy.jitter(*KEEPALIVE_S))
        served = session.served
        stopped = served.process is not None and served.process.stopped
        if stopped or not self.passes(node, served.address) or not self.passes(served.address, node):
            session.break_now("no answer to a keepalive")

    async def close(self) -> None:
        """Nothing is under way any more, and nobody is left to notice late."""
        self.controls.clear()
        self.break_all()
        while self._tasks:
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._tasks.difference_update(tasks)  # a task of a dead process tells nobody that it has ended

    # --- calls --------------------------------------------------------------------------------------------------

    async def call(self, node: NodeName, served: Served, work: Coroutine[Any, Any, T]) -> T:
        """Let a control plane do `work`. When the connection breaks, or it takes too long, the caller hears LinkDown,
        and the other side goes on with it, unless that process is dead."""
        task = within(served.process, work)
        broken = self._broken.get((node, served.address))
        if broken is None:
            broken = self._broken[node, served.address] = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((task, broken), timeout=CALL_S_MAX, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._leave(served, task)
            raise
        if task.done() and not task.cancelled():
            result: T = task.result()
            return result
        self._leave(served, task)
        raise LinkDown("connection reset" if broken.done() else "no answer in time")

    def _leave(self, served: Served, task: "asyncio.Task[Any]") -> None:
        if self.controls.get(served.address) is not served:
            task.cancel()
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        fault = None if task.cancelled() else task.exception()
        if fault is not None and not isinstance(fault, StokerError):  # a refusal that nobody is left to hear
            self.broken_promises.append(f"a servicer broke: {fault!r}")

    def spawn(self, coroutine: Coroutine[Any, Any, None], process: SimProcess | None = None) -> "asyncio.Task[None]":
        """Something that the network does, or that a process does for one connection."""
        task = within(process, coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task
