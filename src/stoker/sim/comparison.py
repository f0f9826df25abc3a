"""Comparison of policies on variants of one trace: paired runs, and confidence intervals of their differences.

Rules: K1  with seed 0 the trace is run as it is. With another each submission keeps its time and gets the demand and
           the duration of a job that is drawn from the trace with replacement (a bootstrap of the jobs); the seed is
           also that of the engine and of the failures
       K2  all policies meet the same variants and the same failures, so that differences are taken seed by seed
       K3  an interval is that of Student's t for the mean of the paired differences, at 95 %: it says how far chance in
           the workload may carry the difference, not how far another workload would
Limits: SEEDS_MAX seeds; at least two.
Source: Efron, Bootstrap Methods: Another Look at the Jackknife, 1979; Student, The Probable Error of a Mean, 1908; the
        expansion of t by the normal quantile in Abramowitz and Stegun, 26.7.5.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev
from typing import Final

import msgspec
from msgspec.structs import replace

from stoker.sim.cluster_run import NodeSet
from stoker.sim.draws import uniform
from stoker.sim.outcome import Progress, Summary
from stoker.sim.policies import RunOptions, simulate
from stoker.sim.trace import Trace, TraceJob

SEEDS_MAX: Final = 1_000
CONFIDENCE: Final = 0.95
FIGURES: Final = ("jct_mean_s", "jct_p99_s", "wait_mean_s", "makespan_s", "utilisation", "preemptions", "requeues")
"""Of a `Summary`: what is compared."""
_T_SMALL: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Quantiles 0.975 of Student's t with 1 to 9 degrees of freedom, where the expansion is too coarse."""


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """Policy as it was named, and the options that it runs with."""

    label: str
    policy: str
    options: RunOptions


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a policy over all seeds, and its difference from that of the first policy with an interval (K3)."""

    figure: str
    policy: str
    mean: float
    difference: float
    """0 of the first policy itself."""
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Estimates by figure and policy, and what they rest on."""

    baseline: str
    seeds: int
    jobs: int
    gpus: int
    confidence: float
    estimates: list[Estimate]
    runs: dict[str, list[Summary]]
    """By policy: the figures of each seed."""


def compare(
    trace: Trace, cluster: int | NodeSet, variants: Sequence[Variant], seeds: int, progress: Progress
) -> Comparison:
    """Run each policy on each variant of a trace, and compare each policy with the first.

    Raises: StokerError as `simulate`.
    """
    assert len(variants) > 1, "nothing to compare with"
    assert 2 <= seeds <= SEEDS_MAX, f"an interval needs two seeds: {seeds}"
    runs: dict[str, list[Summary]] = {each.label: [] for each in variants}
    for seed in range(seeds):
        varied = varied_trace(trace, seed)
        for each in variants:
            summary = simulate(varied, cluster, each.policy, replace(each.options, seed=seed), progress)
            runs[each.label].append(replace(summary, policy=each.label))
    first, *_ = runs
    return Comparison(
        baseline=first,
        seeds=seeds,
        jobs=len(trace.jobs),
        gpus=cluster.gpus if isinstance(cluster, NodeSet) else cluster,
        confidence=CONFIDENCE,
        estimates=[_estimate(figure, each, runs[each], runs[first]) for figure in FIGURES for each in runs],
        runs=runs,
    )


def varied_trace(trace: Trace, seed: int) -> Trace:
    """Return the variant of a trace that goes with a seed (K1)."""
    if seed == 0:
        return trace
    number = len(trace.jobs)
    return replace(
        trace,
        jobs=tuple(
            _at(job, trace.jobs[int(uniform(seed, "job", place) * number)]) for place, job in enumerate(trace.jobs)
        ),
    )


def _at(place: TraceJob, drawn: TraceJob) -> TraceJob:
    return replace(drawn, id=place.id, submit_ms=place.submit_ms)


def _estimate(figure: str, policy: str, runs: Sequence[Summary], first: Sequence[Summary]) -> Estimate:
    values = [float(getattr(each, figure)) for each in runs]
    differences = [value - float(getattr(each, figure)) for value, each in zip(values, first, strict=True)]
    difference = fmean(differences)
    margin = student_t(len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
    return Estimate(
        figure=figure,
        policy=policy,
        mean=round(fmean(values), 4),
        difference=round(difference, 4),
        low=round(difference - margin, 4),
        high=round(difference + margin, 4),
    )


def student_t(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's t with so many degrees of freedom, within 0.001."""
    if degrees <= len(_T_SMALL):
        return _T_SMALL[degrees - 1]
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )
