"""Arrays, dependencies, holds and signals, by the words that people type, against a real cluster."""

import json
import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.real.say import Say
from tests.real.up_process import until

pytestmark = pytest.mark.timeout(120)


def state(say: Say, job_id: str) -> str:
    return str(say.json("status", job_id)["state"])


def test_an_array_is_one_row_with_its_members_counted_and_its_output_goes_where_it_was_told(
    say: Say, tmp_path: Path
) -> None:
    line = "echo member $STOKER_ARRAY_INDEX; [ $STOKER_ARRAY_INDEX != 3 ]"
    flags = ("--array", "0-5%2", "--workdir", str(tmp_path), "--output", "out-%A_%a.txt", "--comment", "for Ada")
    array = say.submit(*flags, "--name", "sweep", "--", line)
    assert say("wait", array).exit_code == 1, "some member failed"
    told = say("status", array).stdout
    assert "6 members, 5 succeeded, 1 failed" in told
    assert "for Ada" in told
    assert (tmp_path / f"out-{array}_4.txt").read_text() == "member 4\n"
    assert say("logs", f"{array}_4").stdout == "member 4\n"
    row = next(line for line in say("list", "--name", "sweep").stdout.splitlines() if line.split()[0] == array)
    assert "6 members, 5 succeeded, 1 failed" in row


def test_members_are_held_released_and_cancelled_by_ranges(say: Say) -> None:
    array = say.submit("--array", "0-49", "--gpus", "2", "--", "sleep", "600")
    done = say("hold", f"{array}_[40-49]")
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 10)
    assert "job " + array + "_41 is held" in done.stdout
    assert say("release", f"{array}_41").stdout == f"job {array}_41 is pending\n"
    done = say("cancel", f"{array}_[10-39]", f"{array}_40")
    assert f"30 of the 30 jobs of {array}_[10-39] were told" in done.stdout
    members = say.json("status", array)["members"]
    assert isinstance(members, dict)
    assert members["cancelled"] == 31
    again = say("cancel", f"{array}_[10-39]")
    assert (again.exit_code, "[job_ended]" in again.stderr) == (4, True)
    told = json.loads(say("cancel", array, "--json").stdout)
    assert [job["id"] for job in told] == [array]
    until(lambda: state(say, array) not in ("pending", "running", "stopping"), what="the array to end")


def test_a_held_job_waits_for_its_release(say: Say) -> None:
    job_id = say.submit("--hold", "--", "true")
    assert state(say, job_id) == "held"
    assert "release" in say("why", job_id).stdout
    assert say("release", job_id).stdout == f"job {job_id} is pending\n"
    assert say("wait", job_id).exit_code == 0


def test_a_running_job_is_not_held_and_every_other_id_is_tried(say: Say) -> None:
    runs, waits = say.submit("--", "sleep", "600"), say.submit("--hold", "--", "true")
    until(lambda: state(say, runs) == "running", what="it to run")
    done = say("hold", runs, waits, "999999")
    assert done.exit_code == 4
    assert "[job_live]" in done.stderr
    assert "[job_unknown]" in done.stderr
    assert done.stdout == f"job {waits} is held\n"
    say("cancel", runs, waits)


def test_a_signal_reaches_the_job_and_a_requeue_runs_it_once_more(say: Say) -> None:
    line = 'trap "echo heard; exit 7" USR1; echo ready; while :; do sleep 0.05; done'
    job_id = say.submit("--no-requeue", "--", line)
    until(lambda: "ready" in say("logs", job_id).stdout, what="it to be ready")
    said = say("signal", job_id, "sigusr1").stdout
    assert said.startswith(f"job {job_id} is running; USR1 was sent to 1 task on ")
    assert say("wait", job_id).exit_code == 7
    assert "heard" in say("logs", job_id).stdout
    assert say("requeue", job_id).exit_code == 0
    until(lambda: "ready" in say("logs", job_id).stdout and state(say, job_id) == "running", what="another try")
    assert say("signal", job_id, "NONSENSE").exit_code in (2, 4)
    say("cancel", job_id)


def test_a_running_job_is_stopped_and_held_and_goes_on_under_its_id_when_it_is_released(say: Say) -> None:
    job_id = say.submit(
        "--", 'trap "echo saved; exit 0" TERM; echo ready $STOKER_ATTEMPT; while :; do sleep 0.05; done'
    )
    until(lambda: "ready 1" in say("logs", job_id).stdout, what="it to be ready")
    assert say("requeue", "--hold", job_id).exit_code == 0
    until(lambda: state(say, job_id) == "held", what="it to be held")
    assert "saved" in say("logs", job_id).stdout
    assert say("requeue", "--hold", job_id).exit_code == 4
    say("release", job_id)
    until(lambda: "ready 2" in say("logs", job_id).stdout, what="another try")
    say("cancel", job_id)


def test_a_job_waits_for_others_and_never_runs_when_they_failed(say: Say) -> None:
    good, bad = say.submit("--", "true"), say.submit("--", "exit 3 ")
    follows = say.submit("--after", f"ok:{good}", "--after", f"notok:{bad}", "--", "echo after")
    assert say("wait", follows).exit_code == 0
    never = say.submit("--after", f"ok:{bad}", "--", "true")
    assert say("wait", never).exit_code != 0
    assert f"it waited for ok:{bad}, which can never be" in say("why", never).stdout
    unknown = say("submit", "--after", "ok:999999", "--", "true")
    assert unknown.exit_code != 0
    assert "there is no job 999999" in unknown.stderr


def test_a_time_to_begin_at_is_meant_by_the_clock_of_whoever_types_it(
    say: Say,
) -> None:
    soon = say.submit("--begin", "now+1s", "--", "true")
    assert say("wait", soon).exit_code == 0
    tomorrow = say.submit("--begin", "tomorrow", "--", "true")
    begin = str(say.json("status", tomorrow)["begin"])
    local = datetime.fromisoformat(begin).astimezone()
    wanted = (datetime.now().astimezone() + timedelta(days=1)).date()
    assert (local.hour, local.minute) == (0, 0)
    assert abs((local.date() - wanted).days) <= 1
    say("cancel", tomorrow)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--array", "5-1"), "bad_array"),
        (("--array", "0-9999999"), "array_too_large"),
        (("--array", "1,1"), "bad_array"),
        (("--array", ""), "bad_array"),
        (("--after", "maybe:1"), "bad_dependency"),
        (("--begin", "25:99"), "bad_begin"),
        (("--begin", "2020-01-01"), "bad_begin"),
        (("--where", "zone in a"), "bad_selector"),
        (("--partition", "nowhere"), "unknown_partition"),
        (("--exclude", "nobody"), "unknown_node"),
        (("--output", "/tmp/"), "bad_output"),
    ],
    ids=lambda given: given if isinstance(given, str) else " ".join(given),
)
def test_what_cannot_be_meant_is_one_clear_error_with_a_hint(say: Say, words: tuple[str, ...], code: str) -> None:
    done = say("submit", *words, "--", "true")
    assert done.exit_code in (2, 3, 4), done.output
    assert done.stdout == ""
    assert re.search(rf"^error: .* \[{code}\]$", done.stderr, re.MULTILINE), done.stderr
    assert "hint: " in done.stderr
