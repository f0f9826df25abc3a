"""The SQLite log on a disk without room: a small file system of its own, really full."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.adapters.sqlite.event_log import SqliteLog
from stoker.adapters.sqlite.history import SqliteHistory
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Position
from stoker.ports import Incoming, LogBeginning, LogFailed
from tests.adapters.folder_store import FolderStore
from tests.contracts.event_log import ONE, TWO, everything, numbered, opened, records
from tests.contracts.replica_log import CLUSTER, noted


class Disk:
    """2 MiB, with a file that fills it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = FolderStore(path / "data")

    def fill(self) -> None:
        with (self.path / "filler").open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                return

    def make_room(self) -> None:
        (self.path / "filler").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


async def filled(disk: Disk) -> int:
    """A log with a snapshot, and then no room: how far it was acknowledged."""
    async with opened(disk.store) as (log, _):
        await log.append(ONE, Position(0), records(1, 5))
        await log.save_snapshot(Position(3), [b"state"])
        disk.fill()
        end = 5
        while await appended(log, end):
            end += 2
        with pytest.raises(LogFailed, match="No space left on device"):
            await log.append(ONE, Position(end), [b"{}"])
    return end


async def appended(log: SqliteLog, end: int) -> bool:
    """Two records; False = there was no room."""
    try:
        await log.append(ONE, Position(end), [b"{}", b"x" * 50_000])
    except LogFailed:
        return False
    return True


async def test_k5_a_log_opens_on_a_full_disk_and_all_that_was_acknowledged_is_read(disk: Disk) -> None:
    end = await filled(disk)
    disk.fill()
    for _ in range(2):
        async with opened(disk.store) as (log, found):
            assert found == end
            assert (await everything(log))[:5] == numbered(1, 5)
            assert len(await log.after(Position(0), 1_000)) == end
            snapshot = await log.snapshot()
            assert snapshot is not None
            assert snapshot.position == 3
            assert await log.ends() == [(1, end)]


async def test_k5_on_a_full_disk_every_write_is_refused_and_nothing_is_harmed(disk: Disk) -> None:
    end = await filled(disk)
    disk.fill()
    async with opened(disk.store) as (log, _):
        for _ in range(2):
            with pytest.raises(LogFailed, match="No space left on device"):
                await log.promise(TWO)
        assert log.promised == 0
        with pytest.raises((StokerError, LogFailed), match="No space left on device"):
            await log.save_snapshot(Position(end), [b"x" * 100_000])
        with pytest.raises(LogFailed, match="No space left on device"):
            await log.cut(Position(3))
        with pytest.raises(LogFailed, match="No space left on device"):
            await log.append(ONE, Position(end), [b"x" * 10_000] * 10)
    async with opened(disk.store) as (log, found):
        assert found == end
        assert len(await everything(log)) == end


async def test_room_is_asked_for_by_writing_and_none_is_taken(disk: Disk) -> None:
    """A promise of what was promised already writes nothing, and a short record finds a place where a batch won't."""
    async with opened(disk.store) as (log, _):
        await log.append(ONE, Position(0), records(1, 5))
        for _ in range(20):
            await log.check_room(256 * 1024)
        disk.fill()
        await log.promise(log.promised)
        for size_bytes in (1, 256 * 1024):
            with pytest.raises(LogFailed, match="No space left on device"):
                await log.check_room(size_bytes)
        disk.make_room()
        await log.check_room(256 * 1024)
        with pytest.raises(LogFailed, match="No space left on device"):
            await log.check_room(4 * 1024 * 1024)
        await log.append(ONE, Position(5), records(6, 5))
    assert not [path for path in disk.store.folder.iterdir() if path.name.startswith("room-")]


async def test_k5_once_there_is_room_a_log_that_is_opened_anew_goes_on(disk: Disk) -> None:
    """The same process, which has been a standby meanwhile."""
    end = await filled(disk)
    disk.fill()
    async with opened(disk.store) as (log, _):
        with pytest.raises(LogFailed):
            await log.promise(TWO)
        disk.make_room()
        await log.promise(TWO)
        await log.append(TWO, Position(end), records(end + 1, 3))
    async with opened(disk.store) as (log, found):
        assert (found, log.promised) == (end + 3, 2)
        await log.save_snapshot(Position(end), [b"state"])
        await log.append(TWO, Position(found), records(found + 1, 1))
        assert (await everything(log))[end:] == numbered(end + 1, 4)


async def test_k5_a_cut_that_found_no_room_is_done_once_there_is(disk: Disk) -> None:
    end = await filled(disk)
    disk.fill()
    async with opened(disk.store) as (log, _):
        with pytest.raises(LogFailed):
            await log.cut(Position(4))
        disk.make_room()
        assert await log.cut(Position(4))
    async with opened(disk.store) as (log, found):
        assert found == 4
        assert await everything(log) == numbered(1, 4)
    assert len(disk.store.tails()[0]) == end - 4


async def test_k5_a_log_that_comes_in_on_a_full_disk_leaves_nothing_and_the_old_one_in_place(disk: Disk) -> None:
    end = await filled(disk)
    incoming = disk.store.incoming()
    disk.fill()
    with pytest.raises(LogFailed):
        await come_in(incoming)
    await incoming.drop()
    assert not (disk.store.folder / "incoming").exists()
    async with opened(disk.store) as (_, found):
        assert found == end


async def come_in(incoming: Incoming) -> None:
    await incoming.begin()
    for _ in range(100):
        await incoming.write(b"x" * 100_000)
    await incoming.finish(LogBeginning(CLUSTER, (TWO, Position(9)), [b"state"], TWO))


async def test_k5_the_history_beside_it_can_be_read_too(disk: Disk) -> None:
    await noted(disk.store, 1, 3)
    await filled(disk)
    disk.fill()
    async with opened(disk.store):
        history = SqliteHistory(disk.store.folder)
        try:
            assert (await history.open()).position == 3
        finally:
            await history.close()


def test_k5_a_folder_that_never_was_is_not_made_on_a_full_disk(disk: Disk) -> None:
    disk.fill()

    async def attempt() -> str:
        log = SqliteLog(disk.path / "other")
        try:
            await log.open()
        except StokerError as fault:
            return fault.refusal.message
        finally:
            await log.close()
        return "opened"

    assert "No space left on device" in asyncio.run(attempt())


def test_the_lock_of_a_folder_on_a_full_disk_names_who_holds_it(disk: Disk) -> None:
    async def story() -> None:
        async with opened(disk.store):
            pass
        disk.fill()
        async with opened(disk.store):
            with pytest.raises(StokerError, match=f"process {os.getpid()}"):
                await disk.store.log().open()

    asyncio.run(story())
