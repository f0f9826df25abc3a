"""The active's side of replication: how far each follower is, and which of them acknowledgements wait for.

`Replication` is the `Replicas` of a control plane whose log lies on its own disk. Followers come to it by `accept`.

Rules: C1  an acknowledgement waits for every member of the in-sync set as the lease record has it, and for each that it
           may have in it: from before it is asked to take one in until it says that the one is out
       C2  a follower is tried once it is near: acknowledgements wait for it too, and when it has all that was
           acknowledged before, the lease record is asked to take it in (`CaughtUp`). So it can get in under load
       C3  a member that hasn't confirmed something for `standby_timeout_s` after it was shipped, or is away or silent
           for so long, is told of (`FellBehind`), again and again until the lease record says that it is out. Until
           then acknowledgements wait. A stream that breaks and comes back in time is no matter
       C4  one question about a member is open at a time: one that was asked in is told of only once it is in. However
           late an answer comes, it can't be mistaken for that to another question
       C5  once our lease is over, nothing is kept
       C6  in mode async nobody is waited for; the set shows which are connected and near, and an active that leaves
           on purpose gives it `standby_timeout_s` to get what was acknowledged
       S1  how long a follower has lacked something is counted from when that was shipped; of a stream that begins anew,
           and lacks what was confirmed before, from then on
       S2  it is late when it has lacked something for `standby_timeout_s`, or is away or silent for so long. A stream
           gives a sign of life each `look_s`, so it is given two of them more
Limits: FOLLOWERS_MAX. OWED_MAX batches are timed for each; the oldest one that it lacks is always known.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import Member
from stoker.brain.domain.units import Mono
from stoker.brain.failover.inputs import CaughtUp, FellBehind
from stoker.brain.failover.timing import Timing
from stoker.control.backup import Backups
from stoker.control.control_ports import ControlPorts, NotActive
from stoker.live.failover.links import FORMAT, Offer
from stoker.live.failover.sender import Ring, Sender
from stoker.ports import ReplicaLog

FOLLOWERS_MAX: Final = 16
OWED_MAX: Final = 4_096
NOTHING: Final = Position(0)
NEAR_RECORDS: Final = 1_000
"""A follower that lacks fewer is tried: it has them in some ten milliseconds."""
FLUSH_LOOK_S: Final = 0.01
REST: Final = 10
"""How many times `standby_timeout_s` a follower that failed when it was tried isn't tried again."""


class Stage(Enum):
    """Stage of a follower on its way into the in-sync set and out again."""

    OUT = auto()
    """Acknowledgements don't wait for it. In all other stages they do."""
    CATCHING_UP = auto()
    """The lease record knows nothing of it."""
    JOINING = auto()
    """The lease record was asked to take it in, and may have."""
    IN = auto()
    LEAVING = auto()
    """The lease record was asked to leave it out, and hasn't said so yet."""


class Unconfirmed(NamedTuple):
    """A batch that was shipped and isn't confirmed."""

    position: Position
    at: Mono


class Lag(NamedTuple):
    """Lag of one follower, in records and seconds."""

    member: Member
    in_sync: bool
    records: int
    seconds: float


