"""Connections of a store to PostgreSQL, and how they are made again when they are lost.

One connection writes the log, one beside it does everything else, so that neither waits for the other; a third, made
when it is first needed, hears of news.

Rules: P2  a connection that breaks is made anew; what was asked on it may or may not have been done
       P3  the server is waited for during `reconnect_s`; what is asked meanwhile waits too. Then the log has failed
       P6  the password of the URL is in no message
       P7  whoever gives up waiting leaves what he asked for alone, and his connection is cut. It isn't cancelled: a
           commit that waits for a synchronous replica would then be done here, and seen by others, without that replica
       P8  a commit waits for the disk, and for the synchronous replica where there is one, whatever the server's or the
           account's default is; one whose wait was cancelled on the server counts as not known
       P9  a store that isn't shared is written by one process at a time, and by none while it is shared by others: that
           is what an advisory lock is for. A courtesy: the end of the log is what protects it
       P10 what a server found when it was started anew may lack its replica: nobody waits for those commits any more.
           So before anything is believed that is read on a new connection there, something is committed once more,
           which waits for the replica to have all before it too
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict

from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.ports import Clock, LogConflict, LogFailed, Telemetry

RECONNECT_S: Final = 30.0
"""Long enough for a restart of the server, or for its standby to be promoted."""
RETRY_S: Final = 0.2
CONNECT_S: Final = 5
HEAR_S: Final = 10.0
"""How long it may take to ask whether there is news."""
CHANNEL: Final = "stoker_log"
_LOCK: Final = 0x53544B52
"""Of the advisory lock that a writer holds: 'STKR'."""
_LOCK_TRIES: Final = 15
"""For three seconds: the session of a process that has just ended may not have been noticed yet."""
OPTIONS: Final[dict[str, Any]] = {
    "autocommit": True,
    "application_name": "stoker",
    "connect_timeout": CONNECT_S,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""A server that is gone without a word is noticed in ten seconds."""

DURABLY: Final = (
    "SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') "
    "WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false)"
)
"""P8"""
SETTLE: Final = "UPDATE stoker_end SET append = append RETURNING position, append"
"""P10. It changes nothing."""

Answer = TypeVar("Answer")
PostgresConnection = AsyncConnection[tuple[object, ...]]
LOST: Final = (psycopg.OperationalError, psycopg.InterfaceError)


def options_for(url: str) -> dict[str, Any]:
    """Return the options of a connection; of several hosts the one is meant that can be written to."""
    several = len(str(conninfo_to_dict(url).get("host", "")).split(",")) > 1
    return OPTIONS | {"target_session_attrs": "read-write"} if several else OPTIONS


