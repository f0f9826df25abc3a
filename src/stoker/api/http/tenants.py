"""REST routes for tenants and the class pools: who may use how much, and how online and batch jobs share the GPUs."""

from typing import Final

from msgspec.structs import replace
from starlette.requests import Request

from stoker.api.http.responses import caller_of, carry_out, read_body
from stoker.api.http.routing import BODY, CHANGE, TENANT, Routes
from stoker.brain.domain.errors import refusal_error
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.suggestion import did_you_mean
from stoker.brain.domain.tenant import Tenant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import DeleteTenant, PutTenant, SetPools
from stoker.brain.state.quota_report import guarantee_warnings, pool_demands
from stoker.control.access import is_of
from stoker.control.control_plane import ControlPlane
from stoker.control.submission import check_targets
from stoker.wire import endpoints
from stoker.wire.rest.quota import QuotaBody, QuotaView, pools_of, quota_view
from stoker.wire.rest.tenant import (
    NewTenantBody,
    TenantBody,
    TenantListView,
    TenantView,
    changed,
    in_tree_order,
    tenant_of,
    tenant_view,
)

SLICE: Final = 200
"""Tenants shown before others get a turn: about three milliseconds."""
_SAID: Final = (
    *("guarantees_exceed_parent", "guarantee_above_limit", "out_of_range", "text_too_long", "bad_time"),
    *("conflicting_fields", "bad_notify", "notify_not_allowed", *BODY, *CHANGE),
)
_MADE: Final = ("tenant_exists", "bad_tenant_name", "unknown_tenant", "too_many_tenants", "tree_too_deep")
_CHANGED: Final = (*TENANT, "unknown_tenant", "tenant_place")
"""`unknown_tenant`: it was deleted in the same moment."""


def routes(control: ControlPlane) -> Routes:
    router = Routes()

    async def put(request: Request, tenant: Tenant, *, create: bool) -> TenantView:
        check_targets(control, tenant.notify)
        command = PutTenant(by=caller_of(request).principal, tenant=tenant, create=create)
        await carry_out(control, request, command)
        return _warned(control, request, tenant)

    @router.serve(endpoints.TENANTS)
    async def list_tenants(request: Request) -> TenantListView:
        """List every tenant, each followed by those beneath it."""
        views: list[TenantView] = []
        for tenant in in_tree_order(control.committer.state.tenants):
            views.append(_shown(control, request, tenant))
            if len(views) % SLICE == 0:
                await control.clock.sleep(0)
        return TenantListView(tenants=views, total=len(views))

    @router.serve(endpoints.CREATE_TENANT, *_MADE, *_SAID)
    async def create_tenant(request: Request) -> TenantView:
        """Make a tenant. A limit that is left out is none."""
        return await put(request, tenant_of(await read_body(request, NewTenantBody)), create=True)

    @router.serve(endpoints.TENANT, *TENANT)
    async def show_tenant(request: Request) -> TenantView:
        """Show one tenant."""
        return _warned(control, request, _tenant_at(request, control.committer.state))

    @router.serve(endpoints.CHANGE_TENANT, *_CHANGED, *_SAID)
    async def change_tenant(request: Request) -> TenantView:
        """Change what is given, and leave the rest; null takes a limit off. What runs goes on."""
        body = await read_body(request, TenantBody)
        return await put(request, changed(_tenant_at(request, control.committer.state), body), create=False)

    @router.serve(endpoints.DELETE_TENANT, *TENANT, "unknown_tenant", "tenant_in_use", *CHANGE)
    async def delete_tenant(request: Request) -> TenantView:
        """Delete a tenant that no job which hasn't ended, no token and no other tenant names. The answer shows what
        it was."""
        was = _shown(control, request, _tenant_at(request, control.committer.state))
        await carry_out(control, request, DeleteTenant(by=caller_of(request).principal, name=TenantName(was.name)))
        return was

    @router.serve(endpoints.QUOTA)
    async def show_quota(request: Request) -> QuotaView:
        """Show how online and batch jobs share the GPUs."""
        return pools_view(control.committer.state)

    @router.serve(endpoints.SET_QUOTA, "bad_share", "share_below_use", *BODY, *CHANGE)
    async def set_quota(request: Request) -> QuotaView:
        """Share the GPUs anew, at once. What runs goes on."""
        body = await read_body(request, QuotaBody)
        pools = pools_of(body, control.committer.state.pools)
        await carry_out(control, request, SetPools(by=caller_of(request).principal, pools=pools, force=body.force))
        return pools_view(control.committer.state)

    return router


def _warned(control: ControlPlane, request: Request, tenant: Tenant) -> TenantView:
    """The tenant, with what it was promised and can't get as things are."""
    warnings = tuple(guarantee_warnings(control.committer.state, tenant))
    return replace(_shown(control, request, tenant), warnings=warnings)


def _shown(control: ControlPlane, request: Request, tenant: Tenant) -> TenantView:
    """The tenant as it is shown to who asks."""
    state = control.committer.state
    if not is_of(state, caller_of(request), tenant.name):
        tenant = tenant.without_contact()
    used = state.indexes.usage_ledger
    return tenant_view(state.tenants, tenant, used.used_by(tenant.name), used.pending_of(tenant.name))


def _tenant_at(request: Request, state: ClusterState) -> Tenant:
    """The tenant that the path names. Raises: StokerError `tenant_unknown`."""
    name = TenantName(request.path_params["name"])
    tenant = state.tenants.get(name)
    if tenant is None:
        hint = did_you_mean(name, sorted(state.tenants), "`stoker tenant list` shows those there are")
        raise refusal_error("tenant_unknown", f"there is no tenant {name[:80]!r}", hint, tenant=name[:80])
    return tenant


def pools_view(state: ClusterState) -> QuotaView:
    """Return the class pools as they are now."""
    return quota_view(state.pools, state.indexes.free_milli, pool_demands(state))
