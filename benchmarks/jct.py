"""Job completion times of `stoker sim run` on public traces, beside what others published for the same jobs.

Muri's 400 jobs on 64 GPUs stand beside what its authors measured for each job on their testbed. Of Microsoft's Philly,
here on 576 GPUs, nobody published results by job, so its figures have their ratio to those of `fifo`. The last row of
each table is the engine that decides live, which really places, on nodes with 8 GPUs each. For Philly it makes no
reservations: with its eight, found anew in each of some 150,000 passes, the run would take three to five times as long.

    python -m benchmarks.jct [--jobs 1000]
"""

import argparse
import csv
import gzip
import time
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from benchmarks.cluster import machine
from stoker.brain.domain.policy import Policy
from stoker.sim.cluster_run import NodeSet
from stoker.sim.outcome import Summary, percentile
from stoker.sim.policies import POLICIES, RunOptions, simulate
from stoker.sim.trace import Trace, read_trace

TRACES: Final = Path(__file__).resolve().parent / "traces"
MURI_GPUS: Final = 64
PHILLY_GPUS: Final = 576
MURI: Final = {"srsf": "SRSF", "srtf": "SRTF", "las": "tiresias"}
"""The policies whose results were published, and what their files are called."""
MURI_LAS: Final = (3_250_000,)
"""The one threshold of the published run, in GPU-milliseconds."""
MURI_RESTART_MS: Final = 30_000
PHILLY_RESTART_MS: Final = 60_000
_COUNTED: Final = tuple(each.name for each in POLICIES if each.model == "counting")


def run(trace: Trace, cluster: int | NodeSet, policy: str, options: RunOptions) -> tuple[Summary, float]:
    """Return the figures of a run, and its CPU seconds."""
    began = time.process_time()
    summary = simulate(trace, cluster, policy, options, lambda _: None)
    return summary, time.process_time() - began


def published(policy: str) -> tuple[float, float, float]:
    """Return mean and 99th percentile of the completion times that Muri's authors measured, and the makespan, in s."""
    with gzip.open(TRACES / "muri" / f"testbed_result_{MURI[policy]}.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    times_ms = [round(float(row["JCT"]) * 1_000) for row in rows]
    return (
        sum(times_ms) / len(times_ms) / 1_000,
        percentile(times_ms, 99) / 1_000,
        max(float(row["time"]) for row in rows),
    )


def muri(jobs_max: int | None) -> None:
    """Print the table of Muri's trace."""
    trace = first(read_trace(TRACES / "muri" / "testbed_trace.csv.gz", "muri"), jobs_max)
    lost = f"{MURI_RESTART_MS // 1_000} s lost by a preemption"
    print(f"Muri, {len(trace.jobs)} jobs, {MURI_GPUS} GPUs, {lost}; las with one threshold, {MURI_LAS[0]:,} GPU ms\n")
    print("| policy | mean s | published | 99 % s | published | makespan s | published | preemptions | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|")
    options = RunOptions(restart_ms=MURI_RESTART_MS, thresholds=MURI_LAS)
    clusters: list[tuple[str, int | NodeSet]] = [(name, MURI_GPUS) for name in _COUNTED]
    for policy, cluster in [*clusters, ("engine", NodeSet(8, 8))]:
        summary, cpu_s = run(trace, cluster, policy, options)
        theirs = [f"{each:,.0f}" for each in published(policy)] if policy in MURI else ["-"] * 3
        ours = [f"{each:,.0f}" for each in (summary.jct_mean_s, summary.jct_p99_s, summary.makespan_s)]
        pairs = " | ".join(cell for pair in zip(ours, theirs, strict=True) for cell in pair)
        name = policy if isinstance(cluster, int) else f"{policy} on nodes"
        print(f"| {name} | {pairs} | {summary.preemptions} | {cpu_s:.1f} |", flush=True)


def philly(jobs_max: int | None) -> None:
    """Print the table of Philly's trace."""
    trace = first(read_trace(TRACES / "philly" / "philly_vc.csv.gz", "philly"), jobs_max)
    print(
        f"\nPhilly, {len(trace.jobs)} jobs, {PHILLY_GPUS} GPUs, {PHILLY_RESTART_MS // 1_000} s lost by a preemption\n"
    )
    print("| policy | knows | mean h | of fifo's | 99 % h | waiting h | preemptions/job | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    knows = {each.name: each.knows for each in POLICIES}
    fifo_s = 0.0
    clusters: list[tuple[str, int | NodeSet]] = [(name, PHILLY_GPUS) for name in _COUNTED]
    for policy, cluster in [*clusters, ("engine", NodeSet(PHILLY_GPUS // 8, 8))]:
        options = RunOptions(restart_ms=PHILLY_RESTART_MS)
        if isinstance(cluster, NodeSet):
            options = replace(options, engine=Policy(reservations_max=0))
        summary, cpu_s = run(trace, cluster, policy, options)
        fifo_s = fifo_s or summary.jct_mean_s
        hours = f"{summary.jct_mean_s / 3600:.2f} | {fifo_s / summary.jct_mean_s:.2f}x | {summary.jct_p99_s / 3600:.1f}"
        rest = f"{summary.wait_mean_s / 3600:.2f} | {summary.preemptions / summary.jobs:.2f} | {cpu_s:.1f}"
        name = policy if isinstance(cluster, int) else f"{policy} on nodes, no reservations"
        print(f"| {name} | {knows[policy]} | {hours} | {rest} |", flush=True)


def first(trace: Trace, jobs_max: int | None) -> Trace:
    """Return a trace with no more than so many jobs."""
    return trace if jobs_max is None else replace(trace, jobs=trace.jobs[:jobs_max])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, help="no more than the first so many of each trace")
    chosen = options.parse_args()
    print(f"{machine()}\n")
    muri(chosen.jobs)
    philly(chosen.jobs)


if __name__ == "__main__":
    main()
