"""When rows of the audit trail are sent elsewhere, and what a target that takes none holds up: nothing."""

import asyncio
import json
from collections.abc import Sequence

from stoker.brain.domain.audit import AuditRow
from stoker.brain.domain.ids import JobId
from stoker.control.audit_actions import AuditAction
from stoker.control.audit_shipping import AuditShipper
from tests.control.history_stage import FULL, archive_of
from tests.control.stage import Stage, stage, virtual
from tests.control.test_audit_trail import BOB, DENIED, deny, die
from tests.rig.sim_log import SimDisk


class Target:
    """A target that takes rows, refuses them, or never answers."""

    def __init__(self) -> None:
        self.rows: list[AuditRow] = []
        self.texts: list[bytes] = []
        self.fault = ""
        self.gate = asyncio.Event()
        self.gate.set()

    async def send(self, rows: Sequence[tuple[AuditRow, bytes]]) -> str:
        await self.gate.wait()
        if not self.fault:
            self.rows += [row for row, _ in rows]
            self.texts += [text for _, text in rows]
        return self.fault

    async def close(self) -> None:
        """Nothing is open."""

    @property
    def told(self) -> list[tuple[str, int, int]]:
        return [(row.action, row.job, row.times) for row in self.rows]


def shipper_of(s: Stage) -> AuditShipper:
    shipper = s.control.history.shipper
    assert shipper is not None
    return shipper


@virtual
async def test_each_row_is_sent_within_a_second_as_a_json_object_that_the_audit_shows_too() -> None:
    target = Target()
    async with stage(sink=target) as s:
        job = await s.submit()
        await s.cancel(job)
        await s.pause()
        assert target.told == [("submit", 1, 1), ("cancel", 1, 1)]
        first = json.loads(target.texts[0])
        assert (first["by"], first["action"], first["outcome"], first["job"]) == ("user:anna", "submit", "ok", "1")


@virtual
async def test_h1_a_target_that_never_answers_holds_up_no_command_and_no_history() -> None:
    target = Target()
    async with stage(sink=target) as s:
        target.gate.clear()
        for _ in range(50):
            await s.submit()
        await s.pause()
        assert len(archive_of(s).audit) == 50
        assert target.rows == []
        target.gate.set()
        await s.pause()
        assert [row.job for row in target.rows] == list(range(1, 51))


@virtual
async def test_h1_rows_are_sent_while_the_history_cannot_be_written() -> None:
    target = Target()
    async with stage(sink=target) as s:
        archive_of(s).fault = FULL
        await s.submit()
        await s.pause()
        assert target.told == [("submit", 1, 1)]
        archive_of(s).fault = ""
        await s.pause(70)
        assert len(target.rows) == 1


@virtual
async def test_h2_a_row_is_never_ahead_of_the_log() -> None:
    target = Target()
    async with stage(sink=target) as s:
        s.log.gate.clear()
        submitting = asyncio.ensure_future(s.submit())
        await s.pause(5)
        assert target.rows == []
        s.log.gate.set()
        await submitting
        await s.pause()
        assert target.told == [("submit", 1, 1)]


@virtual
async def test_h3_after_a_crash_rows_that_may_not_have_been_sent_are_sent_again() -> None:
    disk, first, second = SimDisk(), Target(), Target()
    async with stage(disk, sink=first) as s:
        await s.pause(65)
        await s.submit()
        await s.pause(15)
        first.fault = "full"
        await s.submit()
        await s.pause()
        die(s)
    async with stage(disk, sink=second) as s:
        await s.pause()
        assert [row.job for row in second.rows] == [2]


@virtual
async def test_h3_a_clean_stop_sends_what_waits() -> None:
    target = Target()
    async with stage(sink=target) as s:
        await s.pause()
        await s.submit()
    assert target.told == [("submit", 1, 1)]


@virtual
async def test_h4_beyond_the_bound_the_oldest_go_and_are_told_once_rows_are_taken_again() -> None:
    target = Target()
    async with stage(sink=target) as s:
        shipper_of(s)._rows_max = 20
        target.fault = "the disk is full"
        await s.pause()
        for _ in range(25):
            await s.submit()
        await s.pause(5)
        assert (s.notes.counts["audit_rows_unshipped"], s.notes.gauges["audit_ship_ok"]) == (15, 0)
        assert s.notes.counts["audit_not_shipped"] == 1
        target.fault = ""
        await s.pause(31)
        assert [row.job for row in target.rows] == [0, *range(16, 26)]
        assert (target.rows[0].action, target.rows[0].count) == ("rows_dropped", 15)
        assert s.notes.gauges["audit_ship_ok"] == 1


@virtual
async def test_h5_what_is_counted_by_the_minute_is_sent_at_its_beginning_and_at_its_end() -> None:
    target = Target()
    async with stage(sink=target) as s:
        for _ in range(100):
            deny(s)
            await s.pause(0.1)
        s.control.audit_trail.refused(BOB, AuditAction("cancel", "n1"), DENIED, s.committer.now())
        await s.pause()
        assert [(row.action, row.job, row.times) for row in target.rows] == [("read_logs", 1, 1), ("cancel", 0, 1)]
        await s.pause(60)
        assert [(row.action, row.times) for row in target.rows[2:]] == [("read_logs", 100)]
        assert target.rows[0].key == target.rows[2].key
        assert target.rows[0].job == JobId(1)
