"""Lists, ends and orders by filters, by the words that people type, against a real cluster."""

import json
import re

import pytest

from tests.real.say import Say

pytestmark = pytest.mark.timeout(120)


def test_the_end_of_a_gang_is_told_with_the_rank_that_failed_first_and_its_lines_can_be_read(say: Say) -> None:
    done = say("submit", "--wait", "--tasks", "2", "--", "echo rank $RANK; [ $RANK = 0 ] || exit 7; sleep 60")
    job_id = done.stdout.strip()
    assert done.exit_code == 7
    assert f"job {job_id} failed after " in done.stderr
    assert "rank 1 on " in done.stderr
    assert f"exited with code 7 first, of 2 ranks; logs: `stoker logs {job_id}.1`" in done.stderr
    assert say("logs", f"{job_id}.1").stdout == "rank 1\n"
    assert say("logs", "--all-ranks", job_id).stdout == "0| rank 0\n1| rank 1\n"
    assert "rank 1 on" in say("why", job_id).stdout


def test_a_job_that_never_had_a_process_says_so_where_its_output_is_asked_for(say: Say) -> None:
    done = say("submit", "--wait", "--", "/nowhere/at/all")
    job_id = done.stdout.strip()
    assert (done.exit_code, "failed: it could not start on" in done.stderr) == (126, True)
    assert "never had a process: start_failed on" in say("logs", job_id).stderr
    held = say.submit("--hold", "--", "true")
    refused = say("logs", held)
    assert refused.exit_code == 4
    assert re.search("is held and has written nothing: .+ holds it since ", refused.stderr), "it says who"
    say("cancel", held)
    assert f"job {held} is cancelled and never had a process" in say("logs", held).stderr


def test_a_wait_ends_in_time_with_a_status_of_its_own(say: Say) -> None:
    job_id = say.submit("--hold", "--", "true")
    done = say("wait", "--timeout", "1s", job_id)
    assert done.exit_code == 75
    assert f"job {job_id} has not ended within 1s: it is held and goes on" in done.stderr
    say("cancel", job_id)


def test_jobs_are_found_and_cancelled_by_their_labels_and_names(say: Say) -> None:
    mine = [say.submit("--hold", "--name", f"bulk-{number}", "--label", "team=nlp", "--", "true") for number in (1, 2)]
    other = say.submit("--hold", "--name", "other", "--", "true")
    found = json.loads(say("list", "--name", "bulk-*", "--label", "team=nlp", "--json").stdout)["jobs"]
    assert sorted(job["id"] for job in found) == sorted(mine)
    assert found[0]["labels"] == {"team": "nlp"}
    asked = say("cancel", "--label", "team in (nlp)")
    assert (asked.exit_code, "bulk-1" in asked.stderr) == (2, True)
    done = say("cancel", "--label", "team in (nlp)", "--yes")
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 2)
    assert say.json("status", other)["state"] == "held"
    assert "no jobs match" in say("list", "--name", "no-such-*").stderr
    say("cancel", other)


def test_several_ids_are_shown_one_after_the_other_and_one_that_is_unknown_is_told(say: Say) -> None:
    one, other = (say.submit("--hold", "--", "true") for _ in range(2))
    shown = say("status", one, "999999", other)
    assert (shown.exit_code, "[job_unknown]" in shown.stderr) == (3, True)
    assert [line.split()[1] for line in shown.stdout.splitlines() if line.startswith("job ")] == [one, other]
    assert [job["id"] for job in json.loads(say("status", one, other, "--json").stdout)] == [one, other]
    csv = say("list", "--sort", "-id", "--columns", "id,state", "-o", "csv").stdout_bytes
    assert csv.startswith(f"ID,STATE\r\n{other},held\r\n{one},held\r\n".encode())
    say("cancel", one, other)


def test_what_runs_is_stopped_and_held_by_its_name(say: Say) -> None:
    job_id = say.submit("--name", "makes-room", "--", "sleep", "60")
    say("signal", job_id, "CONT")
    done = say("requeue", "--hold", "--name", "makes-*", "--yes")
    assert "this job will be stopped and held" in done.stderr
    assert f"job {job_id} is stopping" in done.stdout
    say("cancel", job_id)
