"""One of several control planes: its machine with a disk and a clock, and the process that runs there, when one does.

The process is real but for what lies behind its ports: `live.failover.tenure`, its driver, machine, replication
and follower.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from stoker.brain.failover.machine import Machine
from stoker.control.control_ports import ControlPorts
from stoker.live.control_plane import LiveControlPlane
from stoker.live.failover.driver import Driver
from stoker.live.failover.replication import Replication
from stoker.live.failover.tenure import OneLog, OwnLogs, TenurePorts, Tenures
from stoker.live.settings.control import AgentsSettings, ControlSettings, FailoverSettings
from stoker.live.settings.policy import PolicySettings
from stoker.ports import Clock, Entropy, ReplicaLog, SharedLog
from tests.rig.assembly import SETTINGS
from tests.rig.process import SimProcess
from tests.rig.sim_disk import SimDisk
from tests.rig.sim_history import SimHistory
from tests.rig.sim_lease import SharedPlace, SimLease
from tests.rig.sim_log import SimIncoming, SimLog
from tests.rig.sim_network import Served, SimNetwork
from tests.rig.sim_peers import Host, SimPeerLink, SimPeers
from tests.rig.sim_ports import Notes, SimClock
from tests.rig.sim_shared_log import SimSharedLog

CALL_PART: Final = 0.4
"""Of the lease, as in `main_pair`."""
ATTEMPT_LEASE_S: Final = 40.0
"""Short, so that a history has many of them."""
_HOLDS: Final = Machine.holds
"""As it is, whatever a test breaks."""
DRIFT: Final = 0.009
"""Two clocks then differ by less than the bound of 2 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What all control planes of a run share."""

    names: Sequence[str]
    network: SimNetwork
    peers: SimPeers
    place: SharedPlace
    entropy: Entropy
    database: SimDisk | None = None
    """The log that all of them reach; None = each has one of its own."""
    profile: str = "default"


@dataclass(slots=True)
class Tenure:
    """A control plane from one recovery to the next."""

    number: int
    control: LiveControlPlane
    machine: Machine
    clock: Clock


@dataclass(slots=True)
class PairControl:
    """The machine outlives its processes."""

    name: str
    common: Common
    rate: float = 1.0
    disk: SimDisk = field(default_factory=SimDisk)
    look_back_max: int = 1_000_000
    wall_offset_s: float = 0.0
    """How far its wall clock is off for processes that start from now on."""
    clock: SimClock = field(default_factory=SimClock)
    """Of the newest process."""
    process: SimProcess | None = None
    policy: PolicySettings = SETTINGS.policy
    life: Tenure | None = None
    lives: int = 0
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    telemetry: Notes = field(init=False)

    def __post_init__(self) -> None:
        self.telemetry = Notes(SimClock(), self.name, lines_max=100_000)

    @property
    def settings(self) -> ControlSettings:
        others = tuple(name for name in self.common.names if name != self.name)
        return ControlSettings(
            policy=self.policy,
            agents=AgentsSettings(attempt_lease_s=ATTEMPT_LEASE_S),
            failover=FailoverSettings(
                enabled=True,
                name=self.name,
                peers=others,
                marker="/shared",
                http=f"http://{self.name}",
                profile="fast" if self.common.profile == "fast" else "default",
            ),
        )

    @property
    def runs(self) -> bool:
        """Is there a process?"""
        return self.process is not None and not self.process.dead and not self.process.ended

    @property
    def holds(self) -> bool:
        """Does the lease of its present life hold at this moment, by its own clock?"""
        life = self.life
        return life is not None and _HOLDS(life.machine, life.clock.mono())

    @property
    def leads(self) -> bool:
        """Does it take commands?"""
        return self.life is not None and self.life.control.committer.following is None

    # --- its process --------------------------------------------------------------------------------------------

    def start(self) -> None:
        assert not self.runs, f"{self.name} runs already"
        clock = self.clock = SimClock(self.wall_offset_s, rate=self.rate)
        self.process, self.stop = SimProcess(self.name), asyncio.Event()
        world = ControlPorts(clock=clock, entropy=self.common.entropy, telemetry=self.telemetry)
        lives = Tenures(self.settings, self._around(self.process, clock), world, self._serve)
        self.process.start(lives.run(self.stop))

    async def kill(self) -> None:
        """kill -9."""
        assert self.process is not None, "it runs"
        process = self.process
        self._go_dark()
        killing = asyncio.ensure_future(process.kill())
        self.common.network.break_all(self.name)
        await killing
        self.life = None

    def terminate(self) -> None:
        """SIGTERM"""
        self.stop.set()

    def pause(self) -> None:
        """SIGSTOP. Whoever has a connection gives it up after a while."""
        if self.process is not None:
            self.process.stop()
            self.common.network.give_up_later(self.name)
            self.common.peers.give_up_later(self.name)

    def go_on(self) -> None:
        """SIGCONT"""
        if self.process is not None and self.process.stopped:
            self.process.go_on()

    # --- what it stands on --------------------------------------------------------------------------------------

    def _around(self, process: SimProcess, clock: Clock) -> TenurePorts:
        common, disk = self.common, self.disk
        links = [SimPeerLink(common.peers, self.name, name, process) for name in common.names if name != self.name]

        def own_log() -> ReplicaLog:
            return SimLog(disk, clock, common.entropy, look_back_max=self.look_back_max)

        def shared_log() -> SharedLog:
            assert common.database is not None, "there is a shared log"
            return SimSharedLog(common.database, clock, common.entropy, who=self.name, look_back_max=self.look_back_max)

        def history() -> SimHistory:
            database = common.database
            if database is None:
                return SimHistory(lambda: disk.archive, clock)
            slot = common.names.index(self.name)
            cut_off = database.cut_off
            return SimHistory(database.archive, clock, shared_as=slot, cut_off=lambda: self.name in cut_off)

        own = OwnLogs(log=own_log, links=links, incoming=lambda: SimIncoming(disk, clock))
        one = OneLog(log=shared_log, uid=lambda: SimLog(disk, clock, common.entropy).uid)
        return TenurePorts(
            logs=own if common.database is None else one,
            history=history,
            lease=SimLease(
                common.place,
                clock,
                common.entropy,
                who=self.name,
                timeout_s=CALL_PART * self.settings.failover.timing.lease_s,
            ),
        )

    @asynccontextmanager
    async def _serve(
        self, control: LiveControlPlane, driver: Driver, replication: Replication | None
    ) -> AsyncIterator[None]:
        assert self.process is not None, "it runs"
        common = self.common
        self.lives += 1
        self.life = Tenure(self.lives, control, driver.machine, control.clock)
        common.network.serve(Served(self.name, control.sessions, self.process))
        if replication is not None:
            common.peers.serve(Host(self.name, self.process, driver.pinged, replication.accept))
        try:
            yield
        finally:
            self._go_dark()

    def _go_dark(self) -> None:
        """Its life is over: every connection to it is closed."""
        if self.life is not None:
            self.common.network.go_dark(self.name, self.life.control.sessions)
            self.common.network.break_all(self.name)
            self.common.peers.go_dark(self.name)
            self.life = None
