"""Sessions of a real runner, over its own socket: who holds what for how long, and as whom (Z1 to Z7, X1 to X5)."""

import asyncio
import os
import pwd
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from stoker.agent.ports import StartTask
from stoker.agent.runner.session.client import SessionClient as ClientEnd
from stoker.agent.runner.session.exec_session import MAIN, NEVER, ExecSession
from stoker.agent.runner.session.program import PACK_S
from stoker.brain.domain.job import EndCause
from tests.contracts.runner import Listener, agent_on, key
from tests.real.runner_node import RealNode, is_alive, node_in, wait_until
from tests.real.session_client import SessionClient
from tests.real.unix_users import made_users, needs_root

ONE = key(1)
GONE_S = 0.4


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[RealNode]:
    async with node_in(tmp_path, session_gone_s=GONE_S) as node:
        yield node


@pytest.fixture
async def agent(node: RealNode) -> AsyncIterator[Listener]:
    async with agent_on(node) as agent:
        await agent.runner.answered(node.now())
        yield agent


async def begun(agent: Listener, task: StartTask, **start: object) -> None:
    await agent.runner.start(msgspec.structs.replace(task, start=msgspec.structs.replace(task.start, **start)))
    await agent.running(task.start.key)


async def test_z3_a_program_whose_client_is_gone_is_hung_up_after_a_while_and_not_before(
    node: RealNode, agent: Listener
) -> None:
    await begun(agent, node.task(ONE, lasts_s=60))
    async with SessionClient(node, "x1", "sh", "-c", "echo $$ > beside; exec sleep 60") as client:
        await client.until("attached")
        pid = node.pid_in("beside")
    assert is_alive(pid)
    async with SessionClient(node, "x1", at=0) as again:
        assert (await again.until("attached"))["session"] == "x1"
        await asyncio.sleep(2 * GONE_S)
        assert is_alive(pid)
    wait_until(lambda: not is_alive(pid), "its end")
    async with SessionClient(node, "x1", at=0) as late:
        assert (await late.until("refused"))["code"] == "session_over"


async def test_z3_while_no_control_plane_is_heard_from_nobody_is_hung_up(node: RealNode) -> None:
    async with agent_on(node) as agent:
        await begun(agent, node.task(ONE, lasts_s=60))
        async with SessionClient(node, "x1", "sh", "-c", "echo $$ > beside; exec sleep 60") as client:
            await client.until("attached")
            pid = node.pid_in("beside")
        await asyncio.sleep(3 * GONE_S)
        assert is_alive(pid), "no beat was ever answered"
        await agent.runner.answered(node.now())
        wait_until(lambda: not is_alive(pid), "its end")


@pytest.mark.parametrize("stays", [False, True])
async def test_z3_a_terminal_that_nobody_comes_to_is_hung_up_unless_it_stays(
    node: RealNode, agent: Listener, *, stays: bool
) -> None:
    await begun(agent, node.shell(ONE, "exec sleep 60"), tty=True, stays=stays)
    if stays:
        await asyncio.sleep(3 * GONE_S)
        assert node.lives(ONE)
        return
    end = await agent.end(ONE)
    assert (end.cause, end.signal) == (EndCause.EXITED, 1)


async def test_z7_a_task_ends_that_ignores_that_its_terminal_was_closed(tmp_path: Path) -> None:
    line = "trap 'echo heard' HUP; trap 'exit 7' TERM; while :; do sleep 0.05; done"
    async with node_in(tmp_path, session_gone_s=2.5 * GONE_S) as node, agent_on(node) as agent:
        await agent.runner.answered(node.now())
        await begun(agent, node.shell(ONE, line), tty=True, stays=False)
        end = await agent.end(ONE)
        assert (end.cause, end.exit_code, end.hung_up) == (EndCause.EXITED, 7, True)
        assert b"heard" in (await agent.runner.read_log(ONE, 0, 100)).data


async def test_z7_a_terminal_that_stays_is_hung_up_and_nothing_more(node: RealNode, agent: Listener) -> None:
    line = "trap 'echo heard' HUP; echo begun; while :; do sleep 0.05; done"
    await begun(agent, node.shell(ONE, line), tty=True, stays=True)
    async with SessionClient(node, "main") as client:
        await client.until(words=b"begun")
        client.say("hangup")
        await client.until(words=b"heard")
    await asyncio.sleep(2 * GONE_S)
    assert node.lives(ONE)


@pytest.mark.parametrize("stays", [False, True])
def test_z7_who_comes_in_time_saves_a_terminal_that_was_hung_up(*, stays: bool) -> None:
    session = ExecSession(MAIN, "1.1.0", tty=True, now_s=0.0)
    session.stays = stays
    session.hang_up(60.0)
    assert (session.ends_s < NEVER) is not stays
    ours, theirs = socket.socketpair()
    with ours, theirs:
        session.attach(ClientEnd(ours, 1.0), -1)
    assert session.ends_s == NEVER


