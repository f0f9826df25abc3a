"""Admission of commands: each becomes events or a refusal.

Every command enters here. The state is read and never changed.
"""

from collections.abc import Callable
from typing import assert_never

from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.units import Instant
from stoker.brain.state.admit import (
    access,
    deadlines,
    job,
    job_operations,
    label,
    leadership,
    node,
    node_liveness,
    partition,
    tenant,
)
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import (
    BeginEpoch,
    Command,
    CompareInventory,
    CreateToken,
    DeletePartition,
    DeleteTenant,
    DrainNode,
    ForgetNode,
    JobOperation,
    LabelNode,
    LoseSilent,
    NodeResponded,
    NodeSilent,
    PutPartition,
    PutTenant,
    Register,
    ReportEnding,
    ReportFinished,
    ReportStarted,
    RestoreCluster,
    ResumeNode,
    RevokeToken,
    RunDeadlines,
    SetPools,
    Sharing,
    Submit,
    TaintNode,
)
from stoker.brain.state.events.union import Event

Answer = tuple[Event, ...] | Refusal
"""An empty tuple: accepted, and nothing new happened."""


def admit(state: ClusterState, command: Command, now: Instant, ids: Callable[[], str]) -> Answer:  # a flat table
    """Answer `command` against `state`. `ids` gives fresh UUIDs."""
    if isinstance(command, JobOperation):
        return job_operations.admit_operation(state, command)
    match command:
        case Submit():
            return job.submit(state, command, now, ids)
        case ReportStarted():
            return job.report_started(state, command)
        case ReportEnding():
            return job.report_ending(state, command)
        case ReportFinished():
            return job.report_finished(state, command, now)
        case Register():
            return node.register(state, command)
        case CompareInventory():
            return node.compare(state, command, now)
        case NodeSilent():
            return node_liveness.node_silent(state, command, now)
        case LoseSilent():
            return node_liveness.lose_silent(state, command, now)
        case NodeResponded():
            return node_liveness.node_responded(state, command)
        case DrainNode():
            return node.drain(state, command)
        case ResumeNode():
            return node.resume(state, command)
        case ForgetNode():
            return node.forget(state, command, now)
        case LabelNode():
            return label.label_node(state, command)
        case TaintNode():
            return label.taint_node(state, command)
        case RunDeadlines():
            return deadlines.run(state, now)
        case BeginEpoch():
            return leadership.begin(state, command, ids)
        case RestoreCluster():
            return leadership.restore(state, now)
        case _:
            return _admit_sharing(state, command, now)


def _admit_sharing(state: ClusterState, command: Sharing, now: Instant) -> Answer:
    match command:
        case PutPartition():
            return partition.put(state, command)
        case DeletePartition():
            return partition.delete(state, command)
        case PutTenant():
            return tenant.put(state, command)
        case DeleteTenant():
            return tenant.delete(state, command, now)
        case SetPools():
            return tenant.set_pools(state, command)
        case CreateToken():
            return access.create(state, command, now)
        case RevokeToken():
            return access.revoke(state, command)
        case _:
            assert_never(command)
