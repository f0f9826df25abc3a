"""The start page: the cluster in numbers, its GPUs as a map, and who uses them."""

from starlette.requests import Request
from starlette.routing import Route

from stoker.web.site import Context, Site
from stoker.wire import endpoints


def routes(site: Site) -> list[Route]:
    """Return the routes of the start page."""

    async def show(request: Request) -> Context:
        status = await site.ask(request, endpoints.STATUS)
        return {"status": status}

    return [site.page("/", "cluster.html", "cluster", show)]
