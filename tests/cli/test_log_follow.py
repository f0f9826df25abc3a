"""Following output through trouble: O2 to O4 of `cli.log_reader`, with a server that answers as the test says."""

from collections.abc import Callable
from typing import TypeAlias

import pytest

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.cli import log_reader
from stoker.cli.log_reader import UNREACHABLE_S_MAX, LogReader
from stoker.wire.client import LogPart, LogQuery
from stoker.wire.rest.job import JobView
from tests.cli.views import attempt, job

RUNNING = job(state=JobState.RUNNING, attempts=(attempt(1),))
OVER = job(state=JobState.SUCCEEDED, attempts=(attempt(1, Outcome.SUCCEEDED),))


class Server:
    """Answers reads one after the other, the last one for ever; a text is the code of a refusal."""

    def __init__(self, *answers: LogPart | str) -> None:
        self.answers = list(answers)
        self.view: JobView = RUNNING
        self.asked: list[LogQuery] = []

    def job(self, job_id: str) -> JobView:
        return self.view

    def logs(self, job_id: str, query: LogQuery) -> LogPart:
        self.asked.append(query)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, str):
            raise StokerError(refuse(answer, f"it is {answer}", "wait", status=502 if answer == "bad_answer" else 0))
        return answer


class Story:
    """A follower on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes], server: Server) -> None:
        self.now_s = 0.0
        self.server = server
        self._capture = capture
        monkeypatch.setattr(log_reader, "sleep_blocking", self._pause)
        monkeypatch.setattr(log_reader, "mono_s", lambda: self.now_s)

    def _pause(self, seconds: float) -> None:
        self.now_s += seconds

    def follow(self, attempt: int | None = 1, tail: int | None = None) -> tuple[bytes, bytes]:
        """What it printed, and what it said."""
        LogReader(self.server, "1", 0).follow(attempt, tail)  # type: ignore[arg-type]  # only these two are asked
        printed = self._capture.readouterr()
        return printed.out, printed.err

    def refused(self) -> str:
        with pytest.raises(StokerError) as fault:
            self.follow()
        return fault.value.refusal.code


Tell: TypeAlias = Callable[..., Story]


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Tell:
    return lambda *answers: Story(monkeypatch, capsysbinary, Server(*answers))


def part(data: bytes, offset: int = 0, *, ended: bool = False) -> LogPart:
    return LogPart(data, offset, offset + len(data), ended)


def test_each_part_is_asked_for_where_the_last_one_ended_and_the_server_waits(tell: Tell) -> None:
    story = tell(part(b"one\n"), part(b"two\n", 4), part(b"", 8, ended=True))
    assert story.follow() == (b"one\ntwo\n", b"")
    assert [query.offset for query in story.server.asked] == [0, 4, 8]
    assert all(query.wait_s for query in story.server.asked)


def test_bytes_that_were_not_kept_are_counted_also_where_none_came(tell: Tell) -> None:
    story = tell(part(b"head"), part(b"", 1_000), part(b"tail\n", 1_500), part(b"", 1_505, ended=True))
    assert story.follow() == (b"headtail\n", b"(996 bytes were not kept)\n(500 bytes were not kept)\n")


@pytest.mark.parametrize("code", ["no_server", "no_answer", "bad_answer", "not_active", "stopping"])
def test_what_its_client_has_not_waited_out_ends_it(tell: Tell, code: str) -> None:
    """One policy for all: `wire.client.retry`."""
    story = tell(part(b"one\n"), code)
    assert story.refused() == code
    assert story.now_s == 0


def test_a_node_that_is_away_is_named_and_waited_for_while_the_attempt_goes_on(tell: Tell) -> None:
    story = tell(*["node_unreachable"] * 200, part(b"one\n"), part(b"", 4, ended=True))
    assert story.follow() == (b"one\n", b"(it is node_unreachable; waiting for it)\n")
    assert story.now_s > UNREACHABLE_S_MAX


def test_a_node_that_stays_away_after_the_end_is_told_in_the_end(tell: Tell) -> None:
    story = tell("node_unreachable")
    story.server.view = OVER
    assert story.refused() == "node_unreachable"
    assert UNREACHABLE_S_MAX < story.now_s < UNREACHABLE_S_MAX + 10


def test_output_that_an_ended_attempt_does_not_have_is_told_at_once(tell: Tell) -> None:
    story = tell("log_unavailable")
    story.server.view = OVER
    assert story.refused() == "log_unavailable"
    assert story.now_s == 0


def test_an_attempt_that_is_over_ends_it_also_where_its_node_never_says_so(tell: Tell) -> None:
    """Once more is read after it is known to be over, since the last bytes may come in between."""
    story = tell(part(b"one\n"), part(b"", 4), part(b"last\n", 4), part(b"", 9))
    story.server.view = OVER
    assert story.follow() == (b"one\nlast\n", b"")


def test_a_refusal_that_no_time_lifts_ends_it(tell: Tell) -> None:
    assert tell(part(b"one\n"), "several_jobs").refused() == "several_jobs"


def test_a_server_that_has_no_time_to_wait_is_not_asked_without_pause(tell: Tell) -> None:
    story = tell(part(b"one\n"), *[part(b"", 4)] * 50, part(b"", 4, ended=True))
    story.follow()
    assert story.now_s >= 50 * log_reader.POLL_S * 0.99


def test_a_job_that_ended_unborn_has_nothing_to_show(tell: Tell) -> None:
    story = tell("not_started")
    story.server.view = job(state=JobState.CANCELLED)
    assert story.follow(attempt=None) == (b"", b"")
