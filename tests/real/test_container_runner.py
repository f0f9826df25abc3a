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
from tests.real.docker_daemon import Daemon, docker_engine, needs_docker, podman_engine
from tests.real.runner_node import TREE_MODES, RealNode, cgroups_here, is_alive, node_in, wait_until

pytestmark = needs_docker
SLEEPS = ("sleep", "600")


@pytest.fixture(scope="module", params=["docker", pytest.param("podman", marks=pytest.mark.heavy)])
def docker(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    with docker_engine() if request.param == "docker" else podman_engine() as daemon:
        yield daemon


@pytest.fixture(autouse=True)
def nothing_left(docker: Daemon) -> Iterator[None]:
    yield
    assert docker.containers() == []


def container(node: RealNode, docker: Daemon, of: TaskKey, *words: str, in_cgroup: bool = True) -> StartTask:
    fields = {
        "socket": str(docker.socket), "owner": "tests", "cluster": "c", "epoch": 1, "image": docker.image,
        "entrypoint": None, "mounts": [], "allowed": [], "hidden": [], "shm_mb": 64, "network": "none", "cpus": 1,
        "devices": [], "init": docker.init, "in_cgroup": in_cgroup,
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
        await agent.runner.stop(key(1), 1_000)  # without an init process a sleep ignores the terminate signal
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


async def test_an_end_an_output_and_a_kill_for_memory_are_told_by_either_engine(docker: Daemon, tmp_path: Path) -> None:
    async with node_in(tmp_path) as node, agent_on(node) as agent:
        await agent.runner.start(container(node, docker, key(1), "sh", "-c", "echo out; echo err >&2; exit 7"))
        assert (await agent.end(key(1))).exit_code == 7
        assert sorted((await agent.runner.read_log(key(1), 0, 100)).data.splitlines()) == [b"err", b"out"]
        if not cgroups_here("auto")[1]:
            return
        hungry = container(node, docker, key(2), "sh", "-c", "x=a; while :; do x=$x$x; done")
        limited = msgspec.structs.replace(hungry.start, memory_mb=48)
        await agent.runner.start(msgspec.structs.replace(hungry, start=limited))
        end = await agent.end(key(2))
        assert (end.oom, end.exit_code) == (True, 137)
