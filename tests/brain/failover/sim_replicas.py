"""How far is each follower, and what may the active acknowledge? What `live.failover.replication` does, in few words.

It does literally what the effects say, and changes its mind about followers more often than the real one.
"""

from typing import TYPE_CHECKING

from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.lease_record import Member
from stoker.brain.failover.inputs import CaughtUp, FellBehind

if TYPE_CHECKING:
    from tests.brain.failover.sim_node import Node


class SimReplicas:
    """Of one epoch of one active."""

    def __init__(self, node: "Node", epoch: Epoch) -> None:
        self.node = node
        self.epoch = epoch
        self.waits: set[Member] = set()
        """Acknowledgements wait for these, beside ourselves."""
        self.have: dict[Member, int] = {}
        self.acknowledged = len(node.disk.log)
        self._heard: dict[Member, float] = {}
        self._told: dict[Member, float] = {}

    def in_sync_changed(self, in_sync: tuple[Member, ...]) -> None:
        self.waits = {*in_sync} - {self.node.disk.member}
        self.acknowledge()

    def has(self, member: Member, position: int) -> None:
        """A follower of this epoch has so much on its disk."""
        self.have[member] = max(position, self.have.get(member, 0))
        self._heard[member] = self.node.world.now
        self.acknowledge()
        if member not in self.waits and self.have[member] >= self.acknowledged:
            self.waits.add(member)
            self.node.tell(CaughtUp(member))

    def pump(self) -> None:
        """Who is late?"""
        world, timing = self.node.world, self.node.world.setting.timing
        for member in sorted(self.waits):
            quiet = world.now - self._heard.get(member, -1e9) > timing.standby_timeout_s
            fickle = world.random.random() < world.fickle
            if (quiet or fickle) and world.now - self._told.get(member, -1e9) > timing.standby_timeout_s / 4:
                self._told[member] = world.now
                self.node.tell(FellBehind(member))

    def acknowledge(self) -> None:
        node = self.node
        machine = node.machine
        if machine is None or node.paused:
            return
        end = min([len(node.disk.log), *(self.have.get(member, 0) for member in self.waits)])
        while self.acknowledged < end and machine.holds(node.clock()):
            record = node.disk.log[self.acknowledged]
            self.acknowledged += 1
            node.world.oracle.on_acknowledged(record)
