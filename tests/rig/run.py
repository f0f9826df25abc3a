"""One seeded run of a whole cluster: random commands, faults of every kind, then peace, then the reckoning."""

import asyncio
import hashlib
import random
from dataclasses import dataclass
from typing import Final
from unittest import mock

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import JobId, Position, Principal
from stoker.brain.domain.job import JobSpec
from stoker.brain.state.apply import dispatch
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact
from stoker.brain.state.commands import Cancel, ForgetNode, Submit
from stoker.brain.state.events.job import JobSubmitted
from stoker.live import committer
from tests.rig.assembly import AgentProcess, ControlProcess
from tests.rig.oracle import Oracle
from tests.rig.sim_link import SimNetwork
from tests.rig.sim_log import SimDisk
from tests.rig.sim_runner import Machine
from tests.rig.virtual_loop import run_virtual
from tests.rig.world import SimClock, SimEntropy

BOB: Final = Principal("user:bob")
PEACE_S: Final = 3_600.0
GPUS: Final = 4


@dataclass(frozen=True, slots=True)
class Report:
    """What a run came to. Equal seeds give equal digests, whatever the hash seed."""

    seed: int
    digest: str
    events: int
    simulated_s: float
    jobs: int
    faults: int


class Cluster:
    """The cast of one run."""

    def __init__(self, seed: int, nodes: int) -> None:
        self.dice = random.Random(seed)
        self.clock, self.entropy = SimClock(), SimEntropy(seed + 1)
        self.network = SimNetwork(self.clock, self.entropy)
        self.disk = SimDisk()
        machines = [Machine(f"n{i}", self.clock, self.entropy) for i in range(1, nodes + 1)]
        self.agents = [AgentProcess(machine, self.network, GPUS, seed + 7 * i) for i, machine in enumerate(machines)]
        self.oracle = Oracle(machines)
        self.control = self.new_control()
        self.faults = 0
        self.clients: set[asyncio.Task[None]] = set()

    def new_control(self) -> ControlProcess:
        return ControlProcess(self.disk, self.network, self.clock, self.entropy)

    async def start(self) -> None:
        await self.control.start()
        for agent in self.agents:
            agent.start()

    # -- what people do ------------------------------------------------------------------------------------------

    def act(self) -> None:
        """A client's request, in the background: its answer may never come."""
        roll = self.dice.random()
        work = self._submit() if roll < 0.7 or not self.oracle.acknowledged else self._cancel()
        task = asyncio.get_running_loop().create_task(work)
        self.clients.add(task)
        task.add_done_callback(self.clients.discard)

    async def _submit(self) -> None:
        dice = self.dice
        tasks = dice.choice([1, 1, 1, 1, 2, 3])
        gpus = dice.choice([0, 1, 1, 2, 3]) if tasks == 1 else dice.choice([1, 2])
        seconds = dice.choice([0.001, 0.5, 3, 20])
        command = f"{seconds} {dice.choice([0, 0, 0, 1])} {dice.choice(['', '', 'trap'])}"
        spec = JobSpec(
            name="rig",
            demand=Demand(gpu_count=gpus, tasks=tasks),
            command=command.strip(),
            priority=dice.choice([100, 500, 1000]),
            time_limit_ms=dice.choice([0, 0, 0, 5_000]),
            retries_max=dice.choice([0, 1, 2]),
        )
        try:
            events = await self.control.parts.committer.ask(Submit(by=BOB, specs=(spec,) * dice.choice([1, 1, 3])))
        except StokerError:
            return
        for event in events:
            assert isinstance(event, JobSubmitted)
            self.oracle.acknowledged[event.job] = None

    async def _cancel(self) -> None:
        job = self.dice.choice(list(self.oracle.acknowledged))
        try:
            await self.control.parts.committer.ask(Cancel(by=BOB, job=JobId(job)))
        except StokerError:
            return

    # -- what the world does -------------------------------------------------------------------------------------

    async def fault(self) -> None:
        self.faults += 1
        agent = self.dice.choice(self.agents)
        kind = self.dice.choice(
            ["control", "agent", "runner", "partition", "blip", "reboot", "lossy", "port", "agent_and_runner"]
        )
        match kind:
            case "control":
                await self.restart_control()
            case "agent":
                await self.restart_agent(agent)
            case "runner":
                agent.machine.kill_runner()
            case "agent_and_runner":
                agent.machine.kill_runner()
                await self.restart_agent(agent)
            case "partition":
                self.network.partition(agent.node)
            case "blip":
                self.network.break_streams(agent.node)
            case "reboot":
                await self.reboot(agent)
            case "lossy":
                self.network.lossy = self.dice.choice([0.0, 0.1, 0.5])
            case "port":
                agent.machine.ports_taken ^= {self.dice.randrange(20_000, 20_016)}
        for other in self.agents:
            if self.dice.random() < 0.5:
                self.network.heal(other.node)

    async def restart_control(self) -> None:
        await self.control.kill()
        for client in tuple(self.clients):
            client.cancel()
        await self.clock.sleep(self.dice.choice([0.0, 0.5, 20.0]))
        self.control = self.new_control()
        await self.control.start()

    async def restart_agent(self, agent: AgentProcess) -> None:
        await agent.kill()
        await self.clock.sleep(self.dice.choice([0.0, 0.3, 30.0]))
        agent.start()

    async def reboot(self, agent: AgentProcess) -> None:
        await agent.kill()
        agent.machine.reboot()
        await self.clock.sleep(self.dice.choice([1.0, 40.0]))
        agent.start()

    async def forget(self, agent: AgentProcess) -> None:
        """A person says that a node is gone; it may live all the same."""
        self.oracle.forgotten.add(agent.machine.name)
        try:
            await self.control.parts.committer.ask(ForgetNode(by=BOB, node=agent.node, force=True))
        except StokerError:
            return

    async def peace(self) -> None:
        """Faults end; everything that can run must run."""
        self.network.lossy = 0.0
        for agent in self.agents:
            self.network.heal(agent.node)
            agent.machine.ports_taken.clear()
        until = self.clock.mono() + PEACE_S
        while self.clock.mono() < until:
            await self.clock.sleep(5.0)
            jobs = self.control.parts.committer.state.jobs.values()
            if all(job.is_final for job in jobs) and not any(m.live() for m in self.oracle.machines):
                break
        await self.clock.sleep(60.0)

    def crashes(self) -> list[BaseException]:
        found = self.control.tasks.crashes()
        for agent in self.agents:
            found += agent.tasks.crashes()
        return found


