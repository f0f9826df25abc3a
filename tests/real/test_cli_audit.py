"""`stoker audit` and `stoker events` against a real cluster."""

import json

import pytest

from tests.real.say import Say

pytestmark = pytest.mark.timeout(120)


def test_a_job_that_was_retried_and_requeued_has_its_story_and_everybody_who_told_it_something(say: Say) -> None:
    job = say("submit", "--gpus", "1", "--wait", "--", "sh", "-c", "exit 3").stdout.strip()
    assert say("requeue", job).exit_code == 0
    say("wait", job)
    assert say("cancel", job).exit_code == 4
    events = json.loads(say("events", job, "--json").stdout)["events"]
    assert [event["event"] for event in events] == [
        *("submitted", "placed", "started", "ended", "finished", "requeue"),
        *("placed", "started", "ended", "finished"),
    ]
    assert [event.get("exit_code") for event in events if event["event"] == "ended"] == [3, 3]
    table = say("events", job).stdout.splitlines()
    assert table[0].split() == ["AT", "EVENT", "BY", "ATTEMPT", "DETAILS"]
    assert len(table) == 1 + len(events)
    assert "failed; exit code 3" in table[4]
    assert say("events", job, "-o", "wide").stdout.splitlines()[0].split()[-1] == "NUMBER"
    assert "event: submitted" in say("events", job, "-o", "yaml").stdout


def test_the_trail_is_listed_newest_first_and_narrowed_down(say: Say) -> None:
    job = say("submit", "--hold", "--", "true").stdout.strip()
    say("cancel", job)
    say("cancel", job)
    rows = json.loads(say("audit", "--job", job, "--json").stdout)["rows"]
    assert [(row["action"], row["outcome"], row["by"]) for row in rows] == [
        ("cancel", "job_ended", "user:local"),
        ("cancel", "ok", "user:local"),
        ("submit", "ok", "user:local"),
    ]
    table = say("audit", "--job", job, "--outcome", "refused").stdout.splitlines()
    assert table[0].split() == ["AT", "BY", "ACTION", "OUTCOME", "ABOUT", "DETAILS"]
    assert [line.split()[4:7] for line in table[1:]] == [["cancel", "job_ended", job]]
    assert len(say("audit", "--limit", "2").stdout.splitlines()) == 3
    assert "rows: []" in say("audit", "--by", "user:nobody-at-all", "-o", "yaml").stdout


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (("audit", "--outcome", "refusd"), 2, "did you mean `refused`?"),
        (("audit", "--since", "soon"), 2, "bad_moment"),
        (("audit", "--job", "x"), 2, "bad_job_id"),
        (("audit", "--limit", "0"), 2, "0 is not in the range"),
        (("events", "999999"), 3, "job_unknown"),
        (("events", "1_[0-3]"), 2, "several_jobs"),
        (("events", ""), 2, "an empty id names nothing"),
    ],
)
def test_bad_input_is_one_line_with_a_hint(say: Say, words: tuple[str, ...], status: int, code: str) -> None:
    done = say(*words)
    assert (done.exit_code, done.stdout) == (status, "")
    assert code in done.stderr
