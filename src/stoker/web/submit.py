"""The page of the form for a job, which shows the same job as command line, REST body and Python.

The form's script makes all three from the fields; what may be asked is what REST says of the cluster, and what is
wrong with a job is what REST refuses it with. `?again=ID` fills it with a job that is there.
"""

import msgspec
from starlette.requests import Request
from starlette.routing import Route

from stoker.api.http.responses import caller_of
from stoker.brain.domain.access import SUBMITTERS, Role
from stoker.brain.domain.errors import refusal_error
from stoker.control.access import may_submit
from stoker.web.job import again_body
from stoker.web.site import Context, Site
from stoker.wire import endpoints
from stoker.wire.rest.job import JobsView


def routes(site: Site) -> list[Route]:
    """Return the route of the form."""

    async def show(request: Request) -> Context:
        caller, state = caller_of(request), site.control.committer.state
        listed = await site.ask(request, endpoints.GPUS)
        partitions = await site.ask(request, endpoints.PARTITIONS)
        return {
            "may": caller.role is Role.ADMIN or caller.role in SUBMITTERS,
            "tenants": [name for name in sorted(state.tenants) if may_submit(state, caller, name)],
            "home": caller.home,
            "models": sorted({gpu.model for gpu in listed.gpus}),
            "partitions": partitions.partitions,
            "idle": listed.idle,
            "total": listed.total,
            "again": await _again(request),
        }

    async def _again(request: Request) -> str:
        """Return the body of the job that is to be submitted again, with its script, as JSON; empty = none is named."""
        job_id = request.query_params.get("again", "")
        if not job_id:
            return ""
        job = await site.ask(request, endpoints.JOB, job_id=job_id)
        if isinstance(job, JobsView):
            raise refusal_error("several_jobs", "one job is submitted again", "name one member")
        text = again_body(job, names_users=caller_of(request).role is Role.ADMIN)
        if not text or not job.script_bytes:
            return text
        script = (await site.ask(request, endpoints.SCRIPT, job_id=job.id)).script
        return msgspec.json.encode({**msgspec.json.decode(text), "script": script}).decode()

    return [site.page("/submit", "submit.html", "submit", show)]
