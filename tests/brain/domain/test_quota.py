"""What is a limit, what is used, and what is each class pool promised?"""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.brain.domain.demand import Demand, JobClass
from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.job import EndCause, Job, TaskEnd
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.quota import (
    NO_LIMITS,
    NOTHING,
    WHOLE,
    Amount,
    Limits,
    Pools,
    Quota,
    held,
    limits_of,
    needs,
)
from stoker.brain.domain.tenant import Tenant
from tests.builders import job, running_on

FIELDS = Amount._fields

AMOUNTS = st.builds(Amount, *[st.integers(0, 50)] * len(FIELDS))


# -- Q1 ----------------------------------------------------------------------------------------------------------


def test_q1_a_limit_that_is_left_out_is_none_and_never_zero() -> None:
    """A tenant of the MVP whose quota nobody had set could run nothing."""
    assert Tenant(name="new").quota == Quota()  # type: ignore[arg-type]  # a name as a person writes it
    assert Quota().gpus_max is None
    assert not list(limits_of(Quota()))
    assert not list(limits_of(Quota(guaranteed=4, lend=False))), "a guarantee is no wall for who may borrow"


@pytest.mark.parametrize("at", range(len(FIELDS)))
def test_q1_a_limit_stands_at_the_place_of_what_it_limits_and_zero_is_one(at: int) -> None:
    for most in (0, 10):
        limit, unit = ("gpus", WHOLE_GPU) if at == 0 else (FIELDS[at], 1)
        quota = Quota(limits=replace(NO_LIMITS, **{limit: most}))
        assert list(limits_of(quota)) == [(at, most * unit)]


def test_how_many_wait_and_how_long_they_run_is_no_limit_on_what_is_held() -> None:
    assert not list(limits_of(Quota(limits=Limits(pending=0, time_ms=0))))


@pytest.mark.parametrize(
    ("limit", "borrow", "most"),
    [(None, True, None), (6, True, 6), (None, False, 4), (6, False, 4), (4, False, 4)],
)
def test_who_may_not_borrow_has_a_wall_at_its_guarantee(limit: int | None, borrow: bool, most: int | None) -> None:
    quota = Quota(guaranteed=4, limits=Limits(gpus=limit), borrow=borrow)
    assert quota.gpus_max == most
    assert list(limits_of(quota)) == ([] if most is None else [(0, most * WHOLE_GPU)])


@given(AMOUNTS, AMOUNTS)
def test_what_is_given_back_is_what_was_taken(used: Amount, more: Amount) -> None:
    assert used.plus(more).minus(more) == used
    assert used.plus(more) == Amount(*(has + extra for has, extra in zip(used, more, strict=True)))


# -- Q2, Q3 ------------------------------------------------------------------------------------------------------


def test_q3_a_gang_needs_as_much_as_all_its_tasks_and_is_one_job() -> None:
    demand = Demand(gpu_count=2, tasks=3, cpus=5, memory_mb=100, gpu_memory_mb=40_000)
    assert needs(demand) == Amount(gpu_milli=6_000, gpu_memory_mb=240_000, cpus=15, memory_mb=300, jobs=1)


def test_a_job_without_gpus_needs_its_cpus_and_a_place() -> None:
    assert needs(Demand(cpus=3)) == Amount(cpus=3, jobs=1)


def _gang() -> Job:
    """On GPUs of 80 GiB, of which it asked for half."""
    wish = job(1, gpus=2, tasks=2, cpus=3, memory_mb=10, gpu_memory_mb=40_000)
    return running_on(wish, ("n1", (0, 1)), ("n2", (0, 1)))


def test_q2_what_runs_holds_what_it_needed() -> None:
    gang = _gang()
    assert held(gang) == needs(gang.spec.demand)


def test_q3_the_memory_that_was_asked_for_counts_and_not_that_of_the_gpu_it_got() -> None:
    assert held(_gang()).gpu_memory_mb == 4 * 40_000


