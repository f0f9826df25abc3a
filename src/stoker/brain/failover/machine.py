"""Is this control plane active, and what must be done so that it is, stays it, or stops in time?

Rules: M1  whoever leads holds a marker of its own that it won, and only until `lease_s` after it began to write it
       M2  it steps down by its own timer, and when it hears that another has the lease; then the machine is spent
       M3  it leads under an epoch that nobody led under before, and its log has promised it first
       M4  a promise that came to nothing is withdrawn only when another version has taken the place of ours
       M5  whoever gives the lease back acts no more from the moment at which it begins to
"""

from typing import assert_never

from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.lease_record import LeaseRecord, Member
from stoker.brain.domain.units import Mono
from stoker.brain.failover.data_loss import FORCED_EPOCHS, Reached, found, may_lack, still_lossy
from stoker.brain.failover.effects import Effect, Follow, InSyncChanged, Lead, Ping, Promise, StepDown
from stoker.brain.failover.in_sync import InSync
from stoker.brain.failover.inputs import (
    CaughtUp,
    ControlRole,
    FellBehind,
    ForcePromotion,
    Input,
    LeaseRecordFailed,
    LeaseRecordRead,
    LeaseRecordWritten,
    LogState,
    PeerState,
    Promised,
    Resign,
    Tick,
)
from stoker.brain.failover.lease_record_client import NEVER, LeaseRecordClient, WriteOutcome
from stoker.brain.failover.membership import Membership
from stoker.brain.failover.peers import Peers
from stoker.brain.failover.phase import MOVES, TAKING_OVER, WITH_LEASE, GivingBack, Phase
from stoker.brain.failover.promotion_request import PromotionRequest
from stoker.brain.failover.takeover_eligibility import forced_takeover_blocker, newest_epoch, takeover_blocker
from stoker.brain.failover.timing import Timing


