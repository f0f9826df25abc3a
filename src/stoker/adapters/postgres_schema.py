"""How is the schema of a PostgreSQL store brought up to date?

Rules: S1  steps are numbered files of SQL in one folder; each is one transaction together with its number
       S2  a store of a newer Stoker is left as it is
The caller holds the lock of the one writer, so no two processes migrate at once.
"""

from pathlib import Path
from typing import Final

from psycopg import AsyncConnection

from stoker.brain.domain.errors import StokerError, refuse

_STEPS: Final = Path(__file__).parent / "migrations_postgres"


async def migrate(db: AsyncConnection[tuple[object, ...]]) -> None:
    """Run the steps that are missing. Raises: StokerError `store_too_new`, psycopg.Error."""
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
            async with db.transaction():
                await db.execute(step.read_bytes())
                await db.execute("INSERT INTO stoker_schema VALUES (%s)", (number,))
