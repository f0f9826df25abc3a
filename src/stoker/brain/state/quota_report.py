"""Use of guarantees and limits by class pool and by tenant, and guarantees whose GPUs are lent.

All of it is read from the indexes of the state at one instant, so that the numbers add up.

Rules: L1  a job that waits for GPUs, and is within the guarantee of its class or of a tenant on its path, is told who
           holds more than their guarantee: the other class; tenants beside its own, and beside those above
       L2  no GPU is counted twice: of a tree only its top is named
"""

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from stoker.brain.domain.array import count_of
from stoker.brain.domain.demand import JobClass
from stoker.brain.domain.gpu import WHOLE_GPU, gpus_number
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.job import Job
from stoker.brain.domain.quota import PoolDemand
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.tenant import NO_TENANT, Tenant, path_of
from stoker.brain.domain.units import counted
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.quota_limits import OTHER_CLASS, QuotaLimits, within_guarantee
from stoker.brain.state.state_view import StateView
from stoker.brain.state.view import Bucket

HOLDERS_MAX: Final = 100
"""Tenants named as holders of one guarantee."""
TENANTS_MAX: Final = 100
"""Tenants with numbers of their own: each is a series of every metric about tenants."""
OTHERS: Final = "_others"
"""No tenant can have this name."""
_FOR_GPUS: Final = (ReasonCode.INSUFFICIENT_GPUS, ReasonCode.INSUFFICIENT_SHARE, ReasonCode.INSUFFICIENT_NODES)
_PERHAPS_FOR_GPUS: Final = (*_FOR_GPUS, ReasonCode.NO_FITTING_NODE, ReasonCode.RESERVED, ReasonCode.GUARANTEE_KEPT)


