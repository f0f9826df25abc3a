"""A real `stoker up` for benchmarks, and the floors that its figures are held against."""

import contextlib
import http.client
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.sharing import NOBODY, Access, make_alone, share
from stoker.agent.runner.guard import PROCESS_NAME
from stoker.agent.runner.process import fork_server

FORK_SERVER = fork_server.PROCESS_NAME.decode()
START_S_MAX = 120.0
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Up:
    """A running embedded cluster."""

    port: int
    pid: int
    data_dir: Path
    access: Access = NOBODY

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.access.asking}"} if self.access.asking else {}

    def get(self, path: str) -> dict[str, object]:
        return self.request("GET", path)

    def request(self, method: str, path: str, body: object = None) -> dict[str, object]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, f"/api/v1/{path}", None if body is None else json.dumps(body), self.headers)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status < 300, f"{method} {path}: {answer.status} {text[:300]!r}"
            return dict(json.loads(text))
        finally:
            connection.close()

    def wait_until_idle(self, seconds_max: float = 120.0) -> None:
        """Until no job waits or runs."""
        until = time.monotonic() + seconds_max
        while time.monotonic() < until:
            status = self.get("cluster/status")
            if not status["pending_jobs"] and not status["running_jobs"] and not status.get("live_jobs", 0):
                return
            time.sleep(0.1)  # each question costs the control plane as much as a job does
        raise TimeoutError(f"jobs still go on after {seconds_max} s: {self.get('cluster/status')}")


@contextlib.contextmanager
def stoker_up(nodes: int, gpus_per_node: int, *, alone: bool = False) -> Iterator[Up]:
    """`stoker up` with simulated GPUs and real agents, runners and jobs; ends it and its folder afterwards.

    Unless it is `alone` it has tenants, and whoever asks shows a token, though nobody has to here.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        port = free_port()
        command = [sys.executable, "-m", "stoker", "up", "--nodes", str(nodes), "--gpus-per-node", str(gpus_per_node)]
        command += ["--http-port", str(port), "--grpc-port", str(free_port()), "--data-dir", folder]
        with open(Path(folder) / "up.log", "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        up = Up(port, process.pid, Path(folder))
        try:
            _await_nodes(up, nodes, process)
            url = f"http://127.0.0.1:{port}"
            if alone:
                make_alone(url)
            yield up if alone else replace(up, access=Access(user=share(url)))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _await_nodes(up: Up, nodes: int, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + START_S_MAX
    while time.monotonic() < until and process.poll() is None:
        try:
            if up.get("cluster/status")["online_nodes"] == nodes:
                return
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.1)
    raise TimeoutError(f"`stoker up` wasn't ready: {(up.data_dir / 'up.log').read_text()[-2000:]}")


def fsyncs_per_second(folder: Path, seconds: float = 0.5) -> float:
    """write + fdatasync of 400 bytes, one after the other."""
    fd = os.open(folder / "fsync-floor", os.O_WRONLY | os.O_CREAT)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        os.write(fd, b"x" * 400)
        os.fdatasync(fd)
        done += 1
    took = time.perf_counter() - began
    os.close(fd)
    return done / took


def tree_rss_mib(root: int) -> dict[str, list[float]]:
    """Resident MiB of the processes of a `stoker up`, by what they are. Runners are found by their command line,
    since they leave their parent on purpose."""
    found: dict[str, list[float]] = {"control": [], "agent": [], "runner": [], "guard": [], "fork server": []}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            argv = (entry / "cmdline").read_bytes().split(b"\0")
            name = (entry / "comm").read_text().strip()
            rss = next(line for line in (entry / "status").read_text().splitlines() if line.startswith("VmRSS"))
        except (OSError, StopIteration):
            continue
        mib = int(rss.split()[1]) / 1024
        if int(entry.name) == root:
            found["control"].append(mib)
        elif b"stoker.agent.runner" in argv:
            found["guard" if name == PROCESS_NAME else "runner"].append(mib)
        elif name == FORK_SERVER:
            found["fork server"].append(mib)
        elif b"agent" in argv and b"stoker" in argv:
            found["agent"].append(mib)
    return found


def cpu_ms(root: int) -> dict[int, tuple[str, float]]:
    """Each process of a `stoker up` with its kind and the milliseconds of CPU that it has used; what ended counts as
    its parent's, under `children`, with the runner's number negated."""
    seen: dict[int, tuple[int, str, float, float]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            argv, name = (entry / "cmdline").read_bytes().split(b"\0"), (entry / "comm").read_text().strip()
            threads = [(thread / "schedstat").read_text().split()[0] for thread in (entry / "task").iterdir()]
        except OSError:
            continue
        kind = "fork server" if name == FORK_SERVER else "control" if int(entry.name) == root else "agent"
        if b"stoker.agent.runner" in argv:
            kind = "guard" if name == PROCESS_NAME else "runner"
        own_ms = sum(map(int, threads)) / 1e6
        seen[int(entry.name)] = (int(fields[1]), kind, own_ms, (int(fields[13]) + int(fields[14])) * _TICK_MS)
    found: dict[int, tuple[str, float]] = {}
    for pid, (_, kind, own_ms, children_ms) in seen.items():
        above = pid
        while above in seen and above != root:
            above = seen[above][0]
        if above == root:
            found[pid] = (kind, own_ms)
            if kind == "runner":
                found[-pid] = ("children", children_ms)
    return found


def machine() -> str:
    return f"CPython {platform.python_version()}, {os.cpu_count()} cores, Linux {platform.release()}"
