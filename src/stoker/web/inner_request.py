"""Requests that a page makes of REST for its reader, without a connection.

Rules: A1  a page asks as its reader: role, sight and standing of the control plane are checked as for any request
       A2  what REST refuses is raised, so that the page can say it
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request
from starlette.types import Message

from stoker.api.http.guard import check_inner
from stoker.api.http.responses import caller_of
from stoker.control.control_plane import ControlPlane
from stoker.wire.endpoints import Endpoint

Answer = TypeVar("Answer")
_OWN: Final = ("endpoint", "path_params", "route", "starlette.exception_handlers")
"""What the page's own request has, and an inner one gets anew."""


async def inner_get(
    control: ControlPlane,
    request: Request,
    endpoint: Endpoint[Answer],
    query: Mapping[str, str] | None = None,
    **path_params: str,
) -> Answer:
    """Return the answer of a GET. Raises: StokerError as REST refuses."""
    path = endpoint.path.format(**path_params)
    check_inner(control, caller_of(request), endpoint.method, path)
    scope: dict[str, Any] = {name: value for name, value in request.scope.items() if name not in _OWN}
    scope |= {
        "method": endpoint.method,
        "path": path,
        "raw_path": quote(path).encode(),
        "query_string": urlencode(query or {}).encode(),
        "headers": [],
    }
    body: list[bytes] = []

    async def receive() -> Message:
        if body:  # its reader waits for the page, and can't hang up on the answer
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            body.append(message.get("body", b""))

    await request.app.router(scope, receive, send)
    return _decoded(endpoint, b"".join(body))


def _decoded(endpoint: Endpoint[Answer], body: bytes) -> Answer:
    """Return an answer in the first of the endpoint's shapes that it has."""
    *others, last = endpoint.answers
    for shape in others:
        with suppress(msgspec.ValidationError):
            return cast(Answer, msgspec.json.decode(body, type=shape))
    return cast(Answer, msgspec.json.decode(body, type=last))  # one of those that the row names
