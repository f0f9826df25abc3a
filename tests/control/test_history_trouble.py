"""The history can't be written, was lost, or isn't ours: R2 to R5 of `control.history`, N3 of `control.snapshots`."""

import asyncio

import pytest

from stoker.brain.domain.array import JobRef
from stoker.brain.domain.ids import JOB_ID_MAX, JobId, Position
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.state.commands import Requeue
from stoker.control import snapshots
from stoker.ports import HistoryFailed, HistoryMark
from tests.control.history_stage import FORGETFUL, FULL, archive_of, crash, run_one, worker
from tests.control.stage import ANNA, stage, virtual
from tests.rig.sim_history import SimArchive, SimHistory
from tests.rig.sim_log import SimDisk


@virtual
async def test_r2_a_history_that_cannot_be_written_stops_nothing_and_is_told_counted_and_tried_again() -> None:
    async with stage() as s, worker(s) as player:
        await s.pause()
        archive_of(s).fault = FULL
        jobs = [await run_one(s, player) for _ in range(5)]
        await s.pause(100)
        assert all(s.job(job).state is JobState.SUCCEEDED for job in jobs)
        assert FULL in s.control.history.fault
        assert (s.notes.gauges["history_ok"], s.notes.gauges["history_waiting"]) == (0, 10)
        assert 5 < s.notes.counts["history_failed"] < 20
        archive_of(s).fault = ""
        await s.pause(70)
        assert list(archive_of(s).jobs) == jobs
        assert (s.notes.gauges["history_ok"], s.control.history.fault) == (1, "")
        assert any("history_back" in line for line in s.notes.lines)
        assert "history_gap" not in s.notes.counts


@virtual
async def test_n3_a_snapshot_waits_for_a_broken_history_and_the_next_start_writes_what_was_missing() -> None:
    async with stage() as s, worker(s) as player:
        disk = s.disk
        await s.pause(40)
        kept = disk.snapshots[-1].position
        disk.archive.fault = FULL
        job = await run_one(s, player)
        await s.pause(600)
        assert disk.snapshots[-1].position == kept
        assert s.notes.counts["snapshot_held"] > 10
    disk.archive.fault = ""
    async with stage(disk, settings=FORGETFUL) as s:
        await s.pause(40)
        assert disk.archive.jobs[job][1].state is JobState.SUCCEEDED
        assert (job, 1, 0) in disk.archive.holdings
        assert "history_gap" not in s.notes.counts
        assert disk.snapshots[-1].position > kept


@virtual
async def test_n3_it_waits_an_hour_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage() as s, worker(s) as player:
        await s.pause(40)
        kept = s.disk.snapshots[-1].position
        archive_of(s).fault = FULL
        await run_one(s, player)
        await s.pause(3_500)
        assert s.disk.snapshots[-1].position == kept
        await s.pause(200)
        assert s.disk.snapshots[-1].position > kept
        assert s.notes.counts["snapshot_without_history"] == 1
        monkeypatch.setattr(snapshots, "HELD_FACTS_MAX", 3)
        kept = s.disk.snapshots[-1].position
        await run_one(s, player)
        await s.pause(40)
        assert s.disk.snapshots[-1].position > kept


@virtual
async def test_n3_while_the_history_can_be_written_it_is_never_behind_the_newest_snapshot() -> None:
    async with stage() as s:
        player = await s.join("n1", 1)
        for _ in range(20):
            await run_one(s, player, 7)
            snapshot = s.disk.snapshots[-1].position if s.disk.snapshots else 0
            assert archive_of(s).mark.position >= snapshot
    assert s.disk.archive.mark.position >= s.disk.snapshots[-1].position


@virtual
async def test_r3_what_no_longer_fits_is_filled_in_from_the_state_and_a_gap_is_told() -> None:
    async with stage() as s:
        player = await s.join("n1", 1)
        await s.pause()
        s.control.history._notes_max = 6
        archive_of(s).fault = FULL
        jobs = [await run_one(s, player) for _ in range(5)]
        live = await s.submit(tasks=1)
        start = await player.next_start(6)
        archive_of(s).fault = ""
        await s.pause(70)
        assert list(archive_of(s).jobs) == jobs
        assert [archive_of(s).holdings[job, 1, 0].until for job in jobs] == [s.job(job).ended_at for job in jobs]
        assert s.notes.counts["history_gap"] == 1
        await player.end(start.key)
        await s.pause()
        assert list(archive_of(s).jobs) == [*jobs, live]
        assert s.notes.counts["history_gap"] == 1


