"""How many submissions a second does a control plane acknowledge, each of them durable?

Run: `PYTHONPATH=src python -m benchmarks.submissions [--seconds 4] [--rounds 3] [--dir FOLDER] [--alone] [--tls]`. A
`stoker control` is pinned to core 0; 32 keep-alive clients, or one with many jobs in its body, ask it from this process
on core 1, with a user's token of a tenant with limits (`sharing`), or with `--alone` an admin's. No node has joined, so
that nothing but the way in is measured. Floors, in the same run and in turns: GET /health from the same clients (what
the server costs before anybody decides anything), and write + fdatasync of 400 bytes on the disk of the log, one after
the other. CPU is what the kernel charged to the control plane, all its threads. With `--tls` a second control plane
that speaks TLS is asked in turns with it, over connections that are kept, to submit and to list 1,000 jobs.

Must: 2,500 submissions/s, 10,000 jobs/s in bulk, an array of 10,000 in 100 ms. Slurm 22.05 on the same kind of machine:
390 submissions/s, lost on kill -9; an array of 10,000 in 4.4 ms, not durable.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster import START_S_MAX, free_port, fsyncs_per_second, machine
from benchmarks.sharing import NOBODY, Access, alone_option, first_tokens, keep, kept, make_alone, share

CLIENTS = 32
JOB = {"name": "train", "command": ["python", "train.py"], "gpu_count": 1, "env": {"PATH": "/usr/bin"}}
BULK = 1_000
MEMBERS = 10_000
JOBS_PER_S, BULK_JOBS_PER_S, ARRAY_MS = 2_500, 10_000, 100
LISTED = 1_000
LIST_MS = 200
FLOOR = "floor: `stoker --version`"
TLS_PART = 0.8
"""Of what the same costs without TLS, as a rate."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Control:
    port: int
    pid: int
    folder: Path
    access: Access = NOBODY
    tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    def request(self, method: str, path: str, body: bytes = b"", more: str = "") -> bytes:
        """Bytes that a client with a token sends."""
        return request_of(method, path, body, self.access.header + more)

    def cpu_s(self) -> float:
        words = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / _TICKS_PER_S


@contextlib.contextmanager
def control_on_core_0(folder: Path, *settings_more: str, alone: bool = False, tls: bool = False) -> Iterator[Control]:
    """A `stoker control` of its own; ended afterwards. `settings_more` are KEY=VALUE, and say more than those here."""
    authority = folder / "ca" / "ca.crt"
    port, access = free_port(), kept(folder)
    admin = access or first_tokens(folder)
    settings = {
        "data_dir": folder,
        "http.port": port,
        "grpc.port": free_port(),
        "log.level": "warning",
        "grpc.node_port": 0,
        "tls.mode": "on" if tls else "off",
    }
    # Jobs pile up where no node takes them, and one principal asks for as many as a whole department.
    settings |= {"policy.tenant_pending_jobs_max": 1_000_000, "http.rate_per_principal": 0}
    settings |= {"policy.tenant_job_bytes_max": 1 << 40, "policy.job_bytes_max": 1 << 40}
    settings |= dict(each.split("=", 1) for each in settings_more)
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    pin = ["taskset", "-c", "0"] if shutil.which("taskset") else []
    command = [*pin, sys.executable, "-m", "stoker", "control", *words]
    log = folder.parent / "control.log"
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + START_S_MAX
        context: ssl.SSLContext | None = None
        while True:
            if tls and authority.exists():
                context = ssl.create_default_context(cafile=str(authority))
            if bool(context) == tls and _answers(port, context):
                break
            if process.poll() is not None or time.monotonic() > until:
                raise TimeoutError(f"`stoker control` wasn't ready: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        if access is None:
            url, ca_file = f"http{'s' if tls else ''}://127.0.0.1:{port}", str(authority) if tls else ""
            access = admin._replace(user="" if alone else share(url, admin.admin, ca_file))
            if alone:
                make_alone(url, admin.admin, ca_file)
            keep(folder, access)
        yield Control(port, process.pid, folder, access, context)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _answers(port: int, tls: ssl.SSLContext | None) -> bool:
    with contextlib.suppress(OSError):
        asyncio.run(_asked_once(port, request_of("GET", "/health"), tls))
        return True
    return False


async def _asked_once(port: int, request: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    loop = asyncio.get_running_loop()
    connection, client = await loop.create_connection(lambda: KeepAlive(lambda: request), "127.0.0.1", port, ssl=tls)
    client.left = 1
    client.send()
    await client.done
    connection.close()
    return client.body


def request_of(method: str, path: str, body: bytes = b"", more: str = "") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class KeepAlive(asyncio.Protocol):
    """One connection that sends its request again as soon as it is answered, `left` times; as little else as can be,
    for whatever it did would look like the server's time."""

    def __init__(self, request: Callable[[], bytes]) -> None:
        self.left = 0
        self.answers = 0
        self.body = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self) -> None:
        assert self._transport is not None
        self._transport.write(self._request())

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        size = int(head.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        if len(body) < size:
            return
        assert head[9:10] == b"2", head + body
        self._received, self.body = b"", body
        self.answers += 1
        self.left -= 1
        if self.left > 0:
            self.send()
        elif not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server hung up"))


@dataclass(frozen=True)
class Rate:
    per_s: float
    cpu_us: float
    """Of the control plane, for each."""


async def _keep_asking(
    control: Control, request: Callable[[], bytes], clients: int, seconds: float
) -> tuple[int, float]:
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: KeepAlive(request), "127.0.0.1", control.port, ssl=control.tls)
        for _ in range(clients)
    ]
    began = time.perf_counter()
    for _, client in made:
        client.left = 1 << 60
        client.send()
    await asyncio.sleep(seconds)
    for _, client in made:
        client.left = 1
    await asyncio.gather(*(client.done for _, client in made))
    took = time.perf_counter() - began
    for connection, _ in made:
        connection.close()
    return sum(client.answers for _, client in made), took


