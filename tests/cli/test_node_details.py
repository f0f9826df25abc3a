"""What `stoker node show` tells of a node."""

import msgspec
import pytest

from stoker.brain.domain.lifecycle import NodeState
from stoker.cli.display.node_details import holder_text, links_text, node_pairs, note_of
from stoker.wire.rest.node import GpuLinkView, GpuSharerView, OrphanTaskView, PauseView
from tests.cli.views import node


@pytest.mark.parametrize(
    ("account", "allow_root", "words"),
    [
        ("root", False, "their own users"),
        ("root", True, "their own users, or root where none is named"),
        ("stoker-agent", False, "stoker-agent"),
    ],
)
def test_as_whom_its_jobs_run_is_told(account: str, allow_root: bool, words: str) -> None:
    assert dict(node_pairs(node(account=account, allow_root=allow_root)))["jobs run as"] == words


def test_what_is_in_quarantine_is_told_apart_from_what_runs_there_against_our_will() -> None:
    runs = OrphanTaskView(job="5", attempt=1, rank=0, gpus=("a",))
    waits = OrphanTaskView(job="7", attempt=2, rank=1, gpus=("b", "c"), quarantined_since="2026-01-01T00:00:00Z")
    shown = node(strays=[runs, waits])
    assert note_of(shown) == "2 GPUs in quarantine; 1 tasks to clear away"
    said = list(node_pairs(shown))
    assert ("to clear away", "job 5 attempt 1 rank 0 on 1 GPUs") in said
    (quarantine,) = (text for key, text in said if key == "in quarantine")
    assert str(quarantine).startswith(
        "job 7 attempt 2 rank 1 on 2 GPUs, lost 2026-01-01 00:00:00 UTC; until the agent here"
    )


def test_gpus_that_cannot_be_read_are_told_in_the_drivers_words() -> None:
    shown = node(gpu_fault="nvidia-smi: failed (exit 18): Driver/library version mismatch")
    assert note_of(shown) == "GPUs get no work: nvidia-smi: failed (exit 18): Driver/library version mismatch"


def test_which_gpus_nvlink_joins_is_told_once_where_each_is_joined_to_each() -> None:
    pairs = [GpuLinkView(first=one, second=two, lanes=18) for one, two in ((0, 1), (0, 2), (1, 2))]
    assert dict(node_pairs(node(links=pairs)))["nvlink"] == "GPUs 0, 1, 2: each to each, 18 lanes"
    assert links_text(pairs[:2]) == "0-1 x18, 0-2 x18"
    assert links_text([pairs[0], GpuLinkView(first=1, second=2, lanes=4)]) == "0-1 x18, 1-2 x4"
    assert links_text([]) == ""


def test_a_node_that_has_not_come_back_since_the_control_plane_began_to_lead_is_told_apart() -> None:
    assert note_of(node()) == ""
    assert note_of(node(schedulable=False)) == "no new work before it has reported to this control plane"
    drained = node(schedulable=False, state=NodeState.DRAINED, drain="disk")
    assert note_of(drained) == "drained: disk"


def test_a_pause_is_told_with_its_reason_and_until_when() -> None:
    pause = PauseView(until="2026-01-01T00:00:00Z", error="no space left on device")
    shown = node(schedulable=False, state=NodeState.PAUSED, pause=pause)
    told = "starts failed, no new work until 2026-01-01 00:00:00 UTC: no space left on device"
    assert note_of(shown) == dict(node_pairs(shown))["note"] == told


def test_whether_silence_ever_moves_its_jobs_is_told() -> None:
    assert dict(node_pairs(node(keeps_leases=True)))["leases"] == "kept"
    assert "its jobs wait for it" in str(dict(node_pairs(node()))["leases"])


def test_what_bounds_sharers_of_a_gpu_is_told() -> None:
    assert dict(node_pairs(node(mps="/tmp/nvidia-mps")))["sharing"] == "MPS at /tmp/nvidia-mps"
    assert "cooperative" in str(dict(node_pairs(node()))["sharing"])


def test_a_node_that_cannot_hold_jobs_to_a_limit_says_which() -> None:
    assert "not enforced" not in dict(node_pairs(node()))
    assert (
        dict(node_pairs(node(unenforced="no cgroup can be made here")))["not enforced"] == "no cgroup can be made here"
    )


def test_the_sharers_of_a_gpu_are_shown_with_their_shares_and_those_of_others_without_a_name() -> None:
    (first, *_) = node().gpus
    sharers = [GpuSharerView(job=job, share=share, memory_mb=1) for job, share in (("7", 0.25), ("", 0.5))]
    assert holder_text(msgspec.structs.replace(first, sharers=sharers)) == "7 (0.25), - (0.5)"
    assert holder_text(msgspec.structs.replace(first, current_task="9")) == "9"
