"""One control plane without a body: a machine, a disk, a clock, and what carries its deeds out."""

from collections.abc import Callable
from typing import assert_never

from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.marker import Member
from stoker.brain.domain.units import Mono
from stoker.brain.failover import deeds, inputs
from stoker.brain.failover.deeds import Deed, LookAtMarker, PutMarker
from stoker.brain.failover.inputs import Input, Role
from stoker.brain.failover.machine import Machine
from tests.brain.failover.sim_copies import SimCopies
from tests.brain.failover.sim_world import STORE, Disk, World


class Node:
    """A host: processes come and go on it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        # Two clocks differ by the drift bound at most, one to the other.
        self._rate = 1 + world.random.random() * world.setting.timing.drift
        self._offset = world.random.random() * 1_000
        self.disk = world.new_disk(name)
        self.machine: Machine | None = None
        self.copies: SimCopies | None = None
        self.paused = False
        self.fit = True
        self.pulls: Epoch | None = None
        """The epoch whose holder it follows."""
        self._lives = 0
        self._process = 0
        self._errand = 0
        self._held: list[Callable[[], None]] = []
        self.stops = False
        """Is the process to end with the life that it leads?"""
        self._ticks_at = self._written_at = 0.0

    def clock(self) -> Mono:
        return Mono(self._offset + self.world.now * self._rate)

    @property
    def holds(self) -> bool:
        return self.machine is not None and self.machine.holds(self.clock())

    # --- a process ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.machine is None:
            self._process += 1
            self.begin_life()

    def begin_life(self) -> None:
        setting = self.world.setting
        self._lives += 1
        self._errand += 1
        self.copies, self.pulls, self._ticks_at = None, None, 0.0
        self.machine = Machine(
            self.disk.member,
            timing=setting.timing,
            life=f"{self.disk.member.uid}/{self._lives}",
            http="",
            peers=setting.nodes - 1,
            shared_log=setting.shared_log,
        )
        self.tell_log()
        self.tell(inputs.Tick())

    def crash(self) -> None:
        self.world.tell(f"{self.name} dies")
        self.machine, self.copies, self.pulls, self.paused, self.stops = None, None, None, False, False
        self._held.clear()
        self._errand += 1

    def pause(self) -> None:
        self.world.tell(f"{self.name} is stopped")
        self.paused = True

    def go_on(self) -> None:
        self.world.tell(f"{self.name} goes on")
        self.paused = False
        held, self._held = self._held, []
        for do in held:
            do()

    def run(self, do: Callable[[], None]) -> None:
        """Something that this process does now, or once it goes on."""
        process = self._process

        def unless_dead() -> None:
            if self.machine is not None and self._process == process:
                do()

        if self.paused:
            self._held.append(unless_dead)
        else:
            unless_dead()

    def later(self, delay: float, do: Callable[[], None]) -> None:
        process = self._process

        def arrive() -> None:
            if self._process == process and self.machine is not None:
                self.run(do)

        self.world.after(delay, arrive)

    # --- its machine --------------------------------------------------------------------------------------------

    def tell(self, told: Input) -> None:
        machine = self.machine
        if machine is None:
            return
        if self.paused:
            self.run(lambda: self.tell(told))
            return
        for deed in machine.step(told, self.clock()):
            if self.machine is machine:
                self._carry_out(deed)
        if machine.role is Role.ACTIVE:
            self.world.oracle.on_active()
        if self.machine is machine:
            self._set_timer(machine)

    def tell_log(self) -> None:
        log, oracle = self.disk.log, self.world.oracle
        epoch = Epoch(oracle.epochs[log[-1]]) if log else Epoch(0)
        position = self.copies.acknowledged if self.copies else len(log)
        self.tell(inputs.LogStands(epoch=epoch, position=inputs.Position(position), fit=self.fit))

    def _set_timer(self, machine: Machine) -> None:
        due = (machine.next_tick - self._offset) / self._rate + 1e-9
        if due != self._ticks_at and due != float("inf"):
            self._ticks_at = due

            def tick() -> None:
                if self.machine is machine and self._ticks_at == due:
                    self._ticks_at = 0.0
                    self.tell(inputs.Tick())

            self.later(max(0.0, due - self.world.now), tick)

    def _carry_out(self, deed: Deed) -> None:
        match deed:
            case LookAtMarker() | PutMarker():
                self._ask(deed)
            case deeds.Ping():
                self._ping()
            case deeds.Promise():
                self.pulls = None
                self._promise(deed.epoch, lambda: self.tell(inputs.Promised(deed.epoch)))
            case deeds.Follow():
                self._promise(deed.epoch, lambda: self._follow(deed.epoch))
            case deeds.Lead():
                self.world.tell(f"{self.name} leads {deed.epoch}{' by force' if deed.forced else ''}")
                self.world.oracle.on_lead(self.disk, deed.epoch, forced=deed.forced)
                self.copies = SimCopies(self, deed.epoch)
                self.write()
            case deeds.SetChanged():
                assert self.copies is not None, "a set without an active"
                self.copies.set_changed(deed.in_sync)
            case deeds.StepDown():
                self.world.tell(f"{self.name} steps down: {deed.code}")
                self.copies = None
                if self.stops:
                    self.crash()
                else:
                    self._live_again()
            case _:
                assert_never(deed)

    def _live_again(self) -> None:
        life = self._lives
        self.later(self.world.hop(), lambda: self.begin_life() if self._lives == life else None)

    # --- the marker ---------------------------------------------------------------------------------------------

    def _ask(self, deed: LookAtMarker | PutMarker) -> None:
        self._errand += 1
        errand, machine, world = self._errand, self.machine, self.world
        timeout = world.setting.timeout * world.unit

        def answer(told: Input) -> None:
            if self._errand == errand and self.machine is machine:
                self._errand += 1
                self.tell_log()
                self.tell(told)

        self.later(world.random.random() * 1e-3 * world.unit, lambda: self._leave(deed, answer))
        self.later(timeout, lambda: answer(inputs.MarkerLost("it took too long")))

    def _leave(self, deed: LookAtMarker | PutMarker, answer: Callable[[Input], None]) -> None:
        """The request leaves this host; from here on it happens, whatever becomes of us."""
        world, asked_at = self.world, self.clock()
        if world.reaches(self.name, STORE):
            world.after(world.store_delay(), lambda: self._arrive(deed, asked_at, answer))

    def _arrive(self, deed: LookAtMarker | PutMarker, asked_at: Mono, answer: Callable[[Input], None]) -> None:
        store, told = self.world.store, inputs.MarkerLost("no space left")
        said: Input = told
        if isinstance(deed, LookAtMarker):
            said = inputs.MarkerSeen(marker=store.marker, asked_at=asked_at)
        elif self.world.reaches(STORE, "writes"):
            said = inputs.MarkerPut(marker=deed.marker, won=store.put(deed.marker))
        if self.world.reaches(STORE, self.name):
            self.later(self.world.hop(), lambda: answer(said))

    # --- peers --------------------------------------------------------------------------------------------------

    def _ping(self) -> None:
        for peer in self.world.others(self.name):
            self.world.send(self.name, peer.name, lambda peer=peer: self._pong(peer))

    def _pong(self, peer: "Node") -> None:
        def answer() -> None:
            said = peer.status()
            self.world.send(peer.name, self.name, lambda: self.later(0.0, lambda: self.tell(said)))

        peer.run(answer)

    def status(self) -> inputs.PeerSaid:
        log = self.disk.log
        return inputs.PeerSaid(
            member=self.disk.member,
            role=Role.ACTIVE if self.holds else Role.STANDBY,
            epoch=Epoch(self.world.oracle.epochs[log[-1]]) if log else Epoch(0),
            position=self.disk.position,
        )

    # --- the log ------------------------------------------------------------------------------------------------

    def _promise(self, epoch: Epoch, then: Callable[[], None]) -> None:
        machine = self.machine

        def done() -> None:
            if self.machine is not machine:
                return
            if self.fit:
                self.disk.promised = epoch
                self.tell_log()
                then()
            else:
                self.tell_log()

        # One after the other, as a log does.
        self._written_at = max(self._written_at, self.world.now + self.world.hop())
        self.later(self._written_at - self.world.now, done)

    def _follow(self, epoch: Epoch) -> None:
        self.pulls = epoch

    def resign(self) -> None:
        """The process is told to end."""
        self.world.tell(f"{self.name} is told to end")
        self.stops = True
        self.tell(inputs.Resign())
        if self.machine is not None and self.machine.role is not Role.ACTIVE and not self.paused:
            self.crash()

    def write(self) -> None:
        """The active takes a command."""
        if self.copies is None or not self.holds or self.paused:
            return
        marker = self.world.store.marker
        if self.world.setting.shared_log and (marker is None or marker.epoch != self.copies.epoch):
            return  # the store refuses: it knows of another epoch
        if self.fit:
            self.disk.log.append(self.world.oracle.record(self.copies.epoch))
            self.copies.acknowledge()
        else:
            self.tell_log()

    def ship(self) -> None:
        """Everything to whoever follows our epoch."""
        copies = self.copies
        if copies is None or self.machine is None or self.paused or self.world.setting.shared_log:
            return
        log, end = self.disk.log, len(self.disk.log)
        for peer in self.world.others(self.name):
            if peer.pulls == copies.epoch:
                rows = log[:end]
                self.world.send(self.name, peer.name, lambda peer=peer: peer.run(lambda: peer.take(self, copies, rows)))
        copies.pump()

    def take(self, leader: "Node", copies: SimCopies, rows: list[int]) -> None:
        """Rows have come. What we have beyond them from another epoch is cut, and we begin anew."""
        log = self.disk.log
        if self.pulls != copies.epoch or self.disk.promised > copies.epoch or not self.fit:
            return
        if log[: len(rows)] == rows and (len(log) == len(rows) or self.world.oracle.epochs[log[-1]] == copies.epoch):
            end = len(log)
        else:
            cut = rows[: len(log)] != log
            self.disk.log, end = rows, len(rows)
            if cut:
                self.world.tell(f"{self.name} cuts its log")
                self.begin_life()
        member: Member = self.disk.member
        self.world.send(self.name, leader.name, lambda: leader.run(lambda: self._have(leader, copies, member, end)))

    def _have(self, leader: "Node", copies: SimCopies, member: Member, end: int) -> None:
        if leader.copies is copies:
            copies.has(member, end)
