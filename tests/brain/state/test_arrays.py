"""The life of an array: lazy members, the throttle, orders about one, some or all, and its end."""

import pytest

from stoker.brain.domain.array import Spans, parse_array, parse_job_ref
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import StopCause
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import Reason, ReasonCode, describe
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.commands import Cancel, Hold, Release, Requeue, SignalJob, Submit
from stoker.brain.state.events.job import JobSignalled
from tests.brain.state.story import ANNA, Story, spec


def _lazy(story: Story, array: JobId) -> Spans:
    return story.job(array).as_array[1].lazy


def test_members_are_no_records_until_they_start() -> None:
    story = Story()
    story.node("n1", 2)
    array = story.submit_array("0-99999")
    assert len(story.state.jobs) == 1
    assert story.state.indexes.pending_count == 100_000
    assert story.decide() == ["1_0", "1_1"]
    assert len(story.state.jobs) == 3
    assert _lazy(story, array) == ((2, 99_999, 1),)
    assert story.named("1_77").state is JobState.PENDING, "a member that is no record is shown as its array has it"


def test_ids_go_on_behind_the_members() -> None:
    story = Story()
    array = story.submit_array("5,7,9-11")
    assert story.submit() == array + 6
    assert story.named("1_9").id == array + 3
    assert story.state.locate(JobId(array + 3)) == parse_job_ref("1_9"), "the bare id of a member leads to it"


def test_a_throttle_bounds_the_members_that_are_live() -> None:
    """Fault 138 asks for a reason, which the loop gives; here none may start beyond it."""
    story = Story()
    story.node("n1", 8)
    story.submit_array("0-9%3")
    assert story.decide() == ["1_0", "1_1", "1_2"]
    assert story.decide() == []
    assert not story.state.indexes.waiting_arrays, "a throttled array isn't offered at all"
    story.started(story.named("1_1").id)
    story.end(story.named("1_1").id)
    assert story.decide() == ["1_3"]


def test_a_requeued_member_counts_under_the_throttle_and_keeps_its_place_in_the_queue() -> None:
    story = Story()
    story.node("n1", 2)
    story.submit_array("0-3%1", retries_max=1)
    other = story.submit(spec(1))
    assert story.decide() == ["1_0", str(other)]
    member = story.run_named("1_0")
    story.end(member, exit_code=1)
    assert story.job(member).state is JobState.PENDING
    story.wait(60_000).deadlines()
    assert story.decide() == ["1_0"], "before member 1, and alone"
    assert story.state.indexes.arrays[JobId(1)].live == 1


def test_the_array_is_running_while_a_member_is_live_else_pending() -> None:
    story = Story()
    story.node("n1", 1)
    array = story.submit_array("0-1")
    assert story.state.shown_state(story.job(array)) is JobState.PENDING
    story.decide()
    assert story.state.shown_state(story.job(array)) is JobState.RUNNING
    assert array in story.state.indexes.by_state[JobState.RUNNING].entries
    story.end(story.run_named("1_0"))
    assert story.state.shown_state(story.job(array)) is JobState.PENDING
    assert story.job(array).started_at != NEVER


@pytest.mark.parametrize(("code", "state"), [(0, JobState.SUCCEEDED), (3, JobState.FAILED)])
def test_the_array_ends_with_its_last_member_and_succeeds_only_if_all_did(code: int, state: JobState) -> None:
    """Fault 141: finished arrays never leave the queue."""
    story = Story()
    story.node("n1", 4)
    array = story.submit_array("0-2")
    story.decide()
    for label, exit_code in (("1_0", 0), ("1_1", code), ("1_2", 0)):
        assert not story.job(array).is_final
        story.end(story.run_named(label), exit_code=exit_code)
    story.all_due()
    ended = story.job(array)
    assert ended.state is state
    assert ended.reason is not None
    assert ended.reason.code is ReasonCode.MEMBERS_ENDED
    failed = int(code != 0)
    assert ended.reason.facts == {"succeeded": 3 - failed, "failed": failed, "cancelled": 0, "others": failed}
    assert story.state.indexes.pending_count == 0
    assert not story.state.indexes.waiting_arrays


