"""Facts about tenants and the class pools."""

from typing import ClassVar

import msgspec

from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.quota import Pools, share_text
from stoker.brain.domain.tenant import Tenant, Visibility
from stoker.brain.domain.units import human_duration
from stoker.brain.state.events.row import Audience, Fields, LogLine, Row, SubjectNote


def tenant_text(of: Tenant) -> str:
    """A tenant in the words of the audit trail: its place in the tree, guarantee, weight, limits and tier."""
    limits, longest = of.quota.limits, of.quota.limits.time_ms
    named = ((name, getattr(limits, name)) for name in limits.__struct_fields__ if name != "time_ms")
    said = [f"{name} at most {value}" for name, value in named if value is not None]
    return ", ".join(
        [f"beneath {of.parent}"] * bool(of.parent)
        + [f"{of.quota.guaranteed} GPUs guaranteed"] * bool(of.quota.guaranteed)
        + [f"weight {of.quota.weight}"] * (of.quota.weight != 1)
        + said
        + [f"time at most {human_duration(longest or 0)}"] * (longest is not None)
        + ["doesn't borrow"] * (not of.quota.borrow)
        + ["doesn't lend"] * (not of.quota.lend)
        + [f"tier {of.tier}"] * (of.tier is not None)
        + ["its people see each other's jobs"] * (of.visibility is Visibility.TENANT)
        + [f"nodes {' '.join(of.nodes)}"] * bool(of.nodes)
    )


def _pools_text(pools: Pools) -> str:
    shares = f"online {share_text(pools.online)}, batch {share_text(pools.batch)}"
    return f"{shares}, strict" if pools.strict else shares


def _defined_fields(event: "TenantDefined") -> Fields:
    tenant = event.tenant
    limit, guaranteed = tenant.quota.gpus_max, tenant.quota.guaranteed
    return {"tenant": tenant.name, "parent": tenant.parent, "gpus_max": limit, "guaranteed_gpus": guaranteed}


def _pools_fields(event: "PoolsSet") -> Fields:
    pools = event.pools
    online, batch = share_text(pools.online), share_text(pools.batch)
    return {"online_percent": online, "batch_percent": batch, "strict": pools.strict}


class TenantDefined(msgspec.Struct, frozen=True, kw_only=True, tag="tenant_defined"):
    """A tenant was made, or replaced whole. What runs goes on, also beyond a new limit."""

    row: ClassVar["Row[TenantDefined]"] = Row(
        wakes=True,
        audience=Audience.TENANT,
        log=LogLine("tenant_defined", _defined_fields),
        audit=lambda event: SubjectNote("tenant_set", event.tenant.name, tenant_text(event.tenant), event.tenant.name),
    )

    tenant: Tenant


class TenantDeleted(msgspec.Struct, frozen=True, kw_only=True, tag="tenant_deleted"):
    """No job that hasn't ended, no token and no other tenant names it."""

    row: ClassVar["Row[TenantDeleted]"] = Row(
        wakes=False,
        audience=Audience.EVERYONE,
        log=LogLine("tenant_deleted", lambda event: {"tenant": event.name}),
        audit=lambda event: SubjectNote("tenant_delete", event.name, "", event.name),
    )

    name: TenantName


class PoolsSet(msgspec.Struct, frozen=True, kw_only=True, tag="quota_updated"):
    """The shares of the class pools from now on."""

    row: ClassVar["Row[PoolsSet]"] = Row(
        wakes=True,
        audience=Audience.EVERYONE,
        log=LogLine("quota_updated", _pools_fields),
        audit=lambda event: SubjectNote("quota_set", "", _pools_text(event.pools)),
    )

    pools: Pools
    configured: Pools | None = None
    """What the settings file says, when this came from there. A later start with the same file changes nothing, so a
    change by a person outlives a restart."""


TenantEvent = TenantDefined | TenantDeleted | PoolsSet
