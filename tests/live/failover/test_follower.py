"""What a standby does with what it is sent: rules T1 to T6 of `live.failover.follower`."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.failover.inputs import ControlRole, PeerState
from stoker.brain.failover.timing import DEFAULT
from stoker.live.failover.follower import SIGNS_MAX, LogReplaced
from stoker.live.failover.links import BackupPiece, Following, Frame, Offer, PeerDown, PeerRefused, Records, Welcome
from stoker.ports import LogFailed, Stored
from tests.control.stage import virtual
from tests.live.failover.pair import CLUSTER, A, Active, B, Cable, Standby, disk_of, ended, records, until
from tests.rig.sim_disk import SimDisk
from tests.rig.sim_ports import SimClock


def welcome(epoch: int = 2, position: int = 10, *, backup_follows: bool = False) -> Welcome:
    return Welcome(leader=A, epoch=Epoch(epoch), position=Position(position), backup_follows=backup_follows)


def rows(position: int, count: int, *, leader: int = 2, epoch: int = 2, acknowledged: int = 0) -> Records:
    return Records(
        leader_epoch=Epoch(leader),
        epoch=Epoch(epoch),
        position=Position(position),
        records=records(position + 1, position + count),
        acknowledged=Position(acknowledged),
    )


class Script:
    """An active that says what stands in a script, and then nothing more."""

    def __init__(self, *frames: Frame) -> None:
        self.address = "host-a:9090"
        self._frames = frames
        self.offers: list[Offer] = []
        self.confirmed: list[int] = []

    async def ping(self, me: PeerState) -> PeerState:
        raise PeerDown("it isn't asked here")

    @asynccontextmanager
    async def follow(self, offer: Offer) -> AsyncIterator[Following]:
        self.offers.append(offer)
        yield self

    async def frames(self) -> AsyncIterator[Frame]:
        for frame in self._frames:
            yield frame
        await asyncio.Event().wait()

    async def confirm(self, position: Position) -> None:
        self.confirmed.append(position)

    async def close(self) -> None:
        """Nothing is open."""


async def follow(standby: Standby, script: Script, for_s: float = 1.0) -> BaseException | None:
    """What it ended with, within that time; None = it went on."""
    if standby.disk.holder is not standby.log:
        await standby.log.open()
    following = asyncio.create_task(
        standby.follower.follow(script, standby.heard.append, cluster_id=standby.cluster_id)
    )
    await asyncio.wait((following,), timeout=for_s)
    if following.done():
        return following.exception()
    await ended(following)
    return None


# --- taking (T1, T2, T3) --------------------------------------------------------------------------------------------


@virtual
async def test_what_comes_is_on_disk_then_in_the_state_and_then_confirmed() -> None:
    standby = Standby(B, disk_of((1, 10)))
    script = Script(welcome(), rows(10, 3, epoch=1), rows(13, 2))
    assert await follow(standby, script) is None
    assert standby.disk.records == records(1, 15)
    assert standby.disk.epochs[10:] == [1, 1, 1, 2, 2]
    assert standby.replayed == [
        Stored(Position(at), Epoch(1 if at <= 13 else 2), record) for at, record in enumerate(records(11, 15), 11)
    ]
    assert script.confirmed[-1] == 15


@virtual
async def test_nothing_is_confirmed_that_the_disk_does_not_have() -> None:
    standby = Standby(B, disk_of((1, 10)))
    standby.disk.stall_s = 0.5
    script = Script(welcome(), rows(10, 3))
    assert await follow(standby, script, for_s=0.4) is None
    assert script.confirmed == []


@virtual
async def test_a_disk_that_cannot_be_written_ends_it_and_nothing_is_replayed() -> None:
    standby = Standby(B, disk_of((1, 10)))
    standby.disk.full = True
    script = Script(welcome(), rows(10, 3))
    assert isinstance(await follow(standby, script), LogFailed)
    assert (standby.replayed, script.confirmed) == ([], [])


@virtual
async def test_it_says_what_it_holds() -> None:
    standby = Standby(B, disk_of((1, 10), (2, 15)))
    script = Script()
    await follow(standby, script)
    (offer,) = script.offers
    assert (offer.member, offer.cluster_id, offer.position) == (B, CLUSTER, 15)
    assert offer.ends == ((2, 15), (1, 10))
    assert not offer.wants_backup


@virtual
async def test_frames_that_wait_are_taken_together() -> None:
    """T2"""
    active, standby = Active(disk_of((1, 10))), Standby(B, disk_of((1, 10)))
    await active.lead(2)
    standby.disk.stall_s = 0.2
    writes: list[int] = []
    standby.disk.on_write = lambda batch: writes.append(len(batch))
    following = standby.begin(Cable(active))
    await until(lambda: active.caught_up == [B])
    active.replication.ship(Epoch(2), Position(10), records(11, 11))
    await active.clock.sleep(0.05)
    for at in range(11, 60):
        active.replication.ship(Epoch(2), Position(at), records(at + 1, at + 1))
    await until(lambda: standby.disk.end == 60)
    assert writes == [1, 49]
    following.cancel()


@virtual
async def test_a_quiet_active_is_answered_so_that_it_knows_that_we_live() -> None:
    standby = Standby(B, disk_of((1, 10)))
    script = Script(welcome(), rows(10, 0))
    await follow(standby, script)
    assert script.confirmed == [10]


@virtual
async def test_what_was_begun_is_ended_when_it_is_told_to_stop() -> None:
    """T3: the log and the state are one when it has stopped, so that we may lead."""
    standby = Standby(B, disk_of((1, 10)))
    standby.disk.stall_s = 0.5
    assert await follow(standby, Script(welcome(), rows(10, 700)), for_s=0.2) is None
    assert standby.disk.end == 710
    assert [row.position for row in standby.replayed] == list(range(11, 711))


@virtual
async def test_who_leads_under_an_epoch_that_is_over_is_refused_and_nothing_is_taken_from_it() -> None:
    """T1"""
    standby = Standby(B, disk_of((1, 10), (3, 12)))
    assert isinstance(await follow(standby, Script(welcome(epoch=2))), PeerRefused)
    assert (standby.disk.end, standby.heard) == (12, [])


@virtual
async def test_who_leads_under_an_epoch_below_what_was_promised_is_refused() -> None:
    """T1: we may be about to lead."""
    standby = Standby(B, disk_of((1, 10)))
    await standby.log.open()
    await standby.log.promise(Epoch(3))
    assert isinstance(await follow(standby, Script(welcome(epoch=2), rows(10, 3))), PeerRefused)
    assert standby.disk.end == 10


@virtual
async def test_a_promise_that_is_made_while_it_follows_ends_it() -> None:
    standby = Standby(B, disk_of((1, 10)))
    active = Active(disk_of((1, 10)))
    await active.lead(2)
    await standby.log.open()
    following = asyncio.create_task(standby.follower.follow(Cable(active), standby.heard.append, cluster_id=CLUSTER))
    await until(lambda: active.caught_up == [B])
    await standby.log.promise(Epoch(3))
    active.replication.ship(Epoch(2), Position(10), records(11, 11))
    with pytest.raises(PeerRefused):
        await following
    assert standby.disk.end == 10


@virtual
async def test_once_another_has_led_the_old_one_is_refused_although_it_was_good_before() -> None:
    """T1: what was seen counts, also before a record of the new epoch is in our log."""
    standby = Standby(B, disk_of((1, 10)))
    await follow(standby, Script(welcome(epoch=5)))
    assert isinstance(await follow(standby, Script(welcome(epoch=4))), PeerRefused)


@virtual
async def test_records_of_epochs_before_a_promise_are_taken_from_who_leads_after_it() -> None:
    """It was promised for a take-over that another won: that one's log holds older records that ours lacks."""
    standby = Standby(B, disk_of((1, 10)))
    await standby.log.open()
    await standby.log.promise(Epoch(3))
    assert (
        await follow(standby, Script(welcome(epoch=3), rows(10, 2, leader=3, epoch=2), rows(12, 2, leader=3, epoch=3)))
        is None
    )
    assert standby.disk.epochs[10:] == [2, 2, 3, 3]


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param((rows(10, 1),), id="no welcome"),
        pytest.param((welcome(), welcome()), id="two welcomes"),
        pytest.param((welcome(), rows(11, 2)), id="a gap"),
        pytest.param((welcome(), rows(9, 2)), id="a repeat"),
        pytest.param((welcome(), rows(10, 2), rows(11, 2)), id="an overlap"),
        pytest.param((welcome(), BackupPiece(b"x")), id="a backup that wasn't announced"),
        pytest.param((welcome(position=11),), id="more than we have"),
        pytest.param((welcome(backup_follows=True), rows(10, 2)), id="records in a backup"),
    ],
)
@virtual
async def test_an_active_that_does_not_keep_to_the_order_is_left(frames: Sequence[Frame]) -> None:
    standby = Standby(B, disk_of((1, 10)))
    assert isinstance(await follow(standby, Script(*frames)), PeerDown)
    assert standby.disk.records[:10] == records(1, 10)
    assert standby.disk.records == records(1, standby.disk.end)


