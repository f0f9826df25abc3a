"""The start page: the cluster in numbers, its GPUs as a map, who uses them, and what failed last.

The map is one answer of columns, a row for each GPU, which a script draws: the page needs no element for each of
thousands of GPUs, and readers who see the same share one answer.

Rules: M1  a GPU's tenant is told where REST tells its job
       M2  figures of a GPU that REST calls stale, or that there are none of, are left out
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.routing import Route

from stoker.brain.domain.array import parse_job_ref
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.gpu import GpuStatus
from stoker.brain.state.cluster import ClusterState
from stoker.web.formatting import owner
from stoker.web.site import FIGURES_STILL_S, Context, Site
from stoker.wire import endpoints
from stoker.wire.rest.job import LIST_MAX, JobView
from stoker.wire.rest.node import GpuListView, GpuView

FAILED_SHOWN: Final = 5
USERS_SHOWN: Final = 10
_FAILED: Final = "failed,timeout,out_of_memory,node_failed"


class GpuMap(msgspec.Struct, frozen=True, kw_only=True):
    """Every GPU that wasn't forgotten, by node, as columns of equal length. Null = not known."""

    nodes: list[tuple[str, int]]
    """Name, and how many of the rows are its GPUs."""
    tenants: list[str]
    models: list[str]
    uuid: list[str]
    index: list[int]
    model: list[int]
    """Place in `models`."""
    status: list[GpuStatus]
    health: list[str]
    job: list[str | None]
    tenant: list[int | None]
    """Place in `tenants`."""
    use: list[int | None]
    """Percent."""
    temperature: list[int | None]
    memory_used_mb: list[int | None]
    memory_mb: list[int]
    simulated: bool


def routes(site: Site) -> list[Route]:
    """Return the routes of the start page and its map."""

    async def show(request: Request) -> Context:
        status = await site.ask(request, endpoints.STATUS)
        running = await site.ask(request, endpoints.JOBS, {"state": "running", "limit": str(LIST_MAX)})
        failed = await site.ask(
            request, endpoints.JOBS, {"state": _FAILED, "sort": "-ended", "limit": str(FAILED_SHOWN)}
        )
        return {
            "status": status,
            "users": users_of(running.jobs),
            "more_running": running.next is not None,
            "failed": failed.jobs,
            "failed_states": _FAILED,
        }

    async def gpu_map(request: Request) -> GpuMap:
        return map_of(site.control.committer.state, await site.ask(request, endpoints.GPUS))

    return [site.page("/", "cluster.html", "cluster", show), site.data("/map", gpu_map, still_s=FIGURES_STILL_S)]


def users_of(jobs: Sequence[JobView]) -> list[tuple[str, str, float, int]]:
    """Return who uses most: account, tenant, GPUs, and how many jobs."""
    gpus: Counter[tuple[str, str]] = Counter()
    count: Counter[tuple[str, str]] = Counter()
    for job in jobs:
        whose = owner(job) if not job.reduced else "", job.tenant
        members = job.members.running if job.members is not None else 1
        gpus[whose] += round(1_000 * job.total_gpus * job.gpu_share) * members
        count[whose] += members
    most = sorted(gpus, key=lambda whose: (-gpus[whose], whose))[:USERS_SHOWN]
    return [(account, tenant, gpus[account, tenant] / 1_000, count[account, tenant]) for account, tenant in most]


def map_of(state: ClusterState, listed: GpuListView) -> GpuMap:
    """Return the map of GPUs that somebody sees."""
    nodes: Counter[str] = Counter(gpu.node for gpu in listed.gpus)
    whose = [_tenant_of(state, gpu) for gpu in listed.gpus]
    tenants = sorted({each for each in whose if each is not None})
    models = sorted({gpu.model for gpu in listed.gpus})
    place = {name: at for at, name in enumerate(tenants)}
    fresh = [gpu.figures if gpu.figures is not None and not gpu.figures.stale else None for gpu in listed.gpus]
    return GpuMap(
        nodes=list(nodes.items()),
        tenants=tenants,
        models=models,
        uuid=[gpu.uuid for gpu in listed.gpus],
        index=[gpu.device_index for gpu in listed.gpus],
        model=[models.index(gpu.model) for gpu in listed.gpus],
        status=[gpu.status for gpu in listed.gpus],
        health=[gpu.health.state.value for gpu in listed.gpus],
        job=[gpu.current_task for gpu in listed.gpus],
        tenant=[None if each is None else place[each] for each in whose],
        use=[each.utilization_percent if each else None for each in fresh],
        temperature=[each.temperature_c if each else None for each in fresh],
        memory_used_mb=[each.memory_used_mb if each else None for each in fresh],
        memory_mb=[gpu.memory_mb for gpu in listed.gpus],
        simulated=any(gpu.simulated for gpu in listed.gpus),
    )


def _tenant_of(state: ClusterState, gpu: GpuView) -> str | None:
    if gpu.current_task is None:
        return None
    try:
        job = state.find(parse_job_ref(gpu.current_task))
    except StokerError:
        return None
    return None if job is None else job.spec.tenant