class PostgresLink:
    """The connections of one store."""

    def __init__(
        self, url: str, clock: Clock, telemetry: Telemetry, reconnect_s: float, *, shared: bool = False
    ) -> None:
        self._url = url
        self._shared = shared
        self._clock = clock
        self._telemetry = telemetry
        self._reconnect_s = reconnect_s
        self._writer: PostgresConnection | None = None
        self._side: PostgresConnection | None = None
        self._ear: PostgresConnection | None = None
        self._beside = asyncio.Lock()
        self._hearing = asyncio.Lock()
        self._unreplicated = False
        self._closed = False

    @property
    def writer(self) -> PostgresConnection:
        """Raises: LogFailed."""
        if self._closed or self._writer is None:
            raise LogFailed("the log is closed")
        return self._writer

    async def open(self) -> None:
        """Raises: StokerError `store_held`, psycopg.Error."""
        self._writer = await self._connect_writer(0)
        (fsync,) = await one(self._writer, "SELECT current_setting('fsync')")
        if fsync != "on":
            said = (
                "PostgreSQL runs with fsync off: what is acknowledged is lost when its machine loses power; turn it on"
            )
            self._telemetry.warn("store_unsafe", error=said)

    async def write(self, ask: Callable[[PostgresConnection], Awaitable[Answer]]) -> Answer:
        """Ask on the connection that writes. Raises: psycopg.Error; LogFailed (P8)."""
        self._unreplicated = False
        answer = await cancellable(self.writer, ask)
        if self._unreplicated:
            raise LogFailed("the wait for the synchronous replica was cancelled on the server: it may lack this append")
        return answer

    async def again(self, ask: Callable[[PostgresConnection], Awaitable[Answer]], fault: psycopg.Error) -> Answer:
        """P2 and P3: the answer on a new writing connection. Raises: LogFailed, LogConflict."""
        lost_pid = 0 if self.writer.closed else self.writer.info.backend_pid
        self._telemetry.warn("store_lost", error=self.words(fault))
        try:
            async with asyncio.timeout(self._reconnect_s):
                while True:
                    with suppress(*LOST):
                        await self.writer.close()
                        self._writer = await self._connect_writer(lost_pid)
                        answer = await cancellable(self._writer, ask)
                        self._telemetry.event("store_back")
                        return answer
                    await self._clock.sleep(RETRY_S)
        except TimeoutError:
            waited = f"{self._reconnect_s:g} s"
            raise LogFailed(f"PostgreSQL hasn't answered for {waited}: {self.words(fault)}") from fault
        except StokerError as refused:
            raise LogConflict(refused.refusal.message) from refused

    async def aside(self, ask: Callable[[PostgresConnection], Awaitable[Answer]]) -> Answer:
        """Ask on the second connection; once more, on another one, when it was lost. Raises: LogFailed."""
        async with self._beside:
            if self._side is not None:
                with suppress(*LOST):
                    return await self._ask_aside(self._side, ask)
            side = await self._side_anew()
            try:
                return await self._ask_aside(side, ask)
            except LOST as fault:
                raise LogFailed(f"PostgreSQL doesn't answer: {self.words(fault)}") from fault

    async def _ask_aside(
        self, side: PostgresConnection, ask: Callable[[PostgresConnection], Awaitable[Answer]]
    ) -> Answer:
        if self._closed:
            raise LogFailed("the log is closed")
        try:
            return await cancellable(side, ask)
        except LOST:
            raise
        except psycopg.Error as fault:
            raise LogFailed(f"PostgreSQL refused: {self.words(fault)}") from fault

    async def _side_anew(self) -> PostgresConnection:
        said = "it can't be connected to"
        try:
            async with asyncio.timeout(self._reconnect_s):
                while True:
                    if self._closed:
                        raise LogFailed("the log is closed")
                    try:
                        if self._side is not None:
                            await _close(self._side)
                        self._side = await self._connect_reader()
                    except LOST as fault:
                        said = self.words(fault)
                    else:
                        return self._side
                    await self._clock.sleep(RETRY_S)
        except TimeoutError as fault:
            raise LogFailed(f"PostgreSQL doesn't answer: {said}") from fault

    async def hear(self, ask: Callable[[PostgresConnection], Awaitable[Answer]], within_s: float) -> Answer | None:
        """Ask on the third connection, then wait for a notification on CHANNEL unless the answer is true.

        It waits at most the given time; None = one came. Raises: LogFailed; it may be tried again.
        """
        if self._closed:
            raise LogFailed("the log is closed")
        async with self._hearing:
            try:
                async with asyncio.timeout(HEAR_S):
                    if self._ear is None:
                        self._ear = await self._connect_reader()
                        await cancellable(self._ear, lambda db: db.execute(f"LISTEN {CHANNEL}"))
                    answer = await cancellable(self._ear, ask)
                if answer:
                    return answer
                async for _ in self._ear.notifies(timeout=within_s, stop_after=1):
                    return None
            except TimeoutError as fault:
                await self._deafen()
                raise LogFailed(f"PostgreSQL hasn't answered for {HEAR_S:g} s") from fault
            except psycopg.Error as fault:
                await self._deafen()
                raise LogFailed(f"PostgreSQL doesn't answer: {self.words(fault)}") from fault
            except asyncio.CancelledError:
                if self._ear is not None and self._ear.closed:
                    self._ear = None
                raise
            else:
                return answer

    async def _deafen(self) -> None:
        ear, self._ear = self._ear, None
        if ear is not None:
            await _close(ear)

    async def _connect(self) -> PostgresConnection:
        return await AsyncConnection.connect(self._url, **options_for(self._url))

    async def _connect_reader(self) -> PostgresConnection:
        """Connect for reads (P10)."""
        db = await self._connect()
        if self._shared:
            try:
                await cancellable(db, lambda db: db.execute(DURABLY))
                await cancellable(db, lambda db: db.execute(SETTLE))
            except BaseException:
                await _close(db)
                raise
        return db

    async def _connect_writer(self, lost_pid: int) -> PostgresConnection:
        """Connect for writes, with commits that wait for the disk and a synchronous replica (P8, P9)."""
        db = await self._connect()
        try:
            db.add_notice_handler(self._noticed)
            await db.execute(DURABLY)
            await self._lock(db, lost_pid)
        except BaseException:
            await _close(db)
            raise
        return db

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.source_function == "SyncRepWaitForLSN":
            self._unreplicated = True

    async def _lock(self, db: PostgresConnection, lost_pid: int) -> None:
        """P9: who starts a control plane beside another one is told so. Our own lost session may still hold the lock,
        and is ended.

        Raises: StokerError `store_held`.
        """
        if self._shared:
            attempt, others = "SELECT pg_try_advisory_lock_shared(%s)", "a control plane that isn't set up for failover"
        else:
            attempt, others = "SELECT pg_try_advisory_lock(%s)", "another control plane"
        for _ in range(_LOCK_TRIES):
            row = await one(db, attempt, _LOCK)
            if row[0]:
                return
            holder = await one(
                db,
                "SELECT coalesce(max(pid), 0) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND granted "
                "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
                _LOCK,
            )
            if lost_pid and holder[0] == lost_pid:
                await db.execute("SELECT pg_terminate_backend(%s)", (lost_pid,))
            await self._clock.sleep(RETRY_S)
        raise refusal_error(
            "store_held",
            f"{others} writes to the database of store.url",
            "stop it first; when it was killed, the server lets go of it as soon as it notices",
        )

    async def close(self) -> None:
        """Safe to call twice, and after `open` failed."""
        self._closed = True
        async with self._beside:
            for db in (self._writer, self._side):
                if db is not None:
                    await _close(db)
        async with self._hearing:
            await self._deafen()

    def unreachable(self, fault: psycopg.Error | LogFailed) -> StokerError:
        return refusal_error(
            "store_unreachable",
            f"the database of store.url can't be used: {self.words(fault)}",
            "see that the server runs, and that the account of the URL may create tables in that database",
        )

    def words(self, fault: Exception) -> str:
        return words_of(fault, self._url)


