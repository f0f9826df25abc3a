"""A database filled with the log of a backup, all or nothing.

Rules: B1  what is put there is one transaction, and only into a database that holds nothing: not even the marker of
           control planes that have worked there, nor a history. What is there already is never removed, whoever asks
           for it. The history of the backup stays in the folder, whose control plane moves it here
       B2  it is kept once the block is left without an exception: whatever may fail was done before. Cut off between
           the two, the folder says that its log is in a database that isn't empty, so that nothing begins anew
"""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Final

import psycopg

from stoker.adapters.postgres import log_statements
from stoker.adapters.postgres.connection import RECONNECT_S, SETTLE, PostgresConnection, PostgresLink, number, one
from stoker.adapters.postgres.schema import migrate
from stoker.brain.domain.errors import refusal_error
from stoker.ports import Clock, LogBeginning, LogFailed, Telemetry

_RESTORED: Final = "restored"
"""Stands where the mark of the newest append does."""
_END: Final = """
UPDATE stoker_end SET epoch = %s, position = %s
WHERE position = 0 AND NOT EXISTS (SELECT FROM stoker_event) AND NOT EXISTS (SELECT FROM stoker_snapshot)
AND EXISTS (SELECT FROM stoker_marker WHERE version = 0)
"""
_HAS_HISTORY: Final = "SELECT to_regclass('stoker_history_mark') IS NOT NULL"
_OF_HISTORY: Final = "SELECT count(*) FROM stoker_history_mark"


@asynccontextmanager
async def filled_database(
    url: str, beginning: LogBeginning, clock: Clock, telemetry: Telemetry, *, account: AbstractContextManager[None]
) -> AsyncIterator[None]:
    """Snapshot and log, kept on leaving (B2). `account`: as whom to connect.

    Raises: StokerError `store_not_empty`, `store_unreachable`, `store_held` or `store_too_new`.
    """
    link = PostgresLink(url, clock, telemetry, RECONNECT_S)
    try:
        with account:
            await link.open()
        await migrate(link.writer)
        async with link.writer.transaction():
            await _begin(link.writer, beginning)
            yield
        await link.write(lambda db: db.execute(SETTLE))  # it waits for the synchronous replica, and says if it can't
    except (psycopg.Error, LogFailed) as fault:
        raise link.unreachable(fault) from fault
    finally:
        await link.close()


async def _begin(db: PostgresConnection, beginning: LogBeginning) -> None:
    """Begin the one transaction that fills an empty database (B1)."""
    base = beginning.base[1]
    (is_there,) = await one(db, _HAS_HISTORY)
    has_history = is_there and await number(db, _OF_HISTORY)
    done = await db.execute(_END, beginning.base)
    if has_history or done.rowcount != 1:
        raise refusal_error(
            "store_not_empty",
            "the database of store.url holds something already, and nothing there is ever replaced",
            "make another database, and let store.url name that one",
        )
    await log_statements.save_snapshot(db, base, beginning.chunks)
    behind = log_statements.append_values(beginning.epoch, base, beginning.records, mark=_RESTORED, tell=False)
    await db.execute(log_statements.APPEND, behind)
