"""REST routes for the whole cluster and this control plane: the numbers on one page, roles, health, metrics, codes.

`/health` answers while the process serves. `/ready` also asks the loop and the log, and says what is stuck. The page of
codes, to which the `type` of every problem leads, shows `wire.status` and nothing of the cluster, so everybody may read
it.
"""

import asyncio
from html import escape
from typing import Final, Protocol, runtime_checkable

from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.responses import caller_of
from stoker.api.http.routing import Routes
from stoker.api.http.state_metrics import gauges
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.units import NEVER, SECOND_MS
from stoker.brain.state.cluster_counts import (
    count_free_gpus,
    count_gpus,
    count_jobs,
    count_nodes,
    count_running,
    gpu_sharers,
    known_nodes,
    waits_since,
)
from stoker.control.control_plane import ControlPlane
from stoker.wire import endpoints
from stoker.wire.endpoints import PRODUCT
from stoker.wire.rest.cluster import ClusterView, ControlView, FreeGpusView, HealthView, ReadyView
from stoker.wire.status import STATUSES, Status

LOG_WAIT_S: Final = 5.0
"""A disk that needs longer for one append is stuck, for whoever waits for an answer."""
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


_PAGE: Final = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Refusals</title></head><body><h1>Refusals</h1>
<p>Each carries a code, a message that says what happened, and a hint that says what to do next.</p>
<table><tr><th>code</th><th>meaning</th><th>HTTP</th><th>gRPC</th><th>exit status</th></tr>
{rows}
</table></body></html>
"""


@runtime_checkable
class Rendering(Protocol):
    """A Telemetry that can show its metrics."""

    def render(self) -> bytes: ...


def routes(control: ControlPlane) -> Routes:
    router = Routes()

    @router.serve(endpoints.STATUS)
    async def cluster_status(request: Request) -> ClusterView:
        """Show the cluster in numbers."""
        return _cluster_view(control)

    @router.serve(endpoints.CONTROL)
    async def show(request: Request) -> ControlView:
        """Show what this control plane is among those of its cluster."""
        return _control_view(control)

    @router.serve(endpoints.PROMOTE, "promotion_refused")
    async def promote(request: Request) -> ControlView:
        """Make this one active, although it may lack what was acknowledged. 1,000,000 job ids are left out, so that
        none is given away twice."""
        if control.pair is None:
            hint = "failover.enabled is false: there is only this one, and it is active"
            raise refusal_error("promotion_refused", "this control plane is not one of several", hint)
        await control.pair.promote(caller_of(request).principal)
        return _control_view(control)

    async def health(request: Request) -> HealthView:
        """Say that the process serves."""
        state, ahead_ms = control.committer.state, control.committer.ahead_ms
        return HealthView(version=PRODUCT, cluster_id=state.cluster_id, epoch=state.epoch, clock_ahead_ms=ahead_ms)

    for endpoint in (endpoints.ROOT_HEALTH, endpoints.HEALTH):
        router.serve(endpoint)(health)

    @router.serve(endpoints.READY, "not_ready", "log_failed", "not_active")
    async def ready(request: Request) -> ReadyView:
        """Say whether jobs are accepted and started; 503 with the reason when not."""
        if control.committer.following is not None:
            raise StokerError(control.committer.following())
        await _check_log(control)
        _check_loop(control)
        age_s = round(control.loop.last_pass_age_s(), 3)
        return ReadyView(last_pass_age_s=age_s, position=control.committer.durable)

    @router.serve(endpoints.METRICS)
    async def metrics(request: Request) -> Response:
        """Show the meters in Prometheus' text form."""
        telemetry = control.telemetry
        kept = telemetry.render() if isinstance(telemetry, Rendering) else b""
        return Response(await gauges(control) + kept, media_type=METRICS_TYPE)

    page = _PAGE.format(rows="\n".join(_row(code, status) for code, status in STATUSES.items()))

    @router.serve(endpoints.ERRORS)
    async def errors(request: Request) -> Response:
        """Show what each code of a refusal means, as a page for people."""
        return Response(page, media_type="text/html")

    return router


def _cluster_view(control: ControlPlane) -> ClusterView:
    state = control.committer.state
    gpus, nodes, jobs = count_gpus(state), list(known_nodes(state)), count_jobs(state)
    by_model, since = count_free_gpus(state), waits_since(state)
    sharing = {node.name: gpu_sharers(state, node) for node in nodes}
    return ClusterView(
        total_gpus=gpus.total,
        available_gpus=gpus.idle,
        busy_gpus=gpus.busy,
        offline_gpus=gpus.offline,
        quarantined_gpus=gpus.quarantined,
        lost_gpus=gpus.lost,
        shared_gpus=sum(map(len, sharing.values())),
        sharing_nodes_without_mps=sum(not node.inventory.mps for node in nodes if sharing[node.name]),
        total_nodes=len(nodes),
        online_nodes=sum(node.reachable for node in nodes),
        total_jobs=len(state.jobs),
        # Members of arrays are counted one by one, and their arrays not beside them.
        pending_jobs=state.indexes.pending_count + jobs[JobState.STARTING],
        running_jobs=count_running(state),
        jobs=jobs,
        nodes=count_nodes(state),
        simulated=any(node.inventory.simulated for node in nodes),
        cluster_id=state.cluster_id,
        epoch=state.epoch,
        position=control.committer.durable,
        version=PRODUCT,
        last_pass_age_s=round(control.loop.last_pass_age_s(), 3),
        free_by_model=[
            FreeGpusView(model=each.model, free_gpus=each.free, most_on_node=each.most_on_node) for each in by_model
        ],
        longest_wait_s=None if since == NEVER else max(0, control.committer.now() - since) // SECOND_MS,
    )


def _settings_drift(control: ControlPlane) -> str:
    """Empty for the active one: its own settings are in force."""
    return "" if control.committer.following is None else control.settings_drift()


def _control_view(control: ControlPlane) -> ControlView:
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


def _row(code: str, status: Status) -> str:
    cells = (f"<code>{code}</code>", escape(status.title), str(status.http), status.grpc, str(status.exit))
    return f'<tr id="{code}">{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
