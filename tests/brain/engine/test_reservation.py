"""Rules R1 to R5 of `engine/reservation.py`: the first blocked jobs keep what they wait for; others fill the gaps."""

from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.cycle import propose
from stoker.brain.domain.ids import JobId, TenantName
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.plan import Plan
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import ReasonCode
from stoker.brain.domain.units import HOUR_MS, MINUTE_MS, NEVER, Instant, later
from stoker.brain.state.commands import PutTenant
from stoker.brain.state.state_view import StateView
from tests.brain.state.story import ANNA, Story, settle_all, spec
from tests.builders import NOW, cluster, job, node, running_on, sharing_on, tenant, where

STEP_MS = 10 * MINUTE_MS
POLICY = Policy()
HALF = [0, 1, 2, 3]
GRACE_MS: Final = Policy().stop_grace_ms


def _code(plan: Plan, waiting: Job) -> ReasonCode:
    return plan.reasons[waiting.spec.shape].code


def test_a_job_that_is_over_before_the_reservation_passes_and_one_that_is_not_waits() -> None:
    """R2, R3."""
    runs = running_on(job(1, gpus=4, limit_h=5), ("a", HALF))
    first, short, long = job(2, gpus=8), job(3, gpus=2, limit_h=4), job(4, gpus=1, limit_h=6)
    plan = cluster(node("a", gpus=8), runs, first, short, long).plan()
    assert list(where(plan)) == [3]
    assert _code(plan, long) is ReasonCode.RESERVED
    (kept,) = plan.reservations
    assert (kept.job, kept.nodes) == (2, ("a",))


def test_a_job_that_leaves_the_reservation_alone_starts_however_long_it_is() -> None:
    """R3: the first needs 6 of 8 GPUs, so that 2 are left for whoever comes."""
    runs = running_on(job(1, gpus=4, limit_h=5), ("a", HALF))
    plan = cluster(node("a", gpus=8), runs, job(2, gpus=6), job(3, gpus=2), job(4, gpus=1)).plan()
    assert list(where(plan)) == [3], "job 4 would take one of the six"


def test_a_job_that_borrows_has_a_reservation_also_where_nothing_else_that_borrows_fits() -> None:
    """R1: it isn't within a guarantee, so its round comes after the first; the one that it waits behind has one too."""
    runs = running_on(job(1, gpus=4, limit_h=5), ("a", HALF))
    here = cluster(node("a", gpus=8), tenant("lab", guaranteed=4), tenant("crowd"), runs, job(2, gpus=8))
    assert [(kept.job, kept.nodes) for kept in here.plan().reservations] == [(2, ("a",))]
    owed = here.plus(job(3, gpus=4, tasks=2, tenant="lab"), tenant("lab", guaranteed=8))
    assert [kept.job for kept in owed.plan().reservations][-1:] == [2]


def test_other_nodes_are_not_kept() -> None:
    runs = running_on(job(1, gpus=4, limit_h=5), ("a", HALF))
    plan = cluster(node("a", gpus=8), node("b", gpus=2), runs, job(2, gpus=8), job(3, gpus=2)).plan()
    assert where(plan) == {3: [("b", [0, 1])]}


def test_the_reservation_is_where_and_when_enough_ends_first() -> None:
    """R1."""
    late = running_on(job(1, gpus=8, limit_h=9), ("a", range(8)))
    soon = running_on(job(2, gpus=8, limit_h=3), ("b", range(8)))
    plan = cluster(node("a", gpus=8), node("b", gpus=8), late, soon, job(3, gpus=4)).plan()
    (kept,) = plan.reservations
    assert kept.nodes == ("b",)
    assert kept.at == NOW + 3 * HOUR_MS + GRACE_MS


