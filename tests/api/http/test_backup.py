"""A backup over REST: whole, one at a time, and for admins alone."""

import asyncio
import io
from pathlib import Path

import pytest

from stoker.adapters.sqlite.history import FileCopy
from stoker.brain.domain.access import Role
from stoker.brain.domain.audit import AuditQuery
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import JOB_ID_MAX, JobId, Position
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import load_snapshot
from stoker.brain.state.snapshot_format import unframed
from stoker.control.backup import Backup, Backups
from stoker.ports import HistoryFailed
from stoker.wire.backup import HISTORY, MEDIA_TYPE, SNAPSHOT, BackupHead, read_backup
from stoker.wire.endpoints import API_PREFIX
from tests.api.http.people import People
from tests.api.http.plane import Plane, plane_in
from tests.api.http.tokens import token_of

BACKUP = f"{API_PREFIX}/backup"
JOBS = f"{API_PREFIX}/jobs"


async def submit(plane: Plane) -> int:
    reply = await plane.ask("POST", JOBS, {"command": "true"})
    assert reply.status == 201
    return int(reply.json["id"])


def opened(content: bytes) -> tuple[BackupHead, ClusterState, bytes]:
    taken = {SNAPSHOT: io.BytesIO(), HISTORY: io.BytesIO()}
    head = read_backup(io.BytesIO(content), {name: into.write for name, into in taken.items()})
    chunks = unframed(Position(head.position), taken[SNAPSHOT].getvalue())
    return head, load_snapshot(chunks), taken[HISTORY].getvalue()


async def whole(backup: Backup) -> bytes:
    try:
        return b"".join([piece async for piece in backup.pieces()])
    finally:
        await backup.close()


async def test_a_backup_holds_every_job_that_was_acknowledged_before(plane: Plane) -> None:
    jobs = [await submit(plane) for _ in range(5)]
    reply = await plane.get(BACKUP)
    assert (reply.status, reply.headers["content-type"]) == (200, MEDIA_TYPE)
    assert int(reply.headers["content-length"]) == len(reply.body)
    head, state, _ = opened(reply.body)
    assert list(state.jobs) == jobs
    assert (head.position, head.epoch, head.cluster_id) == (state.position, state.epoch, state.cluster_id)
    assert head.counts.jobs == 5


async def test_it_is_of_one_position_whatever_happens_meanwhile(plane: Plane) -> None:
    """B1"""
    before = [await submit(plane) for _ in range(3)]
    backup = await Backups(plane.control).take()
    await submit(plane)
    head, state, _ = opened(await whole(backup))
    assert list(state.jobs) == before
    assert head.position == state.position < plane.control.committer.state.position


async def test_all_that_happened_up_to_there_is_in_its_history(plane: Plane) -> None:
    """B2"""
    agent = await plane.join("n1")
    await submit(plane)
    await agent.end(await agent.run())
    backup = await Backups(plane.control).take()
    await whole(backup)
    assert await plane.control.history.store.ids(None, JobId(JOB_ID_MAX), 10) == [1]
    rows = await plane.control.history.store.audit(AuditQuery(action="submit"), 0, 10)
    assert [row.job for row in rows] == [1]


async def test_a_second_one_at_the_same_time_is_refused_and_a_later_one_is_not(plane: Plane) -> None:
    """B3"""
    backups = Backups(plane.control)
    first = await backups.take()
    with pytest.raises(Exception, match="another backup is being taken"):
        await backups.take()
    await whole(first)
    await whole(await backups.take())


async def test_what_fails_before_it_is_sent_lets_the_next_one_be_taken(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B4"""
    with monkeypatch.context() as patched:
        patched.setattr(plane.control.history, "flush", _cannot)
        reply = await plane.get(BACKUP)
        assert (reply.status, reply.json["code"]) == (503, "history_unavailable")
    assert (await plane.get(BACKUP)).status == 200


async def _cannot(position: Position | None) -> bool:
    return False


@pytest.mark.parametrize("role", [Role.VIEWER, Role.USER])
async def test_nobody_but_an_admin_gets_one(tmp_path: Path, role: Role) -> None:
    async with plane_in(tmp_path / "data", open_to_owner=False) as plane:
        someone, admin = await token_of(plane, role, "default"), await token_of(plane, Role.ADMIN)
        reply = await plane.ask("GET", BACKUP, headers=someone)
        assert (reply.status, reply.json["code"]) == (403, "not_allowed")
        assert (await plane.ask("HEAD", BACKUP, headers=someone)).status == 403
        assert (await plane.ask("GET", BACKUP, headers=admin)).status == 200


async def test_whose_token_is_revoked_is_sent_no_more(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    """D1, D2"""

    async def revoke(copy: FileCopy) -> bytes:
        await people.admin.revoke()
        return b"the rest"

    monkeypatch.setattr(FileCopy, "read", revoke)
    await _is_broken_off(people)


async def test_what_cant_be_read_any_more_is_broken_off_and_the_next_one_may_be_taken(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1, B4"""

    async def fail(copy: FileCopy) -> bytes:
        raise HistoryFailed("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(FileCopy, "read", fail)
        await _is_broken_off(people)
    assert "backup_broken_off" in people.plane.log_text()
    assert (await people.admin.get(BACKUP)).status == 200


async def _is_broken_off(people: People) -> None:
    taking = people.admin.open(BACKUP)
    async with asyncio.timeout(30):
        await taking.broken.wait()
    assert taking.status == 200
    assert taking.sent[-1]["more_body"]
    with pytest.raises(StokerError) as short:
        opened(taking.body)
    assert short.value.refusal.code == "backup_damaged"
    taking.close()
    await asyncio.wait([taking.reading])


async def test_asking_for_the_head_alone_takes_no_backup(plane: Plane) -> None:
    reply = await plane.ask("HEAD", BACKUP)
    assert (reply.status, reply.body) == (200, b"")
    assert "backup_taken" not in plane.log_text()
    await plane.get(BACKUP)
    assert "backup_taken" in plane.log_text()


async def test_the_audit_trail_says_who_has_a_copy_of_it_all(plane: Plane) -> None:
    await plane.get(BACKUP)
    rows = (await plane.get(f"{API_PREFIX}/audit?action=backup")).json["rows"]
    position = plane.control.committer.state.position
    assert [(row["by"], row["outcome"], row["details"]) for row in rows] == [
        ("user:local", "unchanged", f"of position {position}")
    ]


async def test_a_parameter_is_refused_as_everywhere(plane: Plane) -> None:
    assert (await plane.get(f"{BACKUP}?since=1d")).json["code"] == "unknown_parameter"
