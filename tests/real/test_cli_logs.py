"""What a task wrote reaches the person who asks: whole, as it was, and to its end."""

import subprocess
from pathlib import Path

import pytest

from tests.real.say import Say
from tests.real.up_process import UpProcess, environment, stoker, until

pytestmark = pytest.mark.timeout(120)


def test_logs_are_the_bytes_that_were_written(say: Say) -> None:
    job_id = say.submit("--wait", "--", r"printf '\377\000\033[31m'")
    assert say("logs", job_id).stdout_bytes == b"\xff\x00\x1b[31m"


def test_a_tail_is_the_last_lines(say: Say) -> None:
    job_id = say.submit("--wait", "--", "seq 1 1000 ")
    assert say("logs", "--tail", "2", job_id).stdout == "999\n1000\n"
    assert len(say("logs", job_id).stdout.splitlines()) == 1_000


def test_long_output_comes_whole(say: Say) -> None:
    job_id = say.submit("--wait", "--", "seq 1 200000 ")
    assert say("logs", job_id).stdout.splitlines() == [str(number) for number in range(1, 200_001)]


def test_following_shows_everything_and_ends_with_the_job(say: Say) -> None:
    job_id = say.submit("--", "for i in 1 2 3 4 5; do echo line $i; sleep 0.2; done")
    done = say("logs", "-f", job_id)
    assert done.exit_code == 0
    assert done.stdout == "".join(f"line {number}\n" for number in range(1, 6))


def test_following_a_submit_prints_the_id_then_the_output_then_exits_as_the_job_did(say: Say) -> None:
    done = say("submit", "--follow", "--", "echo out; echo err >&2; exit 6")
    job_id, *lines = done.stdout.splitlines()
    assert (job_id.isdigit(), sorted(lines), done.exit_code) == (True, ["err", "out"], 6)


def test_following_goes_on_with_the_next_attempt(say: Say) -> None:
    job_id = say.submit("--retries", "1", "--", "echo attempt $STOKER_ATTEMPT; [ $STOKER_ATTEMPT = 2 ]")
    done = say("logs", "-f", job_id)
    assert done.stdout == "attempt 1\nattempt 2\n"
    assert f"(attempt 2 of job {job_id})" in done.stderr
    assert say("logs", "--attempt", "1", job_id).stdout == "attempt 1\n"
    assert say("logs", job_id).stdout == "attempt 2\n"


def test_each_rank_of_a_gang_has_its_own_output(say: Say) -> None:
    job_id = say.submit("--wait", "--gpus", "2", "--tasks", "2", "--", "echo rank $RANK ")
    assert [say("logs", "--rank", rank, job_id).stdout for rank in ("0", "1")] == ["rank 0\n", "rank 1\n"]
    assert say("logs", "--rank", "2", job_id).exit_code == 3


def test_a_reader_who_goes_away_ends_it_without_a_word(up: UpProcess, say: Say, tmp_path: Path) -> None:
    job_id = say.submit("--wait", "--", "seq 1 500000 ")
    reader = subprocess.Popen(
        stoker("logs", job_id),
        env=environment(tmp_path, STOKER_SERVER=up.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert reader.stdout is not None
    assert reader.stderr is not None
    assert reader.stdout.readline() == b"1\n"
    reader.stdout.close()
    assert reader.wait(20) == 141
    assert reader.stderr.read() == b""
    reader.stderr.close()


def test_a_member_of_an_array_is_followed_by_its_id_and_an_array_says_so(say: Say) -> None:
    array = say.submit("--array", "0-2", "--", "echo begin $STOKER_ARRAY_INDEX; sleep 0.5; echo end")
    done = say("logs", "-f", f"{array}_1")
    assert (done.exit_code, done.stdout) == (0, "begin 1\nend\n")
    whole = say("logs", "-f", array)
    assert (whole.exit_code, whole.stdout) == (2, "")
    assert f"name one of them, such as `{array}_0`" in whole.stderr
    assert say("logs", "-f", "--attempt", "2", f"{array}_1").exit_code == 3


def test_following_waits_for_a_job_that_has_yet_to_begin_and_ends_with_one_that_never_does(say: Say) -> None:
    first = say.submit("--", "sleep 1; exit 1")
    waits = say.submit("--after", f"any:{first}", "--", "echo at last")
    never = say.submit("--after", f"ok:{first}", "--", "echo never")
    assert say("logs", "-f", waits).stdout == "at last\n"
    done = say("logs", "-f", never)
    assert (done.exit_code, done.stdout) == (0, "")


def test_following_may_begin_at_the_end_or_near_it(say: Say) -> None:
    job_id = say.submit("--", "seq 1 100 ; sleep 1.5; echo more")
    until(lambda: say("logs", job_id).stdout.endswith("100\n"), what="a hundred lines")
    assert say("logs", "-f", "--tail", "2", job_id).stdout == "99\n100\nmore\n"
    assert say("logs", "-f", "--tail", "0", job_id).stdout == ""
