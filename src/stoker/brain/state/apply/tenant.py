"""Application of events about tenants and class pools to the state."""

from typing import assert_never

from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events.tenant import PoolsSet, TenantDefined, TenantDeleted, TenantEvent


def apply_tenant(state: ClusterState, event: TenantEvent) -> None:
    match event:
        case TenantDefined():
            state.put_tenant(event.tenant)
        case TenantDeleted():
            state.drop_tenant(event.name)
        case PoolsSet():
            state.pools = event.pools
            if event.configured is not None:
                state.pools_configured = event.configured
        case _:
            assert_never(event)