def test_all_members_of_a_large_array_drain_to_zero() -> None:
    """Fault 141."""
    story = Story(Policy(ended_jobs_max=10_000))
    story.node("n1", 25)
    array = story.submit_array("0-59")
    while story.decide():
        for job in tuple(story.state.indexes.arrays[array].open):
            story.started(job)
            story.end(job)
    story.all_due()
    assert story.job(array).state is JobState.SUCCEEDED


def test_after_a_cancel_of_a_throttled_array_no_member_starts() -> None:
    """Fault 137: tasks that hadn't run yet started all the same."""
    story = Story()
    story.node("n1", 8)
    array = story.submit_array("0-1000%2")
    story.decide()
    live = [story.run_named("1_0"), story.run_named("1_1")]
    story.tell(Cancel, "1")
    assert _lazy(story, array) == ()
    assert [story.job(job).state for job in live] == [JobState.STOPPING] * 2
    assert story.decide() == []
    for job in live:
        story.end(job, signal=15)
        assert story.decide() == []
    story.all_due()
    assert story.job(array).is_final
    assert story.named("1_500").state is JobState.CANCELLED
    assert story.refused(Cancel(by=ANNA, target=parse_job_ref("1"))).code == "job_ended"


def test_cancelling_the_last_waiting_member_ends_the_array() -> None:
    """Fault 139: the parent was never finalized."""
    story = Story()
    story.node("n1", 1)
    array = story.submit_array("0-1")
    story.decide()
    story.end(story.run_named("1_0"))
    story.tell(Cancel, "1_1")
    story.all_due()
    assert story.job(array).state is JobState.CANCELLED
    assert story.job(array).reason is not None


@pytest.mark.parametrize(
    ("code", "state", "said"),
    [
        (0, JobState.CANCELLED, "its members have ended: 1 succeeded, 0 failed, 3 were cancelled"),
        (3, JobState.FAILED, "its members have ended: 0 succeeded, 1 failed, 3 were cancelled"),
    ],
)
def test_an_array_ends_cancelled_where_none_failed_and_tells_failed_and_cancelled_members_apart(
    code: int, state: JobState, said: str
) -> None:
    story = Story(Policy(ended_jobs_max=1))
    story.node("n1", 2)
    array = story.submit_array("0-3")
    story.decide()
    story.end(story.run_named("1_0"), exit_code=code)
    story.tell(Cancel, "1")
    story.end(story.named("1_1").id, signal=15)
    story.all_due()
    assert story.state.find(parse_job_ref("1_1")) is None, "its record is gone"
    ended = story.job(array)
    assert ended.reason is not None
    assert (ended.state, describe(ended.reason)) == (state, said)


def test_the_reason_of_an_array_that_ended_before_they_were_told_apart_reads_as_it_did() -> None:
    old = Reason(ReasonCode.MEMBERS_ENDED, {"succeeded": 5, "others": 1})
    assert describe(old) == "its members have ended: 5 succeeded, 1 otherwise"


def test_cancel_of_some_is_exact() -> None:
    story = Story()
    story.node("n1", 3)
    array = story.submit_array("0-9999")
    story.decide()
    story.tell(Cancel, "1_[0-4999]")
    assert _lazy(story, array) == ((5_000, 9_999, 1),)
    assert [story.named(f"1_{index}").state for index in (2, 3, 4_999, 5_000)] == [
        JobState.STOPPING,
        JobState.CANCELLED,
        JobState.CANCELLED,
        JobState.PENDING,
    ]
    for named, said in (
        ("1_[3-9]", "job 1_[3-9] has already ended: all of them"),
        ("1_3", "job 1_3 has already ended: cancelled"),
    ):
        refused = story.refused(Cancel(by=ANNA, target=parse_job_ref(named)))
        assert (refused.code, refused.message) == ("job_ended", said)
    assert story.refused(Cancel(by=ANNA, target=parse_job_ref("1_10000"))).code == "member_unknown"


