"""What follows when the prolog or the epilog of a site says that something is wrong with its node."""

from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.lifecycle import JobState, NodeState
from stoker.brain.state.commands import DrainNode, ResumeNode
from stoker.brain.state.node_pause import ERROR_MAX
from tests.brain.state.story import ANNA, Story, spec

N1 = NodeName("n1")
PROLOG = "prolog of job 1 exited 3: no scratch disk"


def on_n1() -> tuple[Story, JobId]:
    """One job that was sent to n1."""
    story = Story()
    story.node("n1")
    job = story.submit(spec(1))
    story.place(job, ("n1", 0))
    return story, job


def prolog_fails(story: Story, job: JobId, fault: str = PROLOG) -> None:
    story.end(job, cause=EndCause.NEVER_STARTED, error=fault, node_fault=fault)


def test_a_prolog_that_fails_drains_its_node_with_its_words_and_its_job_starts_elsewhere_at_no_charge() -> None:
    story, job = on_n1()
    story.node("n2")
    prolog_fails(story, job)
    assert (story.state.node_state(N1), story.state.nodes[N1].drain) == (NodeState.DRAINED, PROLOG)
    assert story.state.nodes[N1].drained_by == "node:n1"
    assert (story.job(job).retries_used, story.job(job).requeues_used) == (0, 0)
    assert story.decide() == [str(job)]
    assert story.key(job)[1] == "n2"


def test_a_job_that_may_not_be_requeued_starts_elsewhere_too_since_nothing_of_it_ran() -> None:
    story = Story()
    story.node("n1")
    job = story.submit(spec(1, requeue=False))
    story.place(job, ("n1", 0))
    prolog_fails(story, job)
    assert story.job(job).state is JobState.PENDING


def test_an_epilog_that_fails_drains_its_node_and_the_job_keeps_its_end() -> None:
    story, job = on_n1()
    story.started(job)
    story.end(job, exit_code=0, node_fault="epilog of job 1 took more than 60 s and was killed")
    assert story.job(job).state is JobState.SUCCEEDED
    assert story.state.nodes[N1].drain == "epilog of job 1 took more than 60 s and was killed"


def test_a_drain_of_a_person_keeps_its_reason() -> None:
    story, job = on_n1()
    story.do(DrainNode(by=ANNA, node=N1, reason="fans"))
    prolog_fails(story, job)
    assert story.state.nodes[N1].drain == "fans"


def test_a_person_ends_the_drain_and_nothing_is_left_of_it() -> None:
    story, job = on_n1()
    prolog_fails(story, job)
    story.do(ResumeNode(by=ANNA, node=N1))
    assert story.state.node_state(N1) is NodeState.READY
    assert story.state.nodes[N1].failed_starts == ()


def test_what_a_node_says_again_of_a_task_that_ended_before_drains_nothing() -> None:
    story, job = on_n1()
    key, node = story.key(job)
    prolog_fails(story, job)
    story.do(ResumeNode(by=ANNA, node=N1))
    story.finish(node, key, cause=EndCause.NEVER_STARTED, node_fault=PROLOG)
    assert story.state.nodes[N1].drain is None


def test_the_reason_of_such_a_drain_is_bounded() -> None:
    story, job = on_n1()
    prolog_fails(story, job, "x" * 10_000)
    assert story.state.nodes[N1].drain == "x" * ERROR_MAX
