"""Rules O1 to O4 of `engine/order.py`, seen through whole plans and the queue itself."""

from collections.abc import Container, Iterable, Iterator, Sequence

from stoker.brain.domain.demand import Shape
from stoker.brain.domain.job import Job
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import HOUR_MS, Instant
from stoker.brain.engine.queue_order import Candidate, QueueOrder, in_order, tenants_of
from stoker.brain.state.state_view import StateView
from stoker.brain.state.view import Bucket, View
from tests.brain.state.story import Story, spec
from tests.builders import NOW, cluster, job, member, node, running_on, started_members, where


def _candidates(
    view: View,
    policy: Policy | None = None,
    now: Instant = NOW,
    *,
    blocked: Container[Shape] = (),
    buckets: Sequence[Bucket] | None = None,
) -> Iterator[Candidate]:
    waiting = list(view.pending()) if buckets is None else buckets
    queue = QueueOrder(view, policy or Policy(), now, tenants_of(waiting))
    return in_order(queue, queue.tiers(waiting), blocked)


def _ids(candidates: Iterable[Candidate]) -> list[int]:
    return [each.job for each in candidates]


def _shape(gpus: int) -> Shape:
    return job(1, gpus=gpus).spec.shape


def test_higher_priority_goes_first_even_if_it_came_later() -> None:
    here = cluster(node("a", gpus=1), job(1, gpus=1, priority=500), job(2, gpus=1, priority=1_000))
    assert list(where(here.plan())) == [2]


def test_negative_priority_goes_last() -> None:
    here = cluster(node("a", gpus=1), job(1, gpus=1, priority=-1), job(2, gpus=1, priority=0))
    assert list(where(here.plan())) == [2]


def test_among_equals_the_first_submitted_goes_first_across_shapes() -> None:
    here = cluster(node("a", gpus=8), job(3, gpus=1), job(1, gpus=2), job(4, gpus=2), job(2, gpus=1))
    assert list(where(here.plan())) == [1, 2, 3, 4]


def test_the_order_of_buckets_in_the_view_does_not_matter() -> None:
    here = cluster(*(job(i, gpus=gpus) for i, gpus in ((1, 1), (2, 2), (3, 2), (4, 1))))
    one, two = here.pending()
    forward, backward = (_ids(_candidates(here, buckets=buckets)) for buckets in ([one, two], [two, one]))
    assert forward == backward == [1, 2, 3, 4]


def test_a_blocked_shape_does_not_come_up_again_at_any_priority() -> None:
    here = cluster(
        *(job(i, gpus=1, priority=100) for i in (1, 2)),
        *(job(i, gpus=2, priority=500) for i in (3, 4)),
        *(job(i, gpus=1, priority=1_000) for i in (5, 6)),
    )
    blocked: set[Shape] = set()
    seen = []
    for candidate in _candidates(here, blocked=blocked):
        seen.append(candidate.job)
        if candidate.shape == _shape(1):
            blocked.add(candidate.shape)
    assert seen == [5, 3, 4]


def test_a_shape_that_is_blocked_from_the_start_does_not_come_up_at_all() -> None:
    here = cluster(job(1, gpus=1), job(2, gpus=2), job(3, gpus=1, array="0-9"))
    assert _ids(_candidates(here, blocked={_shape(1)})) == [2]


# -- O1: aging -----------------------------------------------------------------------------------------------------


def _in_line(*jobs: Job, policy: Policy | None = None) -> list[int]:
    here = cluster(*jobs)
    return _ids(_candidates(here, policy))


def test_priority_grows_by_a_stated_rate_for_each_hour_of_waiting() -> None:
    hourly = Policy(aging_per_hour=20)
    assert _in_line(job(1, waited_h=5), job(2, gpus=1, priority=600), policy=hourly) == [1, 2]
    assert _in_line(job(1, waited_h=4.94), job(2, gpus=1, priority=600), policy=hourly) == [2, 1]


def test_what_is_gained_in_a_part_of_an_hour_counts() -> None:
    assert _in_line(job(1, waited_h=0.05), job(2, gpus=1, priority=501), policy=Policy(aging_per_hour=20)) == [1, 2]


def test_no_age_lifts_a_job_by_more_than_the_bound() -> None:
    bounded = Policy(aging_per_hour=20, aging_max=50)
    assert _in_line(job(1, waited_h=900), job(2, gpus=1, priority=550), policy=bounded) == [1, 2]
    assert _in_line(job(1, waited_h=900), job(2, gpus=1, priority=551), policy=bounded) == [2, 1]


