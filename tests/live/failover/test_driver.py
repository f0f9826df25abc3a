"""What the driver sees to between the machine and the log: rule D2."""

import asyncio

from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.lease_record import Member
from stoker.brain.failover import effects
from stoker.brain.failover.machine import Machine
from stoker.brain.failover.membership import Membership
from stoker.brain.failover.timing import DEFAULT
from stoker.control.control_ports import ControlPorts
from stoker.live.failover.backend import SharedBackend
from stoker.live.failover.driver import Driver
from stoker.live.failover.links import PeerLink
from tests.control.stage import virtual
from tests.rig.sim_disk import SimDisk
from tests.rig.sim_lease import SharedPlace, SimLease
from tests.rig.sim_ports import Notes, SimClock, SimEntropy
from tests.rig.sim_shared_log import SimSharedLog


class SlowLog(SharedBackend):
    """Its disk takes a second for each promise."""

    def __init__(self, world: ControlPorts) -> None:
        super().__init__(SimSharedLog(SimDisk(), world.clock, world.entropy), world, DEFAULT, lambda: False)
        self._clock = world.clock
        self.promises: list[int] = []
        self.follows = 0

    async def promise(self, epoch: Epoch) -> None:
        await self._clock.sleep(1.0)
        self.promises.append(epoch)

    async def follow(self, link: PeerLink | None) -> None:
        self.follows += 1
        await asyncio.Event().wait()


@virtual
async def test_d2_a_withdrawn_promise_begins_no_following_once_another_one_is_made() -> None:
    clock, entropy = SimClock(), SimEntropy(1)
    world = ControlPorts(clock=clock, entropy=entropy, telemetry=Notes(clock, "a"))
    machine = Machine(
        Membership(me=Member("a", "uid-a"), peers=0, shared_log=True), timing=DEFAULT, tenure_id="1", http=""
    )
    log = SlowLog(world)
    driver = Driver(machine, SimLease(SharedPlace(), clock, entropy, who="a"), log, (), world)
    await driver._carry_out(effects.Follow(Epoch(1)))
    await clock.sleep(0.5)
    await driver._carry_out(effects.Promise(Epoch(2)))
    await clock.sleep(5.0)
    assert log.promises == [2]
    assert log.follows == 0
    await driver._tasks.end()
