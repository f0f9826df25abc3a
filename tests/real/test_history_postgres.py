"""The history in PostgreSQL: the contract of the port on a real server, and rules of its own."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stoker.adapters.clock import SystemClock
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.history_sql import statements as sql
from stoker.adapters.history_sql.tables import HISTORY_NAME
from stoker.adapters.log_store import log_at
from stoker.adapters.postgres.history import NEWEST, PostgresHistory
from stoker.adapters.sqlite.history import SqliteHistory
from stoker.brain.domain.audit import AuditQuery
from stoker.brain.domain.ids import Epoch, JobId, Position
from stoker.brain.domain.units import Instant
from stoker.ports import HistoryBatch, HistoryFailed, HistoryMark, HistoryTooNew
from tests.adapters.test_history_sql import HistoryFolder
from tests.contracts.history import (
    ALL,
    CLUSTER,
    SOME_JOBS,
    HistoryContract,
    all_jobs,
    at,
    batch,
    ended,
    held,
    opened,
    query,
)
from tests.contracts.history_audit import AuditContract, row
from tests.contracts.history_copy import CopyContract, whole
from tests.real.postgres import programs, server
from tests.rig.sim_ports import Notes, SimClock

pytestmark = pytest.mark.skipif(programs() is None, reason="no PostgreSQL here (Debian: apt-get install postgresql)")

FAR = 1 << 60
"""Where the log ends, beyond whatever a history is told here."""
EVERY = AuditQuery()
_BREAK = ("job", "mark", "audit")


class Database:
    """The contract's store in a database, beside the tables of a log. It is broken by taking tables away."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.shell: psycopg.Connection[tuple[Any, ...]] = psycopg.connect(url, autocommit=True)

    def history(self, name: str = "a", *, shared: bool = False) -> PostgresHistory:
        return PostgresHistory(self.url, self.folder, name=name, shared=shared)

    def of_copy(self, content: bytes) -> HistoryFolder:
        folder = HistoryFolder(self.folder / f"copy-{len(list(self.folder.iterdir()))}")
        folder.path.write_bytes(content)
        return folder

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = self.shell.execute(statement)  # type: ignore[call-overload]  # the tests' own words
        return cursor.fetchall() if cursor.description else []

    def end_of_log(self, position: int, epoch: int = 0) -> None:
        self.sql(f"UPDATE stoker_end SET position = {position}, epoch = {epoch}")

    def break_it(self) -> None:
        for table in _BREAK:
            self.sql(f"ALTER TABLE stoker_history_{table} RENAME TO gone_{table}")

    def mend_it(self) -> None:
        for table in _BREAK:
            self.sql(f"ALTER TABLE gone_{table} RENAME TO stoker_history_{table}")

    def empty(self) -> None:
        for table in _BREAK:
            self.sql(f"ALTER TABLE IF EXISTS gone_{table} RENAME TO stoker_history_{table}")
        every = ", ".join(f"stoker_history_{table}" for table in (*sql.TABLES, "mark", "writer"))
        self.sql(f"TRUNCATE {every}")
        self.sql(f"DELETE FROM stoker_history_schema WHERE version > {NEWEST}")
        self.end_of_log(FAR)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder = tmp_path_factory.mktemp("history")
    with server() as own:
        made = Database(own.database("stoker"), folder)

        async def begin() -> None:
            log = log_at(folder / "log", made.url, SystemClock(), SystemEntropy(), Notes(SimClock(), "log"))
            await log.open()
            await log.close()
            async with opened(made):
                pass

        with closing(made.shell):
            asyncio.run(begin())
            yield made


@pytest.fixture
def store(database: Database, tmp_path: Path) -> Database:
    database.empty()
    database.folder = tmp_path
    return database


class TestPostgresHistory(HistoryContract, AuditContract, CopyContract):
    @pytest.fixture
    def store(self, database: Database, tmp_path: Path) -> Database:
        database.empty()
        database.folder = tmp_path
        return database


async def test_w1_a_control_plane_that_was_replaced_writes_nothing_and_puts_nothing_back(store: Database) -> None:
    """It wakes up, and believes that it is active."""
    old, new = store.history("a", shared=True), store.history("b", shared=True)
    for each in (old, new):
        await each.open()
    store.end_of_log(10, epoch=1)
    await old.record(HistoryBatch(mark=at(5), epoch=Epoch(1), jobs=[(Position(5), ended(1))]))
    store.end_of_log(12, epoch=2)
    with pytest.raises(HistoryFailed, match=r"in epoch 1 is refused: the log ends at 12 in epoch 2"):
        await old.record(HistoryBatch(mark=at(6), epoch=Epoch(1), jobs=[(Position(6), ended(2))]))
    with pytest.raises(HistoryFailed, match="the log goes on to 12"):
        await old.rewind(at(1))
    await new.record(HistoryBatch(mark=at(12), epoch=Epoch(2), jobs=[(Position(12), ended(3))]))
    assert (await old.mark(), [job.id for job in await all_jobs(old)]) == (at(12), [3, 1])
    for each in (old, new):
        await each.close()


