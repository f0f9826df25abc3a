"""Jobs that wait for others: when that is met, when it never can be, and circles."""

import pytest

from stoker.brain.domain.array import JobRef, parse_array, parse_job_ref
from stoker.brain.domain.dependency import Dependency, DependencyKind
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.state.commands import Cancel, Hold, Release, Requeue, Submit
from stoker.brain.state.events.job import JobFinished, JobSubmitted
from tests.brain.state.story import ANNA, Story, spec

OK, ANY, NOT_OK, AFTER = DependencyKind.OK, DependencyKind.ANY, DependencyKind.NOT_OK, DependencyKind.AFTER


def _after(kind: DependencyKind, job: int, index: int | None = None) -> tuple[Dependency, ...]:
    return (Dependency(kind=kind, job=JobId(job), index=index),)


def _sibling(kind: DependencyKind, place: int) -> tuple[Dependency, ...]:
    return (Dependency(kind=kind, sibling=place),)


def _run_to(story: Story, job: JobId, code: int) -> None:
    assert str(job) in story.decide()
    story.started(job)
    story.end(job, exit_code=code)
    story.all_due()


def _of_an_older_version(story: Story, asked: JobSpec) -> JobId:
    """One that waits for what never was: it was let in, and ended at once."""
    job = story.state.next_job_id
    story.apply(JobSubmitted(job=job, uid="uid", spec=asked), ANNA)
    reason = Reason(ReasonCode.DEPENDENCY_NEVER_SATISFIED, {"dependency": str(asked.after[0]), "why": "there is none"})
    story.apply(JobFinished(job=job, state=JobState.FAILED, reason=reason))
    return job


@pytest.mark.parametrize(
    ("kind", "code", "state"),
    [
        (OK, 0, JobState.PENDING),
        (OK, 1, JobState.FAILED),
        (ANY, 0, JobState.PENDING),
        (ANY, 1, JobState.PENDING),
        (NOT_OK, 0, JobState.FAILED),
        (NOT_OK, 1, JobState.PENDING),
    ],
)
def test_what_the_end_of_one_job_means_for_another(kind: DependencyKind, code: int, state: JobState) -> None:
    """Fault 132: jobs whose dependency could never be met stayed pending, and people cancelled them by hand."""
    story = Story()
    story.node("n1", 1)
    first = story.submit()
    second = story.submit(spec(0, after=_after(kind, first)))
    assert story.decide() == [str(first)], "the second waits although it would fit"
    story.started(first)
    assert story.decide() == []
    story.end(first, exit_code=code)
    story.all_due()
    job = story.job(second)
    assert job.state is state
    if state is JobState.FAILED:
        assert job.reason is not None
        assert job.reason.code is ReasonCode.DEPENDENCY_NEVER_SATISFIED
        assert str(first) in str(job.reason.facts["dependency"])
    else:
        assert story.decide() == [str(second)]


def test_after_is_met_once_the_other_has_started_or_ended_without_starting() -> None:
    story = Story()
    story.node("n1", 1)
    first, other = story.submit(), story.submit()
    second = story.submit(spec(0, after=_after(AFTER, first)))
    third = story.submit(spec(0, after=_after(AFTER, other)))
    story.decide()
    assert story.job(second).blocked
    story.started(first)
    story.cancel(other)
    story.all_due()
    assert story.decide() == [str(second), str(third)]


@pytest.mark.parametrize("kind", [OK, ANY, NOT_OK, AFTER])
def test_a_dependency_on_what_never_was_is_refused(kind: DependencyKind) -> None:
    story = Story()
    array = story.submit(spec(array=parse_array("0-3")))
    for after, why in ((_after(kind, 4_711), "there is no job 4711"), (_after(kind, array, 9), "has no member 9")):
        refusal = story.refused(Submit(by=ANNA, specs=(spec(after=after),)))
        assert (refusal.code, why in refusal.message) == ("bad_dependency", True)


