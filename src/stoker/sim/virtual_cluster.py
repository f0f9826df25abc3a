"""Cluster in simulated time: the brain's own state, commands, `propose` and `settle`, and nodes that obey.

Rules: V1  whatever changes the state comes in by the commands by which it comes in live, and in a live order: at each
           instant first what nodes report, then what people and operators do, then deadlines, then passes until one
           has nothing more to place
       V2  a pass is made when a fact has come that would wake the live loop, and only then
       V3  a task starts in the instant in which it is placed, runs as long as `Runs` says, and is gone in the instant
           in which it is told to end
       V4  of a node that is silent nothing is heard; it gets no order either. Its tasks run on, and what has ended
           there is reported once it is back. On a node that died they are gone, and it comes back with another boot id
Limits: the 5-second period of the live loop isn't simulated: what nothing but time changes is seen at the next event.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Final

import msgspec

from stoker.brain import cycle
from stoker.brain.domain.errors import Refusal, StokerError
from stoker.brain.domain.ids import CONTROL, JobId, NodeName, Position, Principal, node_principal
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause, Task, TaskEnd
from stoker.brain.domain.node import Inventory
from stoker.brain.domain.report import Registration, Started, TaskFinished, TaskInventory, TaskPhase, TaskStatus
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state import commands
from stoker.brain.state.admit.dispatch import admit
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact
from stoker.brain.state.events.job import AttemptStopping, JobFinished, JobPlaced
from stoker.brain.state.events.union import Event, row_of
from stoker.brain.state.state_view import StateView

REPORTS: Final = 0
"""Place within an instant: what nodes report (V1)."""
ORDERS: Final = 1
"""Place within an instant: what people and operators do (V1)."""


class Run(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """End of an attempt that nothing stops, counted from when its last task has started."""

    duration_ms: int
    cause: EndCause = EndCause.EXITED
    exit_code: int | None = 0
    signal: int = 0
    oom: bool = False


Runs = Callable[[JobId, int], Run | None]
"""How this attempt of this job runs. None = until something stops it."""
OnFinished = Callable[[JobFinished, Instant], None]
"""Told of each job that has ended, whose record is still there."""


class VirtualCluster:
    """One cluster, its clock, and what is to come."""

    def __init__(self, state: ClusterState, now: Instant, seed: int, runs: Runs, on_finished: OnFinished) -> None:
        self.state = state
        self.now = now
        self._seed = seed
        self._runs = runs
        self._on_finished = on_finished
        self._uids = (f"{number:032x}" for number in count(1))
        self._agenda: list[tuple[Instant, int, int, Callable[[], object]]] = []
        self._numbers = count()
        self._wanted = True
        self._stopping: list[AttemptStopping] = []
        self._mute: dict[NodeName, bool] = {}
        """The nodes of which nothing is heard; True = it died."""
        self._unheard: dict[NodeName, list[tuple[TaskKey, Run]]] = {}
        """What has ended on silent nodes."""
        self._broken: set[tuple[JobId, int]] = set()
        """Attempts that won't end by themselves, since a part of them died with its node."""

    def at(self, instant: Instant, action: Callable[[], object], place: int = ORDERS) -> None:
        """Do something then, or now if that is over."""
        heappush(self._agenda, (max(instant, self.now), place, next(self._numbers), action))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Let time pass from event to event until it is over, or nothing is to come."""
        agenda = self._agenda
        while not is_over():
            due = self.state.indexes.next_deadline(self.state.clock_moved_ms)
            coming = agenda[0][0] if agenda else due
            if coming is None:
                return
            self.now = max(self.now, coming if due is None else min(coming, due))
            while agenda and agenda[0][0] == self.now:
                heappop(agenda)[3]()
                self._stop_stopping()
            self._run_deadlines()
            self._decide()

    def give(self, command: commands.Command) -> None:
        """Carry a command out. Raises: StokerError with the refusal."""
        answer = admit(self.state, command, self.now, self._uids.__next__)
        if isinstance(answer, Refusal):
            raise StokerError(answer)
        self.apply(answer, command.by)

    def apply(self, events: Sequence[Event], by: Principal) -> None:
        """Apply facts as they are."""
        state = self.state
        for event in events:
            apply(state, Fact(at=self.now, by=by, event=event), Position(state.position + 1))
            if not self._wanted:
                self._wanted = row_of(event).wakes
            if isinstance(event, AttemptStopping):
                self._stopping.append(event)
            elif isinstance(event, JobFinished):
                self._on_finished(event, self.now)

    # -- nodes -------------------------------------------------------------------------------------------------------

    def join(self, name: NodeName, inventory: Inventory) -> None:
        """Let a node join, or come back: with another boot id what ran there is gone."""
        known = self.state.nodes.get(name)
        rebooted = known is not None and known.inventory.boot_id != inventory.boot_id
        self.register(name, inventory)
        self.say_inventory(name, rebooted=rebooted)

    def register(self, name: NodeName, inventory: Inventory) -> None:
        """Let a node say what it has; it gets work once it has said what it runs."""
        registration = Registration(node=name, inventory=inventory)
        self.give(commands.Register(by=node_principal(name), registration=registration))

    def say_inventory(self, name: NodeName, *, rebooted: bool = False) -> None:
        """Let a node say what runs there, after which it gets new work; what has ended there is reported first."""
        died = self._mute.pop(name, False)
        for key, run in self._unheard.pop(name, ()):
            self._finish(key, name, run)
        self._stop_stopping()
        found = () if rebooted or died else tuple(_running(self.state, name))
        inventory = TaskInventory(boot_id=self.state.nodes[name].inventory.boot_id, tasks=found)
        self.give(commands.CompareInventory(by=node_principal(name), node=name, inventory=inventory))
        for key in tuple(_open_on(self.state, name)):
            attempt = self.state.jobs[key.job].attempts[-1]
            if attempt.stop is not None:
                self._finish(key, name, _STOPPED)
            elif attempt.tasks[key.rank].started_at == NEVER:
                self._start(key, name)

    def silence(self, name: NodeName, *, dies: bool) -> None:
        """Nothing is heard of a node from now on (V4)."""
        self._mute[name] = dies
        if dies:
            self._broken.update((key.job, key.attempt) for key in _open_on(self.state, name))

    def notice_silence(self, name: NodeName, silent_ms: int) -> None:
        """Take a silent node out of service."""
        self.give(commands.NodeSilent(by=CONTROL, node=name, silent_ms=silent_ms))

    # -- jobs --------------------------------------------------------------------------------------------------------

    def _run_deadlines(self) -> None:
        state = self.state
        while True:
            due = state.indexes.next_deadline(state.clock_moved_ms)
            if due is None or due > self.now:
                return
            before = state.position
            self.give(commands.RunDeadlines(by=CONTROL))
            assert state.position > before, f"something is due at {due}, and nothing is to do"
            self._stop_stopping()

    def _decide(self) -> None:
        """Make passes as the live loop does (V2)."""
        state = self.state
        while self._wanted:
            self._wanted = False
            position, budget = state.position, state.policy.placements_per_pass_max
            plan = cycle.propose(StateView(state), state.policy, self.now, self._seed, budget)
            placed: list[JobPlaced] = []
            for events in cycle.settle(state, plan, decided_at=position, seed=self._seed):
                self.apply(events, CONTROL)
                placed += [event for event in events if isinstance(event, JobPlaced)]
            for event in placed:
                for rank, task in enumerate(event.tasks):
                    self._start(TaskKey(event.job, event.attempt, rank), task.node)
            self._stop_stopping()
            self._wanted = self._wanted or plan.more

    def _start(self, key: TaskKey, node: NodeName) -> None:
        if node in self._mute:
            return
        started = Started(key=key, at=self.now, pid=1)
        self.give(commands.ReportStarted(by=node_principal(node), node=node, started=started))
        if self.state.jobs[key.job].attempts[-1].all_started:
            self._expect_end(key.job)

    def go_on(self, job: JobId) -> None:
        """Go on with the live attempt of a job in a state that this cluster begins from."""
        attempt = self.state.jobs[job].attempts[-1]
        if attempt.stop is not None:
            self._stopping.append(AttemptStopping(job=job, attempt=attempt.number, cause=attempt.stop.cause))
        elif attempt.all_started:
            self._expect_end(job)
        for task in attempt.open_tasks if attempt.stop is None else ():
            if task.started_at == NEVER:
                self._start(TaskKey(job, attempt.number, task.placement.rank), task.placement.node)

    def _expect_end(self, job: JobId) -> None:
        """Let the live attempt of a job end in its time, which counts from when its last task started."""
        attempt = self.state.jobs[job].attempts[-1]
        run = self._runs(job, attempt.number)
        if run is not None:
            number = attempt.number
            ends_at = Instant(attempt.started_at + run.duration_ms)
            self.at(ends_at, lambda: self._end(job, number, run), REPORTS)

    def _end(self, job: JobId, number: int, run: Run) -> None:
        record = self.state.jobs.get(job)
        attempt = record.live_attempt if record else None
        if attempt is None or attempt.number != number or attempt.stop is not None:
            return  # something else has ended it
        if (job, number) in self._broken:
            return
        for task in attempt.open_tasks:
            key, node = TaskKey(job, number, task.placement.rank), task.placement.node
            if node in self._mute:
                self._unheard.setdefault(node, []).append((key, run))
            else:
                self._finish(key, node, run)

    def _finish(self, key: TaskKey, node: NodeName, run: Run) -> None:
        end = TaskEnd(cause=run.cause, at=self.now, exit_code=run.exit_code, signal=run.signal, oom=run.oom)
        finished = TaskFinished(node=node, key=key, end=end)
        self.give(commands.ReportFinished(by=node_principal(node), finished=finished))

    def _stop_stopping(self) -> None:
        """End what was told to end (V3)."""
        while self._stopping:
            told = self._stopping.pop(0)
            job = self.state.jobs.get(told.job)
            attempt = job.live_attempt if job else None
            if attempt is None or attempt.number != told.attempt:
                continue
            for task in attempt.open_tasks:
                node = task.placement.node
                if node not in self._mute:
                    self._finish(TaskKey(told.job, told.attempt, task.placement.rank), node, _STOPPED)


_STOPPED: Final = Run(duration_ms=0, cause=EndCause.STOPPED, exit_code=None)


def _open_on(state: ClusterState, node: NodeName) -> Iterator[TaskKey]:
    for job, attempt, rank in state.indexes.held.get(node, ()):
        yield TaskKey(job, attempt, rank)


def _running(state: ClusterState, node: NodeName) -> Iterator[TaskStatus]:
    for key in _open_on(state, node):
        task: Task = state.jobs[key.job].attempts[-1].tasks[key.rank]
        if task.started_at != NEVER:
            yield TaskStatus(key=key, phase=TaskPhase.RUNNING, gpus=tuple(task.placement.gpus))
