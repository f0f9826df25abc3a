"""Where there are no cgroups, no job hides behind another user's (rule K2 of `agent/runner/process/tree.py`)."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from stoker.brain.domain.instruction import TaskKey
from tests.contracts.runner import Listener, agent_on, key
from tests.real.runner_node import RealNode, node_in
from tests.real.unix_users import Users, made_users, needs_root

pytestmark = needs_root
LEAVES_A_CHILD = """
import os, sys
execed, until_exec = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        null = os.open("/dev/null", os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        os.execve("/bin/sleep", ["sleep", sys.argv[1]], {})
    os._exit(0)
os.wait()
os.close(until_exec)
os.read(execed, 1)
"""
"""In a session of its own, without the marks of its task in its environment, and with other output."""


@pytest.fixture(scope="module")
def users() -> Iterator[Users]:
    with made_users() as users:
        yield users


@pytest.fixture
async def node(users: Users) -> AsyncIterator[RealNode]:
    folder = Path(tempfile.mkdtemp(dir=users.folder))
    folder.chmod(0o711)
    async with node_in(folder, tree="scan") as node:
        node.allow_root = False
        yield node


@pytest.fixture
async def agent(node: RealNode) -> AsyncIterator[Listener]:
    async with agent_on(node) as agent:
        yield agent


def sleepers(seconds: str) -> list[str]:
    """Pids of those who sleep so long."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:  # it has ended
            continue
        if words.split(b"\0")[:2] == [b"sleep", seconds.encode()]:
            found.append(entry.name)
    return found


async def end_of_one_that_leaves_a_child(node: RealNode, agent: Listener, user: str, task: TaskKey) -> list[str]:
    """What of it lives when it has ended."""
    seconds = f"300.{node.mark.partition('-')[0]}{task.job}"
    leaving = node.command(task, ("python3", "-c", LEAVES_A_CHILD, seconds), {}, user=user)
    await agent.runner.start(leaving)
    end = await agent.end(task)
    assert end.clean, end.error
    return sleepers(seconds)


async def test_a_job_does_not_outlive_its_end_behind_the_job_of_another_user(
    users: Users, node: RealNode, agent: Listener
) -> None:
    """It would hold up the end of that one, too, which is then the last of those that lived at its birth."""
    await agent.runner.start(node.shell(key(1), "exec sleep 300", user=users.ann))
    await agent.running(key(1))
    assert await end_of_one_that_leaves_a_child(node, agent, users.bob, key(2)) == []
    assert agent.overs(key(1)) == []


async def test_what_a_root_job_left_under_another_account_still_falls_to_it(node: RealNode) -> None:
    """Only root can become others: `su` in a job that runs as root, where the node allows that."""
    node.allow_root = True
    async with agent_on(node) as trusting:
        seconds = f"300.{node.mark.partition('-')[0]}9"
        line = LEAVES_A_CHILD.replace("os.execve", "os.setuid(65534); os.execve")
        await trusting.runner.start(node.command(key(9), ("python3", "-c", line, seconds), {}))
        assert (await trusting.end(key(9))).clean
        assert sleepers(seconds) == []
