"""How well are others served while one tenant does all that its budgets let it do?

Run: `PYTHONPATH=src python -m benchmarks.hostile [--seconds 20] [--dir FOLDER]`. A `stoker control` with the settings
that it has by default is pinned to core 0. A process of the hostile tenant, on core 1, first submits held jobs of the
largest size until it is refused, then all at once and without pause, whatever it is told: asks for lists of 1,000 jobs,
whole and as they are, on eight connections; submits and cancels jobs of the largest size on two; keeps as many streams
of events open as it may; and keeps idle connections. Beside it, at a higher priority on the same core, somebody of
another tenant submits twenty jobs a second and asks for `/health` as often. Memory is the most that the control plane
ever had resident.

Must: the control plane within 1 GiB, 99 % of the others' submits within 50 ms, `/health` within 100 ms.
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.cluster import fsyncs_per_second, machine
from benchmarks.sharing import Access
from benchmarks.submissions import Control, control_on_core_0, request_of
from stoker.brain.domain.access import Role
from stoker.wire.client import Client
from stoker.wire.rest.token import NewTokenBody

RSS_MIB, SUBMIT_MS, HEALTH_MS = 1_024, 50, 100
DEFAULTS: Final = (
    "http.rate_per_principal=200",
    f"policy.job_bytes_max={1 << 30}",
    "policy.tenant_pending_jobs_max=100000",
)
LARGEST: Final = {"command": "x" * 122_000, "env": {"A": "x" * 130_000}, "hold": True}
PER_REQUEST: Final = 25
LISTING, CHURNING, IDLE, STREAMS = 8, 2, 500, 300
EVERY_S: Final = 0.05


class Asker:
    """One connection that is kept, with a token."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._more = f"Authorization: Bearer {token}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Return status and body; connect where that was not done, or was undone."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        reader, writer = self._streams
        try:
            writer.write(request_of(method, path, body, self._more))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
            return int(head[9:12]), await reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError):
            self._streams = None
            writer.close()
            raise


# -- the hostile tenant ------------------------------------------------------------------------------------------------


