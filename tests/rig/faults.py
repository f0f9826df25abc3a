"""What the world does to a cluster. One function per kind of fault; `one_fault` draws one."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.report import TaskFinished
from tests.rig.assembly import AgentProcess
from tests.rig.cast import Cast
from tests.rig.cluster import Cluster
from tests.rig.people import act, poisonous_spec, submit
from tests.rig.sim_log import CommitPoint, Trap
from tests.rig.sim_machine import Machine

TRAP_S_MAX: Final = 40.0
"""A snapshot is due every 30 s."""
START_S_MAX: Final = 5.0
AILING_S: Final = (3.0, 20.0, 60.0)
"""Below and beyond what it takes to be told so."""


Fault = Callable[[Cluster], Awaitable[None]]


async def one_fault(cluster: Cluster, among: Sequence[Fault] = ()) -> None:
    """`among`: one of these; empty = of any kind."""
    cluster.faults += 1
    fault, trouble = cluster.dice.choice(among or FAULTS), cluster.oracle.taking.trouble
    of_one_node = fault in NODE_FAULTS and fault is not lossy
    if not of_one_node:
        trouble(None)
    await fault(cluster)
    if not of_one_node:
        trouble(None)
    for agent in cluster.agents:
        if cluster.dice.random() < 0.5:
            cluster.network.heal(agent.node)


# --- the control plane and its disk -----------------------------------------------------------------------------


async def control_killed(cluster: Cluster) -> None:
    """At any moment; it is down for nothing, seconds or minutes."""
    await cluster.restart_control(cluster.dice.choice([0.0, 0.5, 20.0, 20.0, 240.0]))


async def control_killed_at_a_commit_point(cluster: Cluster) -> None:
    point, nth = cluster.dice.choice(list(CommitPoint)), cluster.dice.choice([1, 1, 2, 5])
    act(cluster)
    await killed_when(cluster, Trap(point, nth), TRAP_S_MAX)


async def killed_when(cluster: Cluster, trap: Trap, within_s: float) -> bool:
    """Kill the control plane when the trap springs, or when time is up (False)."""
    cluster.disk.trap = trap
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await trap.sprung.wait()
    died = trap.sprung.is_set()
    await cluster.restart_control(0.0)
    cluster.disk.trap = None
    return died


async def disk_full(cluster: Cluster) -> None:
    """What can't be kept isn't acknowledged, and the process stops; with room again nothing has been lost."""
    disk, before = cluster.disk, cluster.disk.refused
    disk.full = True
    act(cluster)
    await cluster.clock.sleep(cluster.dice.choice([0.1, 8.0]))
    if disk.refused > before:
        await cluster.clock.sleep(0.1)
        if cluster.network.control is not None:
            cluster.oracle.broken.append("the disk refused an append, and the control plane went on")
        await cluster.restart_control(1.0, crashed=True)  # in vain
        disk.full = False
        await cluster.restart_control(1.0, crashed=True)
    disk.full = False


async def disk_stalls(cluster: Cluster) -> None:
    cluster.disk.stall_s = cluster.dice.choice([0.5, 5.0])
    for _ in range(3):
        act(cluster)
    await cluster.clock.sleep(cluster.dice.choice([1.0, 10.0]))
    cluster.disk.stall_s = 0.0


async def control_suspended(cluster: Cluster) -> None:
    """Its machine sleeps, in a moment of all others, and its clocks but one have gone on."""
    for_s = cluster.dice.choice([5.0, 600.0, 7_200.0])
    cluster.control.clock.suspend(for_s)
    cluster.wall_offset_s += for_s
    act(cluster)


async def clock_corrected(cluster: Cluster) -> None:
    """While the control plane runs."""
    by_s = cluster.dice.choice([-3_600.0, -7.0, 7.0, 3_600.0])
    cluster.control.clock.correct(by_s)
    cluster.wall_offset_s += by_s
    act(cluster)


async def wall_clock_steps(cluster: Cluster) -> None:
    """By an hour, on the control plane's machine, while no control plane runs."""
    cluster.wall_offset_s = cluster.dice.choice([-3_600.0, 0.0, 3_600.0])
    await cluster.restart_control(0.5)


