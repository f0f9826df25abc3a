"""Runs on nodes: times of one job by hand, failures of nodes, and jobs that never start (C1 to C5)."""

import pytest
from msgspec.structs import replace

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import HOUR_MS
from stoker.sim.cluster_run import ClusterSettings, NodeFailures, NodeSet, run_on_nodes
from stoker.sim.outcome import SimOutcome
from stoker.sim.policies import RunOptions, simulate
from stoker.sim.trace import Trace
from tests.sim.test_counting import jobs, nobody
from tests.sim.test_replay import every_event_checked

LONG = Trace(path="long", jobs=tuple(jobs(*((at * HOUR_MS, 20 * HOUR_MS, 1 + at % 8) for at in range(60)))))


def run(trace: Trace, nodes: NodeSet, failures: NodeFailures | None = None, seed: int = 0) -> SimOutcome:
    return run_on_nodes(trace, nodes, ClusterSettings(seed=seed, failures=failures), nobody)


def failing(mtbf_h: float, mttr_h: float, lease_s: int = 0) -> NodeFailures:
    return NodeFailures(mtbf_ms=round(mtbf_h * HOUR_MS), mttr_ms=round(mttr_h * HOUR_MS), lease_ms=lease_s * 1_000)


def test_a_job_starts_when_another_ends_and_each_runs_as_long_as_the_trace_says() -> None:
    trace = Trace(path="two", jobs=tuple(jobs((0, 1_000, 2), (10, 500, 2), (20, 7, 1))))
    assert run(trace, NodeSet(1, 2)).ended_ms == [1_000, 1_500, 1_507]


def test_a_job_larger_than_a_node_becomes_tasks() -> None:
    """C2."""
    trace = Trace(path="wide", jobs=tuple(jobs((0, 100, 12))))
    assert run(trace, NodeSet(2, 8)).ended_ms == [100]


def test_without_failures_nothing_is_requeued() -> None:
    outcome = run(LONG, NodeSet(6, 8))
    assert (outcome.node_failures, outcome.requeues, outcome.failed) == (0, 0, 0)


@pytest.mark.parametrize("lease_s", [0, 600])
def test_jobs_of_a_failed_node_are_requeued_and_all_end(lease_s: int) -> None:
    """C4, C5: what is lost is run again from its start, so that more GPU-time is held."""
    calm, rough = run(LONG, NodeSet(6, 8)), run(LONG, NodeSet(6, 8), failing(60, 2, lease_s))
    assert rough.node_failures > 3
    assert rough.requeues > 0
    assert rough.failed == 0
    assert sum(rough.held_ms) > sum(calm.held_ms)
    assert all(job.submit_ms + job.duration_ms <= end for job, end in zip(LONG.jobs, rough.ended_ms, strict=True))


@pytest.mark.parametrize("lease_s", [0, 600])
def test_no_promise_is_broken_by_failures(lease_s: int) -> None:
    """Gangs over several nodes, nodes that fail every few hours, some before anybody has noticed that they are gone."""
    wide = jobs(*((at * HOUR_MS // 3, (1 + at % 5) * HOUR_MS, 1 + 3 * at % 11) for at in range(12)))
    with every_event_checked() as checked:
        outcome = run(Trace(path="wide", jobs=tuple(wide)), NodeSet(3, 4), failing(6, 0.01, lease_s), seed=5)
    assert checked[0] > 200
    assert outcome.requeues > 3


def test_with_a_lease_jobs_start_elsewhere_before_their_node_is_repaired() -> None:
    """C4: a lease of ten minutes against repairs of days."""
    waits = run(LONG, NodeSet(12, 8), failing(60, 100), seed=3)
    moves = run(LONG, NodeSet(12, 8), failing(60, 100, 600), seed=3)
    assert sum(moves.ended_ms) < sum(waits.ended_ms)


def test_a_job_that_is_lost_more_often_than_the_policy_allows_ends_failed() -> None:
    trace = Trace(path="doomed", jobs=tuple(jobs((0, 1_000 * HOUR_MS, 1))))
    settings = ClusterSettings(policy=Policy(requeues_max=2), failures=failing(5, 0.5))
    outcome = run_on_nodes(trace, NodeSet(1, 1), settings, nobody)
    assert (outcome.failed, outcome.requeues) == (1, 2)
    assert outcome.ended_ms[0] < trace.jobs[0].duration_ms


def test_failures_depend_on_the_seed_and_on_nothing_else() -> None:
    first, again, other = (run(LONG, NodeSet(6, 8), failing(60, 2), seed) for seed in (1, 1, 2))
    assert first == again != other


def test_counting_models_have_no_nodes_that_could_fail() -> None:
    with pytest.raises(StokerError) as caught:
        simulate(LONG, 48, "fifo", RunOptions(failures=failing(60, 2)), nobody)
    assert caught.value.refusal.code == "bad_sim_policy"
    assert "--nodes" in caught.value.refusal.hint


@pytest.mark.parametrize(
    ("wants", "field", "words"),
    [
        (
            {"cpus": 1_000},
            "cpus",
            "1 task of 1000 CPUs never fit on 2 nodes with 8 GPUs, 32 CPUs and 262144 MiB memory",
        ),
        ({"memory_mb": 2**30}, "memory_mb", "1 task of 1073741824 MiB memory never fit"),
        ({"gpus": 4, "tasks": 4, "cpus": 20}, "cpus", "4 tasks of 20 CPUs never fit"),
        ({"gpus": 5, "tasks": 3}, "gpus", "3 tasks of 5 GPUs never fit"),
        ({"gpus": 16, "knows_tasks": True}, "gpus", "1 task of 16 GPUs never fit"),
    ],
)
def test_a_job_that_the_cluster_cannot_hold_is_told_with_its_line_and_field_before_any_runs(
    wants: dict[str, int], field: str, words: str
) -> None:
    """C1."""
    fits, other = LONG.jobs[:2]
    ended: list[int] = []
    trace = Trace(path="big", jobs=(replace(fits, gpus=1, tasks=1), replace(other, **{"gpus": 1, "tasks": 1, **wants})))
    with pytest.raises(StokerError) as caught:
        run_on_nodes(trace, NodeSet(2, 8), ClusterSettings(), ended.append)
    refusal = caught.value.refusal
    assert (refusal.code, refusal.facts["line"], refusal.facts["field"]) == ("bad_trace", other.line, field)
    assert words in refusal.message
    assert refusal.hint
    assert not ended
