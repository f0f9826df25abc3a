"""When rows are written, what a crash leaves, and how much may wait: the rules of `control.audit_trail`."""

import asyncio

import pytest

from stoker.brain.domain.array import JobRef
from stoker.brain.domain.audit import NOBODY, AuditQuery, AuditRow
from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import JobId, NodeName, Principal
from stoker.brain.domain.quota import Pools
from stoker.brain.state.commands import Cancel, DrainNode, SetPools, Submit
from stoker.control import audit_trail, history
from stoker.control.audit_actions import AuditAction
from stoker.control.audit_trail import ASK
from stoker.control.settings import HistorySettings
from stoker.live.settings.control import ControlSettings
from stoker.ports import HistoryBatch, HistoryFailed, HistoryMark
from tests.control.audit_stage import rows_of, told, written
from tests.control.history_stage import FULL, archive_of
from tests.control.stage import ANNA, Stage, spec, stage, virtual
from tests.rig.sim_history import SimHistory
from tests.rig.sim_log import SimDisk

BOB = Principal("user:bob")
DENIED = refuse("not_allowed", "no", "ask an admin")
UNKNOWN = refuse("token_unknown", "no", "ask an admin")
READ = AuditAction("read_logs", "1", JobRef(JobId(1)))


def deny(s: Stage, by: Principal = BOB, asked: AuditAction = READ) -> None:
    s.control.audit_trail.refused(by, asked, DENIED, s.committer.now())


def die(s: Stage) -> None:
    """No snapshot on the way out, and nothing else that would be written."""
    s.control.snapshots._saved = s.state.position


@virtual
async def test_whoever_asks_sees_his_own_command_at_once() -> None:
    async with stage() as s:
        job = await s.submit()
        assert [(row.job, row.by) for row in await rows_of(s)] == [(job, ANNA)]
        assert written(s) == []
        await s.pause()
        assert written(s) == await rows_of(s)


@virtual
async def test_a_row_is_never_ahead_of_the_log() -> None:
    async with stage() as s:
        await s.submit()
        await s.pause()
        s.log.gate.clear()
        submitting = asyncio.ensure_future(s.submit())
        await s.pause(5)
        deny(s)
        await s.pause(5)
        assert [row.job for row in written(s)] == [1]
        s.log.gate.set()
        await submitting
        await s.pause()
        assert [row.outcome for row in written(s)] == ["ok", "ok", "not_allowed"]


@virtual
async def test_a_crash_between_a_command_and_its_row_loses_none_that_was_acknowledged() -> None:
    disk = SimDisk()
    async with stage(disk) as s:
        await s.submit()
        await s.pause()
        await s.committer.ask(Submit(by=BOB, specs=(spec(),) * 3))
        await s.cancel(JobId(2))
        rows = await rows_of(s)
        assert len(written(s)) == 1
        die(s)
    async with stage(disk) as s:
        assert await rows_of(s) == rows
        await s.pause()
        assert written(s) == rows
        die(s)
    async with stage(disk) as s:
        await s.pause()
        assert written(s) == rows


@virtual
async def test_a_snapshot_lets_the_log_forget_nothing_of_which_there_is_no_row() -> None:
    disk = SimDisk()
    async with stage(disk) as s:
        await s.pause(40)
        disk.archive.fault = FULL
        await s.submit()
        await s.cancel(JobId(1))
        with pytest.raises(StokerError, match="job_ended"):
            await s.cancel(JobId(1))
        await s.pause(100)
        die(s)
    disk.archive.fault = ""
    async with stage(disk) as s:
        await s.pause()
        # What was refused left nothing in the log: a refusal isn't promised to outlive a crash.
        assert [(row.action, row.outcome) for row in written(s)] == [("submit", "ok"), ("cancel", "ok")]


