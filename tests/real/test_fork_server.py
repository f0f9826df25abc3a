"""The fork server: the same outcome as a fork of the runner, whatever becomes of it, and little memory."""

import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.agent.runner.process import fork_server, procfs
from stoker.agent.runner.process.account import actor
from stoker.agent.runner.process.cgroup import Cgroups, TaskCgroup, TaskLimits
from stoker.agent.runner.process.launch import Launch, answer_of
from stoker.agent.runner.process.launcher import RESTARTS_MAX, Launcher
from stoker.agent.runner.protocol import read_start
from tests.contracts.runner import agent_on, key
from tests.real.runner_node import RealNode, is_alive, node_in, wait_until

MIB_MAX = 20.0
SERVER = fork_server.PROCESS_NAME.decode()
SEES = """
import ctypes, json, os, resource, sys
status = dict(line.rstrip('\\n').split(':\\t', 1) for line in open('/proc/self/status') if ':\\t' in line)
death = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(death))
mask = os.umask(0)
print(json.dumps({
    'status': {name: status.get(name) for name in ('Uid', 'Gid', 'Groups', 'SigBlk', 'SigIgn', 'SigCgt', 'CapInh',
        'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp', 'Cpus_allowed_list', 'PPid')},
    'leads': [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()], 'dies_with': death.value, 'umask': mask,
    'limits': {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name[:7] == 'RLIMIT_'},
    'argv': sys.argv, 'env': dict(os.environ), 'cwd': os.getcwd(), 'cgroup': open('/proc/self/cgroup').read(),
    'oom': open('/proc/self/oom_score_adj').read(), 'nice': os.nice(0),
    'open': sorted(map(int, os.listdir('/proc/self/fd'))),
}))
"""
PYTHON = [sys.executable, "-I", "-S", "-c", SEES]
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
COMMANDS = st.one_of(
    st.lists(TEXT, max_size=3).map(lambda words: [*PYTHON, *words]),
    st.sampled_from([["true"], ["no-such-program"], ["/tmp"], ["/etc/passwd"], ["./missing"], ["odd"]]),
)


@contextmanager
def launching() -> Iterator[Launcher]:
    """A launcher whose fork server is ready."""
    helped: list[int] = []
    launcher = Launcher(helped.append)
    try:
        ended(*launcher.fork(launch_of({"argv": ["true"]}), streams := (os.open("/dev/null", os.O_RDWR),) * 3))
        os.close(streams[0])
        wait_until(launcher._ready, "the fork server is ready")
        yield launcher
    finally:
        launcher._end()


def launch_of(asked: dict[str, object], group: TaskCgroup | None = None) -> Launch:
    message = {"key": "1.1.0", "shell": "", "argv": [], "env": {}, "gpus": [], "workdir": "/", "user": "", **asked}
    message |= {"memory_mb": 0, "probe_port": 0}
    start = read_start(message)
    account = actor("", "here", allow_root=True)
    return Launch(start, ("STOKER_TASK_MARK", "mark"), start["workdir"], account, group or TaskCgroup([]))