@virtual
async def test_r3_a_history_that_is_filled_anew_holds_nothing_that_is_not_durable() -> None:
    async with stage() as s:
        jobs = [await s.submit() for _ in range(6)]
        await s.pause()
        s.control.history._notes_max = 2
        archive_of(s).fault = FULL
        for job in jobs[:5]:
            await s.cancel(job)
        s.log.gate.clear()
        cancelling = asyncio.ensure_future(s.cancel(jobs[5]))
        await s.pause()
        archive_of(s).fault = ""
        await s.pause(100)
        assert archive_of(s).jobs == {}
        s.log.gate.set()
        await cancelling
        await s.pause(10)
        assert list(archive_of(s).jobs) == jobs


@virtual
async def test_r3_notes_that_are_given_up_while_a_batch_is_written_are_filled_in_from_the_state() -> None:
    async with stage() as s:
        store = s.control.history.store
        assert isinstance(store, SimHistory)
        jobs = [await s.submit() for _ in range(8)]
        await s.pause()
        s.control.history._notes_max = 4
        store._took_s = 3.0
        for job in jobs:
            await s.cancel(job)
            await s.pause(0.5)
        await s.pause(30)
        assert sorted(archive_of(s).jobs) == jobs
        assert s.notes.counts["history_gap"] >= 1


@virtual
async def test_a_store_that_was_taken_away_is_filled_anew_from_the_state() -> None:
    async with stage() as s, worker(s) as player:
        jobs = [await run_one(s, player) for _ in range(3)]
        await s.pause()
        archive_of(s).fault = "file is not a database"
        jobs.append(await run_one(s, player))
        await s.pause(10)
        archive_of(s).jobs.clear()
        archive_of(s).mark, archive_of(s).fault = HistoryMark(), ""
        await s.pause(70)
        assert list(archive_of(s).jobs) == jobs


@virtual
async def test_r3_what_the_state_has_forgotten_by_then_is_missing_and_all_else_is_there() -> None:
    async with stage(settings=FORGETFUL) as s:
        player = await s.join("n1", 1)
        await s.pause()
        s.control.history._notes_max = 4
        archive_of(s).fault = FULL
        jobs = [await run_one(s, player) for _ in range(5)]
        archive_of(s).fault = ""
        await s.pause(70)
        assert list(archive_of(s).jobs) == jobs[-1:]
        assert s.notes.counts["history_gap"] == 1


@virtual
async def test_r4_a_history_that_is_older_than_the_snapshot_is_filled_from_it() -> None:
    async with stage() as s:
        disk, player = s.disk, await s.join("n1", 1)
        jobs = [await run_one(s, player) for _ in range(3)]
    whole = disk.archive
    disk.archive = SimArchive()
    async with stage(disk) as s:
        await s.pause()
        assert disk.archive.jobs == {job: (disk.archive.jobs[job][0], s.job(job)) for job in jobs}
        assert [holding.until for holding in disk.archive.holdings.values()] == [
            holding.until for holding in whole.holdings.values()
        ]
        assert "history_gap" not in s.notes.counts  # a first history has no gap: nothing was promised
        assert len(disk.archive.offers) == 1


@virtual
async def test_a_history_that_was_deleted_is_written_anew_from_a_log_that_reaches_back_to_its_beginning() -> None:
    async with stage() as s:
        disk, player = s.disk, await s.join("n1", 1)
        for _ in range(12):
            await run_one(s, player, 1)
        await crash(s)
    whole, disk.archive = disk.archive, SimArchive()
    disk.snapshots = []
    async with stage(disk, settings=FORGETFUL) as s:
        await s.pause()
        assert {job: kept[1] for job, kept in disk.archive.jobs.items()} == {
            job: kept[1] for job, kept in whole.jobs.items()
        }
        assert disk.archive.holdings == whole.holdings
        assert disk.archive.offers == whole.offers


