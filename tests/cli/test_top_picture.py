"""What the live view shows of a cluster, at any width."""

import click
import pytest

from stoker.brain.domain.lifecycle import JobState
from stoker.cli.display.safe_text import width
from stoker.cli.top.app import JobLook
from stoker.cli.top.picture import (
    BAR_MAX,
    gpu_bar,
    job_page,
    job_sheet,
    log_lines,
    matching,
    node_page,
    node_sheet,
    rule_title,
    summary_line,
)
from stoker.wire.rest.job import JobView
from tests.cli.views import at, attempt, cluster, gpu, job, node, task, why

LONG = "a very long name that no column was made for " * 3


def running(number: int = 7, **changes: object) -> JobView:
    tried = attempt(tasks=(task(0, "node-1", ("GPU-1",)),))
    return job(number, state=JobState.RUNNING, attempts=(tried,), ended_at=None, exit_code=None, **changes)  # type: ignore[arg-type]  # as the view has them


@pytest.mark.parametrize("room", [78, 100, 158])
def test_every_line_fits_its_room_whatever_names_and_reasons_there_are(room: int) -> None:
    jobs = [running(name=LONG), job(8, name="训练" * 40), job(123_456_789, name="x")]
    nodes = [node(LONG[:60]), node("node-2", ("offline",) * 64)]
    for sheet in (job_sheet(jobs, room, 0), node_sheet(nodes, room)):
        for line in (sheet.head, *(text for _, text in sheet.rows)):
            assert width(click.unstyle(line)) <= room
    assert width(click.unstyle(summary_line(cluster(offline_gpus=9), room, "12:00:00"))) == room
    assert all(width(line) <= room for line in click.unstyle(node_page(node(), room)).split("\n"))


def test_gpus_that_no_work_can_have_are_counted_in_the_first_line() -> None:
    line = click.unstyle(summary_line(cluster(offline_gpus=9, quarantined_gpus=2, lost_gpus=1), 158, "12:00:00"))
    assert "9 GPUs offline  1 GPUs lost  2 GPUs quarantined" in line


def test_a_wide_window_shows_who_and_which_model_too() -> None:
    assert "USER" not in job_sheet([running()], 78, 0).head
    assert "TENANT" in job_sheet([running()], 140, 0).head
    assert "MODEL" not in node_sheet([node()], 78).head
    assert "H100" in node_sheet([node()], 140).rows[0][1]


def test_each_gpu_has_a_cell_of_the_bar_and_many_share_one() -> None:
    statuses = ("busy", "busy", "idle", "offline")
    assert click.unstyle(gpu_bar([gpu(status=status) for status in statuses])) == "■■□✗"
    many = click.unstyle(gpu_bar([gpu(status="busy")] * 32 + [gpu()] * 32))
    assert many == "■" * (BAR_MAX // 2) + "□" * (BAR_MAX // 2)


def test_a_row_says_where_a_job_runs_why_it_waits_or_how_it_ended() -> None:
    failed = job(9, state=JobState.FAILED, exit_code=3)
    told = {key: click.unstyle(line) for key, line in job_sheet([running(), failed], 100, 0).rows}
    assert told["7"].endswith("node-1")
    assert told["9"].endswith("exit 3")


def test_words_are_sought_in_all_that_a_row_shows_and_every_one_must_occur() -> None:
    jobs = [running(7, name="Train"), job(8, name="train", tenant="vision"), job(9, name="other")]
    assert [each.id for each in matching(jobs, "train")] == ["7", "8"]
    assert [each.id for each in matching(jobs, "TRAIN vision")] == ["8"]
    assert [each.id for each in matching(jobs, "node-1")] == ["7"]
    assert [each.id for each in matching(jobs, " ")] == ["7", "8", "9"]


def test_a_page_begins_with_how_the_job_is_and_says_why_only_where_it_is_a_question() -> None:
    page = click.unstyle(job_page(JobLook(running(), why(), ""), 78, 0))
    assert page.startswith("train  running  on node-1  1 GPU  waited 1s")
    assert "it waits" not in page
    waiting = job(8, state=JobState.PENDING, started_at=None, ended_at=None, exit_code=None)
    assert "it waits" in job_page(JobLook(waiting, why(), ""), 78, 0)


def test_a_long_value_goes_on_below_itself() -> None:
    page = click.unstyle(job_page(JobLook(running(command="word " * 40), why(), ""), 60, 0)).split("\n")
    (at_,) = (number for number, line in enumerate(page) if line.startswith("command"))
    assert page[at_ + 1].startswith(" " * 12 + "word")
    assert max(map(width, page)) <= 60


def test_of_a_log_people_see_the_last_state_of_each_line_and_nothing_that_acts_on_a_terminal() -> None:
    written = "one\r\n\x1b[31mred\x1b[0m\n10%\r50%\r100%\n\x1b]0;title\x07\n\ta\n\n"
    assert log_lines(written) == ["one", "red", "100%", "\\e]0;title\\x07", "        a"]


def test_a_title_counts_what_is_in_sight_only_where_more_is_not() -> None:
    assert rule_title("jobs", (1, 5), 5) == "jobs (5)"
    assert rule_title("jobs", (3, 9), 50) == "jobs (3 to 9 of 50)"
    assert rule_title("jobs", (1, 0), 0) == "jobs (0)"


def test_a_silent_node_says_since_when() -> None:
    silent = node(silent_since=at(1), drain="new fan")
    assert "drained: new fan; silent since" in node_sheet([silent], 158).rows[0][1]
