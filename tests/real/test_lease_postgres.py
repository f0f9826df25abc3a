"""The marker in PostgreSQL: the contract of the port on a real server, and what only a real server can do to it."""

import itertools
from collections.abc import Iterator

import pytest

from stoker.adapters.clock import SystemClock
from stoker.adapters.lease_postgres import PostgresLease
from tests.contracts.lease import LeaseContract
from tests.real.postgres import Server, programs, server

pytestmark = pytest.mark.skipif(programs() is None, reason="no PostgreSQL here (Debian: apt-get install postgresql)")
_names = itertools.count()


class DatabasePlace:
    """A database, in which each `lease()` is another control plane's."""

    def __init__(self, on: Server) -> None:
        self.server = on
        self.name = f"marker_{next(_names)}"
        self.url = on.database(self.name)

    def lease(self, *, timeout_s: float = 5.0) -> PostgresLease:
        return PostgresLease(self.url, SystemClock(), timeout_s=timeout_s)

    def damage(self) -> None:
        self.sql("UPDATE stoker_marker SET record = '\\x00' || substr(record, 2)")

    def sql(self, statement: str) -> str:
        return self.server.sql(self.name, statement)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as made:
        yield made


@pytest.fixture
def place(postgres: Server) -> DatabasePlace:
    return DatabasePlace(postgres)


class TestPostgresLease(LeaseContract):
    @pytest.fixture
    def place(self, postgres: Server) -> DatabasePlace:
        return DatabasePlace(postgres)
