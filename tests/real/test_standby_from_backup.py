"""A standby whose log can't be met gets the active's state and history as a backup, and follows from there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from stoker.adapters.clock import SystemClock
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.sqlite.event_log import SqliteLog
from stoker.adapters.sqlite.history import SqliteHistory
from stoker.adapters.sqlite.incoming_folder import IncomingFolder
from stoker.brain.domain.array import JobRef
from stoker.brain.domain.ids import Epoch, JobId
from stoker.brain.failover.inputs import CaughtUp
from stoker.brain.failover.timing import FAST
from stoker.brain.state.codec import snapshot_chunks
from stoker.brain.state.commands import Cancel, Submit
from stoker.control.backup import Backups, receive_backup
from stoker.control.control_plane import active
from stoker.control.control_ports import ControlPorts, Replicas
from stoker.live.control_plane import LiveControlPlane, recover_control
from stoker.live.failover.follower import Follower, LogReplaced
from stoker.live.failover.links import PeerRefused
from stoker.live.failover.replication import Replication
from stoker.live.settings.control import ControlSettings
from stoker.ports import ReceivedBackup
from tests.control.stage import ANNA, spec
from tests.live.failover.pair import A, B, Cable
from tests.rig.sim_ports import Notes, SimClock

LOOK_BACK = 5


def control_ports() -> ControlPorts:
    return ControlPorts(clock=SystemClock(), entropy=SystemEntropy(), telemetry=Notes(SimClock(), "peer"))


@dataclass
class Leader:
    """An active, as one of a pair and as `Cable` wants it."""

    replication: Replication
    control: LiveControlPlane | None = None

    @property
    def replicas(self) -> Replicas:
        return self.replication

    @property
    def parts(self) -> LiveControlPlane:
        assert self.control is not None, "it was begun"
        return self.control

    async def work(self) -> None:
        """Jobs that wait, jobs that ended, and a snapshot, so that the log forgets what was before the last one."""
        committer = self.parts.committer
        for job in range(20):
            await committer.ask(Submit(by=ANNA, specs=(spec(),)))
            if job % 2:
                await committer.ask(Cancel(by=ANNA, target=JobRef(max(committer.state.jobs))))
        await self.parts.snapshots.save()


@asynccontextmanager
async def leading(folder: Path) -> AsyncIterator[Leader]:
    around = control_ports()
    log, history = SqliteLog(folder, look_back_max=LOOK_BACK), SqliteHistory(folder)
    end = await log.open()
    leader = Leader(Replication(log, around, timing=FAST, sync=True, holds=lambda: True))
    replication = leader.replication
    control = leader.control = await recover_control(
        ControlSettings(),
        log,
        history,
        around,
        pair=leader,  # type: ignore[arg-type]  # it is never asked how it stands
    )
    state = control.committer.state
    replication.lead(A, Epoch(1), end, Backups(control), cluster_id=lambda: state.cluster_id)
    running = asyncio.create_task(replication.run())
    async with active(control):
        await leader.work()
        yield leader
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await history.close()
    await log.close()


class Standby:
    """One life of a standby on a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log, self.history = SqliteLog(folder), SqliteHistory(folder)
        self.control: LiveControlPlane | None = None

    async def follow(self, leader: Leader) -> BaseException | None:
        """What following ended with; None = it came into the set."""
        around = control_ports()
        await self.log.open()
        self.control = await recover_control(ControlSettings(), self.log, self.history, around)
        committer = self.control.committer
        committer.following = lambda: pytest.fail("nobody asks")
        follower = Follower(self.log, committer.replay, around, B, receive=self._receive)
        in_sync = asyncio.Event()
        leader.replication.tell = lambda told: in_sync.set() if isinstance(told, CaughtUp) else None
        cable = Cable(leader)  # type: ignore[arg-type]  # it asks no more of an active
        cluster_id = committer.state.cluster_id
        following = asyncio.create_task(follower.follow(cable, lambda said: None, cluster_id=cluster_id))
        came_in = asyncio.create_task(in_sync.wait())
        async with asyncio.timeout(20):
            await asyncio.wait((following, came_in), return_when=asyncio.FIRST_COMPLETED)
        how = following.exception() if following.done() else None
        for task in (following, came_in):
            task.cancel()
        await asyncio.gather(following, came_in, return_exceptions=True)
        leader.replication.in_sync_changed((A, B))
        leader.replication.in_sync_changed((A,))
        return how

    async def _receive(self, pieces: AsyncIterator[bytes]) -> ReceivedBackup:
        return await receive_backup(pieces, IncomingFolder(self.folder))

    async def close(self) -> None:
        await self.history.close()
        await self.log.close()


async def _are_one(leader: Leader, standby: Standby) -> None:
    assert standby.control is not None
    mine, theirs = leader.parts.committer.state, standby.control.committer.state
    assert b"".join(snapshot_chunks(theirs)) == b"".join(snapshot_chunks(mine))
    wanted = [JobId(job) for job in range(1, 61)]
    assert await standby.control.history.flush(theirs.position)
    ended = {job.id for job in await standby.history.jobs(wanted)}
    assert ended == {job.id for job in mine.jobs.values() if job.is_final}


async def _becomes_one_with(leader: Leader, folder: Path) -> None:
    first = Standby(folder)
    assert isinstance(await first.follow(leader), LogReplaced)
    await first.close()
    second = Standby(folder)
    assert await second.follow(leader) is None
    await _are_one(leader, second)
    await second.close()


async def test_an_empty_standby_of_a_log_that_begins_late_becomes_one_with_the_active(tmp_path: Path) -> None:
    async with leading(tmp_path / "a") as leader:
        for _ in range(2):
            await leader.work()
        await _becomes_one_with(leader, tmp_path / "b")


async def test_a_standby_that_was_away_for_too_long_becomes_one_with_the_active(tmp_path: Path) -> None:
    async with leading(tmp_path / "a") as leader:
        before = Standby(tmp_path / "b")
        assert await before.follow(leader) is None
        await _are_one(leader, before)
        await before.close()
        leader.replication.in_sync_changed((A,))
        for _ in range(2):
            await leader.work()
        await _becomes_one_with(leader, tmp_path / "b")
        (aside,) = (tmp_path / "b").glob("*replaced*")
        assert any(aside.iterdir())


async def test_what_a_standby_of_another_cluster_holds_is_left_alone(tmp_path: Path) -> None:
    async with leading(tmp_path / "other"):
        pass
    async with leading(tmp_path / "a") as leader:
        for _ in range(2):
            await leader.work()
        standby = Standby(tmp_path / "other")
        assert isinstance(await standby.follow(leader), PeerRefused)
        assert standby.control is not None
        assert len(standby.control.committer.state.jobs) == 20
        await standby.close()
