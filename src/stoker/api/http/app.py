"""The REST application: every route of a control plane, behind the checks of who may ask.

Whatever goes wrong in a request is answered with a problem document (RFC 9457). Refusals pass through as they are; what
the framework says (no such path, no such method) is said in the same form.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, ExceptionHandler, Receive, Scope, Send

from stoker.api.http import (
    audit,
    backup,
    cluster,
    events,
    exec_session,
    forward,
    jobs,
    logs,
    nodes,
    partitions,
    secrets,
    tasks,
    tenants,
    tokens,
    usage,
)
from stoker.api.http.guard import AccessMiddleware
from stoker.api.http.pages import Pages, refusal_response
from stoker.api.http.responses import BodyBudget, caller_of, problem_response, raw_json
from stoker.api.http.routing import Operation, document_of
from stoker.api.requests import audit_action_of
from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.control.control_plane import ControlPlane
from stoker.ports import Telemetry
from stoker.wire.status import retry_after_s

_NOUNS: Final = (
    jobs,
    logs,
    forward,
    exec_session,
    tasks,
    nodes,
    partitions,
    tenants,
    tokens,
    secrets,
    usage,
    audit,
    backup,
    cluster,
    events,
)


def operations(control: ControlPlane) -> list[Operation]:
    """Return every operation of REST."""
    return [operation for noun in _NOUNS for operation in noun.routes(control)]


def create_app(control: ControlPlane, pages: Pages | None = None) -> Starlette:
    """Return the REST application over one control plane, with the web pages beside it. It starts nothing."""
    served = operations(control)
    routes = [Route(each.endpoint.path, each.handler, methods=[each.endpoint.method]) for each in served]
    app = Starlette(
        routes=[
            _document_route(served, open_to_owner=control.access.open_to_owner),
            *routes,
            *(pages.routes if pages is not None else ()),
        ],
        exception_handlers=_problem_handlers(control, pages),
        middleware=[Middleware(AccessMiddleware, control=control, pages=pages)],
    )
    app.state.bodies = BodyBudget()
    return app


def _document_route(served: Sequence[Operation], *, open_to_owner: bool) -> Route:
    @cache
    def content() -> bytes:
        return msgspec.json.encode(document_of(served, open_to_owner=open_to_owner))

    async def document(request: Request) -> Response:
        return raw_json(content())

    return Route("/openapi.json", document)


class UnavailableApp:
    """An ASGI application that passes requests to that of the present tenure, and refuses them between two tenures."""

    def __init__(self) -> None:
        self.app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if app is not None:
            await app(scope, receive, send)
        elif scope["type"] == "http":
            await problem_response(_beginning_anew())(scope, receive, send)


def _beginning_anew() -> Refusal:
    return refuse(
        "not_active",
        "this control plane begins anew, and hasn't read its log yet",
        "ask again in a moment, or ask another one; its own log says if it waits for a database",
        active="",
    )


# -- problems ----------------------------------------------------------------------------------------------------------


def _problem_handlers(control: ControlPlane, pages: Pages | None) -> Mapping[Any, ExceptionHandler]:
    """Return the handlers of what a request may raise, by exception class.

    All of them are coroutines: the framework would run plain functions in a thread each.
    """
    return {
        StokerError: _refused(control, pages),
        HTTPException: partial(_framework_refused, pages),
        ClientDisconnect: _gone,
        Exception: _defect(control.telemetry),
    }


def _refused(control: ControlPlane, pages: Pages | None) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, fault: Exception) -> Response:
        assert isinstance(fault, StokerError), f"registered for StokerError, got {fault!r}"
        by, asked = caller_of(request).principal, audit_action_of(request.method, request.scope["path"])
        control.audit_trail.refused(by, asked, fault.refusal, control.committer.now())
        told = refusal_response(pages, request.scope, fault.refusal)
        after_s = retry_after_s(fault.refusal)
        if after_s:
            told.headers["Retry-After"] = str(after_s)
        return told

    return answer


async def _framework_refused(pages: Pages | None, request: Request, fault: Exception) -> Response:
    assert isinstance(fault, HTTPException), f"registered for HTTPException, got {fault!r}"
    path, methods = request.url.path[:200], _allowed_methods(request.app.routes, request.url.path)
    if not methods:
        hint = "GET /openapi.json lists every path"
        return refusal_response(pages, request.scope, refuse("not_found", f"nothing lives at {path}", hint, path=path))
    allow = ", ".join(methods)
    if request.method == "OPTIONS":
        return Response(status_code=204, headers={"Allow": allow})
    answer = problem_response(
        refuse(
            "method_not_allowed",
            f"{path} has no {request.method[:20]}",
            f"it has {allow}",
            method=request.method[:20],
            allow=allow,
        )
    )
    answer.headers["Allow"] = allow
    return answer


def _allowed_methods(routes: Iterable[BaseRoute], path: str) -> list[str]:
    """Every method of a path, over all its routes; empty when nothing lives there."""
    found = {
        method
        for route in routes
        if isinstance(route, Route) and route.path_regex.match(path)
        for method in route.methods or ()
    }
    if "GET" in found:
        found.add("HEAD")
    return sorted(found | {"OPTIONS"}) if found else []


async def _gone(request: Request, fault: Exception) -> Response:
    """Nobody is there to read it."""
    return Response(status_code=400)


def _defect(telemetry: Telemetry) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, fault: Exception) -> Response:
        # The server logs the traceback: the framework raises the exception again after this answer.
        telemetry.count("requests_broken")
        return problem_response(
            refuse(
                "internal_error",
                f"Stoker broke while it answered {request.method} {request.url.path[:200]}",
                "this is a defect of ours: the control plane's log holds the traceback; please report it",
                error=type(fault).__name__,
            )
        )

    return answer