def test_without_a_rate_nobody_ages() -> None:
    assert _in_line(job(1, waited_h=900), job(2, gpus=1, priority=501), policy=Policy(aging_per_hour=0)) == [2, 1]


def test_by_default_no_age_lifts_a_job_above_fresh_ones_of_the_next_word() -> None:
    assert _in_line(job(1, priority=500, waited_h=900), job(2, gpus=1, priority=1_000)) == [2, 1]
    assert _in_line(job(1, priority=100, waited_h=20), job(2, gpus=1, priority=500)) == [1, 2]


def test_age_is_counted_from_the_time_at_which_a_job_was_to_begin() -> None:
    late = job(1, waited_h=100, begin=Instant(NOW - HOUR_MS))
    assert _in_line(late, job(2, gpus=1, priority=521)) == [2, 1]
    assert _in_line(late, job(2, gpus=1, priority=520)) == [1, 2]


def test_a_job_that_was_to_begin_before_it_was_submitted_gains_nothing_by_that() -> None:
    assert _in_line(job(1, begin=Instant(NOW - 9 * HOUR_MS)), job(2, gpus=1, priority=501)) == [2, 1]


def test_who_begins_late_does_not_hold_up_older_ones_of_its_shape() -> None:
    """Job 1 was submitted first, but has waited for an hour only."""
    late = job(1, waited_h=100, begin=Instant(NOW - HOUR_MS))
    assert _in_line(late, job(2, waited_h=50), job(3, gpus=1, priority=800)) == [2, 3, 1]


def test_live_state_keeps_those_apart_who_were_told_to_begin_late() -> None:
    story = Story()
    late = story.submit(spec(begin=Instant(story.now + 50 * HOUR_MS)))
    old, other = story.submit(spec()), story.submit(spec(2, priority=800))
    story.wait(51 * HOUR_MS).all_due()
    view = StateView(story.state)
    assert _ids(_candidates(view, now=story.now)) == [other, old, late]
    young = story.submit(spec(2, priority=899))
    assert _ids(_candidates(view, now=story.now)) == [other, old, young, late]


def test_a_clock_that_was_set_back_makes_nobody_younger_than_new() -> None:
    assert _in_line(job(1, waited_h=-5), job(2, gpus=1)) == [1, 2]


def test_aged_jobs_are_placed_before_more_important_fresh_ones() -> None:
    here = cluster(node("a", gpus=1), job(1, gpus=1, priority=100, waited_h=20.1), job(2, gpus=1, cpus=2))
    assert list(where(here.plan())) == [1]


# -- O4: arrays ----------------------------------------------------------------------------------------------------


def test_an_array_stands_for_its_members_in_their_order() -> None:
    here = cluster(job(1, array="0-2"), job(9))
    candidates = list(_candidates(here))
    assert [(each.job, each.array, each.lazy) for each in candidates] == [
        (2, 1, True),
        (3, 1, True),
        (4, 1, True),
        (9, 0, False),
    ]


def test_members_with_gaps_and_steps_come_under_their_own_ids() -> None:
    assert _in_line(job(10, array="3,7-11:2,20")) == [11, 12, 13, 14, 15]


def test_an_array_stands_for_no_more_members_than_its_limit_has_room_for() -> None:
    array = started_members(job(1, array="0-9%3", gpus=1), 0)
    running = running_on(member(job(1, array="0-9%3", gpus=1), 0, tries=0), ("a", [0]))
    assert _in_line(array, running) == [3, 4]


def test_a_member_that_is_a_record_keeps_its_place_before_those_that_are_not() -> None:
    whole = job(1, array="0-4")
    assert _in_line(started_members(whole, 1), member(whole, 1)) == [2, 3, 4, 5, 6]
    candidates = list(_candidates(cluster(started_members(whole, 1), member(whole, 1))))
    assert [each.lazy for each in candidates] == [True, False, True, True, True]
    assert {each.array for each in candidates} == {1}


def test_arrays_and_jobs_of_several_priorities_come_in_one_order() -> None:
    assert _in_line(
        job(1, array="0-1", priority=500), job(4, priority=1_000), job(5, array="0-1", priority=1_000, gpus=1),
        job(8, priority=500, gpus=1),
    ) == [4, 6, 7, 2, 3, 8]  # fmt: skip


def test_arrays_age_as_jobs_do() -> None:
    assert _in_line(job(1, array="0-1", waited_h=5), job(4, priority=600), job(5, gpus=1, priority=601)) == [5, 2, 3, 4]
