"""How does a control plane keep what another one did, and see to it that others keep what it does?

Either each has a log of its own (`ReplicatedBackend`), or all reach one in PostgreSQL (`SharedBackend`). The driver
does the same with both.

Rules: Y1  whoever speaks for the cluster checks its lease at that moment, in either case
       Y2  a log of one's own takes nothing of an epoch below what was promised; a shared one has no need of promises,
           since what gives the lease away moves its epoch in the same transaction
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Protocol

from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import Member
from stoker.brain.failover.inputs import CaughtUp, FellBehind, Input
from stoker.brain.failover.timing import Timing
from stoker.control.backup import Backups, receive_backup
from stoker.control.control_plane import ControlPlane
from stoker.control.control_ports import ControlPorts, NotActive, Replicas
from stoker.live.failover.follower import Follower, LogReplaced
from stoker.live.failover.links import PeerLink
from stoker.live.failover.replication import Replication
from stoker.ports import Incoming, LogTrimmed, ReceivedBackup, ReplicaLog, SharedLog, Stored

ROOM_BYTES: Final = 16 << 20
"""More than a standby takes onto its disk at a stretch, or it would be fit for as long as the next batch is short."""
ROWS_MAX: Final = 1_000
"""Facts that are applied at a stretch; others get their turn in between."""


class Backend(Protocol):
    """What the driver needs of a log and its replicas, in one life."""

    owns_log: bool
    """Is the log ours to keep short, also as a standby?"""

    @property
    def replicas(self) -> Replicas: ...

    def begin(self, control: ControlPlane, tell: Callable[[Input], None]) -> None:
        """This control plane has been read from the log. `tell`: what the machine must know of replication."""
        ...

    async def follow(self, link: PeerLink | None) -> None:
        """Take over what the active does, until cancelled or until it can't be had. `link` leads to the active; None =
        nobody knows it. Raises: PeerDown, PeerRefused, LogFailed, StartOver."""
        ...

    async def promise(self, epoch: Epoch) -> None:
        """Y2. Raises: LogFailed."""
        ...

    async def check_writable(self) -> None:
        """Raises: LogFailed while it isn't."""
        ...

    async def catch_up(self) -> None:
        """All that the log holds is in the state when this returns. Raises: LogDamaged, LogFailed."""
        ...

    async def lead(self, epoch: Epoch) -> None:
        """From now on our facts are the ones that others keep. Until cancelled; called once the state has all that the
        log holds."""
        ...

    def in_sync_changed(self, in_sync: Sequence[Member]) -> None: ...

    async def flush(self) -> None:
        """Whoever may take over has what was acknowledged, or has had the time for it."""
        ...

    def lag_s(self) -> float:
        """How old what we show may be."""
        ...


