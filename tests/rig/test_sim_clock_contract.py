"""The Clock contract on the simulated clock."""

import pytest

from tests.contracts.clock import ClockContract
from tests.rig.gate import Gate, GatedClock
from tests.rig.sim_ports import SimClock
from tests.rig.virtual_loop import on_virtual_time


@on_virtual_time
class TestSimClock(ClockContract):
    @pytest.fixture
    def clock(self) -> SimClock:
        return SimClock()


@on_virtual_time
class TestClockSetBack(ClockContract):
    @pytest.fixture
    def clock(self) -> SimClock:
        return SimClock(wall_offset_s=-3_600)


@on_virtual_time
class TestClockOfAProcessThatMayRun(ClockContract):
    @pytest.fixture
    def clock(self) -> GatedClock:
        return GatedClock(SimClock(), Gate())
