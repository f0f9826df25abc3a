"""What is a tenant?

Tenants form a tree. A job belongs to one, and is charged to it and to all above it.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from stoker.brain.domain.ids import DEFAULT_TENANT, TenantName
from stoker.brain.domain.quota import Quota

NO_TENANT: Final = TenantName("")
PRIORITY_DEFAULT: Final = 500
"""Of a job that names none, in a tenant without a tier."""
UNSTATED: Final = -(10**9)
"""Priority of a job that names none, until it is admitted: beyond all that may be asked for."""


class Tier(StrEnum):
    """How much a tenant's jobs matter, as one word."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def priority(self) -> int:
        """Default of the tenant's jobs, and the most they may ask for."""
        return _PRIORITIES[self]


_PRIORITIES: Final = {Tier.LOW: 100, Tier.MEDIUM: 500, Tier.HIGH: 1000, Tier.CRITICAL: 2000}


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """Owner of quota and usage."""

    name: TenantName
    parent: TenantName = NO_TENANT
    """Empty = at the top. It never changes."""
    quota: Quota = msgspec.field(default_factory=Quota)
    tier: Tier | None = None
    """None = that of its parent; at the top 500 by default, without a cap."""
    email: str = ""
    organization: str = ""
    comment: str = ""


THE_DEFAULT: Final = Tenant(name=DEFAULT_TENANT)
"""It always exists."""


def path_of(tenants: Mapping[TenantName, Tenant], name: TenantName) -> Iterator[Tenant]:
    """The tenant and all above it, itself first. Nothing for one that is unknown."""
    tenant = tenants.get(name)
    while tenant is not None:
        yield tenant
        tenant = tenants.get(tenant.parent)


def is_within(tenants: Mapping[TenantName, Tenant], name: TenantName, above: TenantName) -> bool:
    """Is `name` the tenant `above`, or beneath it?"""
    tenant = tenants.get(name)
    while tenant is not None and tenant.name != above:
        tenant = tenants.get(tenant.parent)
    return tenant is not None


def priority_cap(tenants: Mapping[TenantName, Tenant], name: TenantName) -> int | None:
    """The most that a job of this tenant may ask for. None = what the policy says."""
    return min((tenant.tier.priority for tenant in path_of(tenants, name) if tenant.tier is not None), default=None)


def priority_default(tenants: Mapping[TenantName, Tenant], name: TenantName) -> int:
    """Of a job that names none: the most that the tiers on its path allow."""
    cap = priority_cap(tenants, name)
    return PRIORITY_DEFAULT if cap is None else cap


class InheritedLimits(NamedTuple):
    """What holds for every job of one tenant."""

    path: tuple[Tenant, ...]
    """Itself and all above it. Empty = there is no such tenant."""
    priority: int
    """Of a job that names none."""
    priority_max: int | None
    times: tuple[tuple[TenantName, int], ...]
    """The limits on time limits, in milliseconds, and whose they are."""
    pending: tuple[tuple[TenantName, int], ...]
    """The same on how many may wait."""


def inherited_limits(tenants: Mapping[TenantName, Tenant], name: TenantName) -> InheritedLimits:
    path = tuple(path_of(tenants, name))
    limits = [(tenant.name, tenant.quota.limits) for tenant in path]
    return InheritedLimits(
        path=path,
        priority=priority_default(tenants, name),
        priority_max=priority_cap(tenants, name),
        times=tuple([(each, limit.time_ms) for each, limit in limits if limit.time_ms is not None]),
        pending=tuple([(each, limit.pending) for each, limit in limits if limit.pending is not None]),
    )
