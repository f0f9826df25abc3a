"""A node that works, a job from submit to end, and a death: what the tests of the history begin with."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stoker.brain.domain.ids import JobId
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import PolicySettings
from tests.control.stage import Player, Stage
from tests.rig.sim_history import SimArchive

FORGETFUL = ControlSettings(policy=PolicySettings(ended_jobs_max=1))
FULL = "no space left on device"


@asynccontextmanager
async def worker(s: Stage) -> AsyncIterator[Player]:
    """A node with one GPU that stays in touch."""
    player = await s.join("n1", 1)
    beating = asyncio.ensure_future(player.keep_beating())
    try:
        yield player
    finally:
        beating.cancel()


async def run_one(s: Stage, player: Player, seconds: float = 10.0, **fields: object) -> JobId:
    """A job from its submit to its end."""
    already = len(player.starts)
    job = await s.submit(**fields)
    start = await player.next_start(already + 1)
    await player.say_started(start.key)
    await s.pause(seconds)
    await player.end(start.key)
    return job


async def crash(s: Stage) -> None:
    """No snapshot on the way out. What had become durable a second ago was written."""
    await s.pause()
    s.control.snapshots._saved = s.state.position


def archive_of(s: Stage) -> SimArchive:
    return s.disk.archive
