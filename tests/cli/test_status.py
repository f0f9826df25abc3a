"""What `stoker status` says about the cluster and about one job."""

import msgspec

from stoker.brain.domain.job import StopCause
from stoker.brain.domain.lifecycle import Outcome
from stoker.cli.commands.status import cluster_pairs
from stoker.cli.display.formatting import instant_ms
from stoker.cli.display.job_details import job_pairs
from stoker.wire.rest.job import JobView
from tests.cli.views import at, attempt, cluster, job


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


def test_gpus_that_are_lost_are_told_while_there_are_any() -> None:
    said = dict(cluster_pairs(cluster(total_gpus=6, busy_gpus=2, available_gpus=3, lost_gpus=1)))
    assert said["gpus"] == "6 (simulated): 2 busy, 3 free, 0 offline, 1 lost"
    assert "lost" not in str(dict(cluster_pairs(cluster()))["gpus"])


def test_shared_gpus_are_told_with_what_keeps_programs_to_their_shares() -> None:
    assert "shared" not in dict(cluster_pairs(cluster()))
    loose = dict(cluster_pairs(cluster(shared_gpus=3, sharing_nodes_without_mps=1)))["shared"]
    assert "on 1 node without MPS: there only the programs themselves keep to their shares" in str(loose)
    assert "MPS keeps" in str(dict(cluster_pairs(cluster(shared_gpus=3)))["shared"])


def test_a_job_that_shares_a_gpu_shows_its_share_and_its_bound() -> None:
    said = dict(job_pairs(job(gpu_count=1, gpu_share=0.25, gpu_memory_mb=10_240), 0, whole=True))
    assert any("0.25 of a GPU, within 10240 MiB" in str(text) for text in said.values())


class Annotated(JobView, frozen=True, kw_only=True, omit_defaults=True):
    """A job as it would look with two more optional text fields, and one that must be there."""

    note: str = ""
    on_call: str | None = None
    required: str


def annotated(**texts: str) -> Annotated:
    return Annotated(**msgspec.structs.asdict(job(comment="c", lost_after_ms=60_000)), required="hidden", **texts)


def test_an_optional_text_field_of_a_job_is_shown_by_its_name_behind_the_others() -> None:
    said = list(job_pairs(annotated(note="reads from disk 2", on_call="ada"), 0, whole=False))
    at = said.index(("note", "reads from disk 2"))
    assert said[at - 2 : at + 2] == [
        ("comment", "c"),
        ("lost after", "1m of silence"),
        ("note", "reads from disk 2"),
        ("on call", "ada"),
    ]
    assert "hidden" not in dict(said).values()


def test_a_text_field_without_a_value_and_one_that_stands_elsewhere_have_no_line_of_their_own() -> None:
    said = [
        key
        for key, _ in job_pairs(
            job(array="0-9", message="m", error="e", status="submitted", time_limit_at=at(9)), 0, whole=True
        )
    ]
    assert {"note", "array", "message", "error", "status", "array of", "time limit at"}.isdisjoint(said)
    assert said.count("stderr") == 1


def test_the_end_of_a_time_limit_is_told_once_and_with_its_date_where_it_is_far_off() -> None:
    ends = at(0)
    for left_h, told in ((1, "ends 00:00:00 UTC"), (23, "ends 2026-11-28 00:00:00 UTC")):
        now = instant_ms(ends) - left_h * 3_600_000
        said = dict(job_pairs(job(time_limit_at=ends, time_limit_ms=86_400_000), now, whole=False))
        assert told in str(said["time limit"])
        assert "time limit at" not in said


def test_a_job_that_gave_way_says_for_which_job_at_what_time_and_how_often() -> None:
    tried = msgspec.structs.replace(
        attempt(), outcome=Outcome.PREEMPTED, stopping=StopCause.PREEMPTED, for_job="17", ended_at=at(9)
    )
    shown = job(preemptible=True, checkpoint_ms=600_000, signal="USR1@90", preemptions=1, attempts=(tried,))
    said = dict(job_pairs(shown, 0, whole=False))
    assert str(said["attempt 1"]).startswith("preempted for job 17 at 00:00:09 UTC, placed")
    assert str(said["retries"]).endswith("0 requeues, preempted 1 time")
    assert (said["preemptible"], said["checkpoint"], said["signal"]) == (
        "by jobs of a higher priority",
        "every 10m",
        "USR1@90",
    )
    live = msgspec.structs.replace(tried, outcome=None, ended_at=None)
    said = dict(job_pairs(job(attempts=(live,)), 0, whole=False))
    assert str(said["attempt 1"]).startswith("giving way for job 17, placed")