def test_one_member_can_be_held_and_released_while_the_others_go_on() -> None:
    story = Story()
    story.node("n1", 8)
    story.submit_array("0-3")
    story.tell(Hold, "1_2")
    assert story.named("1_2").state is JobState.HELD
    assert story.decide() == ["1_0", "1_1", "1_3"]
    story.tell(Release, "1_2")
    assert story.decide() == ["1_2"]


def test_a_held_array_starts_nothing_and_a_released_member_of_it_does() -> None:
    story = Story()
    story.node("n1", 8)
    story.submit_array("0-3")
    story.tell(Hold, "1")
    assert story.decide() == []
    assert story.named("1_3").state is JobState.HELD
    story.tell(Release, "1_3")
    assert story.decide() == ["1_3"]
    story.tell(Release, "1")
    assert story.decide() == ["1_0", "1_1", "1_2"]


def test_requeue_of_an_array_takes_those_that_failed() -> None:
    story = Story()
    story.node("n1", 8)
    array = story.submit_array("0-2")
    story.decide()
    for label, code in (("1_0", 0), ("1_1", 5), ("1_2", 0)):
        story.end(story.run_named(label), exit_code=code)
    story.all_due()
    assert story.job(array).state is JobState.FAILED
    story.tell(Requeue, "1")
    assert story.state.shown_state(story.job(array)) is JobState.PENDING
    assert story.decide() == ["1_1"]
    story.end(story.run_named("1_1"))
    story.all_due()
    assert story.job(array).state is JobState.SUCCEEDED
    assert len(story.named("1_1").attempts) == 2
    assert story.refused(Requeue(by=ANNA, target=parse_job_ref("1"))).code == "nothing_failed"


def test_a_member_cancelled_before_it_was_a_record_can_be_asked_for_once_more() -> None:
    story = Story()
    story.node("n1", 8)
    array = story.submit_array("0-3")
    story.tell(Cancel, "1")
    story.all_due()
    story.tell(Requeue, "1_2")
    assert story.decide() == ["1_2"]
    story.end(story.run_named("1_2"))
    story.all_due()
    facts = story.job(array).reason.facts  # type: ignore[union-attr]  # it has one
    assert facts == {"succeeded": 1, "failed": 0, "cancelled": 3, "others": 3}


def test_a_requeue_of_a_running_member_stops_it_first_and_costs_no_retry() -> None:
    story = Story()
    story.node("n1", 1)
    story.submit_array("0-0")
    story.decide()
    member = story.run_named("1_0")
    story.tell(Requeue, "1_0")
    stop = story.job(member).attempts[-1].stop
    assert stop is not None
    assert stop.cause is StopCause.REQUEUED
    story.end(member, signal=15)
    job = story.job(member)
    assert (job.state, job.retries_used, job.requeues_used, job.not_before) == (JobState.PENDING, 0, 0, NEVER)
    assert story.decide() == ["1_0"]


def test_a_signal_goes_to_what_runs_and_is_refused_for_what_waits() -> None:
    story = Story()
    story.node("n1", 1)
    story.submit_array("0-1")
    ask = SignalJob(by=ANNA, target=parse_job_ref("1"), signal=10)
    assert story.refused(ask).code == "not_running"
    story.decide()
    member = story.run_named("1_0")
    assert story.do(ask) == (JobSignalled(job=member, attempt=1, signal=10),)
    story.tell(Cancel, "1_1")
    assert story.refused(SignalJob(by=ANNA, target=parse_job_ref("1_1"), signal=10)).code == "not_running"


