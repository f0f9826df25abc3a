"""`make soak`: run seeds for a given time, print what they came to, stop at the first that breaks a promise.

Kinds of runs: `single` (one control plane), `pair` (two, each with a log of its own), `shared` (two on one database),
`fast` (two, with the fast profile). Without a choice they take turns.
"""

import argparse
import itertools
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pytest

from tests.rig.pair_mutants import FOUND
from tests.rig.pair_run import simulate_pair
from tests.rig.planted import Bugs
from tests.rig.run import Report, simulate

KINDS: Final = ("single", "pair", "shared", "fast")
TURNS: Final = ("pair", "single", "shared", "pair", "fast")
NODES: Final = 20
"""Of a run with two control planes."""


@dataclass(frozen=True, slots=True)
class Options:
    kind: str
    steps: int
    nodes: int
    forgetting: bool


def run(seed: int, options: Options) -> Report:
    if options.kind == "single":
        return simulate(seed, steps=options.steps, forgetting=options.forgetting)
    profile = "fast" if options.kind == "fast" else "default"
    return simulate_pair(
        seed, nodes=options.nodes, steps=options.steps, shared=options.kind == "shared", profile=profile
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--first", type=int, default=1_000_000, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this one seed and print its report")
    parser.add_argument("--kind", choices=KINDS, help="only runs of this kind (with --seed: single)")
    parser.add_argument("--steps", type=int, help="how long each history is (30 with --seed, else 60)")
    parser.add_argument("--nodes", type=int, default=NODES, help="of two control planes")
    parser.add_argument("--forgetting", action="store_true", help="people also forget nodes by force")
    parser.add_argument(
        "--mutant",
        choices=[found.mutant.__name__ for found in FOUND],
        help="break this, and look for a seed that shows it",
    )
    told = parser.parse_args()
    if told.mutant is not None:
        return _look_for(told.mutant)
    if told.seed is not None:
        options = Options(told.kind or "single", told.steps or 30, told.nodes, told.forgetting)
        print(run(told.seed, options))
        return 0
    return _soak(told.minutes, told.first, lambda seed: _options(told, seed))


def _look_for(name: str) -> int:
    """Which seed shows a promise broken on purpose?"""
    (found,) = (found for found in FOUND if found.mutant.__name__ == name)
    found.mutant(Bugs(pytest.MonkeyPatch()))
    began = time.process_time()
    for seed in itertools.count():
        try:
            simulate_pair(seed, shared=found.shared, faults=found.faults)
        except AssertionError as fault:
            spent = time.process_time() - began
            if re.search(found.promise, str(fault)):
                print(f"{name} is noticed by seed {seed}, after {spent:.0f} s of one core:\n{fault}")
                return 0
            print(f"seed {seed} notices something else: {str(fault).splitlines()[0]}")
    return 1


def _options(told: argparse.Namespace, seed: int) -> Options:
    kind = told.kind or TURNS[seed % len(TURNS)]
    return Options(kind, told.steps or 60, told.nodes, told.forgetting or (kind == "single" and seed % 7 == 0))


def _soak(minutes: float, first: int, options_of: Callable[[int], Options]) -> int:
    began, cpu = time.monotonic(), time.process_time()
    seeds, events, simulated_s = 0, 0, 0.0

    def so_far() -> str:
        spent, hours = time.process_time() - cpu, simulated_s / 3600
        rates = f"{events / spent:.0f} events/s, {hours / spent * 3600:.0f} simulated hours per core-hour"
        return f"{seeds} seeds from {first}: {hours:.1f} simulated hours, {events} events; {rates}"

    for seed in itertools.count(first):
        if time.monotonic() - began > minutes * 60:
            break
        options = options_of(seed)
        try:
            report = run(seed, options)
        except BaseException:
            print(f"seed {seed} broke a promise: {_again(seed, options)}", file=sys.stderr)
            print(so_far(), file=sys.stderr)
            raise
        seeds, events, simulated_s = seeds + 1, events + report.events, simulated_s + report.simulated_s
        if seeds % 50 == 0:
            print(so_far(), flush=True)
    print(f"every promise was kept. {so_far()}")
    return 0


def _again(seed: int, options: Options) -> str:
    flag = " --forgetting" if options.forgetting else ""
    nodes = "" if options.kind == "single" else f" --nodes {options.nodes}"
    return f"python -m tests.rig.soak --seed {seed} --kind {options.kind} --steps {options.steps}{nodes}{flag}"


if __name__ == "__main__":
    sys.exit(main())
