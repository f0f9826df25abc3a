"""The network between control planes: the PeerLink port, and what answers there.

The same network as the agents' (`sim_network`): a cut in one direction lets pings and frames pass in the other only.
What a control plane serves is done by its own process, so that a stopped one answers nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Position
from stoker.brain.failover.inputs import PeerState
from stoker.live.failover.links import Frame, Offer, PeerDown, PeerRefused
from stoker.live.failover.sender import Sender
from tests.rig.process import SimProcess, within
from tests.rig.sim_network import KEEPALIVE_S, Line, SimNetwork

T = TypeVar("T")
WINDOW: Final = 16
"""Frames that are on their way or wait at the follower; then the active's stream waits (K3)."""
CALL_S_MAX: Final = 2.0


@dataclass(frozen=True, slots=True)
class Host:
    """What a control plane serves to the others. One for each life."""

    name: str
    process: SimProcess
    ping: Callable[[PeerState], PeerState]
    accept: Callable[[Offer], Sender]


class SimPeers:
    """All control planes of one run, and the streams between them."""

    def __init__(self, network: SimNetwork) -> None:
        self.network = network
        self.hosts: dict[str, Host] = {}
        self.streams: list[_Stream] = []

    def serve(self, host: Host) -> None:
        self.hosts[host.name] = host

    def go_dark(self, name: str) -> None:
        """A life is over, or its process: its streams end."""
        self.hosts.pop(name, None)
        for stream in tuple(self.streams):
            if name in (stream.active, stream.follower):
                stream.break_now("connection reset", heard=self.network.passes(name, stream.other(name)))

    def give_up_later(self, one: str, other: str | None = None) -> None:
        """A connection that is cut, or whose other end doesn't run, is given up after a while."""
        for stream in self.streams:
            if one in (stream.active, stream.follower) and other in (None, stream.active, stream.follower):
                self.network.spawn(stream.give_up())


class SimPeerLink:
    """The PeerLink port of the process of control plane `me`."""

    def __init__(self, peers: SimPeers, me: str, address: str, process: SimProcess) -> None:
        self._peers, self._me, self._address, self._process = peers, me, address, process

    @property
    def address(self) -> str:
        return self._address

    async def ping(self, me: PeerState) -> PeerState:
        """The clock of the network measures how long it waits; a stopped process hears of it when it goes on."""
        try:
            async with asyncio.timeout(CALL_S_MAX):
                return await self._ping(me)
        except TimeoutError as fault:
            raise PeerDown(f"{self._address} doesn't answer") from fault
        except StokerError as fault:
            raise PeerRefused(fault.refusal.message) from fault

    async def _ping(self, me: PeerState) -> PeerState:
        network = self._peers.network
        await network.travel(self._me, self._address)
        host = self._host()
        asked = within(host.process, _soon(lambda: host.ping(me)))
        await asyncio.wait((asked,))
        if asked.cancelled():
            raise PeerDown(f"{self._address} has died")
        said: PeerState = asked.result()
        await network.travel(self._address, self._me)
        return said

    @asynccontextmanager
    async def follow(self, offer: Offer) -> "AsyncIterator[_Stream]":
        network = self._peers.network
        try:
            async with asyncio.timeout(CALL_S_MAX):
                await network.travel(self._me, self._address)
                await network.travel(self._address, self._me)
        except TimeoutError as fault:
            raise PeerDown(f"{self._address} doesn't answer") from fault
        stream = _Stream(self._peers, self._host(), self._me, self._process, offer)
        try:
            yield stream
        finally:
            stream.break_now("closed by the follower")

    def _host(self) -> Host:
        host = self._peers.hosts.get(self._address)
        if host is None:
            raise PeerDown(f"{self._address} refuses the connection")
        return host

    async def close(self) -> None:
        """Nothing is kept open."""


class _Stream:
    """Both ends of one stream: `Following` for the follower, a task of the active's process at the other."""

    def __init__(self, peers: SimPeers, host: Host, follower: str, process: SimProcess, offer: Offer) -> None:
        self.active, self.follower = host.name, follower
        self._peers, self._host, self._process, self._offer = peers, host, process, offer
        self._frames: asyncio.Queue[Frame | Exception] = asyncio.Queue()
        self._confirmed: asyncio.Queue[Position] = asyncio.Queue()
        self._room = asyncio.Semaphore(WINDOW)
        network = peers.network
        self._line_down: Line[Frame | Exception] = Line(network, (host.name, follower), self._frames.put_nowait)
        self._line_up: Line[Position] = Line(network, (follower, host.name), self._confirmed.put_nowait)
        self._broken: PeerDown | None = None
        self._sender: Sender | None = None
        self._duties = [network.spawn(duty, host.process) for duty in (self._feed(), self._hear())]
        peers.streams.append(self)

    def other(self, name: str) -> str:
        return self.follower if name == self.active else self.active

    # --- the active's end ---------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        why: Exception = PeerDown(f"{self.active} ended the stream")
        try:
            self._sender = self._host.accept(self._offer)
            async with aclosing(self._sender.frames()) as frames:
                async for frame in frames:
                    await self._room.acquire()
                    self._line_down.put(frame)
        except StokerError as fault:
            why = PeerRefused(f"{self.active}: {fault.refusal.message}")
        self._line_down.put(why)

    async def _hear(self) -> None:
        try:
            while True:
                position = await self._confirmed.get()
                if self._sender is not None:
                    self._sender.confirm(position)
        except StokerError as fault:
            self._line_down.put(PeerRefused(f"{self.active}: {fault.refusal.message}"))

    async def _notice_late(self) -> None:
        """The other side notices a dead connection only after a while."""
        await self._peers.network.clock.sleep(self._peers.network.entropy.jitter(0.0, 5.0))
        self._give_back()

    def _give_back(self) -> None:
        for duty in self._duties:
            duty.cancel()

    # --- the follower's end -------------------------------------------------------------------------------------

    async def frames(self) -> AsyncIterator[Frame]:
        while True:
            frame = await self._frames.get()
            if isinstance(frame, Exception):
                self._frames.put_nowait(frame)
                raise frame
            self._room.release()
            yield frame

    async def confirm(self, position: Position) -> None:
        if self._broken is not None:
            raise self._broken
        self._line_up.put(position)

    # --- both ---------------------------------------------------------------------------------------------------

    async def give_up(self) -> None:
        network = self._peers.network
        await network.clock.sleep(network.entropy.jitter(*KEEPALIVE_S))
        stopped = self._host.process.stopped or self._process.stopped
        one, other = self.active, self.follower
        if stopped or not network.passes(one, other) or not network.passes(other, one):
            self.break_now("no answer to a keepalive")

    def break_now(self, why: str, *, heard: bool = True) -> None:
        """`heard`: does the other end hear of it? Else it finds out by itself."""
        if self._broken is not None:
            return
        self._broken = PeerDown(f"{self.active}: {why}")
        self._line_down.closed = self._line_up.closed = True
        self._peers.streams.remove(self)
        network = self._peers.network
        if self._host.process.dead or self._peers.hosts.get(self.active) is not self._host:
            self._give_back()
        else:
            network.spawn(self._notice_late())
        if heard:
            self._frames.put_nowait(self._broken)
        else:
            network.spawn(self._hear_late())

    async def _hear_late(self) -> None:
        network = self._peers.network
        await network.clock.sleep(network.entropy.jitter(*KEEPALIVE_S))
        assert self._broken is not None, "it broke"
        self._frames.put_nowait(self._broken)


async def _soon(answer: Callable[[], T]) -> T:
    return answer()
