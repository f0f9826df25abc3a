"""Containers as the runner starts and ends them, by whichever way it follows processes, also while the engine hangs."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from stoker.agent.ports import StartTask, TaskEnding
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause
from tests.contracts.runner import Listener, agent_on, key
from tests.real.docker_daemon import IMAGE, Daemon, docker_engine, needs_docker
from tests.real.runner_node import TREE_MODES, RealNode, is_alive, node_in, wait_until

pytestmark = needs_docker
SLEEPS = ("sleep", "600")


@pytest.fixture(scope="module")
def docker() -> Iterator[Daemon]:
    with docker_engine() as daemon:
        yield daemon


@pytest.fixture(autouse=True)
def nothing_left(docker: Daemon) -> Iterator[None]:
    yield
    assert docker.containers() == []


def container(node: RealNode, docker: Daemon, of: TaskKey, *words: str, in_cgroup: bool = True) -> StartTask:
    fields = {
        "socket": str(docker.socket), "owner": "tests", "cluster": "c", "epoch": 1, "image": IMAGE, "entrypoint": None,
        "mounts": [], "allowed": [], "hidden": [], "shm_mb": 64, "network": "none", "cpus": 1, "devices": [],
        "init": True, "in_cgroup": in_cgroup,
    }  # fmt: skip
    task = node.command(of, words, {}, workdir="")
    return msgspec.structs.replace(task, container=fields)


@asynccontextmanager
async def running(
    node: RealNode, docker: Daemon, of: TaskKey, *, in_cgroup: bool = True
) -> AsyncIterator[tuple[Listener, int]]:
    """An agent with a container that runs, and the pid of that."""
    async with agent_on(node) as agent:
        await agent.runner.start(container(node, docker, of, *SLEEPS, in_cgroup=in_cgroup))
        await agent.running(of)
        (found,) = docker.containers()
        yield agent, int(docker.run("inspect", "-f", "{{.State.Pid}}", found))


@pytest.mark.parametrize("mode", TREE_MODES)
async def test_a_stop_ends_a_container_however_processes_are_followed(
    docker: Daemon, tmp_path: Path, mode: str
) -> None:
    async with node_in(tmp_path, tree=mode) as node, running(node, docker, key(1)) as (agent, pid):
        await agent.runner.stop(key(1), 10_000)
        end = await agent.end(key(1))
        assert (end.cause, is_alive(pid)) == (EndCause.STOPPED, False)
        assert docker.containers() == []


@pytest.mark.parametrize("in_cgroup", [True, False])
async def test_a_runner_that_is_killed_leaves_no_container_to_the_next(
    docker: Daemon, tmp_path: Path, in_cgroup: bool
) -> None:
    async with node_in(tmp_path) as node:
        async with running(node, docker, key(1), in_cgroup=in_cgroup) as (_, pid):
            node.kill_runner_and_guard()
        async with agent_on(node) as again:
            end = await again.known_end(key(1))
            assert (end.cause, is_alive(pid)) == (EndCause.RUNNER_LOST, False)
            assert docker.containers() == []


@pytest.mark.parametrize("in_cgroup", [True, False])
async def test_while_the_engine_hangs_a_container_in_the_tasks_cgroup_is_proved_gone_and_another_is_waited_for(
    docker: Daemon, tmp_path: Path, in_cgroup: bool
) -> None:
    """N1 and N3 of `container/tasks.py`."""
    async with node_in(tmp_path) as node, running(node, docker, key(1), in_cgroup=in_cgroup) as (agent, pid):
        os.kill(docker.pid, signal.SIGSTOP)
        try:
            await agent.runner.stop(key(1), 0)
            wait_until(lambda: not is_alive(pid), "its processes are killed at once in either case")
            if not in_cgroup:
                await agent.hear(TaskEnding)
        finally:
            os.kill(docker.pid, signal.SIGCONT)
        assert (await agent.end(key(1))).cause is EndCause.STOPPED
    wait_until(lambda: docker.containers() == [], "it is removed once the engine answers")
