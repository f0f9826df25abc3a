"""How far one follower is: rules S1 and S2 of `live.failover.replication`."""

from stoker.brain.domain.ids import Position
from stoker.brain.domain.units import Mono
from stoker.brain.failover.timing import DEFAULT
from stoker.live.failover.links import Offer
from stoker.live.failover.replication import OWED_MAX, Standby
from stoker.live.failover.sender import Sender
from tests.control.stage import virtual
from tests.live.failover.pair import CLUSTER, Active, B

TIMEOUT_S = DEFAULT.standby_timeout_s


def follower() -> Standby:
    return Standby(B, heard_at=Mono(0.0), asked_at=Mono(0.0), rests_until=Mono(0.0))


def a_stream() -> Sender:
    return Sender(Active().replication, Offer(member=B, cluster_id=CLUSTER, position=Position(0), ends=()))


def test_s1_each_batch_is_timed_from_when_it_was_shipped() -> None:
    standby = follower()
    standby.ship(Position(5), Mono(1.0))
    standby.ship(Position(9), Mono(2.0))
    assert standby.lag(Position(9), Mono(4.0)).seconds == 3.0
    assert standby.confirm(Position(7), Mono(4.5)) == [3.5]
    assert standby.lag(Position(9), Mono(5.0)) == (B, False, 2, 3.0)
    assert standby.confirm(Position(9), Mono(5.0)) == [3.0]
    assert standby.lag(Position(9), Mono(9.0)).seconds == 0.0


def test_s1_of_more_batches_than_are_timed_the_oldest_and_the_end_are_known() -> None:
    standby = follower()
    for at in range(1, OWED_MAX + 10):
        standby.ship(Position(at), Mono(float(at)))
    assert len(standby.owed) == OWED_MAX
    assert standby.lag(Position(OWED_MAX + 9), Mono(10.0)).seconds == 9.0
    standby.confirm(Position(OWED_MAX + 8), Mono(1e6))
    assert standby.owed, "the last one isn't there yet"
    standby.confirm(Position(OWED_MAX + 9), Mono(1e6))
    assert not standby.owed


@virtual
async def test_s1_a_stream_that_begins_behind_what_was_confirmed_owes_that_from_then_on() -> None:
    standby = follower()
    standby.ship(Position(5), Mono(1.0))
    standby.confirm(Position(5), Mono(1.0))
    standby.connect(a_stream(), Position(3), Mono(8.0))
    assert standby.lag(Position(5), Mono(9.0)) == (B, False, 2, 1.0)


@virtual
async def test_s2_a_stream_is_given_two_signs_of_life_more_than_one_that_broke() -> None:
    standby, grace_s = follower(), 2 * DEFAULT.look_s
    standby.connect(a_stream(), Position(0), Mono(0.0))
    assert not standby.is_late(Mono(TIMEOUT_S + grace_s), DEFAULT)
    assert standby.is_late(Mono(TIMEOUT_S + grace_s + 0.1), DEFAULT)
    standby.disconnect(Mono(10.0))
    assert not standby.is_late(Mono(10.0 + TIMEOUT_S), DEFAULT)
    assert standby.is_late(Mono(10.1 + TIMEOUT_S), DEFAULT)


def test_s2_what_it_lacks_makes_it_late_however_often_it_says_that_it_lives() -> None:
    standby = follower()
    standby.ship(Position(5), Mono(1.0))
    standby.confirm(Position(4), Mono(1.0 + TIMEOUT_S))
    assert not standby.is_late(Mono(1.0 + TIMEOUT_S), DEFAULT)
    assert standby.is_late(Mono(1.1 + TIMEOUT_S), DEFAULT)
