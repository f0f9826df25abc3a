"""The page of control planes: which one is active, which are in sync, and how this one is doing."""

from starlette.requests import Request
from starlette.routing import Route

from stoker.brain.domain.errors import Refusal, StokerError
from stoker.web.site import Context, Site
from stoker.wire import endpoints
from stoker.wire.rest.cluster import ReadyView


def routes(site: Site) -> list[Route]:
    """Return the route of the page of control planes."""

    async def show(request: Request) -> Context:
        ready: ReadyView | None = None
        unready: Refusal | None = None
        try:
            ready = await site.ask(request, endpoints.READY)
        except StokerError as fault:
            unready = fault.refusal
        return {
            "here": await site.ask(request, endpoints.CONTROL),
            "health": await site.ask(request, endpoints.HEALTH),
            "status": await site.ask(request, endpoints.STATUS),
            "ready": ready,
            "unready": unready,
        }

    return [site.page("/control", "control.html", "control", show)]
