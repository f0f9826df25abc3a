"""The SQLite history: the contract of the port, and rules of its own."""

import asyncio
import errno
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from stoker.adapters.history_sql import statements as sql
from stoker.adapters.history_sql import tables as history_sql
from stoker.adapters.history_sql.tables import HISTORY_NAME
from stoker.adapters.sqlite.history import SqliteHistory
from stoker.adapters.sqlite.store import HISTORY_STEPS
from stoker.brain.domain.array import JobRef
from stoker.brain.domain.audit import AuditQuery
from stoker.brain.domain.ids import JobId, Position
from stoker.brain.domain.job_filter import JobFilter
from stoker.brain.domain.units import Instant
from stoker.brain.domain.usage import UsageBy
from stoker.ports import HistoryFailed, HistoryTooNew
from tests.contracts.history import ALL, HistoryContract, all_jobs, at, batch, ended, held, opened, query
from tests.contracts.history_audit import AuditContract, row, told
from tests.contracts.history_copy import CopyContract, whole

FINE = ("INDEX", "per_job")
"""Ways of a scan that read no more than they must: along an index, or over sums that were just made."""


class HistoryFolder:
    """The contract's store in a folder. It is broken by another program's lock on the file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.path = folder / HISTORY_NAME

    def history(self) -> SqliteHistory:
        return SqliteHistory(self.folder)

    def of_copy(self, content: bytes) -> "HistoryFolder":
        folder = HistoryFolder(self.folder.with_name(f"copy-{len(list(self.folder.parent.iterdir()))}"))
        folder.path.write_bytes(content)
        return folder

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as db:
            return db.execute(statement).fetchall()

    def break_it(self) -> None:
        self.sql("ALTER TABLE job RENAME TO gone")
        self.sql("ALTER TABLE mark RENAME TO gone_too")
        self.sql("ALTER TABLE audit RENAME TO gone_as_well")

    def mend_it(self) -> None:
        self.sql("ALTER TABLE gone RENAME TO job")
        self.sql("ALTER TABLE gone_too RENAME TO mark")
        self.sql("ALTER TABLE gone_as_well RENAME TO audit")


@pytest.fixture
def store(tmp_path: Path) -> HistoryFolder:
    return HistoryFolder(tmp_path / "data")


class TestSqliteHistory(HistoryContract, AuditContract, CopyContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> HistoryFolder:
        return HistoryFolder(tmp_path / "data")


async def test_k1_a_batch_waits_for_the_disk(store: HistoryFolder) -> None:
    async with opened(store) as history:
        assert isinstance(history, SqliteHistory)
        db = history._writer
        assert db is not None
        modes = await history._in(
            history._writing,
            lambda: [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")],
        )
    assert modes == ["wal", 2]


async def test_h1_a_batch_that_fails_in_the_middle_leaves_nothing(store: HistoryFolder) -> None:
    async with opened(store) as history:
        await history.record(batch(1, ended(1)))
        store.sql("CREATE TRIGGER no BEFORE INSERT ON allocation BEGIN SELECT RAISE(ABORT, 'no'); END")
        with pytest.raises(HistoryFailed, match="no"):
            await history.record(batch(2, ended(2), holdings=[held(2, 0, 9)]))
        store.sql("DROP TRIGGER no")
        assert [job.id for job in await all_jobs(history)] == [1]
        assert await history.open() == at(1)


async def test_k2_batches_get_through_between_the_slices_of_a_trim(
    store: HistoryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_sql, "TRIM_ROWS", 10)
    async with opened(store) as history:
        await history.record(batch(1, *(ended(job) for job in range(1, 1_001))))
        trimming = asyncio.ensure_future(history.trim(Instant(2_000), 10_000))
        await history.record(batch(2, ended(2_000, 3_000)))
        assert not trimming.done()
        assert await trimming == 1_000
        assert await history.ids(None, ALL, 9) == [2_000]


async def test_of_holdings_only_so_many_times_as_many_as_of_jobs_are_kept(store: HistoryFolder) -> None:
    async with opened(store) as history:
        await history.record(batch(1, ended(1), holdings=[held(1, 0, 100 + rank, rank=rank) for rank in range(2_000)]))
        await history.trim(Instant(0), 300)
        assert store.sql("SELECT count(*), min(to_ms) FROM allocation") == [(1_200, 900)]


async def test_k3_a_store_of_a_newer_stoker_is_left_alone(store: HistoryFolder) -> None:
    async with opened(store):
        pass
    store.sql("PRAGMA user_version = 99")
    history = store.history()
    with pytest.raises(HistoryTooNew, match=r"schema 99; this Stoker knows schemas up to [0-9]+$"):
        await history.open()
    await history.close()


async def test_k3_a_file_that_is_no_store_is_named_with_a_way_out_and_a_new_one_may_take_its_place(
    store: HistoryFolder,
) -> None:
    store.path.write_bytes(b"this is no database" * 100)
    history = store.history()
    with pytest.raises(HistoryFailed, match=rf"{HISTORY_NAME} can't be used.*To recover: move it away"):
        await history.open()
    store.path.rename(store.folder / "aside")
    assert (await history.open()).position == 0
    await history.record(batch(1, ended(1)))
    assert await history.ids(None, JobId(2), 9) == [1]
    await history.close()


async def test_a_record_that_cannot_be_read_is_a_failed_read_and_no_defect(store: HistoryFolder) -> None:
    async with opened(store) as history:
        await history.record(batch(1, ended(1)))
        store.sql("UPDATE job_record SET record = x'7b'")
        with pytest.raises(HistoryFailed, match="record"):
            await history.jobs([JobId(1)])


async def test_a_person_who_looks_into_the_store_with_a_shell_stops_nothing(store: HistoryFolder) -> None:
    async with opened(store) as history:
        await history.record(batch(1, ended(1)))
        with closing(sqlite3.connect(store.path, isolation_level=None)) as shell:
            shell.execute("BEGIN")
            assert shell.execute("SELECT count(*) FROM job").fetchone() == (1,)
            await history.record(batch(2, ended(2)))
            assert await history.ids(None, ALL, 9) == [2, 1]


async def test_no_question_about_certain_jobs_reads_the_whole_history(store: HistoryFolder) -> None:
    """Each is answered along an index, so that it takes as long with a million jobs as with a thousand."""
    ids = [JobId(job) for job in range(1, 400)]
    asked = [
        (sql.within(sql.RECORDS, len(ids)), ids),
        sql.ids_of(None, ALL, 50),
        sql.ids_of(JobFilter(), ALL, 50),
        sql.ids_of(JobFilter(user="anna"), ALL, 50),
        sql.ids_of(JobFilter(name="train"), ALL, 50),
        (sql.ARRAYS, (ALL, 50)),
        sql.sums_of(query(since=5, until=9), 50, None),
        sql.charged_of(query(by=UsageBy.JOB), ids),
        (sql.HELD, sql.held_within("n1", Instant(5), Instant(9), Position(1))),
        (sql.OLD_JOBS, (5, 500)),
        (sql.OLDEST_JOBS, (500,)),
        (sql.DROP_ATTEMPTS, (5, 500)),
        (sql.DROP_HOLDINGS, (5, 500)),
    ]
    async with opened(store):
        with closing(sqlite3.connect(store.path)) as db:
            for statement, values in asked:
                plan = [str(row[3]) for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
                scans = [step for step in plan if step.startswith("SCAN") and not any(word in step for word in FINE)]
                assert not scans, (statement, plan)
                assert any("INDEX" in step or "PRIMARY KEY" in step for step in plan), (statement, plan)


async def test_a_history_from_before_there_was_an_audit_trail_gets_one(store: HistoryFolder) -> None:
    first = next(iter(sorted(HISTORY_STEPS.glob("0001_*.sql"))))
    with closing(sqlite3.connect(store.path)) as db:
        db.executescript(f"{first.read_text('utf-8')}\nPRAGMA user_version = 1;")
        db.execute("INSERT INTO mark VALUES (1, 'cluster-1', 7)")
        db.commit()
    async with opened(store) as history:
        assert await history.open() == at(7)
        assert await history.audit(AuditQuery(), 0, 9) == []
        await history.record(told(8, row(8)))
        assert await history.audit(AuditQuery(), 0, 9) == [row(8)]


async def test_no_question_about_the_audit_trail_by_job_person_or_time_reads_all_of_it(store: HistoryFolder) -> None:
    member = JobRef(JobId(1), ((3, 3, 1),))
    asked = (
        AuditQuery(job=JobRef(JobId(1))),
        AuditQuery(job=member),
        AuditQuery(by="user:anna"),
        AuditQuery(since=Instant(5), until=Instant(9)),
    )
    async with opened(store) as history:
        await history.record(told(1, row(1)))
        with closing(sqlite3.connect(store.path)) as db:
            for each in asked:
                statement, values = sql.audit_rows_of(each, 0, 9)
                plan = [str(step[3]) for step in db.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
                assert not [step for step in plan if step.startswith("SCAN")], (statement, plan)


async def test_a_copy_is_a_file_without_a_name(store: HistoryFolder) -> None:
    """Y2"""
    async with opened(store) as history:
        await history.record(batch(1, ended(1)))
        before = sorted(path.name for path in store.folder.iterdir())
        copy = await history.copy()
        assert sorted(path.name for path in store.folder.iterdir()) == before
        await copy.close()


async def test_what_a_crash_left_half_copied_goes_when_the_history_is_opened(store: HistoryFolder) -> None:
    """Y2"""
    leftover = store.folder / f"{HISTORY_NAME}.copy"
    leftover.write_bytes(b"half")
    async with opened(store):
        assert not leftover.exists()


async def test_a_copy_that_finds_no_room_is_refused_and_leaves_nothing(
    store: HistoryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y2"""
    async with opened(store) as history:
        await history.record(batch(1, ended(1)))

        def full(fd: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("stoker.adapters.sqlite.history.os.fdatasync", full)
        with pytest.raises(HistoryFailed, match="can't be copied: No space left on device"):
            await history.copy()
        assert not (store.folder / f"{HISTORY_NAME}.copy").exists()
        assert [job.id for job in await all_jobs(history)] == [1]


async def test_a_copy_is_one_file_that_opens_where_nothing_can_be_written(store: HistoryFolder) -> None:
    async with opened(store) as history:
        await history.record(batch(1, ended(1)))
        copied = store.of_copy(await whole(await history.copy()))
    with closing(sqlite3.connect(f"file:{copied.path}?mode=ro&immutable=1", uri=True)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert db.execute("PRAGMA quick_check").fetchone() == ("ok",)
        assert db.execute("SELECT count(*) FROM job").fetchone() == (1,)


async def test_whoever_closes_it_waits_for_a_copy_under_way_and_holds_up_nobody_else(
    store: HistoryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control plane answers between two lives, however long a backup of the last one takes."""
    busy, go_on = threading.Event(), threading.Event()
    taken, let_go = SqliteHistory._taken, list[bool]()

    def slow(history: SqliteHistory) -> object:
        busy.set()
        let_go.append(go_on.wait(5))
        return taken(history)

    monkeypatch.setattr(SqliteHistory, "_taken", slow)
    async with opened(store) as history:
        copying = asyncio.ensure_future(history.copy())
        await asyncio.to_thread(busy.wait)
        closing_it = asyncio.ensure_future(history.close())
        await asyncio.wait((closing_it,), timeout=0.1)
        go_on.set()
        await closing_it
        await (await copying).close()
    assert let_go == [True]
