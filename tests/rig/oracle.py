"""What really happened, held against what the ledger says.

Safety is judged whenever an event is applied and whenever a process starts; the reasons of those who wait after every
step; what the disk holds after every recovery; liveness and honesty once the faults have ended. A broken promise is
noted, and the run ends with it at the next step: an exception in the middle of the writer would only hide it.

Promises: O1  an acknowledged job is never lost
          O2  each task of each attempt is started at most once, ever
          O3  no GPU serves two living processes, but for sharers whose shares make no more than the whole of it
          O4  no job runs as two attempts at once
          O5  a task has ended, and a job is final, only when none of its processes lives; also one that was settled for
              the silence of its node
          O6  the brain's invariants hold after every event, and time in the log never runs backwards
          O7  who waits is told why, once a pass has looked
          O8  the end in the ledger is the end that happened: cause, exit code, signal
          O9  once faults have ended all jobs end, and nothing is held, stray or out of service
          O10 an instruction leaves only when what it follows from is on disk; where ranks meet at a port, none runs
              before rank 0 has
          O11 the log adds up to the state, byte for byte, from its beginning and from its newest snapshot
          O12 no job starts before what it waits for has happened, or before its time to begin
          O13 once a job or a whole array was told to end, durably, none of it starts unless somebody asks once more
          O14 no task is placed on a node that its job doesn't select
          O15 to O18, and O24, are those of `sharing_oracle.py`
          O19 the audit of the ledger finds nothing: what it would repair doesn't happen
          O20 to O23 are those of `ailing_oracle.py`, O25 to O31 those of `taking_oracle.py`
What ran on a node that a person forgot by force is exempt from O4 and O5 (ADR 3): they were told so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from stoker.brain.domain.array import JobRef
from stoker.brain.domain.dependency import DependencyKind
from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.ids import JobId, Position
from stoker.brain.domain.instruction import Instruction, Signal, Start, TaskKey, Warn
from stoker.brain.domain.job import EndCause, Job, Task
from stoker.brain.domain.label import labels_of, taints_of
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.plan import Plan
from stoker.brain.domain.reason import AWAITING_PASS
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.domain.where import admits
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact, decode_fact, load_snapshot, snapshot_chunks
from stoker.brain.state.events.job import AttemptStopping, DependenciesMet, JobPlaced, TaskEnded
from stoker.brain.state.invariants import violations
from stoker.brain.state.wait_reason import wait_reason
from stoker.control.loop import Loop
from tests.rig.ailing_oracle import POISON_CPUS, AilingOracle
from tests.rig.quick_check import QuickCheck
from tests.rig.sharing_oracle import SharingOracle
from tests.rig.sim_log import SimDisk
from tests.rig.sim_machine import Machine, Process
from tests.rig.sim_ports import Notes
from tests.rig.taking_oracle import TakingOracle

_NEVER_RAN = (EndCause.GONE, EndCause.NEVER_STARTED)
"""Ends that an agent gives for a task of which its runner has no record. No command of the rig's fails to start."""
_GIVEN_UP: Final = {EndCause.NEVER_STARTED, EndCause.STOPPED}
"""What an agent and its runner say of a start that was taken back and stopped: both, that it had no process."""
REBUILD_EVERY: Final = 16
"""Indexes that have drifted stay so until somebody looks; making them anew at each event took two fifths of it, and
at every fourth still a sixth."""


