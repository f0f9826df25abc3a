"""An active's side and standbys' sides on virtual time, joined by cables that can be cut or held up."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import Member
from stoker.brain.failover.inputs import CaughtUp, FellBehind, PeerState
from stoker.brain.failover.timing import DEFAULT, Timing
from stoker.control.control_ports import ControlPorts
from stoker.live.failover.follower import Follower, LogReplaced
from stoker.live.failover.links import Following, Frame, Offer, PeerDown, PeerRefused
from stoker.live.failover.replication import Replication
from stoker.live.failover.sender import Sender
from stoker.ports import ReceivedBackup, Stored
from tests.rig.sim_log import SimDisk, SimLog
from tests.rig.sim_ports import Notes, SimClock, SimEntropy

CLUSTER = "cluster-1"
A, B, C = Member("a", "uid-a"), Member("b", "uid-b"), Member("c", "uid-c")


def records(first: int, last: int) -> list[bytes]:
    """Those at positions `first` to `last`."""
    return [b"record %d" % at for at in range(first, last + 1)]


def disk_of(*epochs: tuple[int, int], first: int = 1) -> SimDisk:
    """A log with records of each epoch up to a position, of which those before `first` were trimmed."""
    disk = SimDisk()
    end = 0
    for epoch, last in epochs:
        disk.put(Epoch(epoch), records(end + 1, last))
        end = last
    if first > 1:
        disk.base_epoch = disk.epochs[first - 2]
        del disk.records[: first - 1], disk.epochs[: first - 1], disk.crcs[: first - 1]
        disk.first = first
    return disk


class FakeBackups:
    """What a backup of this control plane consists of."""

    def __init__(self, *pieces: bytes, takes_s: float = 0.0, clock: SimClock | None = None) -> None:
        self._pieces, self._takes_s, self._clock = pieces, takes_s, clock or SimClock()
        self.faults: list[Exception] = []
        """What the next ones end with instead."""
        self.open = self.most_open = 0

    async def take(self) -> "FakeBackups":
        if self.faults:
            raise self.faults.pop(0)
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            await self._clock.sleep(self._takes_s)
        except asyncio.CancelledError:
            self.open -= 1
            raise
        return self

    async def pieces(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece

    async def close(self) -> None:
        self.open -= 1


class Active:
    """Whoever leads: its disk, its log and its side of replication."""

    def __init__(self, disk: SimDisk | None = None, *, sync: bool = True, timing: Timing = DEFAULT) -> None:
        self.clock, self.entropy = SimClock(), SimEntropy(1)
        self.notes = Notes(self.clock, "a")
        self.disk = disk or disk_of()
        self.log = SimLog(self.disk, self.clock, self.entropy)
        self.holds = True
        world = ControlPorts(clock=self.clock, entropy=self.entropy, telemetry=self.notes)
        self.replication = Replication(self.log, world, timing=timing, sync=sync, holds=lambda: self.holds)
        self.backups = FakeBackups(b"a backup")
        self.caught_up: list[Member] = []
        self.fell_behind: list[Member] = []
        self.replication.tell = self._told
        self.epoch = Epoch(0)
        self.running: asyncio.Task[None] | None = None

    def _told(self, told: CaughtUp | FellBehind) -> None:
        (self.caught_up if isinstance(told, CaughtUp) else self.fell_behind).append(told.member)

    async def lead(self, epoch: int) -> None:
        self.epoch = Epoch(epoch)
        end = await self.log.open()
        self.replication.lead(A, self.epoch, end, self.backups, cluster_id=lambda: CLUSTER)
        self.running = asyncio.create_task(self.replication.run())

    async def write(self, count: int = 1) -> Position:
        """As the committer does: returns when it may be acknowledged."""
        begin = self.disk.end
        batch = records(begin + 1, begin + count)
        self.replication.ship(self.epoch, begin, batch)
        await self.log.append(self.epoch, begin, batch)
        await self.replication.wait_for(self.disk.end)
        return self.disk.end


class Cable:
    """The PeerLink straight to an active."""

    def __init__(self, active: Active) -> None:
        self.address = "host-a:9090"
        self._active = active
        self._wires: list[_Wire] = []
        self.offers: list[Offer] = []
        self.open_way = asyncio.Event()
        """While it isn't set frames wait."""
        self.open_way.set()
        self.deaf = False
        """Confirmations get lost."""

    async def ping(self, me: PeerState) -> PeerState:
        raise PeerDown("it isn't asked here")

    @asynccontextmanager
    async def follow(self, offer: Offer) -> AsyncIterator[Following]:
        self.offers.append(offer)
        try:
            wire = _Wire(self, self._active.replication.accept(offer))
        except StokerError as fault:
            raise PeerRefused(fault.refusal.code) from fault
        self._wires.append(wire)
        try:
            yield wire
        finally:
            self._wires.remove(wire)
            await wire.end()

    async def cut(self) -> None:
        """Break every stream."""
        for wire in self._wires:
            wire.frame_queue.put_nowait(PeerDown("cut"))
            await wire.end()

    async def close(self) -> None:
        await self.cut()


