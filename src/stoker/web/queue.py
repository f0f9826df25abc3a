"""The page of the queue: the list of jobs as REST filters and sorts it, with the query of the list in the address."""

from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from stoker.web.site import Context, Site
from stoker.wire import endpoints
from stoker.wire.rest.job import JobListQuery

ROWS: Final = 100
TABS: Final = (
    ("All", ""),
    ("Waiting", "pending,held"),
    ("Running", "starting,running,stopping"),
    ("Ended", "succeeded,failed,cancelled,timeout,out_of_memory,node_failed"),
    ("Failed", "failed,timeout,out_of_memory,node_failed"),
)
"""Label and the states that it stands for."""
SORTS: Final = {
    "id": "Job",
    "name": "Name",
    "state": "State",
    "user": "User",
    "tenant": "Tenant",
    "gpus": "GPUs",
    "priority": "Priority",
    "submitted": "Submitted",
}
_FIELDS: Final = frozenset(JobListQuery.__struct_encode_fields__)
_FIND: Final = "/find"


def routes(site: Site) -> list[Route]:
    """Return the routes of the queue, and of the field that goes to a job."""

    async def show(request: Request) -> Context:
        given = {name: value for name, value in request.query_params.items() if name in _FIELDS and value}
        query = {"limit": str(ROWS), "sort": "live", **given}
        found = await site.ask(request, endpoints.JOBS, query)
        kept = {name: value for name, value in given.items() if name != "after"}
        return {
            "found": found,
            "given": {name: given.get(name, "") for name in _FIELDS},
            "is_filtered": bool(given),
            "tabs": [(label, states, link(kept, state=states)) for label, states in TABS],
            "sorts": {name: (label, _sorted(kept, name)) for name, label in SORTS.items()},
            "next": link(kept, after=found.next) if found.next else "",
            "first": link(kept) if "after" in given else "",
            "source": link(given),
        }

    async def find(request: Request) -> Response:
        wanted = request.query_params.get("job", "").strip()[:80]
        named = wanted.replace("_", "").isalnum() and wanted[:1].isdigit()
        return RedirectResponse(f"/jobs/{wanted}" if named else link({}, name=f"*{wanted}*"), 303)

    return [site.page("/queue", "queue.html", "queue", show), Route(_FIND, find, methods=["GET"])]


def link(given: dict[str, str], **changed: str) -> str:
    """Return the address of the queue under another query."""
    query = urlencode({name: value for name, value in {**given, **changed}.items() if value})
    return f"/queue?{query}" if query else "/queue"


def _sorted(given: dict[str, str], column: str) -> str:
    """Return the address of the queue sorted by a column, the other way where it is already."""
    return link(given, sort=f"-{column}" if given.get("sort") == column else column)
