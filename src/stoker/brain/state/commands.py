"""What may a caller ask for?

A closed union. Each command carries its principal; none carries a time, since the writer's clock decides.
"""

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


class Submit(msgspec.Struct, frozen=True, kw_only=True):
    """Accept all of these jobs or none."""

    by: Principal
    specs: tuple[JobSpec, ...]
    key: str = ""
    """Idempotency key. Empty = none; else the same key and digest are answered with the jobs of the first time."""
    digest: str = ""
    """Of the request's body."""


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    """End a job, an array, or some of its members. What has ended is refused with `job_ended` when nothing is left to
    end; what is stopping is answered again."""

    by: Principal
    target: JobRef


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Keep what waits from starting. What is live is refused with `job_live`, unless it is a member of an array that
    is held as a whole."""

    by: Principal
    target: JobRef


class Release(msgspec.Struct, frozen=True, kw_only=True):
    by: Principal
    target: JobRef


class Requeue(msgspec.Struct, frozen=True, kw_only=True):
    """Run it once more: what is live is stopped first, what has ended is pending again. Of an array the members that
    ended otherwise than well."""

    by: Principal
    target: JobRef


class SignalJob(msgspec.Struct, frozen=True, kw_only=True):
    """Send a signal to the processes of what runs, once."""

    by: Principal
    target: JobRef
    signal: int


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
    """A node wasn't heard of for so long, counted as in `LoseSilent`."""

    by: Principal
    node: NodeName
    silent_ms: int = 0


class LoseSilent(msgspec.Struct, frozen=True, kw_only=True):
    """Settle what an unreachable node must have ended by itself: it was silent for so long, counted by a control plane
    that was awake and active all the while."""

    by: Principal
    node: NodeName
    silent_ms: int


class NodeResponded(msgspec.Struct, frozen=True, kw_only=True):
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


class LabelNode(msgspec.Struct, frozen=True, kw_only=True):
    """Set some labels and take others off, over those that its agent names. The others stay as they are."""

    by: Principal
    node: NodeName
    labels: dict[str, str]
    remove: tuple[str, ...] = ()


class TaintNode(msgspec.Struct, frozen=True, kw_only=True):
    """Put some taints on and take others off, by key."""

    by: Principal
    node: NodeName
    taints: tuple[Taint, ...]
    remove: tuple[str, ...] = ()


class PutPartition(msgspec.Struct, frozen=True, kw_only=True):
    """Make a partition, or replace it whole. With `create` one that is there already is refused."""

    by: Principal
    partition: Partition
    create: bool


class DeletePartition(msgspec.Struct, frozen=True, kw_only=True):
    """Refused with `partition_in_use` while a job that hasn't ended names it."""

    by: Principal
    name: PartitionName


class PutTenant(msgspec.Struct, frozen=True, kw_only=True):
    """Make a tenant, or replace it whole. With `create` one that is there already is refused, without it one that
    isn't."""

    by: Principal
    tenant: Tenant
    create: bool


class DeleteTenant(msgspec.Struct, frozen=True, kw_only=True):
    """Refused with `tenant_in_use` while a job that hasn't ended, a token or another tenant names it."""

    by: Principal
    name: TenantName


class SetPools(msgspec.Struct, frozen=True, kw_only=True):
    """Share the GPUs between the classes anew. Where guarantees are walls, one below what is in use is refused
    without `force`."""

    by: Principal
    pools: Pools
    force: bool = False


class CreateToken(msgspec.Struct, frozen=True, kw_only=True):
    """`token` has an id and a digest that nobody had before."""

    by: Principal
    token: Token


class RevokeToken(msgspec.Struct, frozen=True, kw_only=True):
    by: Principal
    id: TokenId


class RunDeadlines(msgspec.Struct, frozen=True, kw_only=True):
    """Do what has fallen due: time limits, pauses that are over, pruning."""

    by: Principal


class BeginEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """Become active under `epoch` with this policy; creates the cluster when the log is empty."""

    by: Principal
    epoch: Epoch
    policy: Policy
    pools: Pools = Pools()
    """What the settings say. It holds unless they said the same before: then a person's change stays."""
    forced: bool = False
    """Somebody made it active who may lack what was acknowledged: no id that may be in use is given away again."""


class RestoreCluster(msgspec.Struct, frozen=True, kw_only=True):
    """Go on from a backup, whose state this is."""

    by: Principal


Sharing = PutPartition | DeletePartition | PutTenant | DeleteTenant | SetPools | CreateToken | RevokeToken
"""How a cluster is shared, and with whom."""

Command = (
    Submit
    | Cancel
    | Hold
    | Release
    | Requeue
    | SignalJob
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
