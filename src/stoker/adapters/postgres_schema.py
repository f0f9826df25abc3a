"""How is the schema of a PostgreSQL store brought up to date?

Rules: S1  steps are numbered files of SQL in one folder; all that are missing are one transaction, with their numbers
       S2  a store of a newer Stoker is left as it is
       S3  of several processes that find steps missing one runs them, while the others wait
"""

from pathlib import Path
from typing import Final

from psycopg import AsyncConnection

from stoker.brain.domain.errors import StokerError, refuse

_STEPS: Final = Path(__file__).parent / "migrations_postgres"
_LOCK: Final = 0x53544B53
"""Of the advisory lock under which steps are run: 'STKS'. The writer's own may be held by another control plane."""


async def migrate(db: AsyncConnection[tuple[object, ...]]) -> None:
    """Run the steps that are missing. Raises: StokerError `store_too_new`, psycopg.Error."""
    async with db.transaction():
        await db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        await db.execute("CREATE TABLE IF NOT EXISTS stoker_schema (version integer NOT NULL)")
        row = await (await db.execute("SELECT coalesce(max(version), 0) FROM stoker_schema")).fetchone()
        have = int(str(row[0])) if row else 0
        steps = {int(step.name[:4]): step for step in sorted(_STEPS.glob("[0-9][0-9][0-9][0-9]_*.sql"))}
        if have > max(steps):
            raise StokerError(
                refuse(
                    "store_too_new",
                    f"the database of store.url has schema {have}; this Stoker knows schemas up to {max(steps)}",
                    "start the version of Stoker that wrote it, or a newer one",
                )
            )
        for number, step in steps.items():
            if number > have:
                await db.execute(step.read_bytes())
                await db.execute("INSERT INTO stoker_schema VALUES (%s)", (number,))
