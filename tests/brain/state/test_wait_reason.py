"""What the state alone says of jobs that wait or are ending: who holds one, what it waits for, for whom it goes."""

import pytest

from stoker.brain.domain.array import JobRef, parse_job_ref
from stoker.brain.domain.dependency import Dependency, DependencyKind
from stoker.brain.domain.ids import JobId, NodeName, Principal
from stoker.brain.domain.job import EndCause, Job, StopCause, WarnSignal
from stoker.brain.domain.reason import AWAITING_PASS, Reason, ReasonCode, describe, hint_for
from stoker.brain.domain.units import MINUTE_MS
from stoker.brain.state.commands import Cancel, DrainNode, Hold, Release, Requeue, ResumeNode, Submit
from stoker.brain.state.wait_reason import shown_reason, wait_reason
from tests.brain.state.story import ANNA, Story, spec
from tests.brain.state.test_preemption import busy, preempt

BERT = Principal("user:bert")


def why(story: Story, job: Job) -> Reason:
    return wait_reason(story.state, job, lambda _: AWAITING_PASS)


def test_a_held_job_says_who_holds_it_until_somebody_releases_it() -> None:
    story = Story()
    job = story.submit()
    story.do(Hold(by=BERT, target=parse_job_ref(str(job))))
    assert describe(why(story, story.job(job))) == "bert holds it since 1970-01-01 00:16:40 UTC"
    story.do(Release(by=ANNA, target=parse_job_ref(str(job))))
    assert (story.job(job).held_by, story.job(job).held_at) == ("", 0)


def test_a_job_that_was_submitted_to_wait_is_held_by_its_submitter() -> None:
    story = Story()
    assert why(story, story.job(story.submit(spec(hold=True)))).facts["by"] == ANNA


def test_a_member_that_is_held_alone_says_who_holds_it() -> None:
    story = Story()
    story.submit_array("0-3")
    story.do(Hold(by=BERT, target=parse_job_ref("1_2")))
    assert why(story, story.named("1_2")).facts["by"] == BERT
    assert why(story, story.named("1_1")).code is not ReasonCode.HELD


def test_a_job_says_what_it_still_waits_for_with_names_and_states() -> None:
    story = Story()
    story.node("n1")
    first, second = story.submit(spec(name="train")), story.submit(spec(name="clean"))
    after = tuple(
        Dependency(kind=kind, job=job) for kind, job in ((DependencyKind.OK, first), (DependencyKind.ANY, second))
    )
    third = story.submit(spec(after=after))
    story.place(first, ("n1", 0))
    story.started(first)
    said = describe(why(story, story.job(third)))
    assert said == f"it waits for job {first} train (running) to succeed, job {second} clean (pending) to end"
    assert why(story, story.job(third)).facts["waits"] == f"ok:{first}, any:{second}"


def test_the_name_of_somebody_elses_job_is_not_told() -> None:
    story = Story()
    story.do(Submit(by=BERT, specs=(spec(name="secret"),)))
    waiting = story.submit(spec(after=(Dependency(kind=DependencyKind.OK, job=JobId(1)),)))
    assert describe(why(story, story.job(waiting))) == "it waits for job 1 (pending) to succeed"


def test_a_node_says_who_drains_it_until_it_is_resumed() -> None:
    story = Story()
    node = story.node("n1")
    story.do(DrainNode(by=BERT, node=NodeName("n1"), reason="fan"))
    assert (story.state.nodes[node].drained_by, story.state.nodes[node].drained_at) == (BERT, story.now)
    story.do(ResumeNode(by=ANNA, node=NodeName("n1")))
    assert (story.state.nodes[node].drained_by, story.state.nodes[node].drained_at) == ("", 0)


def ending(story: Story, job: JobId) -> Reason:
    """Why it is ending."""
    reason = shown_reason(story.state, story.job(job), lambda _: AWAITING_PASS)
    assert reason is not None
    assert reason.code is ReasonCode.ENDING
    return reason


@pytest.mark.parametrize(
    ("cause", "why_it_goes"),
    [
        (StopCause.PREEMPTED, "whose priority is higher"),
        (StopCause.RECLAIMED, "which gets back GPUs that were borrowed"),
    ],
)
def test_a_job_that_gives_way_says_for_whom_and_until_when_its_notice_and_grace_last(
    cause: StopCause, why_it_goes: str
) -> None:
    story, low, high = busy(warn=WarnSignal(signal=10, lead_ms=MINUTE_MS))
    preempt(story, high, low, cause=cause)
    assert describe(ending(story, low)) == (
        f"it gives way to job {high}, {why_it_goes}; its processes are gone by 1970-01-01 00:17:50 UTC at the latest, "
        "if its nodes can be reached; it then waits for its turn again, at its old place in the queue"
    )
    assert "keeps its priority" in hint_for(ending(story, low))
    story.end(low, exit_code=143)
    assert why(story, story.job(low)).code is not ReasonCode.ENDING


def test_a_job_that_is_cancelled_requeued_or_over_its_limit_says_so_until_it_is_gone() -> None:
    story = Story()
    story.node("n1")
    cancelled, again, held, late = (story.submit(spec(time_limit_ms=limit)) for limit in (0, 0, 0, MINUTE_MS))
    for place, job in enumerate((cancelled, again, held, late)):
        story.run(job, ("n1", place))
    story.wait(MINUTE_MS).all_due()
    story.do(Cancel(by=BERT, target=JobRef(cancelled)))
    story.do(Requeue(by=BERT, target=JobRef(again)))
    story.do(Requeue(by=BERT, target=JobRef(held), hold=True))
    gone = "; its processes are gone by 1970-01-01 00:17:50 UTC at the latest, if its nodes can be reached"
    assert [describe(ending(story, job)) for job in (cancelled, again, held, late)] == [
        f"it was cancelled by bert and is ending{gone}",
        f"bert asked for another try, and this one is ending{gone}; it then waits for its turn again, at its old place "
        "in the queue",
        f"bert asked for another try, and this one is ending{gone}; it is held then",
        f"it ran longer than its limit of 1m and is ending{gone}",
    ]


def test_a_gang_that_is_ending_says_which_rank_ended_first_where_and_how() -> None:
    ends = {
        "with code 7": {"exit_code": 7},
        "by signal 9": {"signal": 9},
        "out of memory": {"oom": True, "exit_code": 137},
        "runner lost": {"cause": EndCause.RUNNER_LOST},
    }
    for how, end in ends.items():
        story = Story()
        story.node("n1")
        story.node("n2")
        job = story.submit(spec(tasks=3))
        story.run(job, ("n1", 0), ("n2", 0), ("n1", 1))
        story.end(job, rank=1, **end)
        said = describe(ending(story, job))
        assert said.startswith(f"one of its ranks has ended (rank 1 on n2, {how}), so the others are told to end; ")


def test_what_ended_a_job_of_one_task_names_its_node() -> None:
    ends: dict[str, dict[str, object]] = {
        "its command exited with code 3 on n1": {"exit_code": 3},
        "its command was killed on n1 by signal 9, which Stoker did not send": {"signal": 9},
        "it used up its memory limit of 64 MiB on n1 (peak 64 MiB)": {"oom": True, "peak_memory_mb": 64},
    }
    for said, end in ends.items():
        story = Story()
        story.node("n1")
        job = story.submit()
        story.run(job, ("n1", 0))
        story.end(job, **end)
        reason = story.job(job).reason
        assert reason is not None
        assert describe(reason) == said
