"""Which row of the audit trail does a command leave?

One that left facts is read from those, so that a start reads the same row from the log again; one that left none is
read from the command itself.

Rules: D1  a command's row is made from all of its facts; what only followed from it (a task that ended, a key that was
           kept) doesn't name its action
       D2  orders to members are filed under their array
       D3  what a row holds is copied word by word, never a whole record: specs have environments, tokens have digests
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from stoker.brain.domain.access import Token
from stoker.brain.domain.array import JobRef, count_of, indexes_of, spans_of
from stoker.brain.domain.audit import UNCHANGED, AuditRow, members_text
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import CONTROL, JobId, Position, Principal, TenantName
from stoker.brain.domain.job import StopCause
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.quota import WHOLE, Pools
from stoker.brain.domain.tenant import NO_TENANT, Tenant
from stoker.brain.domain.units import Instant, human_duration
from stoker.brain.state import commands as told
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events import access, job, leadership, node, partition, tenant
from stoker.brain.state.events.union import Event
from stoker.wire.token import without_secrets

TEXT_MAX: Final = 200
"""Letters of a target or of details; what is cut off ends in dots."""

ACTIONS: Final[Mapping[type, str]] = {
    told.Submit: "submit",
    told.Cancel: "cancel",
    told.Hold: "hold",
    told.Release: "release",
    told.Requeue: "requeue",
    told.SignalJob: "signal",
    told.DrainNode: "node_drain",
    told.ResumeNode: "node_resume",
    told.ForgetNode: "node_forget",
    told.LabelNode: "node_label",
    told.TaintNode: "node_taint",
    told.PutPartition: "partition_set",
    told.DeletePartition: "partition_delete",
    told.PutTenant: "tenant_set",
    told.DeleteTenant: "tenant_delete",
    told.SetPools: "quota_set",
    told.CreateToken: "token_create",
    told.RevokeToken: "token_revoke",
}
"""What people may command. The other commands are those of nodes and of the control plane itself."""
RESTORE: Final = "restore"
"""What a person did while no control plane ran."""


def is_person(by: Principal) -> bool:
    """Is this neither a node's report nor a decision of the control plane?"""
    return by != CONTROL and not by.startswith("node:")


class AuditRowBuilder:
    """The facts of one command, read one by one right after each was applied."""

    __slots__ = ("_indexes", "_weight", "_whole", "_words", "at", "by", "position")

    def __init__(self, by: Principal, at: Instant) -> None:
        self.by, self.at = by, at
        self.position = Position(0)
        self._words: dict[str, Any] = {}
        self._weight = 0
        self._whole = False
        self._indexes: list[int] = []

    def read(self, state: ClusterState, position: Position, event: Event) -> None:
        self.position = position
        reading = _READINGS.get(type(event))
        if reading is not None:
            reading(self, state, event)

    def row(self) -> AuditRow | None:
        """None when the facts tell of no command."""
        if not self._weight:
            return None
        if self._indexes and not self._whole:
            spans = spans_of(sorted(dict.fromkeys(self._indexes)))
            self._words["members"], self._words["count"] = members_text(spans), count_of(spans)
        return AuditRow(position=self.position, at=self.at, by=self.by, **self._words)

    def submitted(self, state: ClusterState, event: job.JobSubmitted) -> None:
        words = self._words
        if self._weight:
            words["last_job"] = event.job
            words["count"] += 1
            return
        self._weight = _STRONG
        words["action"], words["job"], words["tenant"], words["count"] = "submit", event.job, event.spec.tenant, 1

    def ordered(self, state: ClusterState, of: JobId, action: str, weight: int, details: str = "") -> None:
        """An order to a job, which may be an array or a member of one."""
        record = state.jobs[of]
        self._say(action, weight, job=record.array_of or record.id, tenant=record.spec.tenant, count=1, details=details)
        if record.array_of:
            self._indexes.append(record.array_index)

    def to_whole(self, state: ClusterState, of: JobId) -> None:
        """The order was about an array itself, if that is one."""
        spec = state.jobs[of].spec.array
        if state.jobs[of].members is not None and spec is not None:
            self._whole = True
            self._words["count"] = spec.count

    def members(self, state: ClusterState, array: JobId, indexes: list[int], action: str, weight: int) -> None:
        self._say(action, weight, job=array, tenant=state.jobs[array].spec.tenant)
        self._indexes.extend(indexes)

    def about(self, action: str, target: str, details: str = "", tenant: TenantName = NO_TENANT) -> None:
        """Something that is no job. It says what the command was, whatever else followed."""
        self._indexes.clear()
        self._words = {}
        self._say(action, _STRONG, target=short(target), details=short(details), tenant=tenant)

    def _say(self, action: str, weight: int, **words: object) -> None:
        if weight >= self._weight and not self._whole:
            self._weight = weight
            self._words = {"action": action, **words}


