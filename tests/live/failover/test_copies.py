"""For whom acknowledgements wait: rules C1 to C6 of `live.failover.copies`."""

import asyncio
from collections.abc import Sequence

import pytest

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.marker import Member
from stoker.brain.failover.timing import DEFAULT
from stoker.live.committer import NotActive
from stoker.live.failover.copies import FOLLOWERS_MAX, NEAR_RECORDS, REST
from stoker.live.failover.links import FORMAT, Goon, Offer, Rows
from tests.live.failover.pair import CLUSTER, A, Active, B, C, Cable, Standby, disk_of, until
from tests.live.stage import virtual

PATIENCE_S = DEFAULT.standby_timeout_s
TICK_S = DEFAULT.look_s


async def leading(*epochs: tuple[int, int], sync: bool = True) -> Active:
    active = Active(disk_of(*(epochs or ((1, 10),))), sync=sync)
    await active.lead(2)
    return active


def marker_says(active: Active, *members: Member) -> None:
    active.replication.set_changed((A, *members))


class Hand:
    """A follower of which each confirmation is given by hand."""

    def __init__(self, active: Active, member: Member = B, *, position: int = 10) -> None:
        self._active = active
        offer = Offer(
            member=member,
            cluster_id=CLUSTER,
            position=Position(position),
            ends=((Epoch(1), Position(position)),),
        )
        self.feeding = active.replication.feed(offer)
        self.has = position
        self.sent = -1
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for frame in self.feeding.frames():
            if isinstance(frame, Goon):
                self.sent = frame.position
            if isinstance(frame, Rows):
                self.sent = frame.position + len(frame.records)
                if not frame.records:
                    self.say(self.has)  # it lives, though its disk may be slow

    def say(self, position: int) -> None:
        self.has = position
        self.feeding.have(Position(position))

    async def takes(self, position: int) -> None:
        await until(lambda: self.sent >= position)
        self.say(position)

    async def hang_up(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


async def _member(active: Active, member: Member = B) -> Hand:
    """One that is in the set."""
    hand = Hand(active, member)
    await until(lambda: member in active.caught_up)
    marker_says(active, *active.caught_up)
    return hand


async def in_order(*tasks: "asyncio.Task[Position]") -> Sequence[Position]:
    return await asyncio.gather(*tasks)


# --- waiting (C1) ---------------------------------------------------------------------------------------------------


@virtual
async def test_without_followers_an_acknowledgement_waits_for_nobody() -> None:
    active = await leading()
    assert await active.write() == 11
    assert active.replication.acknowledged == 11


@virtual
async def test_an_acknowledgement_waits_for_every_member() -> None:
    active = await leading()
    b, c = await _member(active, B), await _member(active, C)
    writing = asyncio.create_task(active.write())
    await b.takes(11)
    await active.clock.sleep(0.1)
    assert not writing.done()
    assert active.replication.acknowledged == 10
    await c.takes(11)
    await writing
    assert active.replication.acknowledged == 11


@virtual
async def test_a_confirmation_of_less_is_not_enough() -> None:
    active = await leading()
    b = await _member(active)
    writing = asyncio.create_task(active.write(5))
    await until(lambda: b.sent == 15)
    b.say(14)
    await active.clock.sleep(0.1)
    assert not writing.done()
    b.say(15)
    await writing


@virtual
async def test_a_confirmation_that_came_before_the_own_disk_was_ready_counts() -> None:
    active = await leading()
    b = await _member(active)
    active.disk.stall_s = 1.0
    writing = asyncio.create_task(active.write())
    await b.takes(11)
    assert active.disk.end == 10
    await writing


@virtual
async def test_a_member_that_nobody_has_seen_is_waited_for_until_the_marker_leaves_it_out() -> None:
    """So it is for who comes to be active while another set stands in the marker."""
    active = await leading()
    marker_says(active, C)
    writing = asyncio.create_task(active.write())
    await until(lambda: active.fell_behind == [C])
    assert not writing.done()
    marker_says(active)
    await writing


# --- in (C2, C4) ----------------------------------------------------------------------------------------------------


@virtual
async def test_a_follower_that_has_all_is_waited_for_before_the_marker_hears_of_it() -> None:
    active = await leading()
    b = Hand(active)
    await until(lambda: active.caught_up == [B])
    writing = asyncio.create_task(active.write())
    await active.clock.sleep(0.1)
    assert not writing.done()
    await b.takes(11)
    await writing


@virtual
async def test_a_follower_gets_in_while_much_is_written_although_it_never_has_all() -> None:
    active = await leading((1, 100))
    standby = Standby(B, disk_of((1, 20)))
    standby.disk.stall_s = 0.02  # ten times as slow as the active's disk

    async def write_on() -> None:
        while True:
            await active.write(3)

    writing = asyncio.create_task(write_on())
    await until(lambda: active.replication.acknowledged > 150)
    following = standby.begin(Cable(active))
    await until(lambda: active.caught_up == [B], within_s=2.0)
    assert standby.disk.end >= 150
    marker_says(active, B)
    reached = active.replication.acknowledged
    await until(lambda: active.replication.acknowledged > reached + 100)
    assert standby.disk.end >= active.replication.acknowledged
    following.cancel()
    writing.cancel()


@virtual
async def test_a_follower_that_is_far_behind_is_not_waited_for() -> None:
    active = await leading((1, 10 * NEAR_RECORDS))
    hand = Hand(active, position=10)
    await until(lambda: hand.sent >= NEAR_RECORDS)
    hand.say(NEAR_RECORDS)
    await active.write()
    assert active.caught_up == []


@virtual
async def test_who_is_told_as_caught_up_has_all_that_was_acknowledged_before() -> None:
    active = await leading((1, 50))
    hand = Hand(active, position=10)
    await until(lambda: hand.sent == 50)
    hand.say(49)
    await active.clock.sleep(0.1)
    assert active.caught_up == []
    hand.say(50)
    assert active.caught_up == [B]


@virtual
async def test_a_follower_that_fails_while_it_is_tried_delays_writes_once_and_is_left_alone_for_a_while() -> None:
    active = await leading((1, 50))
    hand = Hand(active, position=10)
    await until(lambda: hand.sent == 50)
    hand.say(40)
    began = active.clock.mono()
    await active.write()
    assert active.clock.mono() - began < PATIENCE_S + 2 * TICK_S
    hand.say(45)
    began = active.clock.mono()
    await active.write()
    assert active.clock.mono() - began < 0.1
    assert (active.caught_up, active.fell_behind) == ([], []), "the marker has nothing to do with it"
    await active.clock.sleep(REST * PATIENCE_S)
    await hand.takes(52)
    assert active.caught_up == [B]


@virtual
async def test_an_older_answer_of_the_marker_does_not_let_go_of_who_was_asked_in() -> None:
    """C4: it was put before the marker was asked, and names the set of then."""
    active = await leading()
    b = Hand(active)
    await until(lambda: active.caught_up == [B])
    marker_says(active)
    writing = asyncio.create_task(active.write())
    await active.clock.sleep(0.1)
    assert not writing.done()
    await b.takes(11)
    await writing


@virtual
async def test_who_was_asked_in_and_dies_is_asked_in_first_and_left_out_then() -> None:
    """C4: whatever the marker says while it isn't in, nothing is acknowledged without it."""
    active = await leading()
    b = Hand(active)
    await until(lambda: active.caught_up == [B])
    await b.hang_up()
    writing = asyncio.create_task(active.write())
    await active.clock.sleep(3 * PATIENCE_S)
    assert not writing.done()
    assert active.fell_behind == []
    assert active.caught_up.count(B) >= 2, "it is asked again"
    marker_says(active)
    marker_says(active, B)
    await until(lambda: active.fell_behind == [B])
    assert not writing.done()
    marker_says(active)
    await writing


# --- out (C3) -------------------------------------------------------------------------------------------------------


@virtual
async def test_a_member_that_does_not_confirm_in_time_is_told_of_and_waited_for_until_the_marker_says_so() -> None:
    active = await leading()
    b = await _member(active)
    began = active.clock.mono()
    writing = asyncio.create_task(active.write())
    await until(lambda: active.fell_behind == [B])
    assert PATIENCE_S <= active.clock.mono() - began <= PATIENCE_S + 2 * TICK_S
    await active.clock.sleep(5.0)
    assert not writing.done()
    assert active.fell_behind.count(B) >= 2, "it is told again"
    marker_says(active, B)  # an older answer, of before
    await active.clock.sleep(0.1)
    assert not writing.done()
    marker_says(active)
    await writing
    assert b.sent == 11


@virtual
async def test_a_confirmation_lets_go_of_an_acknowledgement_also_after_the_member_was_told_of() -> None:
    active = await leading()
    b = await _member(active)
    writing = asyncio.create_task(active.write())
    await until(lambda: active.fell_behind == [B])
    await b.takes(11)
    await writing


@virtual
async def test_a_stream_that_breaks_and_comes_back_in_time_is_no_matter() -> None:
    active = await leading()
    b = await _member(active)
    await b.hang_up()
    writing = asyncio.create_task(active.write())
    await active.clock.sleep(PATIENCE_S * 0.7)
    again = Hand(active)
    await again.takes(11)
    await writing
    await active.clock.sleep(2 * PATIENCE_S)
    assert active.fell_behind == []


@virtual
async def test_a_member_that_goes_is_told_of_although_nothing_is_written() -> None:
    active = await leading()
    b = await _member(active)
    await b.hang_up()
    took_s = await until(lambda: active.fell_behind == [B])
    assert PATIENCE_S <= took_s <= PATIENCE_S + 2 * TICK_S


@virtual
async def test_a_member_that_falls_silent_is_told_of_although_its_stream_stands() -> None:
    active = await leading()
    cable, standby = Cable(active), Standby(B, disk_of((1, 10)))
    following = standby.begin(cable)
    await until(lambda: active.caught_up == [B])
    marker_says(active, B)
    await active.clock.sleep(30.0)
    assert active.fell_behind == []
    cable.deaf = True
    took_s = await until(lambda: active.fell_behind == [B])
    assert took_s <= PATIENCE_S + 4 * TICK_S
    following.cancel()


@virtual
async def test_a_member_comes_back_into_the_set_once_it_was_left_out() -> None:
    active = await leading()
    b = await _member(active)
    await b.hang_up()
    await until(lambda: active.fell_behind == [B])
    active.caught_up.clear()
    again = Hand(active)
    await again.takes(10)
    assert active.caught_up == [], "one question at a time"
    marker_says(active)
    await active.write()
    await again.takes(11)
    assert active.caught_up == [B]


@virtual
async def test_a_member_that_comes_back_with_less_than_it_had_is_waited_for_anew() -> None:
    active = await leading()
    b = await _member(active)
    writing = asyncio.create_task(active.write(5))
    await b.takes(15)
    await writing
    await b.hang_up()
    again = Hand(active, position=10)
    await until(lambda: again.sent == 15)
    writing = asyncio.create_task(active.write())
    await active.clock.sleep(0.1)
    again.say(15)
    assert not writing.done()
    await again.takes(16)
    await writing


@virtual
async def test_the_newest_stream_of_a_member_is_the_one_that_counts() -> None:
    active = await leading()
    old = await _member(active)
    new = Hand(active)
    writing = asyncio.create_task(active.write())
    await until(lambda: new.sent == 11)
    assert old.feeding.closed
    old.say(11)
    await active.clock.sleep(0.1)
    assert not writing.done()
    new.say(11)
    await writing


# --- the lease (C5) -------------------------------------------------------------------------------------------------


@virtual
async def test_nothing_is_kept_once_the_lease_is_over() -> None:
    active = await leading()
    await _member(active)
    writing = asyncio.create_task(active.write())
    await active.clock.sleep(0.1)
    active.holds = False
    with pytest.raises(NotActive):
        await writing
    with pytest.raises(NotActive):
        active.replication.check()


@virtual
async def test_whoever_waits_is_told_at_once_when_it_is_over() -> None:
    active = await leading()
    b = await _member(active)
    writing = asyncio.create_task(active.write())
    await until(lambda: b.sent == 11)
    assert active.running is not None
    active.running.cancel()
    with pytest.raises(NotActive):
        await writing
    assert b.feeding.closed


@virtual
async def test_before_it_leads_nothing_is_kept_and_nobody_fed() -> None:
    active = Active()
    with pytest.raises(NotActive):
        active.replication.check()
    with pytest.raises(StokerError) as fault:
        Hand(active)
    assert fault.value.refusal.code == "not_active"


# --- async (C6) -----------------------------------------------------------------------------------------------------


@virtual
async def test_in_async_mode_nobody_is_waited_for_and_the_set_follows_who_is_near() -> None:
    active = await leading(sync=False)
    b = await _member(active)
    await active.write()
    assert active.replication.acknowledged == 11
    await b.takes(11)
    await b.hang_up()
    await until(lambda: active.fell_behind == [B])
    marker_says(active)
    active.caught_up.clear()
    await active.write()
    again = Hand(active)
    await again.takes(12)
    assert active.caught_up == [B]


# --- who may follow -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offer", "code"),
    [
        pytest.param({"cluster_id": "another"}, "other_cluster", id="another cluster"),
        pytest.param({"cluster_id": ""}, "other_cluster", id="records of no cluster"),
        pytest.param({"format": FORMAT - 1}, "follower_too_old", id="an older format"),
        pytest.param({"member": Member("a", "uid-b")}, "same_member", id="our name"),
        pytest.param({"member": Member("b", "uid-a")}, "same_member", id="a copy of our data folder"),
    ],
)
@virtual
async def test_whoever_cannot_follow_is_told_why_and_what_to_do(offer: dict[str, object], code: str) -> None:
    active = await leading()
    proper = {"member": B, "cluster_id": CLUSTER, "position": 10, "ends": ((1, 10),)}
    with pytest.raises(StokerError) as fault:
        active.replication.feed(Offer(**{**proper, **offer}))  # type: ignore[arg-type]  # by field
    assert fault.value.refusal.code == code
    assert fault.value.refusal.hint


