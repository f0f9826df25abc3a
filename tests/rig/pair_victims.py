"""Whom does a fault of two control planes hit, and for how long?"""

from collections.abc import Callable, Sequence

from tests.rig.assembly import AgentProcess
from tests.rig.faults import afterwards, any_agent
from tests.rig.pair_cluster import PairCluster
from tests.rig.pair_control import PairControl
from tests.rig.sim_disk import CommitPoint, SimDisk, Trap


class Halt(Trap):
    """Does something in the very step in which a process comes past a point."""

    def __init__(self, point: CommitPoint, disk: SimDisk, then: Callable[[], None]) -> None:
        super().__init__(point)
        self._disk, self._then = disk, then

    def passes(self, point: CommitPoint) -> None:
        super().passes(point)
        if self.sprung.is_set():
            self._disk.trap = None
            self._then()


def any_control(cluster: PairCluster) -> PairControl:
    return cluster.dice.choice(list(cluster.controls.values()))


def active_or_any(cluster: PairCluster) -> PairControl:
    """Mostly the active one."""
    control = any_control(cluster)
    return cluster.active or control if cluster.dice.random() < 0.6 else control


def busy_or_any(cluster: PairCluster) -> AgentProcess:
    """Mostly one whose node has something to lose, and best something that lasts."""
    busy = [agent for agent in cluster.agents if agent.machine.live()]
    lasting = [agent for agent in busy if any(agent.machine.lasts(each) for each in agent.machine.live())]
    busy = lasting if lasting and cluster.dice.random() < 0.5 else busy
    return cluster.dice.choice(busy) if busy and cluster.dice.random() < 0.7 else any_agent(cluster)


def stop_for(cluster: PairCluster, control: PairControl, seconds: float) -> None:
    control.pause()
    process = control.process

    def resume() -> None:
        if control.process is process:
            control.go_on()

    afterwards(cluster, seconds, resume)


def cut_for(cluster: PairCluster, ways: Sequence[tuple[str, str]], seconds: float) -> None:
    for way in ways:
        cluster.cut(*way)

    def mend() -> None:
        for way in ways:
            cluster.network.mend(*way)

    afterwards(cluster, seconds, mend)
