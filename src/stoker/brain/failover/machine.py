"""Is this control plane active, and what must be done so that it is, stays it, or stops in time?

Rules: M1  whoever leads holds a marker of its own that it won, and only until `lease_s` after it began to write it
       M2  it steps down by its own timer, and when it hears that another has the lease; then the machine is spent
       M3  it leads under an epoch that nobody led under before, and its log has promised it first
       M4  a promise that came to nothing is withdrawn only when another version has taken the place of ours
       M5  whoever gives the lease back acts no more from the moment at which it begins to
"""

from enum import Enum, auto
from typing import assert_never

from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.marker import Marker, Member
from stoker.brain.domain.units import Mono
from stoker.brain.failover.deeds import Deed, Follow, Lead, Ping, Promise, SetChanged, StepDown
from stoker.brain.failover.in_sync import InSync, Leaving
from stoker.brain.failover.inputs import (
    CaughtUp,
    FellBehind,
    ForcePromotion,
    Input,
    LogStands,
    MarkerLost,
    MarkerPut,
    MarkerSeen,
    PeerSaid,
    Promised,
    Resign,
    Role,
    Tick,
)
from stoker.brain.failover.loss import FORCED_EPOCHS, Reached, found, may_lack, still_lossy
from stoker.brain.failover.obstacle import Seat, forced_obstacle, newest_epoch, obstacle
from stoker.brain.failover.peers import Peers
from stoker.brain.failover.talk import NEVER, Outcome, Talk
from stoker.brain.failover.timing import Timing
from stoker.brain.failover.wish import Wish


class _Phase(Enum):
    WATCHING = auto()
    PROMISING = auto()
    CLAIMING = auto()
    LEADING = auto()
    LEAVING = auto()
    SPENT = auto()