class Machine:
    """One life of one control plane: a standby first, perhaps active later, and then spent."""

    def __init__(self, membership: Membership, *, timing: Timing, life: str, http: str) -> None:
        """`life`: unique text of this life. `http`: where we answer people."""
        self.me = membership.me
        self.timing = timing
        self.role = ControlRole.STANDBY
        self.lease_until = Mono(0.0)
        """End of our lease; 0 = we have none."""
        self.membership = membership
        self._life, self._http, self._marks = life, http, 0
        self._client, self._peers, self._promotion_request = (
            LeaseRecordClient(timing),
            Peers(timing),
            PromotionRequest(),
        )
        self._log: LogState | None = None
        self._phase = Phase.WATCHING
        self._now = Mono(0.0)
        self._ended = ""
        self._effects: list[Effect] = []
        self._ping_at = Mono(0.0)
        self._follows: Epoch | None = None
        self._promised = Epoch(0)
        self._lossy = False
        self._before: LeaseRecord | None = None
        self._renew_at = Mono(0.0)
        self._in_sync = InSync(self.me)
        self._giving_back = GivingBack("", "", ())

    # --- what others read ---------------------------------------------------------------------------------------

    @property
    def marker(self) -> LeaseRecord | None:
        """The newest version known."""
        return self._client.newest

    @property
    def marker_client(self) -> LeaseRecordClient:
        """What is known of the marker; only to be read."""
        return self._client

    @property
    def epoch(self) -> Epoch:
        """The one we lead under, else the marker's; 0 = there is none."""
        if self.role is ControlRole.ACTIVE:
            return self._promised
        return self.marker.epoch if self.marker else Epoch(0)

    @property
    def in_sync(self) -> tuple[Member, ...]:
        """Whom acknowledgements wait for now; empty while we aren't active."""
        return self._in_sync.waits_for(self._client.put) if self.role is ControlRole.ACTIVE else ()

    @property
    def next_tick(self) -> Mono:
        """When Tick is due at the latest."""
        if self._phase is Phase.SPENT:
            return NEVER
        due = [NEVER if self.membership.shared_log else self._ping_at, self._client.resolve_due]
        if self._looks:
            due.append(self._client.look_due)
        if self._phase in WITH_LEASE:
            due.append(self.lease_until)
            if self._client.idle:
                due.append(self._renew_at)
        return min(due)

    @property
    def why(self) -> str:
        """For people: why this standby doesn't take over; empty while it is active."""
        if self._phase is Phase.WATCHING:
            return self._obstacle(self._now) or "it is about to take over"
        if self._phase in TAKING_OVER:
            return self._client.trouble or "it is taking over"
        if self._phase is Phase.GIVING_BACK and self.role is ControlRole.STANDBY:
            return self._giving_back.why
        return self._ended

    def holds(self, now: Mono) -> bool:
        """May we speak for the cluster at this moment?"""
        return self._phase is Phase.LEADING and now < self.lease_until

    def forced_takeover_blocker(self, now: Mono) -> str:
        """Why a person can't promote us right now; empty = ForcePromotion would begin at once."""
        if self._phase is not Phase.WATCHING:
            return "it is active already" if self.role is ControlRole.ACTIVE else "it is taking over already"
        return forced_takeover_blocker(self.membership, self._client, self._log, self._peers, now)

    # --- what it is told ----------------------------------------------------------------------------------------

    def step(self, told: Input, now: Mono) -> tuple[Effect, ...]:
        """What to do, in this order, after hearing this."""
        if self._phase is Phase.SPENT:
            return ()
        if self._phase in WITH_LEASE and now >= self.lease_until:
            self._lease_ended()
        else:
            self._hear(told, now)
            self._act(now)
        self._now = now
        effects, self._effects = tuple(self._effects), []
        return effects

    def _hear(self, told: Input, now: Mono) -> None:
        match told:
            case Tick():
                pass
            case LeaseRecordRead():
                self._resolved(self._client.seen(told, now), now)
            case LeaseRecordWritten():
                self._resolved(self._client.was_put(told, now), now)
            case LeaseRecordFailed():
                self._client.failed(told.error)
            case PeerState():
                self._hear_peer(told, now)
            case CaughtUp():
                self._caught_up(told.member)
            case FellBehind():
                self._fell_behind(told.member)
            case LogState():
                self._hear_log(told)
            case Promised():
                if self._phase is Phase.PROMISING and told.epoch == self._promised:
                    self._go(Phase.CLAIMING)
            case ForcePromotion():
                self._hear_promotion_request(now)
            case Resign():
                self._resign()
            case _:
                assert_never(told)

    def _act(self, now: Mono) -> None:
        """Whatever is due."""
        if self._phase is Phase.WATCHING:
            self._watch(now)
        if self._phase in TAKING_OVER:
            self._claim(now)
        if self._phase in WITH_LEASE:
            self._keep(now)
        if self._phase is Phase.SPENT:
            return
        if now >= self._client.resolve_due:
            self._effects.append(self._client.resolve(now))
        if self._looks and now >= self._client.look_due:
            self._effects.append(self._client.look(now))
        if not self.membership.shared_log and now >= self._ping_at:
            self._ping_at = Mono(now + self.timing.ping_s)
            self._effects.append(Ping())

    @property
    def _looks(self) -> bool:
        """Whoever leads learns by its renewals; whoever has a put under way, by that."""
        standby = self._phase in (Phase.WATCHING, Phase.PROMISING)
        return standby and self._client.idle

    # --- a standby ----------------------------------------------------------------------------------------------

    def _watch(self, now: Mono) -> None:
        if not self._obstacle(now):
            self._promise(1, forced=False)
        elif self._promotion_request.stands(self.marker, now) and not self.forced_takeover_blocker(now):
            self._promise(FORCED_EPOCHS, forced=True)
        else:
            self._follow()

    def _obstacle(self, now: Mono) -> str:
        return takeover_blocker(self.membership, self._client, self._log, self._peers, now)

    def _follow(self) -> None:
        """M4. Whatever we, or an earlier life, have promised: this is the epoch that the log takes."""
        marker = self.marker
        fit = self._log is None or self._log.fit
        if self._client.fresh and marker is not None and fit and self._follows != marker.epoch:
            self._follows = marker.epoch
            self._effects.append(Follow(marker.epoch))

    def _promise(self, by: int, *, forced: bool) -> None:
        assert self._log is not None
        assert self._client.put is None
        self._before = self.marker
        self._lossy = forced or (not self.membership.shared_log and may_lack(self.me, self._before, self._log))
        self._promotion_request.forget()
        self._promised = Epoch(newest_epoch(self._before, self._log) + by)
        self._follows = None
        self._go(Phase.PROMISING)
        self._effects.append(Promise(self._promised))

    def _claim(self, now: Mono) -> None:
        """M3. Once the log has promised; unless somebody else was quicker."""
        if self._client.put is not None:
            return
        if self.marker != self._before:
            self._go(Phase.WATCHING)
            self._watch(now)
        elif self._phase is Phase.CLAIMING and not self._client.busy:
            self._write(self.me, (self.me,), now)

    def _hear_peer(self, told: PeerState, now: Mono) -> None:
        if told.member != self.me:
            self._peers.hear(told, now)
            if told.role is ControlRole.ACTIVE:
                self._promotion_request.forget()

    def _hear_promotion_request(self, now: Mono) -> None:
        if self._phase is Phase.WATCHING and self._peers.active(now) is None:
            self._promotion_request.hear(self.marker, Mono(now + 2 * self.timing.expiry_s))

    # --- what became of a put -----------------------------------------------------------------------------------

    def _resolved(self, outcome: WriteOutcome | None, now: Mono) -> None:
        if outcome is WriteOutcome.WON:
            self._won(now)
        elif outcome is WriteOutcome.LOST:
            self._lost()

    def _won(self, now: Mono) -> None:
        marker = self.marker
        assert marker is not None
        until = Mono(self._client.put_at + self.timing.lease_s)
        if self._phase is Phase.GIVING_BACK and marker.holder is None:
            self._step_down(self._giving_back.code, self._giving_back.why)
        elif now >= until:
            self._won_too_late()
        elif self._phase is Phase.CLAIMING:
            self._lead(until)
        else:
            self._renewed(marker, until)

    def _won_too_late(self) -> None:
        """The version is ours, but its lease is over."""
        if self._phase is Phase.CLAIMING:
            self._go(Phase.WATCHING)
        else:
            self._lease_ended()

    def _lead(self, until: Mono) -> None:
        """M1"""
        assert self._log is not None
        self._hold(until)
        if self._log.fit:
            self._go(Phase.LEADING)
            self.role = ControlRole.ACTIVE
            self._effects.append(Lead(epoch=self._promised, forced=self._lossy))
        else:
            # Nothing was acknowledged, so whoever might have taken over before us may do so now.
            self._give_back(
                "log_failed", "the log can't be written", self._before.in_sync if self._before else (self.me,)
            )

    def _renewed(self, marker: LeaseRecord, until: Mono) -> None:
        assert until >= self.lease_until, "a later write never has an earlier lease"
        self._hold(until)
        if self._in_sync.named(marker):
            self._in_sync_changed()

    def _hold(self, until: Mono) -> None:
        self.lease_until, self._renew_at = until, Mono(self._client.put_at + self.timing.renew_s)

    def _lost(self) -> None:
        if self._phase is Phase.CLAIMING:
            self._go(Phase.WATCHING)
        elif self._phase is Phase.GIVING_BACK:
            self._step_down(self._giving_back.code, self._giving_back.why)
        else:
            holder = self.marker.holder if self.marker and self._client.fresh else None
            took = f"{holder.name} has taken the lease" if holder else "somebody else wrote the marker's next version"
            self._step_down("lease_lost", took)

    # --- an active one ------------------------------------------------------------------------------------------

    def _keep(self, now: Mono) -> None:
        if not self._client.idle:
            return
        if self._phase is Phase.GIVING_BACK:
            self._write(None, self._giving_back.to, now)
        elif now >= self._renew_at or not self._in_sync.as_wanted:
            self._write(self.me, self._in_sync.wanted, now)

    def _write(self, holder: Member | None, in_sync: tuple[Member, ...], now: Mono) -> None:
        self._marks += 1
        reached = self._reached()
        marker = LeaseRecord(
            version=self._client.next_version,
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
        self._effects.append(self._client.write(marker, now))

    def _reached(self) -> Reached:
        """Who leaves without having led gives back what it found."""
        assert self._log is not None
        if self._phase is Phase.GIVING_BACK and self.role is not ControlRole.ACTIVE:
            return found(self._before)
        lossy = self._lossy if self._phase is Phase.CLAIMING else still_lossy(self.marker, self._log)
        return Reached(self._log.position, self.membership.sync, lossy)

    def _caught_up(self, member: Member) -> None:
        if self._phase is Phase.LEADING and not self.membership.shared_log:
            self._in_sync.caught_up(member)
            if self._in_sync.as_wanted:
                self._in_sync_changed()

    def _fell_behind(self, member: Member) -> None:
        if self._phase is Phase.LEADING:
            before = self.in_sync
            self._in_sync.fell_behind(member)
            if self.in_sync != before:
                self._in_sync_changed()

    def _in_sync_changed(self) -> None:
        if self._phase is Phase.LEADING:
            self._effects.append(InSyncChanged(self.in_sync))

    def _hear_log(self, told: LogState) -> None:
        self._log = told
        if told.fit:
            return
        self._follows = None  # what the log was asked to take last, it may not have heard
        if self._phase is Phase.LEADING:
            self._give_back("log_failed", "the log can't be written", self.in_sync)
        elif self._phase is Phase.PROMISING or (self._phase is Phase.CLAIMING and self._client.put is None):
            self._go(Phase.WATCHING)

    def _resign(self) -> None:
        if self._phase is Phase.LEADING:
            self._give_back("resigned", "it was stopped", self.in_sync)
        elif self._phase is not Phase.GIVING_BACK:
            self._go(Phase.SPENT)
            self._ended = "it was stopped"

    def _give_back(self, code: str, why: str, to: tuple[Member, ...]) -> None:
        """M5"""
        self._go(Phase.GIVING_BACK)
        self._giving_back = GivingBack(code, why, to)

    def _lease_ended(self) -> None:
        if self._phase is Phase.GIVING_BACK:
            self._step_down(self._giving_back.code, self._giving_back.why)
            return
        why = ": ".join(filter(None, ("its lease couldn't be renewed in time", self._client.trouble)))
        self._step_down("lease_ended", why)

    def _step_down(self, code: str, why: str) -> None:
        """M2"""
        self._go(Phase.SPENT)
        self.role, self.lease_until, self._ended = ControlRole.STANDBY, Mono(0.0), why
        self._effects.append(StepDown(code=code, why=why))

    def _go(self, phase: Phase) -> None:
        assert phase in MOVES[self._phase], f"{self._phase.name} never becomes {phase.name}"
        self._phase = phase
