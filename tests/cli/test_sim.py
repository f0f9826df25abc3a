"""`stoker sim`: figures for people and programs, and one clear error for what can't be run."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from stoker.cli.main import root

TRACE = "id,submit_s,duration_s,gpus\na,0,60,4\nb,1,60,12\n"


def asked(*words: str, verb: str = "run") -> tuple[int, str]:
    said = CliRunner().invoke(root, ["sim", verb, *words])
    return said.exit_code, said.output


@pytest.fixture
def workload(tmp_path: Path) -> tuple[str, ...]:
    file = tmp_path / "trace.csv"
    file.write_text(TRACE)
    return ("--format", "csv", "--workload", str(file))


@pytest.mark.parametrize("cluster", [("--gpus", "16", "--policy", "fifo"), ("--nodes", "3x8", "--policy", "engine")])
def test_a_run_prints_the_figures_that_tables_have(workload: tuple[str, ...], cluster: tuple[str, ...]) -> None:
    code, said = asked(*workload, *cluster, "-o", "json")
    summary = json.loads(said)
    assert code == 0
    assert {"jobs", "jct_mean_s", "jct_p99_s", "makespan_s", "utilisation", "preemptions"} <= summary.keys()
    assert (summary["jobs"], summary["jct_mean_s"], summary["makespan_s"]) == (2, 60.0, 61.0)
    assert asked(*workload, *cluster)[1].splitlines()[1].split() == ["jobs", "2"]


def test_the_list_of_policies_says_which_know_how_long_jobs_run() -> None:
    policies = {each["name"]: each["knows"] for each in json.loads(asked("--policy", "list", "-o", "json")[1])}
    assert policies["srtf"] == "durations (oracle)"
    assert policies["engine"] == "durations in hours, as time limits"
    assert policies["las"] == "nothing"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--gpus", "16", "--policy", "fifoo"), "no policy 'fifoo'"),
        (("--gpus", "16", "--policy", "engine"), "goes with --nodes"),
        (("--nodes", "2x8", "--policy", "srtf"), "goes with --gpus"),
        (("--gpus", "8", "--policy", "fifo"), "line 3, gpus: job b wants 12 GPUs, and the cluster has 8"),
        (("--nodes", "2x7", "--policy", "engine"), ""),
        (("--nodes", "0x8", "--policy", "engine"), "isn't NODESxGPUS"),
        (("--nodes", "9999x999", "--policy", "engine"), "9989001 GPUs"),
        (("--policy", "fifo"), "--gpus N or --nodes AxB"),
        (("--gpus", "16", "--nodes", "2x8", "--policy", "fifo"), "not both"),
        (("--gpus", "16", "--policy", "las", "--thresholds", "9,3"), "doesn't rise"),
        (("--gpus", "16", "--policy", "fifo", "--mtbf", "9"), "a counting model has neither nodes"),
        (("--gpus", "16", "--policy", "fifo,aging_per_hour=0"), "a counting model has neither nodes"),
        (("--nodes", "2x8", "--policy", "engine", "--mtbf", "-1"), "-1 isn't a number of hours"),
        (("--nodes", "2x8", "--policy", "engine,agin_per_hour=0"), "nearest: policy.aging_per_hour"),
        (("--nodes", "2x8", "--policy", "engine,aging_per_hour=-1"), "aging_per_hour"),
        (("--nodes", "2x8", "--policy", "engine,aging_per_hour"), "isn't KEY=VALUE"),
        (("--nodes", "2x8", "--policy", "engine,aging_max=1,aging_max=2"), "given twice"),
    ],
)
def test_what_cannot_be_run_is_one_error_of_usage(workload: tuple[str, ...], words: tuple[str, ...], says: str) -> None:
    code, said = asked(*workload, *words)
    if not says:
        assert code == 0, said
        return
    assert code == 2
    assert says in said
    assert "hint: " in said


@pytest.mark.parametrize("words", [("sim", "run", "--policy", "engine", "--load", "nan"), ("list", "--watch", "nan")])
def test_what_is_no_number_is_in_no_range(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(root, words)
    assert (done.exit_code, "nan is not in the range" in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("tenant", "no tenant!", "line 3, tenant: 'no tenant!' can't be the name of a tenant"),
        ("priority", "99999999", "line 3, priority: priority is 99999999"),
    ],
)
def test_what_the_cluster_would_refuse_is_told_with_line_and_field(
    tmp_path: Path, column: str, value: str, says: str
) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(f"id,submit_s,duration_s,gpus,{column}\na,0,1,1,\nb,0,1,1,{value}\n")
    code, said = asked("--format", "csv", "--workload", str(file), "--nodes", "2x8", "--policy", "engine")
    assert (code, says in said, "hint: " in said) == (2, True, True), said


def test_a_job_that_asks_for_more_than_a_node_has_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("id,submit_s,duration_s,gpus,cpus\na,0,1,1,1\nb,0,1,1,999\n")
    code, said = asked("--format", "csv", "--workload", str(file), "--nodes", "2x8", "--policy", "engine")
    assert code == 2
    assert "line 3" in said


def test_a_comparison_prints_differences_with_intervals(workload: tuple[str, ...]) -> None:
    words = (*workload, "--gpus", "12", "--policy", "fifo", "--policy", "easy", "--seeds", "3")
    told = json.loads(asked(*words, "-o", "json", verb="compare")[1])
    assert (told["baseline"], told["seeds"]) == ("fifo", 3)
    assert {"figure", "policy", "mean", "difference", "low", "high"} == told["estimates"][0].keys()
    assert [len(told["runs"][each]) for each in ("fifo", "easy")] == [3, 3]
    code, table = asked(*words, verb="compare")
    assert code == 0
    assert table.splitlines()[0].split() == ["FIGURE", "UNIT", "POLICY", "MEAN", "DIFFERENCE", "FROM", "TO"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--policy", "fifo"), "two or more different policies"),
        (("--policy", "fifo", "--policy", "fifo"), "two or more different policies"),
        (("--policy", "fifo", "--policy", "engine"), "goes with --nodes"),
        (("--policy", "fifo", "--policy", "easy", "--seeds", "1"), "2<=x<=1000"),
    ],
)
def test_what_cannot_be_compared_is_one_error_of_usage(
    workload: tuple[str, ...], words: tuple[str, ...], says: str
) -> None:
    code, said = asked(*workload, "--gpus", "16", *words, verb="compare")
    assert code == 2
    assert says in said


def test_failures_are_counted_for_people_too(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("id,submit_s,duration_s,gpus\na,0,360000,8\nb,1,360000,8\n")
    words = ("--format", "csv", "--workload", str(file), "--nodes", "2x8", "--policy", "engine", "--mtbf", "60")
    assert "node failures" in asked(*words)[1]
    assert json.loads(asked(*words, "-o", "json")[1])["node_failures"] > 0


@pytest.fixture
def lists(tmp_path: Path) -> tuple[str, ...]:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn,64000,262144,4,T4\n")
    pods.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1024,1,600\nb,1000,1024,1,400\n")
    return ("--format", "openb", "--nodes", str(nodes), "--workload", str(pods))


def test_a_cluster_that_fills_prints_what_is_allocated(lists: tuple[str, ...]) -> None:
    code, said = asked(*lists, "--policy", "engine", "--seed", "1", "--load", "1.3", "-o", "json")
    told = json.loads(said)
    assert code == 0
    assert {"100", "130"} <= told["allocated_percent"].keys()
    assert told["decisions_per_s"] > 0
    assert json.loads(asked(*lists, "--policy", "engine", "--seed", "1", "-o", "json")[1]) == told | {
        "decisions_per_s": pytest.approx(told["decisions_per_s"], rel=1e9)
    }
    assert "% of the GPUs allocated" in asked(*lists, "--policy", "engine,aging_per_hour=0")[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--policy", "fifo"), "goes with --gpus"),
        (("--policy", "fgd"), "no policy 'fgd'"),
        (("--policy", "engine", "--gpus", "4"), "takes two files"),
        (("--policy", "engine", "--mtbf", "4"), "pods come and stay"),
        (("--policy", "engine", "--load", "0"), "0.01<=x<=10"),
    ],
)
def test_a_cluster_that_cannot_be_filled_is_one_error_of_usage(
    lists: tuple[str, ...], words: tuple[str, ...], says: str
) -> None:
    code, said = asked(*lists, *words)
    assert code == 2
    assert says in said
    assert "hint: " in said


def test_pods_that_stay_are_not_compared_and_jobs_of_a_trace_have_no_load(
    lists: tuple[str, ...], workload: tuple[str, ...]
) -> None:
    code, said = asked(*lists, "--policy", "engine", "--policy", "engine,aging_max=1", verb="compare")
    assert (code, "for `stoker sim run` alone" in said) == (2, True), said
    code, said = asked(*lists[:2], "--nodes", "2x8", *lists[4:], "--policy", "engine")
    assert (code, "2x8: it can't be read" in said) == (2, True), said
    code, said = asked(*workload, "--gpus", "16", "--policy", "fifo", "--load", "1.3")
    assert (code, "--load is for --format openb" in said) == (2, True), said
