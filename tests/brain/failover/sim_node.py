"""One control plane without a body: a machine, a disk, a clock, and what carries its effects out."""

from collections.abc import Callable
from typing import assert_never

from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import Member
from stoker.brain.domain.units import Mono
from stoker.brain.failover import effects, inputs
from stoker.brain.failover.effects import Effect, ReadLeaseRecord, WriteLeaseRecord
from stoker.brain.failover.inputs import ControlRole, Input
from stoker.brain.failover.machine import Machine
from stoker.brain.failover.membership import Membership
from tests.brain.failover.sim_cluster import STORE, SimCluster
from tests.brain.failover.sim_replicas import SimReplicas


class Node:
    """A host: processes come and go on it."""

    def __init__(self, world: SimCluster, name: str) -> None:
        self.world = world
        self.name = name
        # One clock is faster than another by the drift bound at most.
        faster = world.setting.timing.drift + world.setting.wild
        self._rate = 1 + world.random.choice((0, world.random.random(), 1)) * faster
        self._offset = world.random.random() * 1_000
        self.disk = world.new_disk(name)
        self.machine: Machine | None = None
        self.replicas: SimReplicas | None = None
        self.paused = False
        self.fit = True
        self.marker_slow_always_s = world.random.choice((0, 0, world.setting.slow)) * world.unit
        self.marker_slow_s = self.marker_slow_always_s
        self.pauses_with_next_ask = self.stalls_until = 0.0
        """Until then nothing that is written gets to the disk."""
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
        self.replicas, self.pulls, self._ticks_at = None, None, 0.0
        self.machine = Machine(
            Membership(me=self.disk.member, peers=setting.nodes - 1, shared_log=setting.shared_log),
            timing=setting.timing,
            tenure_id=f"{self.disk.member.uid}/{self._lives}",
            http="",
        )
        self.tell_log()
        self.tell(inputs.Tick())

    def crash(self) -> None:
        self.world.tell(f"{self.name} dies")
        self.machine, self.replicas, self.pulls, self.paused, self.stops = None, None, None, False, False
        self._held.clear()
        self._errand += 1

    def pause(self, length: float) -> None:
        if self.machine is not None and not self.paused:
            self.world.tell(f"{self.name} is stopped")
            self.paused, process = True, self._process
            self.world.after(length, lambda: self._go_on(process))

    def _go_on(self, process: int) -> None:
        if self._process != process or not self.paused:
            return
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
        for effect in machine.step(told, self.clock()):
            if self.machine is machine:
                self._carry_out(effect)
        if machine.role is ControlRole.ACTIVE:
            self.world.oracle.on_active()
        if self.machine is machine:
            self._set_timer(machine)

    def tell_log(self) -> None:
        position = Position(self.replicas.acknowledged) if self.replicas else self.disk.position
        self.tell(inputs.LogState(epoch=self._epoch_at_end, position=position, fit=self.fit))

    @property
    def _epoch_at_end(self) -> Epoch:
        log = self.disk.log
        return self.world.oracle.epochs[log[-1]] if log else Epoch(0)

    def _set_timer(self, machine: Machine) -> None:
        due = (machine.next_tick - self._offset) / self._rate + 1e-9
        if due != self._ticks_at and due != float("inf"):
            self._ticks_at = due

            def tick() -> None:
                if self.machine is machine and self._ticks_at == due:
                    self._ticks_at = 0.0
                    self.tell(inputs.Tick())

            self.later(max(0.0, due - self.world.now), tick)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case ReadLeaseRecord() | WriteLeaseRecord():
                self._ask(effect)
            case effects.Ping():
                self._ping()
            case effects.Promise():
                self.pulls = None
                self._promise(effect.epoch, lambda: self.tell(inputs.Promised(effect.epoch)))
            case effects.Follow():
                self._promise(effect.epoch, lambda: self._follow(effect.epoch))
            case effects.Lead():
                self.world.tell(f"{self.name} leads {effect.epoch}{' by force' if effect.forced else ''}")
                self.world.oracle.on_lead(self.disk, effect.epoch, forced=effect.forced)
                self.replicas = SimReplicas(self, effect.epoch)
                self.write()
            case effects.InSyncChanged():
                assert self.replicas is not None, "a set without an active"
                self.replicas.in_sync_changed(effect.in_sync)
            case effects.StepDown():
                self.world.tell(f"{self.name} steps down: {effect.code}")
                self.replicas = None
                if self.stops:
                    self.crash()
                else:
                    self._live_again()
            case _:
                assert_never(effect)

    def _live_again(self) -> None:
        life = self._lives
        self.later(self.world.hop(), lambda: self.begin_life() if self._lives == life else None)

    # --- the marker ---------------------------------------------------------------------------------------------

    def _ask(self, effect: ReadLeaseRecord | WriteLeaseRecord) -> None:
        self._errand += 1
        errand, machine, world = self._errand, self.machine, self.world
        timeout = world.setting.timeout * world.unit

        def answer(told: Input) -> None:
            if self._errand == errand and self.machine is machine:
                self._errand += 1
                self.tell_log()
                self.tell(told)
            elif isinstance(told, inputs.LeaseRecordWritten):
                world.oracle.in_doubt += told.won

        asked_at = self.clock()
        if self.pauses_with_next_ask:
            world.after(0.0, lambda: self.pause(length))
            length, self.pauses_with_next_ask = self.pauses_with_next_ask, 0.0

        def give_up() -> None:
            self.later(timeout, lambda: answer(inputs.LeaseRecordFailed("it took too long")))

        def leave() -> None:
            self._give_back(effect, asked_at, answer)
            give_up()

        # A process that is stopped in between has begun to count its patience before that, or has not.
        if world.random.random() < 0.5:
            give_up()
        self.later(world.random.random() * 1e-3 * world.unit, leave)

    def _give_back(
        self, effect: ReadLeaseRecord | WriteLeaseRecord, asked_at: Mono, answer: Callable[[Input], None]
    ) -> None:
        """The request leaves this host; from here on it happens, whatever becomes of us."""
        world = self.world
        if world.reaches(self.name, STORE):
            world.after(self._hop_to_marker(), lambda: self._arrive(effect, asked_at, answer))

    def _arrive(
        self, effect: ReadLeaseRecord | WriteLeaseRecord, asked_at: Mono, answer: Callable[[Input], None]
    ) -> None:
        store, told = self.world.store, inputs.LeaseRecordFailed("no space left")
        said: Input = told
        if isinstance(effect, ReadLeaseRecord):
            said = inputs.LeaseRecordRead(record=store.marker, asked_at=asked_at)
        elif self.world.reaches(STORE, "writes"):
            said = inputs.LeaseRecordWritten(record=effect.record, won=store.put(effect.record))
        if not self.world.reaches(STORE, self.name):
            self.world.oracle.in_doubt += isinstance(said, inputs.LeaseRecordWritten) and said.won
        else:
            self.later(self._hop_to_marker(), lambda: answer(said))

    def _hop_to_marker(self) -> float:
        """There, or back."""
        return self.world.hop() + self.world.random.random() * self.marker_slow_s

    # --- peers --------------------------------------------------------------------------------------------------

    def _ping(self) -> None:
        for peer in self.world.others(self.name):
            self._ping_one(peer)

    def _ping_one(self, peer: "Node") -> None:
        self.world.send(self.name, peer.name, lambda: self._pong(peer))

    def _pong(self, peer: "Node") -> None:
        def answer() -> None:
            said = peer.status()
            self.world.send(peer.name, self.name, lambda: self.later(0.0, lambda: self.tell(said)))

        peer.run(answer)

    def status(self) -> inputs.PeerState:
        return inputs.PeerState(
            member=self.disk.member,
            role=ControlRole.ACTIVE if self.holds else ControlRole.STANDBY,
            epoch=self._epoch_at_end,
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
        self._written_at = max(self._written_at, self.stalls_until, self.world.now) + self.world.hop()
        self.later(self._written_at - self.world.now, done)

    def _follow(self, epoch: Epoch) -> None:
        self.pulls = epoch

    def resign(self) -> None:
        """The process is told to end."""
        self.world.tell(f"{self.name} is told to end")
        self.stops = True
        self.tell(inputs.Resign())
        if self.machine is not None and self.machine.role is not ControlRole.ACTIVE and not self.paused:
            self.crash()

    def write(self) -> None:
        """The active takes a command."""
        if self.replicas is None or not self.holds or self.paused or self.world.now < self.stalls_until:
            return
        marker = self.world.store.marker
        if self.world.setting.shared_log and (marker is None or marker.epoch != self.replicas.epoch):
            return  # the store refuses: it knows of another epoch
        if self.fit:
            self.disk.log.append(self.world.oracle.record(self.replicas.epoch))
            self.replicas.acknowledge()
        else:
            self.tell_log()

    def ship(self) -> None:
        """Everything to whoever follows our epoch."""
        replicas = self.replicas
        if replicas is None or self.machine is None or self.paused or self.world.setting.shared_log:
            return
        for peer in self.world.others(self.name):
            if peer.pulls == replicas.epoch:
                self._ship_to(peer, replicas, tuple(self.disk.log))
        replicas.pump()

    def _ship_to(self, peer: "Node", replicas: SimReplicas, rows: tuple[int, ...]) -> None:
        self.world.send(self.name, peer.name, lambda: peer.run(lambda: peer.take(self, replicas, rows)))

    def take(self, leader: "Node", replicas: SimReplicas, rows: tuple[int, ...]) -> None:
        """Rows have come. What we have beyond them from another epoch is cut, and we begin anew."""
        log = self.disk.log
        if self.pulls != replicas.epoch or self.disk.promised > replicas.epoch or not self.fit:
            return
        if self.world.now < self.stalls_until:
            return
        if tuple(log[: len(rows)]) == rows and (len(log) == len(rows) or self._epoch_at_end == replicas.epoch):
            end = len(log)
        else:
            cut = tuple(log) != rows[: len(log)]
            self.disk.log, end = [*rows], len(rows)
            if cut:
                self.world.tell(f"{self.name} cuts its log")
                self.begin_life()
        member: Member = self.disk.member
        self.world.send(self.name, leader.name, lambda: leader.run(lambda: self._have(leader, replicas, member, end)))

    def _have(self, leader: "Node", replicas: SimReplicas, member: Member, end: int) -> None:
        if leader.replicas is replicas:
            replicas.has(member, end)
