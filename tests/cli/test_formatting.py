"""What do the columns of a list say about time?"""

from msgspec import structs

from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.cli.display.formatting import instant_ms, ran
from tests.cli.views import at, attempt, job


def test_a_job_that_waits_again_does_not_go_on_running() -> None:
    """It was requeued: the span ends where its last attempt did, however long it waits since."""
    first = structs.replace(attempt(outcome=Outcome.SUCCEEDED), ended_at=at(5))
    for state in (JobState.PENDING, JobState.HELD):
        again = structs.replace(job(), state=state, started_at=at(1), ended_at=None, attempts=[first])
        assert ran(again, instant_ms(at(50))) == "4s"


def test_a_job_that_runs_is_measured_to_now() -> None:
    live = structs.replace(job(), state=JobState.RUNNING, started_at=at(1), ended_at=None, attempts=[attempt()])
    assert ran(live, instant_ms(at(11))) == "10s"
