"""Output of several tasks at once: O5 and O6 of `cli.log_reader`."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from stoker.brain.domain.job import EndCause
from stoker.brain.domain.lifecycle import JobState
from stoker.cli import log_reader
from stoker.cli.log_reader import LINE_BYTES_MAX, Headings, LogReader, RankPrefix, Source, follow_together
from stoker.wire.client import LogPart, LogQuery
from stoker.wire.rest.job import JobView
from tests.cli.views import attempt, job, task

RUNNING = job(7, state=JobState.RUNNING, attempts=(attempt(1, tasks=(task(0), task(1))),))
NOTHING = LogPart(b"", 0, 0, True)


class Gang:
    """Each rank writes one piece after another, a piece at each read."""

    def __init__(self, *pieces: list[bytes], view: JobView = RUNNING) -> None:
        self._pieces: list[Iterator[bytes]] = [iter(each) for each in pieces]
        self._written = [0] * len(pieces)
        self._view = view

    def job(self, job_id: str) -> JobView:
        return self._view

    def logs(self, job_id: str, query: LogQuery) -> LogPart:
        assert query.wait_s == 0, "while one rank waits the others could not be asked"
        data = next(self._pieces[query.rank], None)
        at = self._written[query.rank]
        self._written[query.rank] += len(data or b"")
        return LogPart(data or b"", at, self._written[query.rank], data is None)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was waited for, in virtual seconds."""
    slept: list[float] = []
    monkeypatch.setattr(log_reader, "sleep_blocking", slept.append)
    monkeypatch.setattr(log_reader, "mono_s", lambda: sum(slept))
    return slept


def test_o5_lines_of_several_ranks_go_out_whole_each_with_its_rank(
    pauses: list[float], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    gang = Gang([b"a", b"b\nc", b"\n"], [b"1\n2\n", b"", b"3"])
    prefixes = [RankPrefix(rank) for rank in range(2)]
    readers = [LogReader(gang, "7", rank, prefixes[rank], alone=False) for rank in range(2)]  # type: ignore[arg-type]  # only these two are asked
    follow_together(readers, 1, None)
    for prefix in prefixes:
        prefix.close()
    lines = capsysbinary.readouterr().out.decode().splitlines()
    assert [line for line in lines if line[0] == "0"] == ["0| ab", "0| c"]
    assert [line for line in lines if line[0] == "1"] == ["1| 1", "1| 2", "1| 3"]
    assert lines.index("1| 1") < lines.index("0| c"), "they come as they are written"


def test_o5_a_line_without_an_end_is_held_up_to_a_bound(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    prefix = RankPrefix(3)
    prefix(b"x" * LINE_BYTES_MAX)
    assert capsysbinary.readouterr().out == b""
    prefix(b"y")
    assert capsysbinary.readouterr().out == b"3| " + b"x" * LINE_BYTES_MAX + b"y\n"


def test_o5_a_heading_stands_wherever_the_output_goes_on_with_another_job(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    headings = Headings()
    one, other = (headings.writer(Source(name, 0), name) for name in ("7", "8"))
    for write, data in ((one, b"a\n"), (one, b"b\n"), (other, b""), (other, b"c\n"), (one, b"d\n")):
        write(data)
    said = capsysbinary.readouterr().out.decode()
    assert said == "==> job 7 <==\na\nb\n\n==> job 8 <==\nc\n\n==> job 7 <==\nd\n"


def test_o6_of_a_task_that_never_had_a_process_it_is_said_why(capsys: pytest.CaptureFixture[str]) -> None:
    end = replace(task(0, "gpu-4", end="2026-11-28T00:00:02Z"), cause=EndCause.START_FAILED, error="no such file")
    view = job(7, state=JobState.FAILED, attempts=(attempt(1, tasks=(end,)),))
    LogReader(Gang([], view=view), "7", 0).copy(0, None)  # type: ignore[arg-type]  # only these two are asked
    assert capsys.readouterr().err == "(job 7 never had a process: start_failed on gpu-4: no such file)\n"


def test_o6_of_a_task_that_wrote_nothing_it_is_said_whether_more_may_come(capsys: pytest.CaptureFixture[str]) -> None:
    LogReader(Gang([]), "7", 0).copy(0, None)  # type: ignore[arg-type]  # only these two are asked
    assert capsys.readouterr().err == "(job 7 has written nothing yet)\n"
    LogReader(Gang([b"a"]), "7", 0).copy(0, None)  # type: ignore[arg-type]  # only these two are asked
    assert capsys.readouterr().err == ""
