"""The PostgreSQL log: the contract of the port on a real server, and what only a real server can do to it."""

import asyncio
import statistics
import time
from collections.abc import Iterator

import pytest

from stoker.adapters.postgres.event_log import POLL_S
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Position
from stoker.ports import LogConflict, LogFailed
from tests.contracts.event_log import ONE, EventLogContract, everything, numbered, opened, records
from tests.contracts.shared_log import SharedLogContract
from tests.real.database_store import DatabaseStore, SharedStore
from tests.real.postgres import Server, programs, server

pytestmark = pytest.mark.skipif(programs() is None, reason="no PostgreSQL here (Debian: apt-get install postgresql)")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as made:
        yield made


@pytest.fixture
def store(postgres: Server) -> DatabaseStore:
    return DatabaseStore(postgres)


class TestPostgresLog(EventLogContract):
    @pytest.fixture
    def store(self, postgres: Server) -> DatabaseStore:
        return DatabaseStore(postgres)


class TestSharedPostgresLog(SharedLogContract):
    @pytest.fixture
    def store(self, postgres: Server) -> SharedStore:
        return SharedStore(postgres)


async def test_a_server_that_syncs_nothing_is_told_of_at_each_start(store: DatabaseStore) -> None:
    async with opened(store):
        assert store.warnings == []
    with server() as unsafe:
        unsafe.stop()
        unsafe.start("fsync=off")
        told = DatabaseStore(unsafe)
        async with opened(told):
            pass
    ((name, fields),) = told.warnings
    assert name == "store_unsafe"
    assert "fsync off" in str(fields["error"])


async def test_news_come_by_a_notice_and_not_with_the_next_look(postgres: Server) -> None:
    store = SharedStore(postgres)
    took: list[float] = []
    async with opened(store) as (standby, _), opened(store) as (active, _):
        for end in range(9):
            waiting = asyncio.create_task(standby.news(Position(end), 30))
            await asyncio.sleep(0.05)
            await active.append(ONE, Position(end), records(end + 1, 1))
            began = time.monotonic()
            assert await waiting
            took.append(time.monotonic() - began)
    assert statistics.median(took) < POLL_S / 4


async def test_news_are_found_where_notices_get_lost(postgres: Server) -> None:
    store = SharedStore(postgres)
    async with opened(store) as (standby, _), opened(store) as (active, _):
        assert not await standby.news(Position(0), 0.01)
        await standby._link.hear(lambda db: db.execute("UNLISTEN *"), 0)
        waiting = asyncio.create_task(standby.news(Position(0), 30))
        await asyncio.sleep(0.05)
        await active.append(ONE, Position(0), records(1, 1))
        async with asyncio.timeout(10):
            assert await waiting


async def test_whoever_waits_for_news_is_told_when_the_server_goes_and_hears_again_once_it_is_back() -> None:
    with server() as own:
        store = SharedStore(own)
        async with opened(store) as (standby, _), opened(store) as (active, _):
            waiting = asyncio.create_task(standby.news(Position(0), 30))
            await asyncio.sleep(0.1)
            await asyncio.to_thread(own.stop)
            async with asyncio.timeout(20):
                with pytest.raises(LogFailed):
                    await waiting
                with pytest.raises(LogFailed):
                    await standby.news(Position(0), 1)
            await asyncio.to_thread(own.start)
            await active.append(ONE, Position(0), records(1, 1))
            assert await standby.news(Position(0), 5)
            assert await everything(standby) == numbered(1, 1)


async def test_a_control_plane_that_is_not_set_up_for_failover_is_kept_out_while_others_share_the_store(
    postgres: Server,
) -> None:
    store = SharedStore(postgres)
    alone = DatabaseStore(postgres)
    alone.url = store.url
    async with opened(store):
        with pytest.raises(StokerError) as caught:
            await alone.log().open()
    assert caught.value.refusal.code == "store_held"
    async with opened(alone):
        with pytest.raises(StokerError) as caught:
            await store.log().open()
    assert caught.value.refusal.code == "store_held"
    assert "failover" in caught.value.refusal.message


async def test_a_second_writer_is_told_that_there_is_one(store: DatabaseStore) -> None:
    async with opened(store):
        with pytest.raises(StokerError) as caught:
            await store.log().open()
    assert caught.value.refusal.code == "store_held"