async def test_w1_a_batch_is_refused_that_goes_beyond_the_log_or_not_as_far_as_the_one_before(store: Database) -> None:
    store.end_of_log(10)
    async with opened(store) as history:
        with pytest.raises(HistoryFailed, match="the log ends at 10"):
            await history.record(batch(11, ended(1)))
        await history.record(batch(10, ended(2)))
        with pytest.raises(HistoryFailed, match="the history reaches to 10"):
            await history.record(batch(9, ended(3)))
        other = HistoryBatch(mark=HistoryMark(cluster_id="cluster-2", position=Position(10)))
        with pytest.raises(HistoryFailed, match="of cluster cluster-2"):
            await history.record(other)
        assert (await history.mark(), [job.id for job in await all_jobs(history)]) == (at(10), [2])


async def test_a_batch_never_waits_for_an_append_nor_an_append_for_a_batch(store: Database) -> None:
    """Each holds what it has changed, and the other one goes on."""
    async with opened(store) as history:
        with psycopg.connect(store.url) as append:
            append.execute("UPDATE stoker_end SET append = 'held'")
            await asyncio.wait_for(history.record(batch(1, ended(1))), 20)
            append.rollback()
        with psycopg.connect(store.url) as batch_of_another:
            batch_of_another.execute("UPDATE stoker_history_mark SET one = one")
            waiting = asyncio.ensure_future(history.record(batch(2, ended(2))))
            store.sql("SET statement_timeout = '20s'")
            store.sql("UPDATE stoker_end SET append = 'done'")
            assert not waiting.done()
            batch_of_another.rollback()
            await waiting


async def test_w2_one_that_stops_in_the_middle_of_a_batch_holds_up_nobody_for_long(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.adapters.postgres.history.IDLE_S", 1)
    old, new = store.history("a", shared=True), store.history("b", shared=True)
    for each in (old, new):
        await each.open()
    assert old._writer is not None
    with old._changing() as db:
        db.execute(sql.MARK, (CLUSTER, 1))
        await new.record(HistoryBatch(mark=at(2), epoch=Epoch(0), jobs=[(Position(2), ended(2))]))
        with pytest.raises(psycopg.Error):
            db.execute("SELECT 1")
    assert await new.mark() == at(2)
    for each in (old, new):
        await each.close()


async def test_rows_that_stand_on_no_fact_are_added_by_a_standby_too_and_the_mark_stays(store: Database) -> None:
    async with opened(store) as history:
        await history.record(batch(3))
    a, b = store.history("a", shared=True), store.history("b", shared=True)
    for each in (a, b):
        await each.open()
        await each.add([row(9, number=1 + each.writer_slot * 1_000, outcome="token_unknown")])
    assert a.writer_slot != b.writer_slot
    assert [each.number for each in await a.audit(EVERY, 0, 9)] == [1_001, 1]
    assert await b.mark() == at(3)
    again = store.history("b", shared=True)
    await again.open()
    assert again.writer_slot == b.writer_slot
    for each in (a, b, again):
        await each.close()


async def test_w3_a_history_of_a_newer_schema_is_left_alone(store: Database) -> None:
    store.sql("INSERT INTO stoker_history_schema VALUES (99)")
    history = store.history()
    with pytest.raises(HistoryTooNew, match=r"has schema 99; this Stoker knows schemas up to [0-9]+$"):
        await history.open()
    await history.close()


async def test_w3_missing_rights_are_named_with_what_to_do_and_once_they_are_given_it_goes_on(store: Database) -> None:
    store.sql("DROP ROLE IF EXISTS clerk")
    store.sql("CREATE ROLE clerk LOGIN")
    store.sql("GRANT ALL ON SCHEMA public TO clerk; GRANT SELECT ON ALL TABLES IN SCHEMA public TO clerk")
    history = PostgresHistory(store.url.replace("postgres@", "clerk@"), store.folder, name="a", shared=False)
    try:
        with pytest.raises(HistoryFailed, match=r"lacks rights: INSERT on stoker_.* and \d+ more; let it own"):
            await history.open()
        store.sql("GRANT ALL ON ALL TABLES IN SCHEMA public TO clerk")
        await history.open()
        await history.record(batch(1, ended(1)))
        store.sql("REVOKE INSERT ON stoker_history_job FROM clerk")
        with pytest.raises(HistoryFailed, match=r"permission denied for table stoker_history_job; let it own"):
            await history.record(batch(2, ended(2)))
        assert await history.mark() == at(1)
    finally:
        await history.close()
        store.sql("DROP OWNED BY clerk; DROP ROLE clerk")


async def test_a_database_that_takes_no_writes_can_be_read_and_is_written_again_once_it_takes_them(
    store: Database,
) -> None:
    async with opened(store) as history:
        await history.record(batch(1, ended(1)))
        store.sql("ALTER DATABASE stoker SET default_transaction_read_only = on")
        try:
            assert history._writer is not None  # type: ignore[attr-defined]  # of this store
            with pytest.raises(HistoryFailed, match="read-only transaction"):
                await history.open()
            assert [job.id for job in await all_jobs(history)] == [1]
        finally:
            store.sql("SET default_transaction_read_only = off")
            store.sql("ALTER DATABASE stoker RESET default_transaction_read_only")
        assert await history.open() == at(1)
        await history.record(batch(2, ended(2)))


async def test_reads_go_on_after_their_connection_was_lost_and_a_write_says_so_once(store: Database) -> None:
    async with opened(store) as history:
        await history.record(batch(1, ended(1)))
        store.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'stoker' "
            "AND datname = 'stoker' AND pid <> pg_backend_pid()"
        )
        assert [job.id for job in await all_jobs(history)] == [1]
        with pytest.raises(HistoryFailed):
            await history.record(batch(2, ended(2)))
        assert await history.open() == at(1)
        await history.record(batch(2, ended(2)))


