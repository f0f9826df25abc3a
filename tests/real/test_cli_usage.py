"""`stoker usage` against a real cluster."""

import json
import re

import pytest

from tests.real.say import Say
from tests.real.up_process import until

pytestmark = pytest.mark.timeout(120)


def test_usage_counts_what_ran_and_what_still_runs_and_every_form_says_the_same(say: Say) -> None:
    assert say("submit", "--gpus", "2", "--wait", "--", "sleep", "0.3").exit_code == 0
    running = say("submit", "--gpus", "1", "--", "sleep", "600").stdout.strip()
    until(lambda: say.json("status", running)["state"] == "running", what="a running job")
    whole = json.loads(say("usage", "--by", "job", "--json").stdout)
    assert {line["key"] for line in whole["lines"]} >= {running}
    assert whole["total"]["gpu_ms"] >= 600
    table = say("usage", "--by", "job").stdout
    assert table.splitlines()[0].split() == ["JOB", "JOBS", "GPU-HOURS", "SHARE", "CPU-HOURS"]
    assert "idle" in table
    assert re.search(r"^from +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+$", table, re.MULTILINE), "people read no ISO 8601"
    wide = say("usage", "--by", "node", "-o", "wide").stdout
    assert "GPU-MS" in wide.splitlines()[0]
    yaml = say("usage", "-o", "yaml", "--user", "nobody").stdout
    assert "lines: []" in yaml
    assert say("cancel", running).exit_code == 0


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (("usage", "--from", "soon"), 2, "bad_moment"),
        (("usage", "--from", "1h", "--to", "2h"), 2, "bad_moment"),
        (("list", "--since", "soon"), 2, "bad_moment"),
        (("usage", "--by", "rack"), 2, "'rack' is not one of"),
    ],
)
def test_bad_input_is_one_line_with_a_hint_and_a_usage_status(
    say: Say, words: tuple[str, ...], status: int, code: str
) -> None:
    done = say(*words)
    assert (done.exit_code, done.stdout) == (status, "")
    assert code in done.stderr


def test_a_list_by_time_and_by_member(say: Say) -> None:
    array = say("submit", "--array", "0-2", "--hold", "--", "true").stdout.strip()
    rows = json.loads(say("list", "--members", "--state", "held", "--since", "1h", "--json").stdout)["jobs"]
    assert [row["id"] for row in rows] == [f"{array}_2", f"{array}_1", f"{array}_0"]
    assert json.loads(say("list", "--until", "2020-01-01", "--json").stdout)["jobs"] == []
    assert say("cancel", array).exit_code == 0


def test_a_list_of_a_member_says_what_shows_members(say: Say) -> None:
    done = say("list", "12_3")
    assert done.exit_code == 4
    assert "12_3 isn't the id of a whole array" in done.stderr
    assert "`stoker status 12_3`" in done.stderr


def test_shares_tell_who_is_next_and_why(say: Say) -> None:
    assert say("tenant", "create", "lab", "--weight", "3").exit_code == 0
    waits = say.submit("--tenant", "lab", "--hold", "--", "true")
    table = say("usage", "--shares").stdout
    columns = ("TENANT", "WEIGHT", "ENTITLED", "USED", "OF", "POINTS", "GPUS", "RUNNING", "PENDING")
    assert tuple(table.splitlines()[0].split()) == columns
    assert re.search(r"^lab +3 +", table, re.MULTILINE)
    assert re.search(r"^points +99 at most$", table, re.MULTILINE)
    assert re.search(r"^half-life +7d", table, re.MULTILINE)
    found = json.loads(say("usage", "--shares", "--json").stdout)
    assert {line["tenant"]: line["weight"] for line in found["lines"]}["lab"] == 3
    assert "lines:" in say("usage", "--shares", "-o", "yaml").stdout
    for words in (("--by", "user"), ("--from", "1h"), ("--tree",)):
        done = say("usage", "--shares", *words)
        assert (done.exit_code, f"leave {words[0]} out" in done.stderr) == (2, True)
    say("cancel", waits)
