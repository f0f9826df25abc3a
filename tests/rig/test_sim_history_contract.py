"""The History contract on the simulated archive."""

import pytest

from tests.contracts.history import HistoryContract
from tests.contracts.history_audit import AuditContract
from tests.rig.sim_history import SimArchive, SimHistory
from tests.rig.virtual_loop import on_virtual_time
from tests.rig.world import SimClock


class ArchiveStore:
    def __init__(self) -> None:
        self.archive = SimArchive()

    def history(self) -> SimHistory:
        return SimHistory(self.archive, SimClock())

    def break_it(self) -> None:
        self.archive.fault = "no space left on device"

    def mend_it(self) -> None:
        self.archive.fault = ""


@on_virtual_time
class TestSimHistory(HistoryContract, AuditContract):
    @pytest.fixture
    def store(self) -> ArchiveStore:
        return ArchiveStore()
