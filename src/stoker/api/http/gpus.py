"""REST routes for GPUs: what there is, and who has it."""

from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.responses import caller_of, json_response, query_of
from stoker.api.http.routing import Routes
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.node import Node, OrphanTask
from stoker.brain.domain.units import Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.cluster_counts import count_gpus, gpu_holders, gpu_statuses, known_nodes, quarantined_gpus
from stoker.control.access import JobVisibility
from stoker.control.control_plane import ControlPlane
from stoker.wire import endpoints
from stoker.wire.rest.decode import NoQuery
from stoker.wire.rest.node import GpuListView, GpuView, gpu_id
from stoker.wire.rest.view import iso


def routes(control: ControlPlane) -> Routes:
    router = Routes("gpus")

    @router.serve(endpoints.GPUS)
    async def list_gpus(request: Request) -> Response:
        """List the GPUs of every node that wasn't forgotten."""
        query_of(request, NoQuery)
        state = control.committer.state
        sees, now = JobVisibility(state, caller_of(request)), control.clock.now()
        gpus = [gpu for node in known_nodes(state) for gpu in gpus_of(state, node, now, sees)]
        counts = count_gpus(state)
        return json_response(
            GpuListView(
                total=counts.total,
                idle=counts.idle,
                busy=counts.busy,
                offline=counts.offline,
                quarantined=counts.quarantined,
                gpus=gpus,
            )
        )

    return router


def gpus_of(state: ClusterState, node: Node, now: Instant, sees: JobVisibility) -> list[GpuView]:
    """Return the jobs of each GPU; a caller is shown those of jobs that it may read in full."""
    named = {uuid: str(job) for uuid, job in gpu_holders(state, node).items() if is_seen(state, job, sees)}
    notes = {uuid: _quarantine_note(state, node, stray, sees) for uuid, stray in quarantined_gpus(node).items()}
    status_of = gpu_statuses(state, node)
    return [
        GpuView(
            id=gpu_id(node.name, gpu.index),
            uuid=gpu.uuid,
            node_id=node.name,
            node=node.name,
            device_index=gpu.index,
            model=gpu.model,
            memory=gpu.memory_mb,
            memory_mb=gpu.memory_mb,
            status=status_of[gpu.uuid],
            current_task=named.get(gpu.uuid),
            simulated=gpu.simulated,
            updated_at=iso(now),
            note=notes.get(gpu.uuid, ""),
        )
        for gpu in node.inventory.gpus
    ]


def is_seen(state: ClusterState, job: JobId, sees: JobVisibility) -> bool:
    """Return whether the caller may read this job in full; one that nobody remembers only if it may read all."""
    if sees.is_whole:
        return True
    record = state.jobs.get(job)
    return record is not None and sees(record.spec.tenant)


def _quarantine_note(state: ClusterState, node: Node, stray: OrphanTask, sees: JobVisibility) -> str:
    job = state.jobs.get(stray.job)
    named = f"job {job.label if job else stray.job}" if is_seen(state, stray.job, sees) else "a job"
    return (
        f"{named} was on it until {iso(stray.settled_at)}, when node {node.name} had been silent for too long; it is "
        "offered again once the agent there is back and says that it is clean"
    )