def test_a_dependent_of_a_job_that_has_already_failed_ends_at_once() -> None:
    """Fault 133: the upstream failed before its dependents existed, and the cascade missed them."""
    story = Story()
    story.node("n1", 1)
    first = story.submit()
    _run_to(story, first, 1)
    late = story.submit(spec(after=_after(OK, first)))
    story.all_due()
    assert story.job(late).state is JobState.FAILED


def test_a_chain_falls_as_a_whole() -> None:
    """Fault 134: the dependent stayed deferred for ever."""
    story = Story()
    story.node("n1", 1)
    jobs = [story.submit()]
    for _ in range(20):
        jobs.append(story.submit(spec(after=_after(OK, jobs[-1]))))
    _run_to(story, jobs[0], 9)
    assert {story.job(job).state for job in jobs} == {JobState.FAILED}


def test_ok_of_an_array_waits_for_every_member() -> None:
    """Fault 135: the next stage started before the array was complete."""
    story = Story()
    story.node("n1", 2)
    array = story.submit(spec(array=parse_array("0-3")))
    dependent = story.submit(spec(0, after=_after(OK, array)))
    on_member = story.submit(spec(0, after=_after(OK, array, 1)))
    assert story.decide() == ["1_0", "1_1"]
    for label in ("1_0", "1_1"):
        story.started(story.named(label).id)
        story.end(story.named(label).id)
    story.all_due()
    assert story.decide() == ["1_2", "1_3", str(on_member)]
    assert story.job(dependent).blocked
    for label in ("1_2", "1_3"):
        story.started(story.named(label).id)
        story.end(story.named(label).id)
    story.all_due()
    assert story.decide() == [str(dependent)]


def test_a_member_that_is_cancelled_before_it_was_a_record_settles_who_waits_for_it() -> None:
    story = Story()
    array = story.submit(spec(array=parse_array("0-3")))
    want_ok = story.submit(spec(after=_after(OK, array, 2)))
    want_any = story.submit(spec(after=_after(ANY, array, 2)))
    story.tell(Cancel, "1_2")
    story.all_due()
    assert story.job(want_ok).state is JobState.FAILED
    assert (story.job(want_any).state, story.job(want_any).blocked) == (JobState.PENDING, False)


def test_the_bare_id_of_a_member_means_that_member() -> None:
    story = Story()
    array = story.submit(spec(array=parse_array("0-3")))
    job = story.submit(spec(after=_after(ANY, array + 3)))
    assert story.job(job).spec.after == _after(ANY, array, 2)
    assert story.job(job).blocked


def test_an_array_can_wait_and_falls_as_one() -> None:
    story = Story()
    story.node("n1", 1)
    first = story.submit()
    array = story.submit(spec(array=parse_array("0-9"), after=_after(OK, first)))
    story.tell(Hold, f"{array}_3")
    story.tell(Release, f"{array}_3")
    _run_to(story, first, 1)
    assert story.job(array).state is JobState.FAILED
    assert story.named(f"{array}_3").state is JobState.FAILED
    assert story.named(f"{array}_4").state is JobState.FAILED
    assert story.decide() == []


def test_a_forgotten_job_has_ended_but_how_is_not_known() -> None:
    story = Story(Policy(ended_jobs_max=0))
    first = story.submit()
    story.cancel(first)
    story.all_due()
    assert first not in story.state.jobs
    anyhow = story.submit(spec(after=_after(ANY, first)))
    well = story.submit(spec(after=_after(OK, first)))
    story.deadlines()
    assert not story.job(anyhow).blocked
    assert story.job(well).state is JobState.FAILED


def test_nothing_is_forgotten_while_somebody_must_still_be_judged_by_it() -> None:
    story = Story(Policy(ended_jobs_max=0))
    story.node("n1", 1)
    first = story.submit()
    second = story.submit(spec(0, after=_after(OK, first)))
    story.decide()
    story.started(first)
    story.end(first)
    story.deadlines()
    assert first in story.state.jobs
    story.all_due()
    assert story.job(second).state is JobState.PENDING
    assert first not in story.state.jobs