def ended(pid: int, answer: int) -> tuple[int, str]:
    """Exit status of a child, and why it didn't become the program."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    reason = answer_of(answer, bytearray())
    os.close(answer)
    assert reason is not None, "it has ended"
    return status, reason


def is_inherited(number: int) -> bool:
    """Whether this process, unlike a runner, has a descriptor that its children get."""
    with suppress(OSError):
        return os.get_inheritable(number)
    return False


def outcome(fork: Callable[[Launch, tuple[int, int, int]], tuple[int, int]], launch: Launch) -> object:
    """What comes of a launch: what the program sees, its exit status, and why it never ran."""
    with tempfile.TemporaryFile() as seen, open("/dev/null", "rb") as null:
        status, reason = ended(*fork(launch, (null.fileno(), seen.fileno(), seen.fileno())))
        seen.seek(0)
        words = seen.read()
    if launch.argv[0] == PYTHON[0].encode() and status != 127:
        told = json.loads(words)
        # glibc's posix_spawn has its own signals 32 and 33 ignored: the runner, which is spawned, has them so, not we.
        told["status"]["SigIgn"] = int(told["status"]["SigIgn"], 16) & 0x7FFFFFFF
        told["open"] = [number for number in told["open"] if not (number > 2 and is_inherited(number))]
        return told
    return words, status, launch.fault(reason)


@pytest.mark.parametrize("tree", ["v2", "v1", "scan"])
def test_a_child_of_the_fork_server_is_in_every_respect_as_one_of_the_runner(tree: str, tmp_path: Path) -> None:
    """L2: session, cgroups, limits, umask, signals, account, capabilities, descriptors, and the words of failures."""
    cgroups = Cgroups(str(tmp_path), tree)
    if tree != "scan" and cgroups.tree is None:
        pytest.skip(f"no cgroup of {tree} can be made here")
    (tmp_path / "odd").mkdir()
    (tmp_path / "denied").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "denied" / "odd").write_text("no program")
    limits = TaskLimits()
    limits.pids_max, limits.cpus, limits.cpu_limit = 100, 1, "weight"
    group = cgroups.group("1.1.0", limits)
    group.make()
    try:
        with launching() as launcher:

            @settings(max_examples=10)
            @given(
                argv=COMMANDS,
                env=st.dictionaries(st.from_regex("[A-Z_]{1,8}", fullmatch=True), TEXT, max_size=4),
                umask=st.sampled_from([0o22, 0o77, 0]),
                workdir=st.sampled_from([str(tmp_path), str(tmp_path / "missing"), "/etc/passwd"]),
                limits=st.dictionaries(
                    st.sampled_from(["nofile", "core", "memlock"]), st.sampled_from([[64, 128], [256, 256]]), max_size=2
                ),
                cpu_list=st.sampled_from([[], [0]]),
                folder=st.sampled_from(["", str(tmp_path / "deep" / "kept"), "/proc/kept", str(tmp_path / "file")]),
            )
            def same(argv: list[str], workdir: str, **asked: object) -> None:
                path = f"{tmp_path}/denied:{tmp_path}:/usr/bin:/bin"
                env = {"PATH": path, **asked.pop("env")}  # type: ignore[dict-item]  # a dictionary of texts
                launch = launch_of({"argv": argv, "workdir": workdir, "env": env, **asked}, group)
                assert launch.is_plain
                by_us = outcome(lambda launch, streams: launch.fork(streams), launch)
                assert launcher._laid_out(launch)
                assert outcome(launcher.fork, launch) == by_us
                assert launcher.pid, "the fork server has forked it"

            same()
    finally:
        assert group.remove()


def test_what_is_large_is_started_all_the_same() -> None:
    with launching() as launcher:
        launch = launch_of({"argv": ["sh", "-c", 'echo "${#LONG}"'], "env": {"LONG": "x" * 100_000, "PATH": "/bin"}})
        assert outcome(launcher.fork, launch) == (b"100000\n", 0, "")
        argv = ["sh", "-c", 'echo "$#"', *("x" * 1_000 for _ in range(900))]
        assert outcome(launcher.fork, launch_of({"argv": argv, "env": {"PATH": "/bin"}})) == (b"899\n", 0, "")


def changed_server(folder: Path, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Path(str(fork_server.__file__)).read_text()
    assert old in program
    (folder / "changed.py").write_text(program.replace(old, new))
    monkeypatch.setattr(fork_server, "__file__", str(folder / "changed.py"))


def test_a_child_is_known_whose_server_died_before_it_could_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L1. Else its task would be started a second time."""
    changed_server(tmp_path, "        os.closerange(FIRST, last)\n", "        os._exit(1)\n", monkeypatch)
    with launching() as launcher:
        server = launcher.pid
        launch = launch_of({"argv": ["sh", "-c", "echo ran; exit 7"], "env": {"PATH": "/bin"}})
        assert outcome(launcher.fork, launch) == (b"ran\n", 7, "")
        assert not is_alive(server)


def test_where_the_kernel_lets_nobody_fork_so_the_runner_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L3. Such a server isn't started again and again."""
    changed_server(tmp_path, "_SYS_CLONE3 = 435", "_SYS_CLONE3 = 9999", monkeypatch)
    with launching() as launcher:
        launch = launch_of({"argv": ["sh", "-c", "echo ran"], "env": {"PATH": "/bin"}})
        assert outcome(launcher.fork, launch) == (b"ran\n", 0, "")
        assert launcher.pid == 0
        assert outcome(launcher.fork, launch) == (b"ran\n", 0, "")
        assert launcher.pid == 0