def rate(control: Control, request: Callable[[], bytes], clients: int, seconds: float, each: int = 1) -> Rate:
    """Of requests over and over; `each` counts for so many."""
    cpu = control.cpu_s()
    answers, took = asyncio.run(_keep_asking(control, request, clients, seconds))
    done = answers * each
    return Rate(done / took, (control.cpu_s() - cpu) / done * 1e6)


def array_ms(control: Control) -> float:
    """One array of MEMBERS, from the first byte sent to the last byte of the answer; it is cancelled afterwards."""
    body = json.dumps({**JOB, "array": f"0-{MEMBERS - 1}%100"}).encode()
    began = time.perf_counter()
    answer = asyncio.run(_asked_once(control.port, control.request("POST", "/api/v1/jobs", body)))
    took = (time.perf_counter() - began) * 1e3
    job_id = json.loads(answer)["id"]
    asyncio.run(_asked_once(control.port, control.request("DELETE", f"/api/v1/jobs/{job_id}")))
    return took


def measured(rounds: int, what: dict[str, Callable[[], Rate]]) -> dict[str, list[Rate]]:
    """In turns, because a shared machine changes its mind within minutes."""
    found: dict[str, list[Rate]] = {name: [] for name in what}
    for _ in range(rounds):
        for name, once in what.items():
            found[name].append(once())
    return found


def row(name: str, rates: list[Rate], target: int, floor: float) -> str:
    per_s = statistics.median(each.per_s for each in rates)
    spread = f"{min(each.per_s for each in rates):,.0f}-{max(each.per_s for each in rates):,.0f}"
    cpu = statistics.median(each.cpu_us for each in rates)
    verdict = f"{target:,}: {'yes' if per_s >= target else 'NO'}" if target else ""
    return f"| {name} | {per_s:,.0f} | {spread} | {cpu:,.0f} | {per_s / floor:.2f} | {verdict} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=None)
    alone_option(parser)
    parser.add_argument("--tls", action="store_true", help="TLS beside plain, and nothing else")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as above:
        folder = Path(above) / "data"
        folder.mkdir()
        with contextlib.ExitStack() as running:
            control = running.enter_context(control_on_core_0(folder, alone=options.alone))
            if options.tls:
                beside = Path(above) / "secured"
                beside.mkdir()
                secured = running.enter_context(control_on_core_0(beside, alone=options.alone, tls=True))
            os.sched_setaffinity(0, {min(1, (os.cpu_count() or 1) - 1)})
            if options.tls:
                report_tls(control, secured, options.seconds, options.rounds)
            else:
                report(control, options.seconds, options.rounds)