@virtual
async def test_records_of_an_epoch_before_our_newest_make_it_begin_anew_from_disk() -> None:
    standby = Standby(B, disk_of((2, 10)))
    assert isinstance(await follow(standby, Script(welcome(), rows(10, 1, epoch=1))), LogReplaced)
    assert (standby.disk.end, standby.replayed) == (10, [])


# --- who speaks (T6) ------------------------------------------------------------------------------------------------


@virtual
async def test_whatever_the_active_says_is_told_to_who_watches_it() -> None:
    standby = Standby(B, disk_of((1, 10)))
    await follow(standby, Script(welcome(), rows(10, 2)))
    assert standby.heard[0] == PeerState(member=A, role=ControlRole.ACTIVE, epoch=Epoch(2), position=Position(10))
    assert standby.heard[-1] == PeerState(member=A, role=ControlRole.ACTIVE, epoch=Epoch(2), position=Position(12))


@virtual
async def test_an_active_that_says_nothing_is_given_up() -> None:
    standby = Standby(B, disk_of((1, 10)))
    patience_s = SIGNS_MAX * DEFAULT.look_s
    assert await follow(standby, Script(welcome()), for_s=patience_s - 0.1) is None
    assert isinstance(await follow(standby, Script(welcome()), for_s=patience_s + 0.1), PeerDown)


