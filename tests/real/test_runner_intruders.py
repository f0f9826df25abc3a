"""A job that means ill: what it tries against other users' jobs, the runner and the machine, and that it fails."""

import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.agent.runner.process import procfs
from stoker.agent.runner.protocol import SOCKET_NAME
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause, TaskEnd
from tests.contracts.runner import Listener, agent_on, key
from tests.real.runner_node import RealNode, is_alive, node_in, wait_until
from tests.real.unix_users import Users, made_users, needs_root, uid_of

pytestmark = needs_root
SECRET = "s3cr3t-of-bob"
VICTIM, INTRUDER = key(1), key(2)


@pytest.fixture(scope="module")
def users() -> Iterator[Users]:
    with made_users() as users:
        yield users


@pytest.fixture
async def node(users: Users) -> AsyncIterator[RealNode]:
    folder = Path(tempfile.mkdtemp(dir=users.folder))
    folder.chmod(0o711)
    async with node_in(folder) as node:
        node.allow_root = False
        yield node


@pytest.fixture
async def agent(node: RealNode) -> AsyncIterator[Listener]:
    async with agent_on(node) as agent:
        yield agent


@pytest.fixture
async def victim(users: Users, node: RealNode, agent: Listener) -> int:
    """Bob's job: it has a secret in its environment, its log, its file, its folder and its checkpoints. Its pid."""
    line = f"echo {SECRET}; echo {SECRET} > note; touch {users.home(users.bob)}/up; exec sleep 300"
    task = node.command(VICTIM, line, {"TOKEN": SECRET}, workdir="", user=users.bob, output="log.txt")
    await agent.runner.start(task)
    wait_until((users.home(users.bob) / "up").exists, "the victim runs")
    (users.home(users.bob) / "up").unlink()
    return (await agent.running(VICTIM)).pid


async def ran(
    node: RealNode, agent: Listener, user: str, line: str, task: TaskKey = INTRUDER, **start: object
) -> tuple[TaskEnd, str]:
    await agent.runner.start(node.shell(task, f"({line}) 2>&1", **{"workdir": "", **start}, user=user))
    end = await agent.end(task)
    return end, (await agent.runner.read_log(task, 0, 1 << 20)).data.decode()


# --- reading ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["environ", "mem", "fd/1", "cwd/note", "root/root", "maps"])
async def test_a_process_of_another_user_is_closed(
    users: Users, node: RealNode, agent: Listener, victim: int, what: str
) -> None:
    end, said = await ran(node, agent, users.ann, f"cat /proc/{victim}/{what}; ls /proc/{victim}/{what}/")
    assert not end.clean
    assert "denied" in said
    assert SECRET not in said


async def test_logs_records_folders_and_files_of_others_are_closed(
    users: Users, node: RealNode, agent: Listener, victim: int
) -> None:
    """By any path that leads there, and none can be listed."""
    data = node.folder / "agent"
    inside = [data / "output" / "1.1.0.out", data / "work" / "1.1" / "note", data / "work" / "1.1" / "log.txt"]
    ours = [data / name for name in ("journal", "runner.lock", "runner.log", "runner.sock")]
    assert all(path.exists() for path in (*inside, *ours)), "else this would prove nothing"
    for number, path in enumerate((*inside, *ours), start=10):
        end, said = await ran(node, agent, users.ann, f"cat {path} || cp {path} mine", key(number))
        assert not end.clean, path
        assert SECRET not in said
    for number, path in enumerate((data, data / "output", data / "work", data / "trash"), start=30):
        end, said = await ran(node, agent, users.ann, f"ls {path}", key(number))
        assert "Permission denied" in said, path
    end, said = await ran(node, agent, users.ann, f"mkdir {data}/work/9.1; ln -s / {data}/x; mv {data}/work {data}/w")
    assert not end.clean
    assert said.count("Permission denied") == 3


async def test_who_writes_a_users_file_is_closed_even_to_that_user(
    users: Users, node: RealNode, agent: Listener, victim: int
) -> None:
    """It is a fork of the runner, with all that other jobs were given in its memory."""
    (copier,) = [proc.pid for proc in procfs.every_proc().values() if _is_copier(proc.pid, node.runner_pid)]
    assert os.stat(f"/proc/{copier}/mem").st_uid == 0, "it isn't dumpable"
    assert Path(f"/proc/{copier}/status").read_text().split("\nUid:\t")[1].split()[0] == str(uid_of(users.bob))
    line = f"cat /proc/{copier}/mem; cat /proc/{copier}/environ; ls /proc/{copier}/fd"
    end, said = await ran(node, agent, users.bob, line)
    assert not end.clean
    assert said.count("Permission denied") == 3