@virtual
async def test_a_long_replay_is_written_as_it_goes_though_its_notes_would_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage() as s:
        disk, player = s.disk, await s.join("n1", 1)
        for _ in range(30):
            await run_one(s, player, 1)
        await crash(s)
    whole, disk.archive = disk.archive, SimArchive()
    disk.snapshots = []
    monkeypatch.setattr(snapshots, "RELIEF_EVERY", 4)
    monkeypatch.setattr("stoker.control.history.Recorder.__init__.__kwdefaults__", {"notes_max": 12})
    async with stage(disk) as s:
        await s.pause()
        assert list(disk.archive.jobs) == list(whole.jobs)
        assert disk.archive.holdings == whole.holdings
        assert "history_gap" not in s.notes.counts


@virtual
async def test_a_death_between_the_history_and_the_snapshot_writes_nothing_twice() -> None:
    async with stage() as s, worker(s) as player:
        disk = s.disk
        await s.pause(40)
        jobs = [await run_one(s, player, 1) for _ in range(5)]
        await crash(s)
    before = (dict(disk.archive.jobs), dict(disk.archive.holdings), dict(disk.archive.offers))
    assert list(before[0]) == jobs
    assert disk.archive.mark.position > disk.snapshots[-1].position
    async with stage(disk) as s:
        assert s.control.history.ended() == {}
        await s.pause(1)
        assert (disk.archive.jobs, disk.archive.holdings, disk.archive.offers) == before


@virtual
async def test_r5_a_history_of_another_cluster_is_left_alone() -> None:
    disk = SimDisk()
    other = HistoryMark(cluster_id="another", position=Position(1))
    disk.archive.mark = other
    async with stage(disk) as s:
        player = await s.join("n1", 1)
        await run_one(s, player)
        await s.pause(10)
        assert "another" in s.control.history.fault
        assert "To recover" in s.control.history.fault
        assert (disk.archive.mark, disk.archive.jobs) == (other, {})
        with pytest.raises(HistoryFailed, match="that of cluster another"):  # its jobs are other people's
            await s.control.history.store.ids(None, JobId(JOB_ID_MAX), 10)
        disk.archive.mark = HistoryMark()  # moved away by a person
        await s.pause(70)
        assert s.control.history.fault == ""
        assert len(disk.archive.jobs) == 1


@virtual
async def test_r5_a_history_ahead_of_a_log_that_was_put_back_is_put_back_too() -> None:
    async with stage() as s:
        disk, player = s.disk, await s.join("n1", 1)
        kept = await run_one(s, player)
        await s.pause()
        backup = SimDisk(records=list(disk.records), epochs=list(disk.epochs))
        lost = await run_one(s, player)
        await s.pause()
        assert list(disk.archive.jobs) == [kept, lost]
    backup.archive = disk.archive
    async with stage(backup) as s:
        await s.pause()
        assert list(backup.archive.jobs) == [kept]
        assert s.notes.counts["history_put_back"] == 1
        assert await s.submit() == lost


@virtual
@pytest.mark.parametrize("has_snapshot", [True, False])
async def test_r5_a_job_that_was_requeued_after_the_log_was_put_back_to_has_its_earlier_end_again(
    has_snapshot: bool,
) -> None:
    async with stage() as s, worker(s) as player:
        disk = s.disk
        job = await s.submit()
        await player.run_to_end(job, exit_code=3)
        await s.pause(40)
        backup = SimDisk(records=list(disk.records), epochs=list(disk.epochs))
        backup.snapshots = list(disk.snapshots) if has_snapshot else []
        await s.committer.ask(Requeue(by=ANNA, target=JobRef(job)))
        again = await player.next_start(2)
        await player.say_started(again.key)
        await player.end(again.key)
        await s.pause()
        assert disk.archive.jobs[job][1].state is JobState.SUCCEEDED
    backup.archive = disk.archive
    async with stage(backup) as s:
        await s.pause()
        assert backup.archive.jobs[job][1].state is JobState.FAILED
        assert "history_gap" not in s.notes.counts
