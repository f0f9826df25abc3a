"""REST routes for the whole cluster: the numbers on one page."""

from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.responses import json_response, query_of
from stoker.api.http.routing import Routes
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.state.cluster_counts import count_gpus, count_jobs, count_nodes, count_running, known_nodes
from stoker.control.control_plane import ControlPlane
from stoker.wire import endpoints
from stoker.wire.endpoints import PRODUCT
from stoker.wire.rest.cluster import ClusterView
from stoker.wire.rest.decode import NoQuery


def routes(control: ControlPlane) -> Routes:
    router = Routes("cluster")

    @router.serve(endpoints.STATUS)
    async def cluster_status(request: Request) -> Response:
        """Show the cluster in numbers."""
        query_of(request, NoQuery)
        return json_response(cluster_view(control))

    return router


def cluster_view(control: ControlPlane) -> ClusterView:
    state = control.committer.state
    gpus, nodes, jobs = count_gpus(state), list(known_nodes(state)), count_jobs(state)
    return ClusterView(
        total_gpus=gpus.total,
        available_gpus=gpus.idle,
        busy_gpus=gpus.busy,
        offline_gpus=gpus.offline,
        quarantined_gpus=gpus.quarantined,
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
    )
