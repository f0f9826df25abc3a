"""How does a route say what it takes and answers, so that the OpenAPI document is complete?

A route names its shapes and the codes it refuses with; statuses come from `wire.status`, schemas from msgspec.
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.responses import Response

from stoker.wire.idempotency import KEY_HEADER, KEY_MAX, REPLAYED_HEADER
from stoker.wire.rest.problem import MEDIA_TYPE
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
BODY: Final = ("bad_json", "bad_field", "unknown_field", "missing_field", "body_too_large")
JOB: Final = (
    *("bad_job_id", "bad_array", "several_jobs"),
    *("job_unknown", "member_unknown", "job_forgotten", "not_an_array"),
)
LOOKUP: Final = (*JOB, "history_unavailable")
"""What a route refuses with that shows jobs which the state may have forgotten."""
LISTED: Final = ("unknown_state", "history_unavailable")
LIST: Final = (*LISTED, "unknown_tenant", "bad_job_id", "bad_array", "bad_moment", "job_unknown")
"""What any route may refuse with that takes a job's id."""
NODE: Final = ("node_unknown",)
PARTITION: Final = ("partition_unknown",)
TENANT: Final = ("tenant_unknown",)
KEYED: Final = ("bad_idempotency_key", "idempotency_key_reused")
"""What a submit with an idempotency key may be refused with."""
SUBMIT: Final = ("bad_priority", "conflicting_fields", "bad_begin", "user_not_yours", *SUBMIT_CODES)

_JOB_REF: Final = r"^[1-9][0-9]{0,14}(_([0-9]{1,8}|\[[0-9]{1,8}(-[0-9]{1,8}(:[0-9]{1,8})?)?(,[0-9]{1,8})*\]))?$"
"""`123`, `123_4`, `123_[0-4,7]`."""

Content = dict[str, Any]


def json_content(shape: type[msgspec.Struct]) -> Content:
    return {"application/json": {"schema": {"$ref": REF.format(name=shape.__name__)}}}


def one_of(*shapes: type[msgspec.Struct]) -> Content:
    """Content that is one of these."""
    return {"application/json": {"schema": {"anyOf": [{"$ref": REF.format(name=shape.__name__)} for shape in shapes]}}}


def route(
    answer: Content,
    *,
    status: int = 200,
    query: type[msgspec.Struct] | None = None,
    body: Content | None = None,
    path: str = "",
    refusals: Sequence[str] = (),
) -> dict[str, Any]:
    """The keyword arguments of a FastAPI route."""
    described: dict[str, Any] = {"parameters": [*_path_parameters(path), *_query_parameters(query)]}
    if body is not None:
        described["requestBody"] = {"required": True, "content": body}
    if query is not None:
        refusals = (*refusals, *QUERY)
    return {
        "status_code": status,
        "response_model": None,
        "response_class": Response,
        "responses": {status: {"description": _phrase(status), "content": answer}, **_problems(refusals)},
        "openapi_extra": described,
    }


def keyed(described: dict[str, Any]) -> dict[str, Any]:
    """A route that takes an idempotency key, and says in a header of its answer when it was used before."""
    schema = {"type": "string", "minLength": 1, "maxLength": KEY_MAX, "pattern": r"^[!-~]+$"}
    described["openapi_extra"]["parameters"].append(
        {"name": KEY_HEADER, "in": "header", "required": False, "schema": schema, "description": _KEY_ABOUT}
    )
    replayed = {"schema": {"type": "string", "enum": ["true"]}, "description": "An earlier answer is repeated."}
    described["responses"][described["status_code"]]["headers"] = {REPLAYED_HEADER: replayed}
    return described


_KEY_ABOUT: Final = "The same request under the same key submits once; another under it is refused."


def _problems(codes: Sequence[str]) -> dict[int, dict[str, Any]]:
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys((*codes, *ALWAYS)):
        by_status.setdefault(STATUSES[code].http, []).append(code)
    content = {MEDIA_TYPE: {"schema": {"$ref": REF.format(name="Problem")}}}
    return {
        status: {"description": f"{_phrase(status)}: {', '.join(named)}", "content": content}
        for status, named in sorted(by_status.items())
    }


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase


def _path_parameters(path: str) -> list[dict[str, Any]]:
    if not path:
        return []
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    if path == "job_id":
        schema = {"type": "string", "pattern": _JOB_REF}
    return [{"name": path, "in": "path", "required": True, "schema": schema}]


def _query_parameters(shape: type[msgspec.Struct] | None) -> list[dict[str, Any]]:
    if shape is None:
        return []
    schema = msgspec.json.schema(shape, ref_template=REF)
    properties = schema["$defs"][shape.__name__]["properties"] if "$defs" in schema else schema["properties"]
    return [{"name": name, "in": "query", "required": False, "schema": member} for name, member in properties.items()]
