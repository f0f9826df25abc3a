"""A backup that comes in pieces becomes a log to go on with, or leaves nothing."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stoker.adapters.sqlite.event_log import SqliteLog
from stoker.adapters.sqlite.history import SqliteHistory
from stoker.adapters.sqlite.incoming_folder import IncomingFolder
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.state.invariants import violations
from stoker.control.backup import receive_backup
from stoker.control.snapshots import state_of
from tests.compat.make_backup import HERE
from tests.contracts.event_log import ONE, records

BACKUP = gzip.decompress((HERE / "backup-0.1.0.tar.gz").read_bytes())


async def pieces(content: bytes, size: int = 10_000) -> AsyncIterator[bytes]:
    for at in range(0, len(content), size):
        yield content[at : at + size]


async def begun(folder: Path) -> SqliteLog:
    """A log of five records, open."""
    log = SqliteLog(folder)
    await log.open()
    await log.append(ONE, Position(0), records(1, 5))
    return log


@pytest.mark.parametrize("size", [1_000, 513, 1_000_000])
async def test_a_backup_in_pieces_of_any_length_becomes_the_log_without_a_skip_of_epoch_or_ids(
    tmp_path: Path, size: int
) -> None:
    log = await begun(tmp_path / "data")
    came = await receive_backup(pieces(BACKUP, size), IncomingFolder(tmp_path / "data"))
    assert await log.install(came.epoch, came.position, came.folder)
    await log.close()
    log = SqliteLog(tmp_path / "data")
    try:
        assert await log.open() == came.position
        state = await state_of(log)
        assert violations(state) == []
        assert state.epoch == came.epoch
        assert await log.ends() == [(came.epoch, came.position)]
        await log.append(Epoch(came.epoch), came.position, records(1, 1))
    finally:
        await log.close()
    history = SqliteHistory(tmp_path / "data")
    try:
        mark = await history.open()
        assert (mark.cluster_id, mark.position) == (state.cluster_id, came.position)
        assert await history.ids(None, 2**31, 100), "what ended is in it"  # type: ignore[arg-type]  # an id
    finally:
        await history.close()


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (BACKUP[:-1], "backup_damaged"),
        (BACKUP[: len(BACKUP) // 2], "backup_damaged"),
        (BACKUP[:20_000] + bytes([BACKUP[20_000] ^ 1]) + BACKUP[20_001:], "backup_damaged"),
        (BACKUP + b"x", "backup_damaged"),
        (b"", "backup_foreign"),
        (b"something else" * 1_000, "backup_foreign"),
    ],
)
async def test_what_is_no_whole_backup_leaves_nothing_and_the_log_goes_on(
    tmp_path: Path, content: bytes, code: str
) -> None:
    log = await begun(tmp_path / "data")
    with pytest.raises(StokerError) as caught:
        await receive_backup(pieces(content), IncomingFolder(tmp_path / "data"))
    assert caught.value.refusal.code == code
    assert not (tmp_path / "data" / "incoming").exists()
    await log.append(ONE, Position(5), records(6, 1))
    await log.close()


async def test_a_stream_that_breaks_or_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    log = await begun(tmp_path / "data")
    never = asyncio.Event()

    async def stalled() -> AsyncIterator[bytes]:
        yield BACKUP[:50_000]
        await never.wait()

    async def broken() -> AsyncIterator[bytes]:
        yield BACKUP[:50_000]
        raise ConnectionError("the peer is gone")

    task = asyncio.create_task(receive_backup(stalled(), IncomingFolder(tmp_path / "data")))
    while not (tmp_path / "data" / "incoming").exists():
        await asyncio.wait((task,), timeout=0.01)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    with pytest.raises(ConnectionError):
        await receive_backup(broken(), IncomingFolder(tmp_path / "data"))
    assert not (tmp_path / "data" / "incoming").exists()
    came = await receive_backup(pieces(BACKUP), IncomingFolder(tmp_path / "data"))
    assert came.folder.exists()
    await log.close()
