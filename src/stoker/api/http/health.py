"""REST routes for health, readiness and metrics.

`/health` answers while the process serves. `/ready` also asks the loop and the log, and says what is stuck.
"""

import asyncio
from typing import Final, Protocol, runtime_checkable

from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.responses import json_response
from stoker.api.http.routing import Routes
from stoker.api.http.state_metrics import gauges
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.control.control_plane import ControlPlane
from stoker.wire import endpoints
from stoker.wire.endpoints import PRODUCT
from stoker.wire.rest.cluster import HealthView, ReadyView

LOG_WAIT_S: Final = 5.0
"""A disk that needs longer for one append is stuck, for whoever waits for an answer."""
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@runtime_checkable
class Rendering(Protocol):
    """A Telemetry that can show its metrics."""

    def render(self) -> bytes: ...


def routes(control: ControlPlane) -> Routes:
    router = Routes("health")

    async def health(request: Request) -> Response:
        """Say that the process serves."""
        state = control.committer.state
        return json_response(HealthView(version=PRODUCT, cluster_id=state.cluster_id, epoch=state.epoch))

    for endpoint in (endpoints.ROOT_HEALTH, endpoints.HEALTH):
        router.serve(endpoint)(health)

    @router.serve(endpoints.READY, "not_ready", "log_failed", "not_active")
    async def ready(request: Request) -> Response:
        """Say whether jobs are accepted and started; 503 with the reason when not."""
        if control.committer.following is not None:
            raise StokerError(control.committer.following())
        await _check_log(control)
        _check_loop(control)
        age_s = round(control.loop.last_pass_age_s(), 3)
        return json_response(ReadyView(last_pass_age_s=age_s, position=control.committer.durable))

    @router.serve(endpoints.METRICS)
    async def metrics(request: Request) -> Response:
        """Show the meters in Prometheus' text form."""
        telemetry = control.telemetry
        kept = telemetry.render() if isinstance(telemetry, Rendering) else b""
        return Response(await gauges(control) + kept, media_type=METRICS_TYPE)

    return router


async def _check_log(control: ControlPlane) -> None:
    try:
        async with asyncio.timeout(LOG_WAIT_S):
            await control.committer.settled()
    except TimeoutError as fault:
        raise refusal_error(
            "not_ready",
            f"the event log has not taken the newest facts within {LOG_WAIT_S:.0f} s",
            "see whether the disk of data_dir is full or slow",
            stuck="log",
            durable=control.committer.durable,
        ) from fault


def _check_loop(control: ControlPlane) -> None:
    if not control.loop.stuck:
        return
    age_s = round(control.loop.last_pass_age_s())
    raise refusal_error(
        "not_ready",
        f"the scheduling loop has finished no pass for {age_s} s",
        "see `pass_failed` in the control plane's log",
        stuck="loop",
        last_pass_age_s=age_s,
    )
