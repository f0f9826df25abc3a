"""The control plane is killed at every point of every commit of one story, and nothing of it is lost or done twice.

Seeds meet these points by chance; here each of them is met, one run for each.
"""

import asyncio

import pytest

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import JobSpec
from tests.rig.cluster import Cluster
from tests.rig.faults import killed_when
from tests.rig.people import cancel, release_all, submit
from tests.rig.run import watched
from tests.rig.sim_log import CommitPoint, Trap
from tests.rig.virtual_loop import run_virtual

COMMITS_MIN = 12
"""A story of fewer commits would show little."""


def spec(command: str, *, tasks: int = 1, retries: int = 0) -> JobSpec:
    demand = Demand(gpu_count=1, tasks=tasks)
    return JobSpec(
        name="story", demand=demand, command=command, priority=500, time_limit_ms=60_000, retries_max=retries
    )


async def _story(cluster: Cluster) -> None:
    """A job that succeeds, one that fails once more, a gang that meets at a port, and one that is cancelled."""
    await cluster.clock.sleep(1)
    for job in (spec("1 0"), spec("0.2 3", retries=1), spec("1 0 linger", tasks=2), spec("50 0 trap")):
        cluster.ask(submit(cluster, job))
        await cluster.clock.sleep(0.2)
    await cluster.clock.sleep(2)
    cluster.ask(cancel(cluster, JobId(4), 2))
    await cluster.clock.sleep(6)


def _dies(point: CommitPoint, nth: int) -> bool:
    """Tell the story up to a death at the `nth` pass of that point. False when the story has fewer."""

    async def tell() -> bool:
        cluster = Cluster(seed=nth, nodes=2)
        try:
            with watched(cluster):
                await cluster.start()
                told = asyncio.ensure_future(_story(cluster))
                died = await killed_when(cluster, Trap(point, nth), within_s=35.0)
                await told
                cluster.look()
                await cluster.peace(release_all)
                await cluster.reckon()
            return died
        finally:
            await cluster.close()

    return run_virtual(tell)


@pytest.mark.parametrize("point", [CommitPoint.BEFORE_WRITE, CommitPoint.BEFORE_ANSWER, CommitPoint.BETWEEN_BATCHES])
def test_a_death_at_any_commit_loses_nothing_and_does_nothing_twice(point: CommitPoint) -> None:
    nth = 1
    while _dies(point, nth):
        nth += 1
    assert nth > COMMITS_MIN


@pytest.mark.parametrize("point", [CommitPoint.IN_SNAPSHOT, CommitPoint.BEFORE_TRIM])
def test_a_death_while_a_snapshot_is_saved_loses_nothing(point: CommitPoint) -> None:
    assert _dies(point, 1)
