"""What may a caller ask for?

A closed union. Each command carries its principal; none carries a time, since the writer's clock decides.
"""

import msgspec

from stoker.brain.domain.ids import Epoch, JobId, NodeName, Principal
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.report import Registration, Started, TaskFinished, TaskInventory


class Submit(msgspec.Struct, frozen=True, kw_only=True):
    """Accept all of these jobs or none."""

    by: Principal
    specs: tuple[JobSpec, ...]


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    """End a job. Cancelling one that has ended is refused with `job_ended`; one that is stopping, answered again."""

    by: Principal
    job: JobId


class Register(msgspec.Struct, frozen=True, kw_only=True):
    by: Principal
    registration: Registration


class CompareInventory(msgspec.Struct, frozen=True, kw_only=True):
    """Compare what a node says it runs with the ledger."""

    by: Principal
    node: NodeName
    inventory: TaskInventory


class ReportStarted(msgspec.Struct, frozen=True, kw_only=True):
    by: Principal
    node: NodeName
    started: Started


class ReportEnding(msgspec.Struct, frozen=True, kw_only=True):
    """The leader of these tasks has ended; part of their tree lives."""

    by: Principal
    node: NodeName
    keys: tuple[TaskKey, ...]


class ReportFinished(msgspec.Struct, frozen=True, kw_only=True):
    by: Principal
    finished: TaskFinished


class NodeSilent(msgspec.Struct, frozen=True, kw_only=True):
    by: Principal
    node: NodeName


class NodeHeard(msgspec.Struct, frozen=True, kw_only=True):
    """A node that was unreachable spoke again on its old stream."""

    by: Principal
    node: NodeName


class DrainNode(msgspec.Struct, frozen=True, kw_only=True):
    by: Principal
    node: NodeName
    reason: str


class ResumeNode(msgspec.Struct, frozen=True, kw_only=True):
    by: Principal
    node: NodeName


class ForgetNode(msgspec.Struct, frozen=True, kw_only=True):
    """Without `force` it is refused while the node is reachable or holds work."""

    by: Principal
    node: NodeName
    force: bool


class RunDeadlines(msgspec.Struct, frozen=True, kw_only=True):
    """Do what has fallen due: time limits, pauses that are over, pruning."""

    by: Principal


class BeginEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """Become active under `epoch` with this policy; creates the cluster when the log is empty."""

    by: Principal
    epoch: Epoch
    policy: Policy


Command = (
    Submit
    | Cancel
    | Register
    | CompareInventory
    | ReportStarted
    | ReportEnding
    | ReportFinished
    | NodeSilent
    | NodeHeard
    | DrainNode
    | ResumeNode
    | ForgetNode
    | RunDeadlines
    | BeginEpoch
)
