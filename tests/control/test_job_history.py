"""The order of a job's story where all of it happened in one millisecond (S3), and what isn't in it (S4)."""

from msgspec.structs import replace

from stoker.brain.domain.audit import OK, AuditRow
from stoker.brain.domain.ids import JobId, Position, Principal
from stoker.brain.domain.job import StopCause
from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.brain.domain.plan import Plan, Preempt, Victim
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.control.queries.job_history import story_of
from tests.brain.state.story import Story, settle_all, spec
from tests.builders import NOW, job


def row(position: int, action: str, outcome: str = OK, number: int = 0) -> AuditRow:
    return AuditRow(
        position=Position(position),
        number=number,
        at=NOW,
        by=Principal("user:anna"),
        action=action,
        outcome=outcome,
        job=JobId(1),
    )


def test_what_an_order_made_happen_stands_behind_it() -> None:
    ended = replace(job(1), state=JobState.CANCELLED, ended_at=NOW, reason=Reason(ReasonCode.CANCELLED, {"by": "anna"}))
    rows = [row(2, "hold"), row(3, "cancel")]
    assert [view.event for view in story_of(ended, rows)] == ["submitted", "hold", "cancel", "finished"]


def test_s4_what_was_refused_or_changed_nothing_has_no_place_in_the_story() -> None:
    ended = replace(job(1), state=JobState.SUCCEEDED, ended_at=NOW, exit_code=0)
    rows = [row(4, "cancel", "job_ended", 1), row(4, "requeue", "not_allowed", 2), row(4, "hold", "unchanged", 3)]
    assert [view.event for view in story_of(ended, rows)] == ["submitted", "finished"]


def test_the_story_of_a_job_that_gave_way_says_for_whom_and_that_it_waits_again() -> None:
    story = Story()
    story.node("n1", 1)
    low = story.submit(spec(priority=100, preemptible=True))
    story.run(low, ("n1", 0))
    high = story.submit(spec(priority=1_000))
    places = tuple(task.placement for task in story.job(low).attempts[0].tasks)
    preempt = Preempt(job=high, tasks=places, victims=(Victim(low, 1),), cause=StopCause.PREEMPTED)
    settle_all(story, Plan(actions=(preempt,), reasons={}))
    story.end(low, exit_code=0)
    told = {view.event: view for view in story_of(story.job(low), [])}
    assert (told["stopping"].cause, told["stopping"].details) == (StopCause.PREEMPTED, f"for job {high}")
    assert told["ended"].outcome is Outcome.PREEMPTED
    assert list(told)[-1] == "requeued"
