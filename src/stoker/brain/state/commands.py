"""Commands to the control plane: what people, nodes and the control plane itself may ask of the state.

A closed union. Each command carries the principal that gave it; none carries a time, since the writer's clock decides.
The `row` of a command that people give says how the audit trail tells of it; that of the other commands is None.
"""

from collections.abc import Mapping, Set
from typing import Any, ClassVar

import msgspec

from stoker.brain.domain.access import Token, TokenId
from stoker.brain.domain.array import JobRef
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import Epoch, JobId, NodeName, PartitionName, Principal, TenantName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.job_changes import JobChanges
from stoker.brain.domain.label import Taint
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.notify import NoticeState, NotifyEvent
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import Pools
from stoker.brain.domain.report import Registration, Started, TaskFinished, TaskInventory
from stoker.brain.domain.secret import Secret, SecretId
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import Instant
from stoker.brain.state.events.access import token_text
from stoker.brain.state.events.row import CommandRow
from stoker.brain.state.events.union import Event

Answer = tuple[Event, ...] | Refusal
"""What a command is answered with. An empty tuple: accepted, and nothing new happened."""


class _Command(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all commands: the principal that gave it."""

    by: Principal


class _JobCommand(_Command, frozen=True, kw_only=True):
    """Base of the commands about a job, an array, or some members of an array."""

    target: JobRef


class _NodeCommand(_Command, frozen=True, kw_only=True):
    """Base of the commands about one node."""

    node: NodeName


class _Unaudited(_Command, frozen=True, kw_only=True):
    """Base of the commands that nodes and the control plane itself give, of which the audit trail says nothing."""

    row: ClassVar[None] = None


class _NodeReport(_Unaudited, frozen=True, kw_only=True):
    """Base of the reports about one node."""

    node: NodeName


def _about_node(command: _NodeCommand) -> dict[str, object]:
    return {"target": command.node}


class Submit(_Command, frozen=True, kw_only=True):
    """Accept all of these jobs or none."""

    row: ClassVar["CommandRow[Submit]"] = CommandRow(
        action="submit",
        about=lambda command: {"tenant": command.specs[0].tenant if command.specs else "", "count": len(command.specs)},
    )

    specs: tuple[JobSpec, ...]
    key: str = ""
    """Idempotency key. Empty = none; else the same key and digest are answered with the jobs of the first time."""
    digest: str = ""
    """Of the request's body."""
    ended: Mapping[JobRef, JobState] = {}
    """How jobs and members ended that the state has forgotten and dependencies name, as the history has it."""
    no_members: Set[JobRef] = frozenset()
    """Members that dependencies name, and that jobs which the state has forgotten never had by the history."""


class Cancel(_JobCommand, frozen=True, kw_only=True):
    """End a job, an array, or some of its members.

    Refused with `job_ended` when nothing is left to end; what is stopping already is accepted again.
    """

    row: ClassVar["CommandRow[Cancel]"] = CommandRow(action="cancel")


class Hold(_JobCommand, frozen=True, kw_only=True):
    """Keep a waiting job from starting.

    A live job is refused with `job_live`, unless it is a member of an array that is held as a whole.
    """

    row: ClassVar["CommandRow[Hold]"] = CommandRow(action="hold")


class Release(_JobCommand, frozen=True, kw_only=True):
    """Let a held job start."""

    row: ClassVar["CommandRow[Release]"] = CommandRow(action="release")


class Requeue(_JobCommand, frozen=True, kw_only=True):
    """Run a job once more: a live one is stopped first, an ended one is pending again.

    Of an array the members that ended otherwise than well.
    """

    row: ClassVar["CommandRow[Requeue]"] = CommandRow(action="requeue")

    hold: bool = False
    """Hold it then, until it is released."""


class SignalJob(_JobCommand, frozen=True, kw_only=True):
    """Send a signal to the processes of a running job, once."""

    row: ClassVar["CommandRow[SignalJob]"] = CommandRow(action="signal")

    signal: int


class UpdateJob(_JobCommand, frozen=True, kw_only=True):
    """Change a job, an array or some of its members: what waits in all that may change, what runs in some of it.

    Refused with `job_live` where a live job can't be changed so any more, and with `job_ended` when all have ended.
    """

    row: ClassVar["CommandRow[UpdateJob]"] = CommandRow(action="update")

    changes: JobChanges
    ended: Mapping[JobRef, JobState] = {}
    no_members: Set[JobRef] = frozenset()
    """Both as in `Submit`, for the dependencies of `changes`."""


class ForwardPort(_JobCommand, frozen=True, kw_only=True):
    """Note that a person is let through to a port of a task of a running job."""

    row: ClassVar["CommandRow[ForwardPort]"] = CommandRow(action="forward")

    rank: int
    port: int


class EnterTask(_JobCommand, frozen=True, kw_only=True):
    """Note that a person is let into a task of a running job: to execute a program there, or to its terminal."""

    row: ClassVar["CommandRow[EnterTask]"] = CommandRow(action="exec")

    rank: int
    program: str
    """What is executed, shortened; empty = nothing is, and the person gets the task's own terminal."""


class Register(_Unaudited, frozen=True, kw_only=True):
    """Let a node join with this inventory, or change the inventory it has."""

    registration: Registration


class CompareInventory(_NodeReport, frozen=True, kw_only=True):
    """Compare the tasks that a node says it runs with the state."""

    inventory: TaskInventory


class ReportStarted(_NodeReport, frozen=True, kw_only=True):
    """Note that a task has started."""

    started: Started


class ReportEnding(_NodeReport, frozen=True, kw_only=True):
    """Note that the leader of these tasks has ended while part of their process trees lives."""

    keys: tuple[TaskKey, ...]


class ReportFinished(_Unaudited, frozen=True, kw_only=True):
    """Note that a task has ended, with all of its process tree."""

    finished: TaskFinished


class WithholdStart(_Unaudited, frozen=True, kw_only=True):
    """Note that the start of a task was not sent to its node, and that nothing of it ran: no fault of the node's."""

    key: TaskKey
    error: str


class NodeSilent(_NodeReport, frozen=True, kw_only=True):
    """Take a node out of service that wasn't heard of for so long, counted as in `LoseSilent`."""

    silent_ms: int = 0


class LoseSilent(_NodeReport, frozen=True, kw_only=True):
    """Settle the attempts that an unreachable node must have ended by itself."""

    silent_ms: int
    """How long it was silent, counted by a control plane that was awake and active all the while."""


class NodeResponded(_NodeReport, frozen=True, kw_only=True):
    """Return a node to service that was unreachable and spoke again on its old stream."""


class DrainNode(_NodeCommand, frozen=True, kw_only=True):
    """Give a node no new work."""

    row: ClassVar["CommandRow[DrainNode]"] = CommandRow(action="node_drain", about=_about_node)

    reason: str


class ResumeNode(_NodeCommand, frozen=True, kw_only=True):
    """End the drain of a node."""

    row: ClassVar["CommandRow[ResumeNode]"] = CommandRow(action="node_resume", about=_about_node)


class ForgetNode(_NodeCommand, frozen=True, kw_only=True):
    """Forget a node; without `force` it is refused while the node is reachable or holds work."""

    row: ClassVar["CommandRow[ForgetNode]"] = CommandRow(action="node_forget", about=_about_node)

    force: bool


class LabelNode(_NodeCommand, frozen=True, kw_only=True):
    """Set some labels over those that the node's agent names, and take some off; the rest stay as they are."""

    row: ClassVar["CommandRow[LabelNode]"] = CommandRow(action="node_label", about=_about_node)

    labels: dict[str, str]
    remove: tuple[str, ...] = ()


class TaintNode(_NodeCommand, frozen=True, kw_only=True):
    """Put some taints on a node and take some off, by key."""

    row: ClassVar["CommandRow[TaintNode]"] = CommandRow(action="node_taint", about=_about_node)

    taints: tuple[Taint, ...]
    remove: tuple[str, ...] = ()


class PutPartition(_Command, frozen=True, kw_only=True):
    """Make a partition, or replace it whole; with `create` one that exists is refused."""

    row: ClassVar["CommandRow[PutPartition]"] = CommandRow(
        action="partition_set", about=lambda command: {"target": command.partition.name}
    )

    partition: Partition
    create: bool


class DeletePartition(_Command, frozen=True, kw_only=True):
    """Delete a partition; refused with `partition_in_use` while an unfinished job names it."""

    row: ClassVar["CommandRow[DeletePartition]"] = CommandRow(
        action="partition_delete", about=lambda command: {"target": command.name}
    )

    name: PartitionName


class PutTenant(_Command, frozen=True, kw_only=True):
    """Make a tenant, or replace it whole; with `create` one that exists is refused, without it one that doesn't."""

    row: ClassVar["CommandRow[PutTenant]"] = CommandRow(
        action="tenant_set", about=lambda command: {"target": command.tenant.name, "tenant": command.tenant.name}
    )

    tenant: Tenant
    create: bool


class DeleteTenant(_Command, frozen=True, kw_only=True):
    """Delete a tenant; refused with `tenant_in_use` while an unfinished job, a token or another tenant names it."""

    row: ClassVar["CommandRow[DeleteTenant]"] = CommandRow(
        action="tenant_delete", about=lambda command: {"target": command.name, "tenant": command.name}
    )

    name: TenantName


class SetPools(_Command, frozen=True, kw_only=True):
    """Change the shares of the GPUs that the job classes are guaranteed.

    Where the shares are strict, one below what is in use is refused without `force`.
    """

    row: ClassVar["CommandRow[SetPools]"] = CommandRow(action="quota_set", about=lambda command: {})

    pools: Pools
    force: bool = False


class CreateToken(_Command, frozen=True, kw_only=True):
    """Create a token; its id and digest were never used before."""

    row: ClassVar["CommandRow[CreateToken]"] = CommandRow(
        action="token_create", about=lambda command: {"target": command.token.id, "details": token_text(command.token)}
    )

    token: Token


class OpenSession(_Command, frozen=True, kw_only=True):
    """Open a session of the web pages, which may do what the token may that was shown."""

    row: ClassVar["CommandRow[OpenSession]"] = CommandRow(
        action="sign_in", about=lambda command: {"target": command.shown}
    )

    shown: TokenId
    id: TokenId
    """Of the session; never used before, as its digest."""
    digest: str
    expires_at: Instant
    """At the latest; it ends with the token that was shown."""
    for_commands: bool = False
    """True = of commands on a person's machine, and not of a browser."""


class RevokeToken(_Command, frozen=True, kw_only=True):
    """Revoke a token."""

    row: ClassVar["CommandRow[RevokeToken]"] = CommandRow(
        action="token_revoke", about=lambda command: {"target": command.id}
    )

    id: TokenId


class JoinNode(_Command, frozen=True, kw_only=True):
    """Know a node by its key, which its record holds as a token of role `agent`."""

    row: ClassVar["CommandRow[JoinNode]"] = CommandRow(
        action="node_join", about=lambda command: {"target": command.token.node}
    )

    token: Token
    join: TokenId
    """The join token that was shown."""


class SetSecret(_Command, frozen=True, kw_only=True):
    """Make a secret, or give one that exists another value."""

    row: ClassVar["CommandRow[SetSecret]"] = CommandRow(
        action="secret_set", about=lambda command: {"target": command.secret.name, "tenant": command.secret.tenant}
    )

    secret: Secret


class DeleteSecret(_Command, frozen=True, kw_only=True):
    """Delete a secret. Jobs that name it and have not started wait until it is there again."""

    row: ClassVar["CommandRow[DeleteSecret]"] = CommandRow(
        action="secret_delete", about=lambda command: {"target": command.secret.name, "tenant": command.secret.tenant}
    )

    secret: SecretId


class RunDeadlines(_Unaudited, frozen=True, kw_only=True):
    """Do what has fallen due: time limits, retry back-offs that are over, met dependencies, pruning."""


class TryNotification(_Unaudited, frozen=True, kw_only=True):
    """Note that the next notification of this job that is due is about to be sent."""

    job: JobId
    drop: bool = False
    """It is not sent: too many wait."""


class SettleNotification(_Unaudited, frozen=True, kw_only=True):
    """Note how it went to send a notification."""

    job: JobId
    event: NotifyEvent
    to: str
    outcome: NoticeState
    """RETRYING = it surely failed, and may be tried again."""
    error: str = ""


class MoveClock(_Unaudited, frozen=True, kw_only=True):
    """Let time limits not count a move of the log's time (`ClockMoved`)."""

    by_ms: int


class BeginEpoch(_Unaudited, frozen=True, kw_only=True):
    """Become active under `epoch` with this policy; creates the cluster when the log is empty."""

    epoch: Epoch
    policy: Policy
    pools: Pools = Pools()
    """What the settings say. It holds unless they said the same before: then a person's change stays."""
    forced: bool = False
    """A person made it active although it may lack what was acknowledged: no id that may be in use is given away
    again."""


class RestoreCluster(_Unaudited, frozen=True, kw_only=True):
    """Go on from a backup, whose state this is."""


PlainJobOperation = Cancel | Hold | Release | Requeue | SignalJob
"""Those that change what a job does, and nothing of what it is."""

JobOperation = PlainJobOperation | UpdateJob
"""What people may do to a job, an array or some of its members."""

Sharing = (
    PutPartition
    | DeletePartition
    | PutTenant
    | DeleteTenant
    | SetPools
    | CreateToken
    | OpenSession
    | RevokeToken
    | JoinNode
    | SetSecret
    | DeleteSecret
)
"""How a cluster is shared, and with whom."""

Command = (
    Submit
    | JobOperation
    | ForwardPort
    | EnterTask
    | Register
    | CompareInventory
    | ReportStarted
    | ReportEnding
    | ReportFinished
    | WithholdStart
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
    | TryNotification
    | SettleNotification
    | MoveClock
    | BeginEpoch
    | RestoreCluster
)


def command_row(command: Command) -> CommandRow[Any] | None:
    """The row of the command's kind; None for what people can't command."""
    return command.row
