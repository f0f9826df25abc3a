"""What becomes of a log that isn't the active's: rules T4 and T5 of `live.failover.follower`."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import Epoch, Position
from stoker.live.failover.follower import LogReplaced
from stoker.live.failover.links import PeerRefused
from stoker.ports import ReceivedBackup
from tests.control.stage import virtual
from tests.live.failover.pair import CLUSTER, Active, B, Cable, Standby, disk_of, ended, records, until
from tests.rig.sim_disk import Content
from tests.rig.sim_history import SimArchive
from tests.rig.sim_log import INCOMING


@virtual
async def test_a_tail_that_the_active_does_not_have_is_cut_off_kept_aside_and_told() -> None:
    active = Active(disk_of((1, 10), (3, 12)))
    await active.lead(3)
    standby = Standby(B, disk_of((1, 10), (2, 14)))
    await standby.log.open()
    with pytest.raises(LogReplaced):
        await standby.follower.follow(Cable(active), standby.heard.append, cluster_id=CLUSTER)
    assert (standby.disk.end, standby.disk.tails[0].records) == (10, tuple(records(11, 14)))
    (line,) = [line for line in standby.notes.lines if "tail_set_aside" in line]
    assert "position=10" in line
    assert "records=4" in line
    assert "path=tail-2-11-14" in line


@virtual
async def test_a_log_that_was_cut_follows_in_the_next_tenure() -> None:
    active = Active(disk_of((1, 10), (3, 12)))
    await active.lead(3)
    first = Standby(B, disk_of((1, 10), (2, 14)))
    await first.log.open()
    with pytest.raises(LogReplaced):
        await first.follower.follow(Cable(active), first.heard.append, cluster_id=CLUSTER)
    second = Standby(B, first.disk)
    following = second.begin(Cable(active))
    await until(lambda: active.caught_up == [B])
    assert second.disk.epochs == active.disk.epochs
    following.cancel()


@virtual
async def test_a_tail_that_cannot_be_cut_off_is_replaced_by_a_backup() -> None:
    active = Active(disk_of((1, 10), (3, 12)))
    await active.lead(3)
    standby = Standby(B, disk_of((1, 10), (2, 14), first=11))
    standby.coming = _comes(standby)
    cable = Cable(active)
    assert isinstance(await ended(await _ended_by_itself(standby, cable)), LogReplaced)
    assert [offer.wants_backup for offer in cable.offers] == [False, True]
    assert standby.received == [b"a backup"]


@virtual
async def test_a_backup_is_put_in_place_of_the_log_which_is_kept() -> None:
    active = Active(disk_of((1, 10), (3, 60), first=40))
    await active.lead(3)
    standby = Standby(B, disk_of((1, 5)))
    standby.coming = _comes(standby)
    assert isinstance(await ended(await _ended_by_itself(standby, Cable(active))), LogReplaced)
    again = Standby(B, standby.disk)
    following = again.begin(Cable(active))
    await until(lambda: again.disk.end == 60)
    assert again.disk.first == 51
    assert len(again.disk.replaced) == 1
    following.cancel()


@virtual
async def test_a_backup_of_no_use_changes_nothing_and_is_told() -> None:
    active = Active(disk_of((1, 10), (3, 60), first=40))
    await active.lead(3)
    standby = Standby(B, disk_of((1, 5)))

    async def is_damaged(pieces: list[bytes]) -> ReceivedBackup:
        raise StokerError(refuse("backup_damaged", "the backup can't be trusted", "take another"))

    standby.coming = is_damaged
    await standby.log.open()
    with pytest.raises(PeerRefused, match="can't be trusted"):
        await standby.follower.follow(Cable(active), standby.heard.append, cluster_id=CLUSTER)
    assert standby.disk.records == records(1, 5)


async def _ended_by_itself(standby: Standby, cable: Cable) -> "asyncio.Task[None]":
    following = standby.begin(cable)
    await asyncio.wait((following,), timeout=60)
    assert following.done()
    return following


def _comes(standby: Standby) -> Callable[[list[bytes]], Coroutine[Any, Any, ReceivedBackup]]:
    """A backup of what the active had at record 50."""

    async def come(pieces: list[bytes]) -> ReceivedBackup:
        standby.disk.incoming = Content((Epoch(3), Position(50)), (), (), (), SimArchive())
        return ReceivedBackup(Epoch(3), Position(50), INCOMING)

    return come
