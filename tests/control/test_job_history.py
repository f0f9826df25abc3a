"""The order of a job's story where all of it happened in one millisecond (S3)."""

from msgspec.structs import replace

from stoker.brain.domain.audit import OK, AuditRow
from stoker.brain.domain.ids import JobId, Position, Principal
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.control.queries.job_history import story_of
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


def test_what_an_order_made_happen_stands_behind_it_and_before_an_order_that_came_too_late() -> None:
    ended = replace(job(1), state=JobState.CANCELLED, ended_at=NOW, reason=Reason(ReasonCode.CANCELLED, {"by": "anna"}))
    rows = [row(2, "hold"), row(2, "hold", "unchanged", 1), row(3, "cancel"), row(4, "cancel", "job_ended", 2)]
    told = [(view.event, view.code) for view in story_of(ended, rows)]
    assert [event for event, _ in told] == ["submitted", "hold", "hold", "cancel", "finished", "cancel"]
    assert told[-1][1] == "job_ended"


def test_an_order_that_was_refused_stands_behind_an_end_that_nobody_ordered() -> None:
    ended = replace(job(1), state=JobState.SUCCEEDED, ended_at=NOW, exit_code=0)
    told = [view.event for view in story_of(ended, [row(4, "cancel", "job_ended", 1)])]
    assert told == ["submitted", "finished", "cancel"]
