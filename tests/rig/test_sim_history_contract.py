"""The History contract on the simulated archive."""

import pytest

from tests.contracts.history import HistoryContract
from tests.contracts.history_audit import AuditContract
from tests.contracts.history_copy import CopyContract
from tests.rig.sim_history import SimArchive, SimHistory, archive_in
from tests.rig.sim_ports import SimClock
from tests.rig.virtual_loop import on_virtual_time


class ArchiveStore:
    def __init__(self, archive: SimArchive | None = None) -> None:
        self.archive = archive or SimArchive()

    def history(self) -> SimHistory:
        return SimHistory(self.archive, SimClock())

    def of_copy(self, content: bytes) -> "ArchiveStore":
        return ArchiveStore(archive_in(content))

    def break_it(self) -> None:
        self.archive.fault = "no space left on device"

    def mend_it(self) -> None:
        self.archive.fault = ""


@on_virtual_time
class TestSimHistory(HistoryContract, AuditContract, CopyContract):
    @pytest.fixture
    def store(self) -> ArchiveStore:
        return ArchiveStore()
