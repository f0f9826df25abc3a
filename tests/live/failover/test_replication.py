"""For whom acknowledgements wait, and who may follow: rules C1, C5 and C6 of `live.failover.replication`."""

import asyncio
import json

import pytest

from stoker.brain.domain.access import OWNER
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import Member
from stoker.brain.domain.units import Instant
from stoker.brain.state.codec import Fact, encode_fact
from stoker.brain.state.events.leadership import EpochBegan
from stoker.control.control_ports import NotActive
from stoker.live.failover.links import FORMAT, Offer
from stoker.live.failover.replication import FOLLOWERS_MAX
from tests.control.stage import virtual
from tests.live.failover.hand import Hand, a_member, leading, marker_says
from tests.live.failover.pair import CLUSTER, A, Active, B, C, disk_of, until

# --- waiting (C1) ---------------------------------------------------------------------------------------------------


@virtual
async def test_without_followers_an_acknowledgement_waits_for_nobody() -> None:
    active = await leading()
    assert await active.write() == 11
    assert active.replication.acknowledged == 11


@virtual
async def test_an_acknowledgement_waits_for_everya_member() -> None:
    active = await leading()
    b, c = await a_member(active, B), await a_member(active, C)
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
    b = await a_member(active)
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
    b = await a_member(active)
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


# --- the lease (C5) -------------------------------------------------------------------------------------------------


@virtual
async def test_nothing_is_kept_once_the_lease_is_over() -> None:
    active = await leading()
    await a_member(active)
    writing = asyncio.create_task(active.write())
    await active.clock.sleep(0.1)
    active.holds = False
    with pytest.raises(NotActive):
        await writing
    with pytest.raises(NotActive):
        active.replication.check_lease()


@virtual
async def test_whoever_waits_is_told_at_once_when_it_is_over() -> None:
    active = await leading()
    b = await a_member(active)
    writing = asyncio.create_task(active.write())
    await until(lambda: b.sent == 11)
    assert active.running is not None
    active.running.cancel()
    with pytest.raises(NotActive):
        await writing
    assert b.sender.closed


@virtual
async def test_before_it_leads_nothing_is_kept_and_nobody_fed() -> None:
    active = Active()
    with pytest.raises(NotActive):
        active.replication.check_lease()
    with pytest.raises(StokerError) as fault:
        Hand(active)
    assert fault.value.refusal.code == "not_active"


# --- async (C6) -----------------------------------------------------------------------------------------------------


@virtual
async def test_in_async_mode_nobody_is_waited_for_and_the_set_follows_who_is_near() -> None:
    active = await leading(sync=False)
    b = await a_member(active)
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
        active.replication.accept(Offer(**{**proper, **offer}))  # type: ignore[arg-type]  # by field
    assert fault.value.refusal.code == code
    assert fault.value.refusal.hint


def test_the_format_that_peers_compare_is_the_one_that_stands_in_each_record() -> None:
    """So that whoever adds an event, and raises that one, has a follower that can't read it refused by name."""
    fact = Fact(at=Instant(0), by=OWNER.principal, event=EpochBegan(epoch=Epoch(1)))
    assert json.loads(encode_fact(fact))["v"] == Offer(member=B, cluster_id="", position=Position(0), ends=()).format


@virtual
async def test_a_newer_follower_may_follow() -> None:
    """So that the standby can be brought to a newer version first."""
    active = await leading()
    active.replication.accept(Offer(member=B, cluster_id=CLUSTER, position=Position(0), ends=(), format=FORMAT + 1))


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


@virtual
async def test_what_the_marker_says_before_it_leads_is_only_that_it_is_alone() -> None:
    active = Active(disk_of((1, 10)))
    active.replication.in_sync_changed((A,))
    await active.lead(2)
    assert await active.write() == 11


# --- what is shown --------------------------------------------------------------------------------------------------


@virtual
async def test_lags_and_metrics_show_how_far_each_follower_is_behind() -> None:
    active = await leading()
    b = await a_member(active)
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


@virtual
async def test_a_follower_with_a_new_data_folder_is_the_one_that_is_shown_under_its_name() -> None:
    active = await leading()
    b = await a_member(active)
    await b.hang_up()
    await until(lambda: active.fell_behind == [B])
    marker_says(active)
    await active.write(5)
    Hand(active, Member("b", "uid-new"), position=10)
    await active.clock.sleep(1.0)
    assert [(lag.member.uid, lag.records) for lag in active.replication.lags()] == [("uid-new", 5)]
