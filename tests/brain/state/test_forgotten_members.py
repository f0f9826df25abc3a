"""Members of an array whose records are gone: how they count, and how they run once more."""

import re

import pytest
from msgspec.structs import replace

from stoker.brain.domain.array import parse_job_ref
from stoker.brain.domain.dependency import Dependency, DependencyKind
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.policy import Policy
from stoker.brain.state.admit.dispatch import admit
from stoker.brain.state.arrays import member_counts
from stoker.brain.state.commands import Answer, Cancel, Hold, Requeue
from tests.brain.state.story import ANNA, Story, spec


def test_forgotten_members_still_count_towards_how_the_array_ended() -> None:
    story = Story(Policy(ended_jobs_max=2))
    story.node("n1", 1)
    array = story.submit_array("0-5")
    for label in ("1_0", "1_1", "1_2", "1_3", "1_4", "1_5"):
        assert story.decide() == [label]
        story.end(story.run_named(label), exit_code=int(label == "1_1"))
        story.all_due()
    facts = story.job(array).reason.facts  # type: ignore[union-attr]  # it has one
    assert facts == {"succeeded": 5, "failed": 1, "cancelled": 0, "others": 1}
    assert story.state.find(parse_job_ref("1_0")) is None
    gone = story.refused(Cancel(by=ANNA, target=parse_job_ref("1_0")))
    assert (gone.code, gone.message) == ("job_ended", "job 1_0 has already ended: succeeded")


def _forgotten(ends: dict[str, int], **policy: int) -> Story:
    """An array 1 whose members have ended with these exit codes, and whose record alone is left."""
    story = Story(Policy(ended_jobs_max=1, **policy))
    story.node("n1", 1)
    story.submit_array(f"0-{len(ends) - 1}", retries_max=1)
    for label, code in ends.items():
        while not story.named(label).is_final:
            assert story.decide() == [label]
            story.end(story.run_named(label), exit_code=code)
            story.wait(60_000)
            if not story.named(label).is_final:
                story.deadlines()
    story.all_due()
    assert list(story.state.jobs) == [1]
    return story


def test_a_requeue_of_an_array_runs_the_failed_members_whose_records_are_gone() -> None:
    """It said that no member had failed, beside a total of two failed ones."""
    story = _forgotten({"1_0": 0, "1_1": 3, "1_2": 0, "1_3": 4})
    (key, node), array = (TaskKey(JobId(3), 1, 0), NodeName("n1")), JobId(1)
    story.tell(Requeue, "1")
    assert story.job(array).state is JobState.PENDING
    assert [story.named(label).state for label in ("1_1", "1_3")] == [JobState.PENDING] * 2
    assert story.decide() == ["1_1"]
    attempt = story.named("1_1").attempts[-1]
    assert attempt.number == 3, "agents know tasks by their numbers: those of the record that is gone stay used"
    story.finish(node, key)
    assert story.named("1_1").state is JobState.STARTING, "a late report of an earlier attempt ends nothing"
    story.end(story.run_named("1_1"))
    assert story.decide() == ["1_3"]
    story.end(story.run_named("1_3"))
    story.all_due()
    ended = story.job(array)
    assert ended.state is JobState.SUCCEEDED
    assert ended.reason is not None
    assert ended.reason.facts["succeeded"] == 4
    assert story.refused(Requeue(by=ANNA, target=parse_job_ref("1"))).code == "nothing_failed"


@pytest.mark.parametrize("named", ["1_1", "3"])
def test_a_forgotten_member_that_failed_runs_once_more_by_its_name(named: str) -> None:
    story = _forgotten({"1_0": 0, "1_1": 3, "1_2": 0, "1_3": 4})
    story.tell(Requeue, named)
    assert story.decide() == ["1_1"]
    story.end(story.run_named("1_1"), exit_code=5)
    story.wait(60_000).deadlines()
    assert story.decide() == ["1_1"], "its retries are whole again"
    story.end(story.run_named("1_1"), exit_code=5)
    story.wait(60_000).all_due()
    assert list(story.state.jobs) == [1]
    assert story.job(JobId(1)).as_array[1].pruned_failed == ((1, 1, 1), (3, 3, 1))
    story.tell(Requeue, named)
    assert story.decide() == ["1_1"]
    assert story.named("1_1").attempts[-1].number == 5


