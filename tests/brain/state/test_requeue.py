"""A requeue runs what it is told to run, or holds it; one that finds nothing to run once more says truly why."""

import pytest

from stoker.brain.domain.array import parse_array, parse_job_ref
from stoker.brain.domain.dependency import Dependency, DependencyKind
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import ReasonCode, describe
from stoker.brain.state.commands import Cancel, Hold, Release, Requeue
from tests.brain.state.story import ANNA, Story, spec


def _fail(story: Story, job: JobId) -> None:
    assert story.decide() == [str(job)]
    story.started(job)
    story.end(job, exit_code=1)
    story.all_due()


@pytest.mark.parametrize("members", ["1", "[0-2]"])
def test_members_that_ended_with_their_array_do_not_wait_and_the_refusal_says_what_brings_them_back(
    members: str,
) -> None:
    story = Story()
    first = story.submit()
    array = story.submit(spec(after=(Dependency(kind=DependencyKind.OK, job=first),), array=parse_array("0-3")))
    story.cancel(first)
    story.all_due()
    assert story.job(array).state is JobState.FAILED
    refused = story.refused(Requeue(by=ANNA, target=parse_job_ref(f"{array}_{members}")))
    assert refused.code == "job_ended"
    assert f"array {array} ended failed as a whole: it waited for ok:{first}, and it ended cancelled" in refused.message
    assert f"`stoker requeue {array}`" in refused.hint
    story.tell(Requeue, str(array))
    assert story.job(array).state is JobState.PENDING


def test_a_member_that_waits_is_said_to_wait() -> None:
    story = Story()
    array = story.submit(spec(array=parse_array("0-3")))
    story.tell(Cancel, f"{array}_3")
    assert story.refused(Requeue(by=ANNA, target=parse_job_ref(f"{array}_1"))).code == "job_waits"


def test_a_job_is_requeued_until_it_has_had_as_many_attempts_as_its_record_keeps() -> None:
    """A script that requeues for ever made one record, which travels whole, as large as it liked."""
    story = Story(Policy(attempts_max=2))
    story.node("n1", 1)
    job = story.submit()
    _fail(story, job)
    story.tell(Requeue, str(job))
    _fail(story, job)
    refused = story.refused(Requeue(by=ANNA, target=parse_job_ref(str(job))))
    assert (refused.code, refused.facts["attempts_max"]) == ("too_many_attempts", 2)
    assert "submit it again" in refused.hint


def _hold(story: Story, label: str) -> None:
    story.do(Requeue(by=ANNA, target=parse_job_ref(label), hold=True))


def test_a_running_job_that_is_requeued_to_be_held_is_held_once_it_has_stopped_and_goes_on_when_released() -> None:
    story = Story()
    story.node("n1", 1)
    job = story.submit()
    story.run(job, ("n1", 0))
    _hold(story, str(job))
    assert story.job(job).state is JobState.STOPPING
    story.end(job, cause=EndCause.STOPPED, signal=15)
    assert story.job(job).state is JobState.HELD
    assert story.free_gpus("n1") == 1
    assert story.decide() == []
    story.tell(Release, str(job))
    assert story.decide() == [str(job)]
    assert story.job(job).newest_attempt == 2


def test_a_job_that_has_ended_is_held_when_it_is_requeued_so() -> None:
    story = Story()
    story.node("n1", 1)
    job = story.submit()
    _fail(story, job)
    _hold(story, str(job))
    assert story.job(job).state is JobState.HELD


def test_of_an_array_the_members_that_failed_are_held_and_those_that_wait_are_not() -> None:
    story = Story()
    story.node("n1", 1)
    array = story.submit_array("0-2")
    assert story.decide() == [f"{array}_0"]
    first = story.named(f"{array}_0").id
    story.started(first)
    story.end(first, exit_code=1)
    story.all_due()
    _hold(story, str(array))
    assert story.job(first).state is JobState.HELD
    assert story.decide() == [f"{array}_1"]
    story.started(story.named(f"{array}_1").id)
    _hold(story, f"{array}_1")
    assert story.named(f"{array}_1").state is JobState.STOPPING


def test_a_cancelled_member_that_is_requeued_to_be_held_waits_for_its_release() -> None:
    story = Story()
    array = story.submit_array("0-3")
    story.tell(Cancel, f"{array}_3")
    _hold(story, f"{array}_3")
    assert story.named(f"{array}_3").state is JobState.HELD


def test_the_newest_word_on_a_hold_counts_for_a_job_that_stops_to_be_requeued() -> None:
    for first, newest, state in ((False, True, JobState.HELD), (True, False, JobState.PENDING)):
        story = Story()
        story.node("n1", 1)
        job = story.submit()
        story.run(job, ("n1", 0))
        for hold in (first, newest):
            story.do(Requeue(by=ANNA, target=parse_job_ref(str(job)), hold=hold))
        story.end(job, cause=EndCause.STOPPED, signal=15)
        assert story.job(job).state is state


def test_a_cancel_of_a_job_that_stops_to_be_held_ends_it() -> None:
    story = Story()
    story.node("n1", 1)
    job = story.submit()
    story.run(job, ("n1", 0))
    _hold(story, str(job))
    story.cancel(job)
    story.end(job, cause=EndCause.STOPPED, signal=15)
    assert story.job(job).state is JobState.CANCELLED


def test_a_job_that_waits_is_not_requeued_to_be_held_and_the_hint_says_what_holds_it() -> None:
    story = Story()
    job = story.submit()
    refused = story.refused(Requeue(by=ANNA, target=parse_job_ref(str(job)), hold=True))
    assert (refused.code, f"`stoker hold {job}`" in refused.hint) == ("job_waits", True)


def test_who_would_hold_a_running_job_is_told_what_stops_and_holds_it() -> None:
    story = Story()
    story.node("n1", 1)
    job = story.submit()
    story.run(job, ("n1", 0))
    refused = story.refused(Hold(by=ANNA, target=parse_job_ref(str(job))))
    assert (refused.code, f"`stoker requeue --hold {job}`" in refused.hint) == ("job_live", True)


@pytest.mark.parametrize(("end", "how"), [({"signal": 1}, "signal 1"), ({"exit_code": 129}, "code 129")])
def test_a_job_whose_own_terminal_was_closed_says_so_and_is_over(end: dict[str, int], how: str) -> None:
    """E3: nobody waits at a terminal for a second try."""
    story = Story()
    story.node("n1")
    job = story.submit(spec(retries_max=3, tty=True))
    story.run(job, ("n1", 0))
    story.end(job, hung_up=True, **end)
    done = story.job(job)
    assert (done.state, done.reason is not None) == (JobState.FAILED, True)
    assert done.reason is not None
    assert done.reason.code is ReasonCode.TERMINAL_CLOSED
    assert how in describe(done.reason)