def test_limits_count_members_and_not_arrays() -> None:
    story = Story(Policy(pending_jobs_max=10, array_members_max=20))
    story.submit(spec(array=parse_array("0-7")))
    more = Submit(by=ANNA, specs=(spec(array=parse_array("0-2")),))
    assert story.refused(more).code == "queue_full"
    larger = Submit(by=ANNA, specs=(spec(array=parse_array("0-20")),))
    assert story.refused(larger).code == "array_too_large"
    story.tell(Cancel, "1")
    story.submit(spec(array=parse_array("0-2")))


def test_an_array_larger_than_allowed_is_refused_with_the_bound() -> None:
    refused = Story().refused(Submit(by=ANNA, specs=(spec(array=parse_array("0-9999999")),)))
    assert (refused.code, refused.facts["members_max"]) == ("array_too_large", 100_000)


def test_the_bare_id_of_a_member_that_is_no_record_yet_takes_orders_for_that_member() -> None:
    story = Story()
    story.node("n1", 2)
    array = story.submit_array("0-4%1")
    story.tell(Cancel, str(array + 3))
    assert story.named("1_2").state is JobState.CANCELLED
    story.tell(Hold, str(array + 4))
    assert story.named("1_3").state is JobState.HELD
    assert _lazy(story, array) == ((0, 1, 1), (4, 4, 1))
    story.refused(SignalJob(by=ANNA, target=parse_job_ref(str(array + 1)), signal=10))
    story.refused(Requeue(by=ANNA, target=parse_job_ref(str(array + 1))))


def test_orders_about_members_of_what_is_no_array_are_refused() -> None:
    story = Story()
    job = story.submit()
    assert story.refused(Hold(by=ANNA, target=parse_job_ref(f"{job}_1"))).code == "not_an_array"


def test_a_member_begins_when_its_array_may() -> None:
    story = Story()
    story.node("n1", 8)
    story.submit_array("0-1", begin=Instant(story.now + 60_000))
    story.tell(Hold, "1_0")
    assert story.decide() == []
    story.tell(Release, "1_0")
    assert story.decide() == []
    story.wait(60_000).all_due()
    assert story.decide() == ["1_0", "1_1"]


def test_an_order_that_would_make_too_many_members_records_is_refused() -> None:
    story = Story()
    array = story.submit(spec(array=parse_array("0-19999")))
    half = parse_job_ref(f"{array}_[0-10000]")
    assert story.refused(Hold(by=ANNA, target=half)).code == "too_many_jobs"
    story.tell(Hold, str(array))
    assert story.refused(Release(by=ANNA, target=half)).code == "too_many_jobs"
    story.tell(Cancel, str(half))
    assert story.refused(Requeue(by=ANNA, target=half)).code == "too_many_jobs"


def test_members_that_were_cancelled_one_by_one_are_each_found_with_their_time() -> None:
    story = Story()
    array = story.submit(spec(array=parse_array("0-9")))
    for index in (7, 2, 5):
        story.wait(10).tell(Cancel, f"{array}_{index}")
    story.wait(10).tell(Cancel, f"{array}_[0-8:4]")  # between the others
    ends = {story.named(f"{array}_{index}").ended_at - 1_000_000: index for index in (7, 2, 5)}
    assert ends == {10: 7, 20: 2, 30: 5}
    assert story.named(f"{array}_4").ended_at == story.now
    assert story.named(f"{array}_9").state is JobState.PENDING


def test_the_id_of_a_member_leads_to_its_array_among_many() -> None:
    story = Story(Policy(ended_jobs_max=0))
    plain = story.submit()
    arrays = [story.submit(spec(array=parse_array("0-2"))) for _ in range(3)]
    last = story.submit()
    for array in arrays:
        assert [str(story.state.locate(JobId(array + at))) for at in (1, 3)] == [f"{array}_0", f"{array}_2"]
    for job in (plain, arrays[0]):
        story.cancel(job)
        story.all_due()
    gone = (plain, JobId(arrays[0] + 1), last, JobId(last + 1))
    assert [story.state.locate(job).members for job in gone] == [None] * 4
