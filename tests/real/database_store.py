"""A database as the contracts of the log's ports want a store: it outlives the logs opened on it."""

import itertools

from stoker.adapters.clock import SystemClock
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.postgres.event_log import PostgresLog, PostgresLogLimits
from stoker.adapters.postgres.lease import PostgresLease
from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import LeaseRecord, Member
from tests.real.postgres import Server

_names = itertools.count()


class DatabaseStore:
    """A database, in which each `log()` is another process."""

    shared = False

    def __init__(self, on: Server) -> None:
        self.server = on
        self.name = f"store_{next(_names)}"
        self.url = on.schema(self.name)
        self.look_back_max = 50_000
        self.warnings: list[tuple[str, dict[str, object]]] = []

    def log(self, *, reconnect_s: float = 20.0) -> PostgresLog:
        limits = PostgresLogLimits(self.look_back_max, reconnect_s)
        return PostgresLog(self.url, SystemClock(), SystemEntropy(), self, shared=self.shared, limits=limits)

    async def move_epoch(self, epoch: Epoch) -> None:
        """As the lease does it."""
        lease = PostgresLease(self.url, SystemClock(), timeout_s=10)
        try:
            known = await lease.read()
            me = Member("b", "uid-b")
            version = known.version + 1 if known else 1
            won = await lease.put(
                LeaseRecord(version=version, epoch=epoch, holder=me, in_sync=(me,), mark=f"m{version}")
            )
            assert won, "nobody else writes the marker here"
        finally:
            await lease.close()

    def damage_record(self, position: Position) -> None:
        self.sql(f"UPDATE stoker_event SET record = '\\x00' || substr(record, 2) WHERE position = {position}")

    def damage_snapshot(self, position: Position) -> None:
        self.sql(f"UPDATE stoker_snapshot_chunk SET chunk = '\\x00' || substr(chunk, 2) WHERE position = {position}")

    def sql(self, statement: str) -> str:
        return self.server.ask(self.url, statement)

    # The part of Telemetry that a log uses, and the rest of the port.
    def warn(self, name: str, **fields: object) -> None:
        self.warnings.append((name, fields))

    def event(self, name: str, **fields: object) -> None: ...
    def count(self, name: str, by: int = 1, **labels: str) -> None: ...
    def gauge(self, name: str, value: float, **labels: str) -> None: ...
    def observe(self, name: str, seconds: float, **labels: str) -> None: ...


class SharedStore(DatabaseStore):
    """A database that several control planes reach."""

    shared = True
