"""Where the processes of a task meet, and on which machines: what the runner chooses and writes for it."""

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stoker.agent.runner.process import launch
from stoker.agent.runner.process.account import CannotStart
from stoker.agent.runner.process.launch import own_port
from tests.contracts.runner import Listener, agent_on, key
from tests.real.runner_node import RealNode, node_in, wait_until

GANGS = {"gang_port_min": 20_000, "gang_port_max": 29_999}
SAY_PLACE = "echo $MASTER_ADDR $MASTER_PORT $PET_MASTER_ADDR $PET_MASTER_PORT"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[RealNode]:
    async with node_in(tmp_path) as node:
        yield node


@pytest.fixture
async def agent(node: RealNode) -> AsyncIterator[Listener]:
    async with agent_on(node) as agent:
        yield agent


async def said(agent: Listener, job: int) -> list[str]:
    await agent.end(key(job))
    return (await agent.runner.read_log(key(job), 0, 1 << 20)).data.decode().split()


async def test_a_task_alone_is_told_a_port_of_this_machine_that_anybody_may_bind_now(
    node: RealNode, agent: Listener
) -> None:
    await agent.runner.start(node.shell(key(1), SAY_PLACE, **GANGS))
    address, port, *again = await said(agent, 1)
    assert (address, again) == ("127.0.0.1", [address, port])
    assert not GANGS["gang_port_min"] <= int(port) <= GANGS["gang_port_max"]
    socket.create_server((address, int(port))).close()


async def test_what_a_job_says_of_these_names_itself_does_not_count(node: RealNode, agent: Listener) -> None:
    await agent.runner.start(node.command(key(1), SAY_PLACE, {"MASTER_ADDR": "elsewhere", "MASTER_PORT": "1"}, **GANGS))
    assert (await said(agent, 1))[:2] != ["elsewhere", "1"]


async def test_a_gang_keeps_the_port_of_the_engine(node: RealNode, agent: Listener) -> None:
    await agent.runner.start(node.command(key(1), SAY_PLACE, {"MASTER_ADDR": "n1", "MASTER_PORT": "20001"}))
    assert await said(agent, 1) == ["n1", "20001"]


async def test_tasks_that_live_together_have_different_ports(node: RealNode, agent: Listener) -> None:
    for job in range(1, 9):
        await agent.runner.start(node.shell(key(job), f"{SAY_PLACE} > place.{job}; exec sleep 60", **GANGS))
    files = [node.folder / f"place.{job}" for job in range(1, 9)]
    wait_until(lambda: all(file.exists() and file.read_text().endswith("\n") for file in files), "all have a place")
    assert len({file.read_text() for file in files}) == 8


def test_a_port_is_none_of_gangs_none_that_is_taken_and_none_that_somebody_listens_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held = listener.getsockname()[1]
        monkeypatch.setattr(launch, "_OWN_PORTS", (held, 20_000, 20_007, 10_001, 10_002))
        assert own_port((20_000, 29_999), {10_001}, begin=5) == 10_002
        with pytest.raises(CannotStart, match=r"no port is free .* 1 ports of this machine were tried") as refused:
            own_port((20_000, 29_999), {10_001, 10_002}, begin=0)
    assert refused.value.cause == "port_taken"


async def test_a_host_file_is_there_while_the_task_runs_readable_for_its_user_and_gone_after_it(
    node: RealNode, agent: Listener
) -> None:
    line = "cat $STOKER_HOSTFILE; stat -c %a $STOKER_HOSTFILE; echo $STOKER_HOSTFILE"
    await agent.runner.start(node.shell(key(1), line, host_file="10.0.0.1 slots=2\nh3 slots=4\n"))
    *words, path = await said(agent, 1)
    assert words == ["10.0.0.1", "slots=2", "h3", "slots=4", "644"]
    assert not os.path.exists(path)


async def test_a_job_that_gets_no_host_file_is_not_told_of_one(node: RealNode, agent: Listener) -> None:
    await agent.runner.start(node.shell(key(1), "echo ${STOKER_HOSTFILE-none}"))
    assert await said(agent, 1) == ["none"]


async def test_host_files_of_a_runner_that_was_killed_are_gone_with_the_next(node: RealNode) -> None:
    async with agent_on(node) as first:
        start = node.shell(key(1), "echo $STOKER_HOSTFILE > hosts.path; exec sleep 60", host_file="h slots=1\n")
        await first.runner.start(start)
        wait_until(lambda: (node.folder / "hosts.path").exists(), "it runs")
        node.kill_runner()
    async with agent_on(node) as second:
        await second.known_end(key(1))
        assert os.listdir(node.folder / "agent" / "hosts") == []
