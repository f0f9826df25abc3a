"""Event log, snapshots and lease record in PostgreSQL, for control planes whose `store.url` names a database.

psycopg is an optional part of Stoker: importing this package without it is refused, so composition roots import it only
where a database is named.
"""

from stoker.brain.domain.errors import refusal_error

try:
    import psycopg  # noqa: F401  # proved to be there before a module of this package needs it
except ImportError as fault:
    raise refusal_error(
        "extra_missing",
        f"store.url names a PostgreSQL database, and psycopg can't be imported: {fault}",
        "pip install 'stoker[postgres]', or leave store.url empty to keep the log in data_dir",
    ) from fault
