"""What does a command that people type all day cost, in CPU time?

Run: `PYTHONPATH=src python -m benchmarks.commands [--runs 15]`. The floor is an interpreter that imports the libraries
which the command needs and does nothing, in turns with it: on a busy machine both get slower together.
"""

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.real.up_process import UpProcess, environment, stoker

COMMANDS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("--help",), "import click"),
    (("list", "--json"), "import click, http.client, msgspec"),
    (("status",), "import click, http.client, msgspec"),
    (("submit", "--", "true"), "import click, http.client, msgspec"),
)


def cpu_ms(command: Sequence[str], env: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=30)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1_000


def row(words: Sequence[str], imports: str, env: dict[str, str], runs: int) -> str:
    """The cheapest of several runs: whatever else the machine does can only add."""
    pairs = [(cpu_ms([sys.executable, "-c", imports], env), cpu_ms(stoker(*words), env)) for _ in range(runs)]
    floor, cost = (min(each) for each in zip(*pairs, strict=True))
    return f"| `stoker {' '.join(words)}` | {floor:.0f} | {cost:.0f} | {cost / floor:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs; the cheapest of {runs} runs each\n")
    print("| command | floor, CPU ms | CPU ms | times the floor |\n| --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder, UpProcess(Path(folder), "--nodes", "1") as cluster:
        env = environment(Path(folder), STOKER_SERVER=cluster.url)
        for words, imports in COMMANDS:
            print(row(words, imports, env, runs), flush=True)


if __name__ == "__main__":
    main()
