"""The web pages of one control plane, as one part that a composition root puts beside REST."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from stoker.brain.domain.errors import Refusal
from stoker.control.control_plane import ControlPlane
from stoker.web import activity, cluster, control_planes, job, node, queue, sign_in, submit, tenant, ticks, timeline
from stoker.web.assets import PREFIX
from stoker.web.site import Site

_NOUNS = (cluster, queue, job, submit, node, tenant, timeline, activity, control_planes, sign_in, ticks)


class WebPages:
    """Every page, for `create_app`."""

    def __init__(self, control: ControlPlane) -> None:
        self._site = Site(control)
        assets = self._site.assets

        async def icon(request: Request) -> Response:
            return RedirectResponse(assets.url("icon.svg"), 308)

        self._routes: list[BaseRoute] = [
            Route(f"{PREFIX}/{{digest}}/{{name:path}}", assets.serve, methods=["GET"]),
            Route("/favicon.ico", icon, methods=["GET"]),
            *(route for noun in _NOUNS for route in noun.routes(self._site)),
        ]

    @property
    def routes(self) -> Sequence[BaseRoute]:
        return self._routes

    def is_open(self, path: str) -> bool:
        return path in sign_in.OPEN or path == "/favicon.ico" or path.startswith(f"{PREFIX}/")

    def asks_itself(self, method: str, path: str) -> bool:
        return method == "POST" and path in sign_in.OWN

    def refusal(self, scope: Scope, refusal: Refusal) -> Response | None:
        return self._site.refusal(scope, refusal)
