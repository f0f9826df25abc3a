"""The marker in PostgreSQL: the contract of the port on a real server, and what only a real server can do to it."""

import asyncio
import gc
import itertools
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from stoker.adapters.clock import SystemClock
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.postgres.event_log import PostgresLog
from stoker.adapters.postgres.lease import PostgresLease
from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import LeaseRecord
from stoker.brain.domain.units import Mono
from stoker.ports import Lease, LeaseUnreachable, LogConflict
from tests.contracts.event_log import records
from tests.contracts.lease import LeaseContract, lease_record, on
from tests.real.lease_racers import race
from tests.real.postgres import Server, programs, server

pytestmark = pytest.mark.skipif(programs() is None, reason="no PostgreSQL here (Debian: apt-get install postgresql)")
_names = itertools.count()


class DatabasePlace:
    """A database, in which each `lease()` is another control plane's."""

    def __init__(self, on: Server, name: str = "") -> None:
        """`name`: of a database that is there; it is emptied."""
        self.server = on
        self.name = name or f"marker_{next(_names)}"
        self.url = on.url(name) if name else on.database(self.name)
        if name:
            self.sql("DROP SCHEMA public CASCADE")
            self.sql("CREATE SCHEMA public")

    def lease(self, *, timeout_s: float = 5.0) -> PostgresLease:
        return PostgresLease(self.url, SystemClock(), timeout_s=timeout_s)

    def damage(self) -> None:
        self.sql("UPDATE stoker_marker SET record = '\\x00' || substr(record, 2)")

    def sql(self, statement: str) -> str:
        return self.server.sql(self.name, statement)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as made:
        yield made


@pytest.fixture
def place(postgres: Server) -> DatabasePlace:
    return DatabasePlace(postgres, "postgres")


class TestPostgresLease(LeaseContract):
    @pytest.fixture
    def place(self, postgres: Server) -> DatabasePlace:
        return DatabasePlace(postgres, "postgres")


def stored(place: DatabasePlace) -> PostgresLog:
    return PostgresLog(place.url, SystemClock(), SystemEntropy(), Quiet())


class Quiet:
    """Telemetry that nobody reads."""

    def warn(self, name: str, **fields: object) -> None: ...
    def event(self, name: str, **fields: object) -> None: ...
    def count(self, name: str, by: int = 1, **labels: str) -> None: ...
    def gauge(self, name: str, value: float, **labels: str) -> None: ...
    def observe(self, name: str, seconds: float, **labels: str) -> None: ...


async def load(log: PostgresLog, epoch: Epoch, end: int) -> int:
    """Append until somebody else is in the way; how far it came."""
    while True:
        try:
            await log.append(epoch, Position(end), records(end + 1, 3))
        except LogConflict:
            return end
        end += 3


async def until_put(lease: Lease, what: LeaseRecord, within_s: float = 20) -> None:
    """Again and again, as its machine does."""
    async with asyncio.timeout(within_s):
        while True:
            try:
                assert await lease.put(what) is True
                return
            except LeaseUnreachable:
                await asyncio.sleep(0.05)


async def refused_in(lease: Lease, what: LeaseRecord, within_s: float) -> str:
    """Z5: how it is told that the marker can't be put, and in time."""
    began = time.monotonic()
    with pytest.raises(LeaseUnreachable) as caught:
        await lease.put(what)
    assert time.monotonic() - began < within_s + 0.5
    return str(caught.value)


# --- the log behind it (L9) -----------------------------------------------------------------------------------------


async def test_l9_after_another_has_the_lease_the_stale_actives_append_changes_nothing(place: DatabasePlace) -> None:
    log = stored(place)
    await log.open()
    async with on(place) as (stale, fresh):
        assert await stale.put(lease_record(1, by="stale", epoch=1))
        await log.append(Epoch(1), Position(0), records(1, 2))
        assert await fresh.put(lease_record(2, by="fresh", epoch=2))
        with pytest.raises(LogConflict, match="epoch 1 is over"):
            await log.append(Epoch(1), Position(2), [b"stale"])
    assert place.sql("SELECT epoch, position FROM stoker_end") == "2|2"
    await log.close()


async def test_l9_no_append_succeeds_once_the_put_has_been_answered_however_busy_the_log_is(
    place: DatabasePlace,
) -> None:
    log = stored(place)
    await log.open()
    async with on(place) as (stale, fresh):
        for turn in range(1, 6):
            assert await stale.put(lease_record(2 * turn - 1, epoch=2 * turn - 1))
            end = int(place.sql("SELECT position FROM stoker_end"))

            loading = asyncio.create_task(load(log, Epoch(2 * turn - 1), end))
            await asyncio.sleep(0.05)
            assert await fresh.put(lease_record(2 * turn, epoch=2 * turn))
            at_answer = place.sql("SELECT position FROM stoker_end")
            assert await loading == int(at_answer), "all that was acknowledged is before the take-over"
            await log.close()
            log = stored(place)
            await log.open()
    await log.close()


