"""A requeue that finds nothing to run once more says truly why."""

import pytest

from stoker.brain.domain.array import parse_array, parse_job_ref
from stoker.brain.domain.dependency import Dependency, DependencyKind
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.policy import Policy
from stoker.brain.state.commands import Cancel, Requeue
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