async def test_the_password_is_in_no_message(tmp_path: Path) -> None:
    url = f"postgresql://stoker:hush@/stoker?host={tmp_path}"
    history = PostgresHistory(url, tmp_path, name="a", shared=False)
    with pytest.raises(HistoryFailed, match=r"store\.url can't be used") as failed:
        await history.open()
    assert "hush" not in str(failed.value)
    await history.close()


async def test_w4_a_copy_is_a_file_without_a_name_that_a_folder_goes_on_with(store: Database) -> None:
    async with opened(store) as history:
        await history.record(batch(7, *SOME_JOBS, audit=[row(7, details="a \x00 b")]))
        copied = store.of_copy(await whole(await history.copy()))
        assert not list(store.folder.glob(f"{HISTORY_NAME}*"))
    async with opened(copied) as folder:
        assert await all_jobs(folder) == sorted(SOME_JOBS, key=lambda job: -job.id)
        assert await folder.audit(EVERY, 0, 9) == [row(7, details="a \x00 b")]
        await folder.record(batch(8, ended(80)))


@pytest.mark.parametrize("had", [False, True])
async def test_w5_what_a_folder_has_from_before_is_moved_into_the_database_once(store: Database, had: bool) -> None:
    earlier = SqliteHistory(store.folder)
    await earlier.open()
    await earlier.record(batch(7, ended(1), ended(2), holdings=[held(1, 0, 9)], audit=[row(3), row(4)]))
    await earlier.close()
    async with opened(store) as history:
        if had:
            await history.record(batch(9, ended(2, 5_000), audit=[row(4, action="hold")]))
        assert await history.adopt(at(6)) is None, "it goes on beyond the log"
        other = HistoryMark(cluster_id="cluster-2", position=Position(9))
        assert await history.adopt(other) is None, "it is another cluster's"
        assert await history.adopt(at(9)) == at(9 if had else 7)
        newer = ended(2, 5_000) if had else ended(2)
        assert await all_jobs(history) == [newer, ended(1)]
        assert [each.action for each in await history.audit(EVERY, 0, 9)] == ["hold" if had else "cancel", "cancel"]
        assert await history.usage(query(), 9) != []
        assert [path.name for path in store.folder.glob(f"{HISTORY_NAME}*")] == [f"{HISTORY_NAME}.moved"]
        assert await history.adopt(at(9)) is None


async def test_w5_one_that_cannot_be_read_is_told_and_stays_where_it_is(store: Database) -> None:
    (store.folder / HISTORY_NAME).write_bytes(b"this is no database" * 100)
    async with opened(store) as history:
        with pytest.raises(HistoryFailed, match="to be moved into the database"):
            await history.adopt(at(9))
    assert (store.folder / HISTORY_NAME).exists()


async def test_no_question_about_certain_jobs_reads_the_whole_history(store: Database) -> None:
    """The planner is asked as if a scan of a table cost much more than it does with few rows."""
    ids = [JobId(job) for job in range(1, 400)]
    asked = [
        (sql.within(sql.RECORDS, len(ids)), ids),
        sql.ids_of(None, ALL, 50),
        (sql.ARRAYS, (ALL, 50)),
        sql.charged_of(query(), ids),
        (sql.HELD, sql.held_within("n1", Instant(5), Instant(9), Position(1))),
        (sql.OLD_JOBS, (5, 500)),
        (sql.OLDEST_JOBS, (500,)),
        sql.audit_rows_of(AuditQuery(by="user:anna"), 0, 9),
        sql.audit_rows_of(AuditQuery(since=Instant(5), until=Instant(9)), 0, 9),
    ]
    store.sql("SET enable_seqscan = off")
    for statement, values in asked:
        plan = store.shell.execute(f"EXPLAIN {sql.for_postgres(statement)}", list(values)).fetchall()  # type: ignore[call-overload]  # the adapter's own statement
        text = "\n".join(line for (line,) in plan)
        assert "Seq Scan" not in text, (statement, text)
