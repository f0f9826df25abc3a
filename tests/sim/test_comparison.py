"""Comparisons: what a seed varies, that runs are paired, and what an interval says (K1 to K3)."""

import pytest

from stoker.brain.domain.policy import Policy
from stoker.sim.cluster_run import NodeFailures, NodeSet
from stoker.sim.comparison import Comparison, Estimate, Variant, compare, student_t, varied_trace
from stoker.sim.draws import exponentials, uniform
from stoker.sim.policies import RunOptions
from stoker.sim.trace import Trace
from tests.sim.test_counting import jobs, nobody
from tests.sim.test_counting import short as muri

SMALL = Trace(path="small", jobs=tuple(jobs(*((60 * at, 400 + 97 * (at % 7), 1 + at % 4) for at in range(40)))))


def compared(*policies: str, seeds: int = 6) -> Comparison:
    variants = [Variant(label=each, policy=each, options=RunOptions()) for each in policies]
    return compare(SMALL, 4, variants, seeds, nobody)


def estimate(found: Comparison, figure: str, policy: str) -> Estimate:
    return next(each for each in found.estimates if (each.figure, each.policy) == (figure, policy))


def test_seed_0_is_the_trace_itself_and_others_draw_its_jobs_at_its_times() -> None:
    """K1."""
    assert varied_trace(SMALL, 0) is SMALL
    varied = varied_trace(SMALL, 1)
    assert [job.submit_ms for job in varied.jobs] == [job.submit_ms for job in SMALL.jobs]
    bodies = {(job.duration_ms, job.gpus) for job in SMALL.jobs}
    assert {(job.duration_ms, job.gpus) for job in varied.jobs} <= bodies
    assert varied.jobs != SMALL.jobs
    assert varied == varied_trace(SMALL, 1) != varied_trace(SMALL, 2)


def test_a_policy_compared_with_its_equal_differs_by_nothing() -> None:
    """K2: the seeds vary the figures, and the pairs not at all."""
    variants = [Variant(label=label, policy="fifo", options=RunOptions()) for label in ("a", "b")]
    found = compare(SMALL, 4, variants, 4, nobody)
    assert len({each.jct_mean_s for each in found.runs["a"]}) == 4
    same = estimate(found, "jct_mean_s", "b")
    assert (same.difference, same.low, same.high, same.is_clear) == (0, 0, 0, False)


def test_an_interval_holds_the_mean_of_the_paired_differences() -> None:
    """K3."""
    found = compared("fifo", "sjf")
    pairs = zip(found.runs["sjf"], found.runs["fifo"], strict=True)
    differences = [round(one.jct_mean_s - other.jct_mean_s, 6) for one, other in pairs]
    told = estimate(found, "jct_mean_s", "sjf")
    assert told.difference == pytest.approx(sum(differences) / 6, abs=1e-3)
    assert told.low < told.difference < told.high
    assert told.is_clear
    assert told.difference < 0


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.706), (9, 2.262), (10, 2.228), (30, 2.042), (120, 1.980)])
def test_the_quantile_is_that_of_printed_tables(degrees: int, quantile: float) -> None:
    assert student_t(degrees) == pytest.approx(quantile, abs=0.001)


def test_a_comparison_tells_each_figure_of_each_policy_and_runs_each_seed_once_for_each() -> None:
    told: list[int] = []
    variants = [Variant(label=each, policy=each, options=RunOptions()) for each in ("fifo", "easy", "las")]
    found = compare(SMALL, 4, variants, 2, told.append)
    assert sum(told) == 3 * 2 * len(SMALL.jobs)
    assert (found.baseline, found.seeds, found.gpus) == ("fifo", 2, 4)
    assert {each.policy for each in found.estimates} == {"fifo", "easy", "las"}


def test_policies_of_the_engine_meet_the_same_failures() -> None:
    failures = NodeFailures(mtbf_ms=200 * 3_600_000, mttr_ms=3_600_000)
    calm = RunOptions(failures=failures, engine=Policy(aging_per_hour=0))
    variants = [
        Variant(label="engine", policy="engine", options=RunOptions(failures=failures)),
        Variant(label="calm", policy="engine", options=calm),
    ]
    found = compare(muri(), NodeSet(8, 8), variants, 2, nobody)
    assert [each.node_failures > 0 for each in found.runs["calm"]] == [True, True]
    assert [each.jct_mean_s for each in found.runs["calm"]] == [each.jct_mean_s for each in found.runs["engine"]]


def test_draws_depend_on_their_names_only_and_have_the_wanted_mean() -> None:
    assert uniform(1, "a") == uniform(1, "a") != uniform(1, "b")
    lives = exponentials(1_000, 7, "mtbf")
    drawn = [next(lives) for _ in range(4_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(1_000, rel=0.05)
    assert sum(each > 1_000 for each in drawn) / len(drawn) == pytest.approx(0.368, abs=0.03)
