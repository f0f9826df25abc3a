"""Attempt leases: how long the nodes of an attempt may be silent, and which leases have run out.

An attempt gets its lease when it is placed, and keeps it. Its runners end it once no active control plane has answered
their node for so long; the control plane settles it once it has surely been ended so.

Rules: L1  the job's own wish comes before the policy's
       L2  where the runner's own death wouldn't end its tasks, silence never settles anything: then there is no lease
       L3  an attempt is settled when its node wasn't heard of for lease + drift + the time that killing takes + slack
       L4  a start that a runner may have begun before it was stopped has no bound but its lease: it may be a process
           already, or become one as soon as the runner goes on. Its agent can't end it without the runner's death,
           which would end all that runs there; the lease ends runner and start alike (G2 of the runner's guard)
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.errors import Facts
from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import Attempt, EndCause, Job, JobSpec, StopCause, Task
from stoker.brain.domain.node import Node
from stoker.brain.domain.policy import surely_over_ms
from stoker.brain.domain.preemption import TAKEN_BACK
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.units import NEVER, human_duration, utc_text
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events.node import LeaseBroken

_WAITS_AGAIN: Final = (StopCause.REQUEUED, *TAKEN_BACK)
"""Stops after which a job starts anew, however its attempt ends."""


def lease_for(state: ClusterState, spec: JobSpec, tasks: Sequence[TaskPlacement]) -> int:
    """Milliseconds of the lease that an attempt on these nodes gets; 0 = none."""
    wished = spec.lost_after_ms
    lease_ms = state.policy.attempt_lease_ms if wished is None else wished
    if not lease_ms or not all(state.nodes[task.node].inventory.keeps_leases for task in tasks):
        return 0
    return lease_ms


def overdue(state: ClusterState, name: NodeName, silent_ms: int) -> dict[JobId, list[int]]:
    """The ranks on this node that are surely over after so much silence, by job."""
    found: dict[JobId, list[int]] = {}
    if not state.nodes[name].inventory.keeps_leases:  # also not of an agent that was exchanged under its work
        return found
    for job, number, rank in state.indexes.held.get(name, ()):
        attempt = state.jobs[job].attempt(number)
        if attempt.lease_ms and silent_ms >= surely_over_ms(attempt.lease_ms):
            found.setdefault(job, []).append(rank)
    return found


def silence_of(state: ClusterState, job: Job) -> Reason | None:
    """Return the reason shown for a job of which a node is silent or faulty; None for one that has ended or waits."""
    attempt = job.live_attempt
    for task in attempt.open_tasks if attempt else ():
        node = state.nodes[task.placement.node]
        if attempt is not None and node.reachable and node.inventory.fault:
            fault: Facts = {"node": node.name, "fault": node.inventory.fault, "unknown": _unknown(attempt, node.name)}
            return Reason(ReasonCode.NODE_FAULTY, fault)
        if attempt is None or node.reachable:
            continue
        said = f"; what its agent said last: {node.inventory.fault}" if node.inventory.fault else ""
        since: Facts = {"since": utc_text(node.silent_since), "since_ms": node.silent_since}
        facts: Facts = {"node": node.name, **since, "said": said}
        if not attempt.lease_ms or not node.inventory.keeps_leases:
            return Reason(ReasonCode.NODE_AWAITED, facts)
        over_ms = surely_over_ms(attempt.lease_ms)
        cause = attempt.stop.cause if attempt.stop else None
        again = job.spec.requeue if cause in (None, StopCause.MEMBER_ENDED) else cause in _WAITS_AGAIN
        then = "is started elsewhere" if again else "ends"
        return Reason(
            ReasonCode.NODE_SILENT, {**facts, "over": human_duration(over_ms), "over_ms": over_ms, "then": then}
        )
    return None


def _unknown(attempt: Attempt, name: NodeName) -> str:
    """Say how long tasks stay `starting` on a node that can't work (L4); empty = each has started, or surely hasn't."""
    first = attempt.tasks[0]
    told = [task for task in attempt.open_tasks if task is first or first.started_at != NEVER]
    if all(task.started_at != NEVER for task in told if task.placement.node == name):
        return ""
    lease = f"or before its lease of {human_duration(attempt.lease_ms)} has ended it" if attempt.lease_ms else ""
    return (
        "; only its runner can say whether it has begun there, so it starts nowhere else before the runner goes on, "
        f"{lease or 'or has been killed: its attempt has no lease that would end it'}"
    )


def broken_leases(state: ClusterState, node: Node, running: Iterable[TaskKey]) -> Iterator[LeaseBroken]:
    """Return an event for each task that a node reports as running although its lease must have ended it.

    Each is reported once, when it is first heard of.
    """
    known = {stray.key for stray in node.strays if not stray.unproved}
    settled = {stray.key for stray in node.strays if stray.unproved}
    for key in running:
        task = (key.job, key.attempt, key.rank)
        if task not in known and (task in settled or _settled_silent(task_of(state, key))):
            yield LeaseBroken(node=node.name, job=key.job, attempt=key.attempt, rank=key.rank)


def _settled_silent(task: Task | None) -> bool:
    return task is not None and task.end is not None and task.end.cause is EndCause.SILENT


def task_of(state: ClusterState, key: TaskKey) -> Task | None:
    """The task of that name, live or ended, as far as the ledger remembers it."""
    job = state.jobs.get(key.job)
    if job is None or not job.attempts_before < key.attempt <= job.newest_attempt:
        return None
    tasks = job.attempt(key.attempt).tasks
    return tasks[key.rank] if 0 <= key.rank < len(tasks) else None