async def test_x3_what_a_terminal_showed_is_there_for_who_comes_and_in_the_log(node: RealNode, agent: Listener) -> None:
    await begun(agent, node.shell(ONE, "tty; read y; stty size; read x; echo got $x; exit 3"), tty=True, stays=True)
    async with SessionClient(node, "main") as client:
        await client.until(words=b"/dev/pts/")  # it has the client's size by now
        client.type(b"\r")
        await client.until(words=b"20 90")
        client.type(b"ja\r")
        ended = await client.until("exit")
        assert (ended["code"], client.out.split()[0][:9], b"got ja" in client.out) == (3, b"/dev/pts/", True)
    assert (await agent.end(ONE)).exit_code == 3
    log = await agent.runner.read_log(ONE, 0, 100_000)
    assert log.data == client.out
    assert log.ended


async def test_z1_what_was_executed_in_a_task_goes_with_it_also_what_ignores_every_signal(
    node: RealNode, agent: Listener
) -> None:
    await begun(agent, node.shell(ONE, "read x; exit 0", workdir=str(node.folder)), tty=True, stays=True)
    line = "trap '' HUP TERM INT; setsid sleep 60 & echo $! > beside; sleep 60; sleep 60"
    async with SessionClient(node, "x1", "sh", "-c", line) as client, SessionClient(node, "main") as main:
        await client.until("attached")
        pid = node.pid_in("beside")
        await main.until("attached")
        main.type(b"\r")
        assert (await agent.end(ONE)).exit_code == 0, "it is the task's own program whose end counts"
        assert (await client.until("exit"))["signal"] == 9
    assert not is_alive(pid)
    assert not node.living(ONE)


async def test_z2_a_newer_client_replaces_the_older_which_is_told(node: RealNode, agent: Listener) -> None:
    await begun(agent, node.task(ONE, lasts_s=60))
    async with SessionClient(node, "x1", "cat") as older:
        await older.until("attached")
        async with SessionClient(node, "x1", "cat") as newer:
            assert (await older.until("refused"))["code"] == "session_taken"
            newer.type(b"once\n")
            await newer.until(words=b"once\n")
            assert newer.out == b"once\n", "it was begun once"


async def test_a_client_that_says_everything_at_once_harms_no_task(node: RealNode, agent: Listener) -> None:
    """Nothing is closed a second time: the number of a descriptor may be another's by then."""
    await begun(agent, node.task(ONE, lasts_s=60))
    runner = node.runner_pid
    for turn in range(20):
        async with SessionClient(node, f"x{turn}", "sh", "-c", "kill -KILL $$") as client:
            await client.until("exit")
            for kind in ("end", "done", "end", "hangup", "done"):
                client.say(kind)
        async with SessionClient(node, f"y{turn}", "cat") as client:
            for kind in ("end", "hangup", "done", "end", "done"):
                client.say(kind)
    async with SessionClient(node, "x", "echo", "here") as client:
        await client.until("exit")
        assert client.out == b"here\n"
    assert (node.lives(ONE), node.runner_pid) == (True, runner)


async def test_a_program_gets_the_surroundings_of_its_task_also_once_these_are_packed(
    node: RealNode, agent: Listener
) -> None:
    await begun(agent, node.command(ONE, ("sleep", "60"), {"WORDS": "ä \n ü"}))
    for turn in range(2):
        async with SessionClient(node, f"x{turn}", "sh", "-c", 'echo "$WORDS"; pwd') as client:
            await client.until("exit")
            assert client.out.decode() == f"ä \n ü\n{node.folder}\n"
        await asyncio.sleep(1.2 * PACK_S)


async def test_sessions_outlive_the_agent(node: RealNode) -> None:
    async with agent_on(node) as agent:
        await begun(agent, node.shell(ONE, "while read x; do echo $x; done"), tty=True, stays=True)
    async with agent_on(node), SessionClient(node, "main") as client:
        client.type(b"still\r")
        await client.until(words=b"still\r\nstill\r\n")


async def test_a_gigabyte_of_output_costs_the_runner_no_memory(node: RealNode, agent: Listener) -> None:
    """64 MiB stand for it: what isn't read stays in the program."""
    await begun(agent, node.task(ONE, lasts_s=60))
    before = node.rss_kb()
    async with SessionClient(node, "x1", "head", "-c", str(64 << 20), "/dev/zero") as client:
        await client.until("exit")
        assert client.out == bytes(64 << 20)
    assert node.rss_kb() < before + 4_096


@needs_root
async def test_z1_a_shell_in_a_job_of_another_account_is_that_account_and_owns_its_terminal() -> None:
    with made_users() as users:
        folder = Path(tempfile.mkdtemp(dir=users.folder))
        folder.chmod(0o711)
        async with node_in(folder, node="gpu-07") as node:
            node.allow_root = False
            async with agent_on(node) as agent:
                home = node.folder / "work"
                home.mkdir()
                ann = pwd.getpwnam(users.ann)
                os.chown(home, ann.pw_uid, ann.pw_gid)
                await begun(agent, node.shell(ONE, "exec sleep 60", workdir=str(home)), user=users.ann)
                line = "id -u; stat -c %u $(tty); echo x > made; echo by $USER > $(tty); pwd; ulimit -c"
                async with SessionClient(node, "x1", "sh", "-c", line, tty=True) as client:
                    assert (await client.until("exit"))["code"] == 0
                    uid = str(ann.pw_uid)
                    assert client.out.decode().split()[:5] == [uid, uid, "by", users.ann, str(home)], client.out
                assert (home / "made").stat().st_uid == ann.pw_uid