class Machine:
    """One life of one control plane: a standby first, perhaps active later, and then spent."""

    def __init__(  # noqa: PLR0913  # what never changes in a life; most has a default
        self,
        me: Member,
        *,
        timing: Timing,
        life: str,
        http: str,
        peers: int,
        shared_log: bool = False,
        sync: bool = True,
    ) -> None:
        """`life`: unique text of this life. `http`: where we answer people. `peers`: how many others there are."""
        self.me = me
        self.timing = timing
        self.role = Role.STANDBY
        self.lease_until = Mono(0.0)
        """End of our lease; 0 = we have none."""
        self._seat = Seat(me=me, peers=peers, shared_log=shared_log, sync=sync)
        self._life, self._http, self._marks = life, http, 0
        self._talk, self._peers, self._wish = Talk(timing), Peers(timing), Wish()
        self._log: LogStands | None = None
        self._phase = _Phase.WATCHING
        self._now = Mono(0.0)
        self._ended = ""
        self._deeds: list[Deed] = []
        self._ping_at = Mono(0.0)
        self._follows: Epoch | None = None
        self._promised = Epoch(0)
        self._lossy = False
        self._before: Marker | None = None
        self._renew_at = Mono(0.0)
        self._in_sync = InSync(me)
        self._leaves = Leaving("", "", ())

    # --- what others read ---------------------------------------------------------------------------------------

    @property
    def marker(self) -> Marker | None:
        """The newest version known."""
        return self._talk.known

    @property
    def epoch(self) -> Epoch:
        """The one we lead under, else the marker's; 0 = there is none."""
        if self.role is Role.ACTIVE:
            return self._promised
        return self._talk.known.epoch if self._talk.known else Epoch(0)

    @property
    def in_sync(self) -> tuple[Member, ...]:
        """Whom acknowledgements wait for now; empty while we aren't active."""
        return self._in_sync.waits_for(self._talk.put) if self.role is Role.ACTIVE else ()

    @property
    def next_tick(self) -> Mono:
        """When Tick is due at the latest."""
        if self._phase is _Phase.SPENT:
            return NEVER
        due = [NEVER if self._seat.shared_log else self._ping_at, self._talk.resolve_due]
        if self._looks:
            due.append(self._talk.look_due)
        if self._phase in (_Phase.LEADING, _Phase.LEAVING):
            due.append(self.lease_until)
            if not self._talk.busy and self._talk.put is None:
                due.append(self._renew_at)
        return min(due)

    @property
    def why(self) -> str:
        """For people: why this standby doesn't take over; empty while it is active."""
        if self._phase is _Phase.WATCHING:
            return self._obstacle(self._now) or "it is about to take over"
        if self._phase in (_Phase.PROMISING, _Phase.CLAIMING):
            return f"it is taking over: {self._talk.error}" if self._talk.error else "it is taking over"
        if self._phase is _Phase.LEAVING and self.role is Role.STANDBY:
            return self._leaves.why
        return self._ended

    def holds(self, now: Mono) -> bool:
        """May we speak for the cluster at this moment?"""
        return self._phase is _Phase.LEADING and now < self.lease_until

    def forbids_force(self, now: Mono) -> str:
        """Why a person can't promote us right now; empty = ForcePromotion would begin at once."""
        if self._phase is not _Phase.WATCHING:
            return "it is active already" if self.role is Role.ACTIVE else "it is taking over already"
        return forced_obstacle(self._seat, self._talk, self._log, self._peers, now)

    # --- what it is told ----------------------------------------------------------------------------------------

    def step(self, told: Input, now: Mono) -> tuple[Deed, ...]:
        """What to do, in this order, after hearing this."""
        if self._phase is _Phase.SPENT:
            return ()
        if self._phase in (_Phase.LEADING, _Phase.LEAVING) and now >= self.lease_until:
            self._lease_ended()
        else:
            self._hear(told, now)
            self._act(now)
        self._now = now
        deeds, self._deeds = tuple(self._deeds), []
        return deeds

    def _hear(self, told: Input, now: Mono) -> None:
        match told:
            case Tick():
                pass
            case MarkerSeen():
                self._resolved(self._talk.seen(told, now), now)
            case MarkerPut():
                self._resolved(self._talk.was_put(told, now), now)
            case MarkerLost():
                self._talk.lost(told.error)
            case PeerSaid():
                self._hear_peer(told, now)
            case CaughtUp():
                self._caught_up(told.member)
            case FellBehind():
                self._fell_behind(told.member)
            case LogStands():
                self._log_stands(told)
            case Promised():
                if self._phase is _Phase.PROMISING and told.epoch == self._promised:
                    self._phase = _Phase.CLAIMING
            case ForcePromotion():
                self._hear_wish(now)
            case Resign():
                self._resign()
            case _:
                assert_never(told)

    def _act(self, now: Mono) -> None:
        """Whatever is due."""
        if self._phase is _Phase.WATCHING:
            self._watch(now)
        if self._phase in (_Phase.PROMISING, _Phase.CLAIMING):
            self._claim(now)
        if self._phase in (_Phase.LEADING, _Phase.LEAVING):
            self._keep(now)
        if self._phase is _Phase.SPENT:
            return
        if now >= self._talk.resolve_due:
            self._deeds.append(self._talk.resolve(now))
        if self._looks and now >= self._talk.look_due:
            self._deeds.append(self._talk.look(now))
        if not self._seat.shared_log and now >= self._ping_at:
            self._ping_at = Mono(now + self.timing.ping_s)
            self._deeds.append(Ping())

    @property
    def _looks(self) -> bool:
        """Whoever leads learns by its renewals; whoever has a put under way, by that."""
        standby = self._phase in (_Phase.WATCHING, _Phase.PROMISING)
        return standby and not self._talk.busy and self._talk.put is None

    # --- a standby ----------------------------------------------------------------------------------------------

    def _watch(self, now: Mono) -> None:
        if not self._obstacle(now):
            self._promise(1, forced=False)
        elif self._wish.stands(self._talk.known, now) and not self.forbids_force(now):
            self._promise(FORCED_EPOCHS, forced=True)
        else:
            self._follow()

    def _obstacle(self, now: Mono) -> str:
        return obstacle(self._seat, self._talk, self._log, self._peers, now)

    def _follow(self) -> None:
        """M4. Whatever we, or an earlier life, have promised: this is the epoch that the log takes."""
        marker = self._talk.known
        fit = self._log is None or self._log.fit
        if self._talk.fresh and marker is not None and fit and self._follows != marker.epoch:
            self._follows = marker.epoch
            self._deeds.append(Follow(marker.epoch))

    def _promise(self, by: int, *, forced: bool) -> None:
        assert self._log is not None
        assert self._talk.put is None
        self._before = self._talk.known
        self._lossy = forced or (not self._seat.shared_log and may_lack(self.me, self._before, self._log))
        self._wish.forget()
        self._promised = Epoch(newest_epoch(self._before, self._log) + by)
        self._follows = None
        self._phase = _Phase.PROMISING
        self._deeds.append(Promise(self._promised))

    def _claim(self, now: Mono) -> None:
        """M3. Once the log has promised; unless somebody else was quicker."""
        if self._talk.put is not None:
            return
        if self._talk.known != self._before:
            self._phase = _Phase.WATCHING
            self._watch(now)
        elif self._phase is _Phase.CLAIMING and not self._talk.busy:
            self._write(self.me, (self.me,), now)

    def _hear_peer(self, told: PeerSaid, now: Mono) -> None:
        if told.member != self.me:
            self._peers.hear(told, now)
            if told.role is Role.ACTIVE:
                self._wish.forget()

    def _hear_wish(self, now: Mono) -> None:
        if self._phase is _Phase.WATCHING and self._peers.active(now) is None:
            self._wish.hear(self._talk.known, Mono(now + 2 * self.timing.fallow_s))

    # --- what became of a put -----------------------------------------------------------------------------------

    def _resolved(self, outcome: Outcome | None, now: Mono) -> None:
        if outcome is Outcome.WON:
            self._won(now)
        elif outcome is Outcome.LOST:
            self._lost()

    def _won(self, now: Mono) -> None:
        marker = self._talk.known
        assert marker is not None
        until = Mono(self._talk.put_at + self.timing.lease_s)
        if self._phase is _Phase.LEAVING and marker.holder is None:
            self._step_down(self._leaves.code, self._leaves.why)
        elif now >= until:
            self._won_too_late()
        elif self._phase is _Phase.CLAIMING:
            self._lead(until)
        else:
            self._renewed(marker, until)

    def _won_too_late(self) -> None:
        """The version is ours, but its lease is over."""
        if self._phase is _Phase.CLAIMING:
            self._phase = _Phase.WATCHING
        else:
            self._lease_ended()

    def _lead(self, until: Mono) -> None:
        """M1"""
        assert self._log is not None
        self._hold(until)
        if self._log.fit:
            self._phase, self.role = _Phase.LEADING, Role.ACTIVE
            self._deeds.append(Lead(epoch=self._promised, forced=self._lossy))
        else:
            # Nothing was acknowledged, so whoever might have taken over before us may do so now.
            self._leave("log_failed", "the log can't be written", self._before.in_sync if self._before else (self.me,))

    def _renewed(self, marker: Marker, until: Mono) -> None:
        assert until >= self.lease_until, "a later write never has an earlier lease"
        self._hold(until)
        if self._in_sync.named(marker):
            self._set_changed()

    def _hold(self, until: Mono) -> None:
        self.lease_until, self._renew_at = until, Mono(self._talk.put_at + self.timing.renew_s)

    def _lost(self) -> None:
        if self._phase is _Phase.CLAIMING:
            self._phase = _Phase.WATCHING
        elif self._phase is _Phase.LEAVING:
            self._step_down(self._leaves.code, self._leaves.why)
        else:
            holder = self._talk.known.holder if self._talk.known and self._talk.fresh else None
            name = holder.name if holder else "another control plane"
            self._step_down("lease_lost", f"{name} has taken the lease")

    # --- an active one ------------------------------------------------------------------------------------------

    def _keep(self, now: Mono) -> None:
        if self._talk.busy or self._talk.put is not None:
            return
        if self._phase is _Phase.LEAVING:
            self._write(None, self._leaves.to, now)
        elif now >= self._renew_at or not self._in_sync.as_wanted:
            self._write(self.me, self._in_sync.wanted, now)

    def _write(self, holder: Member | None, in_sync: tuple[Member, ...], now: Mono) -> None:
        self._marks += 1
        reached = self._stands()
        marker = Marker(
            version=self._talk.next_version,
            epoch=self._promised,
            holder=holder,
            in_sync=in_sync,
            position=reached.position,
            http=self._http if holder else "",
            sync=reached.sync,
            lossy=reached.lossy,
            lease_s=self.timing.lease_s if holder else 0.0,
            mark=f"{self._life}.{self._marks}",
        )
        self._deeds.append(self._talk.write(marker, now))

    def _stands(self) -> Reached:
        """Who leaves without having led gives back what it found."""
        assert self._log is not None
        if self._phase is _Phase.LEAVING and self.role is not Role.ACTIVE:
            return found(self._before)
        lossy = self._lossy if self._phase is _Phase.CLAIMING else still_lossy(self._talk.known, self._log)
        return Reached(self._log.position, self._seat.sync, lossy)

    def _caught_up(self, member: Member) -> None:
        if self._phase is _Phase.LEADING and not self._seat.shared_log:
            self._in_sync.caught_up(member)
            if self._in_sync.as_wanted:
                self._set_changed()

    def _fell_behind(self, member: Member) -> None:
        if self._phase is _Phase.LEADING:
            before = self.in_sync
            self._in_sync.fell_behind(member)
            if self.in_sync != before:
                self._set_changed()

    def _set_changed(self) -> None:
        if self._phase is _Phase.LEADING:
            self._deeds.append(SetChanged(self.in_sync))

    def _log_stands(self, told: LogStands) -> None:
        self._log = told
        if told.fit:
            return
        self._follows = None  # what the log was asked to take last, it may not have heard
        if self._phase is _Phase.LEADING:
            self._leave("log_failed", "the log can't be written", self.in_sync)
        elif self._phase is _Phase.PROMISING or (self._phase is _Phase.CLAIMING and self._talk.put is None):
            self._phase = _Phase.WATCHING

    def _resign(self) -> None:
        if self._phase is _Phase.LEADING:
            self._leave("resigned", "it was stopped", self.in_sync)
        elif self._phase is not _Phase.LEAVING:
            self._phase, self._ended = _Phase.SPENT, "it was stopped"

    def _leave(self, code: str, why: str, to: tuple[Member, ...]) -> None:
        """M5"""
        self._phase, self._leaves = _Phase.LEAVING, Leaving(code, why, to)

    def _lease_ended(self) -> None:
        if self._phase is _Phase.LEAVING:
            self._step_down(self._leaves.code, self._leaves.why)
            return
        error = f": {self._talk.error}" if self._talk.error else ""
        self._step_down("lease_ended", f"its lease couldn't be renewed in time{error}")

    def _step_down(self, code: str, why: str) -> None:
        """M2"""
        self._phase, self.role, self.lease_until, self._ended = _Phase.SPENT, Role.STANDBY, Mono(0.0), why
        self._deeds.append(StepDown(code=code, why=why))
