"""REST routes for jobs: submit, list, show. Operations on them are in `job_operations`."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.responses import (
    body_of,
    caller_of,
    json_response,
    key_of,
    lookup_job_at,
    query_of,
    raw_json,
    repeat_headers,
)
from stoker.api.http.routing import (
    BODY,
    CHANGE,
    KEYED,
    LIST,
    LOOKUP,
    SUBMIT,
    Routes,
)
from stoker.api.http.row_cache import RowCache, drawn
from stoker.brain.domain.access import Caller
from stoker.brain.domain.array import count_of, parse_job_ref
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.job import JobSpec
from stoker.control.access import JobVisibility, may_read
from stoker.control.control_plane import ControlPlane
from stoker.control.queries.job_details import job_details, job_details_for, listed_jobs, members_named
from stoker.control.queries.job_listing import filter_of, page_of, select
from stoker.control.queries.job_lookup import names_several
from stoker.control.submission import Submitted, of_index, spec_for, submitted
from stoker.wire import endpoints
from stoker.wire.rest.decode import decode_body, decode_list, decode_members, unknown_name
from stoker.wire.rest.job import (
    ForgottenJobView,
    JobListQuery,
    job_view,
    reduced,
)
from stoker.wire.rest.submit import JobBody, JobsBody

BODIES_PER_TURN: Final = 256
"""Jobs read before others get a turn: about a millisecond."""


def routes(control: ControlPlane) -> Routes:
    router = Routes("jobs")
    rows = RowCache(control)

    @router.serve(endpoints.SUBMIT, *BODY, *SUBMIT, *KEYED, *CHANGE)
    async def submit(request: Request) -> Response:
        """Submit one job, or all or none of `{"jobs": [...]}`."""
        caller, data = caller_of(request), await body_of(request)
        key = key_of(request, data, "jobs")
        # Most bodies are one job; only where the word stands in it, or may be written otherwise, they are looked into.
        members = decode_members(data) if b'"jobs"' in data or b"\\u" in data else {}
        if "jobs" in members:
            specs = await _specs(control, caller, members)
            return await _many(control, caller, await submitted(control, caller, specs, key))
        spec = spec_for(control, caller, decode_body(JobBody, data), control.committer.now())
        return _one(control, caller, await submitted(control, caller, (spec,), key))

    @router.serve(endpoints.JOBS, *LIST)
    async def list_jobs(request: Request) -> Response:
        """List jobs, newest first."""
        return await _page(control, rows, caller_of(request), query_of(request, JobListQuery))

    @router.serve(endpoints.JOB, *LOOKUP)
    async def show(request: Request) -> Response:
        """Show one job, or several members of an array."""
        ref = parse_job_ref(request.path_params["job_id"])
        if not names_several(ref):
            job = await lookup_job_at(request, control)
            return json_response(job_view(job_details_for(control, caller_of(request), job)))
        members = listed_jobs(control, members_named(control.committer.state, ref))
        content = b",".join(await drawn(control, members, JobVisibility(control.committer.state, caller_of(request))))
        return raw_json(b'{"jobs":[%b],"total":%d}' % (content, count_of(ref.members or ())))

    return router


def _one(control: ControlPlane, caller: Caller, answer: Submitted) -> Response:
    if answer.forgotten:
        job_id = str(answer.forgotten[0])
        said = f"job {job_id} was submitted under this key, and ended so long ago that its record is gone"
        return json_response(ForgottenJobView(id=job_id, job_id=job_id, message=said), 201, repeat_headers(answer))
    (job,) = answer.seen.jobs
    now = answer.seen.arrays.get(job.id) or job_details(control, job)
    # A repeat may show what was submitted with another token of the same user.
    now = now if may_read(control.committer.state, caller, job.spec.tenant) else reduced(now)
    return json_response(job_view(now, submitted=True), 201, repeat_headers(answer))


async def _many(control: ControlPlane, caller: Caller, answer: Submitted) -> Response:
    sees = JobVisibility(control.committer.state, caller)
    content = b",".join(await drawn(control, answer.seen, sees, submitted=True))
    total = len(answer.seen.jobs) + len(answer.forgotten)
    gone = b',"forgotten":[%b]' % b",".join(b'"%d"' % job for job in answer.forgotten) if answer.forgotten else b""
    return raw_json(b'{"jobs":[%b],"total":%d%b}' % (content, total, gone), 201, repeat_headers(answer))


async def _page(control: ControlPlane, rows: RowCache, caller: Caller, query: JobListQuery) -> Response:
    sees = JobVisibility(control.committer.state, caller)
    wanted = filter_of(query, control.committer.now(), sees)
    page = await page_of(control, query.limit, query.offset, query.after)
    found = await select(control, wanted, page)
    content = b",".join(await rows.of(listed_jobs(control, found.jobs), sees))
    following = b"null" if found.last is None else b'"%d"' % found.last
    members = (content, found.total, page.limit, following)
    return raw_json(b'{"jobs":[%b],"total":%d,"limit":%d,"next":%b}' % members)


async def _specs(control: ControlPlane, caller: Caller, members: dict[str, msgspec.Raw]) -> list[JobSpec]:
    for name in members:
        if name != "jobs":
            raise unknown_name(name, JobsBody, "", "field")
    specs: list[JobSpec] = []
    now = control.committer.now()
    for index, element in enumerate(decode_list(members["jobs"], "jobs")):
        at = f"jobs[{index}]"
        try:
            specs.append(spec_for(control, caller, decode_body(JobBody, element, at), now, at))
        except StokerError as fault:
            raise of_index(fault, index) from fault
        if len(specs) % BODIES_PER_TURN == 0:
            await control.clock.sleep(0)
    return specs
