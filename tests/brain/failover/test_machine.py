"""What the stories don't say: bounds, answers that come too late, and what others may ask."""

from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import LeaseRecord, Member
from stoker.brain.domain.units import Mono
from stoker.brain.failover import inputs
from stoker.brain.failover.effects import Effect, InSyncChanged, Lead, Ping, ReadLeaseRecord, StepDown, WriteLeaseRecord
from stoker.brain.failover.inputs import ControlRole, Input
from stoker.brain.failover.lease_record_client import NEVER
from stoker.brain.failover.machine import Machine
from stoker.brain.failover.membership import MEMBERS_MAX, PEERS_MAX, Membership, Peers
from stoker.brain.failover.timing import DEFAULT

A, B = Member(name="a", uid="1"), Member(name="b", uid="2")


class MachineDriver:
    """A machine, and a short way to tell it things one after the other, a hundredth of a second apart."""

    def __init__(self, me: Member = A, *told: Input) -> None:
        self.machine = Machine(Membership(me=me, peers=1), timing=DEFAULT, tenure_id="L", http="http://a")
        self.now = Mono(0.0)
        self.done: list[Effect] = []
        for each in told:
            self.tell(each)

    def tell(self, told: Input, at: float | None = None) -> tuple[Effect, ...]:
        self.now = Mono(self.now + 0.01 if at is None else at)
        done = self.machine.step(told, self.now)
        self.done += done
        return done

    @property
    def put(self) -> LeaseRecord:
        return next(effect.record for effect in reversed(self.done) if isinstance(effect, WriteLeaseRecord))


def lease_record(version: int = 1, holder: Member | None = A, *in_sync: Member) -> LeaseRecord:
    return LeaseRecord(
        version=version, epoch=Epoch(version), holder=holder, in_sync=in_sync or (A,), mark=f"{version}.{holder}"
    )


def record_read(what: LeaseRecord | None, at: float = 0.0) -> inputs.LeaseRecordRead:
    return inputs.LeaseRecordRead(record=what, asked_at=Mono(at))


def log(epoch: int = 1, position: int = 5, *, fit: bool = True) -> inputs.LogState:
    return inputs.LogState(epoch=Epoch(epoch), position=Position(position), fit=fit)


def peer_state(who: Member, role: ControlRole = ControlRole.STANDBY) -> inputs.PeerState:
    return inputs.PeerState(member=who, role=role, epoch=Epoch(0), position=Position(0))


def leading() -> MachineDriver:
    told = MachineDriver(A, log(), record_read(lease_record()), inputs.Promised(Epoch(2)))
    told.tell(inputs.LeaseRecordWritten(record=told.put, won=True))
    assert told.machine.role is ControlRole.ACTIVE
    return told


def test_one_look_or_put_is_under_way_at_a_time() -> None:
    told = MachineDriver()
    for _ in range(300):
        told.tell(inputs.Tick())
    assert [effect for effect in told.done if not isinstance(effect, Ping)] == [ReadLeaseRecord()]


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    told = MachineDriver(B, log(), record_read(lease_record(3, A, A, B)))
    told.tell(record_read(lease_record(4, None, A, B)))
    told.tell(inputs.LeaseRecordFailed("late"))
    told.tell(inputs.LeaseRecordWritten(record=lease_record(5, B), won=True))
    assert told.machine.lease_record == lease_record(3, A, A, B)
    assert told.machine.why == "a is active"


def test_an_answer_to_a_put_that_was_given_up_is_taken_while_the_look_is_under_way() -> None:
    told = leading()
    told.tell(inputs.Tick(), at=1.1)
    told.tell(inputs.LeaseRecordFailed("too slow"))
    assert told.tell(inputs.LeaseRecordWritten(record=told.put, won=True)) == ()
    assert told.machine.lease_until == 1.1 + DEFAULT.lease_s
    told.tell(record_read(told.put, at=1.12))
    assert told.machine.holds(told.now)


def test_whoever_is_spent_answers_nothing_and_needs_no_tick() -> None:
    told = leading()
    (ended,) = told.tell(inputs.Tick(), at=4.1)
    assert isinstance(ended, StepDown)
    for each in (inputs.Tick(), record_read(lease_record(9, None, A)), inputs.ForcePromotion(), log(), inputs.Resign()):
        assert told.tell(each) == ()
    assert told.machine.next_tick == NEVER
    assert told.machine.role is ControlRole.STANDBY
    assert told.machine.lease_until == Mono(0.0)
    assert told.machine.in_sync == ()


def test_the_timer_is_set_for_the_very_end_of_the_lease() -> None:
    told = leading()
    told.tell(inputs.Tick(), at=1.1)
    told.tell(inputs.LeaseRecordFailed("gone"), at=3.9)
    told.tell(inputs.Tick(), at=3.95)
    end = told.machine.lease_until
    assert told.machine.next_tick <= end
    assert told.machine.holds(Mono(end - 1e-6))
    assert not told.machine.holds(end)