async def test_renewals_under_the_same_epoch_leave_the_log_alone(place: DatabasePlace) -> None:
    log = stored(place)
    await log.open()
    async with on(place, 1) as (lease,):
        for turn in range(1, 51):
            await asyncio.gather(
                lease.put(lease_record(turn)), log.append(Epoch(1), Position(turn - 1), records(turn, 1))
            )
    await log.close()


async def test_a_put_that_is_lost_leaves_the_log_alone(place: DatabasePlace) -> None:
    async with on(place) as (one, other):
        assert await one.put(lease_record(1, by="a", epoch=1))
        assert await other.put(lease_record(1, by="b", epoch=7)) is False
        with pytest.raises(LeaseUnreachable):
            await other.put(lease_record(5, by="b", epoch=7))
    assert place.sql("SELECT epoch FROM stoker_end") == "1"


# --- a server in trouble --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["restart", "kill", "sessions"])
async def test_a_server_that_goes_away_is_unreachable_and_is_found_again(how: str) -> None:
    with server() as own:
        place = DatabasePlace(own)
        async with on(place) as (lease, other):
            assert await lease.put(lease_record(1))
            assert await other.read() == lease_record(1)
            if how == "sessions":
                place.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'stoker'")
            elif how == "restart":
                own.stop()
            else:
                own.kill()
            version = 2
            if how != "sessions":
                with suppress(LeaseUnreachable):  # what serves us may outlive its killed parent by a moment
                    while await lease.put(lease_record(version)):
                        version += 1
                said = await refused_in(lease, lease_record(version), 5)
                assert "the database of store.url can't be used" in said
                assert "see that the server is up" in said
                await asyncio.to_thread(own.start)
            await until_put(lease, lease_record(version))
            assert await other.read() == lease_record(version)


async def test_z5_a_server_that_hangs_costs_its_time_and_no_more() -> None:
    with server() as own:
        place = DatabasePlace(own)
        lease = place.lease(timeout_s=0.4)
        await until_put(lease, lease_record(1))
        stopped = [own.pid, *children_of(own.pid)]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(4):
                assert "within 0.4 s" in await refused_in(lease, lease_record(2), 0.4)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        await until_put(lease, lease_record(2))
        assert await lease.put(lease_record(3)) is True
        await lease.close()


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_q2_q3_a_commit_that_waits_for_a_replica_that_is_gone_is_unreachable_and_seen_by_nobody() -> None:
    with server() as own:
        place = DatabasePlace(own)
        lease, other = place.lease(timeout_s=0.4), place.lease()
        await until_put(lease, lease_record(1))
        replicas(own, "nobody")
        for _ in range(8):
            assert "synchronous replica" in await refused_in(lease, lease_record(2), 0.4)
            assert await other.read() == lease_record(1), "what waits for a replica isn't there yet"
            assert await lease.read() == lease_record(1)
        sessions = int(own.sql("postgres", "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'stoker'"))
        assert sessions <= 6, "Q4: they don't pile up on the server"
        replicas(own, "")
        await until_put(lease, lease_record(2))
        assert await other.read() == lease_record(2)
        assert await lease.put(lease_record(3)) is True
        await lease.close()
        await other.close()


async def test_q2_what_is_there_without_its_replica_is_not_believed_by_who_put_it() -> None:
    """The server gives up waiting for the replica when the session is ended, and shows the version."""
    with server() as own:
        place = DatabasePlace(own)
        lease = place.lease(timeout_s=0.4)
        await until_put(lease, lease_record(1))
        replicas(own, "nobody")
        await refused_in(lease, lease_record(2), 0.4)
        place.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        async with asyncio.timeout(10):
            while place.sql("SELECT version FROM stoker_marker") != "2":
                await asyncio.sleep(0.02)
        await refused_in(lease, lease_record(2), 0.4)
        with pytest.raises(LeaseUnreachable):
            await lease.read()
        replicas(own, "")
        await until_put(lease, lease_record(2))
        assert await lease.read() == lease_record(2)
        await lease.close()


