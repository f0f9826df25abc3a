"""The lease of control planes whose log is in PostgreSQL, kept as one row beside the log.

Rules: Z1 to Z5 of the port, L9 of the log, and
       Q1  a put is one statement and so one transaction: it replaces the version before it, or itself; and where its
           epoch is higher than the log's, the log's becomes that one. A stale active's append then changes nothing
       Q2  what PostgreSQL calls committed waits for its synchronous replicas; a put that may have been done is put
           again before anybody here believes it, so that this commit too has waited for them
       Q3  a query that takes too long is left alone and its connection cut. It isn't cancelled: a commit that waits
           for a replica would then be done here, and visible, without that replica
       Q4  whatever else the server has begun for us ends itself after `timeout_s`, so sessions don't pile up there
       Q5  of several hosts the one is used that takes writes. Connecting goes on behind calls that gave up waiting
           for it, or a host that is silent would hide the ones after it
Limits: a replica that isn't synchronous may lose versions, and events, when it is promoted.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection

from stoker.adapters.lease_folder.record import LeaseRecordDamaged, damaged, sealed, unsealed
from stoker.adapters.postgres.connection import (
    DURABLY,
    LOST,
    OPTIONS,
    PostgresConnection,
    cut_off,
    one,
    whole,
    words_of,
)
from stoker.adapters.postgres.schema import migrate
from stoker.brain.domain.lease_record import LeaseRecord
from stoker.ports import Clock, LeaseUnreachable

CONNECT_S: Final = 2
"""For each host; libpq knows no shorter time."""
FAREWELL_S: Final = 1.0
_READ: Final = "SELECT version, record FROM stoker_marker"
_PUT: Final = """
WITH moved AS (
    UPDATE stoker_marker SET version = %(version)s, mark = %(mark)s, record = %(record)s
    WHERE version = %(version)s - 1 OR (version = %(version)s AND mark = %(mark)s)
    RETURNING 1
), fenced AS (
    UPDATE stoker_end SET epoch = %(epoch)s WHERE epoch < %(epoch)s AND EXISTS (SELECT FROM moved)
    RETURNING 1
)
SELECT (SELECT count(*) FROM moved), version FROM stoker_marker
"""
_WAY_OUT: Final = (
    "stop every control plane, run UPDATE stoker_marker SET version = 0, mark = '', record = '' in that database, and "
    "start them (docs/explanation/the-marker.md)"
)

Answer = TypeVar("Answer")


class PostgresLease:
    """The `Lease` port on one database."""

    def __init__(self, url: str, clock: Clock, *, timeout_s: float) -> None:
        """`url`: as libpq reads it. `timeout_s`: well below the lease, or its holder can't try twice."""
        self._url = url
        self._clock = clock
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()
        self._db: PostgresConnection | None = None
        self._connecting: asyncio.Task[PostgresConnection] | None = None
        self._farewells: set[asyncio.Task[None]] = set()
        self._migrated = False
        self._doubtful: LeaseRecord | None = None
        self._seen = False
        self._closed = False

    async def read(self) -> LeaseRecord | None:
        """Raises: LeaseUnreachable, StokerError (`marker_damaged`, `store_too_new`, `store_unreachable`)."""
        version, record = await self._ask(lambda db: one(db, _READ))
        if version == 0:
            if self._seen:
                raise LeaseUnreachable("the database of store.url has lost the marker: it isn't the one it was")
            return None
        try:
            marker = unsealed(bytes(record) if isinstance(record, bytes) else b"", whole(version))
        except LeaseRecordDamaged as fault:
            raise damaged(f"version {version} of the marker in store.url", fault, _WAY_OUT) from fault
        self._seen = True
        if self._doubtful is not None and marker.mark == self._doubtful.mark and not await self.put(marker):  # Q2
            raise LeaseUnreachable("the marker has just been replaced")
        return marker

    async def put(self, marker: LeaseRecord) -> bool:
        """Raises: LeaseUnreachable, StokerError (`store_too_new`, `store_unreachable`)."""
        assert marker.mark, "without a mark nobody knows whose write it was"
        assert marker.version > 0, f"versions begin with 1: {marker.version}"
        self._doubtful, began = marker, self._clock.mono()
        values = {"version": marker.version, "mark": marker.mark, "record": sealed(marker), "epoch": marker.epoch}
        moved, version = await self._ask(lambda db: one(db, _PUT, **values))  # Q1
        if not moved and whole(version) < marker.version - 1:
            known = f"has version {version} of the marker; version {marker.version} isn't the next one"
            raise LeaseUnreachable(f"the database of store.url {known}")
        if (took := self._clock.mono() - began) > self._timeout_s:
            raise LeaseUnreachable(f"a write of the marker took {took:.1f} s: it may have been replaced since")
        self._doubtful = None
        self._seen = True
        return bool(moved)

    async def close(self) -> None:
        """Safe to call twice."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait((self._connecting,), timeout=FAREWELL_S)
            if self._connecting.done() and not self._connecting.cancelled() and not self._connecting.exception():
                self._db = self._connecting.result()
            self._connecting = None
        if self._db is not None:
            self._leave(self._db, None)
        if self._farewells:
            await asyncio.wait(self._farewells, timeout=FAREWELL_S)

    async def _ask(self, ask: Callable[[PostgresConnection], Awaitable[Answer]]) -> Answer:
        """Ask the database within the lease's bound (Z5)."""
        if self._closed:
            raise LeaseUnreachable("the marker is closed")
        try:
            async with asyncio.timeout(self._timeout_s), self._turn:
                try:
                    return await self._once(ask)
                except LOST:  # perhaps while nobody looked
                    return await self._once(ask)
        except TimeoutError as fault:
            known = "hasn't answered" if self._db or self._connecting is None else "can't be connected to"
            hint = "see that the server, and its synchronous replica if it has one, are up"
            raise LeaseUnreachable(f"the database of store.url {known} within {self._timeout_s:g} s; {hint}") from fault
        except psycopg.Error as fault:
            raise LeaseUnreachable(
                f"the database of store.url can't be used: {words_of(fault, self._url)}; see that the server is up"
            ) from fault

    async def _once(self, ask: Callable[[PostgresConnection], Awaitable[Answer]]) -> Answer:
        db = await self._connected()
        asked = asyncio.ensure_future(ask(db))
        try:
            await asyncio.wait((asked,))
            return asked.result()
        except BaseException:
            self._leave(db, asked)
            raise

    async def _connected(self) -> PostgresConnection:
        """Return a connection to the host that takes writes (Q5)."""
        if self._db is None:
            if self._connecting is None:
                self._connecting = asyncio.create_task(self._connect())
            connecting = self._connecting
            await asyncio.wait((connecting,))
            self._connecting = None
            self._db = connecting.result()
        return self._db

    async def _connect(self) -> PostgresConnection:
        options: dict[str, Any] = {**OPTIONS, "connect_timeout": CONNECT_S, "target_session_attrs": "read-write"}
        db = await AsyncConnection.connect(self._url, **options)
        try:
            if not self._migrated:
                await migrate(db)
                self._migrated = True
            await db.execute(DURABLY)
            limit_ms = str(max(1, round(self._timeout_s * 1_000)))
            await db.execute("SELECT set_config('statement_timeout', %s, false)", (limit_ms,))  # Q4
        except BaseException:
            await db.close()
            raise
        return db

    def _leave(self, db: PostgresConnection, asked: "asyncio.Future[Any] | None") -> None:
        """Q3: have done with a connection, whatever it is doing."""
        if self._db is db:
            self._db = None
        farewell = asyncio.create_task(cut_off(db, asked))
        self._farewells.add(farewell)
        farewell.add_done_callback(self._farewells.discard)
