"""Output of jobs: nothing lost that should be kept, and no job's output in the way of another.

Concerns faults.md family 12.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contracts.runner import Listener, agent_on, key
from tests.real.runner_node import RealNode, node_in

HEAD_BYTES = 1_000
TAIL_BYTES = 1_000


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[RealNode]:
    async with node_in(tmp_path, head_bytes_max=HEAD_BYTES, tail_bytes_max=TAIL_BYTES) as node:
        yield node


@pytest.fixture
async def agent(node: RealNode) -> AsyncIterator[Listener]:
    async with agent_on(node) as agent:
        yield agent


async def output(node: RealNode, agent: Listener, line: str) -> bytes:
    await agent.runner.start(node.shell(key(1), line))
    await agent.end(key(1))
    return (await agent.runner.read_log(key(1), 0, 1 << 20)).data


async def test_output_and_errors_keep_their_order(node: RealNode, agent: Listener) -> None:
    assert await output(node, agent, "for i in 1 2 3; do echo o$i; echo e$i >&2; done") == b"o1\ne1\no2\ne2\no3\ne3\n"


async def test_bytes_that_are_no_text_are_kept_as_they_are(node: RealNode, agent: Listener) -> None:
    assert await output(node, agent, r"printf '\377\376\000\303(\n'") == b"\xff\xfe\0\xc3(\n"


async def test_of_long_output_the_head_and_the_tail_are_kept_and_the_last_line_is_there(
    node: RealNode, agent: Listener
) -> None:
    """Faults 115 and 117: the traceback is at the end."""
    await agent.runner.start(node.shell(key(1), "echo first; seq 1 20000; echo Traceback: the last line"))
    await agent.end(key(1))
    whole = b"first\n" + b"".join(b"%d\n" % n for n in range(1, 20_001)) + b"Traceback: the last line\n"
    head = await agent.runner.read_log(key(1), 0, 1 << 20)
    assert (head.offset, head.data, head.size, head.ended) == (0, whole[:HEAD_BYTES], len(whole), True)
    tail = await agent.runner.read_log(key(1), -TAIL_BYTES, 1 << 20)
    assert (tail.offset, tail.data) == (len(whole) - TAIL_BYTES, whole[-TAIL_BYTES:])
    after_gap = await agent.runner.read_log(key(1), HEAD_BYTES, 1 << 20)
    assert after_gap.offset > HEAD_BYTES, "it says what was dropped"
    assert after_gap.data == whole[after_gap.offset :]
    assert len(after_gap.data) <= 2 * TAIL_BYTES


async def test_a_cancelled_job_keeps_every_line_up_to_the_kill(node: RealNode, agent: Listener) -> None:
    """Fault 114."""
    await agent.runner.start(node.shell(key(1), "trap '' TERM; echo one; echo two; touch written; while :; do :; done"))
    await agent.running(key(1))
    while not (node.folder / "written").exists():
        await asyncio.sleep(0.01)
    await agent.runner.stop(key(1), 100)
    await agent.end(key(1))
    assert (await agent.runner.read_log(key(1), 0, 100)).data == b"one\ntwo\n"


async def test_a_child_that_holds_the_pipe_does_not_hold_up_the_end(node: RealNode, agent: Listener) -> None:
    began = time.monotonic()
    assert await output(node, agent, "(trap '' TERM; sleep 300) & echo done") == b"done\n"
    assert time.monotonic() - began < 100


async def test_a_stranger_that_was_given_the_pipe_does_not_hold_up_the_end(node: RealNode, agent: Listener) -> None:
    """No process of the tree is left, yet the pipe has a writer: this test."""
    await agent.runner.start(node.shell(key(1), "exec sleep 300"))  # a shell could tell of its child's end
    pid = (await agent.running(key(1))).pid
    with open(f"/proc/{pid}/fd/1", "wb", buffering=0) as pipe:
        pipe.write(b"from a stranger\n")
        await agent.runner.stop(key(1), 1000)
        await agent.end(key(1))
    assert (await agent.runner.read_log(key(1), 0, 100)).data == b"from a stranger\n"


async def test_output_can_be_followed_while_it_grows(node: RealNode, agent: Listener) -> None:
    await agent.runner.start(node.shell(key(1), "echo one; while [ ! -e go ]; do sleep 0.01; done; echo two"))
    await agent.running(key(1))
    while not (read := await agent.runner.read_log(key(1), 0, 100)).data:
        await asyncio.sleep(0.01)
    assert (read.data, read.ended) == (b"one\n", False)
    (node.folder / "go").touch()
    await agent.end(key(1))
    read = await agent.runner.read_log(key(1), read.size, 100)
    assert (read.offset, read.data, read.size, read.ended) == (4, b"two\n", 8, True)


async def test_a_job_that_writes_as_fast_as_it_can_starves_nobody(node: RealNode, agent: Listener) -> None:
    for job in (1, 2, 3):
        await agent.runner.start(node.shell(key(job), "exec yes"))
        await agent.running(key(job))
    for job in range(10, 20):
        await agent.runner.start(node.shell(key(job), "echo quick"))
        assert (await agent.end(key(job))).clean
    for job in (1, 2, 3):
        await agent.runner.stop(key(job), 5_000)
        await agent.end(key(job))
        assert (await agent.runner.read_log(key(job), 0, 4)).size > 0


async def test_a_job_that_closes_its_output_runs_on(node: RealNode, agent: Listener) -> None:
    assert await output(node, agent, "echo before; exec > /dev/null 2>&1; sleep 0.2; echo after > file") == b"before\n"
    assert (node.folder / "file").read_text() == "after\n"


async def test_the_oldest_large_outputs_go_when_all_together_exceed_the_bound(tmp_path: Path) -> None:
    mib = 1024 * 1024
    async with node_in(tmp_path, head_bytes_max=mib, spool_bytes_max=2 * mib) as node, agent_on(node) as agent:
        for job in (1, 2, 3):
            await agent.runner.start(node.shell(key(job), f"head -c {mib} /dev/zero"))
            await agent.end(key(job))
        with pytest.raises(FileNotFoundError):
            await agent.runner.read_log(key(1), 0, 1)
        assert (await agent.runner.read_log(key(3), 0, 1)).size == mib
