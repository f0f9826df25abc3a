"""Rules L1 to L3 of `engine/backfill.py`: which blocked jobs come up again for what a reservation keeps."""

from stoker.brain.domain.plan import Plan
from stoker.brain.engine.backfill import BACKFILL_LOOKS_MAX
from tests.builders import Cluster, cluster, job, node, running_on

HELD = running_on(job(1, gpus=1, limit_h=24), ("a", [0]))
FIRST = job(2, gpus=2, priority=1_000)
"""Waits for both GPUs of the node, of which one is free and kept for it."""


def behind(long_jobs: int) -> Cluster:
    """So many jobs that would be over too late, and behind them one of their shape that wouldn't."""
    late = [job(number, gpus=1, limit_h=48) for number in range(10, 10 + long_jobs)]
    return cluster(node("a", gpus=2), HELD, FIRST, *late, job(9_999, gpus=1, limit_h=1, priority=400))


def started(plan: Plan) -> list[int]:
    return [each.job for each in plan.actions]


def test_of_a_shape_whose_first_job_would_be_over_too_late_another_may_start() -> None:
    assert started(behind(3).plan()) == [9_999]


def test_a_blocked_shape_comes_up_again_only_where_enough_gpus_are_kept() -> None:
    large = job(8, gpus=2, limit_h=1, priority=900)
    plan = behind(3).plus(large).plan()
    assert started(plan) == [9_999]
    assert {shape.demand.gpu_count: reason.code for shape, reason in plan.reasons.items()}[2] == "insufficient_gpus"


def test_what_comes_up_after_all_looks_are_spent_waits_and_is_told_why() -> None:
    assert started(behind(BACKFILL_LOOKS_MAX - 1).plan()) == [9_999]
    plan = behind(BACKFILL_LOOKS_MAX).plan()
    assert started(plan) == []
    assert {reason.code for reason in plan.reasons.values()} == {"insufficient_gpus", "reserved"}