@virtual
async def test_rows_of_a_history_that_cannot_be_written_wait_and_are_written_in_order() -> None:
    async with stage() as s:
        await s.join("n1", 1)
        archive_of(s).fault = FULL
        await s.submit()
        deny(s)
        await s.committer.ask(DrainNode(by=BOB, node=NodeName("n1"), reason="fans"))
        await s.pause(30)
        assert archive_of(s).audit == {}
        archive_of(s).fault = ""
        await s.pause(70)
        assert [(row.action, row.by) for row in written(s)] == [
            ("submit", ANNA),
            ("read_logs", BOB),
            ("node_drain", BOB),
        ]
        assert [row.at for row in written(s)] == sorted(row.at for row in written(s))


@virtual
async def test_rows_outlive_a_history_that_is_filled_anew_and_fails_once_more_at_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed: list[HistoryBatch] = []
    record = SimHistory.record

    async def fail_once(store: SimHistory, batch: HistoryBatch) -> None:
        if batch.audit and not failed:
            failed.append(batch)
            raise HistoryFailed("the disk is gone")
        await record(store, batch)

    async with stage() as s:
        s.control.history._notes_max = 2
        archive_of(s).fault = FULL
        jobs = [await s.submit() for _ in range(6)]
        for job in jobs:
            await s.cancel(job)
        rows = await _noted(s)
        monkeypatch.setattr(SimHistory, "record", fail_once)
        archive_of(s).fault = ""
        await s.pause(200)
        assert (len(failed), list(archive_of(s).jobs)) == (1, jobs)
        assert written(s) == rows
        assert len(rows) == 12


@virtual
async def test_a_batch_that_holds_only_the_first_rows_marks_no_position_beyond_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    marks: list[HistoryMark] = []
    record = SimHistory.record

    async def fail_second(store: SimHistory, batch: HistoryBatch) -> None:
        marks.append(batch.mark)
        if len(marks) == 2:
            raise HistoryFailed("the disk is gone")
        await record(store, batch)

    monkeypatch.setattr(history, "ROWS_MAX", 3)
    async with stage() as s:
        await s.pause()
        monkeypatch.setattr(SimHistory, "record", fail_second)
        for _ in range(8):
            s.committer.tell(Submit(by=BOB, specs=(spec(),)))
        rows = await _noted(s)
        await s.pause(10)
        assert written(s) == rows
        assert marks[0].position == rows[2].position


async def _noted(s: Stage) -> list[AuditRow]:
    """Those that aren't in the store."""
    return list(s.control.audit_trail.unwritten(AuditQuery()))


@virtual
async def test_a_replay_in_slices_makes_one_row_of_a_command_that_a_slice_cuts_through() -> None:
    disk = SimDisk()
    async with stage(disk) as s:
        for _ in range(9):
            await s.committer.ask(Submit(by=BOB, specs=(spec(),) * 333))
        rows = await rows_of(s)
        disk.archive.audit.clear()
        disk.archive.mark = HistoryMark()
        disk.snapshots.clear()
        die(s)
    async with stage(disk) as s:
        s.control.audit_trail._rows_max = 8
        assert await rows_of(s) == rows
        await s.pause()
        assert written(s) == rows


def test_relief_in_the_middle_of_a_command_leaves_it_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_trail.AuditTrail, "is_half_full", property(lambda trail: True))
    monkeypatch.setattr("stoker.control.snapshots.RELIEF_EVERY", 100)
    test_a_replay_in_slices_makes_one_row_of_a_command_that_a_slice_cuts_through()


@virtual
async def test_a2_who_may_not_ask_leaves_a_row_that_names_the_job() -> None:
    async with stage() as s:
        await s.submit()
        deny(s)
        deny(s, asked=AuditAction("node_drain", "n1"))
        denied = await rows_of(s, AuditQuery(outcome="refused"))
        assert [(row.by, row.action, row.outcome, row.job, row.target, row.tenant) for row in denied] == [
            (BOB, "read_logs", "not_allowed", 1, "", "default"),
            (BOB, "node_drain", "not_allowed", 0, "n1", ""),
        ]
        await s.pause()
        assert written(s)[1:] == denied


