"""How does a database come to hold the log of a backup, all or nothing?

Rules: B1  what is put there is one transaction, and only into a database that holds nothing: not even the marker of
           control planes that have worked there. What is there already is never removed, whoever asks for it
       B2  the folder beside it says that its log is there, so that another empty database isn't taken for that one
"""

from functools import partial
from pathlib import Path
from typing import Final

import psycopg

from stoker.adapters import postgres_snapshots as snapshots
from stoker.adapters.log_store import mark_as_elsewhere
from stoker.adapters.postgres_link import RECONNECT_S, Connection, PostgresLink
from stoker.adapters.postgres_schema import migrate
from stoker.adapters.record_check import checksum
from stoker.adapters.restored_folder import Beginning
from stoker.brain.domain.errors import StokerError, refuse
from stoker.ports import Clock, LogFailed, Telemetry

_RESTORED: Final = "restored"
"""Stands where the mark of the newest append does."""
_END: Final = """
UPDATE stoker_end SET epoch = %s, position = %s, append = %s
WHERE position = 0 AND NOT EXISTS (SELECT FROM stoker_event) AND NOT EXISTS (SELECT FROM stoker_snapshot)
AND EXISTS (SELECT FROM stoker_marker WHERE version = 0)
"""
_RECORDS: Final = """
INSERT INTO stoker_event (position, epoch, crc, record)
SELECT at, %s, crc, record FROM unnest(%s::bigint[], %s::bigint[], %s::bytea[]) AS row (at, crc, record)
"""


async def fill_database(folder: Path, url: str, beginning: Beginning, clock: Clock, telemetry: Telemetry) -> None:
    """Snapshot and log, for a control plane with that folder. Raises: OSError; StokerError `store_not_empty`,
    `store_unreachable`, `store_held` or `store_too_new`."""
    mark_as_elsewhere(folder)
    link = PostgresLink(url, clock, telemetry, RECONNECT_S)
    try:
        await link.open()
        await migrate(link.writer)
        await link.write(partial(_begin, beginning=beginning))
    except (psycopg.Error, LogFailed) as fault:
        raise link.unreachable(fault) from fault
    finally:
        await link.close()


async def _begin(db: Connection, beginning: Beginning) -> None:
    """B1"""
    base, records = beginning.base[1], beginning.records
    at = range(base + 1, base + 1 + len(records))
    crcs = [checksum(each, beginning.epoch, record) for each, record in zip(at, records, strict=True)]
    async with db.transaction():
        done = await db.execute(_END, (beginning.epoch, base + len(records), _RESTORED))
        if done.rowcount != 1:
            raise StokerError(
                refuse(
                    "store_not_empty",
                    "the database of store.url holds something already, and nothing there is ever replaced",
                    "make another database, and let store.url name that one",
                )
            )
        await snapshots.save(db, base, beginning.chunks)
        await db.execute(_RECORDS, (beginning.epoch, list(at), crcs, list(records)))
