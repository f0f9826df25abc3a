"""Finding the state again: N1 to N3 of `control.snapshots`, restart keeps everything."""

import asyncio
from collections.abc import Sequence

import pytest

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import Epoch, JobId, Position
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.units import Instant
from stoker.brain.state.codec import snapshot_chunks
from stoker.brain.state.commands import Submit
from stoker.control import snapshots
from stoker.ports import LogDamaged
from tests.control.stage import ANNA, spec, stage, virtual
from tests.rig.sim_log import SimDisk


@virtual
async def test_a_restart_knows_every_acknowledged_job_in_its_order() -> None:
    async with stage() as s:
        disk = s.disk
        jobs = [await s.submit(priority=priority) for priority in (1, 9, 5)]
    async with stage(disk) as s:
        assert list(s.state.jobs) == jobs
        assert [s.job(job).spec.priority for job in jobs] == [1, 9, 5]
        player = await s.join("n1", 3)
        await player.next_start(3)
        assert [start.key.job for start in player.starts] == [jobs[1], jobs[2], jobs[0]]


@virtual
async def test_recovery_from_a_snapshot_and_from_the_whole_log_give_the_same_bytes() -> None:
    async with stage() as s:
        disk = s.disk
        player = await s.join("n1", 4)
        for _ in range(30):
            await s.submit()
        await player.end((await player.next_start()).key)
        await s.pause(40)  # a snapshot is taken meanwhile
        await s.submit()
        await s.pause()
        records = list(snapshot_chunks(s.state))[1:]
        position = s.state.position
        s.control.snapshots._saved = position  # a crash: none on the way out
    assert 0 < disk.snapshots[-1].position < position
    whole = SimDisk(records=list(disk.records), epochs=list(disk.epochs))
    for kept in (disk, whole):
        async with stage(kept) as s:
            assert kept.end == position + 1  # the new epoch, and nothing else
            awaited = [records[0].replace(b'"returned":true', b'"returned":false'), *records[1:]]
            assert list(snapshot_chunks(s.state))[1:] == awaited


@virtual
async def test_no_snapshot_is_taken_while_nothing_changes() -> None:
    async with stage() as s:
        await s.submit()
        await s.pause(100)
        taken = s.notes.counts["snapshot_observed"]
        await s.pause(1_000)
        assert s.notes.counts["snapshot_observed"] == taken


@virtual
async def test_a_snapshot_is_saved_only_once_its_position_is_durable() -> None:
    async with stage() as s:
        await s.pause()
        s.log.gate.clear()
        submitting = asyncio.ensure_future(s.submit())
        await s.pause(0.1)
        saving = asyncio.ensure_future(s.control.snapshots.save())
        await s.pause(1)
        assert not s.disk.snapshots
        s.log.gate.set()
        await asyncio.gather(submitting, saving)
        assert s.disk.snapshots[-1].position <= s.committer.durable


@virtual
async def test_others_run_between_the_slices_of_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []

    async def saved(position: Position, chunks: Sequence[bytes]) -> None:
        turns.append(0)
        assert len(turns) - 1 >= len(chunks) >= 12

    async with stage() as s:
        await s.committer.ask(Submit(by=ANNA, specs=(spec(),) * 5_000))
        await s.pause()
        assert await s.control.history.flush(s.committer.durable)  # no wait for virtual time is left
        monkeypatch.setattr(s.log, "save_snapshot", saved)
        saving = asyncio.ensure_future(s.control.snapshots.save())
        while not saving.done():
            turns.append(1)
            await s.pause(snapshots.REST_S)
        await saving
        assert 0 in turns


@virtual
async def test_a_snapshot_that_cannot_be_saved_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object) -> None:
        raise StokerError(refuse("data_dir_unusable", "no space left on device", "free some"))

    async with stage() as s:
        disk = s.disk
        monkeypatch.setattr(s.log, "save_snapshot", full)
        await s.submit()
        await s.pause(40)
        assert s.notes.counts["snapshot_failed"] >= 1
        job = await s.submit()
    async with stage(disk) as s:
        assert s.job(job).state is JobState.PENDING


@virtual
async def test_a_record_that_cannot_be_read_or_applied_refuses_the_start_and_names_its_position() -> None:
    async with stage() as s:
        disk = s.disk
        await s.submit()
        s.control.snapshots._saved = s.state.position
    position = disk.end
    for broken in (b'{"v":1', b'{"v":99,"at":1,"by":"x","event":{}}', disk.records[-1]):
        damaged = SimDisk(records=[*disk.records, broken], epochs=[*disk.epochs, disk.epochs[-1]])
        with pytest.raises(LogDamaged, match=f"record {position + 1} "):
            async with stage(damaged):
                pass


@virtual
async def test_twenty_restarts_with_compaction_lose_nothing() -> None:
    """faults.md 124."""
    disk, known = SimDisk(), list[JobId]()
    for life in range(20):
        async with stage(disk) as s:
            assert list(s.state.jobs) == known
            assert s.state.epoch == life + 1
            known.append(await s.submit())


@virtual
async def test_a_clock_set_back_between_two_starts_does_not_run_the_log_backwards() -> None:
    async with stage() as s:
        disk = s.disk
        await s.submit()
        s.state.last_at = Instant(s.state.last_at + 86_400_000)
        await s.submit()
    async with stage(disk) as s:
        job = await s.submit()
        assert s.job(job).submitted_at >= 1_800_000_000_000 + 86_400_000


@virtual
async def test_whoever_goes_on_alone_begins_above_what_was_promised_to_a_take_over_that_came_to_nothing() -> None:
    async with stage() as s:
        disk, epoch = s.disk, s.state.epoch
    disk.promised = Epoch(epoch + 7)
    async with stage(disk) as s:
        assert s.state.epoch == epoch + 8
        await s.submit()
