"""Which routes does the control plane serve, behind which layers?"""

from typing import Final

from fastapi import FastAPI

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
from stoker.api.http.openapi import document_of
from stoker.api.http.problems import add_problems
from stoker.api.http.responses import BodyBudget
from stoker.control.control_plane import ControlPlane
from stoker.wire.versions import PRODUCT

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
_ABOUT: Final = (
    "Jobs, nodes and GPUs of one cluster. Ids are text. Errors are problems (RFC 9457) with `code`, `message`, `hint` "
    "and `facts`."
)


def create_app(control: ControlPlane) -> FastAPI:
    """The REST application over one control plane. It starts nothing and owns nothing."""
    # The documentation pages of the framework load scripts from elsewhere, which a cluster may not reach.
    app = FastAPI(title="Stoker", version=PRODUCT, description=_ABOUT, docs_url=None, redoc_url=None)
    app.state.bodies = BodyBudget()
    for noun in _NOUNS:
        # Extended rather than included: an included router is looked up anew in each request.
        app.router.routes.extend(noun.routes(control).routes)
    app.openapi = document_of(app, open_to_owner=control.access.open_to_owner)  # type: ignore[method-assign]  # FastAPI's own way to replace the document
    add_problems(app, control)
    app.add_middleware(AccessMiddleware, control=control)
    return app