# --- nodes ------------------------------------------------------------------------------------------------------


async def agent_killed(cluster: Cast) -> None:
    await restart_agent(cluster, any_agent(cluster))


async def runner_killed(cluster: Cast) -> None:
    any_agent(cluster).machine.kill_runner()


async def agent_and_runner_killed(cluster: Cast) -> None:
    agent = any_agent(cluster)
    agent.machine.kill_runner()
    await restart_agent(cluster, agent)


async def agent_or_runner_killed_at_a_start(cluster: Cast) -> None:
    """The record is on disk, the process isn't there, and the agent doesn't know."""
    agent = any_agent(cluster)
    recorded = agent.machine.recorded
    recorded.clear()
    for _ in range(3):
        act(cluster)
    with suppress(TimeoutError):
        async with asyncio.timeout(START_S_MAX):
            await recorded.wait()
    if cluster.dice.random() < 0.7:
        agent.machine.kill_runner()
    if cluster.dice.random() < 0.7:
        await restart_agent(cluster, agent)


async def node_rebooted(cluster: Cast) -> None:
    agent = any_agent(cluster)
    await agent.kill()
    agent.machine.reboot()
    await cluster.clock.sleep(cluster.dice.choice([1.0, 40.0]))
    agent.start()


async def agent_stopped(cluster: Cast) -> None:
    """SIGSTOP for longer than silence is borne, then SIGCONT. Its jobs go on, and so does its connection."""
    agent, seconds = any_agent(cluster), cluster.dice.choice([5.0, 20.0, 60.0])
    gate = agent.gate
    gate.shut()

    async def resume() -> None:
        await cluster.clock.sleep(seconds)
        gate.open()

    cluster.later(resume())


async def gpus_vanish(cluster: Cast) -> None:
    agent = any_agent(cluster)
    agent.show_gpus(*(gpu.uuid for gpu in agent.gpus() if cluster.dice.random() < 0.5))


async def gpus_return(cluster: Cast) -> None:
    any_agent(cluster).show_gpus()


async def ports_taken_or_freed(cluster: Cast) -> None:
    first = cluster.dice.randrange(20_000, 20_016)
    any_agent(cluster).machine.ports_taken ^= set(range(first, min(first + 4, 20_016)))


async def node_suspended(cluster: Cast) -> None:
    suspend_node(cluster, any_agent(cluster), cluster.dice.choice([5.0, 20.0, 90.0]))


def suspend_node(cluster: Cast, agent: AgentProcess, seconds: float) -> None:
    agent.machine.suspend()
    gate = agent.gate
    gate.shut()

    def resume() -> None:
        agent.machine.resume()
        gate.open()

    afterwards(cluster, seconds, resume)


async def node_clock_corrected(cluster: Cast) -> None:
    any_agent(cluster).machine.clock.correct(cluster.dice.choice([-3_600.0, -7.0, 7.0, 3_600.0]))


async def node_disk_full(cluster: Cast) -> None:
    """The runner's."""
    machine = any_agent(cluster).machine
    machine.fill_disk()
    act(cluster)
    afterwards(cluster, cluster.dice.choice(AILING_S), machine.free_disk)


async def job_folders_full(cluster: Cast) -> None:
    machine = any_agent(cluster).machine
    machine.folders_full = True
    act(cluster)
    afterwards(cluster, cluster.dice.choice(AILING_S), lambda: setattr(machine, "folders_full", False))


async def runner_stopped(cluster: Cast) -> None:
    """SIGSTOP; what it started goes on."""
    machine = any_agent(cluster).machine
    for _ in range(2):
        act(cluster)
    machine.stop_runner()
    afterwards(cluster, cluster.dice.choice(AILING_S), machine.continue_runner)


