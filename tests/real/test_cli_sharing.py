"""Tenants, shares and usage from the command line, against a real cluster."""

import re
from collections.abc import Iterator

import pytest

from stoker.wire.client import Client
from tests.real.say import Say
from tests.real.up_process import UpProcess, until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(tmp_path_factory.mktemp("up"), "--nodes", "2", "--gpus-per-node", "5") as cluster:
        with Client(cluster.url) as client:
            until(lambda: client.status().online_nodes == 2, what="two nodes")
        yield cluster


@pytest.fixture
def say(up: UpProcess) -> Say:
    return Say(up.url)


def test_every_option_of_a_tenant_arrives_and_is_shown(say: Say) -> None:
    words = "--max-gpus 8 --guaranteed-gpus 4 --max-gpu-memory 640GiB --max-cpus 64 --max-memory 1TiB --max-jobs 5"
    more = "--max-pending 100 --max-time 2d --priority high --no-borrow --no-lend --email a@b --organization Lab"
    more += " --nodes gpu-b1,gpu-a* --weight 3"
    done = say("tenant", "create", "full", *words.split(), *more.split(), "--comment", "all of it")
    assert done.stdout == "tenant full is guaranteed 4 GPUs and may use at most 4 GPUs\n"
    found = say.json("tenant", "show", "full")
    assert [found[name] for name in ("max_gpus", "guaranteed_gpus", "max_cpu_cores", "max_concurrent_jobs")] == [
        8,
        4,
        64,
        5,
    ]
    assert (found["max_gpu_memory_mb"], found["max_memory_mb"]) == (655_360, 1_048_576)
    assert (found["max_pending_jobs"], found["max_runtime_minutes"], found["priority_tier"]) == (100, 2_880, "high")
    assert (found["nodes"], found["weight"]) == (["gpu-a*", "gpu-b1"], 3)
    assert (found["borrow"], found["lend"], found["email"], found["organization"]) == (False, False, "a@b", "Lab")
    shown = say("tenant", "show", "full").stdout
    for words in (
        "1000 by default, at most 1000",
        "0 used, at most 8",
        "at most 655360 MiB",
        "0 jobs, at most 5",
        "2d",
        "gpu-a*, gpu-b1",
    ):
        assert words in shown
    assert say("tenant", "delete", "full").stdout == "tenant full is deleted\n"


def test_a_change_leaves_the_rest_and_none_takes_a_limit_off(say: Say) -> None:
    say("tenant", "create", "some", "--max-gpus", "8", "--max-jobs", "5", "--max-memory", "1GiB", "--priority", "low")
    before = say.json("tenant", "show", "some")
    assert say("tenant", "set", "some", "--max-gpus", "9", "--no-lend").exit_code == 0
    changed = {**before, "max_gpus": 9, "limit_gpus": 9, "lend": False}
    assert say.json("tenant", "show", "some") == changed
    assert say.json("tenant", "set", "some", "--nodes", "gpu-a*")["nodes"] == ["gpu-a*"]
    assert say.json("tenant", "set", "some", "--nodes", "none")["nodes"] == []
    off = ("--max-gpus", "--max-jobs", "--max-memory", "--priority", "--max-time", "--guaranteed-gpus")
    assert say("tenant", "set", "some", *(word for option in off for word in (option, "none"))).exit_code == 0
    after = say.json("tenant", "show", "some")
    limits = [after[name] for name in ("max_gpus", "max_concurrent_jobs", "max_memory_mb", "priority_tier")]
    assert limits == [None] * 4
    assert after["lend"] is False
    say("tenant", "delete", "some")


def test_the_list_is_a_tree_with_what_is_used_beneath_each(say: Say) -> None:
    say("tenant", "create", "org", "--max-gpus", "6")
    say("tenant", "create", "vision", "--parent", "org", "--comment", "Cameras")
    job = say.submit("--tenant", "vision", "--gpus", "2", "--", "sleep", "600")
    until(lambda: say.json("tenant", "show", "org")["used"]["gpus"] == 2, what="it to run")  # type: ignore[index]  # JSON
    lines = [line.split() for line in say("tenant", "list").stdout.splitlines()]
    assert lines[0][:3] == ["TENANT", "GPUS", "GUARANTEED"]
    rows = {line[0]: line[1:] for line in lines[1:]}
    assert list(rows) == ["default", "org", "vision"]
    assert rows["org"][:5] == ["2", "0", "2", "6", "1"]
    assert rows["vision"][3] == "6", "the limit of the tenant above"
    assert "\n  vision " in say("tenant", "list").stdout
    assert "TIME MAX" in say("tenant", "list", "-o", "wide").stdout
    assert "tenants" not in say("tenant", "list", "-o", "yaml").stdout
    refused = say("tenant", "delete", "org")
    assert (refused.exit_code, "tenant_in_use" in refused.stderr) == (4, True)
    until(lambda: "vision" in say("usage", "--by", "tenant", "--tree").stdout, what="usage")
    tree = say("usage", "--by", "tenant", "--tree").stdout
    assert re.search(r"^TENANT +JOBS +GPU-HOURS +SHARE +OWN", tree, re.MULTILINE)
    assert tree.index("\norg ") < tree.index("\n  vision ")
    lines_found = say.json("usage", "--tree", "--tenant", "org")["lines"]
    assert [line["path"] for line in lines_found] == ["org", "org/vision"]  # type: ignore[attr-defined]  # a list
    say("cancel", job)
    say("wait", job)


