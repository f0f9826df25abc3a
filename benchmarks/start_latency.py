"""How long from a REST submit to the first instruction of the job's process, on an idle cluster?

Run: `PYTHONPATH=src python -m benchmarks.start_latency [--rounds 60]`. The job is a shell that writes to a FIFO; the
clock stops when this driver reads that byte, so the start of a shell is in the figure. Floor, in the same run and in
turns: the same shell started by this driver itself. On the way lie three serial fsyncs (submit, placement, start
record), one pass of the engine, and three hops.
"""

import argparse
import http.client
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.cluster import Up, fsyncs_per_second, machine, stoker_up, tree_rss_mib
from benchmarks.sharing import alone_option


def submitted(up: Up, connection: http.client.HTTPConnection, fifo: Path) -> float:
    body = json.dumps({"name": "latency", "gpu_count": 1, "command": f"echo > {fifo}"})
    began = time.perf_counter()
    connection.request("POST", "/api/v1/jobs", body, up.headers)
    assert connection.getresponse().read()
    with open(fifo, "rb") as pipe:
        pipe.read()
    return (time.perf_counter() - began) * 1e3


def spawned(fifo: Path) -> float:
    began = time.perf_counter()
    child = subprocess.Popen(["/bin/sh", "-c", f"echo > {fifo}"])
    with open(fifo, "rb") as pipe:
        pipe.read()
    took = (time.perf_counter() - began) * 1e3
    child.wait()
    return took


def row(name: str, times: list[float]) -> str:
    ordered = sorted(times)
    p90 = ordered[int(len(ordered) * 0.9)]
    return f"| {name} | {statistics.median(times):.1f} | {ordered[0]:.1f} | {p90:.1f} | {ordered[-1]:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    alone_option(parser)
    options = parser.parse_args()
    rounds = options.rounds
    dice = random.Random(1)
    with tempfile.TemporaryDirectory() as folder, stoker_up(2, 4, alone=options.alone) as up:
        fifo = Path(folder) / "first"
        os.mkfifo(fifo)
        connection = http.client.HTTPConnection("127.0.0.1", up.port)
        jobs, floor = [], []
        rate = fsyncs_per_second(up.data_dir)
        for _ in range(rounds):
            floor.append(spawned(fifo))
            jobs.append(submitted(up, connection, fifo))
            up.wait_until_idle()
            time.sleep(dice.uniform(0.02, 0.2))
        rss = tree_rss_mib(up.pid)
        connection.close()
    print(f"{machine()}; {rate:.0f} fdatasync/s ({1e3 / rate:.2f} ms each); {rounds} rounds, ms\n")
    print("| what | median | min | 90 % | max |\n|---|---|---|---|---|")
    print(row("POST to first instruction, idle `stoker up`", jobs))
    print(row("floor: the same shell spawned by the driver", floor))
    print("\n| process | RSS MiB, largest |\n|---|---|")
    for kind, sizes in rss.items():
        print(f"| {kind} | {max(sizes, default=0):.1f} |")


if __name__ == "__main__":
    main()
