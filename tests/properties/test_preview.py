"""Previews: what one says of a job is what the next pass does with it, once it is submitted."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.brain.cycle import propose, settle
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.lifecycle import LIVE, JobState
from stoker.brain.preview import preview
from stoker.brain.state.admit.dispatch import admit
from stoker.brain.state.codec import load_snapshot, snapshot_chunks
from stoker.brain.state.commands import Submit
from stoker.brain.state.state_view import StateView
from tests.brain.state.story import ANNA
from tests.properties.test_alternatives import any_spec, any_story, carry_out


@settings(max_examples=60)
@given(st.integers(0, 1 << 32))
def test_a_preview_says_what_the_next_pass_does(seed: int) -> None:
    dice = Random(seed)
    story = any_story(dice)
    command = Submit(by=ANNA, specs=(any_spec(dice),))
    before = b"".join(snapshot_chunks(story.state))
    told = preview(story.state, command, story.now)
    assert b"".join(snapshot_chunks(story.state)) == before, "nothing is changed"
    state = load_snapshot(list(snapshot_chunks(story.state)))
    answer = admit(state, command, story.now, lambda: "uid")
    if isinstance(told, Refusal):
        assert answer == told
        return
    assert not isinstance(answer, Refusal)
    carry_out(state, story, *answer)
    plan = propose(StateView(state), state.policy, story.now, 0, state.policy.placements_per_pass_max)
    for events in settle(state, plan, decided_at=state.position, seed=0):
        carry_out(state, story, *events)
    job = state.jobs[told.job.id]
    assert (job.state in LIVE) == (bool(told.nodes) and not told.victims)
    if told.nodes and not told.victims:
        attempt = job.live_attempt
        assert attempt is not None
        assert tuple(task.placement.node for task in attempt.tasks) == told.nodes
    if not told.nodes:
        assert job.state is JobState.PENDING
        assert told.reason is not None
