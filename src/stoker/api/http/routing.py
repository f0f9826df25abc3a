"""Routes of REST, and the OpenAPI document that describes them.

Method, path and shapes of a route are those of its row in `wire.endpoints`; its module adds the handler and the codes
that it refuses with. Statuses come from `wire.status`, schemas from msgspec, sentences from the handlers' docstrings,
roles from `api.requests`.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial, wraps
from http import HTTPStatus
from inspect import getdoc
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.responses import json_response, query_of
from stoker.api.requests import OPEN, role_for
from stoker.wire.endpoints import API_PREFIX, ENDPOINTS, JSON, KEY_HEADER, KEY_MAX, PRODUCT, REPLAYED_HEADER, Endpoint
from stoker.wire.rest.decode import NoQuery
from stoker.wire.rest.event import EventQuery, EventView
from stoker.wire.rest.problem import MEDIA_TYPE, Problem
from stoker.wire.status import STATUSES, SUBMIT_CODES

REF: Final = "#/components/schemas/{name}"

ALWAYS: Final = (
    *("token_missing", "token_unknown", "not_allowed", "foreign_origin", "foreign_user"),
    *("rate_limited", "too_many_wrong_tokens", "not_active", "internal_error"),
)
"""What any route may refuse with."""
CHANGE: Final = ("log_failed", "lease_lost", "overloaded", "stopping")
"""What any route that changes something may refuse with."""
QUERY: Final = ("bad_parameter", "unknown_parameter")
BODY: Final = ("bad_json", "bad_field", "unknown_field", "missing_field", "body_too_large", "unsupported_media_type")
JOB: Final = (
    *("bad_job_id", "bad_array", "several_jobs"),
    *("job_unknown", "member_unknown", "job_forgotten", "not_an_array"),
)
LOOKUP: Final = (*JOB, "history_unavailable")
"""What a route refuses with that shows jobs which the state may have forgotten."""
LISTED: Final = ("unknown_state", "history_unavailable")
LIST: Final = (
    *(*LISTED, "unknown_tenant", "bad_job_id", "bad_array", "bad_moment", "job_unknown", "bad_selector"),
    *("several_jobs", "not_an_array", "member_unknown", "job_forgotten"),
)
"""What any route may refuse with that takes a job's id."""
NODE: Final = ("node_unknown",)
PARTITION: Final = ("partition_unknown",)
TENANT: Final = ("tenant_unknown",)
KEYED: Final = ("bad_idempotency_key", "idempotency_key_reused")
"""What a submit with an idempotency key may be refused with."""
SUBMIT: Final = ("bad_priority", "conflicting_fields", "bad_begin", "user_not_yours", *SUBMIT_CODES)

_JOB_REF: Final = r"^[1-9][0-9]{0,14}(_([0-9]{1,8}|\[[0-9]{1,8}(-[0-9]{1,8}(:[0-9]{1,8})?)?(,[0-9]{1,8})*\]))?$"
"""`123`, `123_4`, `123_[0-4,7]`."""

_SCHEME: Final = "token"
_ABOUT: Final = (
    "Jobs, nodes and GPUs of one cluster. Ids are text. Errors are problems (RFC 9457) with `code`, `message`, `hint` "
    "and `facts`."
)
_TOKEN_ABOUT: Final = (
    "A token of `stoker token create`. Its role is metrics, viewer, user, lead or admin. A user sees its own jobs in "
    "full, those of its tenant in outline unless that has the visibility `tenant`, and those of other tenants reduced; "
    "it changes those that it sees in full. A lead sees all jobs of its tenant in full, a viewer in outline."
)
Answer = TypeVar("Answer")
Content = dict[str, Any]
Handler = Callable[[Request], Awaitable[Answer]]


class Operation(NamedTuple):
    """An endpoint with its handler, and what gives its parameters, body and responses in OpenAPI's words."""

    endpoint: Endpoint[Any]
    handler: Handler[Response]
    contract: Callable[[], Content]


class Routes(list[Operation]):
    """Operations of one module."""

    def serve(
        self, endpoint: Endpoint[Answer], *refusals: str, content: Content | None = None
    ) -> Callable[[Handler[Answer | Response]], Handler[Answer | Response]]:
        """Return a decorator that adds the handler of an endpoint.

        The handler returns the endpoint's shape, or a whole response where that says more. A query is refused here
        where the endpoint takes none. `refusals`: codes that it may refuse with, beside those of every route.
        `content`: that of its answer in OpenAPI's words, where that isn't JSON of the endpoint's shapes.
        """
        # Worked out only for whoever asks for the document: it would be most of what the start of a tenure costs here.
        contract = partial(_contract, endpoint, refusals, content)
        takes_no_query = endpoint.query is not None and endpoint.query() is NoQuery

        def add(handler: Handler[Answer | Response]) -> Handler[Answer | Response]:
            @wraps(handler)
            async def answered(request: Request) -> Response:
                if takes_no_query:
                    query_of(request, NoQuery)
                answer = await handler(request)
                return answer if isinstance(answer, Response) else json_response(answer, endpoint.status)

            self.append(Operation(endpoint, answered, contract))
            return handler

        return add


