"""Which store may a folder be opened with? C2 and C3 of `adapters/log_store.py`, T1 of `cli/doctor/folder.py`."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stoker.adapters.clock import SystemClock
from stoker.adapters.data_folder.marks import ELSEWHERE_NAME, cluster_elsewhere
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.log_store import log_at, shared_log_at
from stoker.adapters.postgres.history import PostgresHistory
from stoker.adapters.sqlite.history import SqliteHistory, cluster_in
from stoker.brain.domain.access import OWNER
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.units import Instant
from stoker.brain.state.codec import Fact, encode_fact
from stoker.brain.state.events.leadership import ClusterCreated
from stoker.cli.doctor.finding import CheckResult, Level
from stoker.cli.doctor.folder import store as looked_at
from stoker.ports import EventLog, HistoryBatch, HistoryMark
from tests.real.database_store import DatabaseStore
from tests.real.postgres import Server, programs, server

pytestmark = pytest.mark.skipif(programs() is None, reason="no PostgreSQL here (Debian: apt-get install postgresql)")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as made:
        yield made


def log_of(folder: Path, store: DatabaseStore, *, shared: bool = False) -> EventLog:
    at = shared_log_at if shared else log_at
    return at(folder, store.url, SystemClock(), SystemEntropy(), store)


async def opened_and_closed(log: EventLog, *, writes: bool = False) -> Position:
    try:
        end = await log.open()
        if writes:
            await log.append(Epoch(1), end, [b"record"])
        return end
    finally:
        await log.close()


async def refused(log: EventLog) -> str:
    with pytest.raises(StokerError) as caught:
        await opened_and_closed(log)
    assert caught.value.refusal.code == "store_moved"
    return caught.value.refusal.hint


@pytest.mark.parametrize("shared", [False, True])
async def test_c3_a_wrong_name_that_is_an_empty_database_begins_no_new_cluster(
    postgres: Server, tmp_path: Path, shared: bool
) -> None:
    """Its agents would take it for another cluster's, and stop all that they run."""
    right, wrong = DatabaseStore(postgres), DatabaseStore(postgres)
    folder = tmp_path / "data"
    assert await opened_and_closed(log_of(folder, right, shared=shared)) == 0
    assert await opened_and_closed(log_of(folder, right, shared=shared), writes=True) == 0, "it was empty still"
    hint = await refused(log_of(folder, wrong, shared=shared))
    assert await opened_and_closed(log_of(folder, right, shared=shared)) == 1
    assert hint.endswith(f"remove {folder / ELSEWHERE_NAME}")
    (folder / ELSEWHERE_NAME).unlink()
    assert await opened_and_closed(log_of(folder, wrong, shared=shared)) == 0


async def test_c3_a_folder_of_before_the_mark_had_content_gets_it_when_it_is_opened(
    postgres: Server, tmp_path: Path
) -> None:
    right, wrong = DatabaseStore(postgres), DatabaseStore(postgres)
    await opened_and_closed(log_of(tmp_path, right), writes=True)
    (tmp_path / ELSEWHERE_NAME).write_text("")
    assert await opened_and_closed(log_of(tmp_path, right)) == 1
    await refused(log_of(tmp_path, wrong))


def test_c3_the_database_of_another_cluster_is_refused_and_the_folder_of_before_learns_whose_it_is(
    postgres: Server, tmp_path: Path
) -> None:
    right, wrong = DatabaseStore(postgres), DatabaseStore(postgres)
    begun(right, tmp_path / "data", "c1")
    begun(wrong, tmp_path / "others", "c2")
    assert cluster_elsewhere(tmp_path / "data") == "c1"
    said = told(wrong, tmp_path / "data")
    assert (said.level, "holds cluster c2, and the log of" in said.what) == (Level.ERROR, True)
    hint = asyncio.run(refused(log_of(tmp_path / "data", wrong)))
    assert hint.endswith(f"remove {tmp_path / 'data' / ELSEWHERE_NAME}")
    (tmp_path / "data" / ELSEWHERE_NAME).write_text("and it isn't empty\n")
    assert asyncio.run(opened_and_closed(log_of(tmp_path / "data", right))) == 1
    asyncio.run(refused(log_of(tmp_path / "data", wrong, shared=True)))


async def test_c2_a_folder_whose_log_is_in_one_store_is_not_opened_with_the_other(
    postgres: Server, tmp_path: Path
) -> None:
    store = DatabaseStore(postgres)
    await opened_and_closed(log_of(tmp_path / "elsewhere", store), writes=True)
    hint = await refused(log_at(tmp_path / "elsewhere", "", SystemClock(), SystemEntropy(), store))
    assert hint.startswith("set store.url as before")
    assert not (tmp_path / "elsewhere" / "stoker.db").exists()
    here = log_at(tmp_path / "here", "", SystemClock(), SystemEntropy(), store)
    await opened_and_closed(here, writes=True)
    assert "leave store.url empty" in await refused(log_of(tmp_path / "here", store))


