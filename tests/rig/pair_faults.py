"""What the world does to two control planes and their nodes. One function per kind of fault; `one_fault` draws one.

Most begin something that ends by itself after a while, so that several lie over each other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from tests.rig.faults import NODE_FAULTS, afterwards, suspend_node
from tests.rig.pair_client import PEOPLE
from tests.rig.pair_cluster import PairCluster
from tests.rig.pair_victims import Halt, active_or_any, any_control, busy_or_any, cut_for, stop_for
from tests.rig.people import act
from tests.rig.sim_disk import CommitPoint, Trap

TRAP_S_MAX: Final = 40.0
WHILE: Final = (0.5, 2.0, 4.5, 8.0, 30.0)
"""Below, about and beyond a lease."""
LONG: Final = (5.0, 20.0, 60.0, 90.0)
"""Below, about and beyond the lease of an attempt, and what is added to it."""

Fault = Callable[[PairCluster], Awaitable[None]]


async def one_fault(cluster: PairCluster, among: Sequence[Fault] = ()) -> None:
    """`among`: one of these; empty = of any kind."""
    cluster.faults += 1
    cluster.oracle.taking.trouble(None)
    kind = among or cluster.dice.choice(KINDS)
    fault = cluster.dice.choice(kind)
    await fault(cluster)
    for agent in cluster.agents:
        if cluster.dice.random() < 0.08:
            cluster.network.heal(agent.node)


# --- processes of control planes ----------------------------------------------------------------------------------


async def control_killed(cluster: PairCluster) -> None:
    """Either one, at any moment; it is down for nothing, seconds or minutes."""
    cluster.later(cluster.restart(any_control(cluster), cluster.dice.choice([0.0, 0.5, 5.0, 20.0, 100.0])))


async def active_killed(cluster: PairCluster) -> None:
    cluster.later(cluster.restart(active_or_any(cluster), cluster.dice.choice([0.0, 5.0, 20.0])))


async def both_killed(cluster: PairCluster) -> None:
    for control in cluster.controls.values():
        cluster.later(cluster.restart(control, cluster.dice.choice([0.0, 0.5, 5.0, 40.0])))


async def control_killed_at_a_commit_point(cluster: PairCluster) -> None:
    control = active_or_any(cluster)
    trap = Trap(cluster.dice.choice(list(CommitPoint)), cluster.dice.choice([1, 1, 2, 5]))
    disk = cluster.log_of(control)
    disk.trap = trap
    act(cluster)
    with suppress(TimeoutError):
        async with asyncio.timeout(TRAP_S_MAX):
            await trap.sprung.wait()
    disk.trap = None
    if trap.sprung.is_set():
        await cluster.restart(control, cluster.dice.choice([0.0, 1.0, 10.0]))


async def control_stopped_at_a_commit_point(cluster: PairCluster) -> None:
    """SIGSTOP right there, for longer than its lease."""
    control, seconds = active_or_any(cluster), cluster.dice.choice([6.0, 15.0])
    disk = cluster.log_of(control)
    if disk.trap is None:
        disk.trap = Halt(cluster.dice.choice(list(CommitPoint)), disk, lambda: stop_for(cluster, control, seconds))
    act(cluster)


async def active_stopped_until_it_is_replaced(cluster: PairCluster) -> None:
    """On its way to its disk, or wherever it is; it goes on right when the other one has the marker."""
    control = cluster.active
    if control is None:
        return
    disk = cluster.log_of(control)

    def stop() -> None:
        control.pause()
        cluster.when_replaced(control, lambda: afterwards(cluster, cluster.dice.choice([0.0, 0.003, 0.03]), resume))
        afterwards(cluster, 20.0, resume)

    process = control.process

    def resume() -> None:
        if control.process is process:
            control.go_on()

    if cluster.dice.random() < 0.7 and disk.trap is None:
        disk.trap = Halt(cluster.dice.choice([CommitPoint.BEFORE_WRITE, CommitPoint.BEFORE_ANSWER]), disk, stop)
    else:
        stop()
    for _ in range(3):
        act(cluster)


async def control_stopped(cluster: PairCluster) -> None:
    stop_for(cluster, active_or_any(cluster), cluster.dice.choice(WHILE))


async def active_stopped_before_it_speaks(cluster: PairCluster) -> None:
    """It has decided to send something, and stands still between that and the sending."""
    control = cluster.active
    if control is not None and control.process is not None:
        cluster.network.stop_at_message = control.process
        act(cluster)
        seconds = cluster.dice.choice([6.0, 15.0])

        async def resume() -> None:
            await cluster.clock.sleep(seconds)
            cluster.network.stop_at_message = None
            control.go_on()

        cluster.later(resume())


async def control_resigns(cluster: PairCluster) -> None:
    """SIGTERM, and a new process."""
    control = active_or_any(cluster)

    async def resign() -> None:
        control.terminate()
        await cluster.clock.sleep(cluster.dice.choice([5.0, 20.0]))
        await cluster.restart(control, 0.0)

    cluster.later(resign())


async def control_loses_its_disk(cluster: PairCluster) -> None:
    """Only if the other one has all of it."""
    control, marker = any_control(cluster), cluster.place.newest
    others = {(each.name, each.disk.uid) for each in cluster.controls.values() if each is not control}
    if cluster.database is None and marker is not None and any((m.name, m.uid) in others for m in marker.in_sync):
        await cluster.restart(control, cluster.dice.choice([0.0, 10.0]), wipe=True)


async def control_suspended(cluster: PairCluster) -> None:
    """Its whole machine: one of its clocks stands still meanwhile."""
    control, seconds = active_or_any(cluster), cluster.dice.choice(WHILE)
    process, clock = control.process, control.clock
    control.pause()

    def resume() -> None:
        if control.process is process and process is not None and process.stopped:
            clock.slept(seconds)
            control.go_on()

    afterwards(cluster, seconds, resume)


async def clock_corrected(cluster: PairCluster) -> None:
    """While the control plane runs."""
    control, by_s = active_or_any(cluster), cluster.dice.choice([-3_600.0, -7.0, 7.0, 3_600.0])
    control.clock.correct(by_s)
    control.wall_offset_s += by_s
    act(cluster)


async def wall_clock_steps(cluster: PairCluster) -> None:
    """By an hour; it reaches the processes that start from now on."""
    for control in cluster.controls.values():
        control.wall_offset_s = cluster.dice.choice([-3_600.0, 0.0, 3_600.0])
    if cluster.dice.random() < 0.5:
        await control_killed(cluster)


# --- disks ------------------------------------------------------------------------------------------------------


async def disk_full(cluster: PairCluster) -> None:
    disk = cluster.log_of(active_or_any(cluster))
    disk.full = True
    act(cluster)
    afterwards(cluster, cluster.dice.choice(WHILE), lambda: setattr(disk, "full", False))


async def disk_fails_to_sync(cluster: PairCluster) -> None:
    disk = cluster.log_of(active_or_any(cluster))
    disk.sync_fails = True
    act(cluster)
    afterwards(cluster, cluster.dice.choice(WHILE), lambda: setattr(disk, "sync_fails", False))


async def disk_stalls(cluster: PairCluster) -> None:
    disk = cluster.log_of(active_or_any(cluster))
    disk.stall_s = cluster.dice.choice([0.3, 1.5, 3.0, 40.0])
    act(cluster)
    afterwards(cluster, cluster.dice.choice(WHILE), lambda: setattr(disk, "stall_s", 0.0))


async def disk_tears(cluster: PairCluster) -> None:
    for control in cluster.controls.values():
        cluster.log_of(control).tears = cluster.dice.random() < 0.5


# --- the marker, and the network between control planes -----------------------------------------------------------


async def marker_cut_off(cluster: PairCluster) -> None:
    """From one control plane; with a common database that is the database."""
    name = active_or_any(cluster).name
    cluster.place.cut.add(name)
    if cluster.database is not None:
        cluster.database.cut_off.add(name)
    afterwards(cluster, cluster.dice.choice(WHILE), lambda: _marker_back(cluster, name))


def _marker_back(cluster: PairCluster, name: str) -> None:
    cluster.place.cut.discard(name)
    if cluster.database is not None:
        cluster.database.cut_off.discard(name)


async def marker_down(cluster: PairCluster) -> None:
    cluster.place.down = True
    afterwards(cluster, cluster.dice.choice(WHILE), lambda: setattr(cluster.place, "down", False))


async def marker_slow(cluster: PairCluster) -> None:
    cluster.place.stall_s = cluster.dice.choice([0.1, 0.5, 0.9, 1.5])
    afterwards(cluster, cluster.dice.choice(WHILE), lambda: setattr(cluster.place, "stall_s", 0.0))


async def marker_answers_get_lost(cluster: PairCluster) -> None:
    cluster.place.lossy = cluster.dice.choice([0.2, 0.6])
    afterwards(cluster, cluster.dice.choice(WHILE), lambda: setattr(cluster.place, "lossy", 0.0))


async def marker_writes_come_late(cluster: PairCluster) -> None:
    cluster.place.late = cluster.dice.choice([0.2, 0.6])
    afterwards(cluster, cluster.dice.choice(WHILE), lambda: setattr(cluster.place, "late", 0.0))


async def marker_damaged(cluster: PairCluster) -> None:
    """Until a newer version is put, or somebody restores it."""
    cluster.place.damaged = cluster.place.newest
    afterwards(cluster, cluster.dice.choice(WHILE), lambda: setattr(cluster.place, "damaged", None))


async def marker_fades_away(cluster: PairCluster) -> None:
    """Slower and slower, then not at all; mostly the other control planes go with it."""
    place, control = cluster.place, active_or_any(cluster)
    place.stall_s, place.lossy = cluster.dice.choice([0.0, 0.6, 1.2]), cluster.dice.choice([0.3, 0.8])

    def gone() -> None:
        place.stall_s = place.lossy = 0.0
        place.cut.add(control.name)
        afterwards(cluster, 8.0, lambda: place.cut.discard(control.name))
        if cluster.dice.random() < 0.7:
            one, other = cluster.controls
            cut_for(cluster, [(one, other), (other, one)], 8.0)

    afterwards(cluster, cluster.dice.uniform(0.5, 4.0), gone)


async def peers_cut(cluster: PairCluster) -> None:
    """In one direction or in both."""
    one, other = cluster.controls
    ways = cluster.dice.choice([[(one, other)], [(other, one)], [(one, other), (other, one)]])
    cut_for(cluster, ways, cluster.dice.choice(WHILE))


async def control_isolated(cluster: PairCluster) -> None:
    """From the other one, its marker, its nodes and all people; sometimes only what it says gets lost."""
    control = active_or_any(cluster)
    others = [*(name for name in cluster.controls if name != control.name), PEOPLE]
    others += [agent.node for agent in cluster.agents]
    ways = [(control.name, other) for other in others]
    if cluster.dice.random() < 0.7:
        ways += [(other, control.name) for other in others]
    if cluster.dice.random() < 0.7:
        await marker_cut_off(cluster)
    cut_for(cluster, ways, cluster.dice.choice(WHILE))


# --- nodes ------------------------------------------------------------------------------------------------------


async def node_cut(cluster: PairCluster) -> None:
    """From one control plane or from both, in one direction or in both."""
    node = busy_or_any(cluster).node
    names = cluster.dice.choice([[*cluster.controls], *([name] for name in cluster.controls)])
    up, down = cluster.dice.choice([(True, True), (True, False), (False, True)])
    ways = [(node, name) for name in names if up] + [(name, node) for name in names if down]
    cut_for(cluster, ways, cluster.dice.choice(LONG))


async def agent_away(cluster: PairCluster) -> None:
    """Its runner lives."""
    agent = busy_or_any(cluster)

    async def away() -> None:
        await agent.kill()
        await cluster.clock.sleep(cluster.dice.choice(LONG))
        agent.start()

    cluster.later(away())


async def agent_stands_still(cluster: PairCluster) -> None:
    gate = busy_or_any(cluster).gate
    gate.shut()
    afterwards(cluster, cluster.dice.choice(LONG), gate.open)


async def node_suspended(cluster: PairCluster) -> None:
    suspend_node(cluster, busy_or_any(cluster), cluster.dice.choice(LONG))


async def node_fades_away(cluster: PairCluster) -> None:
    """Its network gets slow, it stands still for a while, and then nobody hears it, and it hears nobody."""
    agent = busy_or_any(cluster)
    cluster.network.slow_s = 1.5

    def gone() -> None:
        cluster.network.slow_s = 0.0
        cut_for(cluster, [(agent.node, name) for name in cluster.controls], 90.0)
        afterwards(cluster, 4.0, lambda: cut_for(cluster, [(name, agent.node) for name in cluster.controls], 86.0))
        agent.gate.shut()
        afterwards(cluster, cluster.dice.choice([9.0, 20.0]), agent.gate.open)

    afterwards(cluster, cluster.dice.uniform(5.0, 10.0), gone)


async def network_slow(cluster: PairCluster) -> None:
    cluster.network.slow_s = cluster.dice.choice([0.05, 0.4, 1.5])
    afterwards(cluster, cluster.dice.choice(WHILE), lambda: setattr(cluster.network, "slow_s", 0.0))


async def answers_to_people_get_lost(cluster: PairCluster) -> None:
    cluster.client.lossy = cluster.dice.choice([0.0, 0.3])


async def node_fault(cluster: PairCluster) -> None:
    await cluster.dice.choice(NODE_FAULTS)(cluster)


KINDS: Final[tuple[tuple[Fault, ...], ...]] = (
    (
        control_killed,
        active_killed,
        both_killed,
        control_killed_at_a_commit_point,
        control_stopped_at_a_commit_point,
        control_stopped,
        active_stopped_until_it_is_replaced,
        active_stopped_until_it_is_replaced,
        active_stopped_before_it_speaks,
        control_resigns,
        control_loses_its_disk,
        wall_clock_steps,
        control_suspended,
        clock_corrected,
    ),
    (disk_full, disk_fails_to_sync, disk_stalls, disk_tears),
    (
        marker_cut_off,
        marker_down,
        marker_slow,
        marker_answers_get_lost,
        marker_writes_come_late,
        marker_damaged,
        marker_fades_away,
        peers_cut,
        peers_cut,
        control_isolated,
    ),
    (
        node_cut,
        agent_away,
        agent_stands_still,
        node_suspended,
        node_fades_away,
        network_slow,
        answers_to_people_get_lost,
        node_fault,
    ),
)
