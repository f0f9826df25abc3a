"""The cast of one run with a single control plane: it can be killed and started, its disk stays."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import JobId, Principal
from stoker.brain.domain.job import JobSpec
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Command, Submit
from stoker.brain.state.events.job import JobSubmitted
from stoker.brain.state.events.union import Event
from stoker.control.committer import Committer
from tests.rig.assembly import SETTINGS, TAKING_POLICY, ControlProcess
from tests.rig.cast import Cast
from tests.rig.recorded import history_faults, untold
from tests.rig.sim_log import SimDisk
from tests.rig.sim_network import CONTROL
from tests.rig.sim_ports import SimClock

if TYPE_CHECKING:
    from tests.rig.taking import TakingPeople

PEACE_S: Final = 3_600.0
"""Of virtual time, in which everything must have ended once the faults have."""
LOOK_BACK: Final = (1_000_000, 1_000_000, 1_000_000, 40)
"""Records kept behind the older snapshot: mostly all, so that the whole log can be replayed at the end."""


class Cluster(Cast):
    """A control plane on a disk, and its nodes."""

    def __init__(self, seed: int, nodes: int, addresses: Sequence[str] = (CONTROL,)) -> None:
        super().__init__(seed, nodes, addresses=addresses)
        self.disk = SimDisk()
        self.look_back_max = self.dice.choice(LOOK_BACK)
        self.wall_offset_s = 0.0
        """How far the wall clock of the control plane's machine is off when its next process starts."""
        self.disk.on_write = self.oracle.written
        self.control = self._new_control()

    def _new_control(self) -> ControlProcess:
        clock = SimClock(self.wall_offset_s)
        made = ControlProcess(self.disk, self.network, clock, self.entropy, self.look_back_max)
        made.settings = SETTINGS if self.taking is None else replace(SETTINGS, policy=TAKING_POLICY)
        return made

    def let_in(self, people: "TakingPeople") -> None:
        """Before it starts."""
        super().let_in(people)
        self.control = self._new_control()

    async def start(self) -> None:
        assert await self.control.start(), "the first control plane didn't start"
        for agent in self.agents:
            agent.start()

    def reach(self) -> Committer | None:
        """The writer of the control plane that answers clients now."""
        return self.control.parts.committer if self.network.control is not None else None

    def ledger(self) -> ClusterState | None:
        committer = self.reach()
        return committer.state if committer is not None else None

    async def answer(self, command: Command) -> tuple[Event, ...] | None:
        committer = self.reach()
        if committer is None:
            return None
        try:
            return await committer.ask(command)
        except StokerError:
            return None

    async def submitted(self, by: Principal, specs: tuple[JobSpec, ...]) -> Sequence[JobId]:
        events = await self.answer(Submit(by=by, specs=specs)) or ()
        return [event.job for event in events if isinstance(event, JobSubmitted)]

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
        self.note_trouble()
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
        self.disk.stall_s = 0.0
        self.calm_nodes()
        until = self.clock.mono() + PEACE_S
        while self.clock.mono() < until and not self.all_over(self.control.parts.committer.state):
            await self.clock.sleep(5.0)
            await meanwhile(self)
            self.look()
        await self.clock.sleep(60.0)
        self.look()

    async def reckon(self) -> None:
        """Is what is left as it must be?"""
        committer = self.control.parts.committer
        await committer.settled()
        if not await self.control.parts.history.flush(committer.durable):
            self.oracle.broken.append(f"H the history can't be written: {self.control.parts.history.fault}")
        self.oracle.broken += history_faults(committer.state, self.disk.archive)
        self.oracle.broken += untold(self.disk)
        for agent in self.agents:
            offered = committer.state.nodes[agent.node].inventory
            if offered != agent.registration().inventory:
                self.oracle.broken.append(f"O9 {agent.node} offers {len(offered.gpus)} GPUs in boot {offered.boot_id}")
        self.oracle.ended(committer.state, self.control.telemetry)
        self.oracle.replayed(committer.state, self.disk)
        self.oracle.verdict()

    async def close(self) -> None:
        await self.close_nodes()
        await self.control.kill()
        await self.network.close()
