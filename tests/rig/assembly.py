"""Puts the real parts together over the simulated world, and takes them apart as a crash would."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from stoker.agent.daemon import Daemon
from stoker.agent.ports import AgentPorts, NoFence, Obeyed
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.node import Inventory
from stoker.brain.domain.report import Registration
from stoker.brain.state.cluster import ClusterState
from stoker.control.control_plane import active
from stoker.control.control_ports import ControlPorts
from stoker.live.control_plane import LiveControlPlane, recover_control
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import PolicySettings
from tests.rig.gate import Gate, GatedClock
from tests.rig.sim_history import SimHistory
from tests.rig.sim_link import SimLink
from tests.rig.sim_log import SimDisk, SimLog
from tests.rig.sim_machine import Machine
from tests.rig.sim_network import CONTROL, Served, SimNetwork
from tests.rig.sim_ports import Notes, SimClock, SimEntropy
from tests.rig.sim_runner import SimFolders, SimRunner

SETTINGS = ControlSettings(policy=PolicySettings(stop_grace_s=2, port_min=20_000, port_max=20_015))
"""Few ports, so that they run out and collide; all else as shipped."""
TAKING_POLICY = PolicySettings(
    stop_grace_s=2, port_min=20_000, port_max=20_015, preemptions_max=2, preempt_notice_max_s=5, gpu_sharers_max=3
)
"""Where people take from each other: bounds that a run reaches."""


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

    def any_runs(self) -> bool:
        return any(not task.done() for task in self._tasks)

    def crashes(self) -> list[BaseException]:
        """What ended a task that should run for ever."""
        done = [task for task in self._tasks if task.done() and not task.cancelled()]
        return [error for task in done if (error := task.exception()) is not None]


class ControlProcess:
    """A control plane: everything between the ports, without its servers."""

    def __init__(
        self, disk: SimDisk, network: SimNetwork, clock: SimClock, entropy: SimEntropy, look_back_max: int = 1_000_000
    ) -> None:
        self._disk, self._network, self._look_back_max = disk, network, look_back_max
        self.clock = clock
        self.settings = SETTINGS
        self.telemetry = Notes(clock, "control")
        self._world = ControlPorts(clock=clock, entropy=entropy, telemetry=self.telemetry)
        self._parts: LiveControlPlane | None = None
        self._ready = asyncio.Event()
        self.tasks = ProcessTasks()

    @property
    def parts(self) -> LiveControlPlane:
        assert self._parts is not None, "the control plane has not recovered yet"
        return self._parts

    @property
    def state(self) -> ClusterState | None:
        """None before recovery."""
        return self._parts.committer.state if self._parts else None

    async def start(self) -> bool:
        """Returns when it is active (True), or has ended instead."""
        life = self.tasks.start(self._live())
        ready = asyncio.ensure_future(self._ready.wait())
        await asyncio.wait((life, ready), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        return not life.done()

    async def _live(self) -> None:
        log = SimLog(self._disk, self._world.clock, self._world.entropy, look_back_max=self._look_back_max)
        await log.open()
        self._parts = await recover_control(
            self.settings, log, SimHistory(self._disk.archive, self._world.clock), self._world
        )
        async with active(self._parts) as duties:
            self._network.serve(Served(CONTROL, self._parts.sessions))
            self._ready.set()
            try:
                await duties.until(asyncio.Event())
            finally:
                self._go_dark()

    def _go_dark(self) -> None:
        if self._parts is not None:
            self._network.go_dark(CONTROL, self._parts.sessions)

    async def kill(self) -> None:
        """kill -9: connections are reset, nothing is flushed."""
        self._go_dark()
        await self.tasks.kill()
        self._network.break_all()


class AgentProcess:
    """An agent daemon on a machine."""

    def __init__(
        self, machine: Machine, network: SimNetwork, gpus: int, seed: int, addresses: Sequence[str] = (CONTROL,)
    ) -> None:
        self.machine = machine
        self._addresses = addresses
        self.gate = Gate()
        self.missing: set[GpuUuid] = set()
        """GPUs that the driver doesn't show now."""
        self._network, self._gpus = network, gpus
        self._entropy = SimEntropy(seed)
        self._fence = NoFence()
        """On the node's disk: it outlives the agent."""
        self._daemon: Daemon | None = None
        self.telemetry = Notes(SimClock(), machine.name)
        self.tasks = ProcessTasks()

    @property
    def node(self) -> NodeName:
        return NodeName(self.machine.name)

    @property
    def runs(self) -> bool:
        return self.tasks.any_runs()

    def start(self) -> None:
        """Nothing if it runs: one process at a time holds the data folder."""
        if self.runs:
            return
        self.gate = Gate()
        ports = AgentPorts(
            link=SimLink(self._network, self.node, self.gate, self._addresses),
            runner=SimRunner(self.machine, self.gate),
            clock=GatedClock(self.machine.clock, self.gate),
            entropy=self._entropy,
            telemetry=self.telemetry,
            fence=self._fence,
            folders=SimFolders(self.machine),
        )
        self.tasks = ProcessTasks()
        self._daemon = Daemon(self.registration(), ports)
        self.tasks.start(self._daemon.run())

    @property
    def obeyed(self) -> Obeyed:
        """The newest control plane that it obeyed."""
        return self._fence.read()

    def show_gpus(self, *missing: GpuUuid) -> None:
        """The driver shows all GPUs but these from now on."""
        self.missing = set(missing)
        if self._daemon is not None:
            self._daemon.amend(self.registration())

    def gpus(self) -> list[Gpu]:
        """All that the node ever had."""
        name = self.machine.name
        return [
            Gpu(
                uuid=GpuUuid(f"GPU-{name}-{i}"),
                index=i,
                model="NVIDIA H100 80GB HBM3",
                memory_mb=81_559,
                simulated=True,
            )
            for i in range(self._gpus)
        ]

    def registration(self) -> Registration:
        name = self.machine.name
        inventory = Inventory(
            boot_id=self.machine.boot_id,
            address=f"10.0.0.{int(name[1:])}",
            gpus=tuple(gpu for gpu in self.gpus() if gpu.uuid not in self.missing),
            cpus=64,
            memory_mb=1 << 19,
            simulated=True,
            agent_uid=f"uid-{name}",
        )
        return Registration(node=self.node, inventory=inventory)

    async def kill(self) -> None:
        """kill -9 of the agent; its runner and jobs go on."""
        await self.tasks.kill()
        self._network.break_streams(self.node)
