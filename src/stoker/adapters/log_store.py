"""Which store keeps the event log of a data folder?

Rules: C1  the folder is held by one process, whatever the store: the history and the socket are in there in either case
       C2  a folder whose log is in one store isn't opened with another: the queue would seem to be empty. A file in it
           says that its log is elsewhere; to mean it, one removes that file, or the store, by hand
       C3  nor with an empty database, once it was opened with one that wasn't: a wrong name would begin a new cluster,
           and its agents would stop all that they run. The same file says that there was something
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.adapters.data_folder.ownership import HeldFolder, hold_folder, make_private, unusable
from stoker.adapters.sqlite.event_log import SqliteLog
from stoker.adapters.sqlite.journal import STORE_NAME
from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import Clock, Entropy, EventLog, ReplicaLog, SharedLog, Snapshot, Telemetry

ELSEWHERE_NAME: Final = "log-is-in-postgresql"
_BEGUN: Final = "and it isn't empty\n"


def log_at(data_dir: Path, url: str, clock: Clock, entropy: Entropy, telemetry: Telemetry) -> EventLog:
    """The log of this folder. `url` empty = SQLite in it. Raises: StokerError `store_moved`."""
    if url:
        # Only who asks for it needs the driver.
        from stoker.adapters.postgres.event_log import PostgresLog

        return _Elsewhere(data_dir.absolute(), PostgresLog(url, clock, entropy, telemetry))
    return replica_log_at(data_dir, entropy, telemetry)


def replica_log_at(data_dir: Path, entropy: Entropy, telemetry: Telemetry) -> ReplicaLog:
    """The log of this folder, of which others may have copies. Raises: StokerError `store_moved`."""
    _not_elsewhere(data_dir.absolute())
    return SqliteLog(data_dir, telemetry=telemetry, entropy=entropy)


def shared_log_at(data_dir: Path, url: str, clock: Clock, entropy: Entropy, telemetry: Telemetry) -> SharedLog:
    """The log of several control planes, of which one has this folder."""
    from stoker.adapters.postgres.event_log import PostgresLog

    return _Elsewhere(data_dir.absolute(), PostgresLog(url, clock, entropy, telemetry, shared=True))


def mark_as_elsewhere(folder: Path) -> None:
    """C2, C3: its log is in a database that isn't empty. Raises: OSError."""
    mark = folder / ELSEWHERE_NAME
    make_private(mark)
    mark.write_text(_BEGUN)


def was_begun_elsewhere(folder: Path) -> bool:
    """C3: was its log in a database that wasn't empty? Raises: OSError."""
    mark = folder / ELSEWHERE_NAME
    return mark.exists() and bool(mark.stat().st_size)


def _not_elsewhere(folder: Path) -> None:
    """C2"""
    if (folder / ELSEWHERE_NAME).exists():
        raise _moved(
            f"the log of {folder} is in PostgreSQL, and store.url is empty",
            f"set store.url as before; if the queue there is to be given up, remove {folder / ELSEWHERE_NAME}",
        )


class _Elsewhere:
    """The `EventLog` port on a database, for a folder that has the rest; or the `SharedLog` port."""

    def __init__(self, folder: Path, log: SharedLog) -> None:
        self._folder = folder
        self._held: HeldFolder | None = None
        self._log = log
        self._begun = False

    async def open(self) -> Position:
        """Raises: StokerError as both do, or `store_moved`; LogDamaged."""
        self._held = hold_folder(self._folder)
        if (self._folder / STORE_NAME).exists():
            raise _moved(
                f"{self._folder} has a log of its own, and store.url names a database",
                f"leave store.url empty; if the queue there is to be given up, move {self._folder / STORE_NAME} away",
            )
        end = await self._log.open()
        try:
            self._mark(end)
        except OSError as fault:
            raise unusable(self._folder, fault) from fault
        return end

    def _mark(self, end: Position) -> None:
        """C2, C3"""
        mark = self._folder / ELSEWHERE_NAME
        make_private(mark)
        if end:
            self._note_begun()
        elif mark.stat().st_size:
            raise _moved(
                f"the database of store.url is empty, and the log of {self._folder} was in one that isn't",
                f"name that one; if the queue there is to be given up, remove {mark}",
            )

    def _note_begun(self) -> None:
        """C3, once. A full disk keeps nobody from his log."""
        mark = self._folder / ELSEWHERE_NAME
        with suppress(OSError):
            if not mark.stat().st_size:
                mark.write_text(_BEGUN)
        self._begun = True

    @property
    def floor(self) -> Epoch:
        return self._log.floor

    async def append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        await self._log.append(epoch, position, records)
        if not self._begun:
            self._note_begun()

    def follow(self, position: Position) -> AsyncIterator[tuple[Position, bytes]]:
        return self._log.follow(position)

    async def news(self, position: Position, within_s: float) -> bool:
        return await self._log.news(position, within_s)

    async def snapshot(self) -> Snapshot | None:
        return await self._log.snapshot()

    async def save_snapshot(self, position: Position, chunks: Sequence[bytes]) -> None:
        await self._log.save_snapshot(position, chunks)

    async def close(self) -> None:
        await self._log.close()
        if self._held is not None:
            self._held.release()


def _moved(message: str, hint: str) -> StokerError:
    return StokerError(refuse("store_moved", message, hint))
