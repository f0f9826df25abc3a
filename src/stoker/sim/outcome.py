"""Outcome of a simulated run: when each job ended, and the figures that published tables have.

Units: milliseconds inside, seconds and fractions in what is printed.
"""

from collections.abc import Callable, Sequence

import msgspec

from stoker.brain.domain.units import SECOND_MS
from stoker.sim.trace import TraceJob

Progress = Callable[[int], None]
"""Is told how many more jobs have ended."""


class SimOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a run for each job of a trace; every list has one entry for each job, in the trace's order."""

    ended_ms: list[int]
    held_ms: list[int]
    """How long it held its GPUs, over all its attempts."""
    preemptions: list[int]
    failed: int = 0
    """Jobs that ended otherwise than well."""
    requeues: int = 0
    """Attempts that were lost with a node and followed by another."""
    node_failures: int = 0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run. JCT is the job completion time: from its submission to its end."""

    policy: str
    jobs: int
    left_out: int
    """Lines of the file that are jobs which never ran."""
    gpus: int
    jct_mean_s: float
    jct_p99_s: float
    wait_mean_s: float
    """Job completion time without the job's own duration: queueing, and what preemptions cost."""
    makespan_s: float
    """From the first submission to the last end."""
    utilisation: float
    """GPU-time that jobs held, as a part of all there was within the makespan."""
    preemptions: int
    failed: int = 0
    """Jobs that ended otherwise than well: those that were lost with a node more often than the policy lets them start
    anew."""
    requeues: int = 0
    """Attempts that were lost with a node and followed by another."""
    node_failures: int = 0


def summarise(jobs: Sequence[TraceJob], outcome: SimOutcome, *, policy: str, gpus: int, left_out: int) -> Summary:
    """Return the figures of a run over `jobs`, on a cluster of so many GPUs."""
    completion_ms = [end - job.submit_ms for job, end in zip(jobs, outcome.ended_ms, strict=True)]
    mean_ms = sum(completion_ms) / len(jobs)
    makespan_ms = max(outcome.ended_ms)
    held = sum(job.total_gpus * held_ms for job, held_ms in zip(jobs, outcome.held_ms, strict=True))
    return Summary(
        policy=policy,
        jobs=len(jobs),
        left_out=left_out,
        gpus=gpus,
        jct_mean_s=round(mean_ms / SECOND_MS, 3),
        jct_p99_s=round(percentile(completion_ms, 99) / SECOND_MS, 3),
        wait_mean_s=round((mean_ms - sum(job.duration_ms for job in jobs) / len(jobs)) / SECOND_MS, 3),
        makespan_s=makespan_ms / SECOND_MS,
        utilisation=round(held / (gpus * makespan_ms), 4) if makespan_ms else 0.0,
        preemptions=sum(outcome.preemptions),
        failed=outcome.failed,
        requeues=outcome.requeues,
        node_failures=outcome.node_failures,
    )


def percentile(values: Sequence[int], percent: int) -> float:
    """Return the percentile with linear interpolation between the two values next to it, as NumPy's default has it."""
    ordered = sorted(values)
    at, rest = divmod((len(ordered) - 1) * percent, 100)
    above = ordered[min(at + 1, len(ordered) - 1)]
    return ordered[at] + (above - ordered[at]) * rest / 100
