"""Two checkouts measured in turns: does the code here cost more than the code there?

Each round runs one benchmark in both checkouts, in an order that changes, so that both meet the same moments of a
shared machine. A figure is taken as its benchmark's share of the floor of the same run where there is one. Reported are
the medians of both, and of the rounds' differences the median and its interval of 95 % (bootstrap), in which a positive
difference means that the code here is better.

    python -m benchmarks.alternate --before ../other-checkout [--runs 9] [--only decide,commands]

Each checkout must have been set up (`make setup`): its own `.venv` is used.
"""

import argparse
import os
import random
import re
import statistics
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.cluster import machine

HERE: Final = Path(__file__).resolve().parents[1]
RUN_S_MAX: Final = 300
RESAMPLES: Final = 10_000
TOLERANCE: Final = -0.05
"""A difference whose interval reaches this far up is no loss."""

Figures = dict[str, float]


class Benchmark(NamedTuple):
    """How one benchmark is run in a short round, and which figures its output has."""

    arguments: tuple[str, ...]
    figures: Callable[[str], Figures]
    higher_is_better: bool


def columns(text: str, column: int, *, skip: str) -> Figures:
    """The numbers of one column of a Markdown table, under the first column; rows that contain `skip` are left out."""
    found: Figures = {}
    for line in text.splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("| ").split("|")]
        if len(cells) > column and skip not in cells[0] and (number := re.match(r"[\d.,]+", cells[column])):
            found[cells[0]] = float(number.group().replace(",", ""))
    return found


def _start_latency(text: str) -> Figures:
    medians = list(columns(text, 1, skip="what").values())
    return {"POST to first instruction, times the floor": medians[0] / medians[1]}


def _throughput(text: str) -> Figures:
    """Jobs a second as parts of the floor, from the rates themselves: the printed share has two digits."""
    rates = columns(text, 1, skip="way in")
    floor = next(rates.pop(name) for name in list(rates) if "floor" in name)
    return {f"{name}, of the floor": rate / floor for name, rate in rates.items()}


def _submissions(text: str) -> Figures:
    """CPU time. The floor is a request to the same server, so a faster server would count as a loss."""
    return {f"{name}, CPU us": us for name, us in columns(text, 3, skip="floor").items() if "client" in name}


def _decide(text: str) -> Figures:
    passes = {
        f"full pass, {name.strip()}, ms": float(ms)
        for name, ms in re.findall(r"^(\S[^\n]*?)\s+\d+ shapes: median\s+([\d.]+) ms", text, re.MULTILINE)
    }
    ratios = re.findall(r"bare loop [\d,]+/s, ratio ([\d.]+)", text)
    return {
        f"placements, bare loop over ours ({number})": float(ratio) for number, ratio in enumerate(ratios, 1)
    } | passes


def _scale(text: str) -> Figures:
    return {name: value for name, value in columns(text, 1, skip="what").items() if "no jobs" not in name}


BENCHMARKS: Final[dict[str, Benchmark]] = {
    "throughput": Benchmark(("--rounds", "1"), _throughput, True),
    "start_latency": Benchmark(("--rounds", "30"), _start_latency, False),
    "submissions": Benchmark(("--rounds", "1", "--seconds", "2"), _submissions, False),
    "decide": Benchmark(("--quick",), _decide, False),
    "scale": Benchmark(("--jobs", "20000", "--watch", "5"), _scale, False),
    "commands": Benchmark(("--runs", "7"), lambda text: columns(text, 3, skip="command"), False),
}


def run(tree: Path, name: str) -> Figures:
    """One short round of a benchmark in a checkout. Raises: RuntimeError with its output when it fails."""
    benchmark = BENCHMARKS[name]
    command = [str(tree / ".venv/bin/python"), "-m", f"benchmarks.{name}", *benchmark.arguments]
    environ = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"}
    done = subprocess.run(
        command, cwd=tree, env=environ, capture_output=True, text=True, timeout=RUN_S_MAX, check=False
    )
    figures = benchmark.figures(done.stdout)
    if not figures:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return figures


def differences(before: Sequence[float], after: Sequence[float], *, higher_is_better: bool) -> list[float]:
    """Of each round: by which part is the second better than the first?"""
    ratios = [new / old for old, new in zip(before, after, strict=True)]
    return [ratio - 1 if higher_is_better else 1 / ratio - 1 for ratio in ratios]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval of 95 % of the median, by resampling with a fixed seed."""
    dice = random.Random(1)
    medians = sorted(statistics.median(dice.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]


def compared(name: str, before: Sequence[Figures], after: Sequence[Figures]) -> Iterator[str]:
    """The rows of one benchmark."""
    for figure in before[0]:
        old, new = [round_[figure] for round_ in before], [round_[figure] for round_ in after]
        found = differences(old, new, higher_is_better=BENCHMARKS[name].higher_is_better)
        low, high = interval(found)
        verdict = "yes" if high >= TOLERANCE else "NO"
        yield (
            f"| {name}: {figure} | {statistics.median(old):.4g} | {statistics.median(new):.4g} "
            f"| {statistics.median(found):+.1%} | {low:+.1%} to {high:+.1%} | {verdict} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the code before")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--only", default=",".join(BENCHMARKS), help="commas between names")
    told = parser.parse_args()
    print(f"{machine()}; {told.runs} rounds each, in turns\n")
    print("| figure | before | after | difference, + is better | 95 % interval | no worse than -5 % |")
    print("|---|---:|---:|---:|---:|---|")
    for name in told.only.split(","):
        before: list[Figures] = []
        after: list[Figures] = []
        for number in range(told.runs):
            for tree, found in ((told.before.resolve(), before), (HERE, after))[:: 1 if number % 2 else -1]:
                found.append(run(tree, name))
        print("\n".join(compared(name, before, after)), flush=True)


if __name__ == "__main__":
    main()
