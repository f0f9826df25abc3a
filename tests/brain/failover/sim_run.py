"""What goes wrong by chance, and how a whole run goes."""

from collections.abc import Callable
from typing import Final

from stoker.brain.domain.lease_record import Member
from stoker.brain.failover import inputs
from tests.brain.failover.sim_cluster import STORE, Setting, SimCluster
from tests.brain.failover.sim_node import Node

LEADS_S: Final = {4.0: 6.0, 0.5: 1.0}
"""By the length of the lease: how soon somebody leads once nothing is wrong any more."""
_KINDS: Final = (
    *("crash", "crash", "pause", "stall", "unfit", "resign"),
    *("cut_off_marker", "cut_off_marker", "marker_slow", "marker_read_only"),
    *("isolate", "maroon", "cut_peers"),
)
SETTLES: Final = 7.0


def simulate(setting: Setting) -> SimCluster:
    """A run with its faults. Raises: AssertionError, which begins with the promise that was broken."""
    world = begin(setting)
    try:
        faults = Faults(world)
        for _ in range(setting.faults):
            world.after(world.random.random() * setting.calm_at * 0.95 * world.unit, faults.strike)
        world.run_until(setting.calm_at * world.unit)
        if not setting.wild:
            _check_liveness(world)
    except AssertionError as broken:
        told = "\n".join(world.story[-60:])
        raise AssertionError(f"{broken} ({setting}) at {world.now / world.unit:.3f}\n{told}") from broken
    return world


def begin(setting: Setting) -> SimCluster:
    """Everybody starts within a second or so."""
    world = SimCluster(setting)
    world.nodes += [Node(world, name) for name in "abc"[: setting.nodes]]
    for node in world.nodes:
        world.after(world.random.random() * world.unit, node.start)
    _beat(world)
    return world


def _beat(world: SimCluster) -> None:
    for node in world.nodes:
        node.write()
        node.ship()
    world.after(world.setting.beat * world.unit, lambda: _beat(world))


def _check_liveness(world: SimCluster) -> None:
    """P7"""
    _calm(world)
    timing, until = world.setting.timing, world.now + LEADS_S[world.setting.timing.lease_s]
    forced = False
    while not any(node.holds for node in world.nodes):
        if not forced and not _somebody_may(world):
            # A late write has left the set to a disk that is gone.
            world.run_until(world.now + 2 * timing.expiry_s)
            max(world.nodes, key=lambda node: len(node.disk.log)).tell(inputs.ForcePromotion())
            forced, until = True, world.now + LEADS_S[timing.lease_s]
        assert world.now < until, f"P7 nobody leads: {_why(world)}"
        world.run_until(world.now + 0.05 * world.unit)
    acknowledged = len(world.oracle.acknowledged)
    world.run_until(world.now + SETTLES * world.unit)
    marker = world.store.marker
    assert marker is not None
    assert marker.holder is not None, "P7 the lease was given back"
    assert len(world.oracle.acknowledged) > acknowledged, "P7 nothing is acknowledged"
    names = [member.name for member in marker.in_sync]
    expected = [marker.holder.name] if world.setting.shared_log else [node.name for node in world.nodes]
    assert names == expected, f"P7 the set is {names}: {_why(world)}"


def _calm(world: SimCluster) -> None:
    world.tell("nothing is wrong any more")
    world.fickle = 0.0
    for node in world.nodes:
        node.marker_slow_s = node.pauses_with_next_ask = 0.0
        node.stops = False
        node.start()


def _somebody_may(world: SimCluster) -> bool:
    marker = world.store.marker
    return marker is None or any(node.disk.member in marker.in_sync for node in world.nodes)


def _why(world: SimCluster) -> str:
    return "; ".join(f"{node.name}: {node.machine.why if node.machine else 'down'}" for node in world.nodes)


