"""Admission of reports that a node is silent or responds, and loss of attempts whose leases have run out.

Rules: N1  silence alone takes a node out of service, and nothing else; it counts from when the node was last heard of
       N2  an attempt that has outlived its lease is settled without proof, and requeued, retried or ended as any other
           loss; an attempt without a lease waits for the node
       N3  GPUs of an attempt that was settled so are in quarantine from the same moment on
       N4  a node that is reachable has lost nothing
"""

from collections.abc import Iterator, Mapping, Sequence

from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.job import Attempt, EndCause, TaskEnd
from stoker.brain.domain.node import OrphanTask
from stoker.brain.domain.units import Instant, human_duration
from stoker.brain.state.attempt_outcome import end_tasks
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Answer, LoseSilent, NodeResponded, NodeSilent
from stoker.brain.state.events.node import NodeLost, NodeReachable, NodeUnreachable, OrphanTasksFound
from stoker.brain.state.events.union import Event
from stoker.brain.state.leases import overdue
from stoker.brain.state.validation.lookups import find_node


def node_silent(state: ClusterState, command: NodeSilent, now: Instant) -> Answer:
    """Admit that a node is unreachable (N1)."""
    node = find_node(state, command.node)
    if isinstance(node, Refusal):
        return node
    if not node.reachable:
        return ()
    return (NodeUnreachable(node=node.name, since=Instant(now - command.silent_ms)),)


def node_responded(state: ClusterState, command: NodeResponded) -> Answer:
    """Admit that a node is reachable again."""
    node = find_node(state, command.node)
    if isinstance(node, Refusal):
        return node
    return () if node.reachable or node.forgotten else (NodeReachable(node=node.name),)


def lose_silent(state: ClusterState, command: LoseSilent, now: Instant) -> Answer:
    """Admit the loss of the attempts on a silent node whose leases have run out (N2)."""
    node = find_node(state, command.node)
    if isinstance(node, Refusal):
        return node
    over = {} if node.reachable else overdue(state, node.name, command.silent_ms)
    if not over:
        return ()
    # The orphan tasks first: not for the length of one event may a GPU seem free on which something may run.
    strays = (*node.strays, *_unproved(state, over, now))
    events: list[Event] = [
        NodeLost(node=node.name, silent_ms=command.silent_ms),
        OrphanTasksFound(node=node.name, strays=strays),
    ]
    for job_id, ranks in over.items():
        job = state.jobs[job_id]
        end = TaskEnd(cause=EndCause.SILENT, at=now, error=_said(node.name, command.silent_ms, job.attempts[-1]))
        events.extend(end_tasks(job, dict.fromkeys(ranks, end), now, state.policy))
    return tuple(events)


def _said(node: NodeName, silent_ms: int, attempt: Attempt) -> str:
    lease, silent = human_duration(attempt.lease_ms), human_duration(silent_ms)
    return f"node {node} was not heard of for {silent}, and after {lease} it ends its work by itself"


def _unproved(state: ClusterState, over: Mapping[JobId, Sequence[int]], now: Instant) -> Iterator[OrphanTask]:
    for job_id, ranks in over.items():
        attempt = state.jobs[job_id].attempts[-1]
        for rank in ranks:
            gpus = attempt.tasks[rank].placement.gpus
            yield OrphanTask(job=job_id, attempt=attempt.number, rank=rank, gpus=gpus, settled_at=now)
