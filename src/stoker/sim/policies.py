"""Table of the policies that a simulated run can have, and the call that runs a trace under one of them."""

from typing import Final

import msgspec

from stoker.brain.domain.errors import refusal_error
from stoker.brain.domain.policy import Policy
from stoker.sim import counting
from stoker.sim.cluster_run import ClusterSettings, NodeFailures, NodeSet, run_on_nodes
from stoker.sim.outcome import Progress, SimOutcome, Summary, summarise
from stoker.sim.trace import Trace


class SimPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy as people choose it. `knows`: what of a job's future it is told."""

    name: str
    model: str
    """`engine` runs on nodes, `counting` on a number of GPUs."""
    knows: str
    about: str
    source: str


ENGINE: Final = "engine"
COUNTING: Final = "counting"
_NOTHING, _DURATIONS = "nothing", "durations (oracle)"
POLICIES: Final = tuple(
    SimPolicy(name=name, model=model, knows=knows, about=about, source=source)
    for name, model, knows, about, source in (
        (
            *(ENGINE, ENGINE, "durations in hours, as time limits"),
            "what decides live: by priority with aging and fair share, then age; reservations and backfill",
            "Stoker's brain/engine",
        ),
        ("fifo", COUNTING, _NOTHING, "the oldest starts or nothing does", "strict head of line"),
        ("first-fit", COUNTING, _NOTHING, "the oldest that fits starts", "FIFO that skips what doesn't fit"),
        (
            *("easy", COUNTING, _DURATIONS),
            "fifo, and what doesn't delay the first that waits may pass it",
            "Lifka, The ANL/IBM SP Scheduling System, 1995",
        ),
        ("sjf", COUNTING, _DURATIONS, "the shortest that fits starts", "shortest job first"),
        (
            *("las", COUNTING, _NOTHING),
            "preempts: least GPU-time so far first, in queues that end at 1, 10 and 100 GPU hours",
            "2D-LAS, Gu et al., Tiresias, NSDI 2019",
        ),
        ("srtf", COUNTING, _DURATIONS, "preempts: least time left first", "shortest remaining time first"),
        (
            *("srsf", COUNTING, _DURATIONS),
            "preempts: least GPU-time left first",
            "Gu et al., Tiresias, NSDI 2019",
        ),
    )
)
_TO_END: Final = {
    "fifo": counting.run_fifo,
    "first-fit": counting.run_first_fit,
    "easy": counting.run_easy,
    "sjf": counting.run_sjf,
}
_REMAINING: Final = {"srtf": counting.run_srtf, "srsf": counting.run_srsf}


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a run: seed, cost of a preemption, thresholds, policy of the engine, failures of nodes."""

    seed: int = 0
    """Given to the engine with each look, and of the failures; the counting models draw nothing."""
    restart_ms: int = 60_000
    """What a preemption costs a job, in the counting models that preempt."""
    thresholds: tuple[int, ...] = counting.LAS_THRESHOLDS_MS
    """Of `las`: GPU-milliseconds, rising."""
    engine: Policy = Policy()
    """The numbers by which the engine decides."""
    failures: NodeFailures | None = None
    """Of nodes, which only the engine has."""


def simulate(trace: Trace, cluster: int | NodeSet, policy: str, run: RunOptions, progress: Progress) -> Summary:
    """Run a trace on a number of GPUs, or on nodes, and return its figures.

    Raises: StokerError `bad_sim_policy`, or `bad_trace` for a job that is larger than the cluster.
    """
    check_policy(policy, run, on_nodes=isinstance(cluster, NodeSet))
    gpus = cluster.gpus if isinstance(cluster, NodeSet) else cluster
    for job in trace.jobs:
        if job.total_gpus > gpus:
            message = f"job {job.id} wants {job.total_gpus} GPUs, and the cluster has {gpus}"
            raise trace.fault(job, "gpus", message, "simulate a larger cluster, or take the job out of the file")
    outcome = (
        run_on_nodes(trace, cluster, ClusterSettings(policy=run.engine, seed=run.seed, failures=run.failures), progress)
        if isinstance(cluster, NodeSet)
        else _count(trace, cluster, policy, run, progress)
    )
    return summarise(trace.jobs, outcome, policy=policy, gpus=gpus, left_out=trace.left_out)


def _count(trace: Trace, gpus: int, policy: str, run: RunOptions, progress: Progress) -> SimOutcome:
    if policy in _TO_END:
        return _TO_END[policy](trace.jobs, gpus, progress)
    if policy == "las":
        return counting.run_las(trace.jobs, gpus, progress, run.restart_ms, run.thresholds)
    return _REMAINING[policy](trace.jobs, gpus, progress, run.restart_ms)


def check_policy(policy: str, run: RunOptions, *, on_nodes: bool) -> None:
    """Check that there is such a policy for such a cluster. Raises: StokerError `bad_sim_policy`."""
    if not on_nodes and (run.failures is not None or run.engine != Policy()):
        what = (
            "node failures and `policy.*` are for --nodes: a counting model has neither nodes nor the engine's policy"
        )
        raise refusal_error("bad_sim_policy", what, "name the cluster by --nodes AxB", policy=policy)
    known = {each.name: each.model for each in POLICIES}
    fitting = [name for name, model in known.items() if (model == ENGINE) == on_nodes]
    if policy in fitting:
        return
    wanted, other = ("--nodes", "--gpus") if on_nodes else ("--gpus", "--nodes")
    what = f"policy {policy!r} goes with {other}, not with {wanted}" if policy in known else f"no policy {policy!r}"
    hint = f"with {wanted} there are: {', '.join(fitting)}; `stoker sim run --policy list` describes all"
    raise refusal_error("bad_sim_policy", what, hint, policy=policy)
