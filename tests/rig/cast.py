"""Who takes part in a run, whatever the control plane: a network, machines with agents, and who watches them.

Every choice comes from `dice`, so that a seed is a whole history.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from stoker.brain.domain.ids import JobId, NodeName, Principal
from stoker.brain.domain.job import JobSpec
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Command
from stoker.brain.state.events.union import Event
from tests.rig.assembly import AgentProcess
from tests.rig.oracle import Oracle
from tests.rig.sim_machine import Machine
from tests.rig.sim_network import CONTROL, SimNetwork
from tests.rig.sim_ports import SimClock, SimEntropy

if TYPE_CHECKING:
    from tests.rig.taking import TakingPeople

GPUS: Final = 4


class Cast(ABC):
    """Processes can be killed and started; what they touch stays."""

    def __init__(
        self,
        seed: int,
        nodes: int,
        *,
        addresses: Sequence[str] = (CONTROL,),
        drift: float = 0.0,
        guarded: bool = False,
    ) -> None:
        """`drift`: by how much the clock of each machine may run too fast or too slow; `guarded`: do nodes end tasks
        with their leases?"""
        self.dice = random.Random(seed)
        self._addresses = addresses
        self.clock, self.entropy = SimClock(), SimEntropy(seed + 1)
        self.network = SimNetwork(self.clock, self.entropy)
        clocks = [SimClock(rate=1 + self.dice.uniform(-drift, drift) if drift else 1.0) for _ in range(nodes)]
        machines = [Machine(f"n{i}", clock, self.entropy, guarded=guarded) for i, clock in enumerate(clocks, start=1)]
        self.agents = [
            AgentProcess(machine, self.network, GPUS, seed + 7 * i, addresses) for i, machine in enumerate(machines)
        ]
        self.oracle = Oracle(machines)
        self.network.on_instruction = self.oracle.instructed
        self.drained: dict[NodeName, None] = {}
        self.faults = 0
        self.taking: TakingPeople | None = None
        """Who wants to have what others hold; None = nobody does so on purpose."""
        self._clients: set[asyncio.Task[None]] = set()
        self._errands: set[asyncio.Task[None]] = set()

    def let_in(self, people: "TakingPeople") -> None:
        self.taking = people

    def note_trouble(self) -> None:
        """Nodes that can't do now what they are told."""
        for agent in self.agents:
            reached = any(
                self.network.passes(agent.node, to) and self.network.passes(to, agent.node) for to in self._addresses
            )
            if (
                not reached
                or not agent.runs
                or not agent.gate.is_open
                or agent.machine.frozen
                or agent.machine.cannot_work
            ):
                self.oracle.taking.trouble(agent.node)
        if self.network.lossy or self.network.slow_s:
            self.oracle.taking.trouble(None)

    # --- what people do -----------------------------------------------------------------------------------------

    @abstractmethod
    def ledger(self) -> ClusterState | None:
        """What people see. None when nobody answers."""

    @abstractmethod
    async def answer(self, command: Command) -> tuple[Event, ...] | None:
        """None when nobody answers, or the answer is no."""

    @abstractmethod
    async def submitted(self, by: Principal, specs: tuple[JobSpec, ...]) -> Sequence[JobId]:
        """Jobs that were acknowledged; none when nobody answers, or the answer is no."""

    def ask(self, work: Coroutine[Any, Any, None]) -> None:
        """A client's request, in the background: its answer may never come."""
        self._begin(work, self._clients)

    def later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Something that the world does by itself after a while."""
        return self._begin(work, self._errands)

    def _begin(self, work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        among.add(task)
        task.add_done_callback(lambda task: self._ended(task, among))
        return task

    def _ended(self, task: "asyncio.Task[None]", among: set[asyncio.Task[None]]) -> None:
        among.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.oracle.broken.append(f"a client met no refusal but {task.exception()!r}")

    # --- the end ------------------------------------------------------------------------------------------------

    def calm_nodes(self) -> None:
        """Whatever ailed networks and nodes is over."""
        self.network.lossy = self.network.slow_s = 0.0
        self.oracle.ailing.poisoned_until_s = 0.0
        for errand in tuple(self._errands):
            errand.cancel()
        for agent in self.agents:
            self.network.heal(agent.node)
            agent.gate.open()
            agent.machine.resume()
            agent.machine.cure()
            agent.show_gpus()
            agent.machine.ports_taken.clear()
            if not agent.runs:
                agent.start()

    def all_over(self, state: ClusterState) -> bool:
        jobs = state.jobs.values()
        return all(job.is_final for job in jobs) and not any(machine.live() for machine in self.oracle.machines)

    async def close_nodes(self) -> None:
        for task in (*self._clients, *self._errands):
            task.cancel()
        for agent in self.agents:
            await agent.kill()
            agent.machine.reboot()