async def hostile(port: int, token: str) -> None:
    """Do all that there are budgets for, until the process is ended; say what was answered when told to stop."""
    said: Counter[str] = Counter()
    bulk = json.dumps({"jobs": [LARGEST] * PER_REQUEST}).encode()
    filling = Asker(port, token)
    while True:
        status, answer = await filling.ask("POST", "/api/v1/jobs", bulk)
        said[f"filling: {status}"] += 1
        if status == 429 and b"job_bytes_full" in answer:
            break
        if status == 429:
            await asyncio.sleep(0.1)
    print("full", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    paths = "/api/v1/jobs?limit=1000", "/api/v1/jobs?limit=1000&full=true"
    kept: list[asyncio.StreamWriter] = []
    async with asyncio.TaskGroup() as going:
        for number in range(LISTING):
            going.create_task(_again(said, "list", Asker(port, token), paths[number % 2]))
        for _ in range(CHURNING):
            going.create_task(_churn(said, Asker(port, token)))
        for number in range(IDLE + STREAMS):
            going.create_task(_stay(said, kept, port, token if number < STREAMS else ""))
        await asyncio.to_thread(sys.stdin.readline)
        print(", ".join(f"{what} x {count}" for what, count in sorted(said.items())), flush=True)
        os._exit(0)  # what is under way has no end


async def _again(said: Counter[str], what: str, asker: Asker, path: str) -> None:
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            status, _ = await asker.ask("GET", path)
            said[f"{what}: {status}"] += 1


async def _churn(said: Counter[str], asker: Asker) -> None:
    one = json.dumps({"command": "x", "hold": True}).encode()
    large = json.dumps(LARGEST).encode()
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            status, _ = await asker.ask("POST", "/api/v1/jobs", large)
            said[f"submit: {status}"] += 1
            status, answer = await asker.ask("POST", "/api/v1/jobs", one)
            if status == 201:
                status, _ = await asker.ask("DELETE", f"/api/v1/jobs/{json.loads(answer)['id']}")
                said[f"cancel: {status}"] += 1
            status, answer = await asker.ask("GET", "/api/v1/jobs?limit=1&state=held")
            held = json.loads(answer)["jobs"] if status == 200 else []
            if held:
                await asker.ask("DELETE", f"/api/v1/jobs/{held[0]['id']}")


async def _stay(said: Counter[str], kept: list[asyncio.StreamWriter], port: int, token: str) -> None:
    """Keep a connection open: idle, or with a token as a stream of events that is never read."""
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        kept.append(writer)
        if token:
            writer.write(request_of("GET", "/api/v1/events", more=f"Authorization: Bearer {token}\r\n"))
            said[f"stream: {(await reader.readline())[9:12].decode()}"] += 1


# -- the others --------------------------------------------------------------------------------------------------------


async def measured(control: Control, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each submit and each look at the health; what fails is as long as the run."""
    submit = json.dumps({"command": "true", "hold": True}).encode()
    took: dict[str, list[float]] = {"POST of one job": [], "GET /health": []}
    until = time.perf_counter() + seconds

    async def keep(name: str, status: int, method: str, path: str, body: bytes = b"") -> None:
        asker = Asker(control.port, control.access.user)
        while time.perf_counter() < until:
            began = time.perf_counter()
            try:
                answered = (await asker.ask(method, path, body))[0] == status
            except (OSError, asyncio.IncompleteReadError):
                answered = False
            took[name].append((time.perf_counter() - began) * 1e3 if answered else seconds * 1e3)
            await asyncio.sleep(max(0.0, began + EVERY_S - time.perf_counter()))

    await asyncio.gather(
        keep("POST of one job", 201, "POST", "/api/v1/jobs", submit), keep("GET /health", 200, "GET", "/health")
    )
    return took


def rss_mib(pid: int, which: str) -> float:
    """`which`: VmRSS is what it has now, VmHWM the most it ever had."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(which))
    return int(line.split()[1]) / 1024


def table(name: str, took: dict[str, list[float]], mib: float) -> None:
    print(f"\n| {name} | asked | ms, median | 99 % within | longest | must |\n|---|---:|---:|---:|---:|---|")
    for what, most in (("POST of one job", SUBMIT_MS), ("GET /health", HEALTH_MS)):
        found = sorted(took[what])
        p99 = found[min(len(found) - 1, len(found) * 99 // 100)]
        verdict = f"{most} ms: {'yes' if p99 <= most else 'NO'}"
        print(f"| {what} | {len(found)} | {found[len(found) // 2]:.1f} | {p99:.1f} | {found[-1]:.1f} | {verdict} |")
    verdict = f"{RSS_MIB} MiB: {'yes' if mib <= RSS_MIB else 'NO'}"
    print(f"| resident memory at most, MiB |  |  |  | {mib:,.0f} | {verdict} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--mib", type=int, default=128, help="memory that the jobs of one tenant may take")
    parser.add_argument("--against", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.against:
        os.nice(10)
        asyncio.run(hostile(options.against, os.environ["STOKER_TOKEN"]))
        return
    with tempfile.TemporaryDirectory(dir=options.dir) as above:
        folder = Path(above) / "data"
        folder.mkdir()
        with control_on_core_0(folder, *DEFAULTS, f"policy.tenant_job_bytes_max={options.mib << 20}") as control:
            os.sched_setaffinity(0, {min(1, (os.cpu_count() or 1) - 1)})
            print(f"{machine()}; {fsyncs_per_second(folder):,.0f} fdatasync/s")
            table("alone", asyncio.run(measured(control, options.seconds / 2)), rss_mib(control.pid, "VmHWM"))
            with _against(control, control.access) as process:
                table("jobs held", asyncio.run(measured(control, options.seconds / 4)), rss_mib(control.pid, "VmHWM"))
                _tell(process)
                took = asyncio.run(measured(control, options.seconds))
                table("under a hostile tenant", took, rss_mib(control.pid, "VmHWM"))
                assert process.stdout is not None, "it has a pipe"
                _tell(process)
                print(f"\nIt was answered: {process.stdout.readline().strip()}")


@contextlib.contextmanager
def _against(control: Control, access: Access) -> Iterator["subprocess.Popen[str]"]:
    """The process of the hostile tenant, which has submitted all that it may."""
    with Client(control.url, token=access.admin) as client:
        token = client.create_token(NewTokenBody(role=Role.USER, tenant="team-2")).token
    command = [sys.executable, "-m", "benchmarks.hostile", "--against", str(control.port)]
    environ = {**os.environ, "STOKER_TOKEN": token}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)
    try:
        assert process.stdout is not None, "it has a pipe"
        assert process.stdout.readline() == "full\n", "the hostile tenant is ready"
        yield process
    finally:
        process.kill()
        process.wait()


def _tell(process: "subprocess.Popen[str]") -> None:
    """Let it go on."""
    assert process.stdin is not None, "it has a pipe"
    process.stdin.write("\n")
    process.stdin.flush()


if __name__ == "__main__":
    main()
