"""Two real control planes without servers, over simulated disks, links and a simulated marker, on virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Literal

from stoker.brain.state.commands import Submit
from stoker.control.control_ports import ControlPorts
from stoker.live.control_plane import LiveControlPlane
from stoker.live.failover.driver import Driver
from stoker.live.failover.replication import Replication
from stoker.live.failover.tenure import OwnLogs, TenurePorts, Tenures
from stoker.live.settings.control import ControlSettings, FailoverSettings
from tests.control.stage import ANNA, spec
from tests.rig.process import SimProcess
from tests.rig.sim_disk import SimDisk
from tests.rig.sim_history import SimHistory
from tests.rig.sim_lease import SharedPlace, SimLease
from tests.rig.sim_log import SimIncoming, SimLog
from tests.rig.sim_network import SimNetwork
from tests.rig.sim_peers import Host, SimPeerLink, SimPeers
from tests.rig.sim_ports import Notes, SimClock, SimEntropy
from tests.rig.virtual_loop import run_virtual


class One:
    """A control plane on its machine."""

    def __init__(self, name: str, other: str, place: SharedPlace, peers: SimPeers, seed: int) -> None:
        self.name, self.disk = name, SimDisk()
        self.clock, self.entropy = SimClock(), SimEntropy(seed)
        self.notes = Notes(self.clock, name)
        self._other, self._place, self._peers = other, place, peers
        self.mode: Literal["sync", "async"] = "sync"
        self.profile: Literal["default", "fast"] = "default"
        self.process = SimProcess(name)
        self.stop = asyncio.Event()
        self.driver: Driver | None = None
        self.control: LiveControlPlane | None = None

    def start(self) -> None:
        self.process = SimProcess(self.name)
        self.stop = asyncio.Event()
        world = ControlPorts(clock=self.clock, entropy=self.entropy, telemetry=self.notes)
        failover = FailoverSettings(
            enabled=True,
            name=self.name,
            peers=("other:1",),
            marker="/marker",
            mode=self.mode,
            profile=self.profile,
        )
        own = OwnLogs(
            log=lambda: SimLog(self.disk, self.clock, self.entropy),
            links=[SimPeerLink(self._peers, self.name, self._other, self.process)],
            incoming=lambda: SimIncoming(self.disk, self.clock),
        )
        around = TenurePorts(
            logs=own,
            history=lambda: SimHistory(self.disk.archive, self.clock),
            lease=SimLease(self._place, self.clock, self.entropy, who=self.name),
        )
        lives = Tenures(ControlSettings(failover=failover), around, world, self._serve)
        self.process.visit(lives.run(self.stop))

    @asynccontextmanager
    async def _serve(
        self, control: LiveControlPlane, driver: Driver, replication: Replication | None
    ) -> AsyncIterator[None]:
        assert replication is not None, "each has a log of its own here"
        self.driver, self.control = driver, control
        self._peers.serve(Host(self.name, self.process, driver.pinged, replication.accept))
        try:
            yield
        finally:
            self._peers.go_dark(self.name)
            self.driver = self.control = None

    async def kill(self) -> None:
        self._peers.go_dark(self.name)
        await self.process.kill()

    @property
    def is_active(self) -> bool:
        """And its epoch has begun."""
        return (
            self.driver is not None
            and self.control is not None
            and self.driver.machine.holds(self.clock.mono())
            and self.control.committer.following is None
            and self.control.committer.state.epoch == self.driver.machine.epoch
        )

    @property
    def jobs(self) -> list[int]:
        return sorted(self.control.committer.state.jobs) if self.control else []

    async def submit(self) -> int:
        assert self.control is not None, f"{self.name} has no life now"
        await self.control.committer.ask(Submit(by=ANNA, specs=(spec(),)))
        return max(self.control.committer.state.jobs)


class Two:
    """Both, and what they share."""

    def __init__(self, seed: int = 1) -> None:
        self.place = SharedPlace()
        self.network = SimNetwork(SimClock(), SimEntropy(seed))
        self.peers = SimPeers(self.network)
        self.a = One("a", "b", self.place, self.peers, seed + 10)
        self.b = One("b", "a", self.place, self.peers, seed + 20)
        self.both = (self.a, self.b)

    async def begin(self) -> None:
        self.a.start()
        self.b.start()
        await self.until_whole()

    async def until(self, true: Callable[[], object], within_s: float = 60.0) -> float:
        """How long it took."""
        began = asyncio.get_running_loop().time()
        while not true():
            took = asyncio.get_running_loop().time() - began
            assert took < within_s, "\n".join(line for one in self.both for line in one.notes.lines[-25:])
            await asyncio.sleep(0.02)
        return asyncio.get_running_loop().time() - began

    @property
    def active(self) -> One:
        found = [one for one in self.both if one.is_active]
        assert len(found) == 1, f"{len(found)} are active"
        return found[0]

    async def until_whole(self) -> None:
        await self.until(
            lambda: (
                any(one.is_active for one in self.both)
                and self.place.newest is not None
                and len(self.place.newest.in_sync) == 2
            )
        )
        await self.until(lambda: self.a.jobs == self.b.jobs)

    async def close(self) -> None:
        for one in self.both:
            await one.kill()
        await self.place.close()
        await self.network.close()


def lived(story: Callable[[Two], Coroutine[None, None, None]]) -> None:
    async def live() -> None:
        two = Two()
        try:
            await story(two)
        finally:
            await two.close()

    run_virtual(live)
