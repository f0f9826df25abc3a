"""What is said once, and again only when it was otherwise meanwhile: a line every half second hides all others."""

import asyncio
from collections.abc import Callable

import pytest

from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.lease_record import LeaseRecord, Member
from stoker.brain.failover import effects
from stoker.brain.failover.machine import Machine
from stoker.brain.failover.membership import Membership
from stoker.brain.failover.timing import DEFAULT
from stoker.control.control_ports import ControlPorts
from stoker.control.failover_control import not_active
from stoker.live.failover.backend import SharedBackend
from stoker.live.failover.driver import COMPLAINTS_MAX, Driver
from stoker.live.failover.links import PeerDown, PeerLink
from stoker.ports import LeaseUnreachable, LogFailed
from tests.control.stage import virtual
from tests.live.failover.two import Two, lived
from tests.rig.sim_disk import SimDisk
from tests.rig.sim_lease import SharedPlace, SimLease
from tests.rig.sim_ports import Notes, SimClock, SimEntropy
from tests.rig.sim_shared_log import SimSharedLog


class FaultyLog(SharedBackend):
    """One whose disk and whose active one fail as they are told to."""

    def __init__(self, world: ControlPorts) -> None:
        super().__init__(SimSharedLog(SimDisk(), world.clock, world.entropy), world, DEFAULT, lambda: False)
        self._clock = world.clock
        self.full = False
        self.way: Callable[[], float] = lambda: 0.0
        """How long following goes well before it breaks, each time."""
        self.follows = 0

    async def promise(self, epoch: Epoch) -> None:
        await self.check_writable()

    async def check_writable(self) -> None:
        if self.full:
            raise LogFailed("no space left on device")

    async def follow(self, link: PeerLink | None) -> None:
        self.follows += 1
        await self._clock.sleep(self.way())
        raise PeerDown(f"it broke at record {self.follows}")


class Standby:
    """A driver that nothing but the test drives."""

    def __init__(self) -> None:
        self.clock, entropy, self.place = SimClock(), SimEntropy(1), SharedPlace()
        self.notes = Notes(self.clock, "a")
        world = ControlPorts(clock=self.clock, entropy=entropy, telemetry=self.notes)
        membership = Membership(me=Member("a", "uid-a"), peers=0, shared_log=True)
        machine = Machine(membership, timing=DEFAULT, tenure_id="1", http="")
        self.log = FaultyLog(world)
        self.driver = Driver(machine, SimLease(self.place, self.clock, entropy, who="a"), self.log, (), world)
        self.driver._tell_log = lambda: None  # type: ignore[method-assign]  # there is no control plane around it

    async def does(self, *wanted: effects.Effect) -> None:
        for each in wanted:
            await self.driver._carry_out(each)
            await self.clock.sleep(2.0)

    def told(self, name: str) -> int:
        return sum(f" {name} " in line for line in self.notes.lines)


@virtual
async def test_a_log_that_fails_is_told_of_each_time_and_so_is_that_it_can_be_written_again() -> None:
    standby = Standby()
    for full, failed, fit in ((True, 1, 0), (False, 1, 1), (True, 2, 1), (False, 2, 2)):
        standby.log.full = full
        await standby.does(*[effects.Promise(Epoch(2))] * 3, *[effects.ReadLeaseRecord()] * 3)
        assert (standby.told("log_unfit"), standby.told("log_fit_again")) == (failed, fit)
    await standby.driver._tasks.end()


@virtual
async def test_words_that_change_with_each_failure_are_told_a_few_times_and_again_once_it_went_well_for_a_while() -> (
    None
):
    standby = Standby()
    standby.driver._start_following()
    await standby.clock.sleep(600)
    assert standby.log.follows > 10 * COMPLAINTS_MAX
    assert standby.told("replication_lost") == COMPLAINTS_MAX
    standby.log.way = lambda: 3_600.0
    await standby.clock.sleep(2.5 * 3_600)
    assert standby.told("replication_lost") == COMPLAINTS_MAX + 2
    await standby.driver._tasks.end()


def unwritable(two: Two) -> None:
    """As on a full disk, or one that is mounted read-only: it shows what was there."""

    def put(marker: LeaseRecord) -> bool:
        raise LeaseUnreachable("the marker folder can't be used: read-only file system")

    two.place.link = put  # type: ignore[method-assign]  # the simulated storage has no such fault


def test_a_standby_that_reads_the_marker_and_cannot_write_it_says_so_once_and_whoever_asks_hears_it() -> None:
    async def story(two: Two) -> None:
        await two.begin()
        unwritable(two)
        await two.a.kill()
        await two.b.clock.sleep(120)
        assert two.b.notes.counts["marker_unreachable"] == 1
        assert two.b.driver is not None
        for _ in range(20):
            await two.b.clock.sleep(0.17)
            view = two.b.driver.view()
            assert view.why.startswith("the marker can't be written: the marker folder can't be used: read-only file")
            assert "read-only file system" in not_active(view).hint

    lived(story)


def test_settings_that_the_active_one_has_otherwise_are_named_with_both_values_and_told_once() -> None:
    words = (
        "failover.mode is async here and sync on a, which is active; "
        "failover.profile is fast here and default on a, which is active"
    )

    async def story(two: Two) -> None:
        two.b.mode, two.b.profile = "async", "fast"
        await two.begin()
        await two.b.clock.sleep(60)
        assert two.a.driver is not None
        assert two.b.driver is not None
        assert (two.a.driver.view().config_drift, two.b.driver.view().config_drift) == ("", words)
        assert two.b.notes.counts["settings_differ"] == 1

    lived(story)


def test_a_disk_that_hangs_keeps_nobody_from_hearing_what_the_marker_says() -> None:
    async def story(two: Two) -> None:
        await two.begin()
        two.a.disk.stall_s = 100_000.0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(two.a.submit())), 1.0)
        await two.until(lambda: two.b.is_active)
        await two.until(lambda: two.a.driver is not None and two.a.driver.view().active == "b")
        await two.b.clock.sleep(60)
        assert two.a.driver is not None
        view = two.a.driver.view()
        assert (view.record_reached, view.why) == (True, "the log can't be written")
        two.a.disk.stall_s = 0.0

    lived(story)