async def node_sick(cluster: Cast) -> None:
    """Start after start fails."""
    machine = any_agent(cluster).machine
    machine.sick = True
    for _ in range(2):
        act(cluster)
    afterwards(cluster, cluster.dice.choice(AILING_S), lambda: setattr(machine, "sick", False))


async def node_has_few_resources(cluster: Cast) -> None:
    """Its next runner finds limits that are enough for a task or two."""
    machine = any_agent(cluster).machine
    machine.limit_tasks(cluster.dice.choice([1, 2]))
    for _ in range(2):
        act(cluster)
    afterwards(cluster, cluster.dice.choice(AILING_S), lambda: machine.limit_tasks(0))


# --- jobs -------------------------------------------------------------------------------------------------------


async def job_breaks_the_engine(cluster: Cast) -> None:
    """A defect of ours that only the shape of one job brings out, until there is a version without it."""
    cluster.oracle.ailing.poison(cluster.dice.choice(AILING_S))
    cluster.ask(submit(cluster, poisonous_spec(cluster)))
    act(cluster)


# --- the network ------------------------------------------------------------------------------------------------


async def partition(cluster: Cast) -> None:
    cluster.network.partition(any_agent(cluster).node)


async def blip(cluster: Cast) -> None:
    cluster.network.break_streams(any_agent(cluster).node)


async def lossy(cluster: Cast) -> None:
    cluster.network.lossy = cluster.dice.choice([0.0, 0.1, 0.5])


async def late_end(cluster: Cluster) -> None:
    """An end that the ledger has comes once more, as it was or with another exit code: it must change nothing."""
    agent, control = any_agent(cluster), cluster.network.control
    known = [key for key in agent.machine.ends if _is_settled(cluster, agent.machine, key)]
    if control is None or not known:
        return
    key = cluster.dice.choice(known)
    end = msgspec.structs.replace(agent.machine.ends[key].end, exit_code=cluster.dice.choice([None, 0, 99]))
    try:
        await control.finished(TaskFinished(node=agent.node, key=key, end=end))
    except StokerError:
        return


def _is_settled(cluster: Cluster, machine: Machine, key: TaskKey) -> bool:
    job = cluster.control.parts.committer.state.jobs.get(key.job)
    if (
        job is None
        or not job.attempts_before < key.attempt <= job.newest_attempt
        or machine.name in cluster.oracle.forgotten
    ):
        return False
    return job.attempt(key.attempt).tasks[key.rank].end is not None


NODE_FAULTS: Final[tuple[Callable[[Cast], Awaitable[None]], ...]] = (
    agent_killed,
    runner_killed,
    agent_and_runner_killed,
    agent_or_runner_killed_at_a_start,
    node_rebooted,
    agent_stopped,
    gpus_vanish,
    gpus_return,
    ports_taken_or_freed,
    node_clock_corrected,
    node_disk_full,
    job_folders_full,
    runner_stopped,
    node_sick,
    node_has_few_resources,
    job_breaks_the_engine,
    partition,
    blip,
    lossy,
)
FAULTS: Final[tuple[Fault, ...]] = (
    control_killed,
    control_killed_at_a_commit_point,
    disk_full,
    disk_stalls,
    wall_clock_steps,
    control_suspended,
    clock_corrected,
    node_suspended,
    *NODE_FAULTS,
    late_end,
)


def afterwards(cluster: Cast, seconds: float, deed: Callable[[], None]) -> None:
    async def later() -> None:
        await cluster.clock.sleep(seconds)
        deed()

    cluster.later(later())


def any_agent(cluster: Cast) -> AgentProcess:
    agent = cluster.dice.choice(cluster.agents)
    cluster.oracle.taking.trouble(agent.node)
    return agent


async def restart_agent(cluster: Cast, agent: AgentProcess) -> None:
    await agent.kill()
    await cluster.clock.sleep(cluster.dice.choice([0.0, 0.3, 30.0]))
    agent.start()
