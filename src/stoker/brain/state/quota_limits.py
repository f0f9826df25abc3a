"""Quota limits: which limit of a tenant or class pool one more job would break.

The one check of limits: the engine asks it of its draft, and `settle` asks it again of the newest state.

Rules: L1  no tenant on the job's path goes beyond a limit of its own
       L2  where class pools are strict, a pool has what the other's guarantee and use leave of the GPUs in service: so
           what neither share covers may be borrowed, and rounding strands none
       L3  what the guarantee of a tenant that doesn't lend leaves idle is left alone, but by who is within a guarantee
           of his own
Limits: L1 costs about 0.3 us per limit once a shape was asked for; L3 about 2 us per tenant that doesn't lend.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from stoker.brain.domain.demand import JobClass, Shape
from stoker.brain.domain.gpu import WHOLE_GPU, gpus_number
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.quota import NOTHING, Amount, Pools, limits_of, needs
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.tenant import Tenant, path_of

WHAT: Final = (
    ("GPU", "GPUs"),
    ("MiB of GPU memory", "MiB of GPU memory"),
    ("CPU", "CPUs"),
    ("MiB of memory", "MiB of memory"),
    ("running job", "running jobs"),
)
"""The fields of an Amount in words: of one, of many."""
OTHER_CLASS: Final = {JobClass.ONLINE: JobClass.BATCH, JobClass.BATCH: JobClass.ONLINE}


class UsageTotals(Protocol):
    """Amounts in use by class pool and tenant, with the fields of an Amount."""

    @property
    def by_class(self) -> Mapping[JobClass, Sequence[int]]: ...

    @property
    def by_tenant(self) -> Mapping[TenantName, Sequence[int]]: ...

    @property
    def unlending(self) -> Mapping[TenantName, None]: ...


class QuotaLimit(NamedTuple):
    """A limit of one tenant on what jobs of one shape ask for: `at` is the field of an Amount, which says the unit."""

    tenant: TenantName
    at: int
    limit: int
    asked: int


class QuotaLimits:
    """The limits there are now, for a cluster with so many thousandths of GPUs in service: free or held."""

    __slots__ = ("_known", "_of_path", "_tenants", "gpu_milli", "pools")

    def __init__(self, tenants: Mapping[TenantName, Tenant], pools: Pools, gpu_milli: int) -> None:
        self._tenants = tenants
        self.pools = pools
        self.gpu_milli = gpu_milli
        self._known: dict[Shape, tuple[QuotaLimit, ...]] = {}
        self._of_path: dict[TenantName, Sequence[tuple[TenantName, int, int]]] = {}

    def before(self, shape: Shape, usage: UsageTotals) -> Reason | None:
        """Return the limit that keeps one more job of this shape from starting now; None = none."""
        for tenant, at, limit, asked in self.on(shape):
            used = usage.by_tenant.get(tenant, NOTHING)[at]
            if used + asked > limit:
                most, *rest = (amount_number(at, each) for each in (limit, used, asked))
                facts = {"limit": most, "used": rest[0], "asked": rest[1]}
                return Reason(ReasonCode.TENANT_LIMIT, {"tenant": tenant, "what": WHAT[at][most != 1], **facts})
        if self.pools.strict or usage.unlending:
            return self._shared(shape, usage)
        return None

    def on(self, shape: Shape) -> Sequence[QuotaLimit]:
        """Return the limits of tenants on what one job of this shape asks for (L1)."""
        limits = self._known.get(shape)
        if limits is None:
            limits = self._known[shape] = tuple(self._limits_on(shape))
        return limits

    def of_path(self, name: TenantName) -> Sequence[tuple[TenantName, int, int]]:
        """Return tenant, field of an Amount and limit, of a tenant and of those above it."""
        limits = self._of_path.get(name)
        if limits is None:
            path = path_of(self._tenants, name)
            limits = [(tenant.name, at, limit) for tenant in path for at, limit in limits_of(tenant.quota)]
            self._of_path[name] = limits
        return limits

    def _limits_on(self, shape: Shape) -> list[QuotaLimit]:
        limits = self.of_path(shape.tenant)
        if not limits:
            return []
        more = needs(shape.demand)
        return [QuotaLimit(tenant, at, limit, more[at]) for tenant, at, limit in limits if more[at]]

    def _shared(self, shape: Shape, usage: UsageTotals) -> Reason | None:
        asked = shape.demand.total_milli
        if not asked:
            return None
        if self.pools.strict:
            limit, used = self.pool_limit(shape.job_class, usage), _milli(usage, shape.job_class)
            if used + asked > limit:
                facts = {"used": gpus_number(used), "limit": gpus_number(limit), "asked": gpus_number(asked)}
                return Reason(ReasonCode.POOL_LIMIT, {"pool": shape.job_class.value, **facts})
        return self._unlent(shape.tenant, asked, usage) if usage.unlending else None

    def pool_limit(self, job_class: JobClass, usage: UsageTotals) -> int:
        """The most that a strict pool may hold now (L2), in thousandths of GPUs."""
        other = OTHER_CLASS[job_class]
        return self.gpu_milli - max(self.pools.guaranteed_milli(self.gpu_milli)[other], _milli(usage, other))

    def _unlent(self, name: TenantName, asked: int, usage: UsageTotals) -> Reason | None:
        """Return the limit set by a guarantee that its tenant doesn't lend (L3)."""
        path = {tenant.name: tenant for tenant in path_of(self._tenants, name)}
        within = next((each.name for each in path.values() if within_guarantee(each, usage, asked)), None)
        others = [
            tuple(each.name for each in path_of(self._tenants, one)) for one in usage.unlending if one not in path
        ]
        beneath: dict[TenantName, int] = {}
        idle = 0
        # Innermost first: a tenant keeps what those beneath it do, also where others beneath it have used up its own.
        for each, *above in sorted(others, key=_depth, reverse=True):
            if within is not None and within not in above:
                continue
            own = self._tenants[each].quota.guaranteed * WHOLE_GPU - usage.by_tenant.get(each, NOTHING)[0]
            kept = max(own, beneath.get(each, 0))
            outer = next((one for one in above if one in usage.unlending and one not in path), None)
            if outer is None:
                idle += kept
            else:
                beneath[outer] = beneath.get(outer, 0) + kept
        free = self.gpu_milli - sum(_milli(usage, job_class) for job_class in JobClass)
        if free - asked >= idle or free < asked:  # then it isn't the guarantee that is in the way
            return None
        facts = {"free": gpus_number(free), "kept": gpus_number(idle), "asked": gpus_number(asked)}
        return Reason(ReasonCode.GUARANTEE_KEPT, {**facts})


def _depth(path: Sequence[TenantName]) -> tuple[int, Sequence[TenantName]]:
    return len(path), path


def amount_number(at: int, amount: int) -> int | float:
    """Return the field `at` of an Amount as people read it: GPUs, not their thousandths."""
    return gpus_number(amount) if at == 0 else amount


def _milli(usage: UsageTotals, job_class: JobClass) -> int:
    return usage.by_class.get(job_class, NOTHING)[0]


def within_guarantee(tenant: Tenant, usage: UsageTotals, milli: int) -> bool:
    """Return whether the guarantee of this tenant itself covers so many thousandths of GPUs more."""
    return 0 < milli <= tenant.quota.guaranteed * WHOLE_GPU - usage.by_tenant.get(tenant.name, NOTHING)[0]


def own_limit_broken(tenant: Tenant, more: Amount) -> QuotaLimit | None:
    """The limit of this tenant that `more` would break if nobody else used anything."""
    for at, limit in limits_of(tenant.quota):
        if more[at] > limit:
            return QuotaLimit(tenant.name, at, limit, more[at])
    return None
