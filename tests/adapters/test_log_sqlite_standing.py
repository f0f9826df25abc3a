"""What a log in SQLite keeps beside its records, and what it keeps of those that it loses."""

import asyncio
import base64
import json
import shutil
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from stoker.adapters.log_policy import checksum
from stoker.adapters.sqlite import journal
from stoker.adapters.sqlite.event_log import SqliteLog
from stoker.adapters.sqlite.files import truncated_files
from stoker.brain.domain.ids import Position
from stoker.ports import LogConflict, LogTrimmed
from tests.adapters.folder_store import FolderStore
from tests.contracts.event_log import ONE, TWO, everything, numbered, opened, records
from tests.contracts.replica_log import extended, found, history_reaches, noted
from tests.disk_calls import disk_calls

FIRST_STEP = Path(journal.__file__).parent / "migrations" / "0001_event_log.sql"


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "data")


def old_store(store: FolderStore, first: int, last: int) -> None:
    """As the version before left it, trimmed."""
    store.folder.mkdir(parents=True)
    db = sqlite3.connect(store.folder / "stoker.db", isolation_level=None)
    db.executescript(f"{FIRST_STEP.read_text()} PRAGMA user_version = 1;")
    for at, record in numbered(first, last + 1 - first):
        db.execute("INSERT INTO event VALUES (?, 1, ?, ?)", (at, checksum(at, 1, record), record))
    db.close()


async def test_j5_a_store_of_the_version_before_opens_and_does_not_know_what_stood_before_its_oldest_record(
    store: FolderStore,
) -> None:
    old_store(store, 11, 40)
    async with opened(store) as (log, end):
        assert (end, log.promised) == (40, 0)
        assert await log.ends() == [(1, 40)]
        assert await log.after(Position(38), 9) == await log.after(Position(38), 2)
        with pytest.raises(LogTrimmed):
            await log.after(Position(9), 1)
        await log.save_snapshot(Position(10), [b"at 10"])
        with pytest.raises(LogTrimmed):
            await log.cut(Position(10))
        assert await log.cut(Position(11))


async def test_j5_what_stands_before_the_oldest_record_is_known_once_this_version_has_trimmed(
    store: FolderStore,
) -> None:
    store.look_back_max = 0
    old_store(store, 11, 40)
    await extended(store, TWO, 1, 20, 30)
    async with opened(store) as (log, _):
        assert store.sql("SELECT epoch, position FROM standing") == [(1, 20)]
        assert await log.ends() == [(2, 41), (1, 40)]
        assert await log.cut(Position(20))
    assert (await found(store))[:2] == (20, 20)


async def test_j5_records_that_were_deleted_by_hand_do_not_make_it_believe_what_it_noted(store: FolderStore) -> None:
    store.look_back_max = 0
    await extended(store, ONE, 30, 10, 20)
    store.sql("DELETE FROM event WHERE position <= 15")
    async with opened(store) as (log, end):
        assert end == 30
        with pytest.raises(LogTrimmed):
            await log.after(Position(10), 1)
        assert await log.ends() == [(1, 30)]


async def test_j1_what_opening_finds_in_the_wal_is_in_the_store_before_anybody_hears_of_it(
    store: FolderStore, tmp_path: Path
) -> None:
    """A process that died between its write and its fsync may have left it in memory alone."""
    dead = FolderStore(tmp_path / "dead")
    async with opened(store) as (log, _):
        await log.append(ONE, Position(0), records(1, 5))
        shutil.copytree(store.folder, dead.folder)
    assert (dead.folder / "stoker.db-wal").stat().st_size > 0
    async with opened(dead) as (_, end):
        assert end == 5
        alone = FolderStore(tmp_path / "alone")
        alone.folder.mkdir()
        shutil.copy(dead.folder / "stoker.db", alone.folder)
    assert alone.sql("SELECT count(*) FROM event") == [(5,)]


async def test_j1_what_opening_finds_is_synced_with_its_names_and_before_that_nobody_has_the_log(
    store: FolderStore,
) -> None:
    async with opened(store) as (log, _):
        await log.append(ONE, Position(0), records(1, 5))
    with disk_calls() as made:
        found = journal.SqliteJournal(store.folder)
    assert made == ["fsync stoker.db", "fsync stoker.db-wal", f"fsync {store.folder.name}"]
    assert found.end == 5
    found.close()


