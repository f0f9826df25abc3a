"""How does a control plane that is one of several serve, from one life to the next?

Sockets are taken once, and people are answered throughout: between two lives, while it is read anew what the log holds,
they are told so.

Rules: Y1  each life opens the log anew: what was in memory when it had to step down is never trusted
       Y2  what can't be mended by beginning anew (a damaged log, a folder that another process holds) ends the process
       Y3  lives that are short are followed by pauses that grow, so that a defect can't keep a machine busy, and why
           they end is said once
       Y4  a log that can't be opened or read just now, as that in a database that is away, is waited for; so is a port
           of ours that somebody took between two lives
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Final

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.lease_record import Member
from stoker.brain.failover.machine import Machine
from stoker.brain.failover.membership import Membership
from stoker.control.control_ports import ControlPorts
from stoker.live.control_plane import LiveControlPlane, recover_control
from stoker.live.failover.backend import Backend, ReplicatedBackend, SharedBackend
from stoker.live.failover.complaints import Complaints
from stoker.live.failover.driver import Driver, TenureEnded
from stoker.live.failover.links import PeerLink
from stoker.live.failover.replication import Replication
from stoker.live.settings.control import ControlSettings
from stoker.ports import Clock, History, Incoming, Lease, LogFailed, ReplicaLog, SharedLog

SHORT_LIFE_S: Final = 10.0
PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0
_BACK_SOON: Final = ("store_unreachable", "port_in_use")

Serve = Callable[[LiveControlPlane, Driver, Replication | None], AbstractAsyncContextManager[None]]
"""Serves people and agents with this control plane from entry to exit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLogs:
    """Each control plane has a log, and replicates it."""

    log: Callable[[], ReplicaLog]
    links: Sequence[PeerLink]
    """To each of the others."""
    incoming: Callable[[], Incoming]
    """Where a backup of the active is put together."""
    secret_trouble: Callable[[], str] = str
    """What is wrong with the secret by which they know each other; empty = nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneLog:
    """All control planes reach the same log."""

    log: Callable[[], SharedLog]
    uid: Callable[[], str]
    """Of our data folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenurePorts:
    """What lives stand on. Each closes what it has made of it."""

    logs: OwnLogs | OneLog
    history: Callable[[], History]
    lease: Lease


class Tenures:
    """One control plane among several."""

    def __init__(self, settings: ControlSettings, around: TenurePorts, world: ControlPorts, serve: Serve) -> None:
        self._settings = settings
        self._around = around
        self._world = world
        self._serve = serve
        self._complaints = Complaints(world.telemetry)
        self._fit = True
        self._lived = False

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. Raises: StokerError, LogDamaged, DutyEnded."""
        clock, pause_s = self._world.clock, PAUSE_FIRST_S
        while not stop.is_set():
            began = clock.mono()
            try:
                await self._live(stop)
                return
            except TenureEnded as over:
                self._fit = over.fit
                self._complaints.warn("life_ended", "life", why=str(over), fit=over.fit)
            except (LogFailed, StokerError) as fault:
                if not self._is_away(fault):
                    raise
                self._fit = False
                self._complaints.warn("life_ended", "life", why=str(fault), fit=False)
            pause_s = PAUSE_FIRST_S if clock.mono() - began > SHORT_LIFE_S else min(2 * pause_s, PAUSE_MAX_S)
            await clock.sleep(pause_s)

    def _is_away(self, fault: LogFailed | StokerError) -> bool:
        """Y4. What was never reached may have been named wrongly, and whoever starts it is told."""
        return isinstance(fault, LogFailed) or (self._lived and fault.refusal.code in _BACK_SOON)

    async def _live(self, stop: asyncio.Event) -> None:
        async with AsyncExitStack() as undo:
            history = self._around.history()
            undo.push_async_callback(history.close)
            driver, log, replication = await self._begin(undo)
            self._lived = True
            control = await recover_control(self._settings, log, history, self._world, open_to_owner=False, pair=driver)
            await undo.enter_async_context(self._serve(control, driver, replication))
            began = self._world.clock.mono()
            try:
                await driver.live(control, stop)
            finally:
                if self._world.clock.mono() - began > SHORT_LIFE_S:
                    self._complaints.over("life")

    async def _begin(self, undo: AsyncExitStack) -> tuple[Driver, ReplicaLog | SharedLog, Replication | None]:
        """The log is open, and the driver knows which data folder it is."""
        logs, world, failover = self._around.logs, self._world, self._settings.failover
        if isinstance(logs, OneLog):
            shared = logs.log()
            undo.push_async_callback(shared.close)
            await shared.open()
            machine = self._machine(logs.uid(), shared_log=True)
            backend = SharedBackend(shared, world, failover.timing, _holds(machine, world.clock))
            return self._driver(machine, backend), shared, None
        own = logs.log()
        undo.push_async_callback(own.close)
        await own.open()
        machine = self._machine(own.uid, shared_log=False)
        holds, sync = _holds(machine, world.clock), failover.mode == "sync"
        replication = Replication(own, world, timing=failover.timing, sync=sync, holds=holds)
        replicated = ReplicatedBackend(machine.me, own, replication, world, logs.incoming)
        driver = self._driver(machine, replicated, logs.links)
        driver.secret_trouble = logs.secret_trouble
        return driver, own, replication

    def _machine(self, uid: str, *, shared_log: bool) -> Machine:
        failover = self._settings.failover
        membership = Membership(
            me=Member(failover.name, uid),
            peers=len(failover.peers),
            shared_log=shared_log,
            sync=failover.mode == "sync",
        )
        tenure_id, http = self._world.entropy.uid(), self._settings.http_url
        return Machine(membership, timing=failover.timing, tenure_id=tenure_id, http=http)

    def _driver(self, machine: Machine, backend: Backend, links: Sequence[PeerLink] = ()) -> Driver:
        return Driver(machine, self._around.lease, backend, links, self._world, fit=self._fit)


def _holds(machine: Machine, clock: Clock) -> Callable[[], bool]:
    """Does its lease hold now?"""
    return lambda: machine.holds(clock.mono())