def test_a_verdict_stays_when_the_other_job_is_requeued_later() -> None:
    story = Story()
    story.node("n1", 1)
    first = story.submit()
    second = story.submit(spec(0, after=_after(OK, first)))
    _run_to(story, first, 0)
    story.tell(Requeue, str(first))
    assert str(second) in story.decide()


@pytest.mark.parametrize("kind", [OK, ANY])
def test_a_condition_that_was_met_stays_met_when_the_record_of_that_job_goes(kind: DependencyKind) -> None:
    """C waited for two jobs; one succeeded and was pruned while the other ran, and C ended as never satisfied."""
    story = Story(Policy(ended_jobs_max=0))
    story.node("n1", 2)
    first, other = story.submit(), story.submit()
    both = story.submit(spec(0, after=_after(kind, first) + _after(OK, other)))
    story.decide()
    for each in (first, other):
        assert story.job(both).blocked
        story.started(each)
        story.end(each)
        story.all_due()
        assert each not in story.state.jobs
    assert story.decide() == [str(both)]


def test_a_condition_that_was_met_stays_met_when_that_job_runs_once_more() -> None:
    story = Story()
    story.node("n1", 2)
    first, other = story.submit(), story.submit()
    both = story.submit(spec(0, after=_after(OK, first) + _after(OK, other)))
    story.decide()
    story.started(first)
    story.end(first)
    story.tell(Requeue, str(first))
    story.started(other)
    story.end(other)
    story.all_due()
    assert str(both) in story.decide()


def test_a_condition_on_members_stays_met_when_they_are_forgotten() -> None:
    story = Story(Policy(ended_jobs_max=0))
    story.node("n1", 3)
    array, other = story.submit(spec(array=parse_array("0-1"))), story.submit()
    one = story.submit(spec(0, after=_after(OK, array, 1) + _after(OK, other)))
    whole = story.submit(spec(0, after=_after(OK, array) + _after(OK, other)))
    story.decide()
    for member in (f"{array}_0", f"{array}_1"):
        job = story.state.find(parse_job_ref(member))
        assert job is not None
        story.started(job.id)
        story.end(job.id)
        story.all_due()
    assert array not in story.state.jobs
    story.started(other)
    story.end(other)
    story.all_due()
    assert story.decide() == [str(one), str(whole)]


@pytest.mark.parametrize(("kind", "met"), [(OK, True), (ANY, True), (AFTER, True), (NOT_OK, False)])
def test_a_forgotten_job_counts_as_the_history_says_that_it_ended(kind: DependencyKind, met: bool) -> None:
    story = Story(Policy(ended_jobs_max=0))
    story.node("n1", 1)
    first = story.submit()
    _run_to(story, first, 0)
    assert first not in story.state.jobs
    late = story.state.next_job_id
    ended = {JobRef(first): JobState.SUCCEEDED}
    story.do(Submit(by=ANNA, specs=(spec(0, after=_after(kind, first)),), ended=ended))
    if met:
        story.all_due()
        assert story.decide() == [str(late)]
    else:
        reason = story.job(late).reason
        assert reason is not None
        assert reason.facts["why"] == "it ended succeeded"


def test_all_conditions_must_be_met() -> None:
    story = Story()
    story.node("n1", 2)
    first, second = story.submit(), story.submit()
    job = story.submit(spec(0, after=(*_after(OK, first), *_after(OK, second))))
    story.decide()
    for each in (first, second):
        assert story.job(job).blocked
        story.started(each)
        story.end(each)
        story.all_due()
    assert story.decide() == [str(job)]


# --- within one submit -----------------------------------------------------------------------------------------------


