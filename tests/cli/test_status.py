"""What does `stoker status` say about the cluster?"""

from stoker.cli.commands.status import cluster_pairs
from tests.cli.views import cluster


def test_members_of_arrays_are_counted_and_their_array_is_not_counted_beside_them() -> None:
    """An array of ten of which three run: its record and those of its members are four that are running."""
    busy = cluster(pending_jobs=7, running_jobs=3, jobs={"running": 4, "pending": 0, "succeeded": 2, "failed": 1})
    said = dict(cluster_pairs(busy))
    assert said["jobs"] == "3 run, 7 wait"
    assert said["ended"] == "2 succeeded, 1 failed, as far as they are remembered"


def test_a_fresh_cluster_has_no_line_about_what_ended() -> None:
    said = dict(cluster_pairs(cluster(pending_jobs=0, running_jobs=0, jobs={"running": 0, "succeeded": 0})))
    assert said["jobs"] == "0 run, 0 wait"
    assert "ended" not in said


def test_gpus_in_quarantine_are_told_while_there_are_any() -> None:
    said = dict(cluster_pairs(cluster(total_gpus=8, busy_gpus=2, available_gpus=2, quarantined_gpus=4)))
    assert said["gpus"] == "8 (simulated): 2 busy, 2 free, 0 offline, 4 quarantined"
    assert "quarantined" not in str(dict(cluster_pairs(cluster()))["gpus"])