def _contract(endpoint: Endpoint[Any], refusals: Sequence[str], content: Content | None) -> Content:
    """Return the parameters, body and responses of an endpoint in OpenAPI's words."""
    query = endpoint.query() if endpoint.query is not None else None
    if content is None:
        content = _json(endpoint.answers) if endpoint.media_type == JSON else _text(endpoint.media_type)
    answer: Content = {"description": _phrase(endpoint.status), "content": content}
    contract: Content = {
        "parameters": [*_path_parameters(endpoint.path), *_query_parameters(query)],
        "responses": {str(endpoint.status): answer, **_problems((*refusals, *QUERY) if query else refusals)},
    }
    if endpoint.bodies:
        contract["requestBody"] = {"required": not endpoint.body_may_lack, "content": _json(endpoint.bodies)}
    if endpoint.keyed:
        schema = {"type": "string", "minLength": 1, "maxLength": KEY_MAX, "pattern": r"^[!-~]+$"}
        contract["parameters"].append(
            {"name": KEY_HEADER, "in": "header", "required": False, "schema": schema, "description": _KEY_ABOUT}
        )
        replayed = {"schema": {"type": "string", "enum": ["true"]}, "description": "An earlier answer is repeated."}
        answer["headers"] = {REPLAYED_HEADER: replayed}
    return contract


def _json(shapes: Sequence[type[object]]) -> Content:
    """Content that is one of these shapes."""
    references = [{"$ref": REF.format(name=shape.__name__)} for shape in shapes]
    return {JSON: {"schema": references[0] if len(references) == 1 else {"anyOf": references}}}


def _text(media_type: str) -> Content:
    return {media_type: {"schema": {"type": "string"}}}


_KEY_ABOUT: Final = "The same request under the same key submits once; another under it is refused."


def _problems(codes: Sequence[str]) -> Content:
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys((*codes, *ALWAYS)):
        by_status.setdefault(STATUSES[code].http, []).append(code)
    content = {MEDIA_TYPE: {"schema": {"$ref": REF.format(name="Problem")}}}
    return {
        str(status): {"description": f"{_phrase(status)}: {', '.join(named)}", "content": content}
        for status, named in sorted(by_status.items())
    }


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase


def _path_parameters(path: str) -> list[dict[str, Any]]:
    text, job = {"type": "string", "minLength": 1}, {"type": "string", "pattern": _JOB_REF}
    return [
        {"name": name, "in": "path", "required": True, "schema": job if name == "job_id" else text}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query_parameters(shape: type[msgspec.Struct] | None) -> list[dict[str, Any]]:
    if shape is None:
        return []
    schema = msgspec.json.schema(shape, ref_template=REF)
    properties = schema["$defs"][shape.__name__]["properties"] if "$defs" in schema else schema["properties"]
    return [{"name": name, "in": "query", "required": False, "schema": member} for name, member in properties.items()]


def document_of(operations: Iterable[Operation], *, open_to_owner: bool) -> Content:
    """Return the OpenAPI document of these operations. `open_to_owner`: a request without a token is the owner's."""
    paths: dict[str, Content] = {}
    order = list(ENDPOINTS.values())
    for operation in sorted(operations, key=lambda each: order.index(each.endpoint)):
        row = operation.endpoint
        paths.setdefault(row.path, {})[row.method.lower()] = _described(operation, open_to_owner)
    _, schemas = msgspec.json.schema_components(_shapes(), ref_template=REF)
    token = {"type": "http", "scheme": "bearer", "description": _TOKEN_ABOUT}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Stoker", "description": _ABOUT, "version": PRODUCT},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {_SCHEME: token}},
    }


def _shapes() -> list[type[object]]:
    """Return the shapes of the document, each once; those that they hold come along."""
    named: list[type[object]] = [EventView, Problem]
    for each in ENDPOINTS.values():
        named += [*each.bodies, *each.answers, *([each.query()] if each.query is not None else [])]
    return [shape for shape in dict.fromkeys(named) if shape not in (bytes, NoQuery, EventQuery)]


def _tag(path: str) -> str:
    """Return the noun of a path, under which the document groups operations."""
    noun = path.removeprefix(API_PREFIX).split("/")[1]
    return "health" if noun in ("ready", "metrics", "errors") else noun


def _described(operation: Operation, open_to_owner: bool) -> Content:
    method, path, name = operation.endpoint.method, operation.endpoint.path, operation.handler.__name__
    is_open = path in OPEN
    wanted: list[Content] = [{_SCHEME: []}, *([{}] if open_to_owner else [])]
    sentence = getdoc(operation.handler) or ""
    return {
        "tags": [_tag(path)],
        "summary": name.replace("_", " ").title(),
        "description": sentence if is_open else f"{sentence}\n\nLeast role: {role_for(method, path)}.",
        "operationId": re.sub(r"\W", "_", f"{name}{path}_{method.lower()}"),
        **operation.contract(),
        "security": [] if is_open else wanted,
    }
