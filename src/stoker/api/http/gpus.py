"""REST for GPUs: what there is, and who has it."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.contract import json_content, route
from stoker.api.http.responses import caller_of, json_response, query_of
from stoker.brain.domain.ids import GpuUuid, JobId
from stoker.brain.domain.node import Node, OrphanTask
from stoker.brain.domain.units import Instant
from stoker.brain.state.cluster import ClusterState
from stoker.control.access import JobVisibility
from stoker.control.control_plane import ControlPlane
from stoker.wire.rest.gpu import GpuListView, GpuStatus, GpuView, gpu_id
from stoker.wire.rest.instant import iso
from stoker.wire.rest.query import NoQuery
from stoker.wire.versions import API_PREFIX


class GpuCounts(NamedTuple):
    """total = idle + busy + offline + quarantined"""

    total: int = 0
    idle: int = 0
    busy: int = 0
    offline: int = 0
    quarantined: int = 0


def routes(control: ControlPlane) -> APIRouter:
    router = APIRouter(prefix=API_PREFIX, tags=["gpus"])

    @router.get("/gpus", **route(json_content(GpuListView), query=NoQuery))
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


def known_nodes(state: ClusterState) -> Iterator[Node]:
    """Every node that wasn't forgotten, by name."""
    return (state.nodes[name] for name in sorted(state.nodes) if not state.nodes[name].forgotten)


def gpus_of(state: ClusterState, node: Node, now: Instant, sees: JobVisibility) -> list[GpuView]:
    """Which job has a GPU is shown to those who see that job in full."""
    held, status_of = _held(state, node), _statuses(state, node)
    named = {uuid: str(job) for uuid, job in held.items() if is_seen(state, job, sees)}
    notes = {uuid: _quarantine_note(state, node, stray, sees) for uuid, stray in _quarantined(node).items()}
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
            status=status_of(gpu.uuid),
            current_task=named.get(gpu.uuid),
            simulated=gpu.simulated,
            updated_at=iso(now),
            note=notes.get(gpu.uuid, ""),
        )
        for gpu in node.inventory.gpus
    ]


def is_seen(state: ClusterState, job: JobId, sees: JobVisibility) -> bool:
    """Is this job seen in full? One that nobody remembers only by those who see everything."""
    if sees.is_whole:
        return True
    record = state.jobs.get(job)
    return record is not None and sees(record.spec.tenant)


def count_gpus(state: ClusterState) -> GpuCounts:
    counts: dict[GpuStatus, int] = {"idle": 0, "busy": 0, "offline": 0, "quarantined": 0}
    for node in known_nodes(state):
        status_of = _statuses(state, node)
        for gpu in node.inventory.gpus:
            counts[status_of(gpu.uuid)] += 1
    return GpuCounts(sum(counts.values()), **counts)


def _held(state: ClusterState, node: Node) -> dict[GpuUuid, JobId]:
    holdings = state.indexes.held.get(node.name, {})
    return {uuid: job for (job, _, _), placement in holdings.items() for uuid in placement.gpus}


def _free(state: ClusterState, node: Node) -> frozenset[GpuUuid]:
    free = state.indexes.free.get(node.name)
    return frozenset(gpu.uuid for gpu in free.gpus) if free else frozenset()


def _quarantined(node: Node) -> dict[GpuUuid, OrphanTask]:
    return {uuid: stray for stray in node.strays if stray.unproved for uuid in stray.gpus}


def _statuses(state: ClusterState, node: Node) -> Callable[[GpuUuid], GpuStatus]:
    held, free, quarantined = _held(state, node), _free(state, node), _quarantined(node)

    def status_of(uuid: GpuUuid) -> GpuStatus:
        if uuid in quarantined:
            return "quarantined"
        if not node.reachable:
            return "offline"
        if uuid in held:
            return "busy"
        return "idle" if uuid in free else "offline"

    return status_of


def _quarantine_note(state: ClusterState, node: Node, stray: OrphanTask, sees: JobVisibility) -> str:
    job = state.jobs.get(stray.job)
    named = f"job {job.label if job else stray.job}" if is_seen(state, stray.job, sees) else "a job"
    return (
        f"{named} was on it until {iso(stray.settled_at)}, when node {node.name} had been silent for too long; it is "
        "offered again once the agent there is back and says that it is clean"
    )
