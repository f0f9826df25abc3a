"""What really happened, held against what the ledger says.

Safety is judged whenever an event is applied and whenever a process starts; the reasons of those who wait after every
step; what the disk holds after every recovery; liveness and honesty once the faults have ended. A broken promise is
noted, and the run ends with it at the next step: an exception in the middle of the writer would only hide it.

Promises: O1  an acknowledged job is never lost
          O2  each task of each attempt is started at most once, ever
          O3  no GPU serves two living processes
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
          O15 to O18 are those of `sharing_oracle.py`
          O19 the audit of the ledger finds nothing: what it would repair doesn't happen
          O20 no fault of one job or node keeps another job from being decided on: passes go on, each decides on every
              shape that waits but one that broke it, and no job waits for room beside an idle node that would hold it;
              a node that can't work is known within TOLD_S for what it lacks, gets no work, and gives back what it
              hasn't started; no job goes back to the node that refused it while another is idle
          O21 no job is charged for a node's fault: a start that its node couldn't make costs no retry and no requeue
          O22 no time limit is shortened by a suspend or by a clock that is corrected
What ran on a node that a person forgot by force is exempt from O4 and O5 (ADR 3): they were told so.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from stoker.brain.domain.array import JobRef
from stoker.brain.domain.demand import Shape
from stoker.brain.domain.dependency import DependencyKind
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName, Position
from stoker.brain.domain.instruction import Instruction, Signal, Start, TaskKey
from stoker.brain.domain.job import EndCause, Job, StopCause, Task
from stoker.brain.domain.label import labels_of, taints_of
from stoker.brain.domain.lifecycle import JobState, NodeState
from stoker.brain.domain.plan import Plan
from stoker.brain.domain.reason import AWAITING_PASS, ReasonCode
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.domain.where import admits
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact, decode_fact, load_snapshot, snapshot_chunks
from stoker.brain.state.events.job import (
    AttemptStopping,
    DependenciesMet,
    JobFinished,
    JobPlaced,
    JobRequeued,
    TaskEnded,
)
from stoker.brain.state.events.node import NodeRegistered
from stoker.brain.state.invariants import violations
from stoker.brain.state.wait_reason import wait_reason
from stoker.control.loop import Loop
from tests.rig.quick_check import QuickCheck
from tests.rig.sharing_oracle import SharingOracle
from tests.rig.sim_log import SimDisk
from tests.rig.sim_machine import Machine, Process
from tests.rig.sim_ports import Notes

_NEVER_RAN = (EndCause.GONE, EndCause.NEVER_STARTED)
"""Ends that an agent gives for a task of which its runner has no record. No command of the rig's fails to start."""
POISON_CPUS: Final = 7
"""What only the jobs ask for whose shape breaks the engine."""
TOLD_S: Final = 30.0
"""An agent finds out within 12 s; if it can't say so, its node is unreachable after 16 s more."""
HEARD_S: Final = 60.0
"""After a start or a take-over silence is borne for longer."""
PASSES_S: Final = 40.0
"""Longer than a disk of a single control plane stalls, and than several periods, in each of which a pass is made."""
_ROOM: Final = (
    ReasonCode.NO_NODES,
    ReasonCode.NODES_UNAVAILABLE,
    ReasonCode.NODES_RETURNING,
    ReasonCode.GPUS_UNREAD,
    ReasonCode.NODES_PAUSED,
    ReasonCode.NO_FITTING_NODE,
    ReasonCode.NO_SELECTED_NODE,
    ReasonCode.INSUFFICIENT_GPUS,
    ReasonCode.INSUFFICIENT_NODES,
    ReasonCode.INSUFFICIENT_CPUS,
    ReasonCode.INSUFFICIENT_MEMORY,
)
"""Reasons that say that no node has room."""
REBUILD_EVERY: Final = 4
"""Indexes that have drifted stay so until somebody looks; making them anew at each event took two fifths of it."""


