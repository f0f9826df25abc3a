"""REST routes for the story of one job: what happened to it, and who told it what."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.audit import newest_rows
from stoker.api.http.responses import json_response, lookup_own_job_at, query_of
from stoker.api.http.routing import LOOKUP, Routes
from stoker.brain.domain.array import JobRef
from stoker.brain.domain.audit import AuditQuery
from stoker.brain.domain.job import Job
from stoker.control.control_plane import ControlPlane
from stoker.control.queries.job_history import story_of
from stoker.wire import endpoints
from stoker.wire.rest.audit import AUDIT_MAX, JobEventsQuery, JobEventsView

ORDERS_MAX: Final = 2_000
"""Of more orders to one job the newest are shown: those to an array may be as many as it has members. About 25 ms."""


def routes(control: ControlPlane) -> Routes:
    router = Routes("jobs")

    @router.serve(endpoints.JOB_EVENTS, *LOOKUP, "not_allowed")
    async def job_events(request: Request) -> Response:
        """Tell what happened to a job, newest last, and who told it what."""
        asked = query_of(request, JobEventsQuery)
        job = await lookup_own_job_at(request, control)
        return json_response(await _page(control, job, asked))

    return router


async def _page(control: ControlPlane, job: Job, asked: JobEventsQuery) -> JobEventsView:
    rows = await newest_rows(control, AuditQuery(job=_ref(job)), 0, ORDERS_MAX + 1)
    story = story_of(job, rows[:ORDERS_MAX][::-1])
    limit = min(asked.limit, AUDIT_MAX)
    events = story[asked.after : asked.after + limit]
    more = asked.after + limit < len(story)
    return JobEventsView(
        id=job.label,
        events=events,
        total=len(story),
        limit=limit,
        next=str(asked.after + limit) if more else None,
        partial=len(rows) > ORDERS_MAX,
    )


def _ref(job: Job) -> JobRef:
    if not job.array_of:
        return JobRef(job.id)
    return JobRef(job.array_of, ((job.array_index, job.array_index, 1),))
