"""What do the columns of a list say about time?"""

from msgspec import structs

from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.brain.domain.reason import ReasonCode
from stoker.cli.display.formatting import instant_ms, note_line, ran, waited, waited_in_all
from stoker.wire.rest.job import MembersView, ReasonView
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


def test_the_members_of_an_array_that_has_ended_are_counted_once_beside_it() -> None:
    members = MembersView(
        total=3, pending=0, held=0, starting=0, running=0, stopping=0, succeeded=2, failed=1, cancelled=0
    )
    why = ReasonView(ReasonCode.MEMBERS_ENDED, "its members have ended: 2 succeeded, 1 failed", "", {})
    assert note_line(job(members=members, reason=why)) == "3 members, 2 succeeded, 1 failed"


def test_a_job_that_waits_again_has_waited_since_it_was_requeued_and_says_the_sum_where_its_details_are() -> None:
    first = structs.replace(attempt(outcome=Outcome.PREEMPTED), started_at=at(1), ended_at=at(5))
    again = structs.replace(job(), state=JobState.PENDING, started_at=at(1), ended_at=None, attempts=[first])
    assert waited(again, instant_ms(at(50))) == "45s"
    assert waited_in_all(again, instant_ms(at(50))) == "45s, 46s in all"
    second = structs.replace(attempt(), number=2, started_at=at(30), ended_at=None)
    runs = structs.replace(again, state=JobState.RUNNING, attempts=[first, second])
    assert waited(runs, instant_ms(at(50))) == "25s"
    assert waited_in_all(job(attempts=(first,)), instant_ms(at(50))) == "1s"
