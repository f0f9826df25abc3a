"""Commands to the control plane: what people, nodes and the control plane itself may ask of the state.

A closed union. Each command carries its principal; none carries a time, since the writer's clock decides. The `row` of
a command that people give says how the audit trail tells of it; of the others it is None.
"""

from typing import Any, ClassVar

import msgspec

from stoker.brain.domain.access import Token, TokenId
from stoker.brain.domain.array import JobRef
from stoker.brain.domain.ids import Epoch, NodeName, PartitionName, Principal, TenantName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.label import Taint
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import Pools
from stoker.brain.domain.report import Registration, Started, TaskFinished, TaskInventory
from stoker.brain.domain.tenant import Tenant
from stoker.brain.state.events.access import token_text
from stoker.brain.state.events.row import CommandRow


class Submit(msgspec.Struct, frozen=True, kw_only=True):
    """Accept all of these jobs or none."""

    row: ClassVar["CommandRow[Submit]"] = CommandRow(
        action="submit",
        about=lambda command: {"tenant": command.specs[0].tenant if command.specs else "", "count": len(command.specs)},
    )

    by: Principal
    specs: tuple[JobSpec, ...]
    key: str = ""
    """Idempotency key. Empty = none; else the same key and digest are answered with the jobs of the first time."""
    digest: str = ""
    """Of the request's body."""


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    """End a job, an array, or some of its members. What has ended is refused with `job_ended` when nothing is left to
    end; what is stopping is answered again."""

    row: ClassVar["CommandRow[Cancel]"] = CommandRow(action="cancel")

    by: Principal
    target: JobRef


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Keep what waits from starting. What is live is refused with `job_live`, unless it is a member of an array that
    is held as a whole."""

    row: ClassVar["CommandRow[Hold]"] = CommandRow(action="hold")

    by: Principal
    target: JobRef


class Release(msgspec.Struct, frozen=True, kw_only=True):
    row: ClassVar["CommandRow[Release]"] = CommandRow(action="release")

    by: Principal
    target: JobRef


class Requeue(msgspec.Struct, frozen=True, kw_only=True):
    """Run it once more: what is live is stopped first, what has ended is pending again. Of an array the members that
    ended otherwise than well."""

    row: ClassVar["CommandRow[Requeue]"] = CommandRow(action="requeue")

    by: Principal
    target: JobRef


class SignalJob(msgspec.Struct, frozen=True, kw_only=True):
    """Send a signal to the processes of what runs, once."""

    row: ClassVar["CommandRow[SignalJob]"] = CommandRow(action="signal")

    by: Principal
    target: JobRef
    signal: int


class Register(msgspec.Struct, frozen=True, kw_only=True):
    row: ClassVar[None] = None

    by: Principal
    registration: Registration


class CompareInventory(msgspec.Struct, frozen=True, kw_only=True):
    """Compare what a node says it runs with the ledger."""

    row: ClassVar[None] = None

    by: Principal
    node: NodeName
    inventory: TaskInventory


class ReportStarted(msgspec.Struct, frozen=True, kw_only=True):
    row: ClassVar[None] = None

    by: Principal
    node: NodeName
    started: Started


class ReportEnding(msgspec.Struct, frozen=True, kw_only=True):
    """The leader of these tasks has ended; part of their tree lives."""

    row: ClassVar[None] = None

    by: Principal
    node: NodeName
    keys: tuple[TaskKey, ...]


class ReportFinished(msgspec.Struct, frozen=True, kw_only=True):
    row: ClassVar[None] = None

    by: Principal
    finished: TaskFinished


class NodeSilent(msgspec.Struct, frozen=True, kw_only=True):
    """A node wasn't heard of for so long, counted as in `LoseSilent`."""

    row: ClassVar[None] = None

    by: Principal
    node: NodeName
    silent_ms: int = 0


class LoseSilent(msgspec.Struct, frozen=True, kw_only=True):
    """Settle what an unreachable node must have ended by itself: it was silent for so long, counted by a control plane
    that was awake and active all the while."""

    row: ClassVar[None] = None

    by: Principal
    node: NodeName
    silent_ms: int


class NodeResponded(msgspec.Struct, frozen=True, kw_only=True):
    """A node that was unreachable spoke again on its old stream."""

    row: ClassVar[None] = None

    by: Principal
    node: NodeName


class DrainNode(msgspec.Struct, frozen=True, kw_only=True):
    row: ClassVar["CommandRow[DrainNode]"] = CommandRow(
        action="node_drain", about=lambda command: {"target": command.node}
    )

    by: Principal
    node: NodeName
    reason: str


class ResumeNode(msgspec.Struct, frozen=True, kw_only=True):
    row: ClassVar["CommandRow[ResumeNode]"] = CommandRow(
        action="node_resume", about=lambda command: {"target": command.node}
    )

    by: Principal
    node: NodeName


class ForgetNode(msgspec.Struct, frozen=True, kw_only=True):
    """Without `force` it is refused while the node is reachable or holds work."""

    row: ClassVar["CommandRow[ForgetNode]"] = CommandRow(
        action="node_forget", about=lambda command: {"target": command.node}
    )

    by: Principal
    node: NodeName
    force: bool


