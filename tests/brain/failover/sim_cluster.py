"""A few control planes around one marker, in virtual time: what happens when, and does it keep the promises?

One heap of events on the true time; each process sees it through a clock of its own. Chance comes from one seed.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import LeaseRecord, Member
from stoker.brain.failover.timing import DEFAULT, Timing

if TYPE_CHECKING:
    from tests.brain.failover.sim_node import Node

FORCED: Final = 1_000
EVENTS_MAX: Final = 20_000
STORE: Final = "marker"


@dataclass(frozen=True)
class Setting:
    """What a run is about. Times are in parts of a quarter of the lease, so that each profile meets the same."""

    seed: int
    nodes: int = 2
    timing: Timing = DEFAULT
    faults: int = 8
    kinds: tuple[str, ...] = ()
    """Only these faults, by their names in `sim_run.Faults`; none = all."""
    calm_at: float = 20.0
    """When the last fault ends."""
    hop_max: float = 0.04
    """How long a message, or a write to disk, takes at most while nothing is wrong. Some runs are quicker."""
    slow: float = 0.35
    """How long the marker takes at most, there and back each, for some."""
    timeout: float = 0.8
    """After so long a look or a put is given up."""
    beat: float = 0.25
    """Between two commands to the active, and two shipments of what it has."""
    fickle: float = 0.02
    """How often the active says of a follower that it fell behind, though it didn't."""
    wild: float = 0.0
    """By how much more than the bound clocks may differ. Then more than one may hold the lease; that is all."""
    shared_log: bool = False
    forced: bool = False
    """Do people promote by force, and may disks be lost so that nothing else helps?"""

    @property
    def unit(self) -> float:
        return self.timing.lease_s / 4