@dataclass(slots=True)
class Standby:
    """One follower, kept when its stream breaks."""

    member: Member
    heard_at: Mono
    """When its stream last said something, began or ended."""
    asked_at: Mono
    """When it began to catch up, or the driver was last asked about it."""
    rests_until: Mono
    confirmed: Position = NOTHING
    """Its disk holds everything up to there."""
    stage: Stage = Stage.OUT
    sender: Sender | None = None
    """None = it isn't connected."""
    goal: Position = NOTHING
    """What had been acknowledged when it began to catch up."""
    owed: deque[Unconfirmed] = field(default_factory=deque)

    @property
    def is_waited_for(self) -> bool:
        return self.stage is not Stage.OUT

    @property
    def is_in_sync(self) -> bool:
        """Whether it is in the set, as far as we know of the lease record."""
        return self.stage in (Stage.IN, Stage.LEAVING)

    def ship(self, end: Position, now: Mono) -> None:
        """Note that it owes a confirmation of what has just been shipped."""
        if len(self.owed) < OWED_MAX:
            self.owed.append(Unconfirmed(end, now))
        else:
            self.owed[-1] = self.owed[-1]._replace(position=end)

    def connect(self, sender: Sender, position: Position, now: Mono) -> None:
        """Begin its stream anew, behind what it has (S1)."""
        earlier, self.sender = self.sender, sender
        if earlier is not None and earlier is not sender:
            earlier.close()
        if position < self.confirmed:
            self.owed.appendleft(Unconfirmed(self.confirmed, now))
        self.confirmed = position

    def confirm(self, position: Position, now: Mono) -> list[float]:
        """Note that it has everything up to there; return the seconds that each batch took that was owed."""
        self.heard_at, self.confirmed = now, max(self.confirmed, position)
        took: list[float] = []
        while self.owed and self.owed[0].position <= position:
            took.append(now - self.owed.popleft().at)
        return took

    def disconnect(self, now: Mono) -> None:
        self.sender, self.heard_at = None, now

    def is_late(self, now: Mono, timing: Timing) -> bool:
        """Return whether it is late (S2)."""
        most = timing.standby_timeout_s
        if self.owed and now - self.owed[0].at > most:
            return True
        return now - self.heard_at > most + (2 * timing.look_s if self.sender is not None else 0.0)

    def lag(self, end: Position, now: Mono) -> Lag:
        """Return its lag behind a log that ends at `end`."""
        seconds = now - self.owed[0].at if self.owed else 0.0
        return Lag(self.member, self.is_in_sync, max(0, end - self.confirmed), seconds)


