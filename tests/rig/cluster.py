"""The cast of one run: a control plane, a disk, a network, machines with agents, and who watches them.

Every choice comes from `dice`, so that a seed is a whole history.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from stoker.brain.domain.ids import NodeName
from stoker.live.committer import Committer
from tests.rig.assembly import AgentProcess, ControlProcess
from tests.rig.oracle import Oracle
from tests.rig.recorded import unlike, untold
from tests.rig.sim_log import SimDisk
from tests.rig.sim_machine import Machine
from tests.rig.sim_network import SimNetwork
from tests.rig.world import SimClock, SimEntropy

GPUS: Final = 4
PEACE_S: Final = 3_600.0
"""Of virtual time, in which everything must have ended once the faults have."""
LOOK_BACK: Final = (1_000_000, 1_000_000, 1_000_000, 40)
"""Records kept behind the older snapshot: mostly all, so that the whole log can be replayed at the end."""


class Cluster:
    """Processes can be killed and started; what they touch stays."""

    def __init__(self, seed: int, nodes: int) -> None:
        self.dice = random.Random(seed)
        self.clock, self.entropy = SimClock(), SimEntropy(seed + 1)
        self.network = SimNetwork(self.clock, self.entropy)
        self.disk = SimDisk()
        self.look_back_max = self.dice.choice(LOOK_BACK)
        self.wall_offset_s = 0.0
        """How far the wall clock of the control plane's machine is off when its next process starts."""
        machines = [Machine(f"n{i}", self.clock, self.entropy) for i in range(1, nodes + 1)]
        self.agents = [AgentProcess(machine, self.network, GPUS, seed + 7 * i) for i, machine in enumerate(machines)]
        self.oracle = Oracle(machines)
        self.disk.on_write = self.oracle.written
        self.network.on_instruction = self.oracle.instructed
        self.control = self._new_control()
        self.drained: dict[NodeName, None] = {}
        self.faults = 0
        self._clients: set[asyncio.Task[None]] = set()
        self._errands: set[asyncio.Task[None]] = set()

    def _new_control(self) -> ControlProcess:
        clock = SimClock(self.wall_offset_s)
        return ControlProcess(self.disk, self.network, clock, self.entropy, self.look_back_max)

    async def start(self) -> None:
        assert await self.control.start(), "the first control plane didn't start"
        for agent in self.agents:
            agent.start()

    def reach(self) -> Committer | None:
        """The writer of the control plane that answers clients now."""
        return self.control.parts.committer if self.network.control is not None else None

    def ask(self, work: Coroutine[Any, Any, None]) -> None:
        """A client's request, in the background: its answer may never come."""
        self._begin(work, self._clients)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that the world does by itself after a while."""
        self._begin(work, self._errands)

    def _begin(self, work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        among.add(task)
        task.add_done_callback(lambda task: self._ended(task, among))

    def _ended(self, task: "asyncio.Task[None]", among: set[asyncio.Task[None]]) -> None:
        among.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.oracle.broken.append(f"a client met no refusal but {task.exception()!r}")

    async def restart_control(self, after_s: float, *, crashed: bool = False) -> None:
        """kill -9, unless it has `crashed` as it should, and a new process after a while."""
        if not crashed:
            self._must_not_have_crashed()
        await self.control.kill()
        self.oracle.killed()
        for client in tuple(self._clients):
            client.cancel()
        await self.clock.sleep(after_s)
        self.control = self._new_control()
        if await self.control.start():
            self.oracle.recovered(self.control.parts.committer.state)
        else:
            assert self.disk.full, f"it didn't start: {self.control.tasks.crashes()}"

    def look(self) -> None:
        """What can be seen between two steps."""
        if self.network.control is not None:
            self.oracle.stepped(self.control.parts.committer.state, self.control.parts.loop)
        self._must_not_have_crashed()
        self.oracle.broken += self.network.broken_promises
        self.oracle.verdict()

    def _must_not_have_crashed(self) -> None:
        crashes = self.control.tasks.crashes()
        for agent in self.agents:
            crashes += agent.tasks.crashes()
        self.oracle.broken += [f"a process died by itself: {crash!r} {crash.__cause__!r}" for crash in crashes]

    async def peace(self, meanwhile: Callable[["Cluster"], Awaitable[None]]) -> None:
        """Faults have ended; everything that can run must run. `meanwhile` is what people still do for that."""
        self.network.lossy, self.disk.stall_s = 0.0, 0.0
        for errand in tuple(self._errands):
            errand.cancel()
        for agent in self.agents:
            self.network.heal(agent.node)
            agent.gate.open()
            agent.show_gpus()
            agent.machine.ports_taken.clear()
        until = self.clock.mono() + PEACE_S
        while self.clock.mono() < until and not self._all_over():
            await self.clock.sleep(5.0)
            await meanwhile(self)
            self.look()
        await self.clock.sleep(60.0)
        self.look()

    def _all_over(self) -> bool:
        jobs = self.control.parts.committer.state.jobs.values()
        return all(job.is_final for job in jobs) and not any(machine.live() for machine in self.oracle.machines)

    async def reckon(self) -> None:
        """Is what is left as it must be?"""
        committer = self.control.parts.committer
        await committer.settled()
        if not await self.control.parts.history.flush(committer.durable):
            self.oracle.broken.append(f"H the history can't be written: {self.control.parts.history.fault}")
        self.oracle.broken += unlike(committer.state, self.disk.archive)
        self.oracle.broken += untold(self.disk)
        for agent in self.agents:
            offered = committer.state.nodes[agent.node].inventory
            if offered != agent.registration().inventory:
                self.oracle.broken.append(f"O9 {agent.node} offers {len(offered.gpus)} GPUs in boot {offered.boot_id}")
        self.oracle.ended(committer.state)
        self.oracle.replayed(committer.state, self.disk)
        self.oracle.verdict()

    async def close(self) -> None:
        for task in (*self._clients, *self._errands):
            task.cancel()
        for agent in self.agents:
            await agent.kill()
            agent.machine.reboot()
        await self.control.kill()
        await self.network.close()
