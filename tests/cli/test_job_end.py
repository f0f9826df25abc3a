"""What a shell learns from a command that waited."""

import msgspec
import pytest

from stoker.brain.domain.job import EndCause
from stoker.brain.domain.lifecycle import FINAL, JobState, Outcome
from stoker.brain.domain.reason import ReasonCode
from stoker.cli.job_end import EXIT_OF_STATE, end_line, exit_of, perhaps_submitted
from stoker.wire.rest.job import AttemptView, JobView, MembersView, ReasonView, TaskRunView
from tests.cli.views import at, attempt, job, task


def ended(state: JobState, exit_code: int | None = None, **of_task: object) -> JobView:
    last: TaskRunView = msgspec.structs.replace(task(), ended_at="2026-11-28T00:00:02.000Z", **of_task)
    tries: AttemptView = msgspec.structs.replace(attempt(), tasks=[task(), last], outcome=Outcome.FAILED)
    return msgspec.structs.replace(job(), state=state, exit_code=exit_code, attempts=[tries])


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_an_exit_code_is_passed_on(code: int) -> None:
    assert exit_of(ended(JobState.SUCCEEDED if code == 0 else JobState.FAILED, code)) == code


def test_a_signal_is_told_as_a_shell_tells_it() -> None:
    assert exit_of(ended(JobState.FAILED, cause=EndCause.EXITED, signal=9)) == 137


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (JobState.TIMEOUT, 124),
        (JobState.NODE_FAILED, 125),
        (JobState.FAILED, 126),
        (JobState.OUT_OF_MEMORY, 137),
        (JobState.CANCELLED, 143),
    ],
)
def test_each_end_of_ours_has_a_status_of_its_own(state: JobState, status: int) -> None:
    assert exit_of(ended(state)) == status


def test_the_signal_with_which_we_ended_a_job_is_not_taken_for_its_own() -> None:
    assert exit_of(ended(JobState.TIMEOUT, cause=EndCause.STOPPED, signal=15)) == 124


def test_a_job_that_never_ran_has_a_status_too() -> None:
    assert exit_of(msgspec.structs.replace(job(), state=JobState.CANCELLED, attempts=[])) == 143


def test_every_final_state_has_a_status_and_only_success_is_0() -> None:
    assert set(EXIT_OF_STATE) == {state.value for state in FINAL}
    assert [state for state, status in EXIT_OF_STATE.items() if status == 0] == ["succeeded"]


def test_an_array_of_which_a_member_failed_has_failed() -> None:
    counts = dict.fromkeys(("pending", "held", "starting", "running", "stopping", "cancelled"), 0)
    members = MembersView(total=2, succeeded=1, failed=1, **counts)
    assert exit_of(job(state=JobState.FAILED, members=members, exit_code=None)) == 1
    assert exit_of(job(state=JobState.SUCCEEDED, members=members, exit_code=None)) == 0


def test_who_waits_no_longer_for_the_answer_to_a_submit_is_told_that_it_may_have_been_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(KeyboardInterrupt), perhaps_submitted():
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "\nno answer came: it may have been submitted; look with `stoker list`\n"


def failed_gang(**facts: object) -> JobView:
    told = ReasonView(code=ReasonCode.EXITED, message="rank 2 on gpu-4 exited with code 1 first", hint="", facts=facts)  # type: ignore[arg-type]  # given by name
    return msgspec.structs.replace(ended(JobState.FAILED, 1), tasks=4, reason=told, started_at=at(1), ended_at=at(2))


def test_the_end_of_a_gang_names_the_rank_that_failed_first_its_node_and_its_logs() -> None:
    line = end_line(failed_gang(rank=2))
    assert line == "job 1 failed after 1s: rank 2 on gpu-4 exited with code 1 first; logs: `stoker logs 1.2`"


def test_of_a_success_it_is_said_how_long_it_took_and_of_a_job_that_never_started_no_logs_are_named() -> None:
    done = msgspec.structs.replace(ended(JobState.SUCCEEDED, 0), started_at=at(1), ended_at=at(2))
    assert end_line(done) == "job 1 succeeded after 1s"
    assert "logs" not in end_line(msgspec.structs.replace(failed_gang(), attempts=[]))
    assert "see `stoker status 1`" in end_line(msgspec.structs.replace(failed_gang(), attempts=[]))


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
def test_the_end_of_an_array_leads_to_the_members_that_ended_so(state: JobState) -> None:
    """None of a cancelled array need have failed."""
    counts = dict.fromkeys(("pending", "held", "starting", "running", "stopping", "failed"), 0)
    array = job(state=state, members=MembersView(total=3, succeeded=1, cancelled=2, **counts), exit_code=None)
    assert end_line(array).endswith(f"; see `stoker list 1 --state {state.value}`")
