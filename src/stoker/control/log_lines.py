"""Which durable facts become log lines for operators?

Names and fields are those that the seeds' users already search for: `task_submitted`, `agent_registered`, `task_id`.
A bulk submit must not become ten thousand lines, so beyond `LINES_MAX` of one kind in one batch only their number
is written. Jobs are counted by `job_meters`; what happens to nodes is counted here, line by line.
"""

from collections.abc import Callable, Sequence
from typing import Final

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.ids import Principal
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.units import SECOND_MS
from stoker.brain.domain.where import where_text
from stoker.brain.state.admit.tenant import share_text
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact
from stoker.brain.state.events.access import TokenCreated, TokenRevoked
from stoker.brain.state.events.job import AttemptStopping, JobFinished, JobPlaced, JobRequeued, JobSubmitted
from stoker.brain.state.events.leadership import ClusterRestored, EpochBegan
from stoker.brain.state.events.node import (
    LeaseBroken,
    NodeDrained,
    NodeForgotten,
    NodeLabelled,
    NodeLost,
    NodeReachable,
    NodeRegistered,
    NodeResumed,
    NodeTainted,
)
from stoker.brain.state.events.partition import PartitionDefined, PartitionDeleted
from stoker.brain.state.events.tenant import PoolsSet, TenantDefined, TenantDeleted
from stoker.control.feed import Entry
from stoker.ports import Telemetry

LINES_MAX: Final = 32
WENT_WRONG: Final = frozenset({JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.NODE_FAILED})
"""Such an end is told once more, under the name that people look for."""

Fields = dict[str, object]


class Announcer:
    """A listener of the writer."""

    def __init__(self, state: ClusterState, telemetry: Telemetry) -> None:
        self._state = state
        self._telemetry = telemetry

    def committed(self, entries: Sequence[Entry]) -> None:
        lines: dict[str, list[Fact]] = {}
        for _, fact in entries:
            name = _NAMES.get(type(fact.event))
            if name is not None:
                lines.setdefault(name, []).append(fact)
        for name, facts in lines.items():
            if name not in COUNTED_ELSEWHERE:
                self._telemetry.count(name, len(facts))
            for fact in facts[:LINES_MAX]:
                self._write(name, fact)
            if len(facts) > LINES_MAX:
                self._telemetry.event(f"{name}_more", count=len(facts) - LINES_MAX)

    def _write(self, name: str, fact: Fact) -> None:
        fields = {**_FIELDS[type(fact.event)](fact.event), **self._job_fields(fact)}
        say = self._telemetry.warn if name in LOUD else self._telemetry.event
        say(name, **fields)
        if isinstance(fact.event, JobFinished) and fact.event.state in WENT_WRONG:
            self._telemetry.event("task_failed", **fields)

    def _job_fields(self, fact: Fact) -> Fields:
        job_id = getattr(fact.event, "job", None)
        job = self._state.jobs.get(job_id) if job_id is not None else None
        if job is None:
            return _by(fact.by)
        ran = job.attempts if isinstance(fact.event, JobFinished) else ()
        placements = [task.placement for task in ran[-1].tasks] if ran else []
        where = {"agent_id": _nodes(placements), "gpu_ids": _gpus(placements)} if ran else {}
        return {**where, "task_id": job.label, "priority": job.spec.priority, **_by(fact.by)}


def _by(by: Principal) -> Fields:
    return {"by": by}


def _submitted(event: JobSubmitted) -> Fields:
    demand = event.spec.demand
    return {"job_name": event.spec.name, "gpus": demand.total_gpus, "tasks": demand.tasks, "tenant": event.spec.tenant}


def _placed(event: JobPlaced) -> Fields:
    return {"attempt": event.attempt, "agent_id": _nodes(event.tasks), "gpu_ids": _gpus(event.tasks)}


def _nodes(placements: Sequence[TaskPlacement]) -> str:
    return ",".join(dict.fromkeys(placement.node for placement in placements))


def _gpus(placements: Sequence[TaskPlacement]) -> str:
    return ",".join(uuid for placement in placements for uuid in placement.gpus)


def _stopping(event: AttemptStopping) -> Fields:
    return {"attempt": event.attempt, "cause": event.cause or "ending"}


def _finished(event: JobFinished) -> Fields:
    return {"state": event.state, "exit_code": event.exit_code, "reason": event.reason.code if event.reason else None}