def test_a_server_that_is_stopped_holds_a_start_up_for_a_moment_only() -> None:
    with launching() as launcher:
        server = launcher.pid
        os.kill(server, signal.SIGSTOP)
        launch = launch_of({"argv": ["sh", "-c", "echo ran"], "env": {"PATH": "/bin"}})
        assert outcome(launcher.fork, launch) == (b"ran\n", 0, "")
        assert not is_alive(server)


def test_one_that_dies_at_once_is_given_up_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "changed.py").write_text("")
    monkeypatch.setattr(fork_server, "__file__", str(tmp_path / "changed.py"))
    helped: list[int] = []
    ours = Launcher(helped.append)
    for _ in range(RESTARTS_MAX + 3):
        assert outcome(ours.fork, launch_of({"argv": ["true"], "env": {"PATH": "/bin"}})) == (b"", 0, "")
        with suppress(ChildProcessError):
            ours.reaped(os.waitpid(ours.pid, 0)[0]) if ours.pid else None
    assert len(helped) == RESTARTS_MAX + 1


# --- in a runner ------------------------------------------------------------------------------------------------


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[RealNode]:
    async with node_in(tmp_path) as node:
        yield node


def server_of(node: RealNode) -> int:
    """The fork server of a runner, waited for."""
    found: list[int] = []

    def looked() -> bool:
        procs = procfs.every_proc().values()
        names = {proc.pid: procfs.process_name(proc.pid) for proc in procs if proc.parent == node.runner_pid}
        found[:] = [pid for pid, name in names.items() if name == SERVER]
        return bool(found)

    wait_until(looked, "the runner has a fork server")
    return found[0]


def mib_of(pid: int) -> float:
    """Memory of a process, pages that it shares counted in parts."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(rollup.split("Pss:")[1].split()[0]) / 1024


async def test_tasks_outlive_the_server_that_has_forked_them_and_more_are_started_without_it(node: RealNode) -> None:
    async with agent_on(node) as agent:
        await agent.runner.start(node.shell(key(1), "true"))
        await agent.end(key(1))
        server = server_of(node)
        await agent.runner.start(node.shell(key(2), "while [ ! -e go ]; do sleep 0.01; done; exit 6"))
        await agent.running(key(2))
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: not is_alive(server), "the fork server is gone")
        for job in range(3, 9):
            await agent.runner.start(node.shell(key(job), "exit 5"))
        assert [(await agent.end(key(job))).exit_code for job in range(3, 9)] == [5] * 6
        (node.folder / "go").touch()
        assert (await agent.end(key(2))).exit_code == 6
        assert server_of(node) != server


async def test_many_that_start_at_once_are_each_what_they_were_asked_to_be(node: RealNode) -> None:
    """The next order comes before the last child has become its program."""
    async with agent_on(node) as agent:
        await agent.runner.start(node.shell(key(1), "true"))
        await agent.end(key(1))
        server_of(node)
        for job in range(2, 102):
            folder = node.folder / str(job)
            folder.mkdir()
            await agent.runner.start(node.shell(key(job), f'echo {job} "$JOB" > seen', workdir=str(folder)))
        for job in range(2, 102):
            await agent.end(key(job))
        assert [(node.folder / str(job) / "seen").read_text() for job in range(2, 102)] == [
            f"{job} \n" for job in range(2, 102)
        ]


async def test_it_is_small_beside_its_runner_and_ends_with_it(node: RealNode) -> None:
    """L4."""
    async with agent_on(node) as agent:
        for job in range(1, 101):
            await agent.runner.start(node.shell(key(job), "echo some output"))
        for job in range(1, 101):
            await agent.end(key(job))
            await agent.runner.settle(key(job))
        server = server_of(node)
        print(f"runner {mib_of(node.runner_pid):.1f}, fork server {mib_of(server):.1f} MiB")
        assert mib_of(node.runner_pid) + mib_of(server) <= MIB_MAX
        node.kill_runner_and_guard()
        wait_until(lambda: not is_alive(server), "the fork server has ended with its runner")