def words_of(fault: Exception, url: str) -> str:
    """P6. Where the URL itself can't be read, what libpq says of it may be any part of it."""
    said = " ".join(str(fault).split())[:400]
    unread = "that URL can't be read; in names and passwords a special character is written as %XX"
    if url.partition("://")[2].partition("/")[0].count("@") > 1:
        return unread
    try:
        password = str(conninfo_to_dict(url).get("password") or "")
    except psycopg.Error:
        return unread
    return said.replace(password, "***") if password else said


async def cancellable(db: PostgresConnection, ask: Callable[[PostgresConnection], Awaitable[Answer]]) -> Answer:
    """Let a caller that gives up cut its connection off, and leave what it asked for alone (P7).

    Raises: psycopg.Error.
    """
    asking = asyncio.ensure_future(ask(db))
    try:
        await asyncio.wait((asking,))
    except asyncio.CancelledError:
        await cut_off(db, asking)
        raise
    return asking.result()


async def cut_off(db: PostgresConnection, asking: "asyncio.Future[Any] | None") -> None:
    """Have done with a connection, whatever it is doing."""
    if asking is not None:
        if not asking.done():
            with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(db.pgconn.socket)) as wire:
                wire.shutdown(socket.SHUT_RDWR)  # whoever waits on it is told at once
        await asyncio.wait((asking,))
        if not asking.cancelled():
            asking.exception()  # of no interest any more, and asyncio tells of one that nobody looked at
    await _close(db)


async def _close(db: PostgresConnection) -> None:
    with suppress(psycopg.Error):
        await db.close()


async def one(db: PostgresConnection, query: str, *values: object, **named: object) -> tuple[object, ...]:
    """The only row. Values are those of `%s`, or of `%(name)s`."""
    cursor = await db.execute(query, named or values)
    row = await cursor.fetchone()
    assert row is not None, f"no row: {query}"
    return row


async def number(db: PostgresConnection, query: str, *values: object) -> int:
    """The only value of the only row."""
    return whole((await one(db, query, *values))[0])


def whole(value: object) -> int:
    """Return a number as the bigint that PostgreSQL gave it."""
    assert isinstance(value, int), f"a number was expected: {value!r}"
    return value
