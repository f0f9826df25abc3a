"""The failover machine: decides whether this control plane is active, and what must be done to become, stay or stop so.

Rules: M1  an active holds a lease record of its own that it won, and only until `lease_s` after it began to write it
       M2  it steps down by its own timer, and when it hears that another has the lease; then the machine is spent
       M3  it leads under an epoch that nobody led under before, and its log has promised it first
       M4  a promise that came to nothing is withdrawn only when another version has taken the place of ours
       M5  a control plane that gives the lease back acts no more from the moment at which it begins to
"""

from enum import Enum, auto
from typing import Final, NamedTuple, assert_never

from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import LeaseRecord, Member
from stoker.brain.domain.units import Mono
from stoker.brain.failover import inputs
from stoker.brain.failover.effects import Effect, Follow, InSyncChanged, Lead, Ping, Promise, StepDown
from stoker.brain.failover.inputs import ControlRole, Input, LogState, PeerState
from stoker.brain.failover.lease_record_client import NEVER, LeaseRecordClient
from stoker.brain.failover.membership import InSync, Membership, Peers
from stoker.brain.failover.takeover_eligibility import (
    FORCED_EPOCHS,
    forced_takeover_blocker,
    may_lack,
    newest_epoch,
    still_lossy,
    takeover_blocker,
)
from stoker.brain.failover.timing import Timing


class Phase(Enum):
    """Phase of a tenure, which begins with the first and ends with the last, or is cut off where it stands."""

    WATCHING = auto()
    """It reads the lease record, follows the active, and waits for a reason to take over."""
    PROMISING = auto()
    """Its log is to refuse what is older than the epoch that it wants to begin."""
    CLAIMING = auto()
    """Its log has promised; its lease record is being put."""
    LEADING = auto()
    """Its lease record is there: it is active for as long as the lease holds."""
    GIVING_BACK = auto()
    """It acts no more, and puts a lease record without a holder."""
    SPENT = auto()
    """Whatever it is told, it does nothing more. Another tenure begins from what is on disk."""


MOVES: Final = {
    Phase.WATCHING: (Phase.PROMISING, Phase.SPENT),
    Phase.PROMISING: (Phase.CLAIMING, Phase.WATCHING, Phase.SPENT),
    Phase.CLAIMING: (Phase.LEADING, Phase.GIVING_BACK, Phase.WATCHING, Phase.SPENT),
    Phase.LEADING: (Phase.GIVING_BACK, Phase.SPENT),
    Phase.GIVING_BACK: (Phase.SPENT,),
    Phase.SPENT: (),
}
TAKING_OVER: Final = (Phase.PROMISING, Phase.CLAIMING)
WITH_LEASE: Final = (Phase.LEADING, Phase.GIVING_BACK)


class GivingBack(NamedTuple):
    """Reason for which the lease is given back, and the members of whom any may take it at once."""

    code: str
    why: str
    to: tuple[Member, ...]


