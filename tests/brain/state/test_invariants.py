"""What the audit must not take for a bug, and what it must."""

from msgspec.structs import replace

from stoker.brain.domain.ids import CONTROL, Epoch
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.policy import Policy
from stoker.brain.state.commands import BeginEpoch
from stoker.brain.state.invariants import violations
from tests.brain.state.story import Story


def test_a_bound_that_was_lowered_breaks_no_truth_about_what_was_before() -> None:
    story = Story()
    story.node("n1", 1)
    job = story.submit()
    for _ in range(2):
        story.run(job, ("n1", 0))
        story.end(job, cause=EndCause.RUNNER_LOST)
        story.wait(60_000).all_due()
    assert story.job(job).requeues_used == 2
    story.do(BeginEpoch(by=CONTROL, epoch=Epoch(2), policy=Policy(requeues_max=1)))  # checks every truth
    story.state.put_job(replace(story.job(job), requeues_used=3))
    assert "more tries used than were made" in violations(story.state)[0]