def told(store: DatabaseStore, folder: Path, url: str = "") -> CheckResult:
    """The only finding."""
    (said,) = list(looked_at(url or store.url, folder))
    return said


def begun(store: DatabaseStore, folder: Path, cluster_id: str = "c1") -> None:
    async def begin() -> None:
        log = log_of(folder, store)
        fact = Fact(at=Instant(0), by=OWNER.principal, event=ClusterCreated(cluster_id=cluster_id))
        try:
            await log.append(Epoch(1), await log.open(), [encode_fact(fact)])
        finally:
            await log.close()

    asyncio.run(begin())


def test_t1_an_empty_database_and_one_of_the_folders_own_cluster_are_fine(postgres: Server, tmp_path: Path) -> None:
    store = DatabaseStore(postgres)
    said = told(store, tmp_path)
    assert (said.level, "empty" in said.what) == (Level.OK, True)
    assert store.sql("SELECT to_regclass('stoker_schema') IS NULL") == "t", "nothing was made"
    begun(store, tmp_path)
    said = told(store, tmp_path)
    assert (said.level, "cluster c1, 1 events" in said.what) == (Level.OK, True)


def test_t1_an_empty_database_is_wrong_where_the_log_was_in_one_that_is_not(postgres: Server, tmp_path: Path) -> None:
    begun(DatabaseStore(postgres), tmp_path)
    said = told(DatabaseStore(postgres), tmp_path)
    assert said.level is Level.ERROR
    assert "is empty" in said.what


def test_t1_the_database_of_another_cluster_than_the_folders_history_is_told(postgres: Server, tmp_path: Path) -> None:
    store = DatabaseStore(postgres)
    begun(store, tmp_path, "c1")

    async def note() -> None:
        history = SqliteHistory(tmp_path)
        try:
            await history.open()
            await history.record(HistoryBatch(mark=HistoryMark(cluster_id="c2", position=Position(1))))
            assert cluster_in(tmp_path) == "c2", "while it is open"
        finally:
            await history.close()

    asyncio.run(note())
    said = told(store, tmp_path)
    assert said.level is Level.ERROR
    assert "holds cluster c1" in said.what
    assert "the history of c2" in said.what


def test_t1_the_history_of_another_cluster_or_of_a_newer_schema_in_the_database_is_told(
    postgres: Server, tmp_path: Path
) -> None:
    store = DatabaseStore(postgres)
    begun(store, tmp_path, "c1")

    async def note() -> None:
        async with opened_history(PostgresHistory(store.url, tmp_path, name="a", shared=False)) as history:
            await history.record(HistoryBatch(mark=HistoryMark(cluster_id="c2", position=Position(1))))

    asyncio.run(note())
    said = told(store, tmp_path)
    assert (said.level, "holds cluster c1, and the history of c2" in said.what) == (Level.ERROR, True)
    store.sql("UPDATE stoker_history_mark SET cluster_id = 'c1'")
    assert told(store, tmp_path).level is Level.OK
    store.sql("INSERT INTO stoker_history_schema VALUES (99)")
    said = told(store, tmp_path)
    assert (said.level, "the history in stores has schema 99" in said.what) == (Level.ERROR, True)


@asynccontextmanager
async def opened_history(history: PostgresHistory) -> AsyncIterator[PostgresHistory]:
    try:
        await history.open()
        yield history
    finally:
        await history.close()


def test_t1_a_newer_schema_and_a_server_that_takes_no_writes_are_told(postgres: Server, tmp_path: Path) -> None:
    store = DatabaseStore(postgres)
    begun(store, tmp_path)
    said = told(store, tmp_path, f"{store.url}%20-cdefault_transaction_read_only%3Don")
    assert (said.level, "takes no writes" in said.what) == (Level.ERROR, True)
    store.sql("INSERT INTO stoker_schema VALUES (99)")
    said = told(store, tmp_path)
    assert (said.level, "has schema 99" in said.what) == (Level.ERROR, True)


def test_t1_s4_an_account_that_may_only_read_is_told_which_rights_it_lacks(postgres: Server, tmp_path: Path) -> None:
    """By the doctor, and by a start before its first append: both said that the disk may be full."""
    store = DatabaseStore(postgres)
    begun(store, tmp_path)
    store.sql(f"CREATE ROLE reader_{store.name} LOGIN")
    for right in ("USAGE, CREATE ON SCHEMA", "SELECT ON ALL TABLES IN SCHEMA"):
        store.sql(f"GRANT {right} {store.name} TO reader_{store.name}")
    url = store.url.replace("postgres@", f"reader_{store.name}@")
    said = told(store, tmp_path, url)
    assert (said.level, "UPDATE on stoker_end, INSERT on stoker_event" in said.what) == (Level.ERROR, True)
    log = log_at(tmp_path, url, SystemClock(), SystemEntropy(), store)
    with pytest.raises(StokerError, match=r"lacks rights.*INSERT on stoker_event") as caught:
        asyncio.run(opened_and_closed(log))
    assert caught.value.refusal.code == "store_unreachable"
