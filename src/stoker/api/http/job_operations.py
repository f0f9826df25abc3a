"""REST for what is told to jobs: cancel, hold, release, requeue, signal.

An order about one job, one member or a whole array is answered with it; one about several members with those. What is
shown is how the order left them, taken at that very instant: a moment later some may have moved on.
"""

from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.responses import body_of, caller_of, json_response, raw_json
from stoker.api.http.routing import BODY, CHANGE, JOB, Content, Routes, json_content, one_of, route
from stoker.api.http.row_cache import drawn
from stoker.brain.domain.array import JobRef, parse_job_ref
from stoker.brain.domain.ids import Principal
from stoker.brain.state.commands import Cancel, Hold, JobOperation, Release, Requeue, SignalJob
from stoker.control.access import JobVisibility
from stoker.control.control_plane import ControlPlane
from stoker.control.job_operations import carry_out_operation
from stoker.wire.rest.decode import decode_body
from stoker.wire.rest.job import JobDetails, JobsToldView, JobView, SignalBody, job_view
from stoker.wire.rest.query import NoBody
from stoker.wire.signals import parse_signal
from stoker.wire.versions import API_PREFIX

_REQUEUE: Final = (
    *("nothing_failed", "job_waits", "job_ended", "too_many_jobs", "too_many_attempts"),
    *("dependency_never_satisfied", "unknown_partition", "unknown_tenant", "queue_full"),
    *("over_tenant_limit", "demand_unstated", "priority_above_tier", "time_limit_too_long"),
)


def routes(control: ControlPlane) -> Routes:
    router = Routes("jobs", API_PREFIX)
    shapes = one_of(JobView, JobsToldView)

    async def answered(request: Request, order: Callable[[Principal, JobRef], JobOperation]) -> Response:
        caller, target = caller_of(request), parse_job_ref(request.path_params["job_id"])
        told = await carry_out_operation(control, caller, order(caller.principal, target))
        if isinstance(told, JobDetails):
            return json_response(job_view(told))
        content = b",".join(await drawn(control, told.seen, JobVisibility(control.committer.state, caller)))
        return raw_json(b'{"jobs":[%b],"total":%d,"changed":%d}' % (content, told.total, told.changed))

    @router.delete("/jobs/{job_id}", route(shapes, path="job_id", refusals=(*JOB, "job_ended", *CHANGE)))
    async def cancel(request: Request) -> Response:
        """Cancel a job, an array or members of one. A job is final once its processes are proved gone."""
        return await answered(request, lambda by, target: Cancel(by=by, target=target))

    @router.post("/jobs/{job_id}/hold", _operation_route(shapes, "job_ended", "job_live", "too_many_jobs"))
    async def hold(request: Request) -> Response:
        """Keep what waits from starting, until it is released."""
        await _no_body(request)
        return await answered(request, lambda by, target: Hold(by=by, target=target))

    @router.post("/jobs/{job_id}/release", _operation_route(shapes, "not_held", "too_many_jobs"))
    async def release(request: Request) -> Response:
        """Let what is held wait for its turn again."""
        await _no_body(request)
        return await answered(request, lambda by, target: Release(by=by, target=target))

    @router.post("/jobs/{job_id}/requeue", _operation_route(shapes, *_REQUEUE))
    async def requeue(request: Request) -> Response:
        """Run it once more: what is live is stopped first. Of a whole array the members that failed."""
        await _no_body(request)
        return await answered(request, lambda by, target: Requeue(by=by, target=target))

    @router.post(
        "/jobs/{job_id}/signal",
        route(
            shapes,
            path="job_id",
            body=json_content(SignalBody),
            refusals=(*JOB, *BODY, "bad_signal", "not_running", "node_unreachable", *CHANGE),
        ),
    )
    async def signal(request: Request) -> Response:
        """Send a signal to the processes of what runs, once."""
        number = parse_signal(decode_body(SignalBody, await body_of(request)).signal)
        return await answered(request, lambda by, target: SignalJob(by=by, target=target, signal=number))

    return router


def _operation_route(answer: Content, *refusals: str) -> Content:
    """The route of an order that takes no body."""
    return route(answer, path="job_id", refusals=(*JOB, *BODY, *refusals, *CHANGE))


async def _no_body(request: Request) -> None:
    """A body that says nothing is taken, one that says something is not: it would be meant."""
    data = await body_of(request)
    if data:
        decode_body(NoBody, data)
