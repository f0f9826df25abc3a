"""Labels, taints and partitions from the command line, against a real cluster."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.wire.client import Client
from tests.real.say import Say
from tests.real.up_process import UpProcess, until

pytestmark = pytest.mark.timeout(120)
OWN = ("gpu-model", "hostname")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "select-nodes.md"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(tmp_path_factory.mktemp("up"), "--nodes", "3", "--gpus-per-node", "1") as cluster:
        with Client(cluster.url) as client:
            until(lambda: client.status().online_nodes == 3, what="three nodes")
        yield cluster


@pytest.fixture
def say(up: UpProcess) -> Say:
    return Say(up.url)


def test_every_line_of_the_page_on_selection_does_what_it_says(say: Say) -> None:
    """Each is run as it stands; whatever job it submits ends on a node that the page selects."""
    where = {"zone=a": {"node-1"}, "zone!=a": {"node-2"}, "stoker.io/hostname=node-3": {"node-3"}}
    partitions = {"short": {"node-1", "node-2"}, "vision": {"node-3"}}
    jobs: dict[str, set[str]] = {}
    for line in re.findall(r"^ {4}stoker (.+)$", PAGE.read_text(), re.MULTILINE):
        words = shlex.split(line)
        if words[:2] == ["partition", "delete"]:  # its jobs must have ended
            for job in jobs:
                assert say("wait", job).exit_code == 0
        done = say(*words)
        assert done.exit_code == 0, (line, done.output)
        if words[0] == "submit":
            wanted = [nodes for word in words for nodes in (where.get(word), partitions.get(word)) if nodes]
            if "--tolerate" in words:
                wanted.append({"node-3"})
            jobs[done.stdout.strip()] = set.intersection({"node-1", "node-2", "node-3"}, *wanted)
    assert len(jobs) == 7
    for job, nodes in jobs.items():
        assert say("wait", job).exit_code == 0
        assert ran_on(say, job) in nodes


def ran_on(say: Say, job: str) -> str:
    attempts: Any = say.json("status", job)["attempts"]
    (task,) = attempts[-1]["tasks"]
    return str(task["node"])


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (("node", "label", "node-1", "zone"), 2, "bad_label"),
        (("node", "label", "node-1", "zo ne=a"), 2, "bad_label"),
        (("node", "label", "node-1", "stoker.io/hostname=x"), 2, "bad_label"),
        (("node", "label", "nowhere", "zone=a"), 3, "node_unknown"),
        (("node", "taint", "node-1", "gpu=old:NoExecute"), 2, "bad_taint"),
        (("node", "taint", "node-1", "gpu"), 2, "bad_taint"),
        (("partition", "create", "a b"), 2, "bad_partition_name"),
        (("partition", "create", "p", "--where", "zone=a,,b"), 2, "bad_selector"),
        (("partition", "create", "p", "--tolerate", "a:NoExecute"), 2, "bad_toleration"),
        (("partition", "create", "p", "--time", "25:99"), 2, "bad_time"),
        (("partition", "create", "p", "--time", "2h", "--time-max", "1h"), 4, "time_limit_too_long"),
        (("partition", "create", "p", "--exclude", "node-11"), 4, "unknown_node"),
        (("partition", "show", "p"), 3, "partition_unknown"),
        (("partition", "set", "p", "--comment", "x"), 3, "partition_unknown"),
        (("partition", "delete", "p"), 3, "partition_unknown"),
        (("submit", "--partition", "p", "--", "true"), 4, "unknown_partition"),
        (("submit", "--exclude", "node-11", "--", "true"), 4, "unknown_node"),
        (("submit", "--where", "zone=nowhere", "--", "true"), 4, "demand_unsatisfiable"),
        (("submit", "--where", "zone=(", "--", "true"), 2, "bad_selector"),
        (("submit", "--tolerate", "a b", "--", "true"), 2, "bad_toleration"),
    ],
)
def test_each_refusal_has_its_code_and_exit_status(say: Say, words: tuple[str, ...], status: int, code: str) -> None:
    done = say(*words)
    assert (done.exit_code, done.stdout) == (status, "")
    assert f"[{code}]" in done.stderr
    assert "hint: " in done.stderr


@pytest.mark.parametrize("words", [("node", "label", "node-1"), ("node", "taint", "node-1"), ("partition", "set", "p")])
def test_a_command_that_would_change_nothing_is_a_usage_error(say: Say, words: tuple[str, ...]) -> None:
    done = say(*words)
    assert (done.exit_code, done.stdout) == (2, "")


def test_taking_off_what_is_not_there_is_done_and_noted(say: Say) -> None:
    done = say("node", "label", "node-1", "no-such-")
    assert done.exit_code == 0
    assert done.stderr == "note: node node-1 has no label no-such\n"
    assert say("node", "taint", "node-1", "no-such-").stderr == "note: node node-1 has no taint no-such\n"


def test_a_node_shows_its_labels_and_taints_and_which_of_them_people_set(say: Say) -> None:
    say("node", "label", "node-2", "rack=7")
    say("node", "taint", "node-2", "burn-in:NoSchedule")
    lines = say("node", "show", "node-2").stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("labels"))
    assert "rack=7" in lines[at]
    assert "rack" in lines[at + 1].partition("set by people")[2]
    assert "burn-in:NoSchedule" in say("node", "list", "-o", "wide").stdout
    assert say("node", "taint", "node-2", "burn-in-").stdout == "node node-2 has the taints: none\n"


def test_what_is_not_given_to_set_stays_as_it_was(say: Say) -> None:
    words = (
        "--where",
        "rack in (7,8)",
        "--exclude",
        "node-1",
        "--tolerate",
        "a,b=1",
        "--time",
        "90s",
        "--time-max",
        "2d",
    )
    say("partition", "create", "whole", *words, "--comment", "all of it")
    before = say.json("partition", "show", "whole")
    say("partition", "set", "whole", "--comment", "changed")
    assert say.json("partition", "show", "whole") == {**before, "comment": "changed"}
    say("partition", "set", "whole", "--where", "", "--exclude", "", "--tolerate", "", "--time-max", "none")
    after = say.json("partition", "show", "whole")
    taken = {"where": "", "exclude": [], "tolerate": [], "time_max_ms": 0}
    assert {name: after[name] for name in taken} == taken
    assert after["time_default_ms"] == 90_000


def test_what_people_said_about_nodes_survives_a_restart_of_everything(tmp_path: Path) -> None:
    flags, data_dir = ("--nodes", "1", "--gpus-per-node", "1"), tmp_path / "data"
    with UpProcess(tmp_path, *flags, data_dir=data_dir) as cluster:
        say = Say(cluster.url)
        until(lambda: say("node", "show", "node-1").exit_code == 0, what="the node")
        assert say("node", "label", "node-1", "zone=a").exit_code == 0
        assert say("node", "taint", "node-1", "gpu=old:NoSchedule").exit_code == 0
        assert say("partition", "create", "p", "--where", "zone=a", "--tolerate", "gpu").exit_code == 0
    with UpProcess(tmp_path, *flags, data_dir=data_dir) as cluster:
        say = Say(cluster.url)
        until(lambda: say.json("node", "show", "node-1")["state"] == "ready", what="the node")
        node, partition = say.json("node", "show", "node-1"), say.json("partition", "show", "p")
        assert node["labels_by"] == {"zone": "people", **{f"stoker.io/{word}": "stoker" for word in OWN}}
        assert node["taints"] == ["gpu=old:NoSchedule"]
        assert (partition["where"], partition["nodes"]) == ("zone=a", 1)
        assert say("submit", "--partition", "p", "--wait", "--", "true").exit_code == 0
