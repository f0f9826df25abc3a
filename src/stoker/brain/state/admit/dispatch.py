"""Admission of commands: each becomes events or a refusal.

Every command enters here. The state is read and never changed.
"""

from collections.abc import Callable
from typing import assert_never

from stoker.brain.domain.units import Instant
from stoker.brain.state import commands
from stoker.brain.state.admit import (
    access,
    deadlines,
    job,
    job_operations,
    job_update,
    label,
    leadership,
    node,
    node_liveness,
    notify,
    partition,
    secret,
    tenant,
)
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Answer, Command, PlainJobOperation, Sharing
from stoker.brain.state.events.leadership import ClockMoved


def admit(state: ClusterState, command: Command, now: Instant, ids: Callable[[], str]) -> Answer:  # a flat table
    """Answer `command` against `state`. `ids` gives fresh UUIDs."""
    if isinstance(command, PlainJobOperation):
        return job_operations.admit_operation(state, command)
    match command:
        case commands.Submit():
            return job.submit(state, command, now, ids)
        case commands.UpdateJob():
            return job_update.update(state, command, now)
        case commands.ReportStarted():
            return job.report_started(state, command)
        case commands.ReportEnding():
            return job.report_ending(state, command)
        case commands.ReportFinished():
            return job.report_finished(state, command, now)
        case commands.WithholdStart():
            return job.withhold_start(state, command, now)
        case commands.ForwardPort():
            return job_operations.forward(state, command)
        case commands.EnterTask():
            return job_operations.enter(state, command)
        case commands.Register():
            return node.register(state, command)
        case commands.CompareInventory():
            return node.compare(state, command, now)
        case commands.NodeSilent():
            return node_liveness.node_silent(state, command, now)
        case commands.LoseSilent():
            return node_liveness.lose_silent(state, command, now)
        case commands.NodeResponded():
            return node_liveness.node_responded(state, command)
        case commands.DrainNode():
            return node.drain(state, command)
        case commands.ResumeNode():
            return node.resume(state, command)
        case commands.ForgetNode():
            return node.forget(state, command, now)
        case commands.LabelNode():
            return label.label_node(state, command)
        case commands.TaintNode():
            return label.taint_node(state, command)
        case commands.RunDeadlines():
            return deadlines.run(state, now)
        case commands.TryNotification():
            return notify.try_one(state, command, now)
        case commands.SettleNotification():
            return notify.settle(state, command, now)
        case commands.MoveClock():
            return (ClockMoved(by_ms=command.by_ms),)
        case commands.BeginEpoch():
            return leadership.begin(state, command, ids)
        case commands.RestoreCluster():
            return leadership.restore(state, now)
        case _:
            return _admit_sharing(state, command, now)


def _admit_sharing(state: ClusterState, command: Sharing, now: Instant) -> Answer:
    match command:
        case commands.PutPartition():
            return partition.put(state, command)
        case commands.DeletePartition():
            return partition.delete(state, command)
        case commands.PutTenant():
            return tenant.put(state, command)
        case commands.DeleteTenant():
            return tenant.delete(state, command, now)
        case commands.SetPools():
            return tenant.set_pools(state, command)
        case commands.CreateToken():
            return access.create(state, command, now)
        case commands.OpenSession():
            return access.open_session(state, command, now)
        case commands.RevokeToken():
            return access.revoke(state, command)
        case commands.JoinNode():
            return access.join(state, command, now)
        case commands.SetSecret():
            return secret.put(state, command)
        case commands.DeleteSecret():
            return secret.delete(state, command)
        case _:
            assert_never(command)
