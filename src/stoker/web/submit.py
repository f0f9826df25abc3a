"""The page of the form for a job, which shows the same job as command line, REST body and Python.

The form's script makes all three from the fields; what may be asked is what REST says of the cluster, and what is
wrong with a job is what REST refuses it with.
"""

from starlette.requests import Request
from starlette.routing import Route

from stoker.api.http.responses import caller_of
from stoker.brain.domain.access import SUBMITTERS, Role
from stoker.control.access import may_submit
from stoker.web.site import Context, Site
from stoker.wire import endpoints


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
        }

    return [site.page("/submit", "submit.html", "submit", show)]