@virtual
async def test_a_broken_stream_is_told() -> None:
    active = Active(disk_of((1, 10)))
    await active.lead(2)
    standby, cable = Standby(B, disk_of((1, 10))), Cable(active)
    await standby.log.open()
    following = asyncio.create_task(standby.follower.follow(cable, standby.heard.append, cluster_id=CLUSTER))
    await until(lambda: active.caught_up == [B])
    await cable.cut()
    with pytest.raises(PeerDown):
        await following


# --- how old what we show is ----------------------------------------------------------------------------------------


@virtual
async def test_the_lag_grows_while_we_lack_what_was_acknowledged_or_hear_nothing() -> None:
    standby, clock = Standby(B, disk_of((1, 10))), SimClock()
    await follow(standby, Script(welcome(), rows(10, 2, acknowledged=12)), for_s=0.1)
    assert standby.follower.lag_s < 0.2
    await clock.sleep(3.0)
    assert 3.0 < standby.follower.lag_s < 3.2
    await follow(standby, Script(welcome(position=12), rows(12, 2, acknowledged=20)), for_s=0.1)
    assert standby.follower.lag_s > 3.0


# --- both together --------------------------------------------------------------------------------------------------


@virtual
async def test_a_follower_that_is_cut_off_again_and_again_ends_up_with_the_actives_log() -> None:
    active, disk = Active(disk_of((1, 10))), SimDisk()
    await active.lead(2)
    standby, cable = Standby(B, disk), Cable(active)
    following = standby.begin(cable)
    for at in range(60):
        writing = asyncio.create_task(active.write(at % 7 + 1))
        await active.clock.sleep(active.entropy.jitter(0, 0.02))
        if at % 3 == 0:
            await cable.cut()
        if B in active.caught_up:
            active.replication.in_sync_changed((A, B))
            active.caught_up.clear()
        await until(writing.done)
        assert disk.end >= active.replication.acknowledged or active.replication.lags()[0].in_sync is False
    await until(lambda: disk.end == active.disk.end)
    assert (disk.records, disk.epochs) == (active.disk.records, active.disk.epochs)
    assert [row.record for row in standby.replayed] == active.disk.records
    following.cancel()