@dataclass(slots=True)
class Oracle:
    machines: list[Machine]
    forgotten: set[str] = field(default_factory=set)
    """Nodes that a person declared gone by force: what runs there is outside what we can promise."""
    liars: set[str] = field(default_factory=set)
    """Nodes whose agents say what they like: what was given to them is at their mercy, nothing else is."""
    acknowledged: dict[JobId, None] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    events: int = 0
    _ledger: ClusterState | None = None
    _last_at: Instant = NEVER
    cancelled: dict[JobId, None] = field(default_factory=dict)
    """Jobs and arrays that were told to end, by an acknowledged order."""
    revived: dict[JobId, None] = field(default_factory=dict)
    """Those of which somebody asked to run something once more."""
    sharing: SharingOracle = field(default_factory=SharingOracle)
    check: QuickCheck = field(default_factory=lambda: QuickCheck(rebuild_every=REBUILD_EVERY))
    _placed: set[tuple[JobId, int]] = field(default_factory=set)
    _stopped: set[tuple[JobId, int]] = field(default_factory=set)
    """Attempts of which the disk says so."""
    _waited: dict[tuple[JobId, int], int] = field(default_factory=dict)
    """(job, attempts so far or members left) -> how many passes had been made when it was first seen waiting."""

    ailing: AilingOracle = field(init=False)
    taking: TakingOracle = field(init=False)

    def __post_init__(self) -> None:
        self.ailing = AilingOracle(self.broken)
        self.taking = TakingOracle(self.broken)
        for machine in self.machines:
            machine.on_start = self.began

    def verdict(self) -> None:
        """One of each kind first."""
        if self.broken:
            firsts = {fault.split(" ", 1)[0]: fault for fault in reversed(self.broken)}
            faults = dict.fromkeys((*reversed(firsts.values()), *self.broken))
            raise AssertionError("\n".join(list(faults)[:10]))

    # --- after every event --------------------------------------------------------------------------------------

    def applied(self, state: ClusterState, fact: Fact) -> None:
        self.events += 1
        self._ledger = state
        self.broken += [f"O6 at event {state.position}: {fault}" for fault in self.check.violations(state)]
        self.broken += self.sharing.applied(state, fact.event, self.check.open_jobs)
        if fact.at < self._last_at:
            self.broken.append(f"O6 event {state.position} is of {fact.at}, after one of {self._last_at}")
        self._last_at = fact.at
        self.ailing.applied(state, fact.event, fact.at)
        self.taking.applied(state, fact)
        if isinstance(fact.event, TaskEnded) and (fact.event.end.proved or fact.event.end.cause is EndCause.SILENT):
            self._must_be_gone(TaskKey(fact.event.job, fact.event.attempt, fact.event.rank), fact.event.end.cause)
        elif isinstance(fact.event, DependenciesMet):
            self.broken += [fault for job in fact.event.jobs for fault in _unmet(state, state.jobs[job])]
        elif isinstance(fact.event, JobPlaced):
            self._must_be_due(state.jobs[fact.event.job], fact.at)
            self._must_be_wanted_there(state, fact.event)
        for machine in self._known_machines():
            for process in machine.live():
                job = state.jobs.get(process.key.job)
                if job is not None and job.is_final:
                    self.broken.append(f"O5 {job.story()} is final, but {process.key} lives on {machine.name}")

    def planned(self, state: ClusterState, plan: Plan, now: Instant) -> None:
        """Of one pass, at the moment at which it decided."""
        waiting = state.indexes.waiting
        if not any(shape.demand.cpus == POISON_CPUS for _, shape, _ in waiting):  # one that is set aside has no turn
            self.broken += self.sharing.planned(state, plan)
        self.ailing.planned(state, plan)
        self.taking.planned(state, plan, now)

    def _must_be_due(self, job: Job, at: Instant) -> None:
        """O12, O13."""
        asked = job.array_of or job.id
        if asked in self.cancelled and asked not in self.revived:
            self.broken.append(f"O13 placed although it was cancelled: {job.story()}")
        if job.blocked or job.spec.begin > at:
            self.broken.append(f"O12 placed at {at} before it might begin: {job.story()}")

    def _must_be_wanted_there(self, state: ClusterState, placed: JobPlaced) -> None:
        """O14."""
        where = state.jobs[placed.job].spec.where
        for task in placed.tasks:
            node = state.nodes[task.node]
            if not admits(where, node.name, labels_of(node), taints_of(node)):
                self.broken.append(f"O14 placed on {node.name}, which it doesn't select: job {placed.job}, {where}")

    def _must_be_gone(self, key: TaskKey, cause: EndCause) -> None:
        for machine in self._known_machines():
            process = machine.processes.get(key)
            if process is not None and process.alive and not machine.frozen:
                self.broken.append(f"O5 {key} ended as {cause}, but lives on {machine.name}")

    def _known_machines(self) -> list[Machine]:
        return [machine for machine in self.machines if machine.name not in self.forgotten]

    # --- what is on disk, and what leaves ---------------------------------------------------------------------------

    def written(self, records: Sequence[bytes]) -> None:
        for record in records:
            event = decode_fact(record).event
            self.taking.written(event)
            if isinstance(event, JobPlaced):
                self._placed.add((event.job, event.attempt))
            elif isinstance(event, AttemptStopping):
                self._stopped.add((event.job, event.attempt))

    def instructed(self, instruction: Instruction) -> None:
        """O10. A stop without a cause is for a stray, which no ledger placed."""
        attempt = (instruction.key.job, instruction.key.attempt)
        if isinstance(instruction, Start | Signal | Warn):
            durable = attempt in self._placed
        else:
            durable = instruction.cause is None or attempt in self._stopped
        if not durable:
            self.broken.append(f"O10 not on disk, and sent: {instruction}")

    # --- whenever a process starts ------------------------------------------------------------------------------

    def began(self, machine: Machine, process: Process) -> None:
        key = process.key
        if machine.started[key] > 1:
            self.broken.append(f"O2 {key} was started {machine.started[key]} times on {machine.name}")
        for uuid in process.gpus:
            holders = [each for each in machine.live() if uuid in each.gpus]
            whole = any(_share_of(machine, each) == WHOLE_GPU for each in holders)
            if len(holders) > 1 and (whole or sum(_share_of(machine, each) for each in holders) > WHOLE_GPU):
                self.broken.append(f"O3 {uuid} serves {[each.key for each in holders]}")
        if machine.name not in self.forgotten:
            self._must_be_alone(machine, key)

    def _must_be_alone(self, machine: Machine, key: TaskKey) -> None:
        for where in self._known_machines():
            for other in where.live():
                if other.key.job == key.job and other.key.attempt != key.attempt:
                    self.broken.append(f"O4 {key} began on {machine.name} while {other.key} lives on {where.name}")
        job = self._ledger.jobs.get(key.job) if self._ledger else None
        if job is not None and job.is_final:
            self.broken.append(f"O5 {key} began on {machine.name}, but {job.story()} is final")
        if job is not None and not job.attempts_before < key.attempt <= job.newest_attempt:
            self.broken.append(f"O10 {key} began on {machine.name}, and no ledger placed it: {job.story()}")
        elif job is not None and job.attempt(key.attempt).master_port:
            leader = TaskKey(key.job, key.attempt, 0)
            if job.attempt(key.attempt).tasks[0].placement.node in self.liars:
                return  # it says that the port was free
            if not any(leader in where.processes for where in self.machines):
                self.broken.append(f"O10 {key} began on {machine.name} before rank 0 had tried the port")

    # --- after a recovery and after a step ----------------------------------------------------------------------

    def killed(self) -> None:
        """What the dead process knew beyond its disk never happened."""
        self._ledger, self._last_at = None, NEVER
        self._waited.clear()
        self.ailing.killed()
        self.taking.killed()

    def recovered(self, state: ClusterState, ahead: Sequence[Fact] = ()) -> None:
        """`ahead`: facts of the one that leads now that aren't in `written` yet."""
        self._ledger = state
        self.ailing.recovered(state)
        self.taking.recovered(state, ahead)
        self.broken += [f"O6 after recovery: {violation}" for violation in violations(state)]
        self.broken += [
            f"O1 job {job} was acknowledged and is lost" for job in self.acknowledged if job not in state.jobs
        ]
        self.broken += self.sharing.kept(state)

    def stepped(self, state: ClusterState, loop: Loop) -> None:
        """O7. A pass under way when a job was first seen may not have seen it; the next one has."""
        self.ailing.stepped(state, loop, self._known_machines())
        self.taking.stepped(state, self.forgotten | self.liars)
        waited = {}
        for ids in (*state.indexes.waiting.values(), *state.indexes.waiting_arrays.values()):
            for job_id in ids.entries:
                job = state.jobs[job_id]
                progress = job.members.waiting if job.members else len(job.attempts)
                array = state.jobs.get(job.array_of or job_id)
                if array is not None and _has_been_full(state, array):
                    continue  # a pass counts once its limit lets it go
                since = self._waited.get((job_id, progress), loop.passes)
                waited[job_id, progress] = since
                if loop.passes >= since + 2 and wait_reason(state, job, loop.planned_reason) == AWAITING_PASS:
                    self.broken.append(
                        f"O7 after {loop.passes - since} passes nobody knows why it waits: {job.story()}"
                    )
        self._waited = waited

    # --- once the faults have ended -----------------------------------------------------------------------------

    def ended(self, state: ClusterState, *controls: Notes) -> None:
        """O1, O6, O8, O9, O19."""
        for notes in controls:
            self.broken += [f"O19 the audit found: {line}" for line in notes.lines if " ledger_violated " in line]
            if notes.counts.get("ledger_violated", 0):
                self.broken.append(f"O19 the audit of {notes.who} found faults in its ledger")
        self.broken += [f"O6 at the end: {violation}" for violation in violations(state)]
        self.broken += self.sharing.kept(state)
        for job_id in self.acknowledged:
            job = state.jobs.get(job_id)
            if job is None:
                self.broken.append(f"O1 job {job_id} was acknowledged and is lost")
            elif not job.is_final:
                self.broken.append(f"O9 never ended: {job.story()}")
        for job in state.jobs.values():
            self._must_be_true(job)
        for machine in self.machines:
            self.broken += [f"O9 {process.key} still lives on {machine.name}" for process in machine.live()]
        self._must_be_free(state)

    def _must_be_true(self, job: Job) -> None:
        """O8."""
        for attempt in job.attempts:
            for task in attempt.tasks:
                self._must_have_ended_so(TaskKey(job.id, attempt.number, task.placement.rank), task)
        last = job.attempts[-1] if job.attempts else None
        if job.state is JobState.SUCCEEDED and last is not None:
            codes = [task.end.exit_code if task.end else None for task in last.tasks]
            if codes != [0] * len(codes) or job.exit_code != 0:
                self.broken.append(f"O8 succeeded with exit codes {codes}: {job.story()}")

    def _must_have_ended_so(self, key: TaskKey, task: Task) -> None:
        if task.placement.node in self.liars:
            return
        (machine,) = (machine for machine in self.machines if machine.name == task.placement.node)
        if task.end is None or task.end.cause is EndCause.SILENT or machine.name in self.forgotten:
            return
        told = (task.end.cause, task.end.exit_code, task.end.signal)
        over, process = machine.ends.get(key), machine.processes.get(key)
        if over is None:
            if task.end.cause not in _NEVER_RAN or process is not None:
                self.broken.append(f"O8 {key} is said to have ended as {told}; {machine.name} has no record of an end")
        elif process is None and {told[0], over.end.cause} == _GIVEN_UP:
            return  # its agent gave it up, and a runner that was stopped heard of a stop before that
        elif told != (over.end.cause, over.end.exit_code, over.end.signal):
            self.broken.append(f"O8 {key} ended as {over.end}, and the ledger says {told}")
        elif told[0] is EndCause.EXITED and (process is None or process.exit_code != told[1]):
            self.broken.append(f"O8 {key} exited with {process and process.exit_code}, and the ledger says {told[1]}")

    def _must_be_free(self, state: ClusterState) -> None:
        """O9."""
        for name, node in state.nodes.items():
            free = state.indexes.free.get(name)
            if node.pause is not None or name in self.liars:
                continue  # starts failed there, so it is out of service for a while, and tried again by itself
            if free is None:
                self.broken.append(f"O9 {name} is out of service: {state.node_state(name)}")
            elif free.gpus != node.inventory.gpus or node.strays:
                self.broken.append(f"O9 {name} has {len(free.gpus)} GPUs free, strays {node.strays}")
        usage_ledger = state.indexes.usage_ledger
        left = (state.indexes.held, state.indexes.ports, state.indexes.on_node, *usage_ledger.amounts())
        if any(left):
            self.broken.append(f"O9 still held: {left}")

    def replayed(self, state: ClusterState, disk: SimDisk) -> None:
        """O11. The writer is at rest."""
        live = list(snapshot_chunks(state))
        if disk.first == 1 and _replay(ClusterState(), disk) != live:
            self.broken.append("O11 the log, replayed from its beginning, gives another state")
        if disk.snapshots and _replay(load_snapshot(disk.snapshots[-1].chunks), disk) != live:
            self.broken.append("O11 the newest snapshot and what follows it give another state")