def test_one_whose_lease_is_over_and_that_is_heard_is_not_said_to_be_active_by_the_marker() -> None:
    told = MachineDriver(B, log(), record_read(lease_record(3, A, A, B)))
    told.tell(peer_state(A, ControlRole.ACTIVE), at=5.0)
    told.tell(record_read(lease_record(3, A, A, B), at=5.0))
    assert told.machine.client.lease_expired
    assert told.machine.why == "a said a moment ago that it is active still"


def test_one_that_has_the_name_of_whoever_is_active_says_so_and_leads_only_once_that_lease_is_over() -> None:
    twin = Member("a", "another folder")
    told = MachineDriver(A, log(), record_read(lease_record(3, twin)), record_read(lease_record(3, twin)))
    words = "another control plane has the name a too: give each its own failover.name"
    assert (told.machine.why, told.machine.forced_takeover_blocker(told.now)) == (words, words)
    told.tell(inputs.Tick(), at=4.0)
    told.tell(record_read(lease_record(4, twin), at=4.0))
    told.tell(inputs.Tick(), at=8.0)
    told.tell(record_read(lease_record(4, twin), at=8.0))
    assert told.machine.why == words
    told.tell(inputs.Tick(), at=8.5)
    told.tell(record_read(lease_record(4, twin), at=8.5))
    assert told.machine.why == "it is taking over"


def test_one_whose_name_is_in_the_set_with_another_data_folder_says_so() -> None:
    """As after an exchange of folders, or with a folder that was made anew."""
    told = MachineDriver(B, log())
    names = (A, Member("b", "another folder"))
    told.tell(record_read(lease_record(3, None, *names)))
    assert told.machine.why == "not in the in-sync set: the b that is in it has another data folder, so another log"


def test_it_says_what_forbids_force() -> None:
    told = MachineDriver(B)
    assert told.machine.forced_takeover_blocker(told.now) == "the marker hasn't been read yet"
    told.tell(record_read(lease_record(3, A, A)))
    told.tell(record_read(lease_record(3, A, A)))
    assert told.machine.forced_takeover_blocker(told.now) == "its log isn't open yet"
    told.tell(log())
    assert told.machine.forced_takeover_blocker(told.now) == "a is active"
    told.tell(inputs.Tick(), at=5.0)
    told.tell(record_read(lease_record(3, A, A), at=5.0))
    assert told.machine.forced_takeover_blocker(told.now) == ""
    told.tell(peer_state(A, ControlRole.ACTIVE))
    assert told.machine.forced_takeover_blocker(told.now) == "a said a moment ago that it is active still"
    told.tell(peer_state(A))
    told.tell(inputs.ForcePromotion())
    assert told.machine.forced_takeover_blocker(told.now) == "it is taking over already"
    assert leading().machine.forced_takeover_blocker(Mono(0.1)) == "it is active already"


def test_force_without_a_marker_asks_nobody() -> None:
    """Whoever else might know better can't be reached."""
    told = MachineDriver(A, log(4), record_read(None), inputs.ForcePromotion(), inputs.Promised(Epoch(1_004)))
    told.tell(inputs.LeaseRecordWritten(record=told.put, won=True))
    assert told.done[-1] == Lead(epoch=Epoch(1_004), forced=True)


def test_what_it_says_of_itself_as_a_peer_is_not_heard() -> None:
    told = MachineDriver(A, log(), record_read(None), peer_state(A))
    assert told.machine.why == "waits until every peer has been heard (0 of 1 so far), since there is no marker yet"


def test_a_marker_names_no_more_than_its_bound() -> None:
    """Whoever is told of beyond it is told at once that nobody waits for him."""
    told = leading()
    for number in range(MEMBERS_MAX + 5):
        told.tell(inputs.CaughtUp(Member(name=f"m{number:02}", uid="1")))
        told.tell(inputs.LeaseRecordWritten(record=told.put, won=True))
    assert len(told.machine.in_sync) == MEMBERS_MAX
    assert told.done[-2:].count(InSyncChanged(told.machine.in_sync)) >= 1


def test_of_too_many_peers_the_newest_are_remembered() -> None:
    peers = Peers(DEFAULT)
    for number in range(PEERS_MAX + 3):
        peers.hear(peer_state(Member(name=f"m{number:02}", uid="1")), Mono(0.0))
    names = [each.member.name for each in peers.standbys(Mono(0.0))]
    assert names == [f"m{number:02}" for number in range(3, PEERS_MAX + 3)]


def test_marks_of_one_life_never_repeat() -> None:
    told = leading()
    for _ in range(20):
        told.tell(inputs.Tick(), at=told.machine.next_tick)
        told.tell(inputs.LeaseRecordWritten(record=told.put, won=True))
    puts = [effect.record for effect in told.done if isinstance(effect, WriteLeaseRecord)]
    assert [put.mark for put in puts] == [f"L.{number}" for number in range(1, len(puts) + 1)]
    assert [put.version for put in puts] == list(range(2, len(puts) + 2))
    assert {put.http for put in puts} == {"http://a"}


def test_whoever_gives_the_lease_back_names_no_address() -> None:
    told = leading()
    told.tell(inputs.Resign())
    assert (told.put.holder, told.put.http) == (None, "")
