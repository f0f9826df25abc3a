"""How long from a REST submit to the first instruction of the job's process, on an idle cluster?

Run: `PYTHONPATH=src python -m benchmarks.start_latency [--rounds 60] [--tls]`. The job is a shell that writes to a
FIFO; the clock stops when this driver reads that byte, so the start of a shell is in the figure. Floor, in the same run
and in turns: the same shell started by this driver itself. On the way lie three serial fsyncs (submit, placement, start
record), one pass of the engine, and three hops. With `--tls` two clusters of a control plane and an agent are asked in
turns instead, one in plain text and one over TLS. Must: TLS within 10 % of plain text.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.cluster import fsyncs_per_second, machine, stoker_up, tree_rss_mib
from benchmarks.sharing import alone_option
from stoker.brain.domain.access import Role
from stoker.cli.wiring.token_store import FolderTokens
from stoker.wire.rest.token import NewTokenBody
from tests.real.agent_process import AgentProcess
from tests.real.pair_process import Half, until

TLS_PART: Final = 1.1
"""At most as long as in plain text."""


def submitted(headers: Mapping[str, str], connection: http.client.HTTPConnection, fifo: Path) -> float:
    body = json.dumps({"name": "latency", "gpu_count": 1, "command": f"echo > {fifo}"})
    began = time.perf_counter()
    connection.request("POST", "/api/v1/jobs", body, headers)
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


def print_head(rate: float, rounds: int) -> None:
    """What was measured on, and the columns. `rate`: fdatasync/s."""
    print(f"{machine()}; {rate:.0f} fdatasync/s ({1e3 / rate:.2f} ms each); {rounds} rounds, ms\n")
    print("| what | median | min | 90 % | max |\n|---|---|---|---|---|")


@contextlib.contextmanager
def one_node(folder: Path, *, tls: bool) -> Iterator[Half]:
    """A `stoker control` and an agent that has joined it, both over TLS or both in plain text."""
    folder.mkdir()
    control = Half(folder, "control")
    settings = {
        "data_dir": str(control.folder),
        "http": {"port": control.http_port},
        "grpc": {"port": control.grpc_port, "node_port": 0},
        "tls": {"mode": "on" if tls else "off"},
    }
    control.authority = control.folder / "ca" / "ca.crt" if tls else None
    control.write(settings)
    agent = AgentProcess(folder / "n1", name="n1")
    try:
        control.start()
        until(lambda: control.is_active, control.output)
        tokens = FolderTokens(control.folder)
        control.token = tokens.create_token(NewTokenBody(role=Role.ADMIN, user="root")).token
        if tls:
            joining = tokens.create_token(NewTokenBody(role=Role.JOIN, nodes="n1"))
            agent.know([control.address], join_token=joining.token)
        else:
            token_file = folder / "agent-token"
            token_file.touch(0o600)
            token_file.write_text(tokens.create_token(NewTokenBody(role=Role.AGENT)).token)
            agent.know([control.address], token_file=token_file)
        agent.start()
        until(lambda: control.ask("GET", "/api/v1/cluster/status")[1]["online_nodes"] == 1, control.output)
        yield control
    finally:
        agent.__exit__(None, None, None)
        control.close()


def _is_idle(control: Half) -> bool:
    status = control.ask("GET", "/api/v1/cluster/status")[1]
    return not status["pending_jobs"] and not status["running_jobs"]


def report_tls(rounds: int) -> None:
    dice, times = random.Random(1), {False: list[float](), True: list[float]()}
    with tempfile.TemporaryDirectory() as above, contextlib.ExitStack() as running:
        folder = Path(above)
        os.mkfifo(fifo := folder / "first")
        controls = {tls: running.enter_context(one_node(folder / f"tls-{tls}", tls=tls)) for tls in times}
        asked = {tls: running.enter_context(contextlib.closing(each.connection(60))) for tls, each in controls.items()}
        rate = fsyncs_per_second(folder)
        for _ in range(rounds):
            for tls in dice.sample([False, True], 2):
                headers = {"authorization": f"Bearer {controls[tls].token}"}
                times[tls].append(submitted(headers, asked[tls], fifo))
                until(partial(_is_idle, controls[tls]), controls[tls].output)
                time.sleep(dice.uniform(0.02, 0.2))
    part = statistics.median(times[True]) / statistics.median(times[False])
    print_head(rate, rounds)
    print(row("POST to first instruction, plain text", times[False]))
    print(row("POST to first instruction, TLS", times[True]))
    print(f"\nTLS takes {part:.2f} of plain text. Must: {TLS_PART}: {'yes' if part <= TLS_PART else 'NO'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    alone_option(parser)
    parser.add_argument("--tls", action="store_true", help="TLS beside plain text, and nothing else")
    options = parser.parse_args()
    rounds = options.rounds
    if options.tls:
        report_tls(rounds)
        return
    dice = random.Random(1)
    with tempfile.TemporaryDirectory() as folder, stoker_up(2, 4, alone=options.alone) as up:
        fifo = Path(folder) / "first"
        os.mkfifo(fifo)
        connection = http.client.HTTPConnection("127.0.0.1", up.port)
        jobs, floor = [], []
        rate = fsyncs_per_second(up.data_dir)
        for _ in range(rounds):
            floor.append(spawned(fifo))
            jobs.append(submitted(up.headers, connection, fifo))
            up.wait_until_idle()
            time.sleep(dice.uniform(0.02, 0.2))
        rss = tree_rss_mib(up.pid)
        connection.close()
    print_head(rate, rounds)
    print(row("POST to first instruction, idle `stoker up`", jobs))
    print(row("floor: the same shell spawned by the driver", floor))
    print("\n| process | RSS MiB, largest |\n|---|---|")
    for kind, sizes in rss.items():
        print(f"| {kind} | {max(sizes, default=0):.1f} |")


if __name__ == "__main__":
    main()
