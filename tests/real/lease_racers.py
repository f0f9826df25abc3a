"""Processes that put versions of the marker, each whenever it can, as programs of their own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

HERE = Path(__file__).parents[2]

# Puts the next version whenever it can, and says of each try what became of it.
RACER = """
import asyncio, sys
from pathlib import Path
from stoker.adapters.clock import SystemClock
from stoker.ports import LeaseUnreachable
from tests.contracts.lease import lease_record

where, name, versions = sys.argv[1], sys.argv[2], int(sys.argv[3])

def lease():
    if where.startswith("postgresql:"):
        from stoker.adapters.postgres.lease import PostgresLease
        return PostgresLease(where, SystemClock(), timeout_s=10)
    from stoker.adapters.lease_folder.lease import FileLease
    return FileLease(Path(where), SystemClock(), timeout_s=10)

async def main():
    mine = lease()
    while True:
        found = await mine.read()
        version = found.version + 1 if found else 1
        if version > versions:
            break
        print(version, await mine.put(lease_record(version, f"{name}.{version}", by=name)), flush=True)
    await mine.close()

asyncio.run(main())
"""


@contextmanager
def program(text: str, *arguments: str) -> Iterator[tuple[IO[str], IO[str], int]]:
    """Its input, its output, its pid."""
    process = subprocess.Popen(
        [sys.executable, "-c", text, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{HERE}/src:{HERE}"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin as into, process.stdout as out:
        try:
            yield into, out, process.pid
        finally:
            process.kill()
            process.wait()


def race(where: str, names: list[str], versions: int, kills: int = 0) -> dict[int, list[str]]:
    """Who says that he has won which version. The first `kills` of them are killed on their way."""
    with ExitStack() as running:
        racers = {name: running.enter_context(program(RACER, where, name, str(versions))) for name in names}
        said: dict[str, list[str]] = {name: [] for name in names}
        for name in names[:kills]:
            _, out, pid = racers[name]
            said[name] += [out.readline() for _ in range(5)]
            os.kill(pid, signal.SIGKILL)
        for name in names:
            said[name] += racers[name][1].readlines()
    won: dict[int, list[str]] = {}
    for name, lines in said.items():
        for line in lines:
            version, _, done = line.partition(" ")
            if done.strip() == "True":
                won.setdefault(int(version), []).append(name)
    return won