@virtual
async def test_a_newer_follower_may_follow() -> None:
    """So that the standby can be brought to a newer version first."""
    active = await leading()
    active.replication.feed(Offer(member=B, cluster_id=CLUSTER, position=Position(0), ends=(), format=FORMAT + 1))


@virtual
async def test_there_is_a_bound_on_followers_and_those_who_are_gone_make_room() -> None:
    active = await leading()
    hands = [Hand(active, Member(f"n{at}", f"u{at}")) for at in range(FOLLOWERS_MAX)]
    await until(lambda: len(active.caught_up) == FOLLOWERS_MAX)
    with pytest.raises(StokerError) as fault:
        Hand(active)
    assert fault.value.refusal.code == "too_many_followers"
    marker_says(active, *active.caught_up)
    await hands[3].hang_up()
    await until(lambda: active.fell_behind == [Member("n3", "u3")])
    marker_says(active, *(member for member in active.caught_up if member != Member("n3", "u3")))
    Hand(active)


# --- what is shown --------------------------------------------------------------------------------------------------


@virtual
async def test_lags_and_metrics_show_how_far_each_follower_is_behind() -> None:
    active = await leading()
    b = await _member(active)
    writing = asyncio.create_task(active.write(7))
    await active.clock.sleep(1.2)
    (lag,) = active.replication.lags()
    assert (lag.member, lag.in_sync, lag.records) == (B, True, 7)
    assert 1.0 < lag.seconds < 1.3
    assert active.notes.gauges["replication_lag_records"] == 7
    assert 0.4 < active.notes.gauges["replication_lag_s"] < 1.3
    await b.takes(17)
    await writing
    (lag,) = active.replication.lags()
    assert (lag.records, lag.seconds) == (0, 0.0)
    assert active.notes.counts["replication_observed"] >= 1
