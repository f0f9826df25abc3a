"""The PostgreSQL log on a primary with a synchronous replica, both real, and what one of them does to it by going."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from stoker.adapters.postgres.event_log import PostgresLog
from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import LogConflict, LogFailed
from tests.contracts.event_log import ONE, everything, numbered, opened, records
from tests.real.database_store import DatabaseStore, SharedStore
from tests.real.postgres import Server, programs, server

pytestmark = pytest.mark.skipif(programs() is None, reason="no PostgreSQL here (Debian: apt-get install postgresql)")
PAUSED = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture
def primary() -> Iterator[Server]:
    with server() as made:
        yield made


class Load:
    """Appends, one after the other, three records each."""

    def __init__(self, log: PostgresLog) -> None:
        self.acknowledged = 0
        self._log = log
        self._stop = asyncio.Event()

    async def run(self) -> None:
        while not self._stop.is_set():
            await self._log.append(ONE, Position(self.acknowledged), records(self.acknowledged + 1, 3))
            self.acknowledged += 3

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[None]"]:
        task = asyncio.create_task(self.run())
        try:
            yield task
        finally:
            self._stop.set()
            await task

    async def more(self, task: "asyncio.Task[None]", within_s: float) -> None:
        """Writes have resumed."""
        before = self.acknowledged
        async with asyncio.timeout(within_s):
            while self.acknowledged < before + 30:
                assert not task.done(), task.exception()
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", [DatabaseStore, SharedStore])
async def test_p2_a_replica_that_takes_over_under_load_has_lost_and_doubled_nothing(
    primary: Server, kind: type[DatabaseStore]
) -> None:
    copy = await asyncio.to_thread(primary.copy)
    store = kind(primary)
    store.url = primary.url_with(copy, "stores") + store.url[store.url.index("&options=") :]
    async with opened(store) as (log, _):
        load = Load(log)
        async with load.running() as task:
            await load.more(task, 30)
            primary.kill()
            await asyncio.sleep(0.3)
            await asyncio.to_thread(copy.promote)
            began = time.monotonic()
            await load.more(task, 10)
            resumed_s = time.monotonic() - began
        assert await everything(log) == numbered(1, load.acknowledged)
        assert resumed_s < 10
    async with opened(store) as (log, end):
        assert end == load.acknowledged
        assert await everything(log) == numbered(1, end)


async def test_p3_an_append_waits_for_a_replica_that_is_gone_and_is_done_once_it_is_back(primary: Server) -> None:
    copy = await asyncio.to_thread(primary.copy)
    store = DatabaseStore(primary)
    async with opened(store) as (log, _):
        await log.append(ONE, Position(0), records(1, 3))
        await asyncio.to_thread(copy.stop)
        waiting = asyncio.create_task(log.append(ONE, Position(3), records(4, 1)))
        await _until(primary, PAUSED, "1")
        assert await everything(log) == numbered(1, 3), "what the replica lacks is seen by nobody"
        assert not waiting.done()
        await asyncio.to_thread(copy.start)
        async with asyncio.timeout(30):
            await waiting
        assert await everything(log) == numbered(1, 4)


async def test_p7_whoever_gives_up_an_append_that_waits_leaves_it_unseen_until_the_replica_has_it(
    primary: Server,
) -> None:
    copy = await asyncio.to_thread(primary.copy)
    store = SharedStore(primary)
    async with opened(store) as (stale, _), opened(store) as (fresh, _):
        await stale.append(ONE, Position(0), records(1, 3))
        await asyncio.to_thread(copy.stop)
        waiting = asyncio.create_task(stale.append(ONE, Position(3), records(4, 1)))
        await _until(primary, PAUSED, "1")
        waiting.cancel()
        async with asyncio.timeout(30):
            await asyncio.wait((waiting,))
        assert waiting.cancelled()
        with pytest.raises(LogFailed, match="anew"):
            await stale.append(ONE, Position(3), records(4, 1))
        assert await everything(fresh) == numbered(1, 3)
        await asyncio.to_thread(copy.start)
        await _until(primary, PAUSED, "0")
        end = len(await everything(fresh))
        assert end == 4, "what was given up was done all the same"
        await fresh.append(Epoch(2), Position(end), records(end + 1, 1))
        assert await everything(fresh) == numbered(1, end + 1)


async def test_p10_what_a_server_that_was_started_anew_may_have_alone_is_believed_once_its_replica_has_it(
    primary: Server,
) -> None:
    copy = await asyncio.to_thread(primary.copy)
    store = SharedStore(primary)
    async with opened(store) as (log, _), opened(store) as (standby, _):
        await log.append(ONE, Position(0), records(1, 1))
        await everything(standby)
        await asyncio.to_thread(copy.stop)
        waiting = asyncio.create_task(log.append(ONE, Position(1), records(2, 1)))
        await _until(primary, PAUSED, "1")
        await asyncio.to_thread(primary.stop, "immediate")
        await asyncio.to_thread(primary.start)
        reading = asyncio.create_task(everything(standby))
        await asyncio.wait((waiting, reading), timeout=1)
        assert not waiting.done(), "the replica doesn't have it"
        assert not reading.done(), "the replica doesn't have it"
        await asyncio.to_thread(copy.start)
        async with asyncio.timeout(30):
            await waiting
            assert (await reading)[0] == numbered(1, 1)[0]
        assert await everything(standby) == numbered(1, 2)


async def test_p8_an_append_whose_wait_was_cancelled_on_the_server_is_not_acknowledged(primary: Server) -> None:
    copy = await asyncio.to_thread(primary.copy)
    store = DatabaseStore(primary)
    async with opened(store) as (log, _):
        await log.append(ONE, Position(0), records(1, 1))
        await asyncio.to_thread(copy.stop)
        waiting = asyncio.create_task(log.append(ONE, Position(1), records(2, 1)))
        await _until(primary, PAUSED, "1")
        store.sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        with pytest.raises(LogFailed, match="synchronous replica"):
            await waiting
        with pytest.raises(LogFailed):
            await log.append(ONE, Position(1), records(2, 1))


async def test_p8_a_default_that_does_not_wait_for_the_disk_is_overruled(primary: Server) -> None:
    store = SharedStore(primary)
    primary.sql("postgres", "ALTER SYSTEM SET synchronous_commit = off")
    primary.sql("postgres", "SELECT pg_reload_conf()")
    async with opened(store) as (log, _):
        shown = await log._link.write(lambda db: db.execute("SHOW synchronous_commit"))
        assert await shown.fetchone() == ("on",)


async def test_l9_a_stale_writer_finds_out_on_the_server_that_took_over(primary: Server) -> None:
    copy = await asyncio.to_thread(primary.copy)
    store = SharedStore(primary)
    store.url = primary.url_with(copy, "stores") + store.url[store.url.index("&options=") :]
    async with opened(store) as (stale, _), opened(store) as (fresh, _):
        await stale.append(ONE, Position(0), records(1, 2))
        primary.kill()
        await asyncio.to_thread(copy.promote)
        await store.move_epoch(Epoch(2))
        with pytest.raises(LogConflict, match="epoch"):
            await stale.append(ONE, Position(2), [b"stale"])
        await fresh.append(Epoch(2), Position(2), records(3, 1))
        assert await everything(fresh) == numbered(1, 3)
        assert await fresh.news(Position(2), 5)


async def _until(on: Server, query: str, answer: str) -> None:
    async with asyncio.timeout(30):
        while await asyncio.to_thread(on.sql, "postgres", query) != answer:
            await asyncio.sleep(0.02)
