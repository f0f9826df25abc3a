"""What do 100,000 waiting jobs cost: memory, stalls, a restart, and a list?

Run: `PYTHONPATH=src python -m benchmarks.scale [--jobs 100000] [--watch 75] [--dir FOLDER]`. A `stoker control` on core
0 gets jobs of 1,000 shapes in bulk; no node has joined. Then, from core 1: its resident memory; the longest answer to
GET /health, asked every 2 ms, while snapshots (every 5 s under a trickle of submits, so each has something to say),
compaction, the audit (every 60 s), the history and garbage collection run, beside the same with no jobs; kill -9, and
the time from the start of the next process to its first acknowledged submit; and `stoker list` of 1,000 jobs as a whole
process.

Must: 350 MiB, 50 ms, 5 s, 200 ms. Slurm 22.05: 161 MiB at 10,000 jobs; squeue of 10,000 takes 373 ms.
"""

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.cluster import fsyncs_per_second, machine
from benchmarks.sharing import alone_option
from benchmarks.submissions import Control, control_on_core_0
from stoker.wire.client import Client, JobBody

SHAPES = 1_000
BULK = 1_000
PROBE_S = 0.002


def job(number: int) -> JobBody:
    return JobBody(name="scale", command=["python", "train.py"], gpu_count=1 + number % 8, cpus=1 + number // 8 % 125)


def fill(control: Control, jobs: int) -> None:
    with Client(control.url, token=control.access.asking) as client:
        for first in range(0, jobs, BULK):
            client.submit_many([job((first + i) % SHAPES) for i in range(min(BULK, jobs - first))])


def rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


async def longest_ms(control: Control, seconds: float) -> tuple[float, float]:
    """The longest answer to GET /health, and the 99.9th percentile."""
    reader, writer = await asyncio.open_connection("127.0.0.1", control.port)
    took: list[float] = []
    until = time.perf_counter() + seconds
    trickle = asyncio.ensure_future(_trickle(control))
    while time.perf_counter() < until:
        began = time.perf_counter()
        writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(int(length.split(b":")[1]))
        took.append((time.perf_counter() - began) * 1_000)
        await asyncio.sleep(PROBE_S)
    trickle.cancel()
    await asyncio.gather(trickle, return_exceptions=True)
    writer.close()
    took.sort()
    return took[-1], took[int(len(took) * 0.999)]


async def _trickle(control: Control) -> None:
    """A submit now and then, from a process of its own, so that its work isn't measured with the answers."""
    while True:
        submit = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "stoker", "submit", "--server", control.url, "--", "true"),
            env=_environ(control),
            stdout=subprocess.DEVNULL,
        )
        try:
            await asyncio.sleep(4)
        finally:
            await submit.wait()


def _environ(control: Control) -> dict[str, str]:
    return {**os.environ, "STOKER_TOKEN": control.access.asking}


def first_write_s(folder: Path) -> float:
    """From the start of a process on `folder` to its first acknowledged submit."""
    began = time.perf_counter()
    with control_on_core_0(folder) as control, Client(control.url, token=control.access.asking) as client:
        client.submit(job(0))
        took = time.perf_counter() - began
        os.kill(control.pid, signal.SIGKILL)
    return took


def list_ms(control: Control, jobs: int, rounds: int) -> float:
    command = [sys.executable, "-m", "stoker", "list", "--limit", "1000"]
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        done = subprocess.run(
            [*command, "--server", control.url], env=_environ(control), capture_output=True, text=True, check=True
        )
        took.append((time.perf_counter() - began) * 1_000)
        assert len(done.stdout.splitlines()) >= min(jobs, 1_000), done.stdout[:300]
    return statistics.median(took)


def row(what: str, measured: str, must: str, held: bool | None) -> None:
    print(f"| {what} | {measured} | {must}{'' if held is None else ': yes' if held else ': NO'} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--watch", type=float, default=75.0, help="seconds; longer than the audit's period of 60")
    parser.add_argument("--lists", type=int, default=7, help="runs of `stoker list`")
    parser.add_argument("--dir", help="where the log lies: the disk that is measured")
    alone_option(parser)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {1})
    with tempfile.TemporaryDirectory(prefix="stoker-bench-", dir=options.dir) as made:
        print(
            f"{machine()}; {fsyncs_per_second(Path(made)):,.0f} fdatasync/s; {options.jobs:,} jobs of {SHAPES} shapes\n"
        )
        print("| what | measured | must |\n|---|---:|---|")
        with control_on_core_0(Path(made) / "empty", "snapshot.interval_s=5", alone=options.alone) as control:
            none, none_999 = asyncio.run(longest_ms(control, min(options.watch, 20)))
            row("longest answer to GET /health, no jobs (99.9 %)", f"{none:.1f} ms ({none_999:.1f})", "floor", None)
        folder = Path(made) / "full"
        with control_on_core_0(folder, "snapshot.interval_s=5", alone=options.alone) as control:
            fill(control, options.jobs)
            resident = rss_mib(control.pid)
            row("memory of the control plane", f"{resident:.0f} MiB", "350", resident <= 350)
            stall, stall_999 = asyncio.run(longest_ms(control, options.watch))
            row("longest answer to GET /health (99.9 %)", f"{stall:.1f} ms ({stall_999:.1f})", "50", stall <= 50)
            row(
                "memory after snapshots and audit",
                f"{rss_mib(control.pid):.0f} MiB",
                "350",
                rss_mib(control.pid) <= 350,
            )
            listed = list_ms(control, options.jobs, options.lists)
            row("`stoker list` of 1,000 jobs, whole process, median", f"{listed:.0f} ms", "200", listed <= 200)
            os.kill(control.pid, signal.SIGKILL)
        again = first_write_s(folder)
        row("restart after kill -9 to the first acknowledged submit", f"{again:.2f} s", "5", again <= 5)


if __name__ == "__main__":
    main()
