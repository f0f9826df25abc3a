"""The page of the timeline: which job held which GPUs, and what is planned, as bars that a script draws.

Limits: JOBS_MAX jobs of the span and as many of the plan; the answer says when there are more.
"""

from datetime import datetime, timedelta
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.routing import Route

from stoker.web.formatting import owner
from stoker.web.site import Context, Site
from stoker.wire import endpoints
from stoker.wire.rest.job import LIST_MAX, JobView

JOBS_MAX: Final = LIST_MAX
SPANS: Final = ("1h", "6h", "1d", "7d")


class TimelineBar(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The time that one task held GPUs of a node, or will hold them."""

    job: str
    name: str
    user: str
    tenant: str
    node: str
    gpus: list[int]
    """By index; empty of what is planned, which only names nodes."""
    start: str
    end: str | None = None
    """None = it goes on."""
    state: str
    planned: bool = False


class TimelineBars(msgspec.Struct, frozen=True, kw_only=True):
    """Bars of the nodes, and what there is to draw them on."""

    now: str
    nodes: list[tuple[str, int]]
    """Name, and how many GPUs it has."""
    bars: list[TimelineBar]
    more: bool


def routes(site: Site) -> list[Route]:
    """Return the routes of the timeline."""

    async def show(request: Request) -> Context:
        planned = await site.ask(request, endpoints.JOBS, {"planned": "true", "limit": "50"})
        return {"planned": planned.jobs}

    async def bars(request: Request) -> TimelineBars:
        wanted = request.query_params.get("span", "6h")
        span = wanted if wanted in SPANS else "6h"
        listed = await site.ask(request, endpoints.GPUS)
        held = await site.ask(
            request, endpoints.JOBS, {"since": span, "members": "true", "limit": str(JOBS_MAX), "sort": "live"}
        )
        planned = await site.ask(request, endpoints.JOBS, {"planned": "true", "limit": str(JOBS_MAX)})
        index = {gpu.uuid: gpu.device_index for gpu in listed.gpus}
        count: dict[str, int] = {}
        for gpu in listed.gpus:
            count[gpu.node] = max(count.get(gpu.node, 0), gpu.device_index + 1)
        return TimelineBars(
            now=site.now,
            nodes=list(count.items()),
            bars=[
                *(bar for job in held.jobs for bar in _held(job, index)),
                *(bar for job in planned.jobs for bar in _planned(job)),
            ],
            more=held.next is not None or planned.next is not None,
        )

    return [site.page("/timeline", "timeline.html", "timeline", show), site.data("/timeline/bars", bars)]


def _held(job: JobView, index: dict[str, int]) -> list[TimelineBar]:
    return [
        _bar(
            *(job, task.node, task.started_at or attempt.placed_at, task.ended_at or attempt.ended_at),
            gpus=[index[gpu] for gpu in task.gpus if gpu in index],
            state=attempt.outcome or job.state,
        )
        for attempt in job.attempts
        for task in attempt.tasks
    ]


def _limit(job: JobView) -> str | None:
    """Return when a job that starts as planned is over at the latest; None = it has no limit."""
    if job.planned_start is None or not job.time_limit_ms:
        return None
    return (datetime.fromisoformat(job.planned_start) + timedelta(milliseconds=job.time_limit_ms)).isoformat()


def _planned(job: JobView) -> list[TimelineBar]:
    return [_bar(job, node, job.planned_start or "", _limit(job), state=job.state) for node in job.planned_nodes]


def _bar(
    job: JobView, node: str, start: str, end: str | None, *, state: str, gpus: list[int] | None = None
) -> TimelineBar:
    """Return a bar of a job; without `gpus` it is planned."""
    return TimelineBar(
        job=job.id,
        name=job.name,
        user="" if job.reduced else owner(job),
        tenant=job.tenant,
        node=node,
        gpus=gpus or [],
        start=start,
        end=end,
        state=state,
        planned=gpus is None,
    )
