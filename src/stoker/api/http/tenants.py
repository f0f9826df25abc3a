"""REST routes for tenants: list, show, make, change, delete."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.responses import body_of, caller_of, carry_out, json_response, query_of
from stoker.api.http.routing import BODY, CHANGE, TENANT, Routes
from stoker.brain.domain.errors import refusal_error
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.suggestion import did_you_mean
from stoker.brain.domain.tenant import Tenant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import DeleteTenant, PutTenant
from stoker.control.control_plane import ControlPlane
from stoker.wire import endpoints
from stoker.wire.rest.decode import NoQuery, decode_body
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
    *("conflicting_fields", *BODY, *CHANGE),
)
_MADE: Final = ("tenant_exists", "bad_tenant_name", "unknown_tenant", "too_many_tenants", "tree_too_deep")
_CHANGED: Final = (*TENANT, "unknown_tenant", "tenant_place")
"""`unknown_tenant`: it was deleted in the same moment."""


def routes(control: ControlPlane) -> Routes:
    router = Routes("tenants")

    @router.serve(endpoints.TENANTS)
    async def list_tenants(request: Request) -> Response:
        """List every tenant, each followed by those beneath it."""
        query_of(request, NoQuery)
        return json_response(await _all(control))

    @router.serve(endpoints.CREATE_TENANT, *_MADE, *_SAID)
    async def create_tenant(request: Request) -> Response:
        """Make a tenant. A limit that is left out is none."""
        body = decode_body(NewTenantBody, await body_of(request))
        tenant = tenant_of(body)
        await _put(control, request, tenant, create=True)
        return json_response(_view(control.committer.state, tenant), 201)

    @router.serve(endpoints.TENANT, *TENANT)
    async def show_tenant(request: Request) -> Response:
        """Show one tenant."""
        state = control.committer.state
        return json_response(_view(state, _tenant_at(request, state)))

    @router.serve(endpoints.CHANGE_TENANT, *_CHANGED, *_SAID)
    async def change_tenant(request: Request) -> Response:
        """Change what is given, and leave the rest; null takes a limit off. What runs goes on."""
        body = decode_body(TenantBody, await body_of(request))
        tenant = changed(_tenant_at(request, control.committer.state), body)
        await _put(control, request, tenant, create=False)
        return json_response(_view(control.committer.state, tenant))

    @router.serve(endpoints.DELETE_TENANT, *TENANT, "unknown_tenant", "tenant_in_use", *CHANGE)
    async def delete_tenant(request: Request) -> Response:
        """Delete a tenant that no job which hasn't ended, no token and no other tenant names. The answer shows what
        it was."""
        state = control.committer.state
        was = _view(state, _tenant_at(request, state))
        await carry_out(control, request, DeleteTenant(by=caller_of(request).principal, name=TenantName(was.name)))
        return json_response(was)

    return router


async def _all(control: ControlPlane) -> TenantListView:
    views: list[TenantView] = []
    for tenant in in_tree_order(control.committer.state.tenants):
        views.append(_view(control.committer.state, tenant))
        if len(views) % SLICE == 0:
            await control.clock.sleep(0)
    return TenantListView(tenants=views, total=len(views))


async def _put(control: ControlPlane, request: Request, tenant: Tenant, *, create: bool) -> None:
    command = PutTenant(by=caller_of(request).principal, tenant=tenant, create=create)
    await carry_out(control, request, command)


def _tenant_at(request: Request, state: ClusterState) -> Tenant:
    """The tenant that the path names. Raises: StokerError `tenant_unknown`."""
    name = TenantName(request.path_params["name"])
    tenant = state.tenants.get(name)
    if tenant is None:
        hint = did_you_mean(name, sorted(state.tenants), "`stoker tenant list` shows those there are")
        raise refusal_error("tenant_unknown", f"there is no tenant {name[:80]!r}", hint, tenant=name[:80])
    return tenant


def _view(state: ClusterState, tenant: Tenant) -> TenantView:
    usage_ledger = state.indexes.usage_ledger
    return tenant_view(state.tenants, tenant, usage_ledger.used_by(tenant.name), usage_ledger.pending_of(tenant.name))