class _Wire:
    def __init__(self, cable: Cable, sender: Sender) -> None:
        self._cable, self.sender = cable, sender
        self.frame_queue: asyncio.Queue[Frame | Exception] = asyncio.Queue()
        self._pumping = asyncio.create_task(self._pump())

    async def _pump(self) -> None:
        why: Exception = PeerDown("the active ended the stream")
        try:
            async with aclosing(self.sender.frames()) as frames:
                async for frame in frames:
                    await self._cable.open_way.wait()
                    self.frame_queue.put_nowait(frame)
        except StokerError as fault:
            why = PeerRefused(fault.refusal.code)
        self.frame_queue.put_nowait(why)

    async def frames(self) -> AsyncIterator[Frame]:
        while True:
            frame = await self.frame_queue.get()
            if isinstance(frame, Exception):
                raise frame
            yield frame

    async def confirm(self, position: Position) -> None:
        if not self._cable.deaf:
            self.sender.confirm(position)

    async def end(self) -> None:
        self._pumping.cancel()
        await asyncio.gather(self._pumping, return_exceptions=True)


class Standby:
    """Whoever follows: its disk, its log and what it replayed."""

    def __init__(self, member: Member, disk: SimDisk | None = None) -> None:
        self.clock, self.entropy = SimClock(), SimEntropy(2)
        self.notes = Notes(self.clock, member.name)
        self.disk = disk or disk_of()
        self.log = SimLog(self.disk, self.clock, self.entropy)
        self.replayed: list[Stored] = []
        self.heard: list[PeerState] = []
        self.received: list[bytes] = []
        self.coming: Callable[[list[bytes]], Coroutine[Any, Any, ReceivedBackup]] | None = None
        world = ControlPorts(clock=self.clock, entropy=self.entropy, telemetry=self.notes)
        self.follower = Follower(self.log, self._replay, world, member, receive=self._receive)

    @property
    def cluster_id(self) -> str:
        return CLUSTER if self.disk.end else ""

    def _replay(self, rows: Sequence[Stored]) -> None:
        self.replayed += rows

    async def _receive(self, pieces: AsyncIterator[bytes]) -> ReceivedBackup:
        async for piece in pieces:
            self.received.append(piece)
        assert self.coming is not None, "no backup was expected"
        return await self.coming(self.received)

    async def follow(self, cable: Cable) -> None:
        """As the driver does it: dial anew until it isn't worth it any more."""
        if self.disk.holder is not self.log:
            await self.log.open()
        while True:
            try:
                await self.follower.follow(cable, self.heard.append, cluster_id=self.cluster_id)
            except PeerDown:
                await self.clock.sleep(0.05)

    def begin(self, cable: Cable) -> "asyncio.Task[None]":
        return asyncio.create_task(self.follow(cable))


async def until(holds: Callable[[], bool], within_s: float = 60.0) -> float:
    """Wait on the virtual clock; answers how long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not holds():
        assert loop.time() - began < within_s, f"it didn't happen within {within_s} s"
        await SimClock().sleep(0.001)
    return loop.time() - began


async def ended(task: "asyncio.Task[None]") -> BaseException | None:
    """What it ended with."""
    task.cancel()
    (how,) = await asyncio.gather(task, return_exceptions=True)
    return how if isinstance(how, BaseException) else None


__all__ = ["LogReplaced"]
