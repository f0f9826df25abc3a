"""The cast of a run with two control planes: each with a disk of its own, or both on one database; and one marker."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import JobId, NodeName, Principal
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.lease_record import LeaseRecord
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Command, CreateToken, Requeue, SignalJob, Submit
from stoker.brain.state.events.job import JobSubmitted
from stoker.brain.state.events.union import Event
from stoker.control.committer import Committer
from tests.rig.assembly import TAKING_POLICY
from tests.rig.cast import Cast
from tests.rig.pair_client import PairClient
from tests.rig.pair_control import DRIFT, Common, PairControl
from tests.rig.pair_oracle import Keyed, PairOracle
from tests.rig.quick_check import QuickCheck
from tests.rig.recorded import history_faults, untold
from tests.rig.sim_disk import SimDisk
from tests.rig.sim_lease import SharedPlace
from tests.rig.sim_network import SimNetwork
from tests.rig.sim_peers import SimPeers

if TYPE_CHECKING:
    from tests.rig.taking import TakingPeople

NAMES: Final = ("a", "b")
PEACE_S: Final = 1_800.0
PASSES_S: Final = 120.0
"""An append may stall for 40 s, and begins after one that has stalled."""
LOOK_BACK: Final = (1_000_000, 1_000_000, 1_000_000, 40)
REBUILD_EVERY: Final = 10
"""Indexes are looked at more often in runs of a single control plane; here it is about other things."""
_ONCE: Final = (Requeue, SignalJob, CreateToken)
"""What would do something else the second time."""


class PairCluster(Cast):
    """Two control planes, and their nodes."""

    def __init__(self, seed: int, nodes: int, *, shared: bool = False, profile: str = "default") -> None:
        super().__init__(seed, nodes, addresses=NAMES, drift=DRIFT, guarded=True)
        self.oracle.check = QuickCheck(rebuild_every=REBUILD_EVERY)
        self.oracle.ailing.passes_s = PASSES_S
        self.place = SharedPlace()
        self.peers = SimPeers(self.network)
        self.database = SimDisk() if shared else None
        common = Common(
            names=NAMES,
            network=self.network,
            peers=self.peers,
            place=self.place,
            entropy=self.entropy,
            database=self.database,
            profile=profile,
        )
        look_back_max = self.dice.choice(LOOK_BACK)
        self.controls = {
            name: PairControl(name, common, 1 + self.dice.uniform(-DRIFT, DRIFT), look_back_max=look_back_max)
            for name in NAMES
        }
        self.client = PairClient(list(self.controls.values()), self.network)
        self.pair = PairOracle(self)
        self.network.on_message = self.pair.instructs
        self.place.on_put = self._marker_was_put
        self._when_replaced: list[tuple[str, Callable[[], None]]] = []

    def let_in(self, people: "TakingPeople") -> None:
        """Before it starts."""
        super().let_in(people)
        for control in self.controls.values():
            control.policy = TAKING_POLICY

    def _marker_was_put(self, marker: LeaseRecord) -> None:
        if self.database is not None:
            self.database.move_epoch(marker.epoch)
        name = marker.holder.name if marker.holder else ""
        due = [then for replaced, then in self._when_replaced if name != replaced]
        self._when_replaced = [waiting for waiting in self._when_replaced if name == waiting[0]]
        for then in due:
            then()

    def when_replaced(self, control: PairControl, then: Callable[[], None]) -> None:
        """Called in the very moment in which the marker names somebody else as its holder."""
        self._when_replaced.append((control.name, then))

    # --- who is who ---------------------------------------------------------------------------------------------

    def whose(self, committer: Committer) -> PairControl | None:
        """The control plane of whose present life this is the writer."""
        for control in self.controls.values():
            if control.life is not None and control.life.control.committer is committer:
                return control
        return None

    def log_of(self, control: PairControl) -> SimDisk:
        return control.disk if self.database is None else self.database

    @property
    def active(self) -> PairControl | None:
        """Whoever holds the lease, and has begun to act."""
        return next((each for each in self.controls.values() if each.holds and each.leads), None)

    @property
    def in_sync(self) -> bool:
        """Are all of them in the set, and running?"""
        marker = self.place.newest
        if self.active is None or marker is None or any(each.life is None for each in self.controls.values()):
            return False
        members = {(each.name, each.disk.uid) for each in self.controls.values()}
        return self.database is not None or {(each.name, each.uid) for each in marker.in_sync} == members

    # --- what people do -----------------------------------------------------------------------------------------

    def ledger(self) -> ClusterState | None:
        active = self.active
        return active.life.control.committer.state if active is not None and active.life is not None else None

    async def answer(self, command: Command) -> tuple[Event, ...] | None:
        heard = await self.client.ask(command, repeatable=not isinstance(command, _ONCE))
        return None if heard is None or isinstance(heard, Refusal) else heard[1]

    async def submitted(self, by: Principal, specs: tuple[JobSpec, ...]) -> Sequence[JobId]:
        key = self.entropy.uid()
        asked = self.pair.keys[key] = Keyed(len(specs))
        keyed = Submit(by=by, specs=tuple(replace(spec, comment=key) for spec in specs), key=key, digest=key)
        heard = await self.client.ask(keyed, repeatable=True)
        if heard is None or isinstance(heard, Refusal):
            return ()
        control, events = heard
        known = control.committer.state.submitted_under(by, key)
        made = [event.job for event in events if isinstance(event, JobSubmitted)]
        asked.jobs = tuple(made or (known.jobs if known is not None else ()))
        return asked.jobs

    # --- the course of a run ------------------------------------------------------------------------------------

    async def start(self) -> None:
        for control in self.controls.values():
            control.start()
        for agent in self.agents:
            agent.start()
        await self.until(lambda: self.in_sync, 60.0, "the pair never came to be in sync")

    async def until(self, holds: Callable[[], bool], within_s: float, else_say: str) -> float:
        """Seconds waited."""
        began = self.clock.mono()
        while not holds():
            assert self.clock.mono() - began < within_s, else_say
            await self.clock.sleep(0.1)
        return self.clock.mono() - began

    async def restart(self, control: PairControl, after_s: float, *, wipe: bool = False) -> None:
        """kill -9, and a new process after a while, perhaps on a new disk."""
        if control.runs:
            self._must_not_have_crashed()
            await control.kill()
        if wipe:
            control.disk = SimDisk()
        await self.clock.sleep(after_s)
        if not control.runs:
            control.start()

    def cut(self, sender: str, receiver: str) -> None:
        """One way only. Connections that run both ways are given up after a while."""
        self.network.cut(sender, receiver)
        for name, other in ((sender, receiver), (receiver, sender)):
            if name in self.controls:
                self.network.give_up_later(name, NodeName(other))
                self.peers.give_up_later(name, other)

    def look(self) -> None:
        """What can be seen between two steps."""
        active = self.active
        if active is not None and active.life is not None:
            control = active.life.control
            if control.committer is self.pair.leader:
                self.oracle.stepped(control.committer.state, control.loop)
        self.note_trouble()
        self._must_not_have_crashed()
        self.oracle.broken += self.network.broken_promises
        self.oracle.verdict()

    def _must_not_have_crashed(self) -> None:
        crashes = [crash for each in self.controls.values() if each.process for crash in each.process.crashes()]
        for agent in self.agents:
            crashes += agent.tasks.crashes()
        self.oracle.broken += [f"a process died by itself: {crash!r} {crash.__cause__!r}" for crash in crashes]

    async def peace(self, meanwhile: Callable[[Cast], Awaitable[None]]) -> None:
        """Faults have ended; everything that can run must run. `meanwhile` is what people still do for that."""
        self._calm_controls()
        self.calm_nodes()
        until, asked = self.clock.mono() + PEACE_S, False
        while self.clock.mono() < until and not (asked and self._settled()):
            for control in self.controls.values():
                if not control.runs:
                    control.start()
            await self.clock.sleep(5.0)
            if self.active is not None:
                await meanwhile(self)
                asked = True
            self.look()
        await self.clock.sleep(60.0)
        self.look()

    def _calm_controls(self) -> None:
        for client in tuple(self._clients):
            client.cancel()
        self._when_replaced.clear()
        place = self.place
        place.cut.clear()
        place.down, place.stall_s, place.lossy, place.late, place.damaged = False, 0.0, 0.0, 0.0, None
        self.client.lossy = 0.0
        self.network.mend_all()
        self.network.stop_at_message = None
        for disk in (*(each.disk for each in self.controls.values()), *((self.database,) if self.database else ())):
            disk.full = disk.sync_fails = disk.tears = False
            disk.stall_s, disk.trap = 0.0, None
            disk.archive.fault = ""
            disk.cut_off.clear()
        for control in self.controls.values():
            control.go_on()

    def _settled(self) -> bool:
        ledger = self.ledger()
        return ledger is not None and self.in_sync and self.all_over(ledger)

    async def reckon(self) -> None:
        """Is what is left as it must be?"""
        active = self.active
        assert active is not None, f"nobody is active at the end: {self.place.newest}"
        assert self.in_sync, f"they aren't in sync at the end: {self.place.newest}"
        assert active.life is not None, "it is active"
        committer = active.life.control.committer
        await committer.settled()
        await self.clock.sleep(1.0)
        state = committer.state
        for control in self.controls.values():
            await self._must_be_recorded(control)
        for agent in self.agents:
            offered = state.nodes[agent.node].inventory
            if offered != replace(agent.registration().inventory, keeps_leases=offered.keeps_leases):
                self.oracle.broken.append(f"O9 {agent.node} offers {len(offered.gpus)} GPUs in boot {offered.boot_id}")
        self.oracle.ended(state, *(control.telemetry for control in self.controls.values()))
        self.pair.ended()
        self.oracle.verdict()

    async def _must_be_recorded(self, control: PairControl) -> None:
        assert control.life is not None, "it runs"
        parts = control.life.control
        if not await parts.history.flush(parts.committer.durable):
            self.oracle.broken.append(f"H the history of {control.name} can't be written: {parts.history.fault}")
        disk = self.database or control.disk
        faults = [*history_faults(parts.committer.state, disk.archive), *untold(disk)]
        self.oracle.broken += [f"{fault} by {control.name}" for fault in faults]
        if self.database is None:
            self.oracle.replayed(parts.committer.state, control.disk)

    async def close(self) -> None:
        await self.close_nodes()
        for control in self.controls.values():
            if control.runs:
                await control.kill()
        await self.place.close()
        await self.network.close()


__all__ = ["NAMES", "PairCluster", "SimNetwork"]
