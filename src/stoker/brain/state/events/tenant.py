"""Facts about tenants and the class pools."""

import msgspec

from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.quota import Pools
from stoker.brain.domain.tenant import Tenant


class TenantDefined(msgspec.Struct, frozen=True, kw_only=True, tag="tenant_defined"):
    """A tenant was made, or replaced whole. What runs goes on, also beyond a new limit."""

    tenant: Tenant


class TenantDeleted(msgspec.Struct, frozen=True, kw_only=True, tag="tenant_deleted"):
    """No job that hasn't ended, no token and no other tenant names it."""

    name: TenantName


class PoolsSet(msgspec.Struct, frozen=True, kw_only=True, tag="quota_updated"):
    """The shares of the class pools from now on."""

    pools: Pools
    configured: Pools | None = None
    """What the settings file says, when this came from there. A later start with the same file changes nothing, so a
    change by a person outlives a restart."""


TenantEvent = TenantDefined | TenantDeleted | PoolsSet
