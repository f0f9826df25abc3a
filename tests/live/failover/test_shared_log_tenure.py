"""When is a database that has the log waited for, and when does a process end over it? Rules Y2 and Y4 of `lives`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import Position
from stoker.control.control_ports import ControlPorts
from stoker.live.control_plane import LiveControlPlane
from stoker.live.failover.driver import Driver, TenureEnded
from stoker.live.failover.replication import Replication
from stoker.live.failover.tenure import OneLog, TenurePorts, Tenures
from stoker.live.settings.control import ControlSettings, FailoverSettings
from tests.control.stage import virtual
from tests.rig.sim_disk import SimDisk
from tests.rig.sim_history import SimHistory
from tests.rig.sim_lease import SharedPlace, SimLease
from tests.rig.sim_ports import Notes, SimClock, SimEntropy
from tests.rig.sim_shared_log import SimSharedLog


def refusal(code: str) -> StokerError:
    return StokerError(refuse(code, "it can't be used: refused", "see that it runs"))


class Database:
    """Each of `openings` is one try to open it; after them it opens."""

    def __init__(self, *openings: StokerError | None) -> None:
        self._openings = list(openings)
        self.tries = self.served = 0
        self.stop = asyncio.Event()

    def opening(self) -> None:
        self.tries += 1
        fault = self._openings.pop(0) if self._openings else None
        if fault is not None:
            raise fault

    @asynccontextmanager
    async def serve(
        self, control: LiveControlPlane, driver: Driver, replication: Replication | None
    ) -> AsyncIterator[None]:
        """Every life is over at once, and the second one ends on purpose."""
        self.served += 1
        if self.served == 2:
            self.stop.set()
        if self.served:
            raise TenureEnded("it is over")
        yield


def lives_on(database: Database) -> Tenures:
    clock, entropy, disk, place = SimClock(), SimEntropy(1), SimDisk(), SharedPlace()

    class Log(SimSharedLog):
        async def open(self) -> Position:
            database.opening()
            return await super().open()

    around = TenurePorts(
        logs=OneLog(log=lambda: Log(disk, clock, entropy, who="a"), uid=lambda: "uid-a"),
        history=lambda: SimHistory(disk.archive, clock),
        lease=SimLease(place, clock, entropy, who="a"),
    )
    settings = ControlSettings(failover=FailoverSettings(enabled=True, name="a", peers=(), marker=""))
    return Tenures(
        settings, around, ControlPorts(clock=clock, entropy=entropy, telemetry=Notes(clock, "a")), database.serve
    )


@virtual
async def test_y4_what_can_be_used_again_soon_is_waited_for_between_two_starts() -> None:
    database = Database(None, refusal("store_unreachable"), refusal("port_in_use"))
    await lives_on(database).run(database.stop)
    assert (database.served, database.tries) == (2, 4)


@virtual
async def test_y3_a_database_that_stays_away_is_told_of_once() -> None:
    database = Database(None, *[refusal("store_unreachable")] * 200)
    lives = lives_on(database)
    await lives.run(database.stop)
    notes = lives._ports.telemetry
    assert isinstance(notes, Notes)
    assert notes.counts["life_ended"] == 2, "that the first life is over, and why no other one begins"


@virtual
async def test_y2_a_database_that_was_never_reached_ends_the_process_with_what_is_wrong() -> None:
    database = Database(refusal("store_unreachable"))
    with pytest.raises(StokerError, match="can't be used"):
        await lives_on(database).run(database.stop)
    assert database.served == 0


@virtual
async def test_y2_a_folder_that_another_process_holds_ends_the_process_at_any_time() -> None:
    database = Database(None, refusal("data_dir_held"))
    with pytest.raises(StokerError, match="can't be used"):
        await lives_on(database).run(database.stop)
    assert database.served == 1