@virtual
async def test_a_backup_is_written_down_without_another_command() -> None:
    async with stage() as s:
        await s.pause()
        s.control.audit_trail.backed_up(BOB, s.state.position, s.committer.now())
        await s.pause()
        assert [row.action for row in written(s)][-1:] == ["backup"]


@virtual
async def test_a3_wrong_tokens_cost_one_row_a_minute_which_counts_them() -> None:
    async with stage() as s:
        for _ in range(50):
            s.control.audit_trail.refused(NOBODY, READ, UNKNOWN, s.committer.now())
            await s.pause(0.1)
        (row,) = await rows_of(s)
        assert (row.by, row.outcome, row.times, row.job) == (NOBODY, "token_unknown", 50, 0)
        s.control.audit_trail.refused(NOBODY, READ, UNKNOWN, s.committer.now())
        await s.pause(1)
        assert [each.times for each in written(s)] == [51]
        await s.pause(60)
        s.control.audit_trail.refused(NOBODY, READ, UNKNOWN, s.committer.now())
        await s.pause(1)
        assert [each.times for each in written(s)] == [51, 1]


@virtual
async def test_a3_each_principal_that_asks_too_often_is_counted_and_beyond_the_bound_all_others_together() -> None:
    hasty = refuse("rate_limited", "no", "ask less often")
    async with stage() as s:
        trail = s.control.audit_trail
        trail._counted_max = 3
        for number in range(6):
            for _ in range(number + 1):
                trail.refused(Principal(f"user:p{number}"), READ, hasty, s.committer.now())
        assert [(row.by, row.times) for row in await rows_of(s)] == [
            ("user:p0", 1),
            ("user:p1", 2),
            ("user:p2", 3),
            (NOBODY, 4 + 5 + 6),
        ]
        await s.pause(61)
        trail.refused(Principal("user:p9"), READ, hasty, s.committer.now())
        assert (await rows_of(s))[-1].by == "user:p9"


@virtual
async def test_a6_who_is_refused_by_thousands_has_a_few_rows_which_count_them_all() -> None:
    async with stage() as s:
        trail = s.control.audit_trail
        trail._counted_of_one_max = 10
        for number in range(3_000):
            deny(s, asked=AuditAction("cancel", "", JobRef(JobId(number % 50 + 1))))
            if number % 300 == 0:
                deny(s, by=Principal("user:eve"), asked=AuditAction("cancel", "", JobRef(JobId(number + 1))))
        await s.pause()
        rows = written(s)
        bobs = [row for row in rows if row.by == BOB]
        assert [row.times for row in bobs[:10]] == [60] * 10
        assert [(row.action, row.outcome, row.times) for row in bobs[10:]] == [(ASK, "not_allowed", 40 * 60)]
        assert [(row.job, row.times) for row in rows if row.by != BOB] == [(1 + 300 * n, 1) for n in range(10)]
        await s.pause(61)
        deny(s)
        await s.pause()
        assert (written(s)[-1].action, written(s)[-1].times) == ("read_logs", 1)


@virtual
async def test_a6_while_rows_wait_nobody_takes_the_places_of_others() -> None:
    async with stage() as s:
        trail = s.control.audit_trail
        trail._rows_max = 40
        archive_of(s).fault = FULL
        for _ in range(100):
            await s.committer.ask(Submit(by=BOB, specs=(spec(),)))
        mine = [await s.submit() for _ in range(5)]
        archive_of(s).fault = ""
        await s.pause(70)
        rows = written(s)
        assert [row.job for row in rows if row.by == ANNA] == mine
        assert len([row for row in rows if row.by == BOB]) == 20
        assert [(row.target, row.count) for row in rows if row.action == audit_trail.DROPPED] == [(BOB, 80)]