def _requeued(event: JobRequeued) -> Fields:
    return {"outcome": event.outcome, "not_before": event.not_before}


def _registered(event: NodeRegistered) -> Fields:
    gpus = event.inventory.gpus
    models = dict.fromkeys(gpu.model for gpu in gpus)
    return {"agent_id": event.node, "gpus": len(gpus), "models": ",".join(models), "cpus": event.inventory.cpus}


def _node(event: NodeReachable | NodeResumed | NodeForgotten) -> Fields:
    return {"agent_id": event.node}


def _lost(event: NodeLost) -> Fields:
    return {"agent_id": event.node, "silent_s": round(event.silent_ms / SECOND_MS, 1)}


def _broken(event: LeaseBroken) -> Fields:
    return {"agent_id": event.node, "attempt": event.attempt, "rank": event.rank}


def _drained(event: NodeDrained) -> Fields:
    return {"agent_id": event.node, "reason": event.reason}


def _labelled(event: NodeLabelled) -> Fields:
    words = [key + ("-" if value is None else f"={value}") for key, value in sorted(event.labels.items())]
    return {"agent_id": event.node, "labels": ",".join(words)}


def _tainted(event: NodeTainted) -> Fields:
    return {"agent_id": event.node, "taints": ",".join([*event.taints, *(f"{key}-" for key in event.off)])}


def _defined(event: PartitionDefined) -> Fields:
    return {"partition": event.partition.name, "where": where_text(event.partition.where)}


def _deleted(event: PartitionDeleted) -> Fields:
    return {"partition": event.name}


def _tenant(event: TenantDefined) -> Fields:
    tenant = event.tenant
    limit, guaranteed = tenant.quota.gpus_max, tenant.quota.guaranteed
    return {"tenant": tenant.name, "parent": tenant.parent, "gpus_max": limit, "guaranteed_gpus": guaranteed}


def _tenant_deleted(event: TenantDeleted) -> Fields:
    return {"tenant": event.name}


def _pools(event: PoolsSet) -> Fields:
    pools = event.pools
    online, batch = share_text(pools.online), share_text(pools.batch)
    return {"online_percent": online, "batch_percent": batch, "strict": pools.strict}


def _token(event: TokenCreated) -> Fields:
    token = event.token
    return {"token": token.id, "role": token.role, "tenant": token.tenant, "user": token.user}


def _revoked(event: TokenRevoked) -> Fields:
    return {"token": event.id}


def _epoch(event: EpochBegan) -> Fields:
    return {"role": "active", "epoch": event.epoch}


def _restored(event: ClusterRestored) -> Fields:
    return {"backup": event.backup, "next_job_id": event.next_job_id}


_LINES: Final[dict[type, tuple[str, Callable[..., Fields]]]] = {
    JobSubmitted: ("task_submitted", _submitted),
    JobPlaced: ("task_scheduled", _placed),
    AttemptStopping: ("task_stopping", _stopping),
    JobFinished: ("task_finished", _finished),
    JobRequeued: ("task_requeued", _requeued),
    NodeRegistered: ("agent_registered", _registered),
    NodeReachable: ("agent_reachable", _node),
    NodeDrained: ("agent_drained", _drained),
    NodeResumed: ("agent_resumed", _node),
    NodeForgotten: ("agent_forgotten", _node),
    NodeLost: ("agent_lost", _lost),
    LeaseBroken: ("lease_broken", _broken),
    NodeLabelled: ("agent_labelled", _labelled),
    NodeTainted: ("agent_tainted", _tainted),
    PartitionDefined: ("partition_defined", _defined),
    PartitionDeleted: ("partition_deleted", _deleted),
    TenantDefined: ("tenant_defined", _tenant),
    TenantDeleted: ("tenant_deleted", _tenant_deleted),
    PoolsSet: ("quota_updated", _pools),
    TokenCreated: ("token_created", _token),
    TokenRevoked: ("token_revoked", _revoked),
    EpochBegan: ("role_changed", _epoch),
    ClusterRestored: ("cluster_restored", _restored),
}
_NAMES: Final = {kind: line[0] for kind, line in _LINES.items()}
_FIELDS: Final = {kind: line[1] for kind, line in _LINES.items()}
LOUD: Final = frozenset({"agent_lost", "lease_broken"})
"""Lines that are warnings."""
COUNTED_ELSEWHERE: Final = frozenset({"task_submitted", "task_scheduled", "task_finished"})
