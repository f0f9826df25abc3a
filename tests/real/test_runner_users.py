"""A job of a runner that is root runs as its own user and nobody else (U1 to U5 of `runner/process/account.py`)."""

import asyncio
import ctypes
import os
import pwd
import signal
import stat
import struct
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from stoker.agent.ports import RunnerGone, StartTask, TaskWarning
from stoker.agent.runner.process import account
from stoker.agent.runner.process.account import Actor, CannotStart, actor, child_error_text
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause, TaskEnd
from tests.contracts.runner import Listener, agent_on, key
from tests.real.runner_node import RealNode, is_alive, node_in, wait_until
from tests.real.unix_users import Users, in_a_child, made_users, needs_root, uid_of

pytestmark = needs_root
ONE = key(1)


@pytest.fixture(scope="module")
def users() -> Iterator[Users]:
    with made_users() as users:
        yield users


@pytest.fixture
async def node(users: Users) -> AsyncIterator[RealNode]:
    folder = Path(tempfile.mkdtemp(dir=users.folder))
    folder.chmod(0o711)
    async with node_in(folder, node="gpu-07") as node:
        node.allow_root = False
        yield node


@pytest.fixture
async def agent(node: RealNode) -> AsyncIterator[Listener]:
    before = os.umask(0o077)  # as a service manager may have it, and no job should
    try:
        async with agent_on(node) as agent:
            yield agent
    finally:
        os.umask(before)


async def ran(
    node: RealNode, agent: Listener, user: str, line: str, task: TaskKey = ONE, **start: object
) -> tuple[TaskEnd, str]:
    await agent.runner.start(node.shell(task, line, **{"workdir": "", **start}, user=user))
    end = await agent.end(task)
    return end, (await agent.runner.read_log(task, 0, 1 << 20)).data.decode()


def fields(status: str) -> dict[str, list[str]]:
    """/proc/PID/status."""
    return {name: rest.split() for name, _, rest in (line.partition(":") for line in status.splitlines())}


# --- who it is ----------------------------------------------------------------------------------------------------