class Replication:
    """Replication of the active's log to its followers. Before `lead` and after `stop` it accepts none."""

    def __init__(
        self, log: ReplicaLog, ports: ControlPorts, *, timing: Timing, sync: bool, holds: Callable[[], bool]
    ) -> None:
        """`holds`: whether our lease holds now."""
        self.tell: Callable[[CaughtUp | FellBehind], None] = lambda told: None
        self.log = log
        self.clock = ports.clock
        self.look_s = timing.look_s
        self.me = Member(name="", uid="")
        self.epoch = Epoch(0)
        self.acknowledged = Position(0)
        self.ring = Ring(Position(0))
        self.backup_turn = asyncio.Lock()
        self._telemetry = ports.telemetry
        self._timing = timing
        self._sync = sync
        self._holds = holds
        self._backups: Backups | None = None
        self._cluster_id: Callable[[], str] = str
        self._standbys: dict[Member, Standby] = {}
        self._waiting: tuple[Position, asyncio.Future[None]] | None = None
        self._news = asyncio.Event()
        self._over = "it isn't active"

    # --- what the driver says -----------------------------------------------------------------------------------

    def lead(
        self, me: Member, epoch: Epoch, position: Position, backups: Backups, *, cluster_id: Callable[[], str]
    ) -> None:
        """Be active from here on, with the set of us alone; `run` must run.

        The log ends at `position`, all of which counts as acknowledged.
        """
        assert self._over, "it leads already"
        self.me, self.epoch, self.acknowledged = me, epoch, position
        self.ring = Ring(position)
        self._backups, self._cluster_id = backups, cluster_id
        self._over = ""

    async def run(self) -> None:
        """Watch until cancelled for followers that are late or need a sign of life, and for the end of our lease."""
        try:
            while True:
                await self.clock.sleep(self.look_s)
                self._tick()
        finally:
            self.stop("it is no longer active")

    def stop(self, why: str) -> None:
        """End every stream and keep nothing more (C5). Safe to call twice."""
        self._over = self._over or why
        for standby in tuple(self._standbys.values()):
            if standby.sender is not None:
                standby.sender.close()
            self._show(Lag(standby.member, in_sync=False, records=0, seconds=0.0))
        self._standbys.clear()
        self._settle()
        self._wake()

    def in_sync_changed(self, in_sync: Iterable[Member]) -> None:
        """Note which members the lease record has in the set. Before `lead` that is nobody but us."""
        if self._over:
            return
        members = tuple(member for member in in_sync if member != self.me)
        for member in members:
            if member not in self._standbys:
                self._standbys[member] = self._new(member)
        for standby in self._standbys.values():
            if standby.member in members:
                standby.stage = Stage.IN  # if it is late still, it is told of again
            elif standby.is_in_sync:
                standby.stage = Stage.OUT
        self._settle()

    # --- Replicas -------------------------------------------------------------------------------------------------

    def ship(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        self.ring.add(epoch, position, records)
        now = self.clock.mono()
        for standby in self._standbys.values():
            standby.ship(self.ring.end, now)
        self._wake()

    async def wait_for(self, position: Position) -> None:
        """Wait until every member that must have it has all up to there (C1). Raises: NotActive."""
        assert self._waiting is None, "one batch is under way at a time"
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = (position, done)
        try:
            self._settle()
            await done
        finally:
            self._waiting = None

    async def flush(self) -> None:
        """Give the set the time to get what was acknowledged (C6); nothing is acknowledged meanwhile."""
        until = self.clock.mono() + self._timing.standby_timeout_s
        while self.clock.mono() < until and any(
            standby.stage is Stage.IN and standby.confirmed < self.acknowledged for standby in self._standbys.values()
        ):
            await self.clock.sleep(FLUSH_LOOK_S)

    def check_lease(self) -> None:
        """Refuse once our lease is over (C5). Raises: NotActive."""
        if self._over or not self._holds():
            raise NotActive(self._over or "its lease has ended")

    # --- streams ------------------------------------------------------------------------------------------------

    @property
    def backups(self) -> Backups:
        assert self._backups is not None, "a standby sends nothing"
        return self._backups

    def check_leading(self) -> None:
        """Refuse a follower once our lease is over. Raises: StokerError `not_active`."""
        try:
            self.check_lease()
        except NotActive as fault:
            message = f"this control plane doesn't feed followers: {fault}"
            raise StokerError(refuse("not_active", message, "follow the one that is active by the marker")) from fault

    async def news(self) -> None:
        """Wait until something was shipped, or for a while."""
        await self._news.wait()

    def accept(self, offer: Offer) -> Sender:
        """Return the stream for one follower.

        Raises: StokerError `not_active`, `other_cluster`, `follower_too_old`, `same_member` or `too_many_followers`.
        """
        self.check_leading()
        self._admit(offer)
        return Sender(self, offer)

    def joined(self, sender: Sender, position: Position) -> None:
        """Note that a stream has begun, to a follower that has everything up to there."""
        standby = self._standbys.setdefault(sender.member, self._new(sender.member))
        standby.connect(sender, position, self.clock.mono())
        self.confirmed(sender, position)

    def confirmed(self, sender: Sender, position: Position) -> None:
        standby = self._standbys.get(sender.member)
        if standby is None or standby.sender is not sender:
            return
        for seconds in standby.confirm(position, self.clock.mono()):
            self._telemetry.observe("replication", seconds, peer=sender.member.name)
        self._advance(standby)
        self._settle()

    def left(self, sender: Sender) -> None:
        standby = self._standbys.get(sender.member)
        if standby is not None and standby.sender is sender:
            standby.disconnect(self.clock.mono())

    def lags(self) -> list[Lag]:
        """Return the lag of every follower that was here, in order of name."""
        now = self.clock.mono()
        return [self._standbys[member].lag(self.ring.end, now) for member in sorted(self._standbys)]

    def _admit(self, offer: Offer) -> None:
        mine, member = self._cluster_id(), offer.member
        if offer.format < FORMAT:
            message = f"{member.name} follows in format {offer.format}; this control plane writes format {FORMAT}"
            hint = "bring the standby to this version first, then the active"
            raise StokerError(refuse("follower_too_old", message, hint))
        if member.name == self.me.name or member.uid == self.me.uid:
            message = f"control plane {member.name} has the name or the data folder of this one, {self.me.name}"
            hint = "give each its own `failover.name`, and never copy a data folder: let the standby begin with none"
            raise StokerError(refuse("same_member", message, hint))
        if (offer.cluster_id or offer.position) and offer.cluster_id != mine:
            message = f"{member.name} holds cluster {offer.cluster_id or 'without an id'}; this one is {mine}"
            hint = "let it begin with an empty data folder, or name the right peers"
            raise StokerError(refuse("other_cluster", message, hint))
        self._make_room(member)

    def _make_room(self, member: Member) -> None:
        if member in self._standbys or len(self._standbys) < FOLLOWERS_MAX:
            return
        gone = [each for each in self._standbys.values() if each.sender is None and each.stage is Stage.OUT]
        if not gone:
            message = f"{FOLLOWERS_MAX} control planes follow this one, as many as may"
            raise StokerError(refuse("too_many_followers", message, "stop one that nobody needs"))
        del self._standbys[min(gone, key=lambda standby: (standby.heard_at, standby.member)).member]

    def _new(self, member: Member) -> Standby:
        now = self.clock.mono()
        standby = Standby(member, heard_at=now, asked_at=now, rests_until=now)
        standby.ship(self.ring.end, now)
        return standby

    # --- in and out of the set ----------------------------------------------------------------------------------

    def _advance(self, standby: Standby) -> None:
        """Try a follower that is near, and ask it in once it has all that was acknowledged before (C2)."""
        near = self.ring.end - standby.confirmed <= NEAR_RECORDS
        if standby.stage is Stage.OUT and near and self.clock.mono() >= standby.rests_until:
            standby.stage, standby.goal = Stage.CATCHING_UP, self.acknowledged
            standby.asked_at = self.clock.mono()
        if standby.stage is Stage.CATCHING_UP and standby.confirmed >= standby.goal:
            standby.stage = Stage.JOINING
            self._ask(standby)

    def _tick(self) -> None:
        now = self.clock.mono()
        self._forget_replaced()
        for standby in tuple(self._standbys.values()):
            late = standby.is_late(now, self._timing)
            if standby.stage is Stage.CATCHING_UP and (late or now - standby.asked_at > self._timing.standby_timeout_s):
                standby.stage = Stage.OUT
                standby.rests_until = Mono(now + REST * self._timing.standby_timeout_s)
            elif standby.stage is Stage.IN and late:
                standby.stage = Stage.LEAVING
                self._ask(standby)
            elif now - standby.asked_at > self._timing.standby_timeout_s:
                self._ask(standby)
        for lag in self.lags():
            self._show(lag)
        self._settle()
        self._wake()

    def _forget_replaced(self) -> None:
        """Forget followers that came back under their names with other data folders."""
        here = {standby.member.name for standby in self._standbys.values() if standby.sender is not None}
        for standby in tuple(self._standbys.values()):
            if standby.sender is None and standby.stage is Stage.OUT and standby.member.name in here:
                del self._standbys[standby.member]

    def _ask(self, standby: Standby) -> None:
        """Ask the lease record to take a follower in or leave it out, again until it has done so (C3, C4)."""
        standby.asked_at = self.clock.mono()
        if standby.stage is Stage.JOINING:
            self.tell(CaughtUp(standby.member))
        elif standby.stage is Stage.LEAVING:
            self.tell(FellBehind(standby.member))

    def _settle(self) -> None:
        """Let the batch that waits go on if it may (C1)."""
        if self._waiting is None:
            return
        position, done = self._waiting
        if done.done():
            return
        try:
            self.check_lease()
        except NotActive as fault:
            done.set_exception(fault)
            return
        waited_for = (each for each in self._standbys.values() if each.is_waited_for) if self._sync else ()
        if all(standby.confirmed >= position for standby in waited_for):
            self.acknowledged = max(self.acknowledged, position)
            done.set_result(None)

    def _wake(self) -> None:
        # Streams that wait hold the old event; later ones wait for the next news.
        self._news.set()
        self._news = asyncio.Event()

    def _show(self, lag: Lag) -> None:
        self._telemetry.gauge("replication_lag_records", lag.records, peer=lag.member.name)
        self._telemetry.gauge("replication_lag_s", round(lag.seconds, 6), peer=lag.member.name)
