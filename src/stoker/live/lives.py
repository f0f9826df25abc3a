"""How does a control plane that is one of several serve, from one life to the next?

Sockets are taken once, and people are answered throughout: between two lives, while it is read anew what the log holds,
they are told so.

Rules: Y1  each life opens the log anew: what was in memory when it had to step down is never trusted
       Y2  what can't be mended by beginning anew (a damaged log, a folder that another process holds) ends the process
       Y3  lives that are short are followed by pauses that grow, so that a defect can't keep a machine busy
       Y4  a log that can't be opened or read just now, as that in a database that is away, is waited for; so is a port
           of ours that somebody took between two lives
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Final

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.marker import Member
from stoker.brain.failover.machine import Machine
from stoker.live.control import ControlPlane, recover_control
from stoker.live.failover.driver import Driver, NewLife
from stoker.live.failover.keeping import CommonLog, Keeping, OwnLog
from stoker.live.failover.links import PeerLink
from stoker.live.failover.replication import Replication
from stoker.live.settings import ControlSettings
from stoker.live.world import World
from stoker.ports import History, Incoming, Lease, LogFailed, ReplicaLog, SharedLog

SHORT_LIFE_S: Final = 10.0
PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0
_BACK_SOON: Final = ("store_unreachable", "port_in_use")

Serve = Callable[[ControlPlane, Driver, Replication | None], AbstractAsyncContextManager[None]]
"""Serves people and agents with this control plane from entry to exit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What lives stand on. Each closes what it has made."""

    own_log: Callable[[], ReplicaLog] | None
    common_log: Callable[[], SharedLog] | None
    """One of the two."""
    uid: Callable[[], str]
    history: Callable[[], History]
    lease: Lease
    links: Sequence[PeerLink]
    incoming: Callable[[], Incoming]
    """Where a backup of the active is put together."""


class Lives:
    """One control plane among several."""

    def __init__(self, settings: ControlSettings, around: Surroundings, world: World, serve: Serve) -> None:
        self._settings = settings
        self._around = around
        self._world = world
        self._serve = serve
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
            except NewLife as over:
                self._fit = over.fit
                self._world.telemetry.warn("life_ended", why=str(over), fit=over.fit)
            except (LogFailed, StokerError) as fault:
                if not self._is_away(fault):
                    raise
                self._fit = False
                self._world.telemetry.warn("life_ended", why=str(fault), fit=False)
            pause_s = PAUSE_FIRST_S if clock.mono() - began > SHORT_LIFE_S else min(2 * pause_s, PAUSE_MAX_S)
            await clock.sleep(pause_s)

    def _is_away(self, fault: LogFailed | StokerError) -> bool:
        """Y4. What was never reached may have been named wrongly, and whoever starts it is told."""
        return isinstance(fault, LogFailed) or (self._lived and fault.refusal.code in _BACK_SOON)

    async def _live(self, stop: asyncio.Event) -> None:
        world, settings, around = self._world, self._settings, self._around
        async with AsyncExitStack() as undo:
            history = around.history()
            undo.push_async_callback(history.close)
            machine, keeping, log = await self._begin(undo)
            self._lived = True
            driver = Driver(machine, around.lease, keeping, around.links, world, fit=self._fit)
            control = await recover_control(settings, log, history, world, open_to_owner=False, pair=driver)
            replication = keeping.replication if isinstance(keeping, OwnLog) else None
            await undo.enter_async_context(self._serve(control, driver, replication))
            await driver.live(control, stop)

    async def _begin(self, undo: AsyncExitStack) -> tuple[Machine, Keeping, ReplicaLog | SharedLog]:
        """The log is open, and the machine knows which data folder it is."""
        world, failover = self._world, self._settings.failover
        timing = failover.timing

        def machine_of(uid: str, *, shared: bool) -> Machine:
            return Machine(
                Member(failover.name, uid),
                timing=timing,
                life=world.entropy.uid(),
                http=self._settings.http_url,
                peers=len(failover.peers),
                shared_log=shared,
                sync=failover.mode == "sync",
            )

        if self._around.common_log is not None:
            common = self._around.common_log()
            undo.push_async_callback(common.close)
            await common.open()
            machine = machine_of(self._around.uid(), shared=True)
            return machine, CommonLog(common, world, timing, lambda: machine.holds(world.clock.mono())), common
        assert self._around.own_log is not None, "a log of its own or a common one"
        own = self._around.own_log()
        undo.push_async_callback(own.close)
        await own.open()
        machine = machine_of(own.uid, shared=False)
        replication = Replication(
            own, world, timing=timing, sync=failover.mode == "sync", holds=lambda: machine.holds(world.clock.mono())
        )
        return machine, OwnLog(machine.me, own, replication, world, self._around.incoming), own