def test_jobs_of_one_submit_may_wait_for_each_other_in_any_order() -> None:
    story = Story()
    story.node("n1", 1)
    story.submit(spec(0, after=_sibling(OK, 1)), spec(1))
    assert story.job(JobId(1)).spec.after == _after(OK, 2)
    assert story.decide() == ["2"]
    story.started(JobId(2))
    story.end(JobId(2))
    story.all_due()
    assert story.decide() == ["1"]


@pytest.mark.parametrize(
    ("specs", "shown"),
    [
        ((spec(after=_sibling(OK, 0)),), "waits for itself"),
        ((spec(after=_after(OK, 1)),), "waits for itself"),
        ((spec(after=_sibling(OK, 1)), spec(after=_sibling(ANY, 0))), "circle"),
        ((spec(), spec(after=_sibling(OK, 3)), spec(after=_sibling(OK, 1)), spec(after=_after(OK, 3))), "circle"),
    ],
    ids=["itself by place", "itself by id", "two", "three, by place and id"],
)
def test_a_circle_is_refused_and_nothing_is_submitted(specs: tuple[JobSpec, ...], shown: str) -> None:
    story = Story()
    refused = story.refused(Submit(by=ANNA, specs=specs))
    assert refused.code == "dependency_cycle"
    assert shown in refused.message
    assert story.state.next_job_id == 1


def test_a_place_beyond_the_list_is_refused() -> None:
    refused = Story().refused(Submit(by=ANNA, specs=(spec(after=_sibling(OK, 1)),)))
    assert refused.code == "bad_dependency"


# --- hold, begin, keys -----------------------------------------------------------------------------------------------


def test_a_job_submitted_as_held_waits_for_its_release() -> None:
    story = Story()
    story.node("n1", 1)
    job = story.submit(spec(hold=True))
    assert (story.job(job).state, story.decide()) == (JobState.HELD, [])
    story.tell(Release, str(job))
    assert story.decide() == [str(job)]
    assert story.refused(Hold(by=ANNA, target=JobRef(job))).code == "job_live"
    assert story.refused(Release(by=ANNA, target=JobRef(job))).code == "not_held"


def test_a_job_begins_not_before_its_time_and_says_so() -> None:
    story = Story()
    story.node("n1", 1)
    job = story.submit(spec(begin=story.now + 3_600_000))
    assert story.decide() == []
    reason = story.job(job).reason
    assert reason is not None
    assert (reason.code, reason.facts["begin"]) == (ReasonCode.BEGIN_TIME, "1970-01-01 01:16:40 UTC")
    story.wait(3_599_999).all_due()
    assert story.decide() == []
    story.wait(1).all_due()
    assert story.decide() == [str(job)]


def test_a_begin_in_the_past_is_at_once_and_one_too_far_ahead_is_refused() -> None:
    story = Story()
    story.node("n1", 1)
    job = story.submit(spec(begin=story.now - 5))
    assert story.decide() == [str(job)]
    far = Submit(by=ANNA, specs=(spec(begin=story.now + 10**12),))
    assert story.refused(far).code == "begin_too_late"


def test_the_same_key_and_body_make_no_second_job() -> None:
    story = Story()
    ask = Submit(by=ANNA, specs=(spec(), spec()), key="k1", digest="aa")
    assert len(story.do(ask)) == 3
    assert story.do(ask) == ()
    assert story.state.submit_keys[f"{ANNA} k1"].jobs == (1, 2)
    other = Submit(by=ANNA, specs=(spec(),), key="k1", digest="bb")
    assert story.refused(other).code == "idempotency_key_reused"
    assert len(story.state.jobs) == 2


def test_the_newest_keys_are_remembered() -> None:
    story = Story(Policy(submit_keys_max=2))
    for key in ("a", "b", "c"):
        story.do(Submit(by=ANNA, specs=(spec(),), key=key, digest=key))
    assert list(story.state.submit_keys) == [f"{ANNA} b", f"{ANNA} c"]


