"""What ails one node, one job or one clock is nobody else's trouble: the part of the oracle about that.

Promises: O20 no fault of one job or node keeps another job from being decided on: passes go on, each decides on every
              shape that waits but one that broke it, and no job waits for room beside an idle node that would hold it;
              a node that can't work is known within TOLD_S for what it lacks, gets no work, and gives back what it
              hasn't started; no job goes back to the node that refused it while another is idle
          O21 no job is charged for a node's fault: a start that its node couldn't make costs no retry and no requeue
          O22 no time limit is shortened by a suspend, or by a clock that is corrected, by more than UNNOTED_S
          O23 no clock of a node is believed: a task has ended between its placement and the moment at which we hear of
              it, by the clock of the log
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from stoker.brain.domain.demand import Shape
from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause, Job, StopCause, Task
from stoker.brain.domain.label import labels_of, taints_of
from stoker.brain.domain.lifecycle import NodeState
from stoker.brain.domain.plan import Plan
from stoker.brain.domain.reason import ReasonCode
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.domain.where import admits
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events.job import AttemptStopping, JobFinished, JobPlaced, JobRequeued, TaskEnded
from stoker.brain.state.events.node import NodeRegistered
from stoker.brain.state.events.union import Event
from stoker.control.loop import Loop
from tests.rig.sharing_oracle import may_use
from tests.rig.sim_machine import Machine

POISON_CPUS: Final = 7
"""What only the jobs ask for whose shape breaks the engine."""
TOLD_S: Final = 30.0
"""An agent finds out within 12 s; if it can't say so, its node is unreachable after 16 s more."""
HEARD_S: Final = 60.0
"""After a start or a take-over silence is borne for longer."""
PASSES_S: Final = 40.0
"""Longer than a disk of a single control plane stalls, and than several periods, in each of which a pass is made."""
UNNOTED_S: Final = 0.2
"""What docs/explanation/clocks.md allows: a step too small to be noted when a limit begins, and one when it is over."""
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


@dataclass(slots=True)
class AilingOracle:
    broken: list[str]
    poisoned_until_s: float = 0.0
    """Until when the engine raises on jobs that ask for POISON_CPUS."""
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

    @property
    def poisoned(self) -> bool:
        return _now_s() < self.poisoned_until_s

    def poison(self, for_s: float) -> None:
        self.poisoned_until_s = max(self.poisoned_until_s, _now_s() + for_s)

    def applied(self, state: ClusterState, event: Event, at: Instant) -> None:
        """After every event; `at` is its time in the log."""
        if isinstance(event, JobPlaced):
            self._must_be_able_there(state, event)
        elif isinstance(event, AttemptStopping) and event.cause is StopCause.TIMEOUT:
            self._must_be_late(state.jobs[event.job], event.attempt)
        elif isinstance(event, JobRequeued | JobFinished):
            self._must_be_free_of_charge(state, state.jobs[event.job])
        elif isinstance(event, TaskEnded):
            placed_at = state.jobs[event.job].attempt(event.attempt).placed_at
            if not placed_at <= event.end.at <= at:
                self.broken.append(f"O23 {event} is of {at}, and its attempt was placed at {placed_at}")
        elif isinstance(event, NodeRegistered):
            self._note_fault(event.node, event.inventory.fault)

    def killed(self) -> None:
        """What the control plane knew that led until now is of no use any more."""
        for known in (self._placed_s, self._charged, self._faulty_since):
            known.clear()

    def recovered(self, state: ClusterState) -> None:
        """Another leads."""
        self._leads_since = _now_s()
        for name, node in state.nodes.items():
            self._note_fault(name, node.inventory.fault)

    def stepped(self, state: ClusterState, loop: Loop, machines: Sequence[Machine]) -> None:
        """Between two steps of a run; `machines` are those of which something is promised."""
        self._must_go_on(loop)
        self._must_be_told(state, machines)
        self._must_be_given_back(state, machines)

    def planned(self, state: ClusterState, plan: Plan) -> None:
        """O20. Of one pass, at the moment at which it decided."""
        placed = {action.job for action in plan.actions}
        taken = {task.node for action in plan.actions for task in action.tasks}
        for (_, shape, _), ids in state.indexes.waiting.items():
            reason = plan.reasons.get(shape)
            if reason is None:
                undecided = [job for job in ids.entries if job not in placed and not _is_limited(state, job)]
                if undecided and shape.demand.cpus != POISON_CPUS and not plan.more:
                    self.broken.append(f"O20 a pass didn't decide on jobs {undecided[:3]}")
            elif reason.code in _ROOM and shape.demand.tasks == 1:
                idle = [name for name in state.nodes if name not in taken and _is_idle_for(state, name, shape)]
                if idle:
                    self.broken.append(f"O20 {list(ids.entries)[:3]} wait for {reason}, and {idle} would hold them")

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
        # What is idle may be held for others that wait, and are within a guarantee.
        others = any(shape.demand.gpu_count for _, shape, _ in state.indexes.waiting)
        if job.spec.demand.tasks == 1 and refused == there and not others:
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
        # Without a requeue a job starts again where nothing of it ran; other ranks are told once the first has started.
        again = job.spec.requeue or _was_refused(last.tasks[0])
        if job.is_final and again and len(job.attempts) < state.policy.attempts_max:
            self.broken.append(f"O21 ended for a start that its node refused: {job.story()}")

    def _must_be_late(self, job: Job, attempt: int) -> None:
        """O22. Clocks drift by less than a hundredth, either way."""
        placed_s = self._placed_s.get((job.id, attempt))
        least_s = 0.98 * job.spec.time_limit_ms / 1_000 - UNNOTED_S
        if placed_s is not None and _now_s() - placed_s < least_s:
            self.broken.append(f"O22 timed out {_now_s() - placed_s:.1f} s after it was placed: {job.story()}")

    def _must_go_on(self, loop: Loop) -> None:
        """O20"""
        passes, since_s = self._passes
        if loop is not self._loop or loop.passes != passes:
            self._loop, self._passes = loop, (loop.passes, _now_s())
        elif _now_s() - since_s > self.passes_s:
            self.broken.append(f"O20 no pass has been made for {_now_s() - since_s:.0f} s")

    def _must_be_told(self, state: ClusterState, machines: Sequence[Machine]) -> None:
        """O20. What a node says may be on its way, unless it is heard and has been ailing for a while."""
        for machine in machines:
            node = state.nodes.get(NodeName(machine.name))
            if node is None or not node.reachable or _now_s() - self._leads_since < HEARD_S:
                continue
            if _now_s() - machine.ailing_since_s < TOLD_S:
                continue
            if machine.cannot_work and not node.inventory.fault:
                self.broken.append(f"O20 nobody is told what ails {machine.name}: {machine.cannot_work}")
            if machine.tasks_max and node.inventory.cpus > machine.tasks_max:
                self.broken.append(f"O20 {machine.name} offers {node.inventory.cpus} CPUs, and takes fewer tasks")

    def _must_be_given_back(self, state: ClusterState, machines: Sequence[Machine]) -> None:
        """O20. Other ranks than the first may wait for that one."""
        now_s, known = _now_s(), {machine.name: machine for machine in machines}
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
        and may_use(state, shape.tenant, name)
    )


def _is_limited(state: ClusterState, job: JobId) -> bool:
    """May the limit of its array keep it back?"""
    array = state.jobs.get(state.jobs[job].array_of or job)
    return array is not None and array.spec.array is not None and array.spec.array.running_max > 0