class PromotionRequest:
    """A person's order to take over, whatever is lost: it stands for one promotion, and for a bounded time."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._until = Mono(0.0)

    def hear(self, record: LeaseRecord | None, until: Mono) -> None:
        self._version, self._until = record.version if record else 0, until

    def forget(self) -> None:
        self._version = None

    def stands(self, record: LeaseRecord | None, now: Mono) -> bool:
        """Return whether it stands: once somebody has written the lease record, it was about what is no more."""
        moved = record is not None and self._version not in (0, record.version)
        if moved or now >= self._until:
            self.forget()
        return self._version is not None


class Machine:
    """One tenure of one control plane: a standby first, perhaps active later, and then spent."""

    def __init__(self, membership: Membership, *, timing: Timing, tenure_id: str, http: str) -> None:
        """`tenure_id`: unique text of this tenure. `http`: where we answer people."""
        self.me = membership.me
        self.timing = timing
        self.role = ControlRole.STANDBY
        self.lease_until = Mono(0.0)
        """End of our lease; 0 = we have none."""
        self.membership = membership
        self.client = LeaseRecordClient(timing)
        """What is known of the lease record; others only read it."""
        self._tenure_id, self._http, self._marks = tenure_id, http, 0
        self._peers, self._promotion_request = Peers(timing), PromotionRequest()
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
    def lease_record(self) -> LeaseRecord | None:
        """The newest version known."""
        return self.client.newest

    @property
    def epoch(self) -> Epoch:
        """The epoch we lead under, else that of the lease record; 0 = there is none."""
        if self.role is ControlRole.ACTIVE:
            return self._promised
        return self.lease_record.epoch if self.lease_record else Epoch(0)

    @property
    def in_sync(self) -> tuple[Member, ...]:
        """Members that acknowledgements wait for now; empty while we aren't active."""
        return self._in_sync.waits_for(self.client.put) if self.role is ControlRole.ACTIVE else ()

    @property
    def next_tick(self) -> Mono:
        """Time at which Tick is due at the latest."""
        if self._phase is Phase.SPENT:
            return NEVER
        due = [NEVER if self.membership.shared_log else self._ping_at, self.client.resolve_due]
        if self._looks:
            due.append(self.client.look_due)
        if self._phase in WITH_LEASE:
            due.append(self.lease_until)
            if self.client.idle:
                due.append(self._renew_at)
        return min(due)

    @property
    def why(self) -> str:
        """Reason for which this standby doesn't take over, for people; empty while it is active."""
        if self._phase is Phase.WATCHING:
            return self._blocker(self._now) or "it is about to take over"
        if self._phase in TAKING_OVER:
            return self.client.trouble or "it is taking over"
        if self._phase is Phase.GIVING_BACK and self.role is ControlRole.STANDBY:
            return self._giving_back.why
        return self._ended

    def holds(self, now: Mono) -> bool:
        """Return whether we may speak for the cluster at this moment."""
        return self._phase is Phase.LEADING and now < self.lease_until

    def forced_takeover_blocker(self, now: Mono) -> str:
        """Return why a person can't promote us right now; empty = ForcePromotion would begin at once."""
        if self._phase is not Phase.WATCHING:
            return "it is active already" if self.role is ControlRole.ACTIVE else "it is taking over already"
        return forced_takeover_blocker(self.membership, self.client, self._log, self._peers, now)

    # --- what it is told ----------------------------------------------------------------------------------------

    def step(self, told: Input, now: Mono) -> tuple[Effect, ...]:
        """Return what to do, in this order, after being told this."""
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
            case inputs.Tick():
                pass
            case inputs.LeaseRecordRead():
                self._resolved(self.client.seen(told, now), now)
            case inputs.LeaseRecordWritten():
                self._resolved(self.client.was_put(told, now), now)
            case inputs.LeaseRecordFailed():
                self.client.failed(told.error)
            case PeerState():
                self._hear_peer(told, now)
            case inputs.CaughtUp():
                self._caught_up(told.member)
            case inputs.FellBehind():
                self._fell_behind(told.member)
            case LogState():
                self._hear_log(told)
            case inputs.Promised():
                if self._phase is Phase.PROMISING and told.epoch == self._promised:
                    self._go(Phase.CLAIMING)
            case inputs.ForcePromotion():
                self._hear_promotion_request(now)
            case inputs.Resign():
                self._resign()
            case _:
                assert_never(told)

    def _act(self, now: Mono) -> None:
        """Add the effects that are due."""
        if self._phase is Phase.WATCHING:
            self._watch(now)
        if self._phase in TAKING_OVER:
            self._claim(now)
        if self._phase in WITH_LEASE:
            self._keep(now)
        if self._phase is Phase.SPENT:
            return
        if now >= self.client.resolve_due:
            self._effects.append(self.client.resolve(now))
        if self._looks and now >= self.client.look_due:
            self._effects.append(self.client.look(now))
        if not self.membership.shared_log and now >= self._ping_at:
            self._ping_at = Mono(now + self.timing.ping_s)
            self._effects.append(Ping())

    @property
    def _looks(self) -> bool:
        """An active learns by its renewals, and one that has a put under way by that."""
        standby = self._phase in (Phase.WATCHING, Phase.PROMISING)
        return standby and self.client.idle

    # --- a standby ----------------------------------------------------------------------------------------------

    def _watch(self, now: Mono) -> None:
        if not self._blocker(now):
            self._promise(1, forced=False)
        elif self._promotion_request.stands(self.lease_record, now) and not self.forced_takeover_blocker(now):
            self._promise(FORCED_EPOCHS, forced=True)
        else:
            self._follow()

    def _blocker(self, now: Mono) -> str:
        return takeover_blocker(self.membership, self.client, self._log, self._peers, now)

    def _follow(self) -> None:
        """Whatever we, or an earlier tenure, have promised: this is the epoch that the log takes (M4)."""
        record = self.lease_record
        fit = self._log is None or self._log.fit
        if self.client.fresh and record is not None and fit and self._follows != record.epoch:
            self._follows = record.epoch
            self._effects.append(Follow(record.epoch))

    def _promise(self, by: int, *, forced: bool) -> None:
        assert self._log is not None
        assert self.client.put is None
        self._before = self.lease_record
        self._lossy = forced or (not self.membership.shared_log and may_lack(self.me, self._before, self._log))
        self._promotion_request.forget()
        self._promised = Epoch(newest_epoch(self._before, self._log) + by)
        self._follows = None
        self._go(Phase.PROMISING)
        self._effects.append(Promise(self._promised))

    def _claim(self, now: Mono) -> None:
        """Put our record once the log has promised (M3), unless somebody else was quicker."""
        if self.client.put is not None:
            return
        if self.lease_record != self._before:
            self._go(Phase.WATCHING)
            self._watch(now)
        elif self._phase is Phase.CLAIMING and not self.client.busy:
            self._write(self.me, (self.me,), now)

    def _hear_peer(self, told: PeerState, now: Mono) -> None:
        if told.member != self.me:
            self._peers.hear(told, now)
            if told.role is ControlRole.ACTIVE:
                self._promotion_request.forget()

    def _hear_promotion_request(self, now: Mono) -> None:
        if self._phase is Phase.WATCHING and self._peers.active(now) is None:
            self._promotion_request.hear(self.lease_record, Mono(now + 2 * self.timing.expiry_s))

    # --- what became of a put -----------------------------------------------------------------------------------

    def _resolved(self, won: bool | None, now: Mono) -> None:
        if won:
            self._won(now)
        elif won is not None:
            self._lost()

    def _won(self, now: Mono) -> None:
        record = self.lease_record
        assert record is not None
        until = Mono(self.client.put_at + self.timing.lease_s)
        too_late = now >= until  # the version is ours, but its lease is over
        if self._phase is Phase.GIVING_BACK and record.holder is None:
            self._step_down(self._giving_back.code, self._giving_back.why)
        elif self._phase is Phase.CLAIMING and too_late:
            self._go(Phase.WATCHING)
        elif self._phase is Phase.CLAIMING:
            self._lead(until)
        elif too_late:
            self._lease_ended()
        else:
            self._renewed(record, until)

    def _lead(self, until: Mono) -> None:
        """Our record is there: lead until its lease ends (M1)."""
        assert self._log is not None
        self._hold(until)
        if self._log.fit:
            self._go(Phase.LEADING)
            self.role = ControlRole.ACTIVE
            self._effects.append(Lead(epoch=self._promised, forced=self._lossy))
        else:
            # Nothing was acknowledged, so any member that might have taken over before us may do so now.
            to = self._before.in_sync if self._before else (self.me,)
            self._give_back("log_failed", "the log can't be written", to)

    def _renewed(self, record: LeaseRecord, until: Mono) -> None:
        assert until >= self.lease_until, "a later write never has an earlier lease"
        self._hold(until)
        if self._in_sync.named(record):
            self._in_sync_changed()

    def _hold(self, until: Mono) -> None:
        self.lease_until, self._renew_at = until, Mono(self.client.put_at + self.timing.renew_s)

    def _lost(self) -> None:
        if self._phase is Phase.CLAIMING:
            self._go(Phase.WATCHING)
        elif self._phase is Phase.GIVING_BACK:
            self._step_down(self._giving_back.code, self._giving_back.why)
        else:
            holder = self.lease_record.holder if self.lease_record and self.client.fresh else None
            took = f"{holder.name} has taken the lease" if holder else "somebody else wrote the marker's next version"
            self._step_down("lease_lost", took)

    # --- an active one ------------------------------------------------------------------------------------------

    def _keep(self, now: Mono) -> None:
        if not self.client.idle:
            return
        if self._phase is Phase.GIVING_BACK:
            self._write(None, self._giving_back.to, now)
        elif now >= self._renew_at or not self._in_sync.as_wanted:
            self._write(self.me, self._in_sync.wanted, now)

    def _write(self, holder: Member | None, in_sync: tuple[Member, ...], now: Mono) -> None:
        self._marks += 1
        position, sync, lossy = self._reached()
        record = LeaseRecord(
            version=self.client.next_version,
            epoch=self._promised,
            holder=holder,
            in_sync=in_sync,
            position=position,
            http=self._http if holder else "",
            sync=sync,
            lossy=lossy,
            lease_s=self.timing.lease_s if holder else 0.0,
            mark=f"{self._tenure_id}.{self._marks}",
        )
        self._effects.append(self.client.write(record, now))

    def _reached(self) -> tuple[Position, bool, bool]:
        """Return the end of the log, whether it was acknowledged in sync, and whether it may lack records.

        A tenure that ends without having led gives back what it found.
        """
        assert self._log is not None
        if self._phase is Phase.GIVING_BACK and self.role is not ControlRole.ACTIVE:
            before = self._before
            return (before.position, before.sync, before.lossy) if before else (Position(0), True, False)
        lossy = self._lossy if self._phase is Phase.CLAIMING else still_lossy(self.lease_record, self._log)
        return self._log.position, self.membership.sync, lossy

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
        elif self._phase is Phase.PROMISING or (self._phase is Phase.CLAIMING and self.client.put is None):
            self._go(Phase.WATCHING)

    def _resign(self) -> None:
        if self._phase is Phase.LEADING:
            self._give_back("resigned", "it was stopped", self.in_sync)
        elif self._phase is not Phase.GIVING_BACK:
            self._go(Phase.SPENT)
            self._ended = "it was stopped"

    def _give_back(self, code: str, why: str, to: tuple[Member, ...]) -> None:
        """Act no more, then put a record without a holder (M5)."""
        self._go(Phase.GIVING_BACK)
        self._giving_back = GivingBack(code, why, to)

    def _lease_ended(self) -> None:
        if self._phase is Phase.GIVING_BACK:
            self._step_down(self._giving_back.code, self._giving_back.why)
            return
        why = ": ".join(filter(None, ("its lease couldn't be renewed in time", self.client.trouble)))
        self._step_down("lease_ended", why)

    def _step_down(self, code: str, why: str) -> None:
        """Be a standby from now on; the machine is spent (M2)."""
        self._go(Phase.SPENT)
        self.role, self.lease_until, self._ended = ControlRole.STANDBY, Mono(0.0), why
        self._effects.append(StepDown(code=code, why=why))

    def _go(self, phase: Phase) -> None:
        assert phase in MOVES[self._phase], f"{self._phase.name} never becomes {phase.name}"
        self._phase = phase