async def test_p1_a_writer_whose_lock_was_lost_writes_nothing_once_another_has_written(store: DatabaseStore) -> None:
    stale, fresh = store.log(), store.log()
    await stale.open()
    await stale.append(ONE, Position(0), records(1, 2))
    store.sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
    assert await fresh.open() == 2
    await fresh.append(ONE, Position(2), records(3, 1))
    with pytest.raises(LogConflict):
        await stale.append(ONE, Position(2), [b"stale"])
    assert await everything(fresh) == numbered(1, 3)
    await stale.close()
    await fresh.close()


@pytest.mark.parametrize("how", ["restart", "kill", "sessions"])
async def test_p2_a_server_that_goes_away_under_load_loses_and_doubles_nothing(how: str) -> None:
    with server() as own:
        store = DatabaseStore(own)
        async with opened(store) as (log, _):
            done = asyncio.Event()
            acknowledged = 0

            async def load() -> None:
                nonlocal acknowledged
                while not done.is_set():
                    await log.append(ONE, Position(acknowledged), records(acknowledged + 1, 3))
                    acknowledged += 3

            loading = asyncio.create_task(load())
            for _ in range(3):
                await asyncio.sleep(0.2)
                await asyncio.to_thread(_hurt, store, how)
                before = acknowledged
                async with asyncio.timeout(30):
                    while acknowledged < before + 9:
                        assert not loading.done(), loading.exception()
                        await asyncio.sleep(0.01)
            done.set()
            await loading
            assert await everything(log) == numbered(1, acknowledged)


def _hurt(store: DatabaseStore, how: str) -> None:
    if how == "sessions":
        store.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'stoker'")
        return
    if how == "restart":
        store.server.stop()
    else:
        store.server.kill()
    store.server.start()


async def test_p3_a_server_that_stays_away_fails_the_log_and_the_message_has_no_password() -> None:
    with server() as own:
        store = DatabaseStore(own)
        store.url = store.url.replace("postgres@", "postgres:hunter2@")
        log = store.log(reconnect_s=0.5)
        await log.open()
        own.stop()
        with pytest.raises(LogFailed) as caught:
            await log.append(ONE, Position(0), records(1, 1))
        await log.close()
    said = str(caught.value) + repr(store.warnings)
    assert "0.5 s" in said
    assert "hunter2" not in said


async def test_a_store_that_cannot_be_reached_is_refused_in_words(store: DatabaseStore) -> None:
    store.url = "postgresql://anna:hunter2@127.0.0.1:1/none"
    log = store.log()
    with pytest.raises(StokerError) as caught:
        await log.open()
    await log.close()
    refusal = caught.value.refusal
    assert refusal.code == "store_unreachable"
    assert "hunter2" not in refusal.message


@pytest.mark.parametrize(
    "url", ["postgresql://a:hunter2%zz@h/x", "postgresql://a:hunter2@[::1/x", "postgresql://a@h/x?hunter2=1"]
)
async def test_a_url_that_cannot_be_read_is_refused_without_any_part_of_it(store: DatabaseStore, url: str) -> None:
    store.url = url
    log = store.log()
    with pytest.raises(StokerError) as caught:
        await log.open()
    await log.close()
    assert caught.value.refusal.code == "store_unreachable"
    assert "hunter2" not in caught.value.refusal.message
    assert "%XX" in caught.value.refusal.message


async def test_a_store_of_a_newer_stoker_is_left_as_it_is(store: DatabaseStore) -> None:
    async with opened(store):
        pass
    store.sql("INSERT INTO stoker_schema VALUES (999)")
    with pytest.raises(StokerError) as caught:
        await store.log().open()
    assert caught.value.refusal.code == "store_too_new"


async def test_records_behind_the_snapshots_are_trimmed_and_the_rest_is_found_again(store: DatabaseStore) -> None:
    store.look_back_max = 10
    log = store.log()
    await log.open()
    await log.append(ONE, Position(0), records(1, 5_000))
    await log.save_snapshot(Position(3_000), [b"older"])
    await log.save_snapshot(Position(4_000), [b"newer"])
    await log.close()
    assert store.sql("SELECT min(position) FROM stoker_event") == "2991"
    async with opened(store) as (again, end):
        assert end == 5_000
        assert await everything(again, after=4_000) == numbered(4_001, 1_000)
