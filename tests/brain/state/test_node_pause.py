"""Pauses of nodes on which starts fail: S1 to S5 of `state.node_pause`."""

import pytest

from stoker.brain.domain.ids import JobId, NodeName, Position, Principal
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.lifecycle import JobState, NodeState
from stoker.brain.domain.reason import ReasonCode, describe
from stoker.brain.domain.units import HOUR_MS, MINUTE_MS
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import decode_fact, load_snapshot, snapshot_chunks
from stoker.brain.state.commands import DrainNode, ResumeNode, Submit
from stoker.brain.state.events.node import NodePaused, NodePauseOver, NodeResumed, StartFailed
from tests.brain.state.story import ANNA, Story, spec

N1 = NodeName("n1")


def on_n1() -> Story:
    story = Story()
    story.node("n1")
    return story


def fail(
    story: Story,
    job: JobId | None = None,
    cause: EndCause = EndCause.NEVER_STARTED,
    error: str = "no space left on device",
) -> JobId:
    """The start of a job on n1 fails; of a new one where none is named."""
    job = job or story.submit(spec(1))
    if story.job(job).not_before:
        story.wait(MINUTE_MS).deadlines()
    story.place(job, ("n1", 0))
    story.end(job, cause=cause, error=error)
    return job


def paused(story: Story) -> bool:
    return story.state.node_state(N1) is NodeState.PAUSED


def test_the_third_job_in_a_row_whose_start_fails_pauses_the_node_and_says_why() -> None:
    story = on_n1()
    fail(story), fail(story)
    assert not paused(story)
    fail(story)
    assert paused(story)
    node = story.state.nodes[N1]
    assert not node.takes_work
    assert node.pause is not None
    assert (node.pause.until, node.pause.error) == (story.now + MINUTE_MS, "no space left on device")
    assert N1 not in story.state.indexes.free
    job = story.submit(spec(1))
    assert story.decide() == []
    assert story.state.indexes.next_deadline() == node.pause.until
    assert story.job(job).state is JobState.PENDING


def test_what_runs_there_goes_on_through_a_pause_and_its_end_is_taken() -> None:
    story = on_n1()
    runs = story.submit(spec(1))
    story.run(runs, ("n1", 7))
    for _ in range(3):
        fail(story)
    assert paused(story)
    assert story.job(runs).state is JobState.RUNNING
    story.end(runs)
    assert story.job(runs).state is JobState.SUCCEEDED


def test_s5_jobs_of_accounts_that_a_node_does_not_take_neither_pause_it_nor_are_charged() -> None:
    story = on_n1()
    jobs = [fail(story, cause=EndCause.ACCOUNT_REFUSED) for _ in range(5)]
    assert not paused(story)
    assert story.state.nodes[N1].failed_starts == ()
    assert {(story.job(job).state, story.job(job).requeues_used) for job in jobs} == {(JobState.PENDING, 0)}
    fail(story, jobs[0], cause=EndCause.ACCOUNT_REFUSED)
    assert story.job(jobs[0]).not_before > story.now, "it isn't sent there again at once"


def test_one_job_that_fails_again_and_again_says_little_about_the_node() -> None:
    story = on_n1()
    job = fail(story)
    for _ in range(5):
        fail(story, job)
    assert not paused(story)
    assert story.state.nodes[N1].failed_starts == (f"job:{job}",)


def test_the_members_of_an_array_count_as_one_job() -> None:
    from stoker.brain.domain.array import parse_array

    story = on_n1()
    story.submit(spec(1, array=parse_array("0-9")))
    assert len(story.decide(budget=5)) == 5
    for job in [each.id for each in story.state.jobs.values() if each.array_of]:
        story.end(job, cause=EndCause.NEVER_STARTED)
    assert len(story.state.nodes[N1].failed_starts) == 1


def test_broken_commands_of_one_person_pause_nothing_and_those_of_three_do() -> None:
    story = on_n1()
    for _ in range(10):
        fail(story, cause=EndCause.START_FAILED)
    assert not paused(story)
    for name in ("user:ben", "user:eve"):
        job = story.state.next_job_id
        story.do(Submit(by=Principal(name), specs=(spec(1),)))
        fail(story, job, EndCause.START_FAILED)
    assert paused(story)
    pause = story.state.nodes[N1].pause
    assert pause is not None
    assert pause.error == "commands of several people could not be started", "their words are for them alone"


@pytest.mark.parametrize(
    "error",
    [
        "image nowhere:1/secret can't be pulled: connection refused",
        "the pull of nowhere:1/secret made no progress for 120 s",
    ],
)
def test_images_that_one_person_cannot_have_pause_nothing_and_those_of_three_do(error: str) -> None:
    """A registry that a job names is nobody's node: a mistyped name must not keep everybody's jobs from starting."""
    story = on_n1()
    for _ in range(5):
        fail(story, error=error)
    assert not paused(story)
    for name in ("user:ben", "user:eve"):
        job = story.state.next_job_id
        story.do(Submit(by=Principal(name), specs=(spec(1),)))
        fail(story, job, error=error)
    pause = story.state.nodes[N1].pause
    assert pause is not None
    assert pause.error == "images of several people could not be had", "their names are for them alone"


@pytest.mark.parametrize(
    ("error", "heard"),
    [
        ("cannot run /data/ann/secret: v2 as user 'ann': Input/output error (EIO)", "Input/output error (EIO)"),
        (
            "cannot write its output to /data/ann/x as user 'ann': Too many open files (EMFILE)",
            "Too many open files (EMFILE)",
        ),
        (
            "no folder for checkpoints, /c/1.ab as user 'ann': No space left (ENOSPC)",
            "no folder for checkpoints, /c/1.ab: No space left (ENOSPC)",
        ),
    ],
)
def test_a_pause_names_no_account_program_or_file_of_the_job_whose_start_failed(error: str, heard: str) -> None:
    story = on_n1()
    for _ in range(3):
        story.place(job := story.submit(spec(1, user="ann")), ("n1", 0))
        story.end(job, cause=EndCause.NEVER_STARTED, error=error)
    pause = story.state.nodes[N1].pause
    assert pause is not None
    assert pause.error == heard


