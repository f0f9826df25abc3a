"""Who holds and who wants which GPUs, and who has lent his?

Read from the indexes of the state at one instant, so that the numbers add up.

Rules: L1  a job that waits for GPUs, and is within the guarantee of its class or of a tenant on its path, is told who
           holds more than their guarantee: the other class; tenants beside its own, and beside those above
       L2  nobody is counted twice: of a tree only its top is named
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from stoker.brain.domain.array import count_of
from stoker.brain.domain.demand import JobClass
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.job import Job
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.tenant import NO_TENANT, Tenant, path_of
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.quota_limits import QuotaLimits, other_class, within_guarantee
from stoker.brain.state.state_view import StateView
from stoker.brain.state.view import Bucket
from stoker.wire.rest.lent import HolderView, LentView
from stoker.wire.rest.quota import PoolNow, QuotaView, quota_view

NAMED_MAX: Final = 5
"""Holders in the sentence; the answer has them all, up to `HOLDERS_MAX`."""
HOLDERS_MAX: Final = 100
FIGURES_MAX: Final = 100
"""Tenants with figures of their own: each is a series of every metric about tenants."""
OTHERS: Final = "_others"
"""No tenant can have this name."""
_FOR_GPUS: Final = (ReasonCode.INSUFFICIENT_GPUS, ReasonCode.INSUFFICIENT_NODES)


def quota_now(state: ClusterState) -> QuotaView:
    """Its cost: about 3 us for each shape that waits, whatever the length of the queue."""
    usage_ledger, free = state.indexes.usage_ledger, state.indexes.free_gpus
    walls = QuotaLimits(state.tenants, state.pools, usage_ledger.held_gpus + free)
    used = {each: usage_ledger.used_by_class(each).gpus for each in JobClass}
    left = {each: most - used[each] for each, most in state.pools.guaranteed(walls.gpus).items()}
    wanted, covered = dict.fromkeys(JobClass, 0), dict.fromkeys(JobClass, 0)
    for bucket in StateView(state).pending():
        job_class, gpus = bucket.shape.job_class, bucket.shape.demand.total_gpus
        jobs = _jobs(state, bucket) if gpus else 0
        wanted[job_class] += gpus * jobs
        if jobs and walls.before(bucket.shape, usage_ledger) is None:
            covered[job_class] += gpus * max(0, min(jobs, left[job_class] // gpus))
    return quota_view(state.pools, free, {each: PoolNow(used[each], wanted[each], covered[each]) for each in JobClass})


def _jobs(state: ClusterState, bucket: Bucket) -> int:
    """An array counts as those of its members that may come up."""
    count = len(bucket.jobs)
    for array_id in bucket.arrays:
        _, members = state.jobs[array_id].as_array
        room, lazy = state.indexes.arrays.room(state.jobs[array_id]), count_of(members.lazy)
        count += lazy if room is None else min(lazy, room)
    return count


class TenantFigure(NamedTuple):
    """A tenant with all beneath it, in numbers."""

    gpus: int
    guaranteed: int
    limit: int | None
    running: int
    pending: int


def tenant_figures(state: ClusterState, most: int = FIGURES_MAX) -> dict[str, TenantFigure]:
    """The tenants that use most, and under OTHERS all that are neither among them nor beneath one of them."""
    usage_ledger = state.indexes.usage_ledger
    busy = dict.fromkeys((*usage_ledger.by_tenant, *usage_ledger.pending, *usage_ledger.promised))
    idle = (name for name in sorted(state.tenants) if name not in busy)
    # Of those that use alike the one higher in the tree comes first, so whoever is shown has all above him shown too.
    ranked = [*sorted(busy, key=lambda name: (*_least(state, name), name)), *idle]
    shown: dict[str, TenantFigure] = {name: _figure(state, name) for name in ranked[:most]}
    if len(ranked) > most:
        others = [_figure(state, name) for name in ranked[most:] if not state.tenants[name].parent]
        sums = (sum(figure[at] or 0 for figure in others) for at in range(len(TenantFigure._fields)))
        shown[OTHERS] = TenantFigure(*sums)._replace(limit=None)
    return shown


def _figure(state: ClusterState, name: TenantName) -> TenantFigure:
    usage_ledger, quota = state.indexes.usage_ledger, state.tenants[name].quota
    used = usage_ledger.used_by(name)
    return TenantFigure(used.gpus, quota.guaranteed, quota.gpus_max, used.jobs, usage_ledger.pending_of(name))


def _least(state: ClusterState, name: TenantName) -> tuple[int, ...]:
    figure, depth = _figure(state, name), len(list(path_of(state.tenants, name)))
    return -figure.gpus, -figure.running, -figure.pending, -figure.guaranteed, depth


def lent_story(state: ClusterState, job: Job, reason: Reason | None) -> LentView | None:
    """Who holds the GPUs that this job waits for, where a guarantee covers it (L1). None where that isn't why.

    Its cost: a look at every tenant.
    """
    gpus = job.spec.demand.total_gpus
    if reason is None or reason.code not in _FOR_GPUS or not gpus:
        return None
    covered = [*_by_class(state, job.spec.job_class, gpus), *_by_tenant(state, job.spec.tenant, gpus)]
    holders = [holder for _, _, found in covered for holder in found]
    if not holders:
        return None
    guarantees = [name for name, _, found in covered if found]
    within = " and ".join(said for _, said, found in covered if found)
    return LentView(
        message=f"it is within the guarantee of {within}, and GPUs of it are lent: {_named(holders)}. This version "
        "takes none back by force: they come as those jobs end, and to it before whoever would borrow, whatever the "
        "place in the queue",
        guarantees=guarantees,
        holders=holders,
    )


_Covered = tuple[str, str, list[HolderView]]
"""Whose guarantee, how far it is used, and who holds what of it."""


def _by_class(state: ClusterState, own: JobClass, gpus: int) -> Iterator[_Covered]:
    usage_ledger, other = state.indexes.usage_ledger, other_class(own)
    guaranteed = state.pools.guaranteed(state.indexes.gpus_in_service)
    used, beyond = usage_ledger.used_by_class(own).gpus, usage_ledger.used_by_class(other).gpus - guaranteed[other]
    if used + gpus <= guaranteed[own] and beyond > 0:
        said = f"{own.value} jobs ({used} of {guaranteed[own]} GPU(s) used)"
        yield f"class {own.value}", said, [HolderView(kind="class", name=other.value, gpus=beyond)]


def _by_tenant(state: ClusterState, name: TenantName, gpus: int) -> Iterator[_Covered]:
    usage_ledger, path = state.indexes.usage_ledger, list(path_of(state.tenants, name))
    at = next((at for at, tenant in enumerate(path) if within_guarantee(tenant, usage_ledger, gpus)), None)
    if at is None:
        return
    tenant = path[at]
    said = f"tenant {tenant.name} ({usage_ledger.used_by(tenant.name).gpus} of {tenant.quota.guaranteed} GPU(s) used)"
    beyond = dict(_beyond(state, path[at:]))
    largest = sorted(beyond, key=lambda holder: (-beyond[holder], holder))[:HOLDERS_MAX]
    yield f"tenant {tenant.name}", said, [HolderView(kind="tenant", name=each, gpus=beyond[each]) for each in largest]


def _beyond(state: ClusterState, path: Sequence[Tenant]) -> Iterator[tuple[TenantName, int]]:
    """Who beside this path holds more than his guarantee, with all beneath him (L2); of those on it above the first,
    what their own jobs hold of what is promised to others."""
    usage_ledger, beneath = state.indexes.usage_ledger, _children(state.tenants)
    on_path = {tenant.name for tenant in path}
    for above in (*(tenant.name for tenant in path[1:]), NO_TENANT):
        children = beneath.get(above, ())
        for child in children:
            more = usage_ledger.used_by(child.name).gpus - child.quota.guaranteed
            if more > 0 and child.name not in on_path:
                yield child.name, more
        if above:
            own = usage_ledger.used_by(above).gpus - sum(usage_ledger.used_by(child.name).gpus for child in children)
            left = state.tenants[above].quota.guaranteed - sum(child.quota.guaranteed for child in children)
            if own > max(0, left):
                yield above, own - max(0, left)


def _children(tenants: Mapping[TenantName, Tenant]) -> dict[TenantName, list[Tenant]]:
    found: dict[TenantName, list[Tenant]] = {}
    for tenant in tenants.values():
        found.setdefault(tenant.parent, []).append(tenant)
    return found


def _named(holders: Sequence[HolderView]) -> str:
    words = [
        f"{holder.name} jobs hold {holder.gpus} beyond theirs"
        if holder.kind == "class"
        else f"tenant {holder.name} holds {holder.gpus} beyond its own"
        for holder in holders[:NAMED_MAX]
    ]
    more = len(holders) - NAMED_MAX
    return ", ".join(words) + (f", {more} other tenant(s) the rest" if more > 0 else "")
