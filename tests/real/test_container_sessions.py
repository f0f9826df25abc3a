"""Programs that people execute in containers, and containers with a terminal, over the socket of a real runner."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from stoker.agent.runner.container.names import EXEC_MARK
from stoker.agent.runner.process import procfs
from stoker.agent.runner.session.exec_session import INPUT_MAX
from stoker.brain.domain.job import EndCause
from tests.contracts.runner import Listener, agent_on, key
from tests.real.docker_daemon import Daemon, docker_engine, needs_docker, podman_engine
from tests.real.runner_node import RealNode, is_alive, node_in, wait_until
from tests.real.session_client import SessionClient
from tests.real.test_container_runner import container

pytestmark = needs_docker
ONE = key(1)
GONE_S = 0.4
SLEEPS = ("sleep", "600")
STEP = INPUT_MAX // 4


@pytest.fixture(scope="module", params=["docker", pytest.param("podman", marks=pytest.mark.heavy)])
def docker(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    with docker_engine() if request.param == "docker" else podman_engine() as daemon:
        yield daemon


@pytest.fixture
async def node(docker: Daemon, tmp_path: Path) -> AsyncIterator[RealNode]:
    async with node_in(tmp_path, session_gone_s=GONE_S) as node:
        yield node
    assert docker.containers() == []


@pytest.fixture
async def agent(node: RealNode) -> AsyncIterator[Listener]:
    async with agent_on(node) as agent:
        await agent.runner.answered(node.now())
        yield agent


async def begun(agent: Listener, node: RealNode, docker: Daemon, *words: str, **start: object) -> None:
    task = container(node, docker, ONE, *words)
    env = {**task.env, "MARK": "mine", "PS1": "ready$ "}
    await agent.runner.start(msgspec.structs.replace(task, env=env, start=msgspec.structs.replace(task.start, **start)))
    await agent.running(ONE)


def executed_here(node: RealNode) -> list[int]:
    """Processes that were executed in a container of ours."""
    return [pid for pid in node.living(ONE) if procfs.mark_of(pid, EXEC_MARK)]


async def test_a_program_is_executed_as_the_container_is_and_exits_with_its_own_status(
    docker: Daemon, node: RealNode, agent: Listener
) -> None:
    """Z1: user, groups, privileges, environment, folder, and pids of the container; streams apart."""
    await begun(agent, node, docker, *SLEEPS)
    own = "id; pwd; echo $MARK; grep -h -e Cap -e NoNewPrivs /proc/self/status /proc/1/status | sort | uniq -c"
    async with SessionClient(node, "x1", "sh", "-c", f"{own}; echo bad >&2; exit 9") as client:
        assert (await client.until("exit"))["code"] == 9
    lines = client.out.decode().splitlines()
    lines.remove("bad")  # which of two streams comes first is the engine's affair
    assert lines[1:3] == ["/", "mine"], lines
    assert [line.split()[0] for line in lines if "Cap" in line or "NoNewPrivs" in line] == ["2"] * 6, lines
    text = "".join(f"{number}\n" for number in range(40_000)).encode()
    async with SessionClient(node, "x2", "sh", "-c", "cat; echo over") as client:
        for at in range(0, len(text), STEP):
            client.type(text[at : at + STEP])
            await client.until_taken(at - STEP)
        client.say("end")
        assert (await client.until("exit"))["code"] == 0
    assert client.out == text + b"over\n"


async def test_what_there_is_not_says_so_as_a_shell_would_and_a_signal_ends_what_is_executed(
    docker: Daemon, node: RealNode, agent: Listener
) -> None:
    await begun(agent, node, docker, *SLEEPS)
    for word, code in (("no-such-program", 127), ("/no/such", 127), ("/tmp", 126)):
        async with SessionClient(node, f"x{word[-4:]}", word) as client:
            told = await client.until("exit")
            assert (told["code"], word in str(told["error"])) == (code, True), told
    async with SessionClient(
        node, "x2", "sh", "-c", "trap 'echo heard; exit 4' INT; echo ready; while :; do sleep 0.05; done"
    ) as client:
        await client.until(words=b"ready\n")
        client.say("signal", number=int(signal.SIGINT))
        assert (await client.until("exit"))["code"] == 4
        assert client.out == b"ready\nheard\n"


async def test_a_terminal_beside_a_container_has_keys_job_control_and_its_clients_size(
    docker: Daemon, node: RealNode, agent: Listener
) -> None:
    await begun(agent, node, docker, *SLEEPS)
    async with SessionClient(node, "x1", "sh", "-i", tty=True) as client:
        await client.until(words=b"$ ")
        client.type(b"ls -l /proc/self/fd/0 | grep -c pts; echo ${TERM}x\r")
        await client.until(words=b"\n1\r\nxtermx")
        client.say("resize", columns=101, rows=33)
        await until_line(client, b"stty size", b"33 101")
        await interrupted(client)
        client.type(b"\x10\x11echo all $((20+2)) keys\r")  # as engines know them, the end of the session
        await client.until(words=b"all 22 keys")
        client.type(b"exit 6\r")
        assert (await client.until("exit"))["code"] == 6


async def interrupted(client: SessionClient) -> None:
    """Interrupt a program in the foreground of a shell by its key, which the shell itself survives."""
    client.type(b"while :; do echo going; sleep 1; done\r")
    await client.until(words=b"\r\ngoing")
    before = len(client.out)
    client.type(b"\x03")
    await client.until(words=b"$ ", since=before)
    client.type(b"echo not $((20+1)) gone\r")
    await client.until(words=b"not 21 gone")


async def until_line(client: SessionClient, line: bytes, words: bytes) -> None:
    """A size arrives a moment after its client."""
    for _ in range(100):
        before = len(client.out)
        client.type(line + b"; echo end$((1+1))\r")
        await client.until(words=b"end2", since=before)
        if words in client.out[before:]:
            return
    raise AssertionError(f"{words!r} never came: {client.out[-300:]!r}")


@pytest.mark.parametrize("tty", [pytest.param(False, marks=pytest.mark.heavy), True])
async def test_v3_a_program_does_not_outlive_its_session_also_if_it_ignores_the_hang_up(
    docker: Daemon, node: RealNode, agent: Listener, *, tty: bool
) -> None:
    await begun(agent, node, docker, *SLEEPS)
    async with SessionClient(node, "x1", "sh", "-c", "trap '' HUP; echo here; sleep 600", tty=tty) as client:
        await client.until(words=b"here")
        assert executed_here(node)
    wait_until(lambda: not executed_here(node), "its client is gone for longer than it is waited for")
    assert node.lives(ONE)


@pytest.mark.heavy
async def test_v3_a_hang_up_reaches_a_program_while_the_engine_hangs(
    docker: Daemon, node: RealNode, agent: Listener
) -> None:
    await begun(agent, node, docker, *SLEEPS)
    async with SessionClient(node, "x1", "sh", "-c", "echo here; sleep 600", tty=True) as client:
        await client.until(words=b"here")
        os.kill(docker.pid, signal.SIGSTOP)
        try:
            client.say("resize", columns=70, rows=20)
            client.say("hangup")
            await asyncio.sleep(0.1)
            wait_until(lambda: not executed_here(node), "it has gone")
        finally:
            os.kill(docker.pid, signal.SIGCONT)
        assert (await client.until("exit"))["code"] == 129


async def test_j1_a_client_that_is_killed_takes_its_program_with_it(
    docker: Daemon, node: RealNode, agent: Listener
) -> None:
    await begun(agent, node, docker, *SLEEPS)
    async with SessionClient(node, "x1", "sh", "-c", "trap '' HUP TERM; echo here; sleep 600; sleep 600") as client:
        await client.until(words=b"here")
        (of_client,) = clients_of(node, "exec_client")
        os.kill(of_client, signal.SIGKILL)
        assert (await client.until("exit"))["signal"] == 9
        wait_until(lambda: not executed_here(node), "the runner has killed it")
    assert node.lives(ONE)


def clients_of(node: RealNode, module: str) -> list[int]:
    children = Path(f"/proc/{node.runner_pid}/task/{node.runner_pid}/children").read_text().split()
    return [int(pid) for pid in children if f".{module}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def test_what_is_executed_ends_with_its_container_and_is_never_its_end(
    docker: Daemon, node: RealNode, agent: Listener
) -> None:
    await begun(agent, node, docker, *SLEEPS)
    async with SessionClient(node, "x1", "true") as client:
        await client.until("exit")
    async with SessionClient(node, "x2", "sh", "-c", "trap '' HUP TERM; echo here; sleep 600; sleep 600") as client:
        await client.until(words=b"here")
        await agent.runner.stop(ONE, 500)
        told = await client.until("exit")
        assert 137 in (told["code"], 128 + int(str(told["signal"])))
    assert (await agent.end(ONE)).cause is EndCause.STOPPED
    wait_until(lambda: clients_of(node, "exec_client") == [], "no client is left")


async def test_a_container_has_a_terminal_its_size_its_keys_and_its_log_and_outlives_the_agent(
    docker: Daemon, node: RealNode
) -> None:
    async with agent_on(node) as agent:
        await agent.runner.answered(node.now())
        await begun(agent, node, docker, "sh", "-i", tty=True, stays=True)
        async with SessionClient(node, "main") as client:
            client.type(b"echo $MARK\r")
            await client.until(words=b"\nmine")
            await until_line(client, b"stty size", b"20 90")
            await interrupted(client)
    async with agent_on(node) as again, SessionClient(node, "main") as client:
        await client.until(words=b"not 21 gone")
        client.type(b"exit 3\r")
        assert (await client.until("exit"))["code"] == 3
        end = await again.end(ONE)
        assert (end.exit_code, end.hung_up) == (3, False)
        log = await again.runner.read_log(ONE, 0, 100_000)
        assert b"not 21 gone" in log.data


@pytest.mark.parametrize("stays", [False, True])
async def test_z3_a_containers_terminal_that_nobody_comes_to_is_hung_up_unless_it_stays(
    docker: Daemon, node: RealNode, agent: Listener, *, stays: bool
) -> None:
    line = "trap 'echo hung up; exit 5' HUP; echo begun; while :; do sleep 0.05; done"
    await begun(agent, node, docker, "sh", "-c", line, tty=True, stays=stays)
    if stays:
        (first,) = docker.containers()
        pid = int(docker.run("inspect", "-f", "{{.State.Pid}}", first))
        async with SessionClient(node, "main") as client:
            await client.until(words=b"begun")
            client.say("hangup")
            await client.until("exit")
        assert not is_alive(pid)
    end = await agent.end(ONE)
    assert (end.exit_code, end.hung_up) == (5, True)
    log = await agent.runner.read_log(ONE, 0, 100_000)
    assert log.data.count(b"hung up") == 1
