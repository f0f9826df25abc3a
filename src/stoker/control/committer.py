"""Single writer of the cluster's state: applies each change, makes it durable, and only then answers and announces it.

A command is admitted against the newest state and applied at once; what gathers while the disk is busy goes to the log
as one transaction; answers, the feed and other listeners wait for that, in log order.

Rules: W1  an answer means that its facts, and all facts it was decided on, are durable; a refusal waits for nothing
       W2  at most one append is in flight; the next batch gathers meanwhile (group commit)
       W3  a failed append, or an event that can't be applied, ends the writer: a command that waits or comes later is
           told `log_failed`, and nothing more is acknowledged. So does the end of our lease: then it is `lease_lost`
       W4  time never runs backwards in the log, and never stands still: while the wall clock is behind it (it was
           set back), `now` goes on from there at half speed until the wall clock has caught up. Pauses then take at
           most twice as long; with a clock that stood still they would take as long as the step
       W5  where there are standbys, an answer also means that all who are in sync have its facts on their disks, and
           that our lease held at that moment (`Replicas`)
       W6  a follower changes nothing by itself: it applies what another has made durable, and refuses commands
       W7  time limits count the time for which this machine was awake. When the log's time has moved otherwise (the
           wall clock was corrected, the machine has slept, or we took over with another clock), a fact says so before
           the next command is admitted: no job is timed out early by more than twice LEAP_NOTED_MS (what wasn't noted
           when its time began and when it was over), or late by more than LAG_NOTED_MS
Limits: `commands_max` commands may wait for the disk; one more is refused with `overloaded`. One command is never
        split, so a batch may be as large as the largest command.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import UNSET, UnsetType

from stoker.brain import cycle
from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.brain.domain.ids import CONTROL, Epoch, JobId, Position, Principal
from stoker.brain.domain.plan import Plan
from stoker.brain.domain.units import SECOND_MS, Instant, Mono
from stoker.brain.state.admit.dispatch import admit
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact, decode_fact, encode_fact
from stoker.brain.state.commands import (
    BeginEpoch,
    Command,
    CompareInventory,
    MoveClock,
    ReportFinished,
    ReportStarted,
)
from stoker.brain.state.events.job import AttemptStopping, AttemptWarned, JobPlaced, TaskStarted
from stoker.brain.state.events.union import Event
from stoker.control.control_ports import ControlPorts, NoReplicas, NotActive, Replicas
from stoker.control.feed import Entry, Feed
from stoker.ports import EventLog, LogConflict, LogDamaged, LogFailed, Stored

COMMANDS_MAX: Final = 10_000
"""A disk that commits once a second would still drain this in a second; more waiting than that helps nobody."""

LEAP_NOTED_MS: Final = 100
"""A limit may be a second. Less may be a process that had to wait between two readings of clocks."""
LAG_NOTED_MS: Final = 30_000
"""While the log waits for a clock that was set back by an hour, a fact a minute."""

_STARTING: Final = (ReportStarted, ReportFinished, CompareInventory)
"""Commands by which a time limit may begin to run."""

OnApplied = Callable[[ClusterState, Position, Fact], None]
"""Told of each fact right after it was applied, before it is durable. It must only take notes."""

OnDurable = Callable[[Sequence[Entry]], None]
"""Told of each durable batch in order. It must only take notes: it runs inside the writer."""

OnNoFact = Callable[[Command, Instant, Refusal | None], None]
"""Told of each command that left no fact: refused or, with None, one that changed nothing. It must only take notes."""


def job_to_instruct(event: Event) -> JobId | None:
    """Return the job of which some agent may have to be told something because of `event`; None = none."""
    if isinstance(event, JobPlaced | AttemptStopping | AttemptWarned):
        return event.job
    # The other ranks of a gang with a port wait for rank 0, whose agent has tried that port.
    return event.job if isinstance(event, TaskStarted) and event.rank == 0 else None


class LogTooNew(LogDamaged):
    """The log is as it was written, and this version doesn't know what it means."""


def replayed(state: ClusterState, position: Position, record: bytes) -> Entry:
    """Apply a stored record to the state; return it as a fact with its position.

    Raises: LogDamaged, LogTooNew; the state may then be half changed.
    """
    try:
        fact = decode_fact(record)
    except ValueError as fault:  # its checksum was right
        raise LogTooNew(f"record {position} of the log is unknown to this version: {fault}") from fault
    try:
        apply(state, fact, position)
    except (ValueError, AssertionError, LookupError) as fault:
        raise LogDamaged(f"record {position} of the log can't be replayed: {fault!r}") from fault
    return position, fact


