"""`stoker sim`: a trace of jobs in simulated time."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from stoker.cli.display.output import Form, show_pairs, show_rows
from stoker.cli.display.table import Column, fields
from stoker.cli.options import FiniteRange, OnceGroup, with_options

if TYPE_CHECKING:
    from stoker.sim.cluster_run import NodeSet
    from stoker.sim.comparison import Estimate
    from stoker.sim.loading import LoadingSummary
    from stoker.sim.outcome import Progress, Summary
    from stoker.sim.policies import RunOptions, SimPolicy
    from stoker.sim.replay import Replay
    from stoker.sim.trace import Trace

_OPENB = "openb"
_FORMATS = ("csv", "philly", "muri", "swf", _OPENB, "log")
_GPUS_MAX = 200_000
"""GPUs on nodes: each takes half a kilobyte or more."""
_LOAD = 1.3
"""As the published runs of openb have it."""
_HOUR_MS = 3_600_000
_PROGRESS_JOBS = 2_000
"""Jobs below which a run is over before a bar would be read."""


@click.group(cls=OnceGroup)
def sim() -> None:
    """Run a trace of jobs in simulated time: the engine on nodes that don't exist, or a queue discipline by counts.

    \b
    Examples:
      stoker sim run --policy list
      stoker sim run --format muri --workload trace.csv --nodes 8x8 \\
          --policy engine
      stoker sim replay --log /var/lib/stoker --policy aging_per_hour=0
    """


def _node_set(text: str) -> "NodeSet":
    """Read `72x8`. Raises: BadParameter."""
    from stoker.sim.cluster_run import NodeSet

    found = re.fullmatch(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,2})", text)
    if found is None:
        raise _bad_nodes(f"{text!r} isn't NODESxGPUS, such as 72x8 (up to 9999 nodes with up to 999 GPUs)")
    nodes = NodeSet(*map(int, found.groups()))
    if nodes.gpus > _GPUS_MAX:
        raise _bad_nodes(f"{text} is {nodes.gpus} GPUs; nodes with up to {_GPUS_MAX} in all are simulated")
    return nodes


def _bad_nodes(message: str) -> click.BadParameter:
    return click.BadParameter(message, param_hint="'--nodes'")


def _thresholds(ctx: click.Context, option: click.Parameter, text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(re.fullmatch(r"[0-9]{1,12}", word) for word in words) or int(words[0]) < 1:
        raise click.BadParameter(f"{text!r} isn't a list of GPU-seconds, such as 3600,36000")
    seconds = [int(word) for word in words]
    if seconds != sorted(set(seconds)):
        raise click.BadParameter(f"{text!r} doesn't rise: each queue takes jobs from where the one before ends")
    return tuple(each * 1_000 for each in seconds)


def _hours_of(ctx: click.Context, option: click.Parameter, hours: float | None) -> int | None:
    if hours is None:
        return None
    if not 0.001 <= hours <= 10**7:
        raise click.BadParameter(f"{hours:g} isn't a number of hours from 0.001 to 10000000")
    return round(hours * _HOUR_MS)


_run_options = with_options(
    click.option("--format", "trace_format", type=click.Choice(_FORMATS), help="What the workload is written in."),
    click.option(
        "--workload",
        type=click.Path(path_type=Path, exists=True),
        metavar="FILE",
        help="The trace, plain or gzip; of format openb a list of pods, of format log a data folder or a backup.",
    ),
    click.option("--gpus", type=click.IntRange(1, 10**7), help="Count this many GPUs only, as published tables do."),
    click.option(
        "--nodes",
        metavar="AxB|FILE",
        help="A nodes with B GPUs each; jobs are really placed. Of format openb the list of nodes.",
    ),
    click.option("--mtbf", type=float, callback=_hours_of, metavar="HOURS", help="Mean time until a node fails."),
    click.option(
        "--mttr",
        type=float,
        callback=_hours_of,
        metavar="HOURS",
        default=1.0,
        help="Mean time to its repair. [default: 1]",
    ),
    click.option(
        "--attempt-lease",
        type=click.IntRange(0, 30 * 86_400),
        default=0,
        show_default=True,
        metavar="SECONDS",
        help="Silence of a node after which its jobs start elsewhere; 0: they wait for its repair.",
    ),
    click.option(
        "--restart-cost",
        type=click.IntRange(0, 10**9),
        default=60,
        show_default=True,
        metavar="SECONDS",
        help="Of srtf, srsf and las: what each preemption adds to a job's work.",
    ),
    click.option(
        "--thresholds",
        callback=_thresholds,
        default="3600,36000,360000",
        show_default=True,
        metavar="A,B,C",
        help="Of las: GPU-seconds after which a job goes to the next queue.",
    ),
)
_form_options = with_options(
    click.option(
        "-o",
        "form",
        type=click.Choice([Form.TABLE.value, Form.WIDE.value, Form.JSON.value, Form.YAML.value]),
        default=Form.TABLE.value,
        show_default=True,
        help="How to print it.",
    ),
    click.option("--json", "form", flag_value=Form.JSON.value, help="The same as -o json."),
)


@sim.command()
@_run_options
@click.option("--policy", required=True, metavar="NAME[,KEY=VALUE...]", help="Who goes first; `list` describes all.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the engine, of failures and of arrivals."
)
@click.option(
    "--load",
    type=FiniteRange(0.01, 10),
    metavar="FACTOR",
    help="Of format openb: pods arrive until they ask for so many times the GPUs. [default: 1.3]",
)
@_form_options
def run(policy: str, seed: int, load: float | None, form: str, **given: object) -> None:
    """Run all jobs of a trace and print completion times, makespan and utilisation.

    With --nodes the engine that decides live decides here, on a whole cluster in memory. With
    --gpus one pool is counted, without nodes: the yardsticks that papers print. What stands in
    the section `policy` of control.yaml may follow the name of the engine.

    With --format openb pods of a list arrive one by one at listed nodes and stay; one that fits
    nowhere is dropped. Printed is which part of the GPUs is allocated, by what has arrived.

    \b
    Examples:
      stoker sim run --policy list
      stoker sim run --format openb --nodes nodes.csv --workload pods.csv \\
          --policy engine --load 1.3
      stoker sim run --format swf --workload jobs.gz --gpus 576 --policy easy
      stoker sim run --format swf --workload jobs.gz --nodes 72x8 \\
          --policy engine,aging_per_hour=0
      stoker sim run --format swf --workload jobs.gz --nodes 72x8 \\
          --policy engine --mtbf 2000 --mttr 4
      stoker sim run --format muri --workload jobs.gz --gpus 64 --policy las
    """
    from msgspec.structs import replace

    from stoker.sim.policies import POLICIES, simulate

    if policy == "list":
        show_rows(form, _policy_columns(), POLICIES, POLICIES)
        return
    wanted = _Wanted(**given)  # type: ignore[arg-type]  # click gives each option its type
    if wanted.trace_format == _OPENB:
        _load(wanted, policy, seed, _LOAD if load is None else load, form)
        return
    if load is not None:
        raise click.UsageError(f"--load is for --format {_OPENB}: jobs of a trace come in when they came in")
    cluster = wanted.cluster
    name, options = wanted.variant(policy)
    trace = wanted.trace()
    with _bar("jobs ended", len(trace.jobs)) as progress:
        summary = simulate(trace, cluster, name, replace(options, seed=seed), progress)
    show_pairs(form, _lines(summary), replace(summary, policy=policy))


def _load(wanted: "_Wanted", policy: str, seed: int, load: float, form: str) -> None:
    """Fill a cluster with pods that stay, and print what is allocated."""
    from msgspec.structs import replace

    from stoker.cli.clock import cpu_s
    from stoker.sim.loading import load_cluster, read_lists

    if wanted.nodes is None or wanted.workload is None or wanted.gpus is not None:
        raise click.UsageError(
            f"--format {_OPENB} takes two files: the list of nodes by --nodes, of pods by --workload"
        )
    if wanted.mtbf is not None:
        raise click.UsageError(f"--mtbf isn't for --format {_OPENB}: pods come and stay, and no time passes")
    _, options = wanted.variant(policy)
    lists = read_lists(Path(wanted.nodes), wanted.workload)
    with _bar("thousandths of GPUs asked for", round(load * lists.gpus * 1_000)) as progress:
        loaded = load_cluster(lists, options.engine, load, seed, cpu_s, progress)
    show_pairs(form, _loaded_lines(loaded), replace(loaded, policy=policy))


@sim.command()
@_run_options
@click.option(
    "--policy",
    "policies",
    required=True,
    multiple=True,
    metavar="NAME[,KEY=VALUE...]",
    help="As for `sim run`; twice or more. The first is what the others are compared with.",
)
@click.option(
    "--seeds", type=click.IntRange(2, 1_000), default=10, show_default=True, help="Runs of each policy, in pairs."
)
@_form_options
def compare(policies: tuple[str, ...], seeds: int, form: str, **given: object) -> None:
    """Run a trace under two or more policies, and say which differences are more than chance.

    Seed 0 is the trace as it is. With each further seed every submission keeps its time, and its
    job is drawn from all jobs of the trace; failures of nodes are drawn by it too. All policies
    meet the same jobs and the same failures, so that they are compared seed by seed. An interval
    holds the true difference with 95 % confidence (Student's t, paired).

    \b
    Examples:
      stoker sim compare --format swf --workload jobs.gz --gpus 576 \\
          --policy fifo --policy easy
      stoker sim compare --format swf --workload jobs.gz --nodes 72x8 --seeds 5 \\
          --policy engine --policy engine,aging_per_hour=0
    """
    from stoker.sim.comparison import Variant, compare

    if len(set(policies)) != len(policies) or len(policies) < 2:
        raise click.UsageError("name two or more different policies, each by a --policy of its own")
    wanted = _Wanted(**given)  # type: ignore[arg-type]  # click gives each option its type
    cluster = wanted.cluster
    named = [(label, *wanted.variant(label)) for label in policies]
    variants = [Variant(label=label, policy=name, options=options) for label, name, options in named]
    trace = wanted.trace()
    with _bar("jobs ended", len(trace.jobs) * len(variants) * seeds) as progress:
        compared = compare(trace, cluster, variants, seeds, progress)
    below = [
        ("jobs", f"{compared.jobs} on {compared.gpus} GPUs, {compared.seeds} seeds"),
        ("FROM, TO", "hold the true difference with 95 % confidence; `*`: zero is outside"),
    ]
    there = {each.figure for each in compared.estimates if each.mean}  # what no policy had needs no rows
    rows = [each for each in compared.estimates if each.figure in there]
    show_rows(form, _comparison_columns(compared.baseline), rows, compared, below)


@sim.command()
@click.option(
    "--log",
    required=True,
    type=click.Path(path_type=Path, exists=True),
    metavar="FOLDER|BACKUP",
    help="Data folder of a control plane, running or not, or a file of `stoker backup`. It is only read.",
)
@click.option(
    "--policy", "changes", multiple=True, metavar="KEY=VALUE", help="Another value for a key of the section `policy`."
)
@_form_options
def replay(log: Path, changes: tuple[str, ...], form: str) -> None:
    """Run a captured production log again, under the policy that it had or another one.

    Every job comes in when it came in, and runs as long as it ran; nodes join, fall silent and
    return, and people cancel, hold and change jobs when they did. Only the decisions are made
    anew. Waiting and completion times of then and now are compared over the same jobs.

    \b
    Examples:
      stoker sim replay --log /var/lib/stoker
      stoker sim replay --log /backup/stoker-monday.tar \\
          --policy aging_per_hour=100 --policy aging_max=200
      stoker sim replay --log /var/lib/stoker -o json
    """
    from stoker.brain.domain.policy import Policy
    from stoker.cli.wiring.captured_log import recording_of
    from stoker.cli.wiring.settings import changed_policy
    from stoker.sim.replay import replay as replayed

    wanted = _changes(changes)
    changed_policy(Policy(), wanted)  # what can't be set is said before a long log is read
    recording = recording_of(log)
    with _bar("facts replayed", len(recording.facts)) as progress:
        found = replayed(recording, lambda policy: changed_policy(policy, wanted), progress)
    show_rows(form, _replay_columns(), _replay_rows(found), found, _replay_below(found))


class _Wanted(NamedTuple):
    """Options of a run as they were given."""

    trace_format: str | None
    workload: Path | None
    gpus: int | None
    nodes: str | None
    mtbf: int | None
    mttr: int
    attempt_lease: int
    restart_cost: int
    thresholds: tuple[int, ...]

    @property
    def cluster(self) -> "int | NodeSet":
        """Number of GPUs, or nodes. Raises: UsageError."""
        if self.trace_format == _OPENB:
            raise click.UsageError(f"{_OPENB} is a list of pods that come and stay, for `stoker sim run` alone")
        if (self.gpus is None) == (self.nodes is None):
            raise click.UsageError("say what the cluster is: --gpus N or --nodes AxB, and not both")
        return self.gpus if self.nodes is None else _node_set(self.nodes)  # type: ignore[return-value]  # one is there

    def trace(self) -> "Trace":
        """Read the trace. Raises: UsageError, StokerError `bad_trace`."""
        from stoker.sim.trace import read_trace

        if self.trace_format is None or self.workload is None:
            raise click.UsageError(f"name the trace by --workload and its --format: {', '.join(_FORMATS)}")
        if self.trace_format == "log":
            from stoker.cli.wiring.captured_log import recording_of
            from stoker.sim.recording import as_trace

            return as_trace(recording_of(self.workload))
        return read_trace(self.workload, self.trace_format)

    def variant(self, text: str) -> "tuple[str, RunOptions]":
        """Return the name and the options of a policy such as `engine,aging_per_hour=0`. Raises: StokerError."""
        from stoker.brain.domain.policy import Policy
        from stoker.cli.wiring.settings import changed_policy
        from stoker.sim.cluster_run import NodeFailures
        from stoker.sim.policies import RunOptions, check_policy

        name, *changes = text.split(",")
        failures = None
        if self.mtbf is not None:
            failures = NodeFailures(mtbf_ms=self.mtbf, mttr_ms=self.mttr, lease_ms=self.attempt_lease * 1_000)
        options = RunOptions(
            restart_ms=self.restart_cost * 1_000,
            thresholds=self.thresholds,
            engine=changed_policy(Policy(), _changes(changes)) if changes else Policy(),
            failures=failures,
        )
        check_policy(name, options, on_nodes=self.nodes is not None)
        return name, options


def _changes(words: Sequence[str]) -> dict[str, str]:
    """Read `key=value`, several times."""
    changes: dict[str, str] = {}
    for word in words:
        key, found, value = word.partition("=")
        if not found or not key:
            raise click.UsageError(f"{word!r} isn't KEY=VALUE, such as aging_per_hour=0")
        if key in changes:
            raise click.UsageError(f"{key} is given twice, and only one could hold: give it once")
        changes[key] = value
    return changes


@contextmanager
def _bar(label: str, length: int) -> "Iterator[Progress]":
    """A progress bar on stderr, for people who wait."""
    if length < _PROGRESS_JOBS or not sys.stderr.isatty():
        yield lambda _: None
        return
    steps = max(1, length // 200)
    with click.progressbar(length=length, label=label, file=sys.stderr, update_min_steps=steps) as bar:
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
    if summary.node_failures or summary.failed:
        lost = f"{summary.requeues} attempts were lost and followed by another, {summary.failed} jobs ended failed"
        yield "node failures", f"{summary.node_failures}; {lost}"


def _loaded_lines(loaded: "LoadingSummary") -> Iterator[tuple[str, object]]:
    never = f", of which {loaded.never_fit} fit on no node, even an empty one" if loaded.never_fit else ""
    yield "policy", loaded.policy
    yield "cluster", f"{loaded.nodes} nodes with {loaded.gpus} GPUs"
    yield "pods", f"{loaded.pods} arrived, {loaded.placed} placed, {loaded.dropped} dropped{never}"
    for percent, allocated in loaded.allocated_percent.items():
        yield f"{percent} % arrived", f"{allocated:.2f} % of the GPUs allocated"
    yield "speed", f"{loaded.decisions_per_s:,} pods by second of processor time"


_FIGURES: "dict[str, tuple[str, str, float]]" = {
    "jct_mean_s": ("completion time, mean", "h", 3_600),
    "jct_p99_s": ("completion time, 99 %", "h", 3_600),
    "wait_mean_s": ("waiting, mean", "h", 3_600),
    "makespan_s": ("makespan", "h", 3_600),
    "utilisation": ("utilisation", "%", 0.01),
    "preemptions": ("preemptions", "", 1),
    "requeues": ("requeues", "", 1),
}
"""Words, unit and size of the unit for people."""


def _comparison_columns(baseline: str) -> "list[Column[Estimate]]":
    def shown(value: "Callable[[Estimate], float]", sign: str = "") -> "Callable[[Estimate], str]":
        return lambda row: f"{value(row) / _FIGURES[row.figure][2]:{sign},.2f}"

    def versus(value: "Callable[[Estimate], float]") -> "Callable[[Estimate], str]":
        return lambda row: "" if row.policy == baseline else shown(value, "+")(row)

    return [
        Column("FIGURE", lambda row: _FIGURES[row.figure][0]),
        Column("UNIT", lambda row: _FIGURES[row.figure][1]),
        Column("POLICY", lambda row: row.policy, elastic=True),
        Column("MEAN", shown(lambda row: row.mean), right=True),
        Column("DIFFERENCE", versus(lambda row: row.difference), right=True),
        Column("FROM", versus(lambda row: row.low), right=True),
        Column("TO", versus(lambda row: row.high), right=True),
        Column("", lambda row: "*" if row.is_clear else ""),
    ]


_ReplayRow = tuple[str, str, str, str]


def _replay_columns() -> "list[Column[_ReplayRow]]":
    return [
        Column("FIGURE", lambda row: row[0]),
        Column("THEN", lambda row: row[1], right=True),
        Column("NOW", lambda row: row[2], right=True),
        Column("CHANGE", lambda row: row[3], right=True),
    ]


def _replay_rows(found: "Replay") -> "list[_ReplayRow]":
    def row(title: str, field: str) -> _ReplayRow:
        then, now = getattr(found.then, field), getattr(found.now, field)
        change = f"{100 * (now - then) / then:+.1f} %" if then else ""
        return title, f"{then:,.1f} s", f"{now:,.1f} s", change

    fields = {"waiting, mean": "wait_mean_s", "waiting, 99 %": "wait_p99_s", "completion time, mean": "jct_mean_s"}
    fields |= {"completion time, 99 %": "jct_p99_s", "makespan": "makespan_s"}
    requeues = ("requeues", str(found.then.requeues), str(found.now.requeues), "")
    return [*(row(title, field) for title, field in fields.items()), requeues]


def _replay_below(found: "Replay") -> Iterator[tuple[str, object]]:
    from stoker.brain.domain.units import utc_text

    yield "log", f"{found.facts} facts from {utc_text(found.begins_at_ms)} to {utc_text(found.ends_at_ms)}"
    rest = {
        "cancelled": found.cancelled,
        "not at their end": found.unfinished,
        "never started": found.left_out,
        "without an end now": found.never_ended,
    }
    others = ", ".join(f"{number} {words}" for words, number in rest.items() if number)
    yield "jobs", f"{found.jobs}, of which {found.compared} are compared" + (f" ({others})" if others else "")
    yield "starts", f"{found.earlier} jobs start earlier now, {found.later} later"
    if found.orders:
        yield "orders", f"{found.orders} of people were given again, {found.orders_refused} no longer applied"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.2f} h"
