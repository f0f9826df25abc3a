"""Warnings before the end, on real processes: the file that says so, whole before its signal, and who may write it."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stoker.agent.ports import TaskWarning
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause
from tests.contracts.runner import Listener, agent_on, key
from tests.real.runner_node import RealNode, node_in

LONG_MS = 300_000
FOREVER = "while :; do sleep 0.02; done"
SAVES = """
import json, os, signal, sys, time
def told(*_):
    with open("told.json", "w") as note:
        note.write(open(os.environ["STOKER_PREEMPT_FILE"]).read())
    sys.exit(0)
signal.signal(signal.SIGUSR1, told)
print(os.path.exists(os.environ["STOKER_PREEMPT_FILE"]), flush=True)
while True: time.sleep(0.02)
"""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[RealNode]:
    async with node_in(tmp_path) as node:
        yield node


@pytest.fixture
async def agent(node: RealNode) -> AsyncIterator[Listener]:
    async with agent_on(node) as agent:
        yield agent


async def _saving(node: RealNode, agent: Listener, task: TaskKey) -> None:
    """A program that waits for its warning, and has said whether the file was there before."""
    await agent.runner.start(node.command(task, ("python3", "-c", SAVES), {}))
    await agent.running(task)
    assert await _output(agent, task, 1) == b"False\n", "the file is absent until then"


async def _holds(path: Path, text: str) -> None:
    async with asyncio.timeout(20):
        while not path.exists() or path.read_text() != text:
            await asyncio.sleep(0.01)


async def _output(agent: Listener, task: TaskKey, lines: int) -> bytes:
    """What a task has written, once it is so many lines."""
    async with asyncio.timeout(20):
        while (said := (await agent.runner.read_log(task, 0, 1_000)).data).count(b"\n") < lines:
            await asyncio.sleep(0.01)
    return said


def _notices(node: RealNode) -> list[str]:
    return sorted(os.listdir(node.folder / "agent" / "notices"))


async def test_the_notice_is_whole_before_the_signal_comes_and_goes_with_the_task(
    node: RealNode, agent: Listener
) -> None:
    await _saving(node, agent, key(1))
    text = json.dumps({"cause": "preempted", "for_job": "17", "filler": "x" * 100_000})
    await agent.runner.stop(key(1), 10_000, TaskWarning(signal=signal.SIGUSR1, text=text, lead_ms=LONG_MS))
    end = await agent.end(key(1))
    assert (end.cause, end.exit_code) == (EndCause.STOPPED, 0), "it ended long before its lead was over"
    assert (node.folder / "told.json").read_text() == text
    assert _notices(node) == []


async def test_a_job_that_stays_is_terminated_after_its_lead_and_killed_after_the_grace(
    node: RealNode, agent: Listener
) -> None:
    await agent.runner.start(node.shell(key(1), "trap 'echo warned' USR1; trap 'echo told' TERM; echo go; " + FOREVER))
    await _output(agent, key(1), 1)
    await agent.runner.stop(key(1), 300, TaskWarning(signal=signal.SIGUSR1, text="{}", lead_ms=300))
    assert (await agent.end(key(1))).signal == signal.SIGKILL
    said = (await agent.runner.read_log(key(1), 0, 1_000)).data.decode().split()
    assert [word for word in said if word in ("go", "warned", "told")] == ["go", "warned", "told"]


async def test_a_later_warning_takes_the_place_of_the_file_of_an_earlier_one(node: RealNode, agent: Listener) -> None:
    await agent.runner.start(node.shell(key(1), FOREVER))
    await agent.running(key(1))
    path = node.folder / "agent" / "notices" / "1.1.0"
    for once, text in ((60, "first\n"), (120, "second\n")):
        await agent.runner.warn(key(1), TaskWarning(signal=0, text=text), once)
        await _holds(path, text)
    assert path.stat().st_mode & 0o777 == 0o644, "a job of another account reads it"
    assert path.parent.stat().st_mode & 0o022 == 0, "and no job writes there"
    await agent.runner.stop(key(1), 0)
    await agent.end(key(1))


async def test_the_warning_outlives_the_agent_and_is_not_given_twice(node: RealNode) -> None:
    async with agent_on(node) as first:
        await first.runner.start(node.noting(key(1), signal.SIGUSR1))
        await first.begun(node, key(1))
        await first.runner.stop(key(1), 10_000, TaskWarning(signal=signal.SIGUSR1, text="{}", lead_ms=1_500))
        await first.noted(node, key(1), 1)
    async with agent_on(node) as second:
        await second.runner.stop(key(1), 10_000, TaskWarning(signal=signal.SIGUSR1, text="{}", lead_ms=LONG_MS))
        assert (await second.end(key(1))).cause is EndCause.STOPPED
        assert node.signals(key(1)) == 1


async def test_a_runner_takes_a_stop_of_an_agent_that_knows_no_warnings(node: RealNode, agent: Listener) -> None:
    await agent.runner.start(node.task(key(1), lasts_s=300))
    await agent.running(key(1))
    await agent.runner.stop(key(1), 1_000, None)
    assert (await agent.end(key(1))).signal == signal.SIGTERM