class LabelNode(msgspec.Struct, frozen=True, kw_only=True):
    """Set some labels and take others off, over those that its agent names. The others stay as they are."""

    row: ClassVar["CommandRow[LabelNode]"] = CommandRow(
        action="node_label", about=lambda command: {"target": command.node}
    )

    by: Principal
    node: NodeName
    labels: dict[str, str]
    remove: tuple[str, ...] = ()


class TaintNode(msgspec.Struct, frozen=True, kw_only=True):
    """Put some taints on and take others off, by key."""

    row: ClassVar["CommandRow[TaintNode]"] = CommandRow(
        action="node_taint", about=lambda command: {"target": command.node}
    )

    by: Principal
    node: NodeName
    taints: tuple[Taint, ...]
    remove: tuple[str, ...] = ()


class PutPartition(msgspec.Struct, frozen=True, kw_only=True):
    """Make a partition, or replace it whole. With `create` one that is there already is refused."""

    row: ClassVar["CommandRow[PutPartition]"] = CommandRow(
        action="partition_set", about=lambda command: {"target": command.partition.name}
    )

    by: Principal
    partition: Partition
    create: bool


class DeletePartition(msgspec.Struct, frozen=True, kw_only=True):
    """Refused with `partition_in_use` while a job that hasn't ended names it."""

    row: ClassVar["CommandRow[DeletePartition]"] = CommandRow(
        action="partition_delete", about=lambda command: {"target": command.name}
    )

    by: Principal
    name: PartitionName


class PutTenant(msgspec.Struct, frozen=True, kw_only=True):
    """Make a tenant, or replace it whole. With `create` one that is there already is refused, without it one that
    isn't."""

    row: ClassVar["CommandRow[PutTenant]"] = CommandRow(
        action="tenant_set", about=lambda command: {"target": command.tenant.name, "tenant": command.tenant.name}
    )

    by: Principal
    tenant: Tenant
    create: bool


class DeleteTenant(msgspec.Struct, frozen=True, kw_only=True):
    """Refused with `tenant_in_use` while a job that hasn't ended, a token or another tenant names it."""

    row: ClassVar["CommandRow[DeleteTenant]"] = CommandRow(
        action="tenant_delete", about=lambda command: {"target": command.name, "tenant": command.name}
    )

    by: Principal
    name: TenantName


class SetPools(msgspec.Struct, frozen=True, kw_only=True):
    """Share the GPUs between the classes anew. Where guarantees are walls, one below what is in use is refused
    without `force`."""

    row: ClassVar["CommandRow[SetPools]"] = CommandRow(action="quota_set", about=lambda command: {})

    by: Principal
    pools: Pools
    force: bool = False


class CreateToken(msgspec.Struct, frozen=True, kw_only=True):
    """`token` has an id and a digest that nobody had before."""

    row: ClassVar["CommandRow[CreateToken]"] = CommandRow(
        action="token_create", about=lambda command: {"target": command.token.id, "details": token_text(command.token)}
    )

    by: Principal
    token: Token


class RevokeToken(msgspec.Struct, frozen=True, kw_only=True):
    row: ClassVar["CommandRow[RevokeToken]"] = CommandRow(
        action="token_revoke", about=lambda command: {"target": command.id}
    )

    by: Principal
    id: TokenId


class RunDeadlines(msgspec.Struct, frozen=True, kw_only=True):
    """Do what has fallen due: time limits, pauses that are over, pruning."""

    row: ClassVar[None] = None

    by: Principal


class BeginEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """Become active under `epoch` with this policy; creates the cluster when the log is empty."""

    row: ClassVar[None] = None

    by: Principal
    epoch: Epoch
    policy: Policy
    pools: Pools = Pools()
    """What the settings say. It holds unless they said the same before: then a person's change stays."""
    forced: bool = False
    """Somebody made it active who may lack what was acknowledged: no id that may be in use is given away again."""


class RestoreCluster(msgspec.Struct, frozen=True, kw_only=True):
    """Go on from a backup, whose state this is."""

    row: ClassVar[None] = None

    by: Principal


JobOperation = Cancel | Hold | Release | Requeue | SignalJob
"""What people may do to a job, an array or some of its members."""

Sharing = PutPartition | DeletePartition | PutTenant | DeleteTenant | SetPools | CreateToken | RevokeToken
"""How a cluster is shared, and with whom."""

Command = (
    Submit
    | JobOperation
    | Register
    | CompareInventory
    | ReportStarted
    | ReportEnding
    | ReportFinished
    | NodeSilent
    | LoseSilent
    | NodeResponded
    | DrainNode
    | ResumeNode
    | ForgetNode
    | LabelNode
    | TaintNode
    | Sharing
    | RunDeadlines
    | BeginEpoch
    | RestoreCluster
)


def command_row(command: Command) -> CommandRow[Any] | None:
    """The row of the command's kind; None for what people can't command."""
    return command.row
