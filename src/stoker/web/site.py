"""Frame of all pages: their reader, the answer to a refusal, and renderings that several readers share.

Rules: S1  a page is rendered for what its reader may see; readers who may see the same share a rendering of one moment
       S2  a refusal is a page with its code, message and hint; who isn't signed in gets to the form for it, and back
       S3  only what changed is sent again where htmx asks for it: the block `live` of the page
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from stoker.api.http.responses import caller_of
from stoker.api.http.session_cookie import csrf_of, session_in
from stoker.brain.domain.access import NO_TOKEN_ID, Caller, Role
from stoker.brain.domain.errors import Refusal, StokerError
from stoker.brain.domain.ids import Position
from stoker.brain.state.cluster_counts import known_nodes
from stoker.control.control_plane import ControlPlane
from stoker.web.assets import Assets
from stoker.web.inner_request import Answer, inner_get
from stoker.web.templates import HEADERS, Templates
from stoker.wire.endpoints import API_PREFIX, PRODUCT, Endpoint
from stoker.wire.rest.problem import problem_of
from stoker.wire.rest.view import iso

RENDERINGS_MAX: Final = 128
"""Kept at once, of a few hundred KiB each at most; they are of one moment, so none is worth keeping for long."""
SHARED_S: Final = 0.25
"""For how long a rendering is given to others who may see the same. Ticks have the same distance."""
STILL_S: Final = 2.0
"""For how long where nothing has happened since."""
FIGURES_STILL_S: Final = 0.5
"""For how long then what has figures of GPUs, which are no events and come once a second while somebody looks."""
DATA_SHARED_S: Final = 1.0
"""For how long columns for a script, which are of every GPU of the cluster."""
_SIGNED_OUT: Final = ("token_missing", "session_ended")
_NOT_OURS: Final = (f"{API_PREFIX}/", "/metrics", "/health", "/ready", "/openapi.json", "/v1/")
_FRAGMENT: Final = "hx-request"

Context = dict[str, Any]
Show = Callable[[Request], Awaitable[Context]]


class Site:
    """The frame of the pages of one control plane."""

    def __init__(self, control: ControlPlane, *, has_identities: bool = False, has_clusters: bool = False) -> None:
        self.control = control
        self.has_identities = has_identities
        self._has_clusters = has_clusters
        self.assets = Assets()
        self._templates = Templates(asset=self.assets.url, version=PRODUCT)
        self._shared: dict[tuple[object, ...], tuple[float, Position, asyncio.Task[bytes]]] = {}

    @property
    def now(self) -> str:
        """Return the control plane's time, as REST writes it."""
        return iso(self.control.committer.now())

    async def ask(
        self, request: Request, endpoint: Endpoint[Answer], query: Mapping[str, str] | None = None, **path_params: str
    ) -> Answer:
        """Return what REST answers the reader of a page. Raises: StokerError."""
        return await inner_get(self.control, request, endpoint, query, **path_params)

    def page(self, path: str, template: str, active: str, show: Show, *, still_s: float = STILL_S) -> Route:
        """Return the route of a page: `show` returns what its template knows beside the frame."""

        async def draw(request: Request) -> bytes:
            known = self._frame(request, active, caller_of(request)) | await show(request)
            if _FRAGMENT in request.headers:
                return self._templates.live_part(template, known | {"csrf": ""})  # others get it too
            return self._templates.page(template, known)

        async def answer(request: Request) -> Response:
            try:
                is_part = _FRAGMENT in request.headers
                content = await (self._once(request, draw, SHARED_S, still_s) if is_part else draw(request))
            except StokerError as fault:
                return self.refused(request.scope, fault.refusal, caller_of(request))
            return Response(content, headers=HEADERS, media_type="text/html")

        return Route(path, answer, methods=["GET"])

    def data(
        self, path: str, show: Callable[[Request], Awaitable[msgspec.Struct]], *, still_s: float = STILL_S
    ) -> Route:
        """Return the route of what a page's script draws, as JSON; a refusal is one of REST."""

        async def draw(request: Request) -> bytes:
            return msgspec.json.encode(await show(request))

        async def answer(request: Request) -> Response:
            content = await self._once(request, draw, DATA_SHARED_S, still_s)
            return Response(content, headers=HEADERS, media_type="application/json")

        return Route(path, answer, methods=["GET"])

    async def _once(
        self, request: Request, draw: Callable[[Request], Awaitable[bytes]], shared_s: float, still_s: float
    ) -> bytes:
        """Return the rendering that readers with the same rights share for a moment (S1)."""
        caller, now, position = caller_of(request), self.control.clock.mono(), self.control.committer.state.position
        query = request.scope["query_string"]
        # Of those who see all jobs alike nothing depends on the account but what is asked as their own.
        person = "" if caller.role is Role.ADMIN and b"mine" not in query else caller.account
        key = (request.scope["path"], query, caller.role, caller.tenant, person, bool(caller.token))
        at, of, task = self._shared.get(key, (0.0, position, None))
        good_s = max(still_s, shared_s) if of == position else shared_s
        if task is None or now - at > good_s or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.ensure_future(draw(request))
            self._shared.pop(key, None)
            self._shared[key] = now, position, task
            while len(self._shared) > RENDERINGS_MAX:
                del self._shared[next(iter(self._shared))]
        return await asyncio.shield(task)

    def refused(self, scope: Scope, refusal: Refusal, caller: Caller | None) -> Response:
        """Return the answer of a page that can't be shown (S2)."""
        request = Request(scope)
        problem = problem_of(refusal)
        if _FRAGMENT in request.headers:  # the page says it in a line, and keeps what it shows
            return Response(refusal.message, problem.status, {**HEADERS, "Stoker-Code": refusal.code}, "text/plain")
        if refusal.code in _SIGNED_OUT:
            query = request.scope["query_string"].decode("latin-1")
            target = request.scope["path"] + (f"?{query}" if query else "")
            return RedirectResponse(f"/login?next={quote(target, safe='')}", 303, HEADERS)
        known = self._frame(request, "", caller) | {"problem": problem}
        return Response(self._templates.page("refused.html", known), problem.status, HEADERS, "text/html")

    def open_page(self, request: Request, template: str, **known: object) -> Response:
        """Return a page that everybody may see."""
        content = self._templates.page(template, self._frame(request, "", None) | known)
        return Response(content, headers=HEADERS, media_type="text/html")

    def refusal(self, scope: Scope, refusal: Refusal) -> Response | None:
        """Return the page of a refusal, where a person asked for a page; None where a program asked."""
        if scope["method"] not in ("GET", "HEAD") or scope["path"].startswith(_NOT_OURS):
            return None
        accepts = dict(scope["headers"]).get(b"accept", b"")
        return self.refused(scope, refusal, None) if b"text/html" in accepts else None

    def session_text(self, request: Request) -> str:
        """Return the text of the session that a request carries; empty = none."""
        secure = request.scope["scheme"] == "https"
        cookies = request.headers.get("cookie", "")
        return session_in(cookies, self.control.committer.state.cluster_id, secure=secure)

    def _frame(self, request: Request, active: str, reader: Caller | None) -> Context:
        """Return what the frame of every page knows. `reader` None = nobody who is known."""
        state, pair = self.control.committer.state, self.control.pair
        text = self.session_text(request) if reader is not None and reader.token != NO_TOKEN_ID else ""
        return {
            "active": active,
            "reader": reader,
            "may_change": reader is not None and reader.role in (Role.USER, Role.LEAD, Role.ADMIN),
            "is_admin": reader is not None and reader.role is Role.ADMIN,
            "csrf": csrf_of(text) if text else "",
            "has_session": bool(text),
            "has_clusters": self._has_clusters,
            "cluster_id": state.cluster_id,
            "now": self.now,
            "simulated": reader is not None and any(node.inventory.simulated for node in known_nodes(state)),
            "standby": pair.view() if reader is not None and pair is not None and pair.follows else None,
        }
