"""Choice of the store that keeps the event log and the history of a data folder.

The folder is held by one process whatever the store: the socket is in there in either case. That a folder isn't opened
with a store that its log isn't in is C2 and C3 of `data_folder.marks`.
"""

from pathlib import Path

from stoker.adapters.sqlite.event_log import SqliteLog
from stoker.adapters.sqlite.history import SqliteHistory
from stoker.ports import Clock, Entropy, EventLog, History, SharedLog, Telemetry


def log_at(data_dir: Path, url: str, clock: Clock, entropy: Entropy, telemetry: Telemetry) -> EventLog:
    """Return the log of a folder. `url`: of the database that keeps it; empty = SQLite in the folder."""
    if not url:
        return SqliteLog(data_dir, telemetry=telemetry, entropy=entropy)
    # Only who asks for it needs the driver.
    from stoker.adapters.postgres.event_log import FolderPostgresLog

    return FolderPostgresLog(data_dir, url, clock, entropy, telemetry)


def shared_log_at(data_dir: Path, url: str, clock: Clock, entropy: Entropy, telemetry: Telemetry) -> SharedLog:
    """Return the log of several control planes in a database, for the one that has this folder."""
    from stoker.adapters.postgres.event_log import FolderPostgresLog

    return FolderPostgresLog(data_dir, url, clock, entropy, telemetry, shared=True)


def history_at(data_dir: Path, url: str, name: str, *, shared: bool = False) -> History:
    """Return the history of a folder. `url`: of the database with its log; empty = SQLite in the folder.

    `name`: of this control plane. `shared`: others write to the same database.
    """
    if not url:
        return SqliteHistory(data_dir)
    # Only who asks for it needs the driver.
    from stoker.adapters.postgres.history import PostgresHistory

    return PostgresHistory(url, data_dir, name=name, shared=shared)
