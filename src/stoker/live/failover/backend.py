"""Backends of failover: a log of one's own that is replicated, or one log in PostgreSQL that all control planes reach.

The driver does the same with both.

Rules: Y1  a control plane that speaks for the cluster checks its lease at that moment, in either case
       Y2  a log of one's own takes nothing of an epoch below what was promised; a shared one has no need of promises,
           since what gives the lease away moves its epoch in the same transaction
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.lease_record import Member
from stoker.brain.failover.inputs import Input
from stoker.brain.failover.timing import Timing
from stoker.control.backup import Backups, receive_backup
from stoker.control.control_plane import ControlPlane
from stoker.control.control_ports import ControlPorts, NoReplicas, NotActive, Replicas
from stoker.live.failover.follower import Follower, LogReplaced
from stoker.live.failover.links import PeerLink
from stoker.live.failover.replication import Replication
from stoker.ports import Incoming, LogTrimmed, ReplicaLog, SharedLog, Stored

ROOM_BYTES: Final = 16 << 20
"""More than a standby takes onto its disk at a stretch, or it would be fit for as long as the next batch is short."""
ROWS_MAX: Final = 1_000
"""Facts that are applied at a stretch; other tasks get their turn in between."""


class Backend:
    """A log and its replicas in one tenure, as the driver needs them.

    Methods without a body are for a log of one's own alone: one that all reach keeps itself safe.
    """

    owns_log: bool
    """Is the log ours to keep short, also as a standby?"""

    def __init__(self, log: ReplicaLog | SharedLog, replicas: Replicas) -> None:
        self.replicas = replicas
        self._log = log
        self._control: ControlPlane | None = None

    def begin(self, control: ControlPlane, tell: Callable[[Input], None]) -> None:
        """Take the control plane that was read from the log. `tell`: what the machine must know of replication."""
        self._control = control

    async def follow(self, link: PeerLink | None) -> None:
        """Take over what the active does, until cancelled or until it can't be had.

        `link` leads to the active; None = nobody knows it. Raises: PeerDown, PeerRefused, LogFailed, LogReplaced.
        """
        raise NotImplementedError

    async def promise(self, epoch: Epoch) -> None:
        """Let the log refuse epochs below this one, if it doesn't by itself (Y2). Raises: LogFailed."""

    async def check_writable(self) -> None:
        """Refuse while the log can't be written. Raises: LogFailed."""
        raise NotImplementedError

    async def catch_up(self) -> None:
        """Bring the state to where the log ends. Raises: LogDamaged, LogFailed, LogReplaced."""
        committer = self._parts.committer
        rows: list[Stored] = []
        try:
            async for position, record in self._log.follow(committer.durable):
                rows.append(Stored(position, Epoch(0), record))
                if len(rows) == ROWS_MAX:
                    committer.replay(rows)
                    rows = []
        except LogTrimmed as fault:
            raise LogReplaced(f"the log has forgotten what comes next: {fault}") from fault
        if rows:
            committer.replay(rows)

    async def lead(self, epoch: Epoch) -> None:
        """Let other control planes keep our facts from now on, until cancelled; called once the state is caught up."""
        await asyncio.Event().wait()

    def in_sync_changed(self, in_sync: Sequence[Member]) -> None:
        """Let acknowledgements wait for these members."""

    async def flush(self) -> None:
        """Wait until the members that may take over have what was acknowledged, or have had the time for it."""

    def lag_s(self) -> float:
        """Return the greatest age in seconds of what we show."""
        raise NotImplementedError

    @property
    def _parts(self) -> ControlPlane:
        assert self._control is not None, "this tenure hasn't begun"
        return self._control


class ReplicatedBackend(Backend):
    """A log on our own disk, and copies of it on the disks of standbys."""

    owns_log = True

    def __init__(
        self, me: Member, replication: Replication, ports: ControlPorts, incoming: Callable[[], Incoming]
    ) -> None:
        super().__init__(replication.log, replication)
        self._me = me
        self._replication = replication
        self._follower = Follower(
            replication.log,
            lambda rows: self._parts.committer.replay(rows),
            ports,
            me,
            receive=lambda pieces: receive_backup(pieces, incoming()),
            look_s=replication.look_s,
        )
        self._tell: Callable[[Input], None] = lambda told: None

    def begin(self, control: ControlPlane, tell: Callable[[Input], None]) -> None:
        super().begin(control, tell)
        self._tell = tell
        self._replication.tell = tell

    async def follow(self, link: PeerLink | None) -> None:
        if link is not None:
            await self._follower.follow(link, self._tell, cluster_id=self._parts.committer.state.cluster_id)

    async def promise(self, epoch: Epoch) -> None:
        await self._replication.log.promise(epoch)

    async def check_writable(self) -> None:
        await self._replication.log.check_room(ROOM_BYTES)

    async def lead(self, epoch: Epoch) -> None:
        committer, backups = self._parts.committer, Backups(self._parts)
        state = committer.state
        self._replication.lead(self._me, epoch, committer.durable, backups, cluster_id=lambda: state.cluster_id)
        await self._replication.run()

    def in_sync_changed(self, in_sync: Sequence[Member]) -> None:
        self._replication.in_sync_changed(in_sync)

    async def flush(self) -> None:
        await self._replication.flush()

    def lag_s(self) -> float:
        return self._follower.lag_s


class SharedBackend(Backend, NoReplicas):
    """One log that all control planes reach. It keeps all that is appended, so only the lease is checked."""

    owns_log = False

    def __init__(self, log: SharedLog, ports: ControlPorts, timing: Timing, holds: Callable[[], bool]) -> None:
        super().__init__(log, self)
        self._shared = log
        self._holds = holds
        self._clock = ports.clock
        self._timing = timing
        self._seen_s = self._clock.mono()

    def check_lease(self) -> None:
        if not self._holds():
            raise NotActive("its lease has ended")

    async def follow(self, link: PeerLink | None) -> None:
        while True:  # `link` isn't needed: the log itself tells
            began = self._clock.mono()
            await self.catch_up()
            self._seen_s = began
            await self._shared.news(self._parts.committer.durable, self._timing.look_s)

    async def check_writable(self) -> None:
        # Whether it can be written shows when somebody leads; here, whether it can be followed.
        await self._shared.news(self._parts.committer.durable, 0.0)

    def lag_s(self) -> float:
        return self._clock.mono() - self._seen_s
