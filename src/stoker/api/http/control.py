"""REST routes for a control plane among several: which one is it, and make it the active one by force."""

from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.responses import caller_of, json_response
from stoker.api.http.routing import Routes
from stoker.brain.domain.errors import refusal_error
from stoker.control.control_plane import ControlPlane
from stoker.wire import endpoints
from stoker.wire.rest.cluster import ControlView


def routes(control: ControlPlane) -> Routes:
    router = Routes("control")

    @router.serve(endpoints.CONTROL)
    async def show(request: Request) -> Response:
        """Show what this control plane is among those of its cluster."""
        return json_response(_view(control))

    @router.serve(endpoints.PROMOTE, "promotion_refused")
    async def promote(request: Request) -> Response:
        """Make this one active, although it may lack what was acknowledged. 1,000,000 job ids are left out, so that
        none is given away twice."""
        if control.pair is None:
            hint = "failover.enabled is false: there is only this one, and it is active"
            raise refusal_error("promotion_refused", "this control plane is not one of several", hint)
        await control.pair.promote(caller_of(request).principal)
        return json_response(_view(control))

    return router


def _settings_drift(control: ControlPlane) -> str:
    """Empty for the active one: its own settings are in force."""
    return "" if control.committer.following is None else control.settings_drift()


def _view(control: ControlPlane) -> ControlView:
    state, durable = control.committer.state, control.committer.durable
    if control.pair is None:
        return ControlView(role="active", epoch=state.epoch, log_epoch=state.epoch, position=durable)
    view = control.pair.view()
    return ControlView(
        name=view.name,
        role=view.role.value,
        epoch=view.epoch,
        log_epoch=state.epoch,
        marker_reached=view.record_reached,
        unchanged_ms=round(view.unchanged_s * 1_000),
        silent=view.silent,
        active=view.active,
        active_http=view.active_http,
        in_sync=view.in_sync,
        position=view.position,
        lag_ms=view.lag_ms,
        why=view.why,
        secret=view.secret_trouble,
        unlike="; ".join(filter(None, (view.config_drift, _settings_drift(control)))),
    )
