"""Usage ledger: what live attempts hold, by tenant and class.

Counters of what live attempts hold and of what waits, by class pool and by tenant, each tenant with all beneath it.
They follow the records of jobs: what an attempt held is given back once, by whichever event ends it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from stoker.brain.domain.demand import JobClass
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.quota import NOTHING, Amount, limits_of
from stoker.brain.domain.tenant import Tenant, path_of
from stoker.brain.state.decayed_usage import DecayedUsage

_Key = TypeVar("_Key", JobClass, TenantName)


@dataclass(slots=True)
class UsageLedger:
    """Usage by class pool and tenant. An amount of nothing has no entry, so equal ledgers have equal dictionaries."""

    _tenants: Mapping[TenantName, Tenant] = field(compare=False)
    _paths: dict[TenantName, tuple[TenantName, ...]] = field(default_factory=dict, init=False, compare=False)
    """Of those that were asked for since a tenant last changed."""
    by_class: dict[JobClass, Amount] = field(default_factory=dict, init=False)
    by_tenant: dict[TenantName, Amount] = field(default_factory=dict, init=False)
    """Each with all tenants beneath it."""
    pending: dict[TenantName, int] = field(default_factory=dict, init=False)
    """Jobs and members that wait, each tenant with all beneath it."""
    memory: dict[TenantName, int] = field(default_factory=dict, init=False)
    """Bytes that records of jobs take which haven't ended, each tenant with all beneath it."""
    promised: dict[TenantName, None] = field(default_factory=dict, init=False)
    """Tenants that have a guarantee."""
    unlending: dict[TenantName, None] = field(default_factory=dict, init=False)
    """Those of them that don't lend."""
    limited: dict[TenantName, None] = field(default_factory=dict, init=False)
    """Tenants that have a limit on what they hold."""
    decayed: DecayedUsage | None = field(default=None, init=False, compare=False)
    """Is told of each change of what is held. It is no index: it can't be made anew from the records."""

    def used_by_class(self, job_class: JobClass) -> Amount:
        return self.by_class.get(job_class, NOTHING)

    def used_by(self, tenant: TenantName) -> Amount:
        return self.by_tenant.get(tenant, NOTHING)

    def pending_of(self, tenant: TenantName) -> int:
        return self.pending.get(tenant, 0)

    def memory_of(self, tenant: TenantName) -> int:
        return self.memory.get(tenant, 0)

    def amounts(self) -> tuple[dict[JobClass, Amount], dict[TenantName, Amount]]:
        """Return the amounts that are held, without the jobs that wait."""
        return self.by_class, self.by_tenant

    @property
    def held_milli(self) -> int:
        """Thousandths of GPUs on all nodes."""
        return sum([amount.gpu_milli for amount in self.by_class.values()])

    def tenant_changed(self, name: TenantName, tenant: Tenant | None) -> None:
        """Follow one tenant being made, replaced or deleted (None)."""
        self._paths.clear()
        quota = tenant.quota if tenant else None
        _keep(self.promised, name, quota is not None and quota.guaranteed > 0)
        _keep(self.unlending, name, quota is not None and quota.guaranteed > 0 and not quota.lend)
        _keep(self.limited, name, quota is not None and any(limits_of(quota)))

    def charge(self, tenant: TenantName, job_class: JobClass, more: Amount) -> None:
        """So much more is held; less where negative."""
        _set(self.by_class, job_class, self.used_by_class(job_class).plus(more))
        path = self._path(tenant)
        for each in path:
            _set(self.by_tenant, each, self.used_by(each).plus(more))
        if self.decayed is not None:
            self.decayed.change(path, more)

    def wait(self, tenant: TenantName, more: int) -> None:
        """So many more wait; fewer when negative."""
        self._count(self.pending, tenant, more)

    def remember(self, tenant: TenantName, more: int) -> None:
        """So many more bytes of records are kept; fewer when negative."""
        self._count(self.memory, tenant, more)

    def _count(self, counts: dict[TenantName, int], tenant: TenantName, more: int) -> None:
        for each in self._path(tenant):
            count = counts.get(each, 0) + more
            if count:
                counts[each] = count
            else:
                del counts[each]

    def _path(self, tenant: TenantName) -> tuple[TenantName, ...]:
        path = self._paths.get(tenant)
        if path is None:
            path = self._paths[tenant] = tuple(each.name for each in path_of(self._tenants, tenant))
        return path


def _set(amounts: dict[_Key, Amount], key: _Key, amount: Amount) -> None:
    if amount == NOTHING:
        amounts.pop(key, None)
    else:
        amounts[key] = amount


def _keep(names: dict[TenantName, None], name: TenantName, wanted: bool) -> None:
    if wanted:
        names[name] = None
    else:
        names.pop(name, None)
