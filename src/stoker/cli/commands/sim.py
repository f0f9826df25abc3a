"""`stoker sim`: a trace of jobs in simulated time."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker.cli.display.output import Form, show_pairs, show_rows
from stoker.cli.display.table import Column, fields
from stoker.cli.options import OnceGroup

if TYPE_CHECKING:
    from stoker.sim.cluster_run import NodeSet
    from stoker.sim.outcome import Progress, Summary
    from stoker.sim.policies import SimPolicy

_FORMATS = ("csv", "philly", "muri", "swf")
_PROGRESS_JOBS = 2_000
"""Jobs below which a run is over before a bar would be read."""


@click.group(cls=OnceGroup)
def sim() -> None:
    """Run a trace of jobs in simulated time: the engine on nodes that don't exist, or a queue discipline by counts.

    \b
    Examples:
      stoker sim run --policy list
      stoker sim run --format muri --workload testbed_trace.csv.gz --nodes 8x8
    """


def _node_set(ctx: click.Context, option: click.Parameter, text: str | None) -> "NodeSet | None":
    if text is None:
        return None
    from stoker.sim.cluster_run import NodeSet

    found = re.fullmatch(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,2})", text)
    if found is None:
        raise click.BadParameter(f"{text!r} isn't NODESxGPUS, such as 72x8 (up to 9999 nodes with up to 999 GPUs)")
    return NodeSet(*map(int, found.groups()))


def _thresholds(ctx: click.Context, option: click.Parameter, text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(re.fullmatch(r"[0-9]{1,12}", word) for word in words) or int(words[0]) < 1:
        raise click.BadParameter(f"{text!r} isn't a list of GPU-seconds, such as 3600,36000")
    seconds = [int(word) for word in words]
    if seconds != sorted(set(seconds)):
        raise click.BadParameter(f"{text!r} doesn't rise: each queue takes jobs from where the one before ends")
    return tuple(each * 1_000 for each in seconds)


@sim.command()
@click.option("--format", "trace_format", type=click.Choice(_FORMATS), help="What the workload is written in.")
@click.option(
    "--workload",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="The trace, plain or gzip.",
)
@click.option("--gpus", type=click.IntRange(1, 10**7), help="Count this many GPUs only, as published tables do.")
@click.option("--nodes", callback=_node_set, metavar="AxB", help="A nodes with B GPUs each; jobs are really placed.")
@click.option("--policy", required=True, help="Who goes first; `list` describes all.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the engine's decisions.")
@click.option(
    "--restart-cost",
    type=click.IntRange(0, 10**9),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="Of srtf, srsf and las: what each preemption adds to a job's work.",
)
@click.option(
    "--thresholds",
    callback=_thresholds,
    default="3600,36000,360000",
    show_default=True,
    metavar="A,B,C",
    help="Of las: GPU-seconds after which a job goes to the next queue.",
)
@click.option(
    "-o",
    "form",
    type=click.Choice([Form.TABLE.value, Form.WIDE.value, Form.JSON.value, Form.YAML.value]),
    default=Form.TABLE.value,
    show_default=True,
    help="How to print it.",
)
@click.option("--json", "form", flag_value=Form.JSON.value, help="The same as -o json.")
def run(
    trace_format: str | None,
    workload: Path | None,
    gpus: int | None,
    nodes: "NodeSet | None",
    policy: str,
    form: str,
    **given: "int | tuple[int, ...]",
) -> None:
    """Run all jobs of a trace and print completion times, makespan and utilisation.

    With --nodes the engine that decides live decides here, on a whole cluster in memory. With
    --gpus one pool is counted, without nodes: the yardsticks that papers print.

    \b
    Examples:
      stoker sim run --policy list
      stoker sim run --format swf --workload jobs.gz --gpus 576 --policy easy
      stoker sim run --format swf --workload jobs.gz --nodes 72x8 --policy engine
      stoker sim run --format muri --workload jobs.gz --gpus 64 --policy las
    """
    from stoker.sim.policies import POLICIES, RunOptions, simulate
    from stoker.sim.trace import read_trace

    if policy == "list":
        show_rows(form, _policy_columns(), POLICIES, POLICIES)
        return
    cluster = gpus or nodes
    if (gpus is None) == (nodes is None) or cluster is None:
        raise click.UsageError("say what the cluster is: --gpus N or --nodes AxB, and not both")
    if trace_format is None or workload is None:
        raise click.UsageError(f"name the trace by --workload and its --format: {', '.join(_FORMATS)}")
    options = RunOptions(
        seed=int(given["seed"]),  # type: ignore[arg-type]  # click's type
        restart_ms=int(given["restart_cost"]) * 1_000,  # type: ignore[arg-type]  # click's type
        thresholds=given["thresholds"],  # type: ignore[arg-type]  # click's type
    )
    trace = read_trace(workload, trace_format)
    with _bar(len(trace.jobs)) as progress:
        summary = simulate(trace, cluster, policy, options, progress)
    show_pairs(form, _lines(summary), summary)


@contextmanager
def _bar(jobs: int) -> "Iterator[Progress]":
    """A progress bar on stderr, for people who wait."""
    if jobs < _PROGRESS_JOBS or not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=jobs, label="jobs ended", file=sys.stderr, update_min_steps=jobs // 200) as bar:
        yield bar.update


def _policy_columns() -> "list[Column[SimPolicy]]":
    return [*fields("NAME", "MODEL", "KNOWS"), *fields("ABOUT", elastic=True), *fields("SOURCE", elastic=True)]


def _lines(summary: "Summary") -> Iterator[tuple[str, object]]:
    left_out = f" ({summary.left_out} that never ran are left out)" if summary.left_out else ""
    yield "policy", summary.policy
    yield "jobs", f"{summary.jobs}{left_out}"
    yield "GPUs", summary.gpus
    yield "completion time", f"{_hours(summary.jct_mean_s)} on average, 99 % within {_hours(summary.jct_p99_s)}"
    yield "of that waiting", f"{_hours(summary.wait_mean_s)} on average"
    yield "makespan", _hours(summary.makespan_s)
    yield "utilisation", f"{100 * summary.utilisation:.1f} %"
    yield "preemptions", summary.preemptions


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.2f} h"
