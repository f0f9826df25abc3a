"""The REST application: every route of a control plane, behind the checks of who may ask."""

from collections.abc import Sequence
from functools import cache
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stoker.api.http import (
    audit,
    backup,
    cluster,
    errors,
    events,
    gpus,
    health,
    job_events,
    job_operations,
    jobs,
    labels,
    logs,
    nodes,
    partitions,
    quota,
    tasks,
    tenants,
    tokens,
    usage,
    why,
)
from stoker.api.http import control as control_routes
from stoker.api.http.guard import AccessMiddleware
from stoker.api.http.problems import problem_handlers
from stoker.api.http.responses import BodyBudget, raw_json
from stoker.api.http.routing import Operation, document_of
from stoker.control.control_plane import ControlPlane

_NOUNS: Final = (
    jobs,
    job_operations,
    why,
    job_events,
    logs,
    tasks,
    gpus,
    nodes,
    labels,
    partitions,
    tenants,
    quota,
    tokens,
    usage,
    audit,
    backup,
    cluster,
    control_routes,
    events,
    health,
    errors,
)


def operations(control: ControlPlane) -> list[Operation]:
    """Return every operation of REST, in the order of the document."""
    return [operation for noun in _NOUNS for operation in noun.routes(control)]


def create_app(control: ControlPlane) -> Starlette:
    """Return the REST application over one control plane. It starts nothing and owns nothing."""
    served = operations(control)
    routes = [Route(each.path, each.handler, methods=[each.method]) for each in served]
    app = Starlette(
        routes=[_document_route(served, open_to_owner=control.access.open_to_owner), *routes],
        exception_handlers=problem_handlers(control),
        middleware=[Middleware(AccessMiddleware, control=control)],
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
