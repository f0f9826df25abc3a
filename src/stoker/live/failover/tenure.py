"""Tenures of a control plane that is one of several: each is recovered from the log anew.

Sockets are taken once, and people are answered throughout: between two tenures, while the log is read, they are told
so.

Rules: Y1  each tenure opens the log anew: what was in memory when it had to step down is never trusted
       Y2  what can't be mended by beginning anew (a damaged log, a folder that another process holds) ends the process
       Y3  tenures that are short are followed by pauses that grow, so that a defect can't keep a machine busy, and why
           they end is said once
       Y4  a log that can't be opened or read just now, as that in a database that is away, is waited for; so is a port
           of ours that somebody took between two tenures
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
from stoker.live.failover.driver import Complaints, Driver, TenureEnded
from stoker.live.failover.links import PeerLink
from stoker.live.failover.replication import Replication
from stoker.live.settings.control import ControlSettings
from stoker.ports import Clock, History, Incoming, Lease, LogFailed, ReplicaLog, SharedLog

SHORT_TENURE_S: Final = 10.0
PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0
_BACK_SOON: Final = ("store_unreachable", "port_in_use")

Serve = Callable[[LiveControlPlane, Driver, Replication | None], AbstractAsyncContextManager[None]]
"""Serves people and agents with this control plane from entry to exit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLogs:
    """Logs of control planes that have one each, and replicate it."""

    log: Callable[[], ReplicaLog]
    links: Sequence[PeerLink]
    """To each of the others."""
    incoming: Callable[[], Incoming]
    """Where a backup of the active is put together."""
    secret_trouble: Callable[[], str] = str
    """What is wrong with the secret by which they know each other; empty = nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneLog:
    """Log that all control planes reach."""

    log: Callable[[], SharedLog]
    uid: Callable[[], str]
    """Of our data folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenurePorts:
    """Log, history and lease of the tenures, each of which closes what it has made of them."""

    logs: OwnLogs | OneLog
    history: Callable[[], History]
    lease: Lease


class Tenures:
    """Tenures of one control plane among several, one after the other."""

    def __init__(self, settings: ControlSettings, tenure_ports: TenurePorts, ports: ControlPorts, serve: Serve) -> None:
        self._settings = settings
        self._tenure_ports = tenure_ports
        self._ports = ports
        self._serve = serve
        self._complaints = Complaints(ports.telemetry)
        self._fit = True
        self._began = False

    async def run(self, stop: asyncio.Event) -> None:
        """Serve in one tenure after another until `stop`. Raises: StokerError, LogDamaged, DutyEnded."""
        clock, pause_s = self._ports.clock, PAUSE_FIRST_S
        while not stop.is_set():
            began = clock.mono()
            try:
                await self._serve_one(stop)
                return
            except TenureEnded as over:
                self._fit = over.fit
                self._complaints.warn("life_ended", "tenure", why=str(over), fit=over.fit)
            except (LogFailed, StokerError) as fault:
                if not self._is_away(fault):
                    raise
                self._fit = False
                self._complaints.warn("life_ended", "tenure", why=str(fault), fit=False)
            pause_s = PAUSE_FIRST_S if clock.mono() - began > SHORT_TENURE_S else min(2 * pause_s, PAUSE_MAX_S)
            await clock.sleep(pause_s)

    def _is_away(self, fault: LogFailed | StokerError) -> bool:
        """Return whether to wait for it (Y4). What was never reached may be named wrongly, and that ends the start."""
        return isinstance(fault, LogFailed) or (self._began and fault.refusal.code in _BACK_SOON)

    async def _serve_one(self, stop: asyncio.Event) -> None:
        async with AsyncExitStack() as undo:
            history = self._tenure_ports.history()
            undo.push_async_callback(history.close)
            driver, log, replication = await self._begin(undo)
            self._began = True
            control = await recover_control(self._settings, log, history, self._ports, open_to_owner=False, pair=driver)
            await undo.enter_async_context(self._serve(control, driver, replication))
            began = self._ports.clock.mono()
            try:
                await driver.live(control, stop)
            finally:
                if self._ports.clock.mono() - began > SHORT_TENURE_S:
                    self._complaints.over("tenure")

    async def _begin(self, undo: AsyncExitStack) -> tuple[Driver, ReplicaLog | SharedLog, Replication | None]:
        """Open the log, and make the driver, which knows which data folder it is."""
        logs, ports, failover = self._tenure_ports.logs, self._ports, self._settings.failover
        if isinstance(logs, OneLog):
            shared = logs.log()
            undo.push_async_callback(shared.close)
            await shared.open()
            machine = self._machine(logs.uid(), shared_log=True)
            backend = SharedBackend(shared, ports, failover.timing, _holds(machine, ports.clock))
            return self._driver(machine, backend), shared, None
        own = logs.log()
        undo.push_async_callback(own.close)
        await own.open()
        machine = self._machine(own.uid, shared_log=False)
        holds, sync = _holds(machine, ports.clock), failover.mode == "sync"
        replication = Replication(own, ports, timing=failover.timing, sync=sync, holds=holds)
        replicated = ReplicatedBackend(machine.me, replication, ports, logs.incoming)
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
        tenure_id, http = self._ports.entropy.uid(), self._settings.http_url
        return Machine(membership, timing=failover.timing, tenure_id=tenure_id, http=http)

    def _driver(self, machine: Machine, backend: Backend, links: Sequence[PeerLink] = ()) -> Driver:
        return Driver(machine, self._tenure_ports.lease, backend, links, self._ports, fit=self._fit)


def _holds(machine: Machine, clock: Clock) -> Callable[[], bool]:
    """Return what tells whether its lease holds now."""
    return lambda: machine.holds(clock.mono())
