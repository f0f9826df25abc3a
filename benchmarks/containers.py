"""What does a job in a container cost beside `docker run` by hand?

Run: `PYTHONPATH=src python -m benchmarks.containers [--rounds 20] [--jobs 60] [--running 8]`. A dockerd of its own with
an image of busybox, a control plane and one agent with containers, all on this machine; where no dockerd can be
started it says so. In one run, and in turns: from the POST, or from the start of `docker run`, to the first byte that
the program in the container writes into a FIFO; then so many `true` in one bulk POST to the newest end, beside as many
`docker run --rm`, one after the other and `--beside` at a time. Both with docker's init, without a network. Last, what
is resident while some run: RSS, and PSS, which counts a page that several share in parts. Must: the agent at most 75
MiB.
"""

import argparse
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

from benchmarks.cluster import fsyncs_per_second
from benchmarks.start_latency import print_head, row
from stoker.wire.client import Client, JobBody
from stoker.wire.rest.job import JobListQuery
from tests.real.agent_process import AgentProcess, until
from tests.real.control_process import ControlProcess
from tests.real.docker_daemon import IMAGE, Daemon, docker_engine, why_not

AGENT_MIB_MAX: Final = 75.0
ENDED: Final = ("succeeded", "failed", "node_failed", "cancelled", "timeout", "out_of_memory")


class Bench:
    """A cluster of one node with containers."""

    def __init__(self, folder: Path, docker: Daemon, control: ControlProcess, agent: AgentProcess) -> None:
        self.docker, self.control, self.agent = docker, control, agent
        self.shared = folder / "shared"
        self.shared.mkdir()
        self.fifo = self.shared / "first"
        os.mkfifo(self.fifo)
        self.mount = f"{self.shared}:/shared"

    def by_hand(self, *words: str) -> list[str]:
        """The command line of a container that is run by hand as a job's is."""
        engine = ["docker", "--host", f"unix://{self.docker.socket}", "run", "--rm", "--init", "--network", "none"]
        return [*engine, "-v", self.mount, IMAGE, *words]

    def job(self, *words: str) -> JobBody:
        return JobBody(command=list(words), image=IMAGE, gpu_count=0, network="none", mounts=[self.mount])

    def read_byte(self, began: float) -> float:
        """Milliseconds until the program has written."""
        with self.fifo.open("rb") as pipe:
            pipe.read()
        return (time.perf_counter() - began) * 1e3


@contextmanager
def cluster() -> Iterator[Bench]:
    with ExitStack() as running:
        docker = running.enter_context(docker_engine(within="/tmp"))  # names of sockets are bounded
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(dir="/tmp", prefix="stoker-bench-")))
        control = running.enter_context(ControlProcess(folder / "control"))
        agent = AgentProcess(folder / "node-1", control)
        agent.from_scratch = True
        bench = Bench(folder, docker, control, agent)
        docked = f"socket: {docker.socket}, mounts_allowed: ['{bench.shared}'], pull: never"
        agent.add(f"executor: {{kinds: [process, container], docker: {{{docked}}}}}")
        with agent:
            until(lambda: control.ask("GET", "/api/v1/nodes")[1]["nodes"], agent.output())
            yield bench


def settled(client: Client, count: int) -> list[str]:
    """The newest jobs, once all have ended."""
    until(lambda: not (client.status().pending_jobs + client.status().running_jobs), "they end", within_s=600)
    jobs = list(client.jobs(JobListQuery(limit=count)).jobs)
    assert all(job.state == "succeeded" for job in jobs), [(job.state, job.reason) for job in jobs]
    return [job.ended_at or "" for job in jobs]