def _with_end(gang: Job, *ranks: int) -> Job:
    attempt = gang.attempts[-1]
    end = TaskEnd(cause=EndCause.EXITED, at=attempt.placed_at, exit_code=0)
    tasks = tuple(replace(task, end=end) if rank in ranks else task for rank, task in enumerate(attempt.tasks))
    return replace(gang, attempts=(replace(attempt, tasks=tasks),))


def test_q2_a_task_whose_end_is_proved_holds_nothing_and_the_others_go_on_holding() -> None:
    assert held(_with_end(_gang(), 0)) == Amount(gpu_milli=2_000, gpu_memory_mb=80_000, cpus=3, memory_mb=10, jobs=1)
    assert held(_with_end(_gang(), 0, 1)) == NOTHING


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.HELD, JobState.SUCCEEDED, JobState.CANCELLED])
def test_q2_who_waits_or_has_ended_holds_nothing(state: JobState) -> None:
    assert held(replace(_gang(), state=state)) == NOTHING
    assert held(replace(job(1, gpus=8), state=state)) == NOTHING
    assert held(None) == NOTHING


@pytest.mark.parametrize("state", [JobState.STARTING, JobState.RUNNING, JobState.STOPPING])
def test_q2_who_is_being_stopped_holds_everything_until_it_is_gone(state: JobState) -> None:
    assert held(replace(_gang(), state=state)).gpu_milli == 4_000


# -- Q4 ----------------------------------------------------------------------------------------------------------

SHARES = (*range(0, WHOLE + 1, 12_500), 333_333, 666_667, 1, WHOLE - 1, 142_857, 700_001)
TOTALS = range(201)


def _promised(online: int, batch: int, gpus: int) -> tuple[int, int]:
    both = Pools(online=online, batch=batch).guaranteed(gpus)
    assert set(both) == set(JobClass)
    return both[JobClass.ONLINE], both[JobClass.BATCH]


def test_q4_where_the_shares_add_up_to_one_so_do_the_gpus_and_none_is_stranded() -> None:
    for share in SHARES:
        for gpus in TOTALS:
            online, batch = _promised(share, WHOLE - share, gpus)
            assert online + batch == gpus
            assert min(online, batch) >= 0


def test_q4_a_guarantee_is_the_nearest_whole_number_of_gpus() -> None:
    """Within half a GPU of its share, but for the batch pool at one half of the last GPU, which only one can have."""
    for share in SHARES:
        for gpus in TOTALS:
            online, batch = _promised(share, WHOLE - share, gpus)
            assert abs(online * WHOLE - gpus * share) * 2 <= WHOLE
            assert abs(batch * WHOLE - gpus * (WHOLE - share)) * 2 <= WHOLE


def test_q4_shares_that_leave_something_promise_no_more_than_there_is() -> None:
    for online_share in SHARES:
        for batch_share in (share for share in SHARES if share + online_share <= WHOLE):
            for gpus in (0, 1, 2, 3, 7, 8, 200):
                online, batch = _promised(online_share, batch_share, gpus)
                assert 0 <= online + batch <= gpus
                assert online_share or online == 0
                assert batch_share or batch == 0


def test_q4_each_gpu_that_joins_lowers_no_guarantee_of_the_online_pool_and_raises_the_two_by_one() -> None:
    for share in SHARES:
        promised = [_promised(share, WHOLE - share, gpus) for gpus in TOTALS]
        for before, after in pairwise(promised):
            assert after[0] >= before[0]
            assert sum(after) == sum(before) + 1


def test_q4_the_shares_of_the_seeds_on_clusters_of_their_sizes() -> None:
    assert [_promised(700_000, 300_000, gpus) for gpus in (0, 1, 2, 3, 4, 8, 10, 16)] == [
        (0, 0),
        (1, 0),
        (1, 1),
        (2, 1),
        (3, 1),
        (6, 2),
        (7, 3),
        (11, 5),
    ]


def test_q4_nothing_is_promised_where_there_is_nothing() -> None:
    for share in SHARES:
        assert _promised(share, WHOLE - share, 0) == (0, 0)
