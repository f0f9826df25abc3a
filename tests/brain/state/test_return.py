"""A node gets new work once it has said what it runs to the control plane that leads now: C6 of `admit.node`."""

import pytest

from stoker.brain.cycle import propose
from stoker.brain.domain.ids import CONTROL, Epoch, NodeName
from stoker.brain.domain.lifecycle import JobState, NodeState
from stoker.brain.domain.plan import Plan
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import ReasonCode
from stoker.brain.state.admit.plan import admit_place
from stoker.brain.state.codec import load_snapshot, snapshot_chunks
from stoker.brain.state.commands import BeginEpoch, DrainNode, ForgetNode, NodeSilent
from stoker.brain.state.events.node import NodeReachable, NodeReturned, OrphanTasksFound
from stoker.brain.state.invariants import violations
from stoker.brain.state.state_view import StateView
from tests.brain.state.story import ANNA, Story

N1, N2 = NodeName("n1"), NodeName("n2")


def taken_over(*nodes: str) -> Story:
    """Another control plane leads, and has heard of nobody yet."""
    story = Story()
    for name in nodes or ("n1", "n2"):
        story.node(name, 4)
    take_over(story)
    return story


def take_over(story: Story) -> None:
    story.do(BeginEpoch(by=CONTROL, epoch=Epoch(story.state.epoch + 1), policy=Policy()))


def plan(story: Story) -> Plan:
    return propose(StateView(story.state), story.state.policy, story.now, 1, 1_000)


def why(story: Story) -> ReasonCode:
    """Of the only job that waits."""
    (reason,) = plan(story).reasons.values()
    return reason.code


def test_nothing_is_placed_on_a_node_that_has_not_returned_and_the_wait_says_so() -> None:
    story = taken_over()
    job = story.submit()
    assert story.decide() == []
    assert why(story) is ReasonCode.NODES_RETURNING
    assert story.compare("n2") == (NodeReturned(node=N2),)
    assert story.decide() == [str(job)]
    assert story.job(job).attempts[0].tasks[0].placement.node == N2


def test_a_plan_made_before_the_take_over_is_stale() -> None:
    story = Story()
    story.node("n1", 4)
    story.submit()
    (place,) = plan(story).actions
    assert admit_place(story.state, place) is None
    take_over(story)
    refusal = admit_place(story.state, place)
    assert refusal is not None
    assert refusal.message == "node n1 takes no new work"


def test_a_take_over_changes_neither_the_state_of_a_node_nor_what_runs_there_nor_what_is_said_to_be_free() -> None:
    story = Story()
    story.node("n1", 4)
    job = story.submit()
    story.run(job, ("n1", 0))
    before = story.job(job), story.free_gpus("n1"), story.state.indexes.milli_in_service
    take_over(story)
    assert (story.job(job), story.free_gpus("n1"), story.state.indexes.milli_in_service) == before
    assert story.state.node_state(N1) is NodeState.READY
    assert (story.state.nodes[N1].schedulable, story.state.nodes[N1].takes_work) == (True, False)


def test_a_node_returns_once_in_an_epoch_and_again_in_the_next() -> None:
    story = taken_over("n1")
    assert story.compare("n1") == (NodeReturned(node=N1),)
    assert story.compare("n1") == ()
    take_over(story)
    assert story.compare("n1") == (NodeReturned(node=N1),)


def test_strays_are_known_before_the_node_that_runs_them_gets_new_work() -> None:
    story = Story()
    story.node("n1", 4)
    job = story.submit()
    story.run(job, ("n1", 0))
    stray = story.status(job)
    story.end(job)
    take_over(story)
    assert [type(event) for event in story.compare("n1", stray)] == [OrphanTasksFound, NodeReturned]
    assert story.free_gpus("n1") == 3


@pytest.mark.parametrize("when", ["before the take-over", "after it"])
def test_a_node_that_is_unreachable_comes_back_by_one_fact(when: str) -> None:
    story = Story()
    story.node("n1", 4)
    if when == "after it":
        take_over(story)
    story.do(NodeSilent(by=CONTROL, node=N1))
    if when == "before the take-over":
        take_over(story)
    assert story.state.node_state(N1) is NodeState.UNREACHABLE
    assert story.compare("n1") == (NodeReachable(node=N1),)
    assert story.state.nodes[N1].takes_work
    assert story.compare("n1") == ()


def test_a_drained_node_that_returns_stays_drained() -> None:
    story = taken_over("n1")
    story.do(DrainNode(by=ANNA, node=N1, reason="disk"))
    story.compare("n1")
    assert story.state.node_state(N1) is NodeState.DRAINED
    assert not story.state.nodes[N1].takes_work


def test_a_forgotten_node_is_not_waited_for_and_joins_as_a_new_one() -> None:
    story = Story()
    story.node("n1", 4)
    story.do(ForgetNode(by=ANNA, node=N1, force=True))
    take_over(story)
    job = story.submit()
    assert why(story) is ReasonCode.NODES_UNAVAILABLE
    story.node("n1", 4)
    assert story.decide() == [str(job)]


def test_a_job_that_waits_for_others_work_is_not_said_to_wait_for_a_node() -> None:
    story = Story()
    story.node("n1", 4)
    for gpu in range(4):
        story.run(story.submit(), ("n1", gpu))
    take_over(story)
    story.submit()
    assert why(story) is ReasonCode.INSUFFICIENT_GPUS


def test_a_snapshot_keeps_who_has_returned() -> None:
    story = taken_over()
    story.compare("n2")
    loaded = load_snapshot(snapshot_chunks(story.state))
    assert violations(loaded) == []
    assert dict(StateView(loaded).returning) == {N1: loaded.indexes.free[N1]}
    assert list(StateView(loaded).free) == [N2]


def test_what_started_before_a_take_over_goes_on_to_its_end_whoever_has_returned() -> None:
    story = Story()
    story.node("n1", 4)
    job = story.submit()
    story.place(job, ("n1", 0))
    take_over(story)
    story.compare("n1", story.status(job))
    assert story.job(job).state is JobState.RUNNING
    take_over(story)
    story.end(job)
    assert story.job(job).state is JobState.SUCCEEDED
