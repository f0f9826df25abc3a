"""How long from the start of an interactive job to its first prompt, on an idle cluster?

Run: `PYTHONPATH=src python -m benchmarks.first_prompt [--rounds 40]`. The job is a bash with a terminal. A client that
has asked for its terminal before it runs, as `stoker submit -it` does, reads the prompt: counted from the moment at
which the node has noted the start (whole milliseconds of the same machine's clock), and from the POST that submits it.
Beside it `stoker exec -it` as a whole, from the start of the command line to the prompt of a bash in a job that runs.
Floor, in the same run and in turns: the same bash in a terminal of this driver. Must: 150 ms from start to prompt.
"""

import argparse
import asyncio
import os
import pty
import random
import sys
import time
from datetime import datetime
from typing import Final

from benchmarks.cluster import Up, fsyncs_per_second, stoker_up
from benchmarks.sharing import alone_option
from benchmarks.start_latency import print_head, row
from stoker.wire.client import AsyncClient, JobBody
from stoker.wire.client.clients import connect_to_session
from stoker.wire.exec_session import CONTROL, control
from stoker.wire.rest.exec_session import AttachQuery

PROMPT: Final = b"ready$ "
BASH: Final = ("bash", "--norc", "--noprofile", "-i")
MUST_MS: Final = 150.0


def server_of(up: Up) -> str:
    return f"http://127.0.0.1:{up.port}"


async def interactive(up: Up) -> tuple[float, float]:
    """Milliseconds from start to prompt, and from the POST to the prompt."""
    async with AsyncClient(server_of(up), token=up.access.asking) as client:
        began = time.perf_counter()
        job = await client.submit(JobBody(command=list(BASH), env={"PS1": PROMPT.decode()}, tty=True))
        session = await connect_to_session(client, job.id, AttachQuery(columns=80, rows=24, wait_ms=20_000))
        out = b""
        while PROMPT not in out:
            message = await session.read()
            out += message.content if message.channel != CONTROL else b""
        prompted, took = time.time(), (time.perf_counter() - began) * 1e3
        await session.write(control("hangup"))
        await session.close()
        started = (await client.job(job.id)).started_at
        assert started is not None, "a job that prompts has started"
        return max(0.0, (prompted - datetime.fromisoformat(started).timestamp()) * 1e3), took


def prompted(words: list[str], env: dict[str, str]) -> float:
    """Milliseconds from the start of a program in a terminal of ours to its prompt."""
    began = time.perf_counter()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(words[0], words, {**os.environ, **env})
    out = b""
    while PROMPT not in out:
        out += os.read(terminal, 4096)
    took = (time.perf_counter() - began) * 1e3
    os.write(terminal, b"exit\r")
    os.waitpid(pid, 0)
    os.close(terminal)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    alone_option(parser)
    options = parser.parse_args()
    dice, env = random.Random(1), {"PS1": PROMPT.decode(), "TERM": "xterm"}
    floor, starts, posts, execs = list[float](), list[float](), list[float](), list[float]()
    with stoker_up(1, 4, alone=options.alone) as up:
        rate = fsyncs_per_second(up.data_dir)
        beside = up.request("POST", "jobs", {"command": "sleep 3600", "env": {"PS1": PROMPT.decode()}})
        enters = [
            sys.executable,
            "-m",
            "stoker",
            "exec",
            "--server",
            server_of(up),
            "-it",
            str(beside["id"]),
            "--",
            *BASH,
        ]
        while up.get(f"jobs/{beside['id']}")["state"] != "running":
            time.sleep(0.02)
        for _ in range(options.rounds):
            floor.append(prompted(list(BASH), env))
            start, post = asyncio.run(interactive(up))
            starts.append(start)
            posts.append(post)
            execs.append(prompted(enters, {**env, "STOKER_TOKEN": up.access.asking}))
            time.sleep(dice.uniform(0.02, 0.2))
    print_head(rate, options.rounds)
    print(row("start of an interactive job to its prompt", starts))
    print(row("POST of an interactive job to its prompt", posts))
    print(row("`stoker exec -it` from its own start to the prompt", execs))
    print(row("floor: the same bash in a terminal of the driver", floor))
    worst = sorted(starts)[int(len(starts) * 0.9)]
    verdict = "yes" if worst <= MUST_MS else "NO"
    print(f"\n90 % of prompts come within {worst:.0f} ms of the start. Must: {MUST_MS:.0f}: {verdict}")


if __name__ == "__main__":
    main()