@virtual
async def test_a7_of_whom_the_history_drops_rows_for_its_bound_is_told_by_one_row_a_day() -> None:
    async with stage(settings=ControlSettings(history=HistorySettings(audit_rows_max=1_000))) as s:
        mine = [await s.submit() for _ in range(20)]
        for _ in range(2):
            for number in range(1_000):
                s.committer.tell(SetPools(by=BOB, pools=Pools(online=number, batch=0)))
            await s.pause()
            await s.control.history.trim()
        await s.pause()
        rows = written(s)
        assert [row.job for row in rows if row.by == ANNA] == mine
        (told_of,) = [row for row in rows if row.action == audit_trail.DROPPED]
        assert (told_of.by, told_of.target, told_of.count) == ("control", BOB, 2_000 + 20 + 1 - 1_000)


@virtual
async def test_a4_what_does_not_fit_is_counted_and_told_by_a_row_of_its_own() -> None:
    async with stage() as s:
        trail = s.control.audit_trail
        trail._rows_max = 8
        archive_of(s).fault = FULL
        for _ in range(9):
            await s.submit()
        await s.pause(5)
        assert trail.waiting == 4
        assert (s.notes.counts["audit_rows_dropped"], s.notes.counts["audit_trail_full"]) == (5, 1)
        archive_of(s).fault = ""
        await s.pause(70)
        await s.submit()
        await s.pause()
        rows = written(s)
        assert [row.job for row in rows if row.action == "submit"] == [1, 2, 3, 4, 10]
        (gap,) = [row for row in rows if row.action == audit_trail.DROPPED]
        assert (gap.by, gap.target, gap.count) == ("control", ANNA, 5)
        assert trail.waiting == 0


@virtual
async def test_numbers_that_run_out_under_one_position_drop_rows_instead_of_mixing_them_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit_trail, "NUMBERS", 4)
    async with stage() as s:
        await s.submit()
        await s.pause()
        for number in range(6):
            deny(s, asked=AuditAction("cancel", f"n{number}"))
        assert len(await rows_of(s, AuditQuery(outcome="refused"))) == 3
        await s.committer.ask(SetPools(by=ANNA, pools=Pools(online=0, batch=0)))
        deny(s)
        assert len(await rows_of(s, AuditQuery(outcome="refused"))) == 4
        assert s.notes.counts["audit_rows_dropped"] >= 3


@virtual
async def test_of_the_active_one_a_standby_waits_only_for_rows_of_facts_and_only_up_to_a_position() -> None:
    """What was refused stands on no fact, so it is written by whoever refused it."""
    async with stage() as s:
        trail, before = s.control.audit_trail, s.state.position
        deny(s)
        assert not trail.told_through(before)
        await s.submit()
        trail.finish_row()
        assert not trail.told_through(before)
        assert trail.told_through(s.state.position)


@virtual
async def test_beyond_the_bound_of_the_settings_the_oldest_rows_go() -> None:
    async with stage(settings=ControlSettings(history=HistorySettings(audit_rows_max=1_000))) as s:
        for number in range(1_040):
            s.committer.tell(SetPools(by=ANNA, pools=Pools(online=number, batch=0)))
        await s.pause()
        assert len(written(s)) == 1_040
        await s.control.history.trim()
        assert [row.details for row in written(s)][::999] == ["online 0.00004, batch 0", "online 0.001039, batch 0"]
        assert any("history_trimmed" in line for line in s.notes.lines)


@virtual
async def test_a_second_cancel_is_told_as_what_it_was() -> None:
    async with stage() as s:
        await s.join("n1", 1)
        job = await s.submit()
        await s.pause()
        outcomes = [(await told(s, Cancel(by=ANNA, target=JobRef(job))))[0].outcome for _ in range(2)]
        assert outcomes == ["ok", "unchanged"]  # its processes aren't proved gone yet
