"""Schema migrations of a PostgreSQL store.

Rules: S1  steps are numbered files of SQL in one folder; all that are missing are one transaction, with their numbers
       S2  a store of a newer Stoker is left as it is
       S3  of several processes that find steps missing one runs them, while the others wait
       S4  an account that may read and not write is told at once which rights it lacks, and not at the first append
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stoker.adapters.history_sql.statements import TABLES
from stoker.adapters.log_policy import steps_in, too_new
from stoker.adapters.postgres.connection import PostgresConnection, number
from stoker.brain.domain.errors import StokerError, refusal_error

_STEPS: Final = steps_in(Path(__file__).parent / "migrations")
NEWEST: Final = max(_STEPS)
_LOCK: Final = 0x53544B53
"""Of the advisory lock under which steps are run: 'STKS'. The writer's own may be held by another control plane."""

_RIGHTS: Final = {
    "stoker_schema": "SELECT",
    "stoker_end": "SELECT, UPDATE",
    "stoker_event": "SELECT, INSERT, DELETE",
    "stoker_snapshot": "SELECT, INSERT, DELETE",
    "stoker_snapshot_chunk": "SELECT, INSERT",
    "stoker_marker": "SELECT, UPDATE",
}
HISTORY_RIGHTS: Final = {
    "stoker_history_schema": "SELECT, INSERT",
    "stoker_history_writer": "SELECT, INSERT",
    **{f"stoker_history_{table}": "SELECT, INSERT, UPDATE, DELETE" for table in TABLES},
    "stoker_history_mark": "SELECT, INSERT, UPDATE",
}
LACKING: Final = (
    "SELECT privilege || ' on ' || name FROM unnest(%s::text[], %s::text[]) AS wanted (name, privilege) "
    "WHERE NOT has_table_privilege(to_regclass(name), privilege)"
)
"""S4: such as `UPDATE on stoker_end`, of those in `rights_in`. Of tables that aren't there nothing is lacking."""
OWN_IT: Final = "let it own its database and the tables in it whose names begin with stoker_"


async def migrate(db: PostgresConnection) -> None:
    """Run the steps that are missing. Raises: StokerError `store_too_new`, `store_unreachable` (S4); psycopg.Error."""
    async with db.transaction():
        await db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        await db.execute("CREATE TABLE IF NOT EXISTS stoker_schema (version integer NOT NULL)")
        have = await number(db, "SELECT coalesce(max(version), 0) FROM stoker_schema")
        if have > NEWEST:
            raise StokerError(too_new("the database of store.url", have, NEWEST))
        for version, step in _STEPS.items():
            if version > have:
                await db.execute(step.read_bytes())
                await db.execute("INSERT INTO stoker_schema VALUES (%s)", (version,))
    if lacks := await lacking(db):
        raise refusal_error(
            "store_unreachable",
            f"the account of store.url lacks rights in its database: {', '.join(lacks)}",
            OWN_IT,
        )


async def lacking(db: PostgresConnection, *, history: bool = False) -> list[str]:
    """Return the rights that the account lacks (S4). Raises: psycopg.Error."""
    wanted = rights_in(HISTORY_RIGHTS if history else _RIGHTS)
    cursor = await db.execute(
        "SELECT 'CREATE on schema ' || coalesce(current_schema()::text, 'of search_path') "
        f"WHERE NOT coalesce(has_schema_privilege(current_schema(), 'CREATE'), false) UNION ALL {LACKING}",
        wanted,
    )
    return [str(lack) for (lack,) in await cursor.fetchall()]


def rights_in(tables: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the values of LACKING: a table and a right of it, side by side."""
    wanted = [(table, right) for table, rights in tables.items() for right in rights.split(", ")]
    return [table for table, _ in wanted], [right for _, right in wanted]
