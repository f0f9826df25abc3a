"""Nodes that come up oddly: with a wrong clock, or before their driver."""

import asyncio

import pytest

from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.lifecycle import JobState, NodeState
from stoker.brain.domain.report import Started, TaskEnd, TaskFinished
from stoker.brain.domain.units import Instant
from tests.control.stage import stage, virtual


@pytest.mark.parametrize("off_ms", [30_000, -30_000, 3_600_000, -3_600_000])
@virtual
async def test_a_node_whose_clock_is_off_is_as_near_as_any_other_and_its_job_ends_at_our_time(off_ms: int) -> None:
    """faults.md 123: one clock that was half a minute ahead made all others look silent."""
    async with stage() as s:
        wrong, right = await s.join("wrong", 2), await s.join("right", 1)
        beating = [asyncio.ensure_future(player.keep_beating()) for player in (wrong, right)]
        job = await s.submit(gpus=2)
        start = await wrong.next_start()
        began = s.control.clock.now()
        await wrong.stream.receive(Started(key=start.key, at=Instant(began + off_ms), pid=7))
        await s.pause(120)
        assert {s.state.node_state(NodeName(name)) for name in ("wrong", "right")} == {NodeState.READY}
        ended = s.control.clock.now()
        end = TaskEnd(cause=EndCause.EXITED, at=Instant(ended + off_ms), exit_code=0)
        await s.control.sessions.finished(TaskFinished(node=wrong.node, key=start.key, end=end))
        known = s.job(job)
        assert (known.state, known.started_at) == (JobState.SUCCEEDED, began)
        (task,) = known.attempts[0].tasks
        assert task.end is not None
        assert began <= task.end.at <= ended
        for each in beating:
            each.cancel()


@virtual
async def test_a_job_of_a_node_that_reboots_and_comes_up_without_gpus_first_is_tried_again_once_they_are_there() -> (
    None
):
    """faults.md 45: the node looked too small for good to what had run on it."""
    async with stage() as s:
        player = await s.join("n1", 4)
        job = await s.submit(gpus=4)
        start = await player.next_start()
        await player.say_started(start.key)
        player.leave()
        await s.pause(3)
        without = await s.join("n1", 0)
        await s.pause(120)
        assert s.job(job).state is JobState.PENDING
        assert without.starts == []
        without.leave()
        again = await (await s.join("n1", 4)).next_start()
        assert (again.key.job, again.key.attempt, again.gpus) == (job, 2, start.gpus)