@dataclass(slots=True)
class Oracle:
    machines: list[Machine]
    forgotten: set[str] = field(default_factory=set)
    """Nodes that a person declared gone by force: what runs there is outside what we can promise."""
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
    poisoned: bool = False
    """Does the engine raise on jobs that ask for POISON_CPUS?"""
    passes_s: float = PASSES_S
    """Within which a control plane makes a pass."""
    _placed_s: dict[tuple[JobId, int], float] = field(default_factory=dict)
    """When each attempt was placed, if the control plane that placed it still lives; in seconds of the loop."""
    _charged: dict[JobId, tuple[int, int, int]] = field(default_factory=dict)
    """What each job had been charged when its newest attempt was placed."""
    _faulty_since: dict[NodeName, float] = field(default_factory=dict)
    """When people were told so."""
    _leads_since: float = 0.0
    _loop: Loop | None = None
    _passes: tuple[int, float] = (-1, 0.0)
    """How many passes had been made, and since when it has been so many."""
    _waited: dict[tuple[JobId, int], int] = field(default_factory=dict)
    """(job, attempts so far or members left) -> how many passes had been made when it was first seen waiting."""

    def __post_init__(self) -> None:
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
        if isinstance(fact.event, TaskEnded) and (fact.event.end.proved or fact.event.end.cause is EndCause.SILENT):
            self._must_be_gone(TaskKey(fact.event.job, fact.event.attempt, fact.event.rank), fact.event.end.cause)
        elif isinstance(fact.event, DependenciesMet):
            self.broken += [fault for job in fact.event.jobs for fault in _unmet(state, state.jobs[job])]
        elif isinstance(fact.event, JobPlaced):
            self._must_be_due(state.jobs[fact.event.job], fact.at)
            self._must_be_wanted_there(state, fact.event)
            self._must_be_able_there(state, fact.event)
        elif isinstance(fact.event, AttemptStopping) and fact.event.cause is StopCause.TIMEOUT:
            self._must_be_late(state.jobs[fact.event.job], fact.event.attempt)
        elif isinstance(fact.event, JobRequeued | JobFinished):
            self._must_be_free_of_charge(state, state.jobs[fact.event.job])
        elif isinstance(fact.event, NodeRegistered):
            self._note_fault(fact.event.node, fact.event.inventory.fault)
        for machine in self._known_machines():
            for process in machine.live():
                job = state.jobs.get(process.key.job)
                if job is not None and job.is_final:
                    self.broken.append(f"O5 {job.story()} is final, but {process.key} lives on {machine.name}")

    def planned(self, state: ClusterState, plan: Plan) -> None:
        """Of one pass, at the moment at which it decided."""
        waiting = state.indexes.waiting
        if not any(shape.demand.cpus == POISON_CPUS for _, shape, _ in waiting):  # one that is set aside has no turn
            self.broken += self.sharing.planned(state, plan)
        placed = {action.job for action in plan.actions}
        taken = {task.node for action in plan.actions for task in action.tasks}
        for (_, shape, _), ids in waiting.items():
            reason = plan.reasons.get(shape)
            if reason is None:
                undecided = [job for job in ids.entries if job not in placed and not _is_limited(state, job)]
                if undecided and shape.demand.cpus != POISON_CPUS and not plan.more:
                    self.broken.append(f"O20 a pass didn't decide on jobs {undecided[:3]}")
            elif reason.code in _ROOM and shape.demand.tasks == 1:
                idle = [name for name in state.nodes if name not in taken and _is_idle_for(state, name, shape)]
                if idle:
                    self.broken.append(f"O20 {list(ids.entries)[:3]} wait for {reason}, and {idle} would hold them")

    def _must_be_due(self, job: Job, at: Instant) -> None:
        """O12, O13."""
        asked = job.array_of or job.id
        if asked in self.cancelled and asked not in self.revived:
            self.broken.append(f"O13 placed although it was cancelled: {job.story()}")
        if job.blocked or job.spec.begin > at:
            self.broken.append(f"O12 placed at {at} before it might begin: {job.story()}")

    def _note_fault(self, node: NodeName, fault: str) -> None:
        if fault:
            self._faulty_since.setdefault(node, _now_s())
        else:
            self._faulty_since.pop(node, None)

    def _must_be_able_there(self, state: ClusterState, placed: JobPlaced) -> None:
        """O20"""
        job = state.jobs[placed.job]
        self._placed_s[job.id, placed.attempt] = _now_s()
        self._charged[job.id] = _charged(job)
        there = [task.node for task in placed.tasks]
        for name in there:
            node = state.nodes[name]
            if node.inventory.fault or node.pause is not None:
                self.broken.append(f"O20 placed on {name}, which is {state.node_state(name)}: {job.story()}")
        before = job.attempts[-2] if len(job.attempts) > 1 else None
        refused = [task.placement.node for task in before.tasks if _was_refused(task)] if before else []
        if job.spec.demand.tasks == 1 and refused == there:
            idle = [name for name in state.nodes if name not in there and _is_idle_for(state, name, job.spec.shape)]
            if idle:
                self.broken.append(f"O20 placed again on {there}, which refused it, and {idle} are idle: {job.story()}")

    def _must_be_free_of_charge(self, state: ClusterState, job: Job) -> None:
        """O21"""
        last = job.attempts[-1] if job.attempts else None
        before = self._charged.pop(job.id, None)
        if last is None or before is None or not any(_was_refused(task) for task in last.tasks):
            return
        ends = [task.end for task in last.tasks if task.end is not None and not task.end.clean]
        ordered = last.stop is not None and last.stop.cause is not StopCause.MEMBER_ENDED
        if ordered or any(end.cause not in (EndCause.NEVER_STARTED, EndCause.STOPPED) for end in ends):
            return
        if _charged(job) != before:
            self.broken.append(f"O21 charged {before} -> {_charged(job)} for a start that was refused: {job.story()}")
        if job.is_final and job.spec.requeue and len(job.attempts) < state.policy.attempts_max:
            self.broken.append(f"O21 ended for a start that its node refused: {job.story()}")

    def _must_be_late(self, job: Job, attempt: int) -> None:
        """O22. Clocks drift by less than a hundredth."""
        placed_s = self._placed_s.get((job.id, attempt))
        if placed_s is not None and _now_s() - placed_s < 0.98 * job.spec.time_limit_ms / 1_000:
            self.broken.append(f"O22 timed out {_now_s() - placed_s:.1f} s after it was placed: {job.story()}")

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
            if isinstance(event, JobPlaced):
                self._placed.add((event.job, event.attempt))
            elif isinstance(event, AttemptStopping):
                self._stopped.add((event.job, event.attempt))

    def instructed(self, instruction: Instruction) -> None:
        """O10. A stop without a cause is for a stray, which no ledger placed."""
        attempt = (instruction.key.job, instruction.key.attempt)
        if isinstance(instruction, Start | Signal):
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
        for other in machine.live():
            shared: set[GpuUuid] = set(process.gpus) & set(other.gpus)
            if other is not process and shared:
                self.broken.append(f"O3 {sorted(shared)} serve {other.key} and {key}")
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
            if not any(leader in where.processes for where in self.machines):
                self.broken.append(f"O10 {key} began on {machine.name} before rank 0 had tried the port")

    # --- after a recovery and after a step ----------------------------------------------------------------------

    def killed(self) -> None:
        """What the dead process knew beyond its disk never happened."""
        self._ledger, self._last_at = None, NEVER
        for known in (self._waited, self._placed_s, self._charged, self._faulty_since):
            known.clear()

    def recovered(self, state: ClusterState) -> None:
        self._ledger, self._leads_since = state, _now_s()
        for name, node in state.nodes.items():
            self._note_fault(name, node.inventory.fault)
        self.broken += [f"O6 after recovery: {violation}" for violation in violations(state)]
        self.broken += [
            f"O1 job {job} was acknowledged and is lost" for job in self.acknowledged if job not in state.jobs
        ]
        self.broken += self.sharing.kept(state)

    def stepped(self, state: ClusterState, loop: Loop) -> None:
        """O7, O20. A pass under way when a job was first seen may not have seen it; the next one has."""
        self._must_go_on(loop)
        self._must_be_told(state)
        self._must_be_given_back(state)
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

    def _must_go_on(self, loop: Loop) -> None:
        """O20"""
        passes, since_s = self._passes
        if loop is not self._loop or loop.passes != passes:
            self._loop, self._passes = loop, (loop.passes, _now_s())
        elif _now_s() - since_s > self.passes_s:
            self.broken.append(f"O20 no pass has been made for {_now_s() - since_s:.0f} s")

    def _must_be_told(self, state: ClusterState) -> None:
        """O20. What a node says may be on its way, unless it is heard and has been ailing for a while."""
        for machine in self._known_machines():
            node = state.nodes.get(NodeName(machine.name))
            if node is None or not node.reachable or _now_s() - self._leads_since < HEARD_S:
                continue
            if _now_s() - machine.ailing_since_s < TOLD_S:
                continue
            if machine.cannot_work and not node.inventory.fault:
                self.broken.append(f"O20 nobody is told what ails {machine.name}: {machine.cannot_work}")
            if machine.tasks_max and node.inventory.cpus > machine.tasks_max:
                self.broken.append(f"O20 {machine.name} offers {node.inventory.cpus} CPUs, and takes fewer tasks")

    def _must_be_given_back(self, state: ClusterState) -> None:
        """O20. Other ranks than the first may wait for that one."""
        now_s, known = _now_s(), {machine.name: machine for machine in self._known_machines()}
        for name, since_s in self._faulty_since.items():
            if name not in known or not state.nodes[name].reachable or now_s - since_s < TOLD_S:
                continue
            for job_id, attempt, rank in state.indexes.held.get(name, {}):
                job = state.jobs[job_id]
                placed_s = self._placed_s.get((job_id, attempt), now_s)
                begun = job.attempt(attempt).tasks[rank].started_at != NEVER
                begun = begun or TaskKey(job_id, attempt, rank) in known[name].processes
                if not begun and rank == 0 and now_s - placed_s > TOLD_S:
                    self.broken.append(
                        f"O20 {name} has been faulty for {now_s - since_s:.0f} s, and keeps {job.story()}"
                    )

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
        (machine,) = (machine for machine in self.machines if machine.name == task.placement.node)
        if task.end is None or task.end.cause is EndCause.SILENT or machine.name in self.forgotten:
            return
        told = (task.end.cause, task.end.exit_code, task.end.signal)
        over, process = machine.ends.get(key), machine.processes.get(key)
        if over is None:
            if task.end.cause not in _NEVER_RAN or process is not None:
                self.broken.append(f"O8 {key} is said to have ended as {told}; {machine.name} has no record of an end")
        elif told != (over.end.cause, over.end.exit_code, over.end.signal):
            self.broken.append(f"O8 {key} ended as {over.end}, and the ledger says {told}")
        elif told[0] is EndCause.EXITED and (process is None or process.exit_code != told[1]):
            self.broken.append(f"O8 {key} exited with {process and process.exit_code}, and the ledger says {told[1]}")

    def _must_be_free(self, state: ClusterState) -> None:
        """O9."""
        for name, node in state.nodes.items():
            free = state.indexes.free.get(name)
            if node.pause is not None:
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


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _charged(job: Job) -> tuple[int, int, int]:
    return job.retries_used, job.requeues_used, job.port_retries_used


def _was_refused(task: Task) -> bool:
    return task.end is not None and task.end.cause is EndCause.NEVER_STARTED


def _is_idle_for(state: ClusterState, name: NodeName, shape: Shape) -> bool:
    """Does nothing hold anything of a node that would take such a task? By rules of its own, so far as jobs of the rig
    go."""
    node, demand = state.nodes[name], shape.demand
    inventory = node.inventory
    return (
        state.node_state(name) is NodeState.READY
        and node.returned
        and name not in state.indexes.held
        and not node.strays
        and len(inventory.gpus) >= demand.gpu_count
        and inventory.cpus >= demand.cpus
        and inventory.memory_mb >= demand.memory_mb
        and admits(shape.where, node.name, labels_of(node), taints_of(node))
    )


def _is_limited(state: ClusterState, job: JobId) -> bool:
    """May the limit of its array keep it back?"""
    array = state.jobs.get(state.jobs[job].array_of or job)
    return array is not None and array.spec.array is not None and array.spec.array.running_max > 0


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
