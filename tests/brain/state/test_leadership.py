"""Epochs, and a cluster that comes from a backup."""

import msgspec
import pytest

from stoker.brain.domain.ids import CONTROL, JOB_ID_MAX, Epoch, JobId, Position
from stoker.brain.domain.policy import Policy
from stoker.brain.state.admit.leadership import EPOCHS_SKIPPED, IDS_SKIPPED
from stoker.brain.state.codec import load_snapshot, snapshot_chunks
from stoker.brain.state.commands import BeginEpoch, RestoreCluster
from stoker.brain.state.events.leadership import ClusterRestored
from stoker.brain.state.invariants import violations
from tests.brain.state.story import Story, spec

RESTORE = RestoreCluster(by=CONTROL)


def test_no_id_that_was_given_away_after_a_backup_is_given_away_again() -> None:
    story = Story()
    last = [story.submit(spec(1)) for _ in range(3)][-1]
    story.do(RESTORE)
    assert story.submit(spec(1)) == last + 1 + IDS_SKIPPED
    assert violations(story.state) == []


def test_of_two_restores_of_one_backup_the_later_begins_behind_all_that_the_earlier_can_have_given_away() -> None:
    """Which is at most an id each millisecond and an epoch each second."""
    earlier, later = Story(), Story()
    for story, waited_ms in ((earlier, 5_000), (later, 65_000)):
        story.submit(spec(1))
        story.wait(waited_ms)
        story.do(RESTORE)
    assert later.state.next_job_id == earlier.state.next_job_id + 60_000
    assert later.state.epoch == earlier.state.epoch + 60


def test_no_epoch_that_agents_may_have_seen_begins_again() -> None:
    story = Story()
    before = story.state.epoch
    story.do(RESTORE)
    assert story.state.epoch == before + EPOCHS_SKIPPED
    stale = story.refused(BeginEpoch(by=CONTROL, epoch=Epoch(before + 1), policy=Policy()))
    assert stale.code == "stale_epoch"


def test_what_a_backup_held_is_held_after_it_was_restored() -> None:
    story = Story()
    story.node("n1", 8)
    runs, waits = story.submit(spec(2)), story.submit(spec(2))
    story.run(runs, ("n1", 0))
    jobs = dict(story.state.jobs)
    story.do(RESTORE)
    assert story.state.jobs == jobs
    assert {runs, waits} <= jobs.keys()


def test_a_snapshot_keeps_the_ids_that_were_skipped() -> None:
    story = Story()
    story.do(RESTORE)
    loaded = load_snapshot(snapshot_chunks(story.state))
    assert loaded.next_job_id == story.state.next_job_id > IDS_SKIPPED


def test_a_cluster_without_a_million_ids_left_is_not_restored() -> None:
    story = Story()
    story.state.next_job_id = JobId(JOB_ID_MAX - IDS_SKIPPED + 1)
    refused = story.refused(RESTORE)
    assert refused.code == "ids_spent"


def test_a_fact_that_would_give_an_id_away_twice_is_never_applied() -> None:
    story = Story()
    story.submit(spec(1))
    with pytest.raises(AssertionError, match="would not be a new one"):
        story.apply(ClusterRestored(backup=Position(1), next_job_id=JobId(1)))


def test_a_restored_cluster_is_told_of_by_a_name_that_stays() -> None:
    assert msgspec.json.encode(ClusterRestored(backup=Position(7), next_job_id=JobId(9))) == (
        b'{"type":"cluster_restored","backup":7,"next_job_id":9}'
    )