class SimCluster:
    """Time, chance, everybody, and who can't reach whom."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.unit = setting.unit
        self.random = random.Random(setting.seed)
        self.now = 0.0
        self.oracle = Oracle(self)
        self.store = Store(self.oracle)
        self.nodes: list[Node] = []
        self.shared_log: list[int] = []
        self.fickle = setting.fickle
        self.hop_max = setting.hop_max * self.unit * self.random.choice((0.02, 0.3, 1, 1))
        self._cuts: dict[tuple[str, str], int] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = self._disks = 0
        self.story: list[str] = []

    def tell(self, line: str) -> None:
        self.story.append(f"{self.now / self.unit:8.3f} {line}")

    # --- time ---------------------------------------------------------------------------------------------------

    def after(self, delay: float, do: Callable[[], None]) -> None:
        """`delay` in seconds of true time."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay, self._count, do))

    def run_until(self, end: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, do = heapq.heappop(heap)
            do()
            assert self._count < EVENTS_MAX, "P6 it spins"
        self.now = end

    # --- links --------------------------------------------------------------------------------------------------

    def hop(self) -> float:
        return self.random.random() * self.hop_max

    def reaches(self, source: str, target: str) -> bool:
        return not self._cuts.get((source, target))

    def cut(self, source: str, target: str) -> None:
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def mend(self, source: str, target: str) -> None:
        self._cuts[source, target] -= 1

    def others(self, name: str) -> "list[Node]":
        return [node for node in self.nodes if node.name != name]

    def send(self, source: str, target: str, do: Callable[[], None]) -> None:
        if self.reaches(source, target):
            self.after(self.hop(), do)

    def new_disk(self, name: str) -> "Disk":
        self._disks += 1
        uid = f"{name}{self._disks}"
        disk = Disk(Member(name=name, uid=uid), log=self.shared_log if self.setting.shared_log else [])
        self.oracle.disks[disk.member] = disk
        return disk


class Store:
    """The place of the marker. What is asked happens at one moment, sooner or later; answers may be lost."""

    def __init__(self, oracle: "Oracle") -> None:
        self.marker: LeaseRecord | None = None
        self._oracle = oracle

    def put(self, marker: LeaseRecord) -> bool:
        there = self.marker.version if self.marker else 0
        if marker.version == there + 1:
            self._oracle.on_marker(self.marker, marker)
            self.marker = marker
            return True
        return self.marker is not None and marker == self.marker


@dataclass
class Disk:
    """A data folder. It outlives processes, and nothing else does."""

    member: Member
    log: list[int] = field(default_factory=list)
    promised: Epoch = Epoch(0)  # noqa: RUF009  # a type's name, no call

    @property
    def position(self) -> Position:
        return Position(len(self.log))


class Oracle:
    """What was promised, checked at once.

    P1  at most one holds the lease at any moment of true time
    P2  each epoch is led once, by whoever won it, and they rise
    P3  whoever leads has promised its epoch to its log
    P4  everybody whom the marker names has on disk all that was acknowledged (unless a person forced it)
    P5  whoever leads has on its log all that was acknowledged (the same)
    P6  nothing spins: so many events suffice
    P7  once nothing is wrong any more, somebody leads within the promised time, and soon all are in the set
    """

    def __init__(self, world: SimCluster) -> None:
        self.world = world
        self.epochs: list[Epoch] = [Epoch(0)]
        """Of each record, by its number."""
        self.acknowledged: list[int] = []
        self.disks: dict[Member, Disk] = {}
        self.led: list[tuple[Epoch, Member]] = []
        self.lost_by_force = 0
        """Records."""
        self.in_doubt = 0
        """Writes of the marker that were done although the writer wasn't told, or not in time."""
        self.overlaps = 0
        """Moments at which more than one held the lease; with wild clocks only."""

    def record(self, epoch: Epoch) -> int:
        self.epochs.append(epoch)
        return len(self.epochs) - 1

    def on_marker(self, before: LeaseRecord | None, marker: LeaseRecord) -> None:
        taken = before is None or before.epoch != marker.epoch
        if before is not None:
            assert marker.epoch >= before.epoch, "P2 an older epoch in a newer version"
        if taken and marker.epoch - (before.epoch if before else 0) >= FORCED and marker.holder is not None:
            self._forced(marker.holder)
        assert marker.holder is None or marker.holder in marker.in_sync, "P4 the holder isn't in its set"
        if not self.world.setting.shared_log:
            for member in marker.in_sync:
                self._has_all(member, "P4", "is named by the marker")

    def on_active(self) -> None:
        holders = [node.name for node in self.world.nodes if node.holds]
        if self.world.setting.wild:
            self.overlaps += len(holders) > 1
            return
        assert len(holders) <= 1, f"P1 {holders} hold the lease at once"

    def on_acknowledged(self, record: int) -> None:
        self.on_active()
        self.acknowledged.append(record)
        marker = self.world.store.marker
        assert marker is not None, "P1 acknowledged without a marker"
        for member in marker.in_sync if not self.world.setting.shared_log else ():
            disk = self.disks.get(member)
            assert disk is None or record in disk.log, f"P4 {member.name} is named by the marker and lacks {record}"

    def on_lead(self, disk: Disk, epoch: Epoch, *, forced: bool) -> None:
        assert not self.led or epoch > self.led[-1][0], f"P2 {disk.member.name} leads {epoch} after {self.led[-1]}"
        if not self.world.setting.shared_log:
            assert disk.promised == epoch, f"P3 {disk.member.name} leads {epoch} with {disk.promised} promised"
        self.led.append((epoch, disk.member))
        self._has_all(disk.member, "P5", f"leads {epoch}")

    def _has_all(self, member: Member, promise: str, what: str) -> None:
        disk = self.disks.get(member)
        if disk is not None:
            missing = sorted({*self.acknowledged}.difference(disk.log))
            assert not missing, f"{promise} {member.name} {what} and lacks {missing[:5]} of what was acknowledged"

    def _forced(self, holder: Member) -> None:
        disk = self.disks.get(holder)
        if disk is None:
            return  # a late write, of a disk that is gone: nobody leads by it
        kept = set(disk.log)
        self.lost_by_force += sum(one not in kept for one in self.acknowledged)
        self.acknowledged = [one for one in self.acknowledged if one in kept]
