"""What is said of a job after an order?"""

from msgspec import structs

from stoker.brain.domain.lifecycle import JobState
from stoker.cli.commands.job_operations import state_line
from stoker.wire.rest.job import MembersView
from tests.cli.views import job

NONE = MembersView(total=0, pending=0, held=0, starting=0, running=0, stopping=0, succeeded=0, failed=0, cancelled=0)


def test_a_job_is_said_to_be_what_it_is() -> None:
    assert state_line(job(7, state=JobState.STOPPING)) == "job 7 is stopping"


def test_an_array_whose_members_have_all_ended_is_not_called_held_or_pending() -> None:
    """Cancelling all of a held array said `job 7 is held: 9 members, 9 cancelled`."""
    gone = structs.replace(NONE, total=9, cancelled=9)
    assert state_line(job(7, state=JobState.HELD, members=gone)) == "job 7: 9 members, 9 cancelled"
    some = structs.replace(NONE, total=9, cancelled=8, stopping=1)
    assert (
        state_line(job(7, state=JobState.RUNNING, members=some))
        == "job 7 is running: 9 members, 1 stopping, 8 cancelled"
    )