def report(control: Control, seconds: float, rounds: int) -> None:
    single = control.request("POST", "/api/v1/jobs", json.dumps(JOB).encode())
    bulk = control.request("POST", "/api/v1/jobs", json.dumps({"jobs": [JOB] * BULK}).encode())
    health = request_of("GET", "/health")
    keys = itertools.count()
    key, keyed_body = "Idempotency-Key: %036d\r\n", json.dumps(JOB).encode()
    syncs = [fsyncs_per_second(control.folder)]
    found = measured(
        rounds,
        {
            "health": lambda: rate(control, lambda: health, CLIENTS, seconds / 2),
            "single": lambda: rate(control, lambda: single, CLIENTS, seconds),
            "keyed": lambda: rate(
                control,
                lambda: control.request("POST", "/api/v1/jobs", keyed_body, key % next(keys)),
                CLIENTS,
                seconds / 2,
            ),
            "bulk": lambda: rate(control, lambda: bulk, 1, seconds / 2, BULK),
        },
    )
    arrays = sorted(array_ms(control) for _ in range(rounds * 3))
    syncs.append(fsyncs_per_second(control.folder))
    floor = statistics.median(each.per_s for each in found["health"])
    print(f"{machine()}; {syncs[0]:,.0f} and {syncs[1]:,.0f} fdatasync/s before and after; {rounds} rounds\n")
    print("| what | a second, median | spread | CPU us each | of the floor | must |\n|---|---:|---:|---:|---:|---|")
    print(row(f"POST of one job, {CLIENTS} keep-alive clients", found["single"], JOBS_PER_S, floor))
    print(row("the same, each under an idempotency key of its own", found["keyed"], JOBS_PER_S, floor))
    print(row(f"jobs, {BULK:,} in each POST, one client", found["bulk"], BULK_JOBS_PER_S, floor))
    print(row(f"floor: GET /health, {CLIENTS} keep-alive clients", found["health"], 0, floor))
    median, worst = statistics.median(arrays), arrays[-1]
    verdict = f"{ARRAY_MS} ms: {'yes' if median <= ARRAY_MS else 'NO'}"
    print("\n| one call | ms, median | longest | must |\n|---|---:|---:|---|")
    print(f"| an array of {MEMBERS:,} | {median:.1f} | {worst:.1f} | {verdict} |")


def report_tls(plain: Control, secured: Control, seconds: float, rounds: int) -> None:
    def asking(control: Control, method: str, path: str, body: bytes = b"") -> Callable[[], Rate]:
        request = control.request(method, path, body)
        clients = CLIENTS if body else 1
        return lambda: rate(control, lambda: request, clients, seconds)

    body, listed = json.dumps(JOB).encode(), f"/api/v1/jobs?limit={LISTED}"
    for control in (plain, secured):
        asyncio.run(_asked_once(control.port, _bulk(control), control.tls))
    found = measured(
        rounds,
        {
            "list": asking(plain, "GET", listed),
            "list over TLS": asking(secured, "GET", listed),
            "submit": asking(plain, "POST", "/api/v1/jobs", body),
            "submit over TLS": asking(secured, "POST", "/api/v1/jobs", body),
        },
    )
    print(f"{machine()}; {rounds} rounds, in turns\n")
    print("| what | a second, median | spread | CPU us each | of plain | must |\n|---|---:|---:|---:|---:|---|")
    for name, what in (
        ("submit", f"POST of one job, {CLIENTS} keep-alive clients"),
        ("list", f"list of {LISTED:,} jobs, one keep-alive client"),
    ):
        base = statistics.median(each.per_s for each in found[name])
        print(row(f"{what}, plain", found[name], 0, base))
        print(row(f"{what}, TLS", found[f"{name} over TLS"], round(TLS_PART * base), base))
    took = measured_typed(rounds * 3, plain, secured)
    print("\n| a process of its own | ms, median | longest | must |\n|---|---:|---:|---|")
    for command, each in took.items():
        most = "" if command == FLOOR else f"{LIST_MS} ms: {'yes' if statistics.median(each) <= LIST_MS else 'NO'}"
        print(f"| {command} | {statistics.median(each):.0f} | {max(each):.0f} | {most} |")


def measured_typed(rounds: int, plain: Control, secured: Control) -> dict[str, list[float]]:
    """Milliseconds of commands as they are typed, in turns."""
    words = ("list", "--limit", str(LISTED))
    commands = {
        FLOOR: (plain, ("--version",)),
        f"`stoker {' '.join(words)}`, plain": (plain, words),
        f"`stoker {' '.join(words)}`, TLS": (secured, words),
    }
    took: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, (control, typed) in commands.items():
            environ = {**os.environ, "STOKER_SERVER": control.url, "STOKER_TOKEN": control.access.asking}
            if control.tls:
                environ["STOKER_CA_FILE"] = str(control.folder / "ca" / "ca.crt")
            began = time.perf_counter()
            done = subprocess.run([sys.executable, "-m", "stoker", *typed], env=environ, capture_output=True, text=True)
            took[name].append((time.perf_counter() - began) * 1e3)
            assert done.returncode == 0, done.stderr
    return took


def _bulk(control: Control) -> bytes:
    return control.request("POST", "/api/v1/jobs", json.dumps({"jobs": [JOB] * LISTED}).encode())


if __name__ == "__main__":
    main()
