"""Cross-origin access: which web pages may ask, and what their browsers are told.

Rules: O1  only origins of `http.cors_origins`, letter by letter; each answer names the one that asked, never `*`
       O2  a preflight is answered here: it carries no token and asks for nothing
       O3  cookies are never asked for, so no page rides on what a browser remembers
Source: the Fetch standard, section 3.2 (CORS protocol).
"""

from typing import Final

from starlette.types import Message, Scope, Send

from stoker.wire.endpoints import KEY_HEADER, REPLAYED_HEADER
from stoker.wire.rest.log import ATTEMPT_HEADER, ENDED_HEADER, OFFSET_HEADER, SIZE_HEADER

MAX_AGE_S: Final = 600
"""How long a browser needn't ask again; Chromium forgets after two hours anyway."""
_METHODS: Final = "GET, HEAD, POST, PUT, DELETE"
_SENT: Final = ", ".join(("Authorization", "Content-Type", KEY_HEADER, "Last-Event-ID"))
_SHOWN: Final = ", ".join((ATTEMPT_HEADER, ENDED_HEADER, OFFSET_HEADER, SIZE_HEADER, REPLAYED_HEADER, "Retry-After"))
_ASKS: Final = b"access-control-request-method"


def is_preflight(scope: Scope) -> bool:
    return scope["method"] == "OPTIONS" and any(name == _ASKS for name, _ in scope["headers"])


async def answer_preflight(send: Send, origin: str) -> None:
    """Answer a preflight request, which carries no token and asks for nothing (O2)."""
    headers = {
        **_named(origin),
        "Access-Control-Allow-Methods": _METHODS,
        "Access-Control-Allow-Headers": _SENT,
        "Access-Control-Max-Age": str(MAX_AGE_S),
    }
    await send({"type": "http.response.start", "status": 204, "headers": _encoded(headers)})
    await send({"type": "http.response.body", "body": b""})


def naming(origin: str, send: Send) -> Send:
    """Return the headers that name the origin that asked, if it is allowed (O1)."""
    added = _encoded({**_named(origin), "Access-Control-Expose-Headers": _SHOWN})

    async def forward(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)

    return forward


def _named(origin: str) -> dict[str, str]:
    return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
