"""The SQLite log: the contract of the port, and rules of its own that need no second process."""

import asyncio
import os
from pathlib import Path

import pytest

from stoker.adapters.sqlite import files
from stoker.adapters.sqlite import journal as sqlite_journal
from stoker.adapters.sqlite.event_log import SqliteLog
from stoker.adapters.sqlite.files import SnapshotFiles
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import LogConflict, LogDamaged, LogFailed
from tests.adapters.folder_store import FolderStore
from tests.contracts.event_log import ONE, everything, numbered, opened, records
from tests.contracts.replica_log import ReplicaLogContract


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "data")


class TestSqliteLog(ReplicaLogContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> FolderStore:
        return FolderStore(tmp_path / "data")


async def fill(store: FolderStore, count: int, *snapshots: int) -> None:
    async with opened(store) as (log, end):
        await log.append(ONE, end, records(end + 1, count))
        for position in snapshots:
            await log.save_snapshot(Position(position), [b"at", str(position).encode()])


async def refusal_of_opening(store: FolderStore) -> StokerError:
    with pytest.raises(StokerError) as caught:
        async with opened(store):
            pass
    return caught.value


async def test_j1_a_commit_waits_for_the_disk(store: FolderStore) -> None:
    journal = sqlite_journal.SqliteJournal(_made(store.folder))
    modes = {name: journal._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")}
    journal.close()
    assert modes == {"journal_mode": "wal", "synchronous": 2}


async def test_j2_a_row_of_a_second_writer_makes_the_append_conflict(store: FolderStore) -> None:
    """The lock keeps others out; should one get in all the same (a copied folder, a broken lock), the store itself
    refuses."""
    async with opened(store) as (log, _):
        await log.append(ONE, Position(0), records(1, 2))
        store.sql("INSERT INTO event VALUES (3, 1, 0, x'00')")
        with pytest.raises(LogConflict, match="another writer"):
            await log.append(ONE, Position(2), records(3, 2))
        store.sql("DELETE FROM event WHERE position = 3")
    async with opened(store) as (_, end):
        assert end == 2


async def test_a_record_that_is_missing_is_refused(store: FolderStore) -> None:
    await fill(store, 5)
    store.sql("DELETE FROM event WHERE position = 3")
    with pytest.raises(LogDamaged, match=r"record 3 of .*stoker\.db can't be trusted: it isn't there"):
        async with opened(store):
            pass


async def test_two_records_that_changed_places_are_refused(store: FolderStore) -> None:
    await fill(store, 5)
    store.sql("UPDATE event SET position = 99 WHERE position = 2")
    store.sql("UPDATE event SET position = 2 WHERE position = 3")
    store.sql("UPDATE event SET position = 3 WHERE position = 99")
    with pytest.raises(LogDamaged, match="record 2 "):
        async with opened(store):
            pass


async def test_a_record_under_a_changed_epoch_is_refused(store: FolderStore) -> None:
    await fill(store, 5)
    store.sql("UPDATE event SET epoch = 9 WHERE position = 4")
    with pytest.raises(LogDamaged, match="record 4 "):
        async with opened(store):
            pass


async def test_a_store_of_other_bytes_is_refused(store: FolderStore) -> None:
    _made(store.folder).joinpath("stoker.db").write_bytes(b"not a database at all" * 500)
    with pytest.raises(LogDamaged, match=r"stoker\.db can't be read: .*backup"):
        async with opened(store):
            pass


async def test_a_page_of_the_store_that_was_overwritten_is_refused(store: FolderStore) -> None:
    await fill(store, 3_000)
    path = store.folder / "stoker.db"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xee" * 8_192)
    with pytest.raises(LogDamaged, match=r"To recover: copy .* from a backup") as caught:
        async with opened(store):
            pass
    assert "DELETE" not in str(caught.value), "no statement mends a broken page"


async def test_a_database_of_another_program_is_refused(store: FolderStore) -> None:
    _made(store.folder)
    store.sql("PRAGMA user_version = 1")
    with pytest.raises(LogDamaged, match="not one of Stoker's"):
        async with opened(store):
            pass


async def test_a_store_of_a_newer_version_is_refused_and_left_alone(store: FolderStore) -> None:
    await fill(store, 2)
    store.sql("PRAGMA user_version = 9999")
    refusal = (await refusal_of_opening(store)).refusal
    assert refusal.code == "store_too_new"
    assert "schema 9999" in refusal.message
    assert store.sql("PRAGMA user_version") == [(9999,)]


async def test_a_log_that_lost_its_end_is_refused(store: FolderStore) -> None:
    await fill(store, 9, 8)
    store.sql("DELETE FROM event WHERE position > 5")
    with pytest.raises(LogDamaged, match=r"ends at record 5, but .* was taken at 8"):
        async with opened(store):
            pass


async def test_a_store_that_was_emptied_behind_its_snapshot_is_refused(store: FolderStore) -> None:
    await fill(store, 9, 8)
    for leftover in store.folder.glob("stoker.db*"):
        leftover.unlink()
    with pytest.raises(LogDamaged, match="the end of the log is missing"):
        async with opened(store):
            pass


async def test_k2_falling_back_is_told_and_the_damaged_file_is_kept_aside(store: FolderStore) -> None:
    await fill(store, 9, 3, 6)
    store.damage_snapshot(Position(6))
    async with opened(store) as (log, _):
        await log.snapshot()
    ((name, fields),) = store.warnings
    assert (name, fields["used"]) == ("snapshot_damaged", 3)
    assert "snapshot-0000000000000006" in str(fields["error"])
    assert (store.folder / "snapshot.damaged").exists()
    assert not store.snapshot_path(6).exists()


async def test_k2_without_any_whole_snapshot_a_log_from_the_beginning_is_enough(store: FolderStore) -> None:
    await fill(store, 9, 3, 6)
    store.damage_snapshot(Position(3))
    store.damage_snapshot(Position(6))
    async with opened(store) as (log, _):
        assert await log.snapshot() is None
        assert await everything(log) == numbered(1, 9)


async def test_k2_no_snapshot_is_answered_that_the_log_does_not_continue(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, look_back_max=0)
    await fill(store, 90, 30, 60)
    store.damage_snapshot(Position(30))
    store.damage_snapshot(Position(60))
    async with opened(store) as (log, _):
        with pytest.raises(LogDamaged, match=r"no older whole snapshot, and the log begins at record 31.*backup"):
            await log.snapshot()
    assert store.snapshot_path(60).exists()  # refusing changes nothing


@pytest.mark.parametrize("keep", [0, 1, 20, 100, 200])
async def test_a_snapshot_cut_short_anywhere_is_never_taken_for_whole(store: FolderStore, keep: int) -> None:
    await fill(store, 9)
    async with opened(store) as (log, _):
        await log.save_snapshot(Position(5), [b"abcdefgh" * 8, b"ijkl" * 8])
    path = store.snapshot_path(5)
    data = path.read_bytes()
    path.write_bytes(data[: min(keep, len(data) - 1)])
    async with opened(store) as (log, _):
        assert await log.snapshot() is None
    assert len(store.warnings) == 1


async def test_a_snapshot_left_half_written_by_a_crash_is_swept(store: FolderStore) -> None:
    await fill(store, 9, 3)
    half = store.folder / "snapshot-0000000000000007.tmp"
    half.write_bytes(b'{"stoker_snapshot":1')
    async with opened(store) as (log, _):
        found = await log.snapshot()
        assert found is not None
        assert found.position == 3
    assert not half.exists()
    assert store.warnings == []


async def test_n2_two_snapshots_are_kept(store: FolderStore) -> None:
    await fill(store, 9, 2, 4, 6, 8)
    assert sorted(path.name for path in store.folder.glob("snapshot*")) == [
        store.snapshot_path(6).name,
        store.snapshot_path(8).name,
    ]


async def test_k3_records_are_trimmed_behind_the_older_snapshot_less_the_look_back(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, look_back_max=100)
    await fill(store, 3_000, 1_000)
    assert store.sql("SELECT min(position) FROM event") == [(1,)]  # one snapshot is no fallback yet
    await fill(store, 10, 2_500)
    assert store.sql("SELECT min(position), max(position) FROM event") == [(901, 3_010)]
    async with opened(store) as (log, _):
        assert await everything(log, after=900) == numbered(901, 2_110)
        with pytest.raises(LogDamaged, match="records before 901 were trimmed"):
            await everything(log, after=899)


async def test_the_last_record_is_never_trimmed_so_position_and_epoch_survive(tmp_path: Path) -> None:
    journal = sqlite_journal.SqliteJournal(_made(tmp_path / "data"))
    journal.append(Epoch(4), Position(0), records(1, 5))
    assert journal.trim(through=99, rows_max=3) == 3
    assert journal.trim(through=99, rows_max=3) == 1
    assert journal.trim(through=99, rows_max=3) == 0
    journal.close()
    again = sqlite_journal.SqliteJournal(tmp_path / "data")
    assert (again.first, again.end, again.epoch) == (5, 5, 4)
    again.close()


async def test_appends_go_on_while_a_snapshot_is_saved_and_the_log_is_trimmed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, look_back_max=0)
    await fill(store, 4_000, 1_000)
    async with opened(store) as (log, end):
        saving = asyncio.ensure_future(log.save_snapshot(Position(4_000), [b"x" * 1_000_000] * 5))
        during = 0
        while not saving.done():
            await log.append(ONE, end, records(end + 1, 1))
            end = Position(end + 1)
            during += 1
        await saving
        assert during > 5
        assert await everything(log, after=4_000) == numbered(4_001, end - 4_000)


async def test_a_snapshot_of_a_future_that_was_never_appended_is_a_bug(store: FolderStore) -> None:
    async with opened(store) as (log, _):
        with pytest.raises(AssertionError):
            await log.save_snapshot(Position(1), [b""])


async def test_a_snapshot_that_cannot_be_written_harms_nothing_acknowledged(store: FolderStore) -> None:
    async with opened(store) as (log, _):
        await log.append(ONE, Position(0), records(1, 3))
        store.snapshot_path(2).with_suffix(".tmp").mkdir()
        with pytest.raises((StokerError, LogFailed)) as caught:
            await log.save_snapshot(Position(2), [b"{}"])
        assert isinstance(caught.value, StokerError)
        assert caught.value.refusal.code == "data_dir_unusable"
        store.snapshot_path(2).with_suffix(".tmp").rmdir()
        await log.append(ONE, Position(3), records(4, 1))
    async with opened(store) as (_, end):
        assert end == 4


async def test_l3_after_a_full_store_nothing_more_is_accepted(store: FolderStore) -> None:
    async with opened(store) as (log, _):
        await log.append(ONE, Position(0), records(1, 3))
        assert isinstance(log, SqliteLog)
        await _limit_pages(log, 10)
        with pytest.raises(LogFailed, match="No space left on device"):
            await log.append(ONE, Position(3), [b"x" * 1_000_000])
        with pytest.raises(LogFailed, match="already refused"):
            await log.append(ONE, Position(3), [b"small"])
    async with opened(store) as (log, end):
        assert end == 3
        assert await everything(log) == numbered(1, 3)


async def test_a_folder_that_this_process_holds_cannot_be_opened_again(store: FolderStore) -> None:
    async with opened(store):
        refusal = (await refusal_of_opening(store)).refusal
        assert refusal.code == "data_dir_held"
        assert f"process {os.getpid()}" in refusal.message
    async with opened(store):  # and is free again afterwards
        pass


async def test_a_folder_is_let_go_when_opening_fails(store: FolderStore) -> None:
    await fill(store, 3)
    store.damage_record(Position(2))
    with pytest.raises(LogDamaged):
        async with opened(store):
            pass
    with pytest.raises(LogDamaged):  # damaged still, but not held
        async with opened(store):
            pass


async def test_a_path_that_is_a_file_is_refused_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    refusal = (await refusal_of_opening(FolderStore(tmp_path / "data"))).refusal
    assert refusal.code == "data_dir_unusable"
    assert str(tmp_path / "data") in refusal.message


async def test_the_folder_is_made_private_with_its_parents(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "a" / "b")
    async with opened(store):
        assert store.folder.stat().st_mode & 0o777 == 0o700


async def test_the_wal_is_moved_into_the_store_while_appends_go_on(store: FolderStore) -> None:
    async with opened(store) as (log, end):
        for _ in range(60):
            await log.append(ONE, end, [b"x" * 100_000] * 10)
            end = Position(end + 10)
        wal = (store.folder / "stoker.db-wal").stat().st_size
        assert wal < 48 * 1024 * 1024
        assert (store.folder / "stoker.db").stat().st_size > 4 * 1024 * 1024


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


async def _limit_pages(log: SqliteLog, pages: int) -> None:
    """SQLite's own bound on a store: to the code above it the disk is full."""

    def limit() -> None:
        log._opened()._db.execute(f"PRAGMA max_page_count = {pages}")

    await log._in(log._writer, limit)


async def test_n1_a_death_while_an_old_snapshot_goes_leaves_no_snapshot_that_is_cut_short(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store, 5, 1, 2)
    monkeypatch.setattr(files, "FREE_EVERY_BYTES", 20)
    real = os.fsync

    def dies(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().name == "snapshot-0000000000000001.tmp":
            raise OSError("the machine lost its power")
        real(fd)

    async with opened(store) as (log, end):
        await log.append(ONE, end, records(end + 1, 1))
        monkeypatch.setattr(os, "fsync", dies)
        with pytest.raises(StokerError):
            await log.save_snapshot(Position(3), [b"at", b"3"])
        monkeypatch.setattr(os, "fsync", real)
    assert SnapshotFiles(store.folder).positions() == [3, 2]
    async with opened(store) as (log, _):
        found = await log.snapshot()
        assert found is not None
        assert found.position == 3
    assert not list(store.folder.glob("*.tmp"))


async def test_nobody_else_can_read_what_the_log_keeps_even_in_a_folder_open_to_all(tmp_path: Path) -> None:
    """The environment of every job is in there, and jobs of others run on the same machine."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    log = SqliteLog(folder)
    await log.open()
    await log.append(Epoch(1), Position(0), [b"fact"])
    await log.save_snapshot(Position(1), [b"chunk"])
    modes = {path.name: path.stat().st_mode & 0o077 for path in folder.iterdir()}
    await log.close()
    assert len(modes) >= 4
    assert not any(modes.values()), modes
