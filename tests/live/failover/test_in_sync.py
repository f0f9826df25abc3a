"""How a follower gets into the set and out of it: rules C2 to C4 of `live.failover.replication`."""

import asyncio

from stoker.brain.failover.timing import DEFAULT
from stoker.live.failover.replication import NEAR_RECORDS, REST
from tests.control.stage import virtual
from tests.live.failover.hand import Hand, a_member, leading, marker_says
from tests.live.failover.pair import B, Cable, Standby, disk_of, until

PATIENCE_S = DEFAULT.standby_timeout_s
TICK_S = DEFAULT.look_s


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
    began = active.clock.mono()
    await active.write()
    assert active.clock.mono() - began < 0.1
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
    b = await a_member(active)
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
    b = await a_member(active)
    writing = asyncio.create_task(active.write())
    await until(lambda: active.fell_behind == [B])
    await b.takes(11)
    await writing


@virtual
async def test_a_stream_that_breaks_and_comes_back_in_time_is_no_matter() -> None:
    active = await leading()
    b = await a_member(active)
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
    b = await a_member(active)
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
    b = await a_member(active)
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
    b = await a_member(active)
    writing = asyncio.create_task(active.write(5))
    await b.takes(15)
    await writing
    await b.hang_up()
    again = Hand(active, position=10)
    await until(lambda: again.sent == 15)
    assert active.replication.lags()[0].records == 5
    writing = asyncio.create_task(active.write())
    await active.clock.sleep(0.1)
    again.say(15)
    assert not writing.done()
    await again.takes(16)
    await writing


@virtual
async def test_the_newest_stream_of_a_member_is_the_one_that_counts() -> None:
    active = await leading()
    old = await a_member(active)
    new = Hand(active)
    writing = asyncio.create_task(active.write())
    await until(lambda: new.sent == 11)
    assert old.sender.closed
    old.say(11)
    await active.clock.sleep(0.1)
    assert not writing.done()
    new.say(11)
    await writing
