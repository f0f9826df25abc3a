"""What the state alone says of jobs that wait: who holds one, what another waits for, who drains a node."""

from stoker.brain.domain.array import parse_job_ref
from stoker.brain.domain.dependency import Dependency, DependencyKind
from stoker.brain.domain.ids import JobId, NodeName, Principal
from stoker.brain.domain.job import Job
from stoker.brain.domain.reason import AWAITING_PASS, Reason, ReasonCode, describe
from stoker.brain.state.commands import DrainNode, Hold, Release, ResumeNode, Submit
from stoker.brain.state.wait_reason import wait_reason
from tests.brain.state.story import ANNA, Story, spec

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
