"""How many real one-GPU `true` jobs a second, from the first submit to the last end?

Run: `PYTHONPATH=src python -m benchmarks.throughput [--jobs 1000] [--rounds 3] [--nodes 16] [--alone]
[--peers PYTHON]`. 16 nodes x 8 simulated GPUs: 16 real agents and runners, a real process per job, all on this machine;
a user's token of a tenant with limits (`sharing`) unless `--alone`. Two ways in: one POST per job from 32 keep-alive
clients, and one bulk POST. The end is the newest `ended_at` of the ledger. Floor, before each of these rounds: the
driver spawns `/bin/true` as often, one after the other, so that a busy machine slows down both. Below: CPU of each kind
of process for a job. HyperQueue and Ray stand beside it if PYTHON (default: this one) has them.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections import Counter
from datetime import datetime

from benchmarks.cluster import Up, cpu_ms, fsyncs_per_second, machine, stoker_up
from benchmarks.peers import peer_rows
from benchmarks.sharing import Access, alone_option

CLIENTS = 32
JOB = {"name": "true", "gpu_count": 1, "command": ["true"]}


async def client(port: int, access: Access, share: int) -> None:
    """One keep-alive connection; each POST waits for its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(JOB).encode()
    more = f"Content-Length: {len(body)}\r\n{access.header}"
    head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{more}\r\n".encode()
    for _ in range(share):
        writer.write(head + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert b" 201 " in answer.split(b"\r\n", 1)[0], answer
        size = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(size.split(b":")[1]))
    writer.close()


async def singles(up: Up, jobs: int) -> None:
    shares = [jobs // CLIENTS + (i < jobs % CLIENTS) for i in range(CLIENTS)]
    await asyncio.gather(*(client(up.port, up.access, share) for share in shares))


def newest_end(up: Up, jobs: int) -> float:
    """Seconds since 1970 at which the last of the newest `jobs` jobs ended; all must have succeeded."""
    ends: list[float] = []
    offset = 0
    while len(ends) < jobs:
        page = up.get(f"jobs?limit=1000&offset={offset}")["jobs"]
        assert isinstance(page, list)
        assert page, f"only {len(ends)} of {jobs} jobs are listed"
        for job in page[: jobs - len(ends)]:
            assert job["state"] == "succeeded", job
            ends.append(datetime.fromisoformat(job["ended_at"]).timestamp())
        offset += len(page)
    return max(ends)


def measure(up: Up, jobs: int, bulk: bool) -> tuple[float, float]:
    """Jobs a second to the last end, and to the last acknowledgement."""
    began = time.time()
    if bulk:
        up.request("POST", "jobs", {"jobs": [JOB] * jobs})
    else:
        asyncio.run(singles(up, jobs))
    acknowledged = time.time()
    up.wait_until_idle()
    return jobs / (newest_end(up, jobs) - began), jobs / (acknowledged - began)


def spawn_floor(jobs: int) -> float:
    began = time.perf_counter()
    for _ in range(jobs):
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    return jobs / (time.perf_counter() - began)


def rounds(up: Up, jobs: int, times: int, bulk: bool) -> tuple[list[tuple[float, float]], list[float], Counter[str]]:
    """What each round gave, the floor right before each, and milliseconds of CPU by kind of process, in all."""
    results, floor, spent = [], [], Counter[str]()
    for _ in range(times):
        floor.append(spawn_floor(jobs))
        before = cpu_ms(up.pid)
        results.append(measure(up, jobs, bulk))
        for process, (kind, ms) in cpu_ms(up.pid).items():
            spent[kind] += ms - before.get(process, (kind, 0.0))[1]
    return results, floor, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON")
    alone_option(parser)
    options = parser.parse_args()
    with stoker_up(options.nodes, 8, alone=options.alone) as up:
        rate = fsyncs_per_second(up.data_dir)
        results = {
            name: rounds(up, options.jobs, options.rounds, bulk)
            for name, bulk in ((f"one POST per job, {CLIENTS} keep-alive clients", False), ("one bulk POST", True))
        }
    median = statistics.median
    floor = [each for _, floors, _ in results.values() for each in floors]
    cluster = f"{options.nodes} x 8 simulated GPUs"
    print(f"{machine()}; {rate:.0f} fdatasync/s; {options.jobs} jobs, {cluster}, {options.rounds} rounds\n")
    print(
        "| way in | jobs/s to last end: median (min-max) | acknowledged/s, median | share of floor |\n|---|---|---|---|"
    )
    for name, (rows, floors, _) in results.items():
        ends = [row[0] for row in rows]
        share = median(end / floor for end, floor in zip(ends, floors, strict=True))
        print(
            f"| {name} | {median(ends):.0f} ({min(ends):.0f}-{max(ends):.0f}) "
            f"| {median(r[1] for r in rows):.0f} | {share:.2f} |"
        )
    for name, found in peer_rows(options.peers, options.jobs):
        told = found if isinstance(found, str) else f"{found:.0f}"
        share_told = "" if isinstance(found, str) else f"{found / median(floor):.2f}"
        print(f"| {name} | {told} | | {share_told} |")
    print(f"| floor: the driver spawns `/bin/true` | {median(floor):.0f} ({min(floor):.0f}-{max(floor):.0f}) | | 1 |")
    kinds = sorted({kind for _, _, spent in results.values() for kind in spent})
    print(f"\n| ms of CPU for a job | {' | '.join(kinds)} | in all |\n|---|{'---|' * (len(kinds) + 1)}")
    for name, (_, _, spent) in results.items():
        each = [spent[kind] / options.jobs / options.rounds for kind in kinds]
        print(f"| {name} | {' | '.join(f'{ms:.2f}' for ms in each)} | {sum(each):.2f} |")


if __name__ == "__main__":
    main()