@pytest.mark.parametrize("named", ["1_0", "1_2", "1_3", "1_[0-3]", "2", "4"])
def test_a_forgotten_member_runs_once_more_by_its_name_however_it_ended(named: str) -> None:
    """Only those that failed did, while any could be asked for as long as its record was there."""
    story = Story(Policy(ended_jobs_max=1))
    story.node("n1", 1)
    array = story.submit_array("0-3")
    for label in ("1_0", "1_1", "1_2"):
        story.decide()
        member = story.run_named(label)
        if label == "1_2":
            story.tell(Cancel, label)
        story.end(member, exit_code=int(label == "1_1"))
    story.tell(Hold, "1_3")
    story.tell(Cancel, "1_3")
    story.all_due()
    assert list(story.state.jobs) == [array]
    before = member_counts(story.job(array), story.state.indexes.arrays[array])
    assert before == {JobState.SUCCEEDED: 1, JobState.FAILED: 1, JobState.CANCELLED: 2}
    story.tell(Requeue, named)
    assert story.job(array).state is JobState.PENDING
    again = [label for label in ("1_0", "1_1", "1_2", "1_3") if story.state.find(parse_job_ref(label))]
    assert again == {"1_[0-3]": ["1_0", "1_1", "1_2", "1_3"], "2": ["1_0"], "4": ["1_2"]}.get(named, [named])
    after = member_counts(story.job(array), story.state.indexes.arrays[array])
    assert after[JobState.PENDING] == len(again)
    assert sum(after.values()) == 4
    for label in again:
        assert story.decide() == [label]
        assert story.named(label).attempts[-1].number == 2, "agents know tasks by their numbers"
        story.end(story.run_named(label))
    story.all_due()
    ended = member_counts(story.job(array), story.state.indexes.arrays[array])
    assert ended[JobState.SUCCEEDED] == len({"1_0", *again})
    assert sum(ended.values()) == 4


def test_members_that_an_older_stoker_forgot_are_refused_with_that_reason() -> None:
    story = _forgotten({"1_0": 0, "1_1": 3})
    array = story.job(JobId(1))
    unnamed = replace(array.as_array[1], pruned_failed=(), pruned_succeeded=(), pruned_attempts=0)
    story.state.put_job(replace(array, members=unnamed))
    for label in ("1_0", "1_1"):
        gone = story.refused(Requeue(by=ANNA, target=parse_job_ref(label)))
        assert gone.message == f"job {label} ended so long ago that an older Stoker forgot how"
        held = story.refused(Hold(by=ANNA, target=parse_job_ref(label)))
        assert (held.message, held.hint) == (f"job {label} has already ended: its record is gone", "submit it again")


@pytest.mark.parametrize("pruned", [1, 100])
def test_the_order_in_a_hint_is_one_that_is_taken(pruned: int) -> None:
    """It said `stoker requeue ID` of what a requeue refuses: of a member that ended with its array, for one."""
    story = Story(Policy(ended_jobs_max=pruned))
    story.node("n1", 3)
    story.submit_array("0-2,5")
    story.decide()
    for label, code in (("1_0", 0), ("1_1", 7)):
        story.end(story.run_named(label), exit_code=code)
    story.run_named("1_2")
    story.tell(Cancel, "1_5")
    after = Dependency(kind=DependencyKind.NOT_OK, job=JobId(1), index=0)
    never = story.submit_array("0-3", after=(after,))
    story.all_due()
    assert story.job(never).state is JobState.FAILED

    def answered(kind: type[Hold | Cancel | Requeue], named: str) -> Answer:
        return admit(story.state, kind(by=ANNA, target=parse_job_ref(named)), story.now, lambda: "uid")

    for named in ("1_0", "1_1", "1_2", "1_5", "1_[0-1,5]", "2", f"{never}", f"{never}_1", f"{never}_[0-2]"):
        for kind in (Hold, Cancel):
            answer = answered(kind, named)
            assert isinstance(answer, Refusal) or (named, kind) == ("1_2", Cancel)
            hint = answer.hint if isinstance(answer, Refusal) else ""
            for word in re.findall(r"`stoker requeue (?:--hold )?([^`]+)`", hint):
                again = answered(Requeue, word.strip("'"))
                assert not isinstance(again, Refusal), f"{named}: {word}: {again}"


def test_forgotten_members_that_wait_again_are_bounded_as_others_are() -> None:
    story = _forgotten({"1_0": 3, "1_1": 3, "1_2": 3}, pending_jobs_max=3)
    story.submit(spec(hold=True))
    assert story.refused(Requeue(by=ANNA, target=parse_job_ref("1"))).code == "queue_full"
    story.tell(Requeue, "1_[0-1]")


def test_members_are_counted_by_state_whatever_became_of_their_records() -> None:
    story = Story(Policy(ended_jobs_max=1))
    story.node("n1", 4)
    array = story.submit_array("0-9")
    story.decide()
    for label, code in (("1_0", 0), ("1_1", 0), ("1_2", 3)):
        story.end(story.run_named(label), exit_code=code)
    story.tell(Cancel, "1_[8-9]")
    story.tell(Hold, "1_7")
    story.tell(Hold, "1_6")
    story.tell(Cancel, "1_6")

    def counts() -> dict[JobState, int]:
        return member_counts(story.job(array), story.state.indexes.arrays[array])

    expected = {
        JobState.STARTING: 1,
        JobState.PENDING: 2,
        JobState.HELD: 1,
        JobState.SUCCEEDED: 2,
        JobState.FAILED: 1,
        JobState.CANCELLED: 3,
    }
    assert counts() == expected
    story.wait(1).deadlines()
    assert story.state.find(parse_job_ref("1_0")) is None, "its record is gone"
    assert counts() == expected