class LeaseOnly:
    """The `Replicas` of who appends to a shared log: the log keeps all, and only the lease is checked."""

    def __init__(self, holds: Callable[[], bool]) -> None:
        self._holds = holds

    def ship(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        """Whoever follows reads the log."""

    async def wait_for(self, position: Position) -> None:
        """The log keeps it."""

    def check_lease(self) -> None:
        if not self._holds():
            raise NotActive("its lease has ended")


class ReplicatedBackend:
    """A log on our own disk, and others on theirs."""

    owns_log = True

    def __init__(
        self,
        me: Member,
        log: ReplicaLog,
        replication: Replication,
        world: ControlPorts,
        incoming: Callable[[], Incoming],
    ) -> None:
        self._me = me
        self._log = log
        self.replication = replication
        self._world = world
        self._incoming = incoming
        self._control: ControlPlane | None = None
        self._follower: Follower | None = None
        self._tell: Callable[[Input], None] = lambda told: None

    @property
    def replicas(self) -> Replicas:
        return self.replication

    def begin(self, control: ControlPlane, tell: Callable[[Input], None]) -> None:
        self._control, self._tell = control, tell
        self.replication.on_caught_up = lambda member: tell(CaughtUp(member))
        self.replication.on_fell_behind = lambda member: tell(FellBehind(member))
        replay, look_s = control.committer.replay, self.replication.look_s
        self._follower = Follower(self._log, replay, self._world, self._me, receive=self._receive, look_s=look_s)

    async def follow(self, link: PeerLink | None) -> None:
        if link is not None:
            await self._following.follow(link, self._tell, cluster_id=self._parts.committer.state.cluster_id)

    async def promise(self, epoch: Epoch) -> None:
        await self._log.promise(epoch)

    async def check_writable(self) -> None:
        await self._log.check_room(ROOM_BYTES)

    async def catch_up(self) -> None:
        await _read_on(self._log, self._parts)

    async def lead(self, epoch: Epoch) -> None:
        committer = self._parts.committer
        backups = Backups(self._parts)
        self.replication.lead(
            self._me, epoch, committer.durable, backups, cluster_id=lambda: committer.state.cluster_id
        )
        await self.replication.run()

    def in_sync_changed(self, in_sync: Sequence[Member]) -> None:
        self.replication.in_sync_changed(tuple(in_sync))

    async def flush(self) -> None:
        await self.replication.flush()

    def lag_s(self) -> float:
        return self._following.lag_s

    async def _receive(self, pieces: AsyncIterator[bytes]) -> ReceivedBackup:
        return await receive_backup(pieces, self._incoming())

    @property
    def _parts(self) -> ControlPlane:
        assert self._control is not None, "this life hasn't begun"
        return self._control

    @property
    def _following(self) -> Follower:
        assert self._follower is not None, "this life hasn't begun"
        return self._follower


class SharedBackend:
    """One log that all control planes reach."""

    owns_log = False

    def __init__(self, log: SharedLog, world: ControlPorts, timing: Timing, holds: Callable[[], bool]) -> None:
        self._log = log
        self._clock = world.clock
        self._timing = timing
        self.replicas: Replicas = LeaseOnly(holds)
        self._control: ControlPlane | None = None
        self._seen_s = self._clock.mono()

    def begin(self, control: ControlPlane, tell: Callable[[Input], None]) -> None:
        self._control = control

    async def follow(self, link: PeerLink | None) -> None:
        """`link` isn't needed: the log itself tells."""
        while True:
            began = self._clock.mono()
            await _read_on(self._log, self._parts)
            self._seen_s = began
            await self._log.news(self._parts.committer.durable, self._timing.look_s)

    async def promise(self, epoch: Epoch) -> None:
        """Y2."""

    async def check_writable(self) -> None:
        """Whether it can be written shows when somebody leads; here, whether it can be followed."""
        await self._log.news(self._parts.committer.durable, 0.0)

    async def catch_up(self) -> None:
        await _read_on(self._log, self._parts)

    async def lead(self, epoch: Epoch) -> None:
        """Nobody keeps a copy."""
        await asyncio.Event().wait()

    def in_sync_changed(self, in_sync: Sequence[Member]) -> None:
        """Nobody is waited for."""

    async def flush(self) -> None:
        """All read the same."""

    def lag_s(self) -> float:
        return self._clock.mono() - self._seen_s

    @property
    def _parts(self) -> ControlPlane:
        assert self._control is not None, "this life hasn't begun"
        return self._control


async def _read_on(log: ReplicaLog | SharedLog, control: ControlPlane) -> None:
    """Bring the state to where the log ends."""
    rows: list[Stored] = []
    try:
        async for position, record in log.follow(control.committer.durable):
            rows.append(Stored(position, Epoch(0), record))
            if len(rows) == ROWS_MAX:
                control.committer.replay(rows)
                rows = []
    except LogTrimmed as fault:
        raise LogReplaced(f"the log has forgotten what comes next: {fault}") from fault
    if rows:
        control.committer.replay(rows)