def simulate(seed: int, *, nodes: int = 3, steps: int = 30, forgetting: bool = False) -> Report:
    """Run one seed; raises AssertionError with the story when a promise is broken."""
    return run_virtual(lambda: _simulate(seed, nodes, steps, forgetting))


async def _simulate(seed: int, nodes: int, steps: int, forgetting: bool) -> Report:
    cluster = Cluster(seed, nodes)
    oracle = cluster.oracle
    digest = hashlib.blake2b(digest_size=8)
    real = dispatch.apply

    def watched(state: ClusterState, fact: Fact, position: Position) -> None:
        real(state, fact, position)
        if state is cluster.control.state:
            oracle.check(state)

    with mock.patch.object(committer, "apply", watched):  # observes; changes nothing
        await cluster.start()
        for _ in range(steps):
            for _ in range(cluster.dice.choice([0, 1, 1, 4])):
                cluster.act()
            await cluster.clock.sleep(cluster.dice.choice([0.001, 0.01, 0.2, 3.0, 12.0]))
            oracle.check_world()
            oracle.check_single_attempt()
            if cluster.dice.random() < 0.5:
                await cluster.fault()
            if forgetting and cluster.dice.random() < 0.1:
                await cluster.forget(cluster.dice.choice(cluster.agents))
        await cluster.peace()
        assert not cluster.crashes(), cluster.crashes()
        oracle.check_world()
        oracle.check_end(cluster.control.parts.committer.state)
        for record in cluster.disk.records:
            digest.update(record)
        end = cluster.clock.mono()
        await cluster.control.kill()
        for agent in cluster.agents:
            await agent.kill()
    return Report(seed, digest.hexdigest(), oracle.events, end, len(oracle.acknowledged), cluster.faults)
