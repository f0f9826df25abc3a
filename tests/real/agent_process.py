"""An agent as a process of its own, started by its command line, over a folder that outlives it."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.real.control_process import ControlProcess, pause
from tests.real.forks import Started, started

WAIT_S_MAX: Final = 30.0


def until(true: Callable[[], object], what: str, within_s: float = WAIT_S_MAX) -> None:
    began = time.monotonic()
    while not true():
        assert time.monotonic() < began + within_s, f"{what}: not within {within_s} s"
        pause(began)


class AgentProcess:
    """Started by `start`; on exit it, its runner and what that runs are killed. Its jobs run as whoever runs the test.

    Without a control plane it looks for one where there is none.
    """

    def __init__(
        self, folder: Path, control: ControlProcess | None = None, *, name: str = "node-1", gpus: int = 4
    ) -> None:
        self.folder, self.name = folder, name
        self.data_dir = folder / "data"
        self.settings = folder / "agent.yaml"
        self.environ = {"STOKER__EXECUTOR__ALLOW_ROOT": "true"}
        self.limits: dict[int, int] = {}
        """As `ulimit` sets them, by their numbers in `resource`."""
        self.from_scratch = False
        """Not a fork of a process that has imported more than an agent: its memory is what it is elsewhere."""
        insecure = control is None or control.tls == "off"
        if control is not None and insecure:
            self.environ["STOKER__CONTROL__TOKEN_FILE"] = str(control.tokens.agent_file)
        grpc_port = control.grpc_port if control else 1
        self._process: Started | None = None
        folder.mkdir(parents=True, exist_ok=True)
        script = folder / "gpus.yaml"
        script.write_text(f"gpus: [{{count: {gpus}, model: Tesla V100, memory_mb: 16384}}]\n")
        self.write(
            f"data_dir: {self.data_dir}",
            f"node: {{name: '{name}'}}" if name else "",
            f"control: {{addresses: ['127.0.0.1:{grpc_port}'], insecure: {str(insecure).lower()}}}",
            f"gpu: {{script: {script}}}",
            "log: {format: text}",
        )

    def take_jobs_of(self, *accounts: str) -> None:
        """Where no cgroup can be made, as in a bare container, only accounts that are named are taken."""
        self.environ["STOKER__EXECUTOR__ACCOUNTS_WITHOUT_CGROUPS"] = ",".join(accounts)

    def write(self, *lines: str) -> None:
        self.settings.write_text("\n".join(lines) + "\n")

    def add(self, line: str) -> None:
        self.write(self.settings.read_text(), line)

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def runner_pid(self) -> int:
        return int((self.data_dir / "runner.lock").read_text())

    def output(self) -> str:
        path = self.folder / "agent.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> Self:
        with (self.folder / "agent.out").open("ab") as output:
            words = [sys.executable, "-m", "stoker", "agent", "-c", str(self.settings)]
            env = {**os.environ, **self.environ}
            self._process = started(words, out=output, env=env, limits=self.limits, from_scratch=self.from_scratch)
        return self

    def know(self, addresses: Sequence[str], *, token_file: Path | None = None, join_token: str = "") -> Self:
        """Let it know these control planes: in plain text with the token of that file, or over TLS, after it joined."""
        known = [line for line in self.settings.read_text().splitlines() if not line.startswith("control:")]
        if token_file is not None:
            self.environ["STOKER__CONTROL__TOKEN_FILE"] = str(token_file)
            quoted = ", ".join(f"'{address}'" for address in addresses)
            self.write(*known, f"control: {{addresses: [{quoted}], insecure: true}}")
            return self
        self.write(*known)
        # Of two control planes none may be active just now: on a busy machine a lease can go from one to the other.
        until(lambda: self.join(",".join(addresses), join_token)[0] == 0, f"{self.folder / 'join.out'} says why not")
        return self

    def join(self, addresses: str, token: str) -> tuple[int, str]:
        """The exit status of `stoker agent join`, and what it said."""
        out = self.folder / "join.out"
        words = [sys.executable, "-m", "stoker", "agent", "join", addresses, "--token", token]
        with out.open("wb") as output:
            env = {**os.environ, **self.environ}
            status = started([*words, "-c", str(self.settings)], out=output, env=env).wait(WAIT_S_MAX)
        return status, out.read_text()

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None, "not started"
        self._process.kill()
        self._process.wait(WAIT_S_MAX)

    def terminate(self) -> int:
        assert self._process is not None, "not started"
        self._process.terminate()
        return self._process.wait(WAIT_S_MAX)

    def wait(self) -> int:
        assert self._process is not None, "not started"
        return self._process.wait(WAIT_S_MAX)

    def rss_mb(self) -> float:
        return rss_mb(self.pid)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        with suppress(OSError, ValueError):
            # Its jobs are in its process tree or were taken over by it; on SIGTERM it goes on, so they go first.
            runner = self.runner_pid
            for pid in descendants(runner):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.kill(runner, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for child in _children(pid):
        found += [child, *descendants(child)]
    return found


def _children(pid: int) -> list[int]:
    """The children of every thread: the reader of NVML is begun by one that isn't the first."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, file.read_text().split())
    return sorted(found)


def alive(pid: int) -> bool:
    """Runs, and isn't a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has no memory")


def submit(control: ControlProcess, command: object, **fields: object) -> str:
    status, answer = control.ask("POST", "/api/v1/jobs", {"command": command, "gpu_count": 1, **fields})
    assert status == 201, answer
    return str(answer["id"])


def job(control: ControlProcess, job_id: str) -> dict[str, Any]:
    status, answer = control.ask("GET", f"/api/v1/jobs/{job_id}")
    assert status == 200, answer
    return dict(answer)


def until_state(control: ControlProcess, job_id: str, *states: str) -> dict[str, Any]:
    until(lambda: job(control, job_id)["state"] in states, f"job {job_id} is one of {states}")
    return job(control, job_id)