@pytest.mark.parametrize("key", ["x" * 256, "a\nb"])
def test_a_key_that_is_no_short_printable_text_is_refused(key: str) -> None:
    refused = Story().refused(Submit(by=ANNA, specs=(spec(),), key=key, digest="d"))
    assert refused.code == "bad_idempotency_key"


def test_a_requeue_runs_what_has_ended_once_more_with_its_history() -> None:
    story = Story()
    story.node("n1", 1)
    job = story.submit(spec(retries_max=1))
    _run_to(story, job, 1)
    story.wait(60_000).all_due()
    _run_to(story, job, 1)
    assert story.job(job).state is JobState.FAILED
    story.tell(Requeue, str(job))
    again = story.job(job)
    assert (again.state, again.retries_used, len(again.attempts), again.ended_at) == (JobState.PENDING, 0, 2, 0)
    _run_to(story, job, 0)
    assert story.job(job).state is JobState.SUCCEEDED
    assert story.refused(Requeue(by=ANNA, target=JobRef(story.submit()))).code == "job_waits"


def test_a_requeue_does_not_bring_a_job_before_its_time() -> None:
    story = Story()
    story.node("n1", 1)
    job = story.submit(spec(begin=story.now + 60_000))
    story.cancel(job)
    story.tell(Requeue, str(job))
    assert story.decide() == []
    story.wait(60_000).all_due()
    assert story.decide() == [str(job)]


def test_a_requeue_of_what_waits_for_a_member_that_never_was_is_refused() -> None:
    """Its record isn't merely gone: to take it for ended would run the job."""
    story = Story()
    array = story.submit(spec(array=parse_array("0-3")))
    job = _of_an_older_version(story, spec(after=_after(ANY, array, 9)))
    assert story.refused(Requeue(by=ANNA, target=JobRef(job))).code == "dependency_never_satisfied"


def test_what_fell_with_a_failed_job_runs_once_that_one_has_gone_well() -> None:
    story = Story()
    story.node("n1", 1)
    first = story.submit()
    second = story.submit(spec(0, after=_after(OK, first)))
    _run_to(story, first, 1)
    story.tell(Requeue, str(first))
    story.tell(Requeue, str(second))
    _run_to(story, first, 0)
    assert story.decide() == [str(second)]


def test_a_requeue_does_not_make_a_circle_with_a_job_that_was_not_there_before() -> None:
    story = Story()
    first = _of_an_older_version(story, spec(after=_after(ANY, 2)))
    story.wait(1)
    second = story.submit(spec(after=_after(ANY, first)))
    assert second == 2
    assert story.refused(Requeue(by=ANNA, target=JobRef(first))).code == "dependency_never_satisfied"


def test_a_requeue_does_not_let_an_array_wait_for_a_member_of_its_own() -> None:
    story = Story()
    array = _of_an_older_version(story, spec(after=_after(ANY, 3), array=parse_array("0-3")))
    for label in (f"{array}", f"{array}_2"):
        refused = story.refused(Requeue(by=ANNA, target=parse_job_ref(label)))
        assert refused.code in ("dependency_never_satisfied", "job_waits")


def test_a_member_that_was_cancelled_gets_past_no_dependency_by_being_requeued() -> None:
    story = Story()
    story.node("n1", 8)
    first = story.submit()
    array = story.submit(spec(after=_after(OK, first), array=parse_array("0-3")))
    story.tell(Cancel, f"{array}_1")
    story.tell(Requeue, f"{array}_1")
    assert story.decide() == [str(first)]
    story.started(first)
    story.end(first)
    story.all_due()
    assert len(story.decide()) == 4


def test_an_array_that_was_cancelled_and_can_never_run_ends_once() -> None:
    story = Story()
    first = story.submit()
    array = story.submit(spec(after=_after(OK, first), array=parse_array("0-3")))
    story.cancel(first)
    story.cancel(array)
    ends = [event for event in story.deadlines() if isinstance(event, JobFinished)]
    assert [end.job for end in ends] == [array]
