"""REST routes for operations on jobs: cancel, hold, release, requeue, signal.

An operation on one job, one member or a whole array is answered with it; one on several members with those.
"""

from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.responses import body_of, caller_of, json_response, raw_json
from stoker.api.http.routing import BODY, CHANGE, JOB, Routes
from stoker.api.http.row_cache import drawn
from stoker.brain.domain.array import JobRef, parse_job_ref
from stoker.brain.domain.ids import Principal
from stoker.brain.state.commands import Cancel, Hold, JobOperation, Release, Requeue, SignalJob
from stoker.control.access import JobVisibility
from stoker.control.control_plane import ControlPlane
from stoker.control.job_operations import carry_out_operation
from stoker.wire import endpoints
from stoker.wire.rest.decode import NoBody, decode_body
from stoker.wire.rest.job import JobDetails, SignalBody, job_view
from stoker.wire.text import parse_signal

_REQUEUE: Final = (
    *("nothing_failed", "job_waits", "job_ended", "too_many_jobs", "too_many_attempts"),
    *("dependency_never_satisfied", "unknown_partition", "unknown_tenant", "queue_full"),
    *("over_tenant_limit", "demand_unstated", "priority_above_tier", "time_limit_too_long"),
)


def routes(control: ControlPlane) -> Routes:
    router = Routes("jobs")

    async def answered(request: Request, operation: Callable[[Principal, JobRef], JobOperation]) -> Response:
        caller, target = caller_of(request), parse_job_ref(request.path_params["job_id"])
        told = await carry_out_operation(control, caller, operation(caller.principal, target))
        if isinstance(told, JobDetails):
            return json_response(job_view(told))
        content = b",".join(await drawn(control, told.seen, JobVisibility(control.committer.state, caller)))
        return raw_json(b'{"jobs":[%b],"total":%d,"changed":%d}' % (content, told.total, told.changed))

    @router.serve(endpoints.CANCEL, *JOB, "job_ended", *CHANGE)
    async def cancel(request: Request) -> Response:
        """Cancel a job, an array or members of one. A job is final once its processes are proved gone."""
        return await answered(request, lambda by, target: Cancel(by=by, target=target))

    @router.serve(endpoints.HOLD, *JOB, *BODY, "job_ended", "job_live", "too_many_jobs", *CHANGE)
    async def hold(request: Request) -> Response:
        """Keep what waits from starting, until it is released."""
        await _no_body(request)
        return await answered(request, lambda by, target: Hold(by=by, target=target))

    @router.serve(endpoints.RELEASE, *JOB, *BODY, "not_held", "too_many_jobs", *CHANGE)
    async def release(request: Request) -> Response:
        """Let what is held wait for its turn again."""
        await _no_body(request)
        return await answered(request, lambda by, target: Release(by=by, target=target))

    @router.serve(endpoints.REQUEUE, *JOB, *BODY, *_REQUEUE, *CHANGE)
    async def requeue(request: Request) -> Response:
        """Run it once more: what is live is stopped first. Of a whole array the members that failed."""
        await _no_body(request)
        return await answered(request, lambda by, target: Requeue(by=by, target=target))

    @router.serve(endpoints.SIGNAL, *JOB, *BODY, "bad_signal", "not_running", "node_unreachable", *CHANGE)
    async def signal(request: Request) -> Response:
        """Send a signal to the processes of what runs, once."""
        number = parse_signal(decode_body(SignalBody, await body_of(request)).signal)
        return await answered(request, lambda by, target: SignalJob(by=by, target=target, signal=number))

    return router


async def _no_body(request: Request) -> None:
    """A body that says nothing is taken, one that says something is not: it would be meant."""
    data = await body_of(request)
    if data:
        decode_body(NoBody, data)
