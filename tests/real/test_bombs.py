"""Jobs that fork or eat memory without end, beside other jobs, which suffer nothing: each is held in its own cgroup."""

import asyncio
import signal
from pathlib import Path

import msgspec
import pytest

from tests.contracts.runner import agent_on, key
from tests.real.runner_node import RealNode, cgroups_here, node_in, wait_until

pytestmark = pytest.mark.timeout(120)

PIDS_MAX = 40
FORKS = "import os, time\nwhile True:\n  try: os.fork()\n  except OSError: time.sleep(0.2)"
EATS = "held = []\nwhile True: held.append(bytearray(1 << 20))"
TREES = pytest.mark.parametrize("tree", ["v1", "v2"])


async def _others_work(node: RealNode, job: int) -> None:
    """A job that forks, writes and ends, while the bomb is there."""
    async with agent_on(node) as agent:
        await agent.runner.start(
            node.shell(key(job), f"for i in 1 2 3; do (echo $i >> {node.folder}/said); done; exit 7")
        )
        assert (await agent.end(key(job))).exit_code == 7


@TREES
async def test_a_fork_bomb_leaves_the_agent_the_runner_and_other_jobs_alone_and_is_ended_as_a_whole(
    tmp_path: Path, tree: str
) -> None:
    async with node_in(tmp_path, tree=tree) as node:
        node.every_start = {"pids_max": PIDS_MAX}
        async with agent_on(node) as agent:
            if any("pids controller" in note for note in agent.runner.notes):
                pytest.skip("no pids controller can be used here")
            await agent.runner.start(node.task(key(9), lasts_s=60))
            await agent.begun(node, key(9))
            runner = node.runner_pid
            await agent.runner.start(node.command(key(1), ["python3", "-c", FORKS], {}))
            wait_until(lambda: len(node.living(key(1))) == PIDS_MAX, "as many processes as it may have")
            await asyncio.sleep(1)
            assert len(node.living(key(1))) == PIDS_MAX
        await _others_work(node, 2)
        async with agent_on(node) as agent:
            await agent.runner.stop(key(1), 100)
            await agent.end(key(1))
            assert node.living(key(1)) == []
            assert (node.lives(key(9)), node.runner_pid) == (True, runner)


@TREES
async def test_a_memory_bomb_that_asked_for_no_memory_ends_alone(tmp_path: Path, tree: str) -> None:
    if not cgroups_here(tree)[1]:
        pytest.skip(f"no memory controller beside cgroups of {tree} can be used here")
    async with node_in(tmp_path, tree=tree) as node:
        async with agent_on(node) as agent:
            await agent.runner.start(node.task(key(9), lasts_s=60))
            await agent.begun(node, key(9))
            runner = node.runner_pid
            bomb = node.command(key(1), ["python3", "-c", EATS], {})
            await agent.runner.start(msgspec.structs.replace(bomb, memory_mb=64))
            end = await agent.end(key(1))
            assert (end.oom, end.signal) == (True, signal.SIGKILL)
            assert (node.lives(key(9)), node.runner_pid) == (True, runner)
        await _others_work(node, 2)
