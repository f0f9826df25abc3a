"""Puts the real parts together over the simulated world, and takes them apart as a crash would."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from stoker.agent.daemon import AgentPorts, Daemon
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import CONTROL, Epoch, GpuUuid, NodeName
from stoker.brain.domain.node import Inventory
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.report import Registration
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import BeginEpoch
from stoker.live.committer import Committer
from stoker.live.liveness import Liveness
from stoker.live.loop import Loop
from stoker.live.outbox import Outbox
from stoker.live.sessions import Sessions
from stoker.live.snapshots import Snapshots, recover
from tests.rig.sim_link import SimLink, SimNetwork
from tests.rig.sim_log import SimDisk, SimLog
from tests.rig.sim_runner import Machine, SimRunner
from tests.rig.world import Notes, SimClock, SimEntropy

HEARTBEAT_S = 5.0
UNREACHABLE_AFTER_S = 15.0
SNAPSHOT_S = 30.0


class ProcessTasks:
    """The asyncio tasks of one simulated process; killing it gives them no chance to tidy up in the world."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        return task

    async def kill(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def crashes(self) -> list[BaseException]:
        """What ended a task that should run for ever."""
        done = [task for task in self._tasks if task.done() and not task.cancelled()]
        return [error for task in done if (error := task.exception()) is not None]


class ControlProcess:
    """A control plane: everything of `live` below HTTP and gRPC."""

    def __init__(self, disk: SimDisk, network: SimNetwork, clock: SimClock, entropy: SimEntropy, policy: Policy) -> None:
        self._disk, self._network, self._clock, self._entropy, self._policy = disk, network, clock, entropy, policy
        self.telemetry = Notes(clock, "control")
        self.tasks = ProcessTasks()
        self.committer: Committer
        self.loop: Loop
        self.sessions: Sessions

    async def start(self) -> None:
        log = SimLog(self._disk, self._clock, self._entropy)
        await log.open()
        state = await recover(log, self._clock, self.telemetry)
        self.committer = Committer(state, log, self._clock, self._entropy, self.telemetry)
        liveness = Liveness(self.committer, self._clock, self.telemetry, unreachable_after_s=UNREACHABLE_AFTER_S)
        outbox = Outbox(self.committer)
        self.sessions = Sessions(
            self.committer,
            outbox,
            liveness,
            self._clock,
            self._entropy,
            self.telemetry,
            heartbeat_ms=int(HEARTBEAT_S * 1000),
        )
        self.loop = Loop(self.committer, self._clock, self._entropy, self.telemetry, period_s=5.0)
        snapshots = Snapshots(self.committer, log, self._clock, self.telemetry, SNAPSHOT_S)
        self.tasks.start(self.committer.run())
        epoch = Epoch(state.epoch + 1)
        await self.committer.ask(BeginEpoch(by=CONTROL, epoch=epoch, policy=self._policy))
        for duty in (self.loop.run(), liveness.run(), snapshots.run()):
            self.tasks.start(duty)
        self._network.control = self.sessions

    async def kill(self) -> None:
        """kill -9: connections are reset, nothing is flushed."""
        if self._network.control is self.sessions:
            self._network.control = None
        await self.tasks.kill()
        self._network.break_all()

    @property
    def state(self) -> ClusterState:
        return self.committer.state


class AgentProcess:
    """An agent daemon on a machine."""

    def __init__(self, machine: Machine, network: SimNetwork, gpus: int, seed: int) -> None:
        self.machine = machine
        self._network, self._gpus = network, gpus
        self._entropy = SimEntropy(seed)
        self.telemetry = Notes(SimClock(), machine.name)
        self.tasks = ProcessTasks()
        self.alive = False

    @property
    def node(self) -> NodeName:
        return NodeName(self.machine.name)

    def start(self) -> None:
        ports = AgentPorts(
            link=SimLink(self._network, self.node),
            runner=SimRunner(self.machine),
            clock=self.machine.clock,
            entropy=self._entropy,
            telemetry=self.telemetry,
        )
        self.tasks = ProcessTasks()
        self.tasks.start(Daemon(self.registration(), ports).run())
        self.alive = True

    def registration(self) -> Registration:
        name = self.machine.name
        gpus = tuple(
            Gpu(uuid=GpuUuid(f"GPU-{name}-{i}"), index=i, model="NVIDIA H100 80GB HBM3", memory_mb=81_559, simulated=True)
            for i in range(self._gpus)
        )
        inventory = Inventory(
            boot_id=self.machine.boot_id,
            address=f"10.0.0.{int(name[1:])}",
            gpus=gpus,
            cpus=64,
            memory_mb=1 << 19,
            simulated=True,
            agent_uid=f"uid-{name}",
        )
        return Registration(node=self.node, inventory=inventory)

    async def kill(self) -> None:
        """kill -9 of the agent; its runner and jobs go on."""
        self.alive = False
        await self.tasks.kill()
        self._network.break_streams(self.node)
