"""A machine for tests: a data folder with a real runner, and what of it lives."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from stoker.adapters.clock import SystemClock
from stoker.agent.ports import StartTask
from stoker.agent.runner.process import procfs
from stoker.agent.runner.process.cgroup import _PREFIX as CGROUP_PREFIX
from stoker.agent.runner_socket import RunnerSocket
from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.instruction import Start, TaskKey
from stoker.brain.domain.job import CommandLine
from stoker.brain.domain.units import Mono
from tests.contracts.runner import agent_on
from tests.real.forks import SRC

PATH = "/usr/local/bin:/usr/bin:/bin"
POLL_S = 0.01
WAIT_S_MAX = 20.0
_TETHER_S = 30.0
"""Should a test be killed, its runner ends by itself."""


TREE_MODES = ("v2", "v1", "scan")


@cache
def cgroups_here(mode: str) -> tuple[bool, bool]:
    """Can a task have a cgroup here, and one that limits its memory?

    A process of its own is asked: a child born in a cgroup may find locks held that threads of this one had.
    """
    program = (
        "import sys; from stoker.agent.runner.process.cgroup import Cgroups; "
        "found = Cgroups(*sys.argv[1:]); print(found.tree is not None, found.memory is not None)"
    )
    with TemporaryDirectory() as folder:
        words, environ = [sys.executable, "-c", program, folder, mode], {**os.environ, "PYTHONPATH": str(SRC)}
        said = subprocess.run(words, env=environ, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout
    tree, memory = said.split()
    return tree == "True", memory == "True"


@asynccontextmanager
async def node_in(folder: Path, **options: object) -> AsyncIterator["RealNode"]:
    """A node that leaves nothing behind: no process, no cgroup."""
    mode = str(options.get("tree", "auto"))
    if mode in ("v1", "v2") and not cgroups_here(mode)[0]:
        pytest.skip(f"no cgroup of {mode} can be made here")
    node = RealNode(folder, **options)
    (folder / "agent").mkdir(mode=0o700, exist_ok=True)
    older = node.cgroup_folders()  # a killed runner's: its data folder is gone, and this one got the inode number
    try:
        yield node
    finally:
        async with agent_on(node) as agent:
            await agent.runner.shutdown()
        node.close()
    assert set(node.cgroup_folders()) <= set(older)


class RealNode:
    """Runs real processes below `folder`."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder = folder
        self.options: dict[str, object] = {"tether_s": _TETHER_S, **options}
        self.mark = f"{os.getpid()}-{folder.name}"
        self.clock = SystemClock()
        self.allow_root = True
        """Tests may run as root; then so do their jobs, unless a test says more."""
        self.every_start: dict[str, object] = {}
        """What else an agent says of each start."""
        self._listeners: list[socket.socket] = []

    # --- the contract's node ------------------------------------------------------------------------------------

    def agent(self) -> RunnerSocket:
        every_start = {"allow_root": self.allow_root, **self.every_start}
        return RunnerSocket(self.folder / "agent", self.clock, self.options, every_start)

    def task(self, key: TaskKey, *, lasts_s: float, exit_code: int = 0, stubborn: bool = False) -> StartTask:
        trap = "trap '' TERM; " if stubborn else ""
        note = f"echo started >> {self._starts(key)}; "
        # The shell becomes the sleep where it may, so that a terminate signal meets one process.
        wait = f"sleep {lasts_s}; exit {exit_code}" if exit_code or stubborn else f"exec sleep {lasts_s}"
        return self.shell(key, trap + note + wait)

    def noting(self, key: TaskKey, number: int) -> StartTask:
        trap = f"trap 'echo noted >> {self._signals(key)}' {number}; echo started >> {self._starts(key)}; "
        return self.shell(key, trap + "while :; do sleep 0.05; done")

    def signals(self, key: TaskKey) -> int:
        return _lines(self._signals(key))

    def on_port(self, task: StartTask, *, taken: bool) -> StartTask:
        port = free_port()
        if taken:
            listener = socket.create_server(("127.0.0.1", 0))
            self._listeners.append(listener)
            port = listener.getsockname()[1]
        return msgspec.structs.replace(task, start=msgspec.structs.replace(task.start, probe_port=port))

    def kill_runner(self) -> None:
        os.kill(self.runner_pid, signal.SIGKILL)

    def kill_runner_and_guard(self) -> None:
        """What they leave, only the next runner ends; but for leaders, which the kernel ends with the runner."""
        runner = self.runner_pid
        os.kill(self.guard_pid, signal.SIGKILL)
        os.kill(runner, signal.SIGKILL)

    def now(self) -> Mono:
        return self.clock.mono()

    def lives(self, key: TaskKey) -> bool:
        return bool(self.living(key))

    def starts(self, key: TaskKey) -> int:
        return _lines(self._starts(key))

    # --- more that real processes can show ----------------------------------------------------------------------

    def shell(self, key: TaskKey, line: str, **start: object) -> StartTask:
        return self.command(key, line, {}, **start)

    def command(self, key: TaskKey, command: CommandLine, env: Mapping[str, str], **start: object) -> StartTask:
        """A task with this command; `start` are fields of `Start`."""
        fields = {"workdir": str(self.folder), "gpus": (), "cpus": 1, "memory_mb": 0, **start}
        order = msgspec.convert(
            {"type": "start", "key": key, "epoch": Epoch(1), "command": command, "env": {}, **fields}, Start
        )
        return StartTask(start=order, env={"PATH": PATH, "TEST_MARK": f"{self.mark}-{key.job}-{key.rank}", **env})

    @property
    def runner_pid(self) -> int:
        return int((self.folder / "agent" / "runner.lock").read_text())

    @property
    def guard_pid(self) -> int:
        return parent_of(self.runner_pid)

    def living(self, key: TaskKey) -> list[int]:
        """Pids of living processes of that task, wherever they went."""
        wanted = f"TEST_MARK={self.mark}-{key.job}-{key.rank}".encode()
        return [proc.pid for proc in procfs.every_proc().values() if wanted in _environ(proc.pid)]

    def pid_in(self, name: str) -> int:
        """A pid that a job wrote to this file, waited for."""
        path = self.folder / name
        wait_until(lambda: path.exists() and path.read_text().endswith("\n"), f"{name} has a pid")
        return int(path.read_text())

    def rss_kb(self) -> int:
        status = Path(f"/proc/{self.runner_pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    @property
    def cgroups(self) -> bool:
        """Does each task get one here?"""
        return cgroups_here(str(self.options.get("tree", "auto")))[0]

    def cgroup_folders(self) -> list[str]:
        """Those of our tasks that are there now."""
        folder = (self.folder / "agent").stat()
        ours = f"{CGROUP_PREFIX}{folder.st_dev:x}-{folder.st_ino:x}-"
        walked = os.walk("/sys/fs/cgroup")
        return [f"{parent}/{name}" for parent, names, _ in walked for name in names if name.startswith(ours)]

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()

    def _starts(self, key: TaskKey) -> Path:
        return self.folder / f"starts.{key.job}.{key.rank}"

    def _signals(self, key: TaskKey) -> Path:
        return self.folder / f"signals.{key.job}.{key.rank}"


def parent_of(pid: int) -> int:
    proc = procfs.read_proc(pid)
    assert proc is not None, f"process {pid} is gone"
    return proc.parent


def is_alive(pid: int) -> bool:
    return procfs.read_proc(pid) is not None


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll, with a bound."""
    until = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < until, f"waited {WAIT_S_MAX} s in vain: {what}"
        time.sleep(POLL_S)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