def _share_of(machine: Machine, process: Process) -> int:
    return machine.records[process.key].start.gpu_share


def _has_been_full(state: ClusterState, array: Job) -> bool:
    """May its limit have kept a member back a moment ago? While one of them lives, others come and go."""
    most = array.spec.array.running_max if array.spec.array is not None else 0
    room = state.indexes.arrays.slots_left(array) if most else None
    return room is not None and room < most


def _unmet(state: ClusterState, job: Job) -> list[str]:
    """O12, by rules of its own: what of this job's conditions hasn't happened."""
    faults = []
    for place, each in enumerate(job.spec.after):
        if place in job.met:
            continue  # by an end that has been forgotten, or asked for once more, since
        other = state.find(JobRef(each.job, None if each.index is None else ((each.index, each.index, 1),)))
        over = other is None or other.is_final
        well = other is not None and other.state is JobState.SUCCEEDED
        met = {
            DependencyKind.OK: over and well,
            DependencyKind.ANY: over,
            DependencyKind.NOT_OK: over and not well,
            DependencyKind.AFTER: over or (other is not None and other.started_at != NEVER),
        }[each.kind]
        if not met:
            faults.append(f"O12 {each} is said to be met, and isn't: {job.story()}")
    return faults


def _replay(state: ClusterState, disk: SimDisk) -> list[bytes]:
    for at in range(state.position + 1, disk.end + 1):
        apply(state, decode_fact(disk.records[at - disk.first]), Position(at))
    return list(snapshot_chunks(state))
