"""Tenants: owners of quota, in a tree.

A job belongs to one tenant, and is charged to it and to all tenants above it.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from stoker.brain.domain.ids import DEFAULT_TENANT, TenantName
from stoker.brain.domain.notify import Notify
from stoker.brain.domain.quota import Quota
from stoker.brain.domain.where import ANYWHERE, Where, named_like

NO_TENANT: Final = TenantName("")
PRIORITY_DEFAULT: Final = 500
"""Priority of a job that names none, in a tenant without a tier."""
PRIORITY_UNTIERED_MAX: Final = 1_000
"""The most that a job in a tenant without a tier may ask for, unless an admin submits it: the word `high`."""
UNSTATED: Final = -(10**9)
"""Priority of a job that names none, until it is admitted; below all that may be asked for."""


class Tier(StrEnum):
    """Importance of a tenant's jobs, as one word."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def priority(self) -> int:
        """Default priority of the tenant's jobs, and the most they may ask for."""
        return _PRIORITIES[self]


class Visibility(StrEnum):
    """People of a tenant who see its jobs in full, and may change them."""

    OWNER = "owner"
    """Whose job it is, beside leads and admins."""
    TENANT = "tenant"
    """Every user of the tenant, and of those above it; its viewers see them in full."""


_PRIORITIES: Final = {Tier.LOW: 100, Tier.MEDIUM: 500, Tier.HIGH: 1000, Tier.CRITICAL: 2000}


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant: its place in the tree, its quota and its tier."""

    name: TenantName
    parent: TenantName = NO_TENANT
    """Empty = at the top. It never changes."""
    quota: Quota = msgspec.field(default_factory=Quota)
    tier: Tier | None = None
    """None = that of its parent; at the top 500 by default, and at most `PRIORITY_UNTIERED_MAX` but for admins."""
    visibility: Visibility = Visibility.OWNER
    """Of its jobs, not of those beneath it."""
    email: str = ""
    organization: str = ""
    comment: str = ""
    nodes: tuple[str, ...] = ()
    """Names, or patterns of names, of the nodes that its jobs may run on, sorted. Empty = all its parent's."""
    notify: Notify | None = None
    """Who is told of its jobs where these say nothing. None = as its parent has it; at the top nobody."""

    def without_contact(self) -> "Tenant":
        """Return it without what is only for its own people and admins: whom to write to, and what it is."""
        return replace(self, email="", organization="", comment="", notify=None)


THE_DEFAULT: Final = Tenant(name=DEFAULT_TENANT)
"""The tenant of jobs that name none; it always exists."""


def path_of(tenants: Mapping[TenantName, Tenant], name: TenantName) -> Iterator[Tenant]:
    """Yield the tenant and all tenants above it, itself first; nothing for an unknown one."""
    tenant = tenants.get(name)
    while tenant is not None:
        yield tenant
        tenant = tenants.get(tenant.parent)


def is_within(tenants: Mapping[TenantName, Tenant], name: TenantName, above: TenantName) -> bool:
    """Return whether `name` is the tenant `above`, or beneath it."""
    tenant = tenants.get(name)
    while tenant is not None and tenant.name != above:
        tenant = tenants.get(tenant.parent)
    return tenant is not None


def nodes_allowed(tenants: Mapping[TenantName, Tenant], name: TenantName) -> Where:
    """Return the selection of the nodes that jobs of a tenant may run on: those in its list and in each above it."""
    lists = [tenant.nodes for tenant in path_of(tenants, name) if tenant.nodes]
    return named_like(lists) if lists else ANYWHERE


def nodes_text(tenants: Mapping[TenantName, Tenant], name: TenantName) -> str:
    """Return in words which nodes jobs of a tenant may run on; empty = all."""
    lists = [", ".join(tenant.nodes) for tenant in path_of(tenants, name) if tenant.nodes]
    return " that are also ".join(lists)


def priority_cap(tenants: Mapping[TenantName, Tenant], name: TenantName) -> int | None:
    """Return the highest priority that a job of this tenant may ask for; None = no tier bounds it."""
    return min((tenant.tier.priority for tenant in path_of(tenants, name) if tenant.tier is not None), default=None)


def priority_default(tenants: Mapping[TenantName, Tenant], name: TenantName) -> int:
    """Return the priority of a job that names none: the highest that the tiers on its path allow."""
    cap = priority_cap(tenants, name)
    return PRIORITY_DEFAULT if cap is None else cap


class InheritedLimits(NamedTuple):
    """Limits and priorities that hold for every job of one tenant."""

    path: tuple[Tenant, ...]
    """The tenant and all above it. Empty = there is no such tenant."""
    priority: int
    """Priority of a job that names none."""
    priority_max: int | None
    """The highest priority that a job may ask for. None = no tier bounds it."""
    times: tuple[tuple[TenantName, int], ...]
    """(tenant, milliseconds): the longest time limit that each tenant on the path allows."""
    pending: tuple[tuple[TenantName, int], ...]
    """(tenant, jobs): the number of jobs that each tenant on the path lets wait."""
    notify: Notify | None
    """Who is told of jobs that say nothing: by the nearest tenant that says so."""


def inherited_limits(tenants: Mapping[TenantName, Tenant], name: TenantName) -> InheritedLimits:
    """Return what a tenant's jobs inherit from it and from all tenants above it."""
    path = tuple(path_of(tenants, name))
    limits = [(tenant.name, tenant.quota.limits) for tenant in path]
    return InheritedLimits(
        path=path,
        priority=priority_default(tenants, name),
        priority_max=priority_cap(tenants, name),
        times=tuple([(each, limit.time_ms) for each, limit in limits if limit.time_ms is not None]),
        pending=tuple([(each, limit.pending) for each, limit in limits if limit.pending is not None]),
        notify=next((tenant.notify for tenant in path if tenant.notify is not None), None),
    )
