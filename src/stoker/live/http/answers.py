"""How does a handler read a request and write its answer?

Bodies and answers pass as bytes: msgspec reads and writes them, FastAPI only routes.
"""

from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stoker.brain.domain.array import parse_job_ref
from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.brain.domain.ids import NodeName, Principal
from stoker.brain.domain.job import Job
from stoker.brain.domain.node import Node
from stoker.brain.state.admit.job import find_job
from stoker.brain.state.admit.node import find_node
from stoker.brain.state.cluster import ClusterState
from stoker.wire.rest.decode import decode_query
from stoker.wire.rest.problem import MEDIA_TYPE, problem_of

BODY_BYTES_MAX: Final = 16 * 1024 * 1024
"""A longer body is refused with `body_too_large` before it is read."""

ANYONE: Final = Principal("user:local")
"""Who asks, until tokens name people: the listener is loopback-only, and whoever reaches it has an account here."""

Query = TypeVar("Query", bound=msgspec.Struct)
_encode = msgspec.json.Encoder().encode


def json_answer(value: object, status: int = 200) -> Response:
    return Response(_encode(value), status_code=status, media_type="application/json")


def problem_answer(refusal: Refusal) -> Response:
    problem = problem_of(refusal)
    return Response(_encode(problem), status_code=problem.status, media_type=MEDIA_TYPE)


def query_of(request: Request, shape: type[Query]) -> Query:
    """Raises: StokerError `bad_parameter` or `unknown_parameter`."""
    if not request.scope["query_string"]:
        return shape()
    return decode_query(shape, request.query_params.multi_items())


async def body_of(request: Request) -> bytes:
    """The whole body. Raises: StokerError `body_too_large`."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > BODY_BYTES_MAX:
        raise _too_large()
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > BODY_BYTES_MAX:
            raise _too_large()
        chunks.append(chunk)
    return b"".join(chunks)


def _too_large() -> StokerError:
    limit_mib = BODY_BYTES_MAX // (1024 * 1024)
    return StokerError(
        refuse(
            "body_too_large",
            f"the body is longer than {limit_mib} MiB",
            "submit fewer jobs at once, and hand large inputs over as files",
            limit_bytes=BODY_BYTES_MAX,
        )
    )


def job_at(request: Request, state: ClusterState) -> Job:
    """The job that the path names. Raises: StokerError `bad_job_id`, `job_unknown` or `job_forgotten`."""
    found = find_job(state, parse_job_ref(request.path_params["job_id"]))
    if isinstance(found, Refusal):
        raise StokerError(found)
    return found


def node_at(request: Request, state: ClusterState) -> Node:
    """The node that the path names. Raises: StokerError `node_unknown`."""
    found = find_node(state, NodeName(request.path_params["name"]))
    if isinstance(found, Refusal):
        raise StokerError(found)
    return found
