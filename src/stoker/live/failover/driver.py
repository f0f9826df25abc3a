"""Driver of the failover machine: feeds it with what happens, and carries out the effects that it asks for.

One `Driver` is one tenure of a control plane: recovered from its log it is a standby first, perhaps active later, and
when it must step down it ends with `TenureEnded`: what was in its memory then is not trusted, but read from the log
anew.

Rules: D1  every read and every write of the lease record is answered, within the lease's own bound
       D2  a standby stops following before it promises, and what its log holds is all in its state before it leads
       D3  nothing is carried out for a machine that has stepped down
       D4  one that stops on purpose first acknowledges nothing more, lets others get all of it, and then gives the
           lease back
       D5  a log that can't be written makes a standby that is unfit, and serves reads; it is tried again, and nobody
           waits for that: a disk may hang
       D6  a task that breaks for a reason that nobody foresaw ends the tenure: the machine would wait for its answer,
           or a standby would follow nobody, for ever
       D7  an active one whose disk hangs gives the lease to the members in sync, if there are any
       N1  of one name at most one task is of interest: a newer one takes its place
       N2  a task that breaks for a reason that nobody foresaw is told of: another may wait for it for ever
       N3  a task is cancelled once: what it then sees to its end (a write that is under way) isn't cut off by another
           end that is asked of it, nor by the end of the task that waits for it
       W1  a warning of what is wrong is said once, and again only after it was otherwise
       W2  where the words change each time (a number in them does), it is said COMPLAINTS_MAX times at most
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Final, assert_never

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import CONTROL, Epoch, Principal
from stoker.brain.domain.lease_record import Member
from stoker.brain.failover import effects, inputs
from stoker.brain.failover.effects import Effect
from stoker.brain.failover.inputs import ControlRole, Input, PeerState
from stoker.brain.failover.machine import Machine
from stoker.brain.failover.membership import config_drift
from stoker.brain.failover.takeover_eligibility import name_taken
from stoker.control.control_plane import ControlPlane, active, following
from stoker.control.control_ports import ControlPorts, NotActive, Replicas
from stoker.control.failover_control import PairView, not_promoted, view_of
from stoker.control.supervisor import Duties, DutyEnded, first_of
from stoker.live.failover.backend import Backend
from stoker.live.failover.follower import LogReplaced
from stoker.live.failover.links import PeerDown, PeerLink, PeerRefused
from stoker.ports import Lease, LeaseUnreachable, LogFailed, Telemetry

INBOX_MAX: Final = 10_000
"""Inputs that wait for the machine: more of what peers say is left out, and of the rest there are few at a time."""
HUNG_LEASES: Final = 4
"""D7: an append that takes as long as so many leases isn't waited for. A disk that only stalls comes back before."""
FOLLOWED_S: Final = 60.0
"""A stream that breaks after it was there for so long is told of anew."""
COMPLAINTS_MAX: Final = 5
_ONCE: Final = ("marker", "promise", "follow")
"""Tasks that nobody begins again; a ping is followed by the next."""


class TenureEnded(Exception):
    """This tenure is over; begin another one from what is on disk. The message says why."""

    def __init__(self, why: str, *, fit: bool = True) -> None:
        super().__init__(why)
        self.fit = fit


class SteppedDown(Exception):
    """The machine says that we are no longer active."""


