"""Which limit would one more job break?

The one check of limits: the engine asks it of its draft, and `settle` asks it again of the newest state.

Rules: L1  no tenant on the job's path goes beyond a limit of its own
       L2  where class pools are strict, a pool has what the other's guarantee and use leave of the GPUs in service: so
           what neither share covers may be borrowed, and rounding strands none
       L3  what the guarantee of a tenant that doesn't lend leaves idle is left alone, but by who is within a guarantee
           of his own
"""

from collections.abc import Mapping
from typing import Final

from stoker.brain.domain.demand import JobClass, Shape
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.quota import NO_LIMITS, Amount, Exceeded, Pools, exceeded
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.tenant import Tenant, path_of
from stoker.brain.state.books import Books

WHAT: Final = {
    "gpus": "GPU(s)",
    "gpu_memory_mb": "MiB of GPU memory",
    "cpus": "CPU(s)",
    "memory_mb": "MiB of memory",
    "jobs": "running job(s)",
}
"""The limits in words."""
_OTHER: Final = {JobClass.ONLINE: JobClass.BATCH, JobClass.BATCH: JobClass.ONLINE}


def other_class(job_class: JobClass) -> JobClass:
    return _OTHER[job_class]


class Walls:
    """The limits there are now. Which tenants have any is remembered: most have none."""

    __slots__ = ("_limited", "_tenants", "pools")

    def __init__(self, tenants: Mapping[TenantName, Tenant], pools: Pools) -> None:
        self._tenants = tenants
        self.pools = pools
        self._limited: dict[TenantName, tuple[Tenant, ...]] = {}

    def before(self, shape: Shape, more: Amount, books: Books, free_gpus: int) -> Reason | None:
        """Why `more` can't be held by a job of this shape now. `free_gpus` are free on all nodes."""
        limited = self._limited.get(shape.tenant)
        if limited is None:
            limited = self._limited[shape.tenant] = tuple(
                tenant for tenant in path_of(self._tenants, shape.tenant) if not _is_open(tenant)
            )
        for tenant in limited:
            found = exceeded(tenant.quota, books.used_by(tenant.name), more)
            if found is not None:
                return _tenant_limit(tenant.name, found)
        if not more.gpus:
            return None
        if self.pools.strict:
            reason = self._pool_limit(shape.job_class, more.gpus, books, free_gpus)
            if reason is not None:
                return reason
        return self._unlent(shape.tenant, more.gpus, books, free_gpus) if books.unlending else None

    def _pool_limit(self, job_class: JobClass, gpus: int, books: Books, free_gpus: int) -> Reason | None:
        """L2"""
        limit, used = pool_limit(self.pools, job_class, books, free_gpus), books.used_by_class(job_class).gpus
        if used + gpus <= limit:
            return None
        return Reason(ReasonCode.POOL_LIMIT, {"pool": job_class.value, "used": used, "limit": limit, "asked": gpus})

    def _unlent(self, name: TenantName, gpus: int, books: Books, free_gpus: int) -> Reason | None:
        """L3"""
        path = {tenant.name: tenant for tenant in path_of(self._tenants, name)}
        within = next((each for each in path.values() if owed(each, books, gpus)), None)
        idle = 0
        for each in sorted(books.unlending):
            above = [tenant.name for tenant in path_of(self._tenants, each)]
            nested = any(one in books.unlending and one not in path for one in above[1:])
            inside = within is None or within.name in above
            if each not in path and inside and not nested:
                idle += max(0, self._tenants[each].quota.guaranteed - books.used_by(each).gpus)
        if free_gpus - gpus >= idle:
            return None
        return Reason(ReasonCode.GUARANTEE_KEPT, {"free": free_gpus, "kept": idle, "asked": gpus})


def owed(tenant: Tenant, books: Books, gpus: int) -> bool:
    """Does the guarantee of this very tenant cover so many GPUs more?"""
    return 0 < books.used_by(tenant.name).gpus + gpus <= tenant.quota.guaranteed


def pool_limit(pools: Pools, job_class: JobClass, books: Books, free_gpus: int) -> int:
    """The most that a strict pool may hold now (L2)."""
    total, other = books.held_gpus + free_gpus, _OTHER[job_class]
    return total - max(pools.guaranteed(total)[other], books.used_by_class(other).gpus)


def _is_open(tenant: Tenant) -> bool:
    return tenant.quota.borrow and tenant.quota.limits == NO_LIMITS


def _tenant_limit(name: TenantName, found: Exceeded) -> Reason:
    facts = {"limit": found.limit, "used": found.used, "asked": found.asked}
    return Reason(ReasonCode.TENANT_LIMIT, {"tenant": name, "what": WHAT[found.what], **facts})