async def test_l6_the_refusal_names_both_epochs(store: FolderStore) -> None:
    async with opened(store) as (log, _):
        await log.promise(TWO)
        with pytest.raises(LogConflict, match="promised to epoch 2; epoch 1 is over"):
            await log.append(ONE, Position(0), [b"{}"])


async def test_c1_a_tail_can_be_read_by_people_and_by_nobody_else_on_the_machine(store: FolderStore) -> None:
    async with opened(store) as (log, _):
        await log.append(ONE, Position(0), records(1, 2))
        await log.append(TWO, Position(2), [b'{"a":{"b":[1,2]}}', b"\xff\x00", b'{"c":\n1}'])
        said = await log.cut(Position(1))
    (path,) = truncated_files(store.folder)
    assert said == str(path)
    assert path.name == "tail-1-2-5.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"position": 2, "epoch": 1, "record": {"n": 2}},
        {"position": 3, "epoch": 2, "record": {"a": {"b": [1, 2]}}},
        {"position": 4, "epoch": 2, "base64": base64.b64encode(b"\xff\x00").decode()},
        {"position": 5, "epoch": 2, "base64": base64.b64encode(b'{"c":\n1}').decode()},
    ]


async def test_l7_a_history_that_cannot_be_put_back_now_is_put_back_by_the_next_process(store: FolderStore) -> None:
    """Even after the log has gone on beyond where the history had been."""
    await extended(store, ONE, 9)
    await noted(store, 1, 9)
    async with opened(store) as (log, _):
        await log.cut(Position(4))
    away = store.folder / "history.away"
    (store.folder / "history.db").rename(away)
    (store.folder / "history.db").mkdir()
    await extended(store, TWO, 9)
    assert [name for name, _ in store.warnings] == ["history_not_put_back"]
    (store.folder / "history.db").rmdir()
    away.rename(store.folder / "history.db")
    async with opened(store) as (_, end):
        assert end == 13
        mark, known = await history_reaches(store)
        assert (mark.position, known) == (4, [1, 2, 3, 4])
    await noted(store, 5, 13)
    async with opened(store):
        assert (await history_reaches(store))[0].position == 13, "once is enough"


async def test_snapshots_of_what_was_cut_off_are_kept_aside_the_newest_two(store: FolderStore) -> None:
    for turn in range(3):
        await extended(store, TWO, 9, 2 if not turn else 5, 9)
        async with opened(store) as (log, _):
            await log.cut(Position(3))
    assert len(list(store.folder.glob("snapshot-*.cut"))) == 2
    async with opened(store) as (log, _):
        assert await everything(log) == numbered(1, 3)


class SlowDisk:
    """It saves a snapshot once it is told to, or after so long that whoever waits for it has hung."""

    def __init__(self, log: SqliteLog) -> None:
        self.busy, self.go_on = threading.Event(), threading.Event()
        self.was_let_go = False
        self._save = log._snapshots.save
        log._snapshots.save = self.save  # type: ignore[method-assign]  # as slow as a disk may be

    def save(self, position: Position, chunks: Sequence[bytes]) -> None:
        self.busy.set()
        self.was_let_go = self.go_on.wait(5)
        self._save(position, chunks)


async def busy_with_a_snapshot(log: SqliteLog) -> SlowDisk:
    """A thread goes on with what nobody waits for any more."""
    await log.append(ONE, Position(0), records(1, 9))
    disk = SlowDisk(log)
    saving = asyncio.ensure_future(log.save_snapshot(Position(9), [b"at 9"]))
    await asyncio.to_thread(disk.busy.wait)
    saving.cancel()
    await asyncio.gather(saving, return_exceptions=True)
    return disk


async def test_k4_a_snapshot_whose_saver_was_cancelled_while_the_disk_was_busy_with_it_is_none_of_a_cut_log(
    store: FolderStore,
) -> None:
    async with opened(store) as (log, _):
        disk = await busy_with_a_snapshot(log)
        cutting = asyncio.ensure_future(log.cut(Position(4)))
        await asyncio.wait((cutting,), timeout=0.1)
        disk.go_on.set()
        await cutting
    async with opened(store) as (_, end):
        assert end == 4


async def test_k6_whoever_closes_it_waits_for_the_disk_and_holds_up_nobody_else(store: FolderStore) -> None:
    """A control plane answers between two lives, however long a snapshot of the last one takes."""
    async with opened(store) as (log, _):
        disk = await busy_with_a_snapshot(log)
        closing = asyncio.ensure_future(log.close())
        await asyncio.wait((closing,), timeout=0.1)
        disk.go_on.set()
        await closing
        assert disk.was_let_go