class Complaints:
    """Warnings in the log of what is wrong, by what they are about: said once and not over and over (W1, W2)."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._said: dict[str, list[object]] = {}

    def warn(self, name: str, about: str, **fields: object) -> None:
        said = self._said.setdefault(about, [])
        if (name, fields) not in said and len(said) < COMPLAINTS_MAX:
            said.append((name, fields))
            self._telemetry.warn(name, **fields)

    def over(self, *about: str) -> None:
        """Note that nothing is wrong with these any more: the next warning about them is said."""
        for each in about:
            self._said.pop(each, None)


class NamedTasks:
    """Tasks of one tenure, by name. `broke` is told the name of one that raised, and what."""

    def __init__(self, broke: Callable[[str, BaseException], None]) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._broke = broke

    def __contains__(self, name: str) -> bool:
        return name in self._tasks

    def begin(self, name: str, work: Coroutine[None, None, None]) -> None:
        earlier = self._tasks.get(name)
        if earlier is not None:
            earlier.cancel()
        task = self._tasks[name] = asyncio.create_task(work, name=name)
        task.add_done_callback(lambda done: self._done(name, done))

    async def stop(self, *names: str) -> None:
        """Cancel the tasks of these names; return when none is under way any more."""
        await _ended([self._tasks[name] for name in names if name in self._tasks])

    async def end(self) -> None:
        await _ended(list(self._tasks.values()))

    def _done(self, name: str, task: "asyncio.Task[None]") -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            self._broke(name, fault)


class Driver:
    """One tenure among several control planes: its `FailoverControl`."""

    def __init__(
        self,
        machine: Machine,
        lease: Lease,
        backend: Backend,
        peers: Sequence[PeerLink],
        ports: ControlPorts,
        *,
        fit: bool = True,
    ) -> None:
        """`fit`: whether the log could be written when the last tenure ended."""
        self.machine = machine
        self.secret_trouble: Callable[[], str] = str
        self._lease = lease
        self._backend = backend
        self._peers = tuple(peers)
        self._clock = ports.clock
        self._telemetry = ports.telemetry
        self._fit = fit
        self._links: dict[Member, PeerLink] = {}
        self._inbox: asyncio.Queue[Input] = asyncio.Queue()
        self._tasks = NamedTasks(self._broke)
        self._control: ControlPlane | None = None
        self._led = asyncio.Event()
        self._lead: effects.Lead | None = None
        self._promoted_by = CONTROL
        self._ended: effects.StepDown | None = None
        self._over = asyncio.Event()
        self._complaints = Complaints(ports.telemetry)

    # --- FailoverControl ----------------------------------------------------------------------------------------

    @property
    def replicas(self) -> Replicas:
        return self._backend.replicas

    @property
    def follows(self) -> bool:
        return not self.machine.holds(self._clock.mono())

    def view(self) -> PairView:
        return view_of(
            self.machine,
            self._clock.mono(),
            self._parts.committer.durable,
            lag_ms=round(self._backend.lag_s() * 1_000) if self.follows else 0,
            owns_log=self._backend.owns_log,
            secret_trouble=self.secret_trouble(),
        )

    def pinged(self, said: PeerState) -> PeerState:
        """Take the state of a peer, and answer with ours."""
        self._tell(said)
        return self._own_state()

    def _own_state(self) -> PeerState:
        state = self._parts.committer.state
        role = ControlRole.ACTIVE if self.machine.holds(self._clock.mono()) else ControlRole.STANDBY
        return PeerState(member=self.machine.me, role=role, epoch=state.epoch, position=self._parts.committer.durable)

    async def promote(self, by: Principal) -> None:
        if not self.follows:
            return
        self._promoted_by = by
        view = self.view()
        self._tell(inputs.ForcePromotion())
        try:
            async with asyncio.timeout(3 * self.machine.timing.expiry_s):
                await self._led.wait()
                while self._parts.committer.following is not None:
                    await self._clock.sleep(self.machine.timing.look_s)
        except TimeoutError as fault:
            raise StokerError(not_promoted(self.view(), self.machine.why or view.why)) from fault

    # --- the tenure ---------------------------------------------------------------------------------------------

    async def live(self, control: ControlPlane, stop: asyncio.Event) -> None:
        """Be a standby, then perhaps active, until `stop`. Raises: TenureEnded; DutyEnded when a part of it died."""
        self._control = control
        self._backend.begin(control, self._tell)
        try:
            async with Duties() as duties:
                duties.begin("failover", self._run())
                async with following(control, snapshots=self._backend.owns_log):
                    await first_of(duties.until(stop), self._led.wait())
                if self._lead is not None and not stop.is_set():
                    await self._act(duties, stop)
        except DutyEnded as fault:
            raise self._end_tenure(fault) from fault
        except (NotActive, LogReplaced, StokerError, LogFailed) as fault:
            raise TenureEnded(str(fault), fit=not isinstance(fault, LogFailed)) from fault
        finally:
            await self._tasks.end()

    async def _act(self, duties: Duties, stop: asyncio.Event) -> None:
        """Be active until `stop`, or until something ends it."""
        control, lead = self._parts, self._lead
        assert lead is not None, "nobody leads without a lease"
        await self._backend.catch_up()  # D2
        duties.begin("replication", self._backend.lead(lead.epoch))
        await asyncio.sleep(0)
        try:
            by = self._promoted_by if lead.forced else CONTROL
            async with active(control, lead.epoch, by=by, forced=lead.forced) as working:
                await first_of(duties.until(stop), working.until(stop))
        except DutyEnded as fault:
            if isinstance(fault.__cause__, LogFailed):
                self._tell(inputs.LogState(epoch=lead.epoch, position=control.committer.durable, fit=False))
                await self._resigned()
            raise
        await self._backend.flush()
        self._tell_log()
        self._tell(inputs.Resign())
        await self._resigned()

    async def _resigned(self) -> None:
        """Wait until the lease is given back (D4), so that no follower waits for its end; but not for ever."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.machine.timing.lease_s):
                await self._over.wait()

    def _end_tenure(self, fault: DutyEnded) -> Exception:
        cause = fault.__cause__
        fit = not isinstance(cause, LogFailed)
        if self._ended is not None:
            return TenureEnded(self._ended.why, fit=self._fit and fit)
        return TenureEnded(str(cause), fit=fit) if isinstance(cause, NotActive | LogReplaced | LogFailed) else fault

    @property
    def _parts(self) -> ControlPlane:
        assert self._control is not None, "this tenure hasn't begun"
        return self._control

    # --- the machine --------------------------------------------------------------------------------------------

    def _tell(self, told: Input) -> None:
        if self._ended is None and not (isinstance(told, PeerState) and self._inbox.qsize() >= INBOX_MAX):
            self._inbox.put_nowait(told)

    async def _run(self) -> None:
        """Feed the machine until it steps down. Raises: SteppedDown."""
        self._tell_log()
        self._tell(inputs.Tick())
        self._start_following()
        while self._ended is None:
            told = await self._next()
            for effect in self.machine.step(told, self._clock.mono()):
                await self._carry_out(effect)
        self._over.set()
        self._telemetry.event("role_changed", role=ControlRole.STANDBY, code=self._ended.code, why=self._ended.why)
        raise SteppedDown(self._ended.why)

    async def _next(self) -> Input:
        wait_s = self.machine.next_tick - self._clock.mono()
        if self._inbox.empty() and wait_s <= 0:
            return inputs.Tick()
        try:
            async with asyncio.timeout(max(0.0, wait_s)):
                return await self._inbox.get()
        except TimeoutError:
            return inputs.Tick()

    def _tell_log(self) -> None:
        committer = self._parts.committer
        # A lease record that was lost may have moved a shared log further than any record says.
        epoch = committer.state.epoch if self._backend.owns_log else max(committer.state.epoch, committer.floor)
        self._tell(inputs.LogState(epoch=epoch, position=committer.durable, fit=self._fit))

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case effects.ReadLeaseRecord():
                self._tasks.begin("marker", self._look())
            case effects.WriteLeaseRecord():
                self._tasks.begin("marker", self._put(effect))
            case effects.Ping():
                for link in self._peers:
                    if f"ping {link.address}" not in self._tasks:
                        self._tasks.begin(f"ping {link.address}", self._ping(link))
            case effects.Promise():
                await self._tasks.stop("follow", "promise")  # D2: nor may one that is being withdrawn begin it anew
                self._tasks.begin(
                    "promise", self._promise(effect.epoch, lambda: self._tell(inputs.Promised(effect.epoch)))
                )
            case effects.Follow():
                self._tasks.begin("promise", self._promise(effect.epoch, self._start_following))
            case effects.Lead():
                self._lead = effect
                self._led.set()
                self._show_set(1)
            case effects.InSyncChanged():
                self._backend.in_sync_changed(effect.in_sync)
                self._show_set(len(effect.in_sync))
                self._telemetry.event("in_sync_changed", members=[member.name for member in effect.in_sync])
            case effects.StepDown():
                self._ended = effect
            case _:
                assert_never(effect)

    def _show_set(self, members: int) -> None:
        """Where all reach one log, no member keeps a copy that could be out of sync."""
        if self._backend.owns_log:
            self._telemetry.gauge("in_sync_members", members)

    # --- tasks --------------------------------------------------------------------------------------------------

    def _broke(self, name: str, fault: BaseException) -> None:
        self._telemetry.warn("failover_task_broke", task=name, error=repr(fault))
        if name in _ONCE:  # D6
            self._start_over("start_over", fault)

    async def _look(self) -> None:
        asked_at = self._clock.mono()
        try:
            record = await self._lease.read()
        except (LeaseUnreachable, StokerError) as fault:
            self._lost("look", fault)
            return
        self._complaints.over("look")
        if not self._fit and "log" not in self._tasks:
            self._tasks.begin("log", self._try_log())
        known, taken = self.machine.lease_record, name_taken(self.machine.me, record)
        if taken and known and record and known.version < record.version:  # it lives: what we once were renews nothing
            self._complaints.warn("name_taken", "name", error=taken)
        if differ := config_drift(self.machine.membership, self.machine.timing, record):
            self._complaints.warn("settings_differ", "settings", error=differ)
        self._tell_log()
        self._tell(inputs.LeaseRecordRead(record=record, asked_at=asked_at))

    async def _put(self, effect: effects.WriteLeaseRecord) -> None:
        try:
            won = await self._lease.put(effect.record)
        except (LeaseUnreachable, StokerError) as fault:
            self._lost("put", fault)
            return
        self._complaints.over("look", "put")
        if self._disk_hangs():
            self._unfit(LogFailed("the disk takes nothing any more, and says nothing"))
        else:
            self._tell_log()
        self._tell(inputs.LeaseRecordWritten(record=effect.record, won=won))

    def _lost(self, what: str, fault: LeaseUnreachable | StokerError) -> None:
        why = f"{fault.refusal.message}; {fault.refusal.hint}" if isinstance(fault, StokerError) else str(fault)
        self._complaints.warn("marker_unreachable", what, error=why)
        self._tell(inputs.LeaseRecordFailed(error=why))

    async def _ping(self, link: PeerLink) -> None:
        try:
            said = await link.ping(self._own_state())
        except PeerDown as fault:
            self._complaints.warn("peer_unreachable", link.address, error=str(fault))
        except PeerRefused as fault:
            self._complaints.warn("peer_refused", link.address, error=str(fault))
        else:
            self._complaints.over(link.address)
            self._links = {member: each for member, each in self._links.items() if each is not link}
            self._links[said.member] = link
            self._tell(said)

    async def _promise(self, epoch: Epoch, then: Callable[[], None]) -> None:
        try:
            await self._backend.promise(epoch)
        except LogFailed as fault:
            self._unfit(fault)
        else:
            then()

    async def _try_log(self) -> None:
        """Find out whether the log can be written again (D5)."""
        try:
            await self._backend.check_writable()
        except LogFailed:
            return
        self._fit = True
        self._complaints.over("log")
        self._telemetry.event("log_fit_again")
        self._tell_log()

    def _disk_hangs(self) -> bool:
        """Return whether the disk hangs, and a member in sync could take over (D7)."""
        hung = self._parts.committer.appending_s > HUNG_LEASES * self.machine.timing.lease_s
        return hung and len(self.machine.in_sync) > 1

    def _unfit(self, fault: LogFailed) -> None:
        self._fit = False
        self._complaints.warn("log_unfit", "log", error=str(fault))
        self._tell_log()

    # --- following ----------------------------------------------------------------------------------------------

    def _start_following(self) -> None:
        if "follow" not in self._tasks:
            self._tasks.begin("follow", self._follow())

    async def _follow(self) -> None:
        """Keep up with the active, for as long as we are a standby."""
        while self.follows:
            record = self.machine.lease_record
            holder = record.holder if record else None
            link = self._links.get(holder) if holder and self._fit else None
            began = self._clock.mono()
            try:
                await self._backend.follow(link)
            except PeerDown as fault:
                if self._clock.mono() - began > FOLLOWED_S:
                    self._complaints.over("follow")
                self._complaints.warn("replication_lost", "follow", error=str(fault))
            except PeerRefused as fault:
                self._complaints.warn("replication_refused", "follow", error=str(fault))
            except LogFailed as fault:
                self._unfit(fault)
                if self._backend.owns_log:  # it takes nothing more before it is opened anew
                    self._start_over("log_failed", fault)
                    return
            except LogReplaced as fault:
                self._start_over("start_over", fault)
                return
            await self._clock.sleep(self.machine.timing.look_s)

    def _start_over(self, code: str, fault: BaseException) -> None:
        self._tell(inputs.Tick())
        self._ended = self._ended or effects.StepDown(code=code, why=str(fault))


async def _ended(tasks: list["asyncio.Task[None]"]) -> None:
    for task in tasks:
        if not task.cancelling():
            task.cancel()
    if tasks:
        await asyncio.wait(tasks)  # which, unlike gather, cancels nobody when it is cancelled
