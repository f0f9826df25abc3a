"""The loading experiment: what arrives, what is placed, and the one error that faulty lists give (L1 to L5)."""

import gzip
from collections import Counter
from pathlib import Path

import pytest

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.policy import Policy
from stoker.sim.loading import LoadingSummary, arrivals, load_cluster, read_lists
from tests.sim.test_counting import nobody
from tests.sim.test_replay import every_event_checked

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
TWO = NODES + "n1,64000,262144,2,P100\nn2,64000,262144,4,V100M32\n"
OPENB = Path(__file__).resolve().parents[2] / "benchmarks" / "traces" / "openb"


def written(folder: Path, nodes: str, pods: str) -> tuple[Path, Path]:
    (folder / "nodes").write_text(nodes)
    (folder / "pods").write_bytes(gzip.compress(pods.encode()))
    return folder / "nodes", folder / "pods"


def loaded(folder: Path, nodes: str, pods: str, load: float = 1.0, seed: int = 0) -> LoadingSummary:
    ticks = iter((10.0, 12.0))
    return load_cluster(read_lists(*written(folder, nodes, pods)), Policy(), load, seed, ticks.__next__, nobody)


def test_pods_that_fit_are_placed_and_what_fits_nowhere_is_dropped(tmp_path: Path) -> None:
    """L3, L5: three quarters of each of six GPUs are taken, and nothing fits beside them."""
    found = loaded(tmp_path, TWO, PODS + "a,1000,0,1,750,\n", load=2.0)
    assert (found.nodes, found.gpus, found.pods, found.placed, found.dropped) == (2, 6, 16, 6, 10)
    assert found.allocated_percent["200"] == found.allocated_percent["100"] == 75.0
    assert found.allocated_percent["50"] == 50.0
    assert found.decisions_per_s == 8


def test_shares_of_one_gpu_are_bounded_by_their_sum_only(tmp_path: Path) -> None:
    """A hundred on one GPU."""
    found = loaded(tmp_path, NODES + "n,64000,262144,1,T4\n", PODS + "a,1,0,1,10,\n")
    assert (found.pods, found.dropped, found.allocated_percent["100"]) == (100, 0, 100.0)


def test_processors_are_counted_in_thousandths_and_pods_without_gpus_take_them(tmp_path: Path) -> None:
    """Two of half a CPU are all that one CPU holds."""
    found = loaded(tmp_path, NODES + "n,1000,1024,4,T4\n", PODS + "gpu,500,0,1,1000,\n")
    assert (found.placed, found.allocated_percent["100"]) == (2, 50.0)
    pods = PODS + "gpu,500,0,1,1000,\n" + "".join(f"cpus{at},500,0,0,0,\n" for at in range(9))
    assert loaded(tmp_path, NODES + "n,1000,1024,4,T4\n", pods).placed == 2
    assert loaded(tmp_path, NODES + "n,99000,1024,4,T4\n", pods).dropped == 0


def test_a_pod_runs_on_the_models_that_it_allows(tmp_path: Path) -> None:
    found = loaded(tmp_path, TWO, PODS + "a,1,0,1,1000,P100|T4\n", load=1.0)
    assert (found.placed, found.dropped, found.never_fit) == (2, 4, 0)


def test_a_pod_that_an_empty_cluster_would_not_hold_is_dropped_and_counted(tmp_path: Path) -> None:
    """L4: as some of the published lists have it."""
    found = loaded(tmp_path, TWO, PODS + "a,1,0,3,1000,P100\n", load=1.0)
    assert (found.pods, found.placed, found.dropped, found.never_fit) == (2, 0, 2, 2)