def latencies(bench: Bench, client: Client, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds to the first byte of a job, and of a container by hand."""
    dice, jobs, hand = random.Random(1), list[float](), list[float]()
    line = ("sh", "-c", "echo > /shared/first")
    for _ in range(rounds):
        began = time.perf_counter()
        process = subprocess.Popen(bench.by_hand(*line))
        hand.append(bench.read_byte(began))
        process.wait(60)
        began = time.perf_counter()
        client.submit(bench.job(*line))
        jobs.append(bench.read_byte(began))
        settled(client, 1)
        time.sleep(dice.uniform(0.02, 0.2))
    return jobs, hand


def job_rate(bench: Bench, client: Client, count: int) -> float:
    """Jobs a second from the bulk POST to the newest end."""
    began = time.time()
    client.submit_many([bench.job("true") for _ in range(count)])
    newest = max(datetime.fromisoformat(each).timestamp() for each in settled(client, count))
    return count / (newest - began)


def hand_rate(bench: Bench, count: int, at_a_time: int) -> float:
    """Containers a second by hand."""
    began = time.perf_counter()
    with ThreadPoolExecutor(at_a_time) as pool:
        runs = [pool.submit(subprocess.run, bench.by_hand("true"), check=True, timeout=300) for _ in range(count)]
        for run in runs:
            run.result()
    return count / (time.perf_counter() - began)


def resident(pid: int) -> tuple[float, float]:
    """RSS and PSS of a process, in MiB."""
    sizes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        sizes[name] = int(rest.split()[0]) / 1024
    return sizes["Rss"], sizes["Pss"]


def processes(bench: Bench) -> dict[str, list[int]]:
    """Pids of agent, runner and clients."""
    runner = bench.agent.runner_pid
    children = Path(f"/proc/{runner}/task/{runner}/children").read_text().split()
    clients = [int(pid) for pid in children if b"container.client" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return {"agent": [bench.agent.pid], "runner": [runner], "client of a container": clients}


def print_resident(bench: Bench, client: Client, running: int) -> None:
    bodies = [bench.job("sleep", "600") for _ in range(running)]
    jobs = [job.id for job in client.submit_many(bodies)]
    until(lambda: client.status().running_jobs + client.status().pending_jobs == running, "they are there")
    until(lambda: len(processes(bench)["client of a container"]) == client.status().running_jobs > 0, "they run", 120)
    time.sleep(1.0)
    found = processes(bench)
    count = len(found["client of a container"])
    print(f"\nResident, MiB, with {count} containers that run\n\n| process | RSS | PSS |\n|---|---|---|")
    for kind, pids in found.items():
        sizes = [resident(pid) for pid in pids]
        rss, pss = (statistics.median(each) for each in zip(*sizes, strict=True))
        print(f"| {kind} | {rss:.1f} | {pss:.1f} |")
    agent = resident(bench.agent.pid)[0]
    for each in jobs:
        client.cancel(each)
    verdict = "yes" if agent <= AGENT_MIB_MAX else "NO"
    print(f"\nThe agent has {agent:.1f} MiB. Must: {AGENT_MIB_MAX:.0f}: {verdict}")
    until(lambda: not bench.docker.containers(), "no container is left", within_s=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--beside", type=int, default=4, help="containers by hand at a time")
    parser.add_argument("--running", type=int, default=8, help="containers whose processes are looked at")
    options = parser.parse_args()
    if why_not():
        print(f"NOT MEASURED HERE: {why_not()}")
        return
    with cluster() as bench, bench.control.client() as client:
        rate = fsyncs_per_second(bench.shared)
        jobs, hand = latencies(bench, client, options.rounds)
        print_head(rate, options.rounds)
        print(row("POST of a job with an image to its first byte", jobs))
        print(row("`docker run` by hand to its first byte", hand))
        print(f"\nA job takes {statistics.median(jobs) / statistics.median(hand):.2f} of `docker run`.")
        rates = {
            "jobs with an image, one bulk POST": job_rate(bench, client, options.jobs),
            "`docker run --rm`, one after the other": hand_rate(bench, options.jobs, 1),
            f"`docker run --rm`, {options.beside} at a time": hand_rate(bench, options.jobs, options.beside),
        }
        best = max(list(rates.values())[1:])
        print(f"\n{options.jobs} containers that run `true`\n")
        print("| how | a second | of the best by hand |\n|---|---|---|")
        for words, per_second in rates.items():
            print(f"| {words} | {per_second:.2f} | {per_second / best:.2f} |")
        print_resident(bench, client, options.running)


if __name__ == "__main__":
    main()