def test_a_start_that_succeeds_in_between_ends_the_row() -> None:
    story = on_n1()
    fail(story), fail(story)
    good = story.submit(spec(1))
    story.run(good, ("n1", 1))
    assert story.state.nodes[N1].failed_starts == ()
    fail(story), fail(story)
    assert not paused(story)


@pytest.mark.parametrize("cause", [EndCause.PORT_TAKEN, EndCause.RUNNER_LOST, EndCause.EXITED, EndCause.STOPPED])
def test_other_ends_count_for_nothing(cause: EndCause) -> None:
    story = on_n1()
    for _ in range(4):
        fail(story, cause=cause)
    assert story.state.nodes[N1].failed_starts == ()


def test_the_pause_ends_by_itself_and_grows_with_each_failed_start_until_one_succeeds() -> None:
    story = on_n1()
    fail(story), fail(story), fail(story)
    lengths = []
    for _ in range(8):
        pause = story.state.nodes[N1].pause
        assert pause is not None
        lengths.append((pause.until - story.now) // MINUTE_MS)
        assert not any(
            isinstance(event, NodePauseOver) for event in story.wait(pause.until - story.now - 1).deadlines()
        )
        assert NodePauseOver(node=N1) in story.wait(1).deadlines()
        assert story.state.nodes[N1].takes_work
        fail(story)  # one is enough now
    assert lengths == [1, 2, 4, 8, 16, 32, 60, 60]
    story.wait(HOUR_MS).deadlines()
    good = story.submit(spec(1))
    story.run(good, ("n1", 1))
    fail(story), fail(story)
    assert not paused(story)
    fail(story)
    pause = story.state.nodes[N1].pause
    assert pause is not None
    assert pause.until == story.now + MINUTE_MS


def test_after_a_pause_a_broken_command_of_one_person_begins_no_other_one() -> None:
    story = on_n1()
    fail(story), fail(story), fail(story)
    story.wait(MINUTE_MS).deadlines()
    for _ in range(5):
        fail(story, cause=EndCause.START_FAILED)
    assert not paused(story)
    fail(story)
    assert paused(story)


def test_a_start_that_was_under_way_neither_ends_a_pause_nor_makes_it_longer() -> None:
    story = on_n1()
    slow, late = story.submit(spec(1)), story.submit(spec(1))
    story.place(slow, ("n1", 6))
    story.place(late, ("n1", 7))
    fail(story), fail(story), fail(story)
    before = story.state.nodes[N1]
    story.started(slow)
    story.end(late, cause=EndCause.NEVER_STARTED)
    assert story.state.nodes[N1] == before


def test_a_person_ends_it_at_once_with_all_that_led_to_it() -> None:
    story = on_n1()
    fail(story), fail(story), fail(story)
    assert story.do(ResumeNode(by=ANNA, node=N1)) == (NodeResumed(node=N1),)
    assert story.state.node_state(N1) is NodeState.READY
    assert (story.state.nodes[N1].failed_starts, story.state.nodes[N1].pauses) == ((), 0)
    assert story.do(ResumeNode(by=ANNA, node=N1)) == ()


def test_a_drain_is_shown_before_a_pause_and_both_end_with_a_resume() -> None:
    story = on_n1()
    story.do(DrainNode(by=ANNA, node=N1, reason="fan"))
    story.do(ResumeNode(by=ANNA, node=N1))
    fail(story), fail(story), fail(story)
    story.do(DrainNode(by=ANNA, node=N1, reason="fan"))
    assert story.state.node_state(N1) is NodeState.DRAINED
    story.do(ResumeNode(by=ANNA, node=N1))
    assert story.state.nodes[N1].takes_work


def test_a_node_that_was_forgotten_and_comes_back_begins_anew() -> None:
    story = on_n1()
    fail(story), fail(story), fail(story)
    story.forget("n1")
    assert not story.state.indexes.paused
    story.node("n1")
    assert story.state.nodes[N1].takes_work


def test_who_fits_only_on_a_node_in_a_pause_is_told_until_when_and_why() -> None:
    from stoker.brain.engine.decide import decide
    from stoker.brain.state.state_view import StateView

    story = on_n1()
    fail(story), fail(story), fail(story)
    job = story.submit(spec(1))
    plan = decide(StateView(story.state), story.state.policy, story.now, 1, 10)
    reason = plan.reasons[story.job(job).spec.shape]
    assert reason.code is ReasonCode.NODES_PAUSED
    assert describe(reason) == (
        "1 node that could run it takes a pause, since starts failed there in a row: n1 until "
        "1970-01-01 00:17:40 UTC (no space left on device)"
    )


def test_a_pause_is_in_log_and_snapshot() -> None:
    story = on_n1()
    fail(story), fail(story), fail(story)
    kinds = [type(decode_fact(record).event) for record in story.log]
    assert (kinds.count(StartFailed), kinds.count(NodePaused)) == (2, 1)
    replayed = ClusterState()
    for position, record in enumerate(story.log, start=1):
        apply(replayed, decode_fact(record), Position(position))
    for again in (replayed, load_snapshot(snapshot_chunks(story.state))):
        assert again.nodes == story.state.nodes
        assert again.indexes.next_deadline() == story.state.indexes.next_deadline()