def replicas(on: Server, names: str) -> None:
    on.sql("postgres", f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    on.sql("postgres", "SELECT pg_reload_conf()")
    until = time.monotonic() + 10
    while on.sql("postgres", "SHOW synchronous_standby_names") != names:
        assert time.monotonic() < until
        time.sleep(0.02)


async def test_whoever_was_stopped_for_too_long_does_not_believe_that_he_has_won(place: DatabasePlace) -> None:
    class Leaps(SystemClock):
        leap_s = 0.0

        def mono(self) -> Mono:
            self.leap_s, before = self.leap_s + 6.0, self.leap_s
            return Mono(super().mono() + before)

    lease = PostgresLease(place.url, Leaps(), timeout_s=5)
    with pytest.raises(LeaseUnreachable, match=r"took ([6-9]|\d\d)\.\d s"):
        await lease.put(lease_record(1))
    await lease.close()


# --- several hosts, and wrong ones ----------------------------------------------------------------------------------


async def test_q5_a_host_that_never_answers_hides_no_other(place: DatabasePlace) -> None:
    """It takes connections and says nothing, as a machine that is half dead."""
    with socket.socket() as mute, socket.socket() as busy:
        mute.bind(("127.0.0.1", 0))
        mute.listen(1)
        busy.connect(mute.getsockname())
        port = mute.getsockname()[1]
        url = f"host=127.0.0.1,{place.server.folder} port={port},{place.server.port} dbname={place.name} user=postgres"
        lease = PostgresLease(url, SystemClock(), timeout_s=0.4)
        assert "can't be connected to within 0.4 s" in await refused_in(lease, lease_record(1), 0.4)
        await until_put(lease, lease_record(1))
        assert await lease.put(lease_record(2)) is True
        await lease.close()


async def test_q5_a_server_that_takes_no_writes_is_passed_over(place: DatabasePlace) -> None:
    with server() as replica:
        replica.sql("postgres", "ALTER SYSTEM SET default_transaction_read_only = on")
        replica.sql("postgres", "SELECT pg_reload_conf()")
        url = (
            f"host={replica.folder},{place.server.folder} port={replica.port},{place.server.port} "
            f"dbname=postgres user=postgres"
        )
        alone = PostgresLease(replica.url("postgres"), SystemClock(), timeout_s=5)
        assert "read-only" in await refused_in(alone, lease_record(1), 5)
        await alone.close()
        lease = PostgresLease(url, SystemClock(), timeout_s=5)
        await until_put(lease, lease_record(1))
        await lease.close()


async def test_no_message_has_the_password_of_the_url(place: DatabasePlace) -> None:
    url = place.url.replace("postgres@", "postgres:hunter2@").replace(str(place.server.folder), "/nowhere")
    lease = PostgresLease(url, SystemClock(), timeout_s=5)
    said = await refused_in(lease, lease_record(1), 5)
    assert "/nowhere" in said
    assert "hunter2" not in said
    await lease.close()


async def test_a_database_that_was_emptied_is_not_taken_for_a_new_one(place: DatabasePlace) -> None:
    async with on(place, 1) as (lease,):
        assert await lease.put(lease_record(1))
        place.sql("UPDATE stoker_marker SET version = 0, mark = '', record = ''")
        with pytest.raises(LeaseUnreachable, match="has lost the marker"):
            await lease.read()
    async with on(place, 1) as (lease,):
        assert await lease.read() is None, "the way out of a damaged one"


def test_z2_of_processes_that_race_exactly_one_wins_each_version(place: DatabasePlace) -> None:
    won = race(place.url, ["a", "b", "c"], 60, kills=1)
    assert all(len(winners) == 1 for winners in won.values())
    assert place.sql("SELECT version FROM stoker_marker") == "60"
    assert len(won) >= 50, "an append of one isn't overtaken before it is answered: it is one statement"


async def test_what_is_closed_leaves_no_session_behind(place: DatabasePlace) -> None:
    async with on(place, 3) as leases:
        await asyncio.gather(*(lease.read() for lease in leases))
    async with asyncio.timeout(10):
        while (
            place.sql(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'stoker' "
                "AND datname = current_database()"
            )
            != "0"
        ):
            await asyncio.sleep(0.02)


async def test_a_question_that_fails_at_the_moment_it_is_given_up_leaves_no_fault_behind(place: DatabasePlace) -> None:
    """The server's own limit is as long as ours: while a replica is gone, both are over at once every other time."""
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    lease, asked, fails = place.lease(), asyncio.Event(), asyncio.Event()

    async def question(db: object) -> None:
        asked.set()
        await fails.wait()
        raise psycopg.errors.QueryCanceled

    asking = asyncio.create_task(lease._ask(question))
    await asked.wait()
    fails.set()
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    await lease.close()
    gc.collect()
    assert told == []
