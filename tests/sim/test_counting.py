"""Counting models: each rule by an example small enough to be done by hand, and their own figures of public traces."""

import random
from pathlib import Path

import pytest

from stoker.brain.domain.policy import Policy
from stoker.sim.cluster_run import NodeSet
from stoker.sim.counting import run_easy, run_fifo, run_first_fit, run_las, run_sjf, run_srsf, run_srtf
from stoker.sim.policies import POLICIES, RunOptions, simulate
from stoker.sim.trace import Trace, TraceJob, read_trace

TRACES = Path(__file__).resolve().parents[2] / "benchmarks" / "traces"
MURI = read_trace(TRACES / "muri" / "testbed_trace.csv.gz", "muri")


def jobs(*each: tuple[int, int, int]) -> list[TraceJob]:
    """Jobs of (submission, duration, GPUs)."""
    return [
        TraceJob(id=str(at), line=at + 1, submit_ms=submit, duration_ms=duration, gpus=gpus)
        for at, (submit, duration, gpus) in enumerate(each)
    ]


def nobody(_: int) -> None:
    pass


QUEUE = jobs((0, 100, 3), (1, 50, 4), (2, 99, 1), (3, 10, 1))
"""On 4 GPUs: a running job, one that has to wait, and two that could pass it."""


def test_fifo_starts_the_oldest_or_nothing() -> None:
    """M1."""
    assert run_fifo(QUEUE, 4, nobody).ended_ms == [100, 150, 249, 160]


def test_first_fit_lets_the_oldest_pass_that_fits() -> None:
    """M2."""
    assert run_first_fit(QUEUE, 4, nobody).ended_ms == [100, 160, 101, 110]


def test_sjf_starts_the_shortest_that_fits() -> None:
    """M2."""
    assert run_sjf(jobs((0, 10, 2), (1, 9, 2), (2, 5, 2)), 2, nobody).ended_ms == [10, 24, 15]


def test_easy_lets_pass_only_what_ends_before_the_reservation() -> None:
    """M3."""
    assert run_easy(QUEUE, 4, nobody).ended_ms == [100, 150, 249, 13]


def test_easy_lets_pass_what_leaves_the_reservation_its_gpus() -> None:
    """M3: the second job needs 3 of 5 GPUs at 100, so that 2 are left for longer ones."""
    queue = jobs((0, 100, 4), (1, 50, 3), (2, 500, 1), (3, 500, 1), (4, 500, 1))
    assert run_easy(queue, 5, nobody).ended_ms == [100, 150, 502, 600, 650]


def test_srtf_preempts_for_less_time_and_a_preemption_costs() -> None:
    """M4, M5."""
    outcome = run_srtf(jobs((0, 100, 1), (10, 20, 1)), 1, nobody, 5)
    assert (outcome.ended_ms, outcome.preemptions) == ([125, 30], [1, 0])
    assert outcome.held_ms == [105, 20]


def test_srsf_weighs_time_by_gpus() -> None:
    """M4."""
    wide = jobs((0, 100, 1), (10, 40, 4))
    assert run_srtf(wide, 4, nobody, 0).preemptions == [1, 0]
    assert run_srsf(wide, 4, nobody, 0).preemptions == [0, 0]


def test_las_prefers_what_had_less_than_its_threshold() -> None:
    """M6: after 20 GPU-ms the first gives way to the second, which has had none."""
    outcome = run_las(jobs((0, 50, 1), (5, 10, 1)), 1, nobody, 0, [20])
    assert (outcome.ended_ms, outcome.preemptions) == ([60, 30], [1, 0])


@pytest.mark.parametrize("seed", range(30))
def test_no_more_gpus_are_held_than_there_are_and_no_work_is_lost(seed: int) -> None:
    dice = random.Random(seed)
    drawn = jobs(*sorted((dice.randrange(300), dice.randrange(1, 90), dice.choice((1, 1, 2, 4, 8))) for _ in range(60)))
    runs = [run(drawn, 8, nobody) for run in (run_fifo, run_first_fit, run_sjf, run_easy)]
    runs += [run(drawn, 8, nobody, 3) for run in (run_srtf, run_srsf, run_las)]
    for outcome in runs:
        for job, end, held, times in zip(drawn, outcome.ended_ms, outcome.held_ms, outcome.preemptions, strict=True):
            assert held == job.duration_ms + 3 * times
            assert end >= job.submit_ms + held
        span = max(outcome.ended_ms) - drawn[0].submit_ms
        used = sum(job.gpus * held for job, held in zip(drawn, outcome.held_ms, strict=True))
        assert used <= 8 * span


@pytest.mark.parametrize(
    ("policy", "options", "mean_s", "tolerance"),
    [
        ("fifo", RunOptions(), 747_485, 0.001),
        ("first-fit", RunOptions(), 428_066, 0.001),
        ("easy", RunOptions(), 368_934, 0.001),
        ("sjf", RunOptions(), 252_281, 0.001),
        ("las", RunOptions(restart_ms=30_000, thresholds=(3_250_000,)), 381_013, 0.001),
        ("srtf", RunOptions(restart_ms=30_000), 220_771, 0.01),
        ("srsf", RunOptions(restart_ms=30_000), 217_804, 0.01),
    ],
)
def test_muri_on_64_gpus_gives_what_another_implementation_gives(
    policy: str, options: RunOptions, mean_s: int, tolerance: float
) -> None:
    summary = simulate(MURI, 64, policy, options, nobody)
    assert summary.jct_mean_s == pytest.approx(mean_s, rel=tolerance)


def test_on_nodes_the_engine_starts_what_fits_as_first_fit_does_by_counts() -> None:
    """On a trace whose jobs all fill whole nodes or stay within one, places make little difference."""
    real = simulate(MURI, NodeSet(8, 8), "engine", RunOptions(engine=Policy(reservations_max=0)), nobody)
    counted = simulate(MURI, 64, "first-fit", RunOptions(), nobody)
    assert real.jct_mean_s == pytest.approx(counted.jct_mean_s, rel=0.02)
    assert (real.jobs, real.gpus, real.preemptions) == (400, 64, 0)


def test_on_nodes_the_engine_keeps_for_the_first_jobs_what_they_wait_for_as_easy_does_by_counts() -> None:
    """It reserves for eight jobs, and by limits of full hours."""
    real = simulate(MURI, NodeSet(8, 8), "engine", RunOptions(), nobody)
    counted = simulate(MURI, 64, "easy", RunOptions(), nobody)
    assert real.jct_p99_s == pytest.approx(counted.jct_p99_s, rel=0.3)


def test_the_same_run_gives_the_same_figures() -> None:
    first, second = (simulate(short(), NodeSet(8, 8), "engine", RunOptions(seed=7), nobody) for _ in range(2))
    assert first == second


def short() -> Trace:
    return Trace(path="short", jobs=MURI.jobs[:60])


def test_every_policy_is_described_and_runs() -> None:
    for policy in POLICIES:
        assert policy.about
        assert policy.source
        cluster = NodeSet(8, 8) if policy.model == "engine" else 64
        assert simulate(short(), cluster, policy.name, RunOptions(), nobody).jobs == 60
