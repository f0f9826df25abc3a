"""Inspection of a store's database that changes nothing.

Nothing is made, locked or written, and a control plane that runs there isn't held up.
"""

import asyncio
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import AsyncConnection

from stoker.adapters.postgres.connection import OPTIONS, PostgresConnection, number, one, words_of
from stoker.adapters.postgres.history import NEWEST as HISTORY_NEWEST
from stoker.adapters.postgres.log_statements import cluster_of
from stoker.adapters.postgres.schema import NEWEST, lacking
from stoker.brain.domain.errors import StokerError, refusal_error

CONNECT_S: Final = 3
"""For each host."""
ANSWER_S: Final = 8.0
"""For all of it."""
_UNREAD: Final = "mend it: postgresql://ACCOUNT@HOST/DATABASE"
_UNREACHED: Final = (
    "see that the server runs, that account, password and database are right, and ask as the daemon's account"
)
_ABOUT: Final = """
SELECT current_user::text, current_database()::text, current_setting('fsync') = 'on',
       current_setting('transaction_read_only') = 'on', to_regclass('stoker_schema') IS NOT NULL
"""


class DatabaseInspection(NamedTuple):
    """Findings about a database: server, schema, log and rights."""

    server: int
    """As libpq counts: 150004 is 15.4."""
    account: str
    database: str
    fsync: bool
    read_only: bool
    schema: int = 0
    """0 = there are no tables of ours yet."""
    newest: int = NEWEST
    """The newest schema that this version knows."""
    lacks: tuple[str, ...] = ()
    """Rights that the account doesn't have, such as `UPDATE on stoker_end`."""
    end: int = 0
    """Of the log."""
    cluster_id: str = ""
    """Empty = not known, or none has begun."""
    history_schema: int = 0
    """0 = nothing was written to the history yet, or it can't be read."""
    history_newest: int = HISTORY_NEWEST
    history_of: str = ""
    """The cluster of the history; empty = there is none yet."""

    @property
    def is_empty(self) -> bool:
        """Without rights nobody knows."""
        return not self.end and self.schema <= self.newest and not self.lacks


async def inspect_database(url: str) -> DatabaseInspection:
    """Raises: StokerError `store_unreachable`."""
    options: dict[str, Any] = {**OPTIONS, "connect_timeout": CONNECT_S}
    try:
        async with asyncio.timeout(ANSWER_S), await AsyncConnection.connect(url, **options) as db:
            return await _seen(db)
    except TimeoutError as fault:
        raise _unseen(f"no answer within {ANSWER_S:g} s", _UNREACHED) from fault
    except psycopg.Error as fault:
        unread = isinstance(fault, psycopg.ProgrammingError) and not fault.sqlstate
        raise _unseen(words_of(fault, url), _UNREAD if unread else _UNREACHED) from fault


def _unseen(why: str, hint: str) -> StokerError:
    return refusal_error("store_unreachable", f"the database of store.url can't be looked at: {why}", hint)


async def _seen(db: PostgresConnection) -> DatabaseInspection:
    account, database, fsync, read_only, ours = await one(db, _ABOUT)
    lacks = tuple(dict.fromkeys((*await lacking(db), *await lacking(db, history=True))))
    seen = DatabaseInspection(
        db.info.server_version, str(account), str(database), bool(fsync), bool(read_only), lacks=lacks
    )
    if not ours or any(right.startswith("SELECT") for right in lacks):
        return seen
    seen = seen._replace(schema=await number(db, "SELECT coalesce(max(version), 0) FROM stoker_schema"))
    if not 0 < seen.schema <= NEWEST:
        return seen
    end, cluster_id = await number(db, "SELECT position FROM stoker_end"), await cluster_of(db)
    return await _history_seen(db, seen._replace(end=end, cluster_id=cluster_id))


async def _history_seen(db: PostgresConnection, seen: DatabaseInspection) -> DatabaseInspection:
    (is_there,) = await one(db, "SELECT to_regclass('stoker_history_mark') IS NOT NULL")
    if not is_there:
        return seen
    (of,) = await one(db, "SELECT coalesce(max(cluster_id), '') FROM stoker_history_mark")
    schema = await number(db, "SELECT coalesce(max(version), 0) FROM stoker_history_schema")
    return seen._replace(history_schema=schema, history_of=str(of))
