"""What do idle agents cost the control plane?

The control plane runs as a process of its own; 200 agents x 8 GPUs run in this one, each over a real gRPC stream on a
connection of its own, as `stoker agent` makes it, with a beat every 5 s in a phase of its own. CPU is what the kernel
charged to the control plane's process (user and system, all threads) while nothing but beats happens; the floor is the
same process with no agent connected.

Run: PYTHONPATH=src python -m benchmarks.idle_agents [--agents 200] [--seconds 30] [--alone]
Must: under 5 % of a core at 200 agents.
"""

import argparse
import asyncio
import os
import platform
import random
import signal
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.cluster import free_port
from benchmarks.sharing import Access, alone_option, first_tokens, make_alone, share
from stoker.agent.link_grpc import GrpcLink
from stoker.agent.ports import BeatAnswered, LinkSession
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.node import Inventory
from stoker.brain.domain.report import Beat, Registration, TaskInventory
from stoker.control.settings import GrpcSettings, HttpSettings, TlsSettings
from stoker.live.main import run_control
from stoker.live.settings.control import ControlSettings

GPUS_PER_NODE = 8
SETTLE_S = 6.0
"""From when the last agent joined: more than a heartbeat, so that only beats are measured."""
LIMIT_PERCENT = 5.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def registration(number: int) -> Registration:
    name = f"node-{number:03d}"
    gpus = tuple(
        Gpu(uuid=GpuUuid(f"GPU-{name}-{i}"), index=i, model="NVIDIA H100 80GB HBM3", memory_mb=81_559, simulated=True)
        for i in range(GPUS_PER_NODE)
    )
    inventory = Inventory(boot_id="boot", address="127.0.0.1", gpus=gpus, cpus=64, memory_mb=1 << 20, agent_uid=name)
    return Registration(node=NodeName(name), inventory=inventory)


async def agent(number: int, port: int, access: Access, joined: asyncio.Event) -> None:
    """One agent with nothing to do."""
    link = GrpcLink([f"127.0.0.1:{port}"], token=lambda: access.agent)
    session = await link.connect(registration(number))
    await session.send(TaskInventory(boot_id="boot", tasks=()))
    async with asyncio.TaskGroup() as duties:
        duties.create_task(_listen(session))
        duties.create_task(_show_no_logs(session))
        joined.set()
        await asyncio.sleep(random.uniform(0, session.heartbeat_s))
        sequence = 0
        while True:
            sequence += 1
            await session.send(Beat(sequence=sequence))
            await asyncio.sleep(session.heartbeat_s)


async def _listen(session: LinkSession) -> None:
    async for instruction in session.instructions():
        if isinstance(instruction, BeatAnswered):
            continue
        raise AssertionError(f"nothing was submitted, yet here is {instruction}")


async def _show_no_logs(session: LinkSession) -> None:
    async for request in session.log_requests():
        raise AssertionError(f"nobody reads output, yet here is {request}")


async def cpu_percent(pid: int, seconds: float) -> float:
    """Of one core, over `seconds`."""
    before, began = _cpu_s(pid), asyncio.get_running_loop().time()
    await asyncio.sleep(seconds)
    return 100 * (_cpu_s(pid) - before) / (asyncio.get_running_loop().time() - began)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Chosen(NamedTuple):
    agents: int
    seconds: float
    settle_s: float
    alone: bool


async def measure(chosen: Chosen) -> bool:
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        access = await asyncio.to_thread(first_tokens, Path(folder))
        port, http_port = free_port(), free_port()
        ports = ("--port", str(port), "--http-port", str(http_port))
        words = ("-m", "benchmarks.idle_agents", "--serve", folder, *ports)
        control = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            await _ready(control)
            prepare = make_alone if chosen.alone else share
            await asyncio.to_thread(prepare, f"http://127.0.0.1:{http_port}", access.admin)
            return await _measure(control, port, access, chosen)
        finally:
            control.send_signal(signal.SIGTERM)
            await control.wait()


async def _ready(control: asyncio.subprocess.Process) -> None:
    assert control.stdout is not None, "its output is a pipe"
    while (line := await control.stdout.readline()) != b"READY\n":
        assert line, "the control plane did not start"


async def _measure(control: asyncio.subprocess.Process, port: int, access: Access, chosen: Chosen) -> bool:
    assert control.stdout is not None, "its output is a pipe"
    agents, seconds = chosen.agents, chosen.seconds
    drain = asyncio.create_task(_drain(control.stdout))
    floor = await cpu_percent(control.pid, seconds / 3)
    alone_mib = _rss_mib(control.pid)
    joined = [asyncio.Event() for _ in range(agents)]
    running = [asyncio.create_task(agent(number, port, access, joined[number])) for number in range(agents)]
    await asyncio.gather(*(event.wait() for event in joined))
    await asyncio.sleep(chosen.settle_s)
    busy = await cpu_percent(control.pid, seconds)
    broken = [task for task in running if task.done()]
    if broken:
        raise RuntimeError(f"{len(broken)} of {agents} agents lost their stream") from broken[0].exception()
    print(f"machine: {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print("| agents | CPU, % of a core | RSS, MiB |")
    print("| ---: | ---: | ---: |")
    print(f"| 0 | {floor:.2f} | {alone_mib:.0f} |")
    print(f"| {agents} | {busy:.2f} | {_rss_mib(control.pid):.0f} |")
    for task in (*running, drain):
        task.cancel()
    await asyncio.gather(*running, drain, return_exceptions=True)
    return busy < LIMIT_PERCENT


async def _drain(output: asyncio.StreamReader) -> None:
    while await output.readline():
        pass


async def serve(folder: str, port: int, http_port: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    plain, http, grpc = TlsSettings(mode="off"), HttpSettings(port=http_port), GrpcSettings(port=port)
    settings = ControlSettings(data_dir=Path(folder), http=http, grpc=grpc, tls=plain)
    await run_control(settings, stop=stop, on_ready=lambda: print("READY", flush=True), open_to_owner=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument(
        "--settle", type=float, default=SETTLE_S, help="seconds between the last join and the measurement"
    )
    parser.add_argument("--serve", metavar="FOLDER", help="(used by itself)")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--http-port", type=int, default=0)
    alone_option(parser)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.serve, arguments.port, arguments.http_port))
        return 0
    chosen = Chosen(arguments.agents, arguments.seconds, arguments.settle, arguments.alone)
    return 0 if asyncio.run(measure(chosen)) else 1


if __name__ == "__main__":
    sys.exit(main())