class _Batch:
    """Facts applied together and not yet durable, and the callers that wait for them."""

    __slots__ = ("entries", "jobs", "records", "waiting")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.records: list[bytes] = []
        self.waiting: list[asyncio.Future[None]] = []
        self.jobs: dict[JobId, None] = {}
        """Jobs of which an agent may have to hear, once this is durable."""

    def __bool__(self) -> bool:
        return bool(self.records or self.waiting)


class Committer:
    """The writer of one process; `run` must be running for anything to become durable."""

    def __init__(
        self,
        state: ClusterState,
        log: EventLog,
        ports: ControlPorts,
        *,
        recent: Sequence[Entry] = (),
        replicas: Replicas | None = None,
        commands_max: int = COMMANDS_MAX,
    ) -> None:
        """`state` is what the whole log adds up to; `recent` its newest facts, for
        followers of before a restart."""
        self.state = state
        self.durable: Position = state.position
        self.feed = Feed(Position(state.position - len(recent)))
        self.feed.publish(recent)
        self.failed = asyncio.Event()
        self.failure = ""
        self.following: Callable[[], Refusal] | None = None
        """While another is active: gives the refusal of any command (W6)."""
        self._refusal = _log_failed("")
        self._replicas: Replicas = replicas or NoReplicas()
        self._log = log
        self._clock = ports.clock
        self._entropy = ports.entropy
        self._telemetry = ports.telemetry
        self._newest, self._newest_mono = state.last_at, ports.clock.mono()
        self._over_awake_ms = self.now() - self._awake_ms()
        self._commands_max = commands_max
        self._on_applied: list[OnApplied] = []
        self._on_durable: list[OnDurable] = []
        self._on_durable_of_ours: list[OnDurable] = []
        self._on_no_fact: list[OnNoFact] = []
        self._gathering = _Batch()
        self._flying = _Batch()
        self._work = asyncio.Event()
        self._appending_since: Mono | None = None
        self._closing = False

    def on_applied(self, told: OnApplied) -> None:
        self._on_applied.append(told)

    def on_durable(self, told: OnDurable, *, of_ours: bool = False) -> None:
        """Add a listener. `of_ours`: only of what was done here, not of what was followed from another active."""
        (self._on_durable_of_ours if of_ours else self._on_durable).append(told)

    def on_no_fact(self, told: OnNoFact) -> None:
        self._on_no_fact.append(told)

    def replay(self, rows: Sequence[Stored]) -> None:
        """Take over what the active has done, which is on our disk already (W6). Raises: LogDamaged."""
        assert self.following is not None, "only a follower replays"
        entries: list[Entry] = []
        for row in rows:
            entry = replayed(self.state, row.position, row.record)
            for told in self._on_applied:
                told(self.state, *entry)
            entries.append(entry)
        self.durable = self.state.position
        self._over_awake_ms = self.state.last_at - self._awake_ms()  # if we lead next, our clock may differ (W7)
        self._publish(entries, self._on_durable)

    def lead(self) -> None:
        """Take commands from now on: no other is active, and all that its log holds was replayed."""
        self.following = None
        self._newest, self._newest_mono = self.state.last_at, self._clock.mono()

    def now(self) -> Instant:
        """Return the time of the next fact, which is never before that of the newest one (W4)."""
        mono, wall = self._clock.mono(), self._clock.now()
        slowly = max(self._newest + int((mono - self._newest_mono) * SECOND_MS / 2), self.state.last_at)
        if wall >= slowly:
            self._newest, self._newest_mono = wall, mono
            return wall
        return Instant(slowly)

    @property
    def ahead_ms(self) -> int:
        """By how much the log's time is ahead of the wall clock, which it waits for (W4)."""
        return max(0, self.now() - self._clock.now())

    def follow_clock(self, lag_noted_ms: int = LAG_NOTED_MS) -> bool:
        """Return whether a fact had to say that the log's time has moved (W7)."""
        moved_ms = self.now() - self._awake_ms() - self._over_awake_ms
        ours = self.following is None and not self._closing and not self.failed.is_set()
        if not ours or -lag_noted_ms < moved_ms < LEAP_NOTED_MS:
            return False
        self._over_awake_ms += moved_ms
        self._carry_out(MoveClock(by=CONTROL, by_ms=moved_ms))
        return True

    def _awake_ms(self) -> int:
        return int(self._clock.awake() * SECOND_MS)

    @property
    def floor(self) -> Epoch:
        """Epoch below which the log takes no facts: one that began may have got no further than that."""
        return self._log.floor

    @property
    def waiting(self) -> int:
        """Number of commands that wait for the disk."""
        return len(self._gathering.waiting) + len(self._flying.waiting)

    @property
    def appending_s(self) -> float:
        """Seconds for which the log has been at the present append; 0 = it is at none."""
        return 0.0 if self._appending_since is None else self._clock.mono() - self._appending_since

    def is_undurable(self, job: JobId) -> bool:
        """Return whether the state shows of this job what no agent may hear yet (see `job_to_instruct`)."""
        return job in self._gathering.jobs or job in self._flying.jobs

    async def ask(self, command: Command) -> tuple[Event, ...]:
        """Carry a command out, and return its events once they are durable.

        Raises: StokerError with the brain's refusal, or `overloaded`, `log_failed`, `stopping`.
        """
        self.check_room()
        events = self.tell(command)
        await self.settled()
        return events

    def tell(self, command: Command) -> tuple[Event, ...]:
        """Carry a command out, to be durable soon: for reports that nobody waits to hear acknowledged.

        Takes no room among `commands_max`: there are only as many such reports as the cluster has tasks and nodes.
        """
        self._check_open()
        if not isinstance(command, BeginEpoch):  # an epoch's first fact is its beginning
            # A task must not begin in a lag that isn't noted: once noted or made up for it would count as time it had.
            self.follow_clock(LEAP_NOTED_MS if isinstance(command, _STARTING) else LAG_NOTED_MS)
        return self._carry_out(command)

    def _carry_out(self, command: Command) -> tuple[Event, ...]:
        now = self.now()
        answer = admit(self.state, command, now, self._entropy.uid)
        refusal = answer if isinstance(answer, Refusal) else None
        if refusal or not answer:
            for told in self._on_no_fact:
                told(command, now, refusal)
        if isinstance(answer, Refusal):
            raise StokerError(answer)
        self._apply_all(answer, now, command.by)
        return answer

    async def settle(self, plan: Plan, *, decided_at: Position, seed: int) -> int:
        """Carry out what of the plan still stands; return the number of those actions once they are durable."""
        self._check_open()
        now = self.now()
        accepted = 0
        for events in cycle.settle(self.state, plan, decided_at=decided_at, seed=seed):
            self._apply_all(events, now, CONTROL)
            accepted += 1
        await self.settled()
        return accepted

    async def settled(self) -> None:
        """Wait until everything that the state shows now is durable. Raises: StokerError when it can't be."""
        if self.failed.is_set():
            raise self._stopped()
        if self.state.position == self.durable:
            return
        done = asyncio.get_running_loop().create_future()
        self._gathering.waiting.append(done)
        self._work.set()
        await done

    async def run(self) -> None:
        """Append until `close`. Raises: LogFailed or NotActive once the writer has stopped for good (W3)."""
        try:
            while not (self._closing and not self._gathering):
                await self._work.wait()
                self._work.clear()
                while self._gathering and not self.failed.is_set():
                    await self._append()
                if self.failed.is_set():
                    raise NotActive(self.failure) if self._refusal.code == "lease_lost" else LogFailed(self.failure)
        finally:
            if not self._closing:
                self._stop("the writer was ended", self._why_ended())

    def _why_ended(self) -> Refusal | None:
        try:
            self._replicas.check_lease()
        except NotActive as fault:
            return _lease_lost(str(fault))
        return None

    def check_lease(self) -> None:
        """Refuse when we may not speak for the cluster now. Raises: StokerError `lease_lost`."""
        refusal = self._why_ended()
        if refusal is not None:
            raise StokerError(refusal)

    def rebuild_indexes(self) -> None:
        """Build the indexes anew from the records, after an audit found them wrong."""
        self.state.indexes = self.state.rebuilt_indexes()

    def close(self) -> None:
        """Take no more commands. What was taken still becomes durable, then `run` returns."""
        self._closing = True
        self._work.set()

    async def _append(self) -> None:
        batch, self._gathering = self._gathering, _Batch()
        self._flying = batch
        began = self._clock.mono()
        try:
            if batch.records:
                self._replicas.ship(self.state.epoch, self.durable, batch.records)
                self._appending_since = began
                await self._log.append(self.state.epoch, self.durable, batch.records)
                self._appending_since = None
                await self._replicas.wait_for(Position(self.durable + len(batch.records)))
            self._replicas.check_lease()
        except (LogFailed, LogConflict) as fault:
            self._stop(str(fault))
            return
        except NotActive as fault:
            self._stop(str(fault), _lease_lost(str(fault)))
            return
        if self.failed.is_set():
            return  # meanwhile a command was half applied: no agent may hear what the state shows now
        self._flying = _Batch()
        self.durable = Position(self.durable + len(batch.records))
        if batch.records:
            self._telemetry.observe("commit", self._clock.mono() - began)
            self._telemetry.count("events", len(batch.records))
        self._announce(batch)

    def _announce(self, batch: _Batch) -> None:
        for done in batch.waiting:
            if not done.done():
                done.set_result(None)
        self._publish(batch.entries, (*self._on_durable, *self._on_durable_of_ours))

    def _publish(self, entries: Sequence[Entry], whom: Sequence[OnDurable]) -> None:
        if entries:
            self.feed.publish(entries)
            for told in whom:
                told(entries)

    def _apply_all(self, events: Sequence[Event], now: Instant, by: Principal) -> None:
        if not events:
            return
        state, batch = self.state, self._gathering
        applied = 0
        joined: bool | UnsetType = UNSET
        try:
            for event in events:
                fact = Fact(at=now, by=by, event=event, joined=joined)
                joined = True
                position = Position(state.position + 1)
                apply(state, fact, position)
                for told in self._on_applied:
                    told(state, position, fact)
                batch.entries.append((position, fact))
                batch.records.append(encode_fact(fact))
                job = job_to_instruct(event)
                if job is not None:
                    batch.jobs[job] = None
                applied += 1
        finally:
            if applied < len(events):
                # The state may be half changed: what it says now must never reach the log or an agent (W3).
                self._stop(f"{type(events[applied]).__name__} could not be applied")
        self._work.set()

    def _check_open(self) -> None:
        if self.failed.is_set():
            raise self._stopped() if self._refusal.code == "log_failed" else StokerError(_over(self.failure))
        if self.following is not None:
            raise StokerError(self.following())
        if self._closing:
            raise StokerError(
                refuse(
                    "stopping", "this control plane is stopping", "ask again; another one takes over, or it restarts"
                )
            )

    def check_room(self) -> None:
        """Refuse when as many commands wait for the disk as may. Raises: StokerError `overloaded`."""
        if self.waiting >= self._commands_max:
            raise StokerError(
                refuse(
                    "overloaded",
                    f"{self.waiting} commands wait for the disk, as many as may",
                    "try again in a second; if it stays so, the disk of data_dir is slow (see stoker_commit_seconds)",
                    commands_max=self._commands_max,
                )
            )

    def _stop(self, why: str, refusal: Refusal | None = None) -> None:
        if self.failed.is_set():
            return
        self.failure = why
        self._refusal = refusal or _log_failed(why)
        self.failed.set()
        self._work.set()
        self._telemetry.warn("writer_stopped", error=why)
        for batch in (self._flying, self._gathering):
            for done in batch.waiting:
                if not done.done():
                    done.set_exception(self._stopped())
        self._gathering = _Batch()

    def _stopped(self) -> StokerError:
        return StokerError(self._refusal)


def _log_failed(why: str) -> Refusal:
    return refuse(
        "log_failed",
        f"the event log can't be written, so nothing is acknowledged: {why}",
        "see the control plane's log; it stops now and starts again from what is on disk",
    )


def _over(why: str) -> Refusal:
    """The refusal of what comes later: it wasn't begun, so it may be asked again even if it must not happen twice."""
    return refuse("not_active", f"this control plane is no longer active: {why}", "ask the one that is", active="")


def _lease_lost(why: str) -> Refusal:
    return refuse(
        "lease_lost",
        f"this control plane is no longer active, so nothing is acknowledged: {why}",
        "whether this was carried out isn't known here; ask the control plane that is active now",
    )