class Faults:
    """Each begins at some moment, and ends before the calm."""

    def __init__(self, world: SimCluster) -> None:
        self._world = world
        kinds = list(world.setting.kinds or _KINDS)
        if not world.setting.kinds and not world.setting.shared_log:
            kinds.append("wipe")
        if not world.setting.kinds and world.setting.forced:
            kinds += ["force", "wipe"]
        self._kinds: list[Callable[[], None]] = [getattr(self, f"_{kind}") for kind in kinds]

    def strike(self) -> None:
        self._world.random.choice(self._kinds)()

    # --- helpers of faults --------------------------------------------------------------------------------------

    def _node(self) -> Node:
        """Rather the active one."""
        active = [node for node in self._world.nodes if node.holds]
        return (
            active[0] if active and self._world.random.random() < 0.6 else self._world.random.choice(self._world.nodes)
        )

    def _length(self) -> float:
        """The end of a fault comes soon, or late, and before the calm."""
        world = self._world
        return min(self._left, world.random.random() * world.random.choice((0.3, 1.5, 8.0)) * world.unit)

    @property
    def _left(self) -> float:
        return self._world.setting.calm_at * self._world.unit - self._world.now

    def _end(self, do: Callable[[], None]) -> None:
        self._world.after(self._length(), do)

    def _without(self, *links: tuple[str, str], length: float | None = None) -> None:
        world = self._world
        world.tell(f"cut: {', '.join(f'{source} to {target}' for source, target in links)}")

        def mend() -> None:
            world.tell(f"mended: {', '.join(f'{source} to {target}' for source, target in links)}")
            for source, target in links:
                world.mend(source, target)

        for source, target in links:
            world.cut(source, target)
        world.after(self._length() if length is None else min(length, self._left), mend)

    # --- faults -------------------------------------------------------------------------------------------------

    def _crash(self) -> None:
        node = self._node()
        node.crash()
        self._end(node.start)

    def _pause(self) -> None:
        """At any moment, or between the decision to ask something of the marker and the effect."""
        node, length = self._node(), self._length()
        if self._world.random.random() < 0.5:
            node.pauses_with_next_ask = length
        else:
            node.pause(length)

    def _one_way(self, one: str, other: str) -> None:
        both = (one, other), (other, one)
        self._without(*self._world.random.choice((both, both[:1], both[1:])))

    def _cut_off_marker(self) -> None:
        if self._world.random.random() < 0.2:
            self._without(*((node.name, STORE) for node in self._world.nodes))
        else:
            self._one_way(self._node().name, STORE)

    def _isolate(self) -> None:
        """A host reaches nobody, or nobody reaches it, or both."""
        node, world = self._node(), self._world
        out = tuple((node.name, each) for each in (STORE, *(peer.name for peer in world.others(node.name))))
        back = tuple((target, source) for source, target in out)
        self._without(*world.random.choice((out, back, out + back)))

    def _maroon(self) -> None:
        """Nobody hears of the active, and the marker is within its reach now and then: a lease is used to its end."""
        node, world = self._node(), self._world
        peers = [peer.name for peer in world.others(node.name)]
        out = tuple((node.name, peer) for peer in peers)
        whole = (4 + 3 * world.random.random()) * world.unit
        self._without(*out, *((target, source) for source, target in out), length=whole)
        self._in_and_out(node.name, world.now + whole)

    def _in_and_out(self, name: str, until: float) -> None:
        world = self._world
        if world.now < min(until, world.now + self._left):
            both = ((name, STORE), (STORE, name))
            away = (0.3 + 4 * world.random.random()) * world.unit
            self._without(*world.random.choice((both, both[:1], both[1:])), length=min(away, until - world.now))
            near = world.random.random() * 0.6 * world.unit
            world.after(away + near, lambda: self._in_and_out(name, until))

    def _cut_peers(self) -> None:
        node = self._node()
        self._one_way(node.name, self._world.random.choice(self._world.others(node.name)).name)

    def _marker_read_only(self) -> None:
        self._without((STORE, "writes"))

    def _marker_slow(self) -> None:
        """For one of them, or for all."""
        world = self._world
        nodes = world.random.choice((world.nodes, [self._node()], [world.random.choice(world.nodes)]))
        world.tell(f"the marker is slow for {', '.join(node.name for node in nodes)}")
        slow = world.random.choice((0.7, 0.7, 2.0, 6.0)) * world.unit

        def quick() -> None:
            for node in nodes:
                node.marker_slow_s = node.marker_slow_always_s

        for node in nodes:
            node.marker_slow_s = slow
        self._end(quick)

    def _resign(self) -> None:
        node = self._node()
        if node.machine is not None and not node.paused:
            node.resign()
            self._end(node.start)

    def _unfit(self) -> None:
        node, world = self._node(), self._world
        world.tell(f"{node.name} can't write its log")
        node.fit = False

        def heal() -> None:
            node.fit = True

        self._end(heal)

    def _stall(self) -> None:
        node, world = self._node(), self._world
        world.tell(f"the disk of {node.name} stalls")
        node.stalls_until = max(node.stalls_until, world.now + self._length())

    def _wipe(self) -> None:
        """Its disk is lost; never the last one of the set, unless people may force."""
        node, world = self._node(), self._world
        marker = world.store.marker
        member: Member = node.disk.member
        if marker is None:
            return
        left = [each.disk.member for each in world.nodes if each is not node]
        if not world.setting.forced and not any(other in marker.in_sync for other in left):
            return
        world.tell(f"{node.name} loses its disk")
        node.crash()
        del world.oracle.disks[member]
        node.disk = world.new_disk(node.name)
        self._end(node.start)

    def _force(self) -> None:
        node = self._node()
        self._world.tell(f"{node.name} is promoted by force")
        node.tell(inputs.ForcePromotion())