def test_a_job_without_gpus_has_its_time_by_cpus_also_where_all_gpus_that_come_free_are_taken() -> None:
    """R1, R4: by then the GPUs of the node are promised, more of them than have come free."""
    soon = running_on(job(1, gpus=4, cpus=2, limit_h=1), ("a", HALF))
    late = running_on(job(2, gpus=4, cpus=2, limit_h=2), ("a", [4, 5, 6, 7]))
    plan = cluster(node("a", gpus=8, cpus=4), soon, late, job(3, gpus=8), job(4, cpus=1)).plan()
    assert [(kept.job, (kept.at - NOW - GRACE_MS) // HOUR_MS) for kept in plan.reservations] == [(3, 2), (4, 1)]


def test_a_gang_keeps_what_is_free_on_all_of_its_nodes() -> None:
    one = running_on(job(1, gpus=4, limit_h=2), ("a", HALF))
    other = running_on(job(2, gpus=4, limit_h=3), ("b", HALF))
    gang = job(3, gpus=8, tasks=2)
    plan = cluster(node("a", gpus=8), node("b", gpus=8), one, other, gang, job(4, gpus=1)).plan()
    assert not where(plan)
    (kept,) = plan.reservations
    assert (kept.nodes, kept.at) == (("a", "b"), NOW + 3 * HOUR_MS + GRACE_MS)


def test_two_large_jobs_hold_apart_what_each_waits_for() -> None:
    """R4: both nodes are kept, one for each."""
    one = running_on(job(1, gpus=4, limit_h=2), ("a", HALF))
    other = running_on(job(2, gpus=4, limit_h=3), ("b", HALF))
    here = cluster(node("a", gpus=8), node("b", gpus=8), one, other, job(3, gpus=8), job(4, gpus=7), job(5, gpus=2))
    plan = here.plan()
    assert [(each.job, each.nodes) for each in plan.reservations] == [
        (3, ("a",)),
        (4, ("b",)),
    ]
    assert not where(plan)


@pytest.mark.parametrize("never", [job(2, gpus=64), job(2, gpus=8, tasks=2), job(2, gpus=1, cpus=500)])
def test_a_request_that_no_node_can_meet_never_holds_a_reservation(never: Job) -> None:
    """R5."""
    runs = running_on(job(1, gpus=4), ("a", HALF))
    plan = cluster(node("a", gpus=8), runs, never, job(3, gpus=2)).plan()
    assert list(where(plan)) == [3]
    assert not plan.reservations


def test_a_drained_node_is_waited_for_by_nobody() -> None:
    runs = running_on(job(1, gpus=8), ("a", range(8)))
    plan = cluster(node("a", gpus=8, drain="sick"), node("b", gpus=4), runs, job(2, gpus=8), job(3, gpus=4)).plan()
    assert list(where(plan)) == [3]


def test_no_more_jobs_than_the_policy_says_hold_anything() -> None:
    things = [node("a", gpus=8), node("b", gpus=8), job(3, gpus=8), job(4, gpus=7), job(5, gpus=6)]
    things += [running_on(job(at, gpus=4, limit_h=2), (name, HALF)) for at, name in enumerate("ab", start=1)]
    for count in (1, 2):
        plan = cluster(*things).plan(policy=msgspec.structs.replace(POLICY, reservations_max=count))
        assert [each.job for each in plan.reservations] == [3, 4][:count]
    none = cluster(*things, job(6, gpus=1)).plan(policy=msgspec.structs.replace(POLICY, reservations_max=0))
    assert list(where(none)) == [6]
    assert not none.reservations


SMALL = st.tuples(st.integers(1, 2), st.sampled_from([1, 2, 5, 30]), st.integers(1, 100))
"""GPUs, limit in steps, and after what part of it in per cent it really ends."""


@given(st.lists(st.lists(SMALL, max_size=3), min_size=1, max_size=40), st.integers(3, 8), st.integers(1, 2))
def test_no_stream_of_small_jobs_holds_up_a_large_one_beyond_its_reservation(
    stream: list[list[tuple[int, int, int]]], gpus: int, tasks: int
) -> None:
    """The bound: it starts by the time that its first reservation named, and that never moves back."""
    story = Story(Policy(aging_per_hour=0, stop_grace_ms=0))
    for name in ("n1", "n2"):
        story.node(name, gpus=8)
    lasts = {story.submit(spec(size, time_limit_ms=10 * STEP_MS)): 10 for size in (5, 6)}
    ends: dict[JobId, Instant] = {}
    large, bound = JobId(0), NEVER
    for at, small in enumerate([*stream, *[[]] * 42]):
        for job_id in [each for each, due in ends.items() if due <= story.now]:
            del ends[job_id]
            for rank in range(len(story.job(job_id).attempts[-1].tasks)):
                story.end(job_id, rank)
        if at == 1:
            large = story.submit(spec(gpus, tasks=tasks, time_limit_ms=STEP_MS))
            lasts[large] = 1
        for count, limit, per_cent in small:
            submitted = story.submit(spec(count, time_limit_ms=limit * STEP_MS))
            lasts[submitted] = max(1, limit * per_cent // 100)
        plan = propose(StateView(story.state), story.state.policy, story.now, 1, 1_000)
        settle_all(story, plan)
        for action in plan.actions:
            story.started(action.job)
            ends[action.job] = later(story.now, lasts[action.job] * STEP_MS)
        kept = {each.job: each.at for each in plan.reservations}
        if large in kept:
            assert bound == NEVER or kept[large] <= bound
            bound = kept[large]
        assert large not in kept or story.now < bound, "it waits beyond its reservation"
        story.wait(STEP_MS)
    assert story.job(large).state is JobState.SUCCEEDED


def test_what_others_give_up_for_a_job_is_not_to_come_for_another_one() -> None:
    """R4, R6: job 1 gives way to job 3, so that job 4 waits for job 2."""
    gives_way = running_on(job(1, gpus=1, priority=100, preemptible=True), ("a", [0]))
    here = cluster(node("a", gpus=2), gives_way, running_on(job(2, gpus=1, limit_h=5), ("a", [1])))
    here = here.plus(job(3, gpus=1, priority=1_000), job(4, gpus=1, priority=900))
    then = here.after(here.plan()).plan()
    assert {each.job: each.at for each in then.reservations}[JobId(4)] == NOW + 5 * HOUR_MS + GRACE_MS


def test_a_gpu_that_two_tasks_of_one_gang_share_comes_free_once() -> None:
    gang = sharing_on(job(1, gpus=1, share=300, tasks=2, limit_h=2), ("a", 0), ("a", 0))
    alone = running_on(job(2, gpus=1, limit_h=5), ("a", [1]))
    (kept,) = cluster(node("a", gpus=2), gang, alone, job(3, gpus=2)).plan().reservations
    assert kept.at == NOW + 5 * HOUR_MS + GRACE_MS


def test_no_stream_of_shares_keeps_a_gpu_from_coming_free_for_who_waits_for_all_of_it() -> None:
    """R2: only a share that is over by then is given of the rest."""
    sharer = sharing_on(job(1, gpus=1, share=500, limit_h=2), ("a", 0))
    shares = [job(3, gpus=1, share=250), job(4, gpus=1, share=200, limit_h=1)]
    plan = cluster(node("a", gpus=1), sharer, job(2, gpus=1), *shares).plan()
    assert list(where(plan)) == [4]
    assert _code(plan, shares[0]) is ReasonCode.RESERVED
    assert [(each.job, each.at) for each in plan.reservations] == [(2, NOW + 2 * HOUR_MS + GRACE_MS)]


def test_that_holds_too_where_what_is_kept_is_held_for_a_guarantee() -> None:
    sharer = sharing_on(job(1, gpus=1, share=500, limit_h=2, tenant="crowd"), ("a", 0))
    waits = [job(2, gpus=1, tenant="lab"), job(3, gpus=1, share=500, tenant="crowd")]
    made = cluster(node("a", gpus=1), tenant("lab", guaranteed=1), tenant("crowd"), sharer, *waits)
    assert not where(made.plan())


def test_a_gpu_of_which_a_share_is_given_now_does_not_come_free_with_the_earlier_sharers() -> None:
    """R4."""
    sharer = sharing_on(job(1, gpus=1, share=300, limit_h=1), ("a", 0))
    plan = cluster(node("a", gpus=1), sharer, job(2, gpus=1, share=300), job(3, gpus=1)).plan()
    assert list(where(plan)) == [2]
    assert not plan.reservations


def test_what_a_reservation_keeps_is_held_for_its_job_though_another_of_that_demand_is_held_for_first() -> None:
    """The first in the queue has waited longer; the other one has the lower id, and so its hold comes first."""
    story = Story(Policy(preemptions_max=0))
    for name in ("n1", "n2"):
        story.node(name, gpus=4)
    for name in ("lab", "team"):
        story.do(PutTenant(by=ANNA, tenant=tenant(name, guaranteed=4), create=True))
    asks = {"tasks": 2, "time_limit_ms": 50 * HOUR_MS}
    story.submit(spec(2, **asks, tenant=TenantName("lab"), begin=later(story.now, 10 * HOUR_MS)))
    first = story.submit(spec(2, **asks, tenant=TenantName("team")))
    for gpus, where_, hours in ((2, ("n1", 0), 50), (2, ("n2", 0), 50), (1, ("n2", 2), 11)):
        story.run(story.submit(spec(gpus, time_limit_ms=hours * HOUR_MS)), where_)
    story.wait(10 * HOUR_MS).all_due()
    story.submit(spec(2, time_limit_ms=50 * HOUR_MS))
    plan = propose(StateView(story.state), story.state.policy, story.now, 1, 1_000)
    assert (plan.reservations[0].job, plan.reservations[0].nodes) == (first, ("n1", "n2"))
    assert not plan.actions