_WEAK, _USUAL, _STRONG = 1, 2, 3
"""Which of several facts names the action."""


def _finished(row_builder: AuditRowBuilder, state: ClusterState, event: job.JobFinished) -> None:
    if event.state is JobState.CANCELLED:
        row_builder.ordered(state, event.job, "cancel", _USUAL)


def _stopping(row_builder: AuditRowBuilder, state: ClusterState, event: job.AttemptStopping) -> None:
    if event.cause is StopCause.CANCELLED:
        row_builder.ordered(state, event.job, "cancel", _USUAL)
    elif event.cause is StopCause.REQUEUED:
        row_builder.ordered(state, event.job, "requeue", _USUAL)


def _cancelled(row_builder: AuditRowBuilder, state: ClusterState, event: job.MembersCancelled) -> None:
    row_builder.members(state, event.array, list(indexes_of(event.indexes)), "cancel", _USUAL)


def _made(row_builder: AuditRowBuilder, state: ClusterState, event: job.MemberMade) -> None:
    row_builder.members(state, event.array, [event.index], "hold" if event.held else "release", _WEAK)


def _held(row_builder: AuditRowBuilder, state: ClusterState, event: job.JobHeld) -> None:
    row_builder.ordered(state, event.job, "hold", _USUAL)
    row_builder.to_whole(state, event.job)


def _released(row_builder: AuditRowBuilder, state: ClusterState, event: job.JobReleased) -> None:
    row_builder.ordered(state, event.job, "release", _USUAL)
    row_builder.to_whole(state, event.job)


def _returned(row_builder: AuditRowBuilder, state: ClusterState, event: job.JobReturned) -> None:
    row_builder.ordered(state, event.job, "requeue", _USUAL)


def _signalled(row_builder: AuditRowBuilder, state: ClusterState, event: job.JobSignalled) -> None:
    row_builder.ordered(state, event.job, "signal", _USUAL, f"signal {event.signal}")


def _labelled(row_builder: AuditRowBuilder, state: ClusterState, event: node.NodeLabelled) -> None:
    labels = (f"{key}={value}" if value is not None else f"{key} taken off" for key, value in event.labels.items())
    row_builder.about("node_label", event.node, ", ".join(sorted(labels)))


def _tainted(row_builder: AuditRowBuilder, state: ClusterState, event: node.NodeTainted) -> None:
    row_builder.about("node_taint", event.node, ", ".join((*event.taints, *(f"{key} taken off" for key in event.off))))


def _tenant(row_builder: AuditRowBuilder, state: ClusterState, event: tenant.TenantDefined) -> None:
    name = event.tenant.name
    row_builder.about("tenant_set", name, tenant_text(event.tenant), name)


def _token(row_builder: AuditRowBuilder, state: ClusterState, event: access.TokenCreated) -> None:
    row_builder.about("token_create", event.token.id, token_text(event.token), event.token.tenant)


def _restored(row_builder: AuditRowBuilder, state: ClusterState, event: leadership.ClusterRestored) -> None:
    row_builder.about(
        RESTORE,
        "",
        f"went on at position {event.backup}, perhaps without what came after; job ids go on at {event.next_job_id}",
    )


_READINGS: Final[Mapping[type, Callable[[AuditRowBuilder, ClusterState, Any], None]]] = {
    job.JobSubmitted: AuditRowBuilder.submitted,
    job.JobFinished: _finished,
    job.AttemptStopping: _stopping,
    job.MembersCancelled: _cancelled,
    job.MemberMade: _made,
    job.JobHeld: _held,
    job.JobReleased: _released,
    job.JobReturned: _returned,
    job.JobSignalled: _signalled,
    node.NodeDrained: lambda row_builder, _, event: row_builder.about("node_drain", event.node, event.reason),
    node.NodeResumed: lambda row_builder, _, event: row_builder.about("node_resume", event.node),
    node.NodeForgotten: lambda row_builder, _, event: row_builder.about("node_forget", event.node),
    node.NodeLabelled: _labelled,
    node.NodeTainted: _tainted,
    partition.PartitionDefined: lambda row_builder, _, event: row_builder.about("partition_set", event.partition.name),
    partition.PartitionDeleted: lambda row_builder, _, event: row_builder.about("partition_delete", event.name),
    tenant.TenantDefined: _tenant,
    tenant.TenantDeleted: lambda row_builder, _, event: row_builder.about("tenant_delete", event.name, "", event.name),
    tenant.PoolsSet: lambda row_builder, _, event: row_builder.about("quota_set", "", pools_text(event.pools)),
    access.TokenCreated: _token,
    leadership.ClusterRestored: _restored,
    access.TokenRevoked: lambda row_builder, _, event: row_builder.about("token_revoke", event.id),
}


