"""Operations on jobs that filters select: S1 to S4 of `cli.job_selection`."""

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.lifecycle import JobState
from stoker.cli import job_selection
from stoker.cli.commands import job_operations
from stoker.cli.main import root
from stoker.wire.client import JobListQuery
from stoker.wire.rest.job import JobListView, JobsToldView, JobView, MembersView
from tests.cli.views import job

NONE = MembersView(total=0, pending=0, held=0, starting=0, running=0, stopping=0, succeeded=0, failed=0, cancelled=0)
Run = Callable[..., Result]


class Server:
    """Lists these jobs, whatever is asked for, and remembers what it was told."""

    def __init__(self, *jobs: JobView) -> None:
        self.rows = list(jobs)
        self.asked: list[JobListQuery] = []
        self.told: list[str] = []
        self.gone: set[str] = set()

    def jobs(self, query: JobListQuery) -> JobListView:
        self.asked.append(query)
        return JobListView(jobs=self.rows[: query.limit], total=len(self.rows), limit=query.limit, next=None)

    def cancel(self, job_id: str) -> JobsToldView:
        self.told.append(job_id)
        if job_id in self.gone:
            raise StokerError(refuse("job_ended", f"job {job_id} has ended", ""))
        return JobsToldView(jobs=[job(int(job_id), state=JobState.CANCELLED)], total=1, changed=1)

    hold = requeue = cancel


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    def invoke(server: Server, *words: str, **given: Any) -> Result:  # noqa: ANN401  # of CliRunner.invoke
        monkeypatch.setattr(job_operations, "connect", lambda: server)
        return CliRunner().invoke(root, list(words), **given)

    return invoke


@pytest.mark.parametrize("words", [("cancel",), ("cancel", "7", "--mine"), ("cancel", "--name", ""), ("signal", "7")])
def test_s1_ids_or_filters_and_never_both_or_neither(run: Run, words: tuple[str, ...]) -> None:
    server = Server(job(7))
    assert run(server, *words, "--yes").exit_code == 2
    assert server.told == []


def test_s2_without_a_terminal_it_is_shown_and_not_done_unless_yes_is_said(run: Run) -> None:
    server = Server(job(7, name="train-1"), job(8, name="train-2"))
    done = run(server, "cancel", "--mine", "--name", "train-*")
    assert (done.exit_code, server.told) == (2, [])
    assert "train-1" in done.stderr
    assert "these 2 jobs would be cancelled; without a terminal to ask at, say --yes" in done.stderr
    done = run(server, "cancel", "--mine", "--name", "train-*", "--yes")
    assert (done.exit_code, server.told) == (0, ["7", "8"])
    assert done.stdout == "job 7 is cancelled\njob 8 is cancelled\n", "what was shown first is no answer"
    assert (server.asked[-1].mine, server.asked[-1].name, server.asked[-1].members) == (True, "train-*", False)


@pytest.mark.parametrize(("answer", "told"), [("y\n", ["7"]), ("n\n", []), ("\n", [])])
def test_s2_at_a_terminal_a_person_is_asked(
    run: Run, monkeypatch: pytest.MonkeyPatch, answer: str, told: list[str]
) -> None:
    monkeypatch.setattr(job_selection, "can_ask", lambda: True)
    server = Server(job(7))
    done = run(server, "cancel", "--mine", input=answer)
    assert (done.exit_code, server.told) == (0, told)


def test_s3_with_a_state_members_are_selected_one_by_one(run: Run) -> None:
    server = Server(job(7))
    run(server, "cancel", "--state", "pending", "--yes")
    assert (server.asked[0].members, server.asked[0].state) == (True, "pending")


def test_s4_a_job_that_has_ended_meanwhile_is_told_and_the_others_are_done(run: Run) -> None:
    server = Server(job(7), job(8))
    server.gone = {"7"}
    done = run(server, "cancel", "--mine", "--yes")
    assert (done.exit_code, server.told) == (0, ["7", "8"])
    assert "not touched: job 7 has ended" in done.stderr
    assert run(server, "cancel", "7").exit_code == 4, "whoever names it is refused"


def test_more_jobs_than_may_be_selected_are_refused_before_the_first_is_touched(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_selection, "SELECTED_MAX", 2)
    server = Server(job(7), job(8), job(9))
    done = run(server, "cancel", "--mine", "--yes")
    assert (done.exit_code, server.told) == (2, [])
    assert "more than 2 jobs match" in done.stderr


def test_an_operation_selects_only_jobs_to_which_it_can_do_something(run: Run) -> None:
    waits = MembersView(**{name: getattr(NONE, name) for name in NONE.__struct_fields__} | {"total": 2, "pending": 2})
    jobs = job(1, state=JobState.RUNNING), job(2, state=JobState.PENDING), job(3, state=JobState.RUNNING, members=waits)
    server = Server(*jobs, job(4, state=JobState.RUNNING, members=NONE))
    run(server, "hold", "--mine", "--yes")
    assert server.told == ["2", "3"]


def test_where_nothing_matches_that_is_said_and_nothing_is_asked(run: Run) -> None:
    done = run(Server(), "cancel", "--user", "ada")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "no jobs match that could be cancelled" in done.stderr