def _is_copier(pid: int, runner: int) -> bool:
    proc = procfs.read_proc(pid)
    with suppress(OSError):
        return proc is not None and proc.parent == runner and Path(f"/proc/{pid}/comm").read_text() == "stoker-copy\n"
    return False


# --- harming ------------------------------------------------------------------------------------------------------


async def test_a_process_of_another_user_cannot_be_signalled_nor_can_the_runner(
    users: Users, node: RealNode, agent: Listener, victim: int
) -> None:
    line = f"kill -9 {victim}; kill -9 {node.runner_pid}; kill -STOP {victim}"
    end, said = await ran(node, agent, users.ann, line)
    assert said.count("Operation not permitted") == 3
    assert not end.clean
    assert is_alive(victim)


async def test_who_kills_all_that_it_may_kills_only_its_own(
    users: Users, node: RealNode, agent: Listener, victim: int
) -> None:
    runner = node.runner_pid
    await agent.runner.start(node.shell(key(3), "exec sleep 300", workdir="", user=users.ann))
    await agent.running(key(3))
    await ran(node, agent, users.ann, "kill -9 -1")
    assert (await agent.end(key(3))).signal == signal.SIGKILL
    assert is_alive(victim)
    assert is_alive(runner)


async def test_the_runner_hangs_up_on_a_peer_that_is_neither_its_account_nor_root(
    users: Users, node: RealNode, agent: Listener
) -> None:
    """Also where somebody opened its socket to all."""
    path = node.folder / "agent" / SOCKET_NAME
    path.chmod(0o666)
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(10); s.connect(sys.argv[1]);"
        "print(repr(s.recv(100)))"
    )
    uid = uid_of(users.ann)
    words = ["/usr/bin/python3", "-c", program, str(path)]
    done = subprocess.run(words, user=uid, group=uid, extra_groups=[], capture_output=True, text=True, check=False)
    assert done.stdout == "b''\n" or "ConnectionResetError" in done.stderr, done
    end, _ = await ran(node, agent, users.ann, "true")
    assert end.clean, "and its agent is still there"


# --- files that the runner writes for it --------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["output", "error"])
async def test_a_file_where_the_user_may_not_write_is_refused(
    users: Users, node: RealNode, agent: Listener, stream: str
) -> None:
    target = node.folder / f"roots-{stream}"
    end, _ = await ran(node, agent, users.ann, "echo mine", INTRUDER, **{stream: str(target)})
    assert end.cause is EndCause.START_FAILED
    assert f"cannot write its {stream} to {target} as user '{users.ann}': Permission denied (EACCES)" in end.error
    assert not target.exists()


async def test_a_link_leads_nowhere_that_the_user_may_not_write_itself(
    users: Users, node: RealNode, agent: Listener
) -> None:
    precious = node.folder / "precious"
    precious.write_text("of root")
    link = users.home(users.ann) / "out.txt"
    link.symlink_to(precious)
    end, _ = await ran(node, agent, users.ann, "echo mine", output=str(link))
    assert end.cause is EndCause.START_FAILED
    assert precious.read_text() == "of root"
    end, _ = await ran(node, agent, users.ann, "echo mine", key(3), output="/etc/passwd")
    assert end.cause is EndCause.START_FAILED
    end, _ = await ran(node, agent, users.ann, "echo mine", key(4), output=str(users.home(users.bob) / "x"))
    assert end.cause is EndCause.START_FAILED
    assert list(users.home(users.bob).glob("x")) == []


async def test_a_file_that_is_written_belongs_to_the_user(users: Users, node: RealNode, agent: Listener) -> None:
    target = users.home(users.ann) / "mine.txt"
    end, _ = await ran(node, agent, users.ann, "echo mine", output=str(target))
    assert end.clean, end.error
    seen = target.stat()
    assert (seen.st_uid, seen.st_mode & 0o777, target.read_text()) == (uid_of(users.ann), 0o644, "mine\n")


async def test_a_user_that_is_unknown_has_no_file_made_for_it(users: Users, node: RealNode, agent: Listener) -> None:
    end, _ = await ran(node, agent, "nobody-of-this-name", "id", output=str(node.folder / "x"))
    assert end.cause is EndCause.START_FAILED
    assert "no user 'nobody-of-this-name' on node" in end.error
    assert not (node.folder / "x").exists()