def tenant_text(of: Tenant) -> str:
    limits, longest = of.quota.limits, of.quota.limits.time_ms
    walls = ((name, getattr(limits, name)) for name in limits.__struct_fields__ if name != "time_ms")
    said = [f"{name} at most {value}" for name, value in walls if value is not None]
    return ", ".join(
        [f"beneath {of.parent}"] * bool(of.parent)
        + [f"{of.quota.guaranteed} GPUs guaranteed"] * bool(of.quota.guaranteed)
        + said
        + [f"time at most {human_duration(longest or 0)}"] * (longest is not None)
        + ["doesn't borrow"] * (not of.quota.borrow)
        + ["doesn't lend"] * (not of.quota.lend)
        + [f"tier {of.tier}"] * (of.tier is not None)
    )


def token_text(token: Token) -> str:
    bound = (f"{name} {value}" for name, value in (("tenant", token.tenant), ("user", token.user)) if value)
    return ", ".join((f"role {token.role}", *bound))


def pools_text(pools: Pools) -> str:
    shares = f"online {_share(pools.online)}, batch {_share(pools.batch)}"
    return f"{shares}, strict" if pools.strict else shares


def _share(parts: int) -> str:
    return f"{parts / WHOLE:.6f}".rstrip("0").rstrip(".")


def unheeded_row(
    state: ClusterState, command: told.Command, now: Instant, number: int, refusal: Refusal | None
) -> AuditRow | None:
    """Of a command that left no fact: refused or, with None, one that changed nothing."""
    action = ACTIONS.get(type(command))
    if action is None:
        return None
    return AuditRow(
        position=state.position,
        number=number,
        at=now,
        by=command.by,
        action=action,
        outcome=refusal.code if refusal else UNCHANGED,
        **_words_of(state, command),
    )


class AuditAction(NamedTuple):
    """What a face was asked for, in the words of the audit trail."""

    action: str
    target: str = ""
    job: JobRef | None = None


def denied_row(
    state: ClusterState, by: Principal, asked: AuditAction, now: Instant, number: int, refusal: Refusal
) -> AuditRow:
    """Of what its caller may not ask."""
    words = {"target": short(asked.target)} if asked.job is None else _of_target(state, asked.job)
    action = asked.action
    return AuditRow(position=state.position, number=number, at=now, by=by, action=action, outcome=refusal.code, **words)


def _words_of(state: ClusterState, command: told.Command) -> dict[str, Any]:
    match command:
        case told.Submit():
            named = command.specs[0].tenant if command.specs else ""
            return {"tenant": short(named), "count": len(command.specs)}
        case told.Cancel() | told.Hold() | told.Release() | told.Requeue() | told.SignalJob():
            return _of_target(state, command.target)
        case told.DrainNode() | told.ResumeNode() | told.ForgetNode() | told.LabelNode() | told.TaintNode():
            return {"target": short(command.node)}
        case told.PutPartition():
            return {"target": short(command.partition.name)}
        case told.DeletePartition():
            return {"target": short(command.name)}
        case told.PutTenant():
            return {"target": short(command.tenant.name), "tenant": short(command.tenant.name)}
        case told.DeleteTenant():
            return {"target": short(command.name), "tenant": short(command.name)}
        case told.CreateToken():
            return {"target": command.token.id, "details": short(token_text(command.token))}
        case told.RevokeToken():
            return {"target": short(command.id)}
        case _:
            return {}


def _of_target(state: ClusterState, ref: JobRef) -> dict[str, Any]:
    ref = state.locate(ref.job) if ref.members is None else ref
    record = state.jobs.get(ref.job)
    words: dict[str, Any] = {"job": ref.job, "tenant": record.spec.tenant if record else NO_TENANT, "count": 1}
    if record is not None and record.array_of:
        words |= {"job": record.array_of, "members": str(record.array_index)}
    elif ref.members is not None:
        words |= {"members": members_text(ref.members), "count": count_of(ref.members)}
    return words


def short(text: str) -> str:
    """A text for a row: never long, and without the secret of a token that was typed in the place of its id."""
    text = without_secrets(text[: 2 * TEXT_MAX])
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 3]}..."