async def test_every_id_is_the_users_and_no_capability_is_left(users: Users, node: RealNode, agent: Listener) -> None:
    """U3."""
    end, said = await ran(node, agent, users.ann, "cat /proc/self/status")
    assert end.clean, end.error
    seen, uid = fields(said), str(uid_of(users.ann))
    gid = str(pwd.getpwnam(users.ann).pw_gid)
    assert (seen["Uid"], seen["Gid"]) == ([uid] * 4, [gid] * 4)
    assert [seen[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Amb")] == [["0" * 16]] * 4


async def test_its_groups_are_exactly_those_of_the_account(users: Users, node: RealNode, agent: Listener) -> None:
    """None of the agent's, which is root's."""
    for task, user in ((key(1), users.ann), (key(2), users.bob)):
        end, said = await ran(node, agent, user, "cat /proc/self/status", task)
        assert end.clean, end.error
        known = pwd.getpwnam(user)
        groups = {str(gid) for gid in os.getgrouplist(user, known.pw_gid)}
        assert set(fields(said)["Groups"]) == groups
        assert "0" not in groups
        assert len(groups) == (2 if user == users.ann else 1)


async def test_no_job_can_gain_privileges_neither_a_users_nor_roots(
    users: Users, node: RealNode, agent: Listener
) -> None:
    """U4, and so `stoker up`, which runs jobs as the account that started it."""
    _, said = await ran(node, agent, users.ann, "grep NoNewPrivs /proc/self/status")
    assert said.split() == ["NoNewPrivs:", "1"]
    node.allow_root = True
    async with agent_on(node) as trusting:
        _, said = await ran(node, trusting, "", "grep NoNewPrivs /proc/self/status", key(2))
    assert said.split() == ["NoNewPrivs:", "1"]


async def test_a_program_that_is_setuid_root_does_not_make_a_job_root(
    users: Users, node: RealNode, agent: Listener
) -> None:
    """U4. The same program run by the same user outside does: else this would prove nothing."""
    program = node.folder / "become"
    program.write_bytes(Path("/usr/bin/id").read_bytes())
    program.chmod(0o4755)
    uid, words = uid_of(users.ann), [str(program), "-u"]
    outside = subprocess.run(words, user=uid, group=uid, extra_groups=[], capture_output=True, text=True, check=True)
    if outside.stdout != "0\n":
        pytest.skip(f"NOT PROVED HERE: setuid programs have no effect in {node.folder}")
    end, said = await ran(node, agent, users.ann, " ".join(words))
    assert (end.clean, said) == (True, f"{uid}\n")


@pytest.mark.parametrize(
    "line",
    [
        "su -c id root < /dev/null",
        "setpriv --reuid 0 --clear-groups id",
        "python3 -c 'import os; os.setuid(0); print(\"uid=0\")'",
        "mount -t tmpfs none /mnt && echo uid=0",
        "chown 0 /proc/self/exe; cp /bin/sh sh && chmod 4755 sh && chown 0:0 sh && ./sh -c id",
    ],
)
async def test_nothing_that_a_job_tries_makes_it_root(users: Users, node: RealNode, agent: Listener, line: str) -> None:
    end, said = await ran(node, agent, users.ann, line)
    assert not end.clean
    assert "uid=0" not in said


async def test_it_has_what_a_login_sets_and_the_start_does_not_change_that(
    users: Users, node: RealNode, agent: Listener
) -> None:
    """U5: --export ALL brings the submitter's HOME along, from another machine."""
    task = node.command(
        ONE, "env; umask", {"HOME": "/of/another/machine", "USER": "root", "FOO": "bar"}, workdir="", user=users.ann
    )
    await agent.runner.start(task)
    assert (await agent.end(ONE)).clean
    said = (await agent.runner.read_log(ONE, 0, 1 << 20)).data.decode().splitlines()
    wanted = {f"HOME={users.home(users.ann)}", f"USER={users.ann}", f"LOGNAME={users.ann}", "SHELL=/bin/sh", "FOO=bar"}
    assert wanted <= set(said)
    assert said[-1] == "0022"


async def test_it_holds_three_descriptors_and_a_keyring_of_its_own(
    users: Users, node: RealNode, agent: Listener
) -> None:
    end, said = await ran(node, agent, users.ann, "ls /proc/self/fd")
    assert (end.clean, said.split()) == (True, ["0", "1", "2", "3"]), "3 is the listing's own"


@pytest.mark.parametrize("files", [{}, {"output": "out.txt", "error": "err.txt"}], ids=["kept", "in files"])
async def test_it_may_open_its_output_by_name(
    users: Users, node: RealNode, agent: Listener, files: dict[str, str]
) -> None:
    """As shell scripts do. A pipe belongs to whoever made it, which was root."""
    end, said = await ran(node, agent, users.ann, "echo out > /dev/stdout && echo err > /dev/stderr", ONE, **files)
    assert (end.clean, sorted(said.split())) == (True, ["err", "out"]), end.error


# --- who it can't be ----------------------------------------------------------------------------------------------


async def test_a_user_that_the_node_does_not_know_is_a_failure_to_start(node: RealNode, agent: Listener) -> None:
    """U2: never another account."""
    end, said = await ran(node, agent, "nobody-of-this-name", "id")
    assert (end.cause, said) == (EndCause.START_FAILED, "")
    assert "no user 'nobody-of-this-name' on node gpu-07" in end.error
    assert "getent passwd nobody-of-this-name" in end.error
    assert "--exclude gpu-07" in end.error


@pytest.mark.parametrize("name", ["", "root", "0", "toor", "+0", " root"])
async def test_root_is_refused_by_whatever_name(users: Users, node: RealNode, agent: Listener, name: str) -> None:
    """U1."""
    end, said = await ran(node, agent, users.toor if name == "toor" else name, "id")
    assert (end.cause, said) == (EndCause.START_FAILED, "")
    if name in ("", "root", "toor"):
        assert "gpu-07 runs no job as root" in end.error
        assert "token create --user" in end.error
        assert "executor.allow_root" in end.error


@pytest.mark.parametrize("name", ["", "root"])
async def test_where_the_node_allows_it_a_job_runs_as_root(node: RealNode, name: str) -> None:
    """U1. `stoker up`, started by root, does."""
    node.allow_root = True
    async with agent_on(node) as agent:
        end, said = await ran(node, agent, name, "id -u")
    assert (end.clean, said) == (True, "0\n")


def test_a_directory_of_accounts_that_hangs_ends_the_start_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel ends it, since a lookup in the C library hears no signal handler of Python's."""
    monkeypatch.setattr(account, "LOOKUP_S", 0.05)
    monkeypatch.setattr(pwd, "getpwnam", lambda name: signal.pause())

    def try_it(say: Callable[[bytes], object]) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # as the runner has it
        Actor("ann", "gpu-07", allow_root=False).take_on(say)

    words, status = in_a_child(try_it)
    assert os.WTERMSIG(status) == signal.SIGALRM
    assert "'ann' could not be looked up on node gpu-07" in child_error_text(words)


@pytest.mark.parametrize(("uid", "gid"), [(-1, 1234), (1234, -1)])
def test_an_account_whose_id_means_as_it_was_to_the_kernel_is_refused(
    monkeypatch: pytest.MonkeyPatch, uid: int, gid: int
) -> None:
    """U3: setresuid(-1, -1, -1) succeeds, and leaves root root."""
    entry = pwd.struct_passwd(("odd", "x", uid, gid, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: entry)
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: [1234])

    def try_it(say: Callable[[bytes], object]) -> None:
        try:
            Actor("odd", "gpu-07", allow_root=False).take_on(say)
        except CannotStart as error:
            say(str(error).encode())

    words, _ = in_a_child(try_it)
    assert "can't become user 'odd' on node gpu-07" in child_error_text(words)


def test_an_agent_that_is_not_root_runs_every_job_as_itself_and_hands_on_no_capability(users: Users) -> None:
    """Whatever user a job names; and whatever its service was given."""

    def try_it(say: Callable[[bytes], object]) -> None:
        _keep_the_right_to_kill_as(uid_of(users.ann))
        say(Path("/proc/self/status").read_bytes() + b"----\n")
        whoever = actor(users.bob, "gpu-07", allow_root=False)
        whoever.take_on(say)
        say(f"{whoever.name!r} {os.getresuid()}\n".encode() + Path("/proc/self/status").read_bytes())

    before, _, after = in_a_child(try_it)[0].decode().partition("----\n")
    assert fields(before)["CapAmb"] == ["0000000000000020"], "else this would prove nothing"
    assert after.startswith(f"'' {(uid_of(users.ann),) * 3}\n")
    assert [fields(after)[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Amb")] == [["0" * 16]] * 4


def _keep_the_right_to_kill_as(uid: int) -> None:
    """As systemd's AmbientCapabilities=CAP_KILL. Source: capabilities(7)."""
    libc, keep_caps, ambient, cap_kill = ctypes.CDLL(None), 8, 47, 5
    assert libc.prctl(keep_caps, 1, 0, 0, 0) == 0
    os.setresuid(uid, uid, uid)
    kill = struct.pack("=6I", *[1 << cap_kill] * 3, 0, 0, 0)
    assert libc.capset(struct.pack("=Ii", 0x20080522, 0), kill) == 0
    assert libc.prctl(ambient, 2, cap_kill, 0, 0) == 0


# --- what is its own ----------------------------------------------------------------------------------------------


async def test_the_attempts_own_folder_and_that_for_checkpoints_are_the_users_alone(
    users: Users, node: RealNode, agent: Listener
) -> None:
    folder = node.folder / "agent" / "checkpoints" / "1"
    task = node.shell(ONE, f"touch mine {folder}/mine; stat -c '%U %a' . {folder}", workdir="", user=users.ann)
    end, said = await _with_folder(agent, task, folder)
    assert (end.clean, said.splitlines()) == (True, [f"{users.ann} 700"] * 2), end.error


async def test_a_folder_for_checkpoints_of_somebody_else_is_refused(
    users: Users, node: RealNode, agent: Listener
) -> None:
    """Where anybody may make folders, somebody may have made this one."""
    folder = node.folder / "shared" / "1"
    folder.mkdir(parents=True)
    os.chown(folder, uid_of(users.bob), -1)
    end, _ = await _with_folder(agent, node.shell(ONE, "id", workdir="", user=users.ann), folder)
    assert end.cause is EndCause.START_FAILED
    assert f"{folder} belongs to another account" in end.error
    link = node.folder / "shared" / "2"
    link.symlink_to(users.home(users.ann))
    end, _ = await _with_folder(agent, node.shell(key(2), "id", workdir="", user=users.ann), link)
    assert end.cause is EndCause.START_FAILED
    assert str(link) in end.error


async def _with_folder(agent: Listener, task: StartTask, folder: Path) -> tuple[TaskEnd, str]:
    await agent.runner.start(msgspec.structs.replace(task, folder=str(folder)))
    end = await agent.end(task.start.key)
    return end, (await agent.runner.read_log(task.start.key, 0, 1 << 20)).data.decode()


async def test_a_working_directory_that_is_closed_to_the_user_is_refused(
    users: Users, node: RealNode, agent: Listener
) -> None:
    end, _ = await ran(node, agent, users.ann, "id", workdir=str(users.home(users.bob)))
    assert end.cause is EndCause.START_FAILED
    assert f"as user '{users.ann}': Permission denied" in end.error


async def test_a_stopped_tree_of_a_user_is_gone_whatever_it_did(users: Users, node: RealNode, agent: Listener) -> None:
    line = "trap '' TERM; setsid sh -c 'trap \"\" TERM; touch up; sleep 300' & while :; do sleep 0.1; done"
    await agent.runner.start(node.shell(ONE, line, user=users.ann, workdir=str(users.home(users.ann))))
    wait_until((users.home(users.ann) / "up").exists, "its child runs")
    await agent.runner.stop(ONE, 100)
    assert (await agent.end(ONE)).cause is EndCause.STOPPED
    assert node.living(ONE) == []


async def test_when_runner_and_guard_are_killed_the_next_runner_ends_what_users_left(
    users: Users, node: RealNode
) -> None:
    async with agent_on(node) as agent:
        line = "setsid sh -c 'touch up2; sleep 300' & sleep 300"
        await agent.runner.start(node.shell(ONE, line, user=users.ann, workdir=str(users.home(users.ann))))
        wait_until((users.home(users.ann) / "up2").exists, "its child runs")
        leader = (await agent.running(ONE)).pid
        node.kill_runner_and_guard()
        await agent.hear(RunnerGone)
        wait_until(lambda: not is_alive(leader), "the kernel ends the leader, though it is another account's")
        assert node.living(ONE), "its child is left"
    async with agent_on(node) as agent:
        assert (await agent.known_end(ONE)).cause is EndCause.RUNNER_LOST
        assert node.living(ONE) == []


async def test_a_user_job_leaves_no_folder_open_to_others(users: Users, node: RealNode, agent: Listener) -> None:
    """Of the data folder others may pass through some, and list none."""
    await ran(node, agent, users.ann, "touch mine")
    data = node.folder / "agent"
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in data.iterdir()}
    assert stat.S_IMODE(data.stat().st_mode) & 0o066 == 0
    through = {name: mode for name, mode in modes.items() if mode & 0o077}
    assert through == dict.fromkeys(("work", "hosts", "notices"), 0o711)


async def test_the_notice_of_a_user_is_read_and_written_by_nobody_else_but_the_runner(
    users: Users, node: RealNode, agent: Listener
) -> None:
    """Were its folder the job's own, a link there could lead the runner, which is root, to any file."""
    line = (
        "cd $(dirname $STOKER_PREEMPT_FILE); ls . 2> /dev/null && echo listed; "
        "ln -s /etc/passwd $STOKER_PREEMPT_FILE 2> /dev/null && echo linked; "
        "trap 'cat $STOKER_PREEMPT_FILE; exit 0' USR1; echo ready; while :; do sleep 0.02; done"
    )
    await agent.runner.start(node.shell(ONE, line, workdir="", user=users.ann))
    async with asyncio.timeout(20):
        while b"ready" not in (await agent.runner.read_log(ONE, 0, 1_000)).data:
            await asyncio.sleep(0.01)
    warning = TaskWarning(signal=signal.SIGUSR1, text="give way\n", lead_ms=60_000)
    await agent.runner.stop(ONE, 10_000, warning)
    assert (await agent.end(ONE)).exit_code == 0
    said = (await agent.runner.read_log(ONE, 0, 1_000)).data.decode().splitlines()
    assert (said[0], said[-1]) == ("ready", "give way")
