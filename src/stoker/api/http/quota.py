"""REST routes for the class pools: how online and batch jobs share the GPUs."""

from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.responses import body_of, caller_of, carry_out, json_response, query_of
from stoker.api.http.routing import BODY, CHANGE, Routes
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import SetPools
from stoker.brain.state.quota_report import pool_demands
from stoker.control.control_plane import ControlPlane
from stoker.wire import endpoints
from stoker.wire.rest.decode import NoQuery, decode_body
from stoker.wire.rest.quota import QuotaBody, QuotaView, pools_of, quota_view


def routes(control: ControlPlane) -> Routes:
    router = Routes("quota")

    @router.serve(endpoints.QUOTA)
    async def show_quota(request: Request) -> Response:
        """Show how online and batch jobs share the GPUs."""
        query_of(request, NoQuery)
        return json_response(pools_view(control.committer.state))

    @router.serve(endpoints.SET_QUOTA, "bad_share", "share_below_use", *BODY, *CHANGE)
    async def set_quota(request: Request) -> Response:
        """Share the GPUs anew, at once. What runs goes on."""
        body = decode_body(QuotaBody, await body_of(request))
        pools = pools_of(body, control.committer.state.pools)
        await carry_out(control, request, SetPools(by=caller_of(request).principal, pools=pools, force=body.force))
        return json_response(pools_view(control.committer.state))

    return router


def pools_view(state: ClusterState) -> QuotaView:
    """Return the class pools as they are now."""
    return quota_view(state.pools, state.indexes.free_gpus, pool_demands(state))