def test_the_shares_are_shown_and_changed_at_once(say: Say) -> None:
    shown = say("quota", "show").stdout.splitlines()
    assert shown[0].split()[:4] == ["CLASS", "SHARE", "GUARANTEED", "USED"]
    assert [line.split()[:4] for line in shown[1:3]] == [["online", "70", "%", "7"], ["batch", "30", "%", "3"]]
    ends = [[found.end() for found in re.finditer(r"\S+( NOW| %)?", line)][1:] for line in shown[:3]]
    assert ends[0] == ends[1] == ends[2], "numbers stand right"
    assert "10 in service" in shown[4]
    found = say.json("quota", "set", "--online-percent", "0.6")
    assert (found["online_percent"], found["batch_percent"], found["online"]["quota"]) == (0.6, 0.4, 6)  # type: ignore[index]  # JSON
    found = say.json("quota", "set", "--batch-percent", "0.1", "--strict")
    assert (found["online_percent"], found["batch_percent"], found["strict"]) == (0.6, 0.1, True)
    assert "shares are strict" in say("quota", "show").stdout
    assert say.json("quota", "set", "--online-percent", "0.7", "--no-strict")["strict"] is False
    assert say.json("quota", "show")["batch_percent"] == 0.3


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (("tenant", "create", "a b"), 2, "bad_tenant_name"),
        (("tenant", "create", "default"), 4, "tenant_exists"),
        (("tenant", "create", "x", "--parent", "nope"), 4, "unknown_tenant"),
        (("tenant", "create", "x", "--guaranteed-gpus", "3", "--max-gpus", "2"), 4, "guarantee_above_limit"),
        (("tenant", "create", "x", "--max-gpu-memory", "16parsecs"), 2, "bad_size"),
        (("tenant", "create", "x", "--max-time", "25:99"), 2, "bad_time"),
        (("tenant", "create", "x", "--weight", "0"), 4, "out_of_range"),
        (("tenant", "show", "nope"), 3, "tenant_unknown"),
        (("tenant", "set", "nope", "--max-gpus", "1"), 3, "tenant_unknown"),
        (("tenant", "delete", "nope"), 3, "tenant_unknown"),
        (("tenant", "delete", "default"), 4, "tenant_in_use"),
        (("submit", "--tenant", "nope", "--", "true"), 4, "unknown_tenant"),
        (("list", "--tenant", "nope"), 4, "unknown_tenant"),
        (("usage", "--tenant", "nope"), 4, "unknown_tenant"),
        (("audit", "--tenant", "noppe"), 4, "unknown_tenant"),
        (("quota", "set", "--online-percent", "170"), 2, "bad_share"),
        (("quota", "set", "--online-percent", "most"), 2, "bad_share"),
        (("quota", "set", "--online-percent", "nan"), 2, "bad_share"),
        (("quota", "set", "--online-percent", "-0.1"), 2, "bad_share"),
        (("quota", "set", "--online-percent", "0.9", "--batch-percent", "0.2"), 2, "bad_share"),
    ],
)
def test_bad_input_is_one_error_with_a_hint(say: Say, words: tuple[str, ...], status: int, code: str) -> None:
    done = say(*words)
    assert done.exit_code == status, done.output
    assert f"[{code}]" in done.stderr
    assert done.stderr.count("hint: ") == done.stderr.count("error: ") == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tenant", "set", "default"), "nothing to change was given"),
        (("quota", "set"), "nothing to change was given"),
        (("quota", "set", "--force"), "nothing to change was given"),
        (("tenant", "create", "x", "--max-gpus", "-1"), "not a whole number from 0 to"),
        (("tenant", "create", "x", "--max-gpus", "1.5"), "not a whole number from 0 to"),
        (("tenant", "create", "x", "--max-gpus", "ten"), "`none` takes it off"),
        (("tenant", "create", "x", "--max-gpus", "9" * 20), "from 0 to 999999999999999"),
        (("tenant", "create", "x", "--priority", "urgent"), "critical"),
        (("usage", "--tree", "--by", "user"), "--tree goes with --by tenant"),
    ],
)
def test_a_line_that_can_not_be_meant_is_a_usage_error(say: Say, words: tuple[str, ...], said: str) -> None:
    done = say(*words)
    assert done.exit_code == 2
    assert said in done.stderr


def test_tenants_are_completed_by_their_names(say: Say, up: UpProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.shell_completion import ShellComplete

    from stoker.cli.main import root

    say("tenant", "create", "robots", "--comment", "Arms")
    monkeypatch.setenv("STOKER_SERVER", up.url)
    complete = ShellComplete(root, {}, "stoker", "_STOKER_COMPLETE")
    for words in (["tenant", "show"], ["tenant", "set"], ["tenant", "delete"], ["tenant", "create", "x", "--parent"]):
        assert [item.value for item in complete.get_completions(words, "ro")] == ["robots"], words
    (offered,) = complete.get_completions(["submit", "--tenant"], "rob")
    assert (offered.value, offered.help) == ("robots", "Arms")
