"""`make soak`: run seeds for a given time, print what they came to, stop at the first that breaks a promise.

Kinds of runs: `single` (one control plane), `pair` (two, each with a log of its own), `shared` (two on one database),
`fast` (two, with the fast profile), `lying` (one, beside a node and a control plane that lie), `days` and `pair-days`
(one and two over days, in which people come and faults happen hours apart), `taking` and `pair-taking` (one and two,
with people who take from each other what they hold). Without a choice they take turns.

Seeds follow each other from one soak to the next: a table (`benchmarks/results/soak.md`) says for each kind which seed
comes next, and what all before it came to. It is written after every run, so that an interruption loses one at most.
A seed that broke a promise is counted in it, and not run again by itself.
"""

import argparse
import itertools
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from stoker.agent.runner.files import replace_file
from tests.rig.liars import simulate_among_liars
from tests.rig.pair_mutants import FOUND
from tests.rig.pair_run import simulate_pair, simulate_pair_days, simulate_pair_taking
from tests.rig.planted import Bugs
from tests.rig.run import Report, simulate, simulate_days, simulate_taking

KINDS: Final = ("single", "pair", "shared", "fast", "lying", "days", "pair-days", "taking", "pair-taking")
FIRST: Final = 10_000_000
"""The first seed of a table that is begun: no test runs those."""
STATE: Final = Path(__file__).parent.parent.parent / "benchmarks" / "results" / "soak.md"
AIM_H: Final = 1_000
TURNS: Final = ("pair", "single", "days", "taking", "shared", "pair", "pair-taking", "pair-days", "fast", "lying")
NODES: Final = 20
"""Of a run with two control planes."""
STEPS: Final = 60
"""Of each history of a soak."""


@dataclass(slots=True)
class Tally:
    """What the soaks of one kind have come to, each with the options that `_options` gives it."""

    next_seed: int = FIRST
    seeds: int = 0
    simulated_h: float = 0.0
    events: int = 0
    violations: int = 0
    commit: str = "-"
    """Of the newest."""


HEAD: Final = """# Soak: random faults on virtual time

`make soak MINUTES=60` goes on with the seeds that come next: {steps} steps in each history. Two control planes
have {nodes} nodes, a single one 3, as have both in `days` and `pair-days`, where faults lie hours apart, and in
`taking` and `pair-taking`, where people take from each other. It keeps this table; a seed that breaks a promise is
counted, named, and becomes a test.
The aim is {aim} simulated hours without a violation: {hours:.1f} so far, with {violations} violations.

| kind | next seed | seeds | simulated hours | events | violations | newest commit |
|---|---:|---:|---:|---:|---:|---|
"""


def read_tallies(path: Path) -> dict[str, Tally]:
    """Raises: ValueError for a table that can't be read."""
    tallies = {kind: Tally() for kind in KINDS}
    if not path.exists():
        return tallies
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        kind, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or kind in ("kind", "---"):
            continue
        try:
            next_seed, seeds, hours, events, violations, commit = cells
            tallies[kind] = Tally(
                int(next_seed), int(seeds), float(hours), int(events), int(violations), commit.strip("`")
            )
        except ValueError as error:
            raise ValueError(
                f"line {number} of {path} is no row of a soak: {error}; put the committed one back"
            ) from error
    return tallies


def write_tallies(path: Path, tallies: Mapping[str, Tally]) -> None:
    """Whole or not at all."""
    text = HEAD.format(
        nodes=NODES,
        steps=STEPS,
        aim=f"{AIM_H:,}",
        hours=sum(each.simulated_h for each in tallies.values()),
        violations=sum(each.violations for each in tallies.values()),
    )
    for kind, each in tallies.items():
        text += (
            f"| {kind} | {each.next_seed} | {each.seeds} | {each.simulated_h:.3f} | {each.events} "
            f"| {each.violations} | `{each.commit}` |\n"
        )
    replace_file(str(path), text.encode())


@dataclass(frozen=True, slots=True)
class Options:
    kind: str
    steps: int
    nodes: int
    forgetting: bool


def run(seed: int, options: Options) -> Report:
    if options.kind == "single":
        return simulate(seed, steps=options.steps, forgetting=options.forgetting)
    if options.kind == "lying":
        return simulate_among_liars(seed, steps=options.steps)
    if options.kind == "taking":
        return simulate_taking(seed, steps=options.steps, forgetting=options.forgetting)
    if options.kind == "pair-taking":
        return simulate_pair_taking(seed, steps=options.steps)
    if options.kind == "days":
        return simulate_days(seed, options.steps)
    if options.kind == "pair-days":
        return simulate_pair_days(seed, options.steps)
    profile = "fast" if options.kind == "fast" else "default"
    return simulate_pair(
        seed, nodes=options.nodes, steps=options.steps, shared=options.kind == "shared", profile=profile
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--state", type=Path, default=STATE, help="the table that says where to go on")
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
    if told.steps or told.nodes != NODES or told.forgetting:
        parser.error("a soak has the same options each time: --steps, --nodes and --forgetting go with --seed")
    return soak(told.minutes, (told.kind,) if told.kind else TURNS, told.state)


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


def soak(minutes: float, turns: Sequence[str], state: Path, run: Callable[[int, Options], Report] = run) -> int:
    """Go on where the table says. Another soak that keeps the same table is waited for by nobody: run one at a time."""
    began, cpu = time.monotonic(), time.process_time()
    tallies, commit = read_tallies(state), _commit()
    before = sum(each.simulated_h for each in tallies.values())
    turn = sum(each.seeds for each in tallies.values())
    while time.monotonic() - began < minutes * 60:
        kind = turns[turn % len(turns)]
        tally = tallies[kind]
        seed, turn = tally.next_seed, turn + 1
        options = Options(kind, STEPS, NODES, forgetting=kind == "single" and seed % 7 == 0)
        tally.next_seed, tally.commit = seed + 1, commit
        try:
            report = run(seed, options)
        except Exception:
            tally.violations += 1
            write_tallies(state, tallies)
            print(f"seed {seed} broke a promise: {_again(seed, options)}", file=sys.stderr)
            raise
        tally.seeds, tally.events = tally.seeds + 1, tally.events + report.events
        tally.simulated_h += report.simulated_s / 3_600
        write_tallies(state, tallies)
        if turn % 50 == 0:
            print(_so_far(tallies, before, time.process_time() - cpu), flush=True)
    print(_so_far(tallies, before, time.process_time() - cpu))
    return 0


def _so_far(tallies: Mapping[str, Tally], before: float, cpu_s: float) -> str:
    hours = sum(each.simulated_h for each in tallies.values())
    new = hours - before
    rate = f"{new / cpu_s * 3_600:.0f} simulated hours per core-hour" if cpu_s else "none"
    return f"{hours:.1f} simulated hours so far, {new:.1f} of them now ({rate}), every promise kept in these"


def _commit() -> str:
    asked = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    said = subprocess.run(asked, capture_output=True, text=True, cwd=STATE.parent, check=False)
    return said.stdout.strip() or "unknown"


def _again(seed: int, options: Options) -> str:
    flag = " --forgetting" if options.forgetting else ""
    nodes = "" if options.kind not in ("pair", "shared", "fast") else f" --nodes {options.nodes}"
    return f"python -m tests.rig.soak --seed {seed} --kind {options.kind} --steps {options.steps}{nodes}{flag}"


if __name__ == "__main__":
    sys.exit(main())