def test_each_pod_arrives_once_before_any_arrives_again_and_the_seed_draws_the_order(tmp_path: Path) -> None:
    """L2."""
    pods = PODS + "".join(f"p{number},1,0,1,100,\n" for number in range(40))
    lists = read_lists(*written(tmp_path, TWO, pods))
    first, again, other = ([pod.name for pod in arrivals(lists, 6_000, seed)] for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 60
    assert set(Counter(first[:40]).values()) == {1}
    assert first[:10] == [pod.name for pod in arrivals(lists, 1_000, 1)]


def test_a_cluster_that_fills_breaks_no_promise_at_any_event(tmp_path: Path) -> None:
    """The ledger of GPUs, shares, CPUs and memory is checked after each event."""
    rows = (f"p{at},{at * 700 % 9000},{at * 911 % 40000},1,{1 + at * 37 % 1000},\n" for at in range(40))
    with every_event_checked() as checked:
        found = loaded(tmp_path, TWO, PODS + "".join(rows) + "wide,9000,0,4,1000,V100M32\n", load=3.0)
    assert checked[0] > 90
    assert 50 < found.allocated_percent["300"] <= 100


def test_the_published_lists_are_read_and_fill_as_far_as_they_ask() -> None:
    """The part of the recorded list that ends before anything could be full."""
    lists = read_lists(OPENB / "openb_node_list_gpu_node.csv.gz", OPENB / "openb_pod_list_default.csv.gz")
    assert (len(lists.nodes), lists.gpus, len(lists.pods)) == (1_213, 6_212, 8_152)
    assert sum(pod.total_milli for pod in lists.pods) // 1_000 == 6_086
    ticks = iter((0.0, 1.0))
    found = load_cluster(lists, Policy(), 0.02, 42, ticks.__next__, nobody)
    assert (found.dropped, list(found.allocated_percent)) == (0, ["2"])
    assert 2.0 <= found.allocated_percent["2"] < 2.2


@pytest.mark.parametrize(
    ("nodes", "pods", "place", "says"),
    [
        ("sn,cpu_milli,memory_mib,gpu\n", PODS, ("nodes", 1, "model"), "no such column"),
        (TWO, "name,cpu_milli,memory_mib,num_gpu\n", ("pods", 1, "gpu_milli"), "no such column"),
        ("", PODS, ("nodes", 1, "sn"), "the file is empty"),
        (NODES, PODS, ("nodes", 0, "gpu"), "none of its nodes has a GPU"),
        (NODES + "n,1000,1000,0,\n", PODS, ("nodes", 0, "gpu"), "none of its nodes has a GPU"),
        (TWO + "n1,1,1,1,T4\n", PODS, ("nodes", 4, "sn"), "'n1' is already on line 2"),
        (NODES + "n,-1,1,1,T4\n", PODS, ("nodes", 2, "cpu_milli"), "isn't a whole number from 1"),
        (NODES + "n,1,1,1,\n", PODS, ("nodes", 2, "model"), "it is empty"),
        (NODES + "n,1,1,1000000,T4\n", PODS, ("nodes", 2, "gpu"), "a node has up to 999"),
        (NODES + "n,1,1,1.5,T4\n", PODS, ("nodes", 2, "gpu"), "isn't a whole number"),
        (TWO, PODS, ("pods", 0, "num_gpu"), "none of its pods asks for a GPU"),
        (TWO, PODS + "a,1,1,1,1000,\na,1,1,1,1000,\n", ("pods", 3, "name"), "already on line 2"),
        (TWO, PODS + "a,1,-5,1,1000,\n", ("pods", 2, "memory_mib"), "isn't a whole number from 0"),
        (TWO, PODS + "a,1,1,5,1000,\n", ("pods", 2, "num_gpu"), "no node has more than 4"),
        (TWO, PODS + "a,1,1,1,0,\n", ("pods", 2, "gpu_milli"), "isn't from 1 to 1000"),
        (TWO, PODS + "a,1,1,1,1001,\n", ("pods", 2, "gpu_milli"), "isn't from 1 to 1000"),
        (TWO, PODS + "a,1,1,2,500,\n", ("pods", 2, "gpu_milli"), "only of one GPU"),
        (TWO, PODS + "a,1,1,1,1000,T4|(\n", ("pods", 2, "gpu_spec"), "isn't a list of GPU models"),
        (TWO, PODS + "a,1,1,1,1000\n", ("pods", 2, "gpu_spec"), "5 cells"),
    ],
)
def test_a_fault_of_a_list_is_one_error_with_file_line_field_and_a_hint(
    tmp_path: Path, nodes: str, pods: str, place: tuple[str, int, str], says: str
) -> None:
    """L1."""
    with pytest.raises(StokerError) as caught:
        loaded(tmp_path, nodes, pods)
    refusal = caught.value.refusal
    file, line, field = place
    assert refusal.code == "bad_trace"
    assert [refusal.facts[key] for key in ("file", "line", "field")] == [str(tmp_path / file), line, field]
    assert says in refusal.message
    assert refusal.hint


def test_lists_in_gzip_that_end_early_say_so(tmp_path: Path) -> None:
    nodes, pods = written(tmp_path, TWO, PODS + "".join(f"p{at},{at},{at * 7},1,1000,\n" for at in range(900)))
    pods.write_bytes(pods.read_bytes()[:-20])
    with pytest.raises(StokerError) as caught:
        read_lists(nodes, pods)
    assert "breaks off or is damaged" in caught.value.refusal.message