def pool_demands(state: ClusterState) -> dict[JobClass, PoolDemand]:
    """Return the thousandths of GPUs that each class holds and that its jobs in the queue ask for.

    Limits: costs about 3 us for each shape that waits, whatever the length of the queue.
    """
    usage_ledger = state.indexes.usage_ledger
    limits = QuotaLimits(state.tenants, state.pools, state.indexes.milli_in_service)
    used = {each: usage_ledger.used_by_class(each).gpu_milli for each in JobClass}
    left = {each: most - used[each] for each, most in state.pools.guaranteed_milli(limits.gpu_milli).items()}
    waiting, covered = dict.fromkeys(JobClass, 0), dict.fromkeys(JobClass, 0)
    for bucket in StateView(state).pending():
        job_class, milli = bucket.shape.job_class, bucket.shape.demand.total_milli
        jobs = _jobs(state, bucket) if milli else 0
        waiting[job_class] += milli * jobs
        if jobs and limits.before(bucket.shape, usage_ledger) is None:
            covered[job_class] += milli * max(0, min(jobs, left[job_class] // milli))
    return {each: PoolDemand(used[each], waiting[each], covered[each]) for each in JobClass}


def _jobs(state: ClusterState, bucket: Bucket) -> int:
    """An array counts as those of its members that may start."""
    count = len(bucket.jobs)
    for array_id in bucket.arrays:
        array = state.jobs[array_id]
        slots, lazy = state.indexes.arrays.slots_left(array), count_of(array.as_array[1].lazy)
        count += lazy if slots is None else min(lazy, slots)
    return count


class TenantUsage(NamedTuple):
    """Use and quota of a tenant with all beneath it: thousandths of GPUs that it holds, GPUs, and numbers of jobs."""

    gpu_milli: int
    guaranteed: int
    limit: int | None
    running: int
    pending: int


def tenant_usage(state: ClusterState, most: int = TENANTS_MAX) -> dict[str, TenantUsage]:
    """Return the use of the tenants that use most, and under OTHERS that of all other trees."""
    usage_ledger = state.indexes.usage_ledger
    busy = dict.fromkeys((*usage_ledger.by_tenant, *usage_ledger.pending, *usage_ledger.promised))
    idle = (name for name in sorted(state.tenants) if name not in busy)
    # Of tenants with equal use the one higher in the tree comes first: above each tenant shown all are shown.
    ranked = [*sorted(busy, key=lambda name: (*_rank(state, name), name)), *idle]
    shown: dict[str, TenantUsage] = {name: _usage(state, name) for name in ranked[:most]}
    if len(ranked) > most:
        others = [_usage(state, name) for name in ranked[most:] if not state.tenants[name].parent]
        sums = (sum(usage[at] or 0 for usage in others) for at in range(len(TenantUsage._fields)))
        shown[OTHERS] = TenantUsage(*sums)._replace(limit=None)
    return shown


def _usage(state: ClusterState, name: TenantName) -> TenantUsage:
    usage_ledger, quota = state.indexes.usage_ledger, state.tenants[name].quota
    used = usage_ledger.used_by(name)
    return TenantUsage(used.gpu_milli, quota.guaranteed, quota.gpus_max, used.jobs, usage_ledger.pending_of(name))


def _rank(state: ClusterState, name: TenantName) -> tuple[int, ...]:
    usage, depth = _usage(state, name), len(list(path_of(state.tenants, name)))
    return -usage.gpu_milli, -usage.running, -usage.pending, -usage.guaranteed, depth


class Holder(NamedTuple):
    """A class, or a tenant with all beneath it, that holds GPUs beyond its guarantee."""

    kind: Literal["class", "tenant"]
    name: str
    gpus: int | float
    """Beyond the guarantee."""


class LentGuarantee(NamedTuple):
    """The guarantee of a class or tenant, how far its own jobs use it, and who holds the rest, the largest first."""

    kind: Literal["class", "tenant"]
    name: str
    used: int | float
    guaranteed: int | float
    holders: Sequence[Holder]


def lent_guarantees(state: ClusterState, job: Job, reason: Reason | None) -> list[LentGuarantee]:
    """Return the guarantees that cover a job which waits for GPUs, and whose GPUs are lent (L1).

    `reason` is why it waits. Limits: costs a look at every tenant.
    """
    milli = job.spec.demand.total_milli
    if reason is None or reason.code not in _FOR_GPUS or not milli:
        return []
    covering = (_of_class(state, job.spec.job_class, milli), _of_tenant(state, job.spec.tenant, milli))
    return [each for each in covering if each is not None and each.holders]


def _of_class(state: ClusterState, own: JobClass, milli: int) -> LentGuarantee | None:
    usage_ledger, other = state.indexes.usage_ledger, OTHER_CLASS[own]
    guaranteed = state.pools.guaranteed_milli(state.indexes.milli_in_service)
    used = usage_ledger.used_by_class(own).gpu_milli
    beyond = usage_ledger.used_by_class(other).gpu_milli - guaranteed[other]
    if used + milli > guaranteed[own] or beyond <= 0:
        return None
    numbers = gpus_number(used), gpus_number(guaranteed[own])
    return LentGuarantee("class", own.value, *numbers, [Holder("class", other.value, gpus_number(beyond))])


def _of_tenant(state: ClusterState, name: TenantName, milli: int) -> LentGuarantee | None:
    usage_ledger, path = state.indexes.usage_ledger, list(path_of(state.tenants, name))
    at = next((at for at, tenant in enumerate(path) if within_guarantee(tenant, usage_ledger, milli)), None)
    if at is None:
        return None
    tenant, beyond = path[at], dict(_beyond(state, path[at:]))
    largest = sorted(beyond, key=lambda holder: (-beyond[holder], holder))[:HOLDERS_MAX]
    holders = [Holder("tenant", each, gpus_number(beyond[each])) for each in largest]
    used = gpus_number(usage_ledger.used_by(tenant.name).gpu_milli)
    return LentGuarantee("tenant", tenant.name, used, tenant.quota.guaranteed, holders)


def _beyond(state: ClusterState, path: Sequence[Tenant]) -> Iterator[tuple[TenantName, int]]:
    """Tenants beside this path that hold more than their guarantee, with all beneath them (L2); of those on it above
    the first, what their own jobs hold of what is promised to others."""
    usage_ledger = state.indexes.usage_ledger
    beneath: dict[TenantName, list[Tenant]] = {}
    for tenant in state.tenants.values():
        beneath.setdefault(tenant.parent, []).append(tenant)
    on_path = {tenant.name for tenant in path}
    for above in (*(tenant.name for tenant in path[1:]), NO_TENANT):
        children = beneath.get(above, ())
        for child in children:
            more = usage_ledger.used_by(child.name).gpu_milli - child.quota.guaranteed * WHOLE_GPU
            if more > 0 and child.name not in on_path:
                yield child.name, more
        if above:
            used = usage_ledger.used_by
            own = used(above).gpu_milli - sum(used(child.name).gpu_milli for child in children)
            left = state.tenants[above].quota.guaranteed - sum(child.quota.guaranteed for child in children)
            left = max(0, left) * WHOLE_GPU
            if own > left:
                yield above, own - left


def guarantee_warnings(state: ClusterState, tenant: Tenant, who: str = "it") -> Iterator[str]:
    """Yield what the cluster is too small for; nothing before it has a GPU, since it may be set up in any order."""
    promised = tenant.quota.guaranteed
    has = sum(len(node.mended.gpus) for node in state.nodes.values() if not node.forgotten)
    if not has or not promised:
        return
    if promised > has:
        yield f"{who} is guaranteed {counted(promised, 'GPU')}, and the cluster has {has}: it can't get them all"
        return
    together = sum(each.quota.guaranteed for each in state.tenants.values() if not each.parent)
    if together > has:
        yield f"tenants are guaranteed {counted(together, 'GPU')} together, and the cluster has {has}"


def unmet_guarantees(state: ClusterState, job: Job, reason: Reason | None) -> list[str]:
    """Return why the guarantees of a job that waits for GPUs can't be met, each once: the cluster is too small."""
    if reason is None or reason.code not in _PERHAPS_FOR_GPUS or not job.spec.demand.total_milli:
        return []
    path = path_of(state.tenants, job.spec.tenant)
    return [*dict.fromkeys(words for each in path for words in guarantee_warnings(state, each, f"tenant {each.name}"))]
