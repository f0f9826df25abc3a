"""The web pages of one control plane, as one part that a composition root puts beside REST."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from stoker.brain.domain.errors import Refusal
from stoker.control.control_plane import ControlPlane
from stoker.control.settings import OidcSettings
from stoker.web import (
    activity,
    cluster,
    clusters,
    command_login,
    control_planes,
    job,
    node,
    queue,
    sign_in,
    submit,
    tenant,
    ticks,
    timeline,
)
from stoker.web.assets import PREFIX
from stoker.web.clusters import OtherCluster, OtherClusters
from stoker.web.identity import BACK, BEGIN, IdentityProvider, IdentitySignIn
from stoker.web.site import Site

_NOUNS = (cluster, queue, job, submit, node, tenant, timeline, activity, control_planes, sign_in, command_login, ticks)
_OPEN = frozenset({*sign_in.OPEN, BEGIN, BACK, command_login.EXCHANGE, "/favicon.ico"})


class WebPages:
    """Every page, for `create_app`."""

    def __init__(
        self,
        control: ControlPlane,
        identities: IdentityProvider | None = None,
        oidc: OidcSettings | None = None,
        others: Sequence[OtherCluster] = (),
    ) -> None:
        """`identities`: where people may sign in beside showing a token, as `oidc` says. `others`: clusters that are
        shown beside this one."""
        self._site = Site(control, has_identities=identities is not None, has_clusters=bool(others))
        assets = self._site.assets

        async def icon(request: Request) -> Response:
            return RedirectResponse(assets.url("icon.svg"), 308)

        self._routes: list[BaseRoute] = [
            Route(f"{PREFIX}/{{digest}}/{{name:path}}", assets.serve, methods=["GET"]),
            Route("/favicon.ico", icon, methods=["GET"]),
            *(IdentitySignIn(self._site, identities, oidc).routes() if identities and oidc else ()),
            *(route for noun in _NOUNS for route in noun.routes(self._site)),
            *clusters.routes(self._site, OtherClusters(others, control.clock)),
        ]

    @property
    def routes(self) -> Sequence[BaseRoute]:
        return self._routes

    def is_open(self, path: str) -> bool:
        return (
            path in (*sign_in.OPEN, BEGIN, BACK, command_login.EXCHANGE)
            or path == "/favicon.ico"
            or path.startswith(f"{PREFIX}/")
        )

    def asks_itself(self, method: str, path: str) -> bool:
        return method == "POST" and path in (*sign_in.OWN, command_login.PAGE)

    def refusal(self, scope: Scope, refusal: Refusal) -> Response | None:
        return self._site.refusal(scope, refusal)
