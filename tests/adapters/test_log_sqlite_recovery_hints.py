"""What a refused log says about recovery is followed here to the letter, and must lead to a log that opens."""

import re
from pathlib import Path

import pytest

from stoker.brain.domain.ids import Position
from stoker.ports import LogDamaged
from tests.adapters.folder_store import FolderStore
from tests.adapters.test_log_sqlite import fill
from tests.contracts.event_log import everything, numbered, opened


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "data")


async def test_the_way_out_of_a_damaged_record_that_a_snapshot_covers_really_works(store: FolderStore) -> None:
    await fill(store, 9, 6)
    store.damage_record(Position(4))
    with pytest.raises(LogDamaged, match="loses nothing") as caught:
        async with opened(store):
            pass
    store.sql(_statement(caught.value))
    async with opened(store) as (log, end):
        found = await log.snapshot()
        assert (end, found and found.position) == (9, 6)
        assert await everything(log, after=6) == numbered(7, 3)


async def test_the_way_out_of_a_damaged_record_that_nothing_covers_really_works(store: FolderStore) -> None:
    await fill(store, 9, 3)
    store.damage_record(Position(7))
    with pytest.raises(LogDamaged, match="forgets all that happened since record 6") as caught:
        async with opened(store):
            pass
    store.sql(_statement(caught.value))
    async with opened(store) as (log, end):
        assert end == 6
        assert await everything(log, after=3) == numbered(4, 3)


@pytest.mark.parametrize("newer_is", ["of the bad record", "damaged"])
async def test_the_way_out_takes_along_the_snapshots_of_what_is_cut_off(store: FolderStore, newer_is: str) -> None:
    """Left in place, they would make the log that was cut one that lost its end, and refused for good."""
    await fill(store, 9, 4, 9)
    if newer_is == "damaged":
        store.damage_snapshot(Position(9))
    bad = 9 if newer_is == "of the bad record" else 7
    store.damage_record(Position(bad))
    with pytest.raises(LogDamaged, match=f"forgets all that happened since record {bad - 1}") as caught:
        async with opened(store):
            pass
    for path in re.findall(r"rm (.*) && sqlite3", str(caught.value))[0].split():
        Path(path).unlink()
    store.sql(_statement(caught.value))
    async with opened(store) as (log, end):
        found = await log.snapshot()
        assert (end, found and found.position) == (bad - 1, 4)


async def test_a_bad_record_under_the_newest_snapshot_costs_nothing_while_the_log_goes_on(store: FolderStore) -> None:
    await fill(store, 9, 6)
    store.damage_record(Position(6))
    with pytest.raises(LogDamaged, match="loses nothing") as caught:
        async with opened(store):
            pass
    store.sql(_statement(caught.value))
    async with opened(store) as (log, end):
        assert end == 9
        assert await everything(log, after=6) == numbered(7, 3)


async def test_a_trimmed_log_without_a_whole_snapshot_before_the_bad_record_has_no_way_but_a_backup(
    store: FolderStore,
) -> None:
    await fill(store, 9, 9)
    store.sql("DELETE FROM event WHERE position < 5")
    store.damage_record(Position(9))
    with pytest.raises(LogDamaged, match="from a backup: no whole snapshot reaches record 5"):
        async with opened(store):
            pass


def _statement(fault: LogDamaged) -> str:
    return str(fault).split("'")[-2]
