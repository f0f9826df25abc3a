"""Who may ask, and which methods does every path know?

Rules: G1  where no token is wanted, `Host` must name this machine's loopback: a page that rebinds its own name to
           127.0.0.1 is refused
       G2  an `Origin`, where there is one, must be the very host and port that is asked: no other page may ask, but
           those of `http.cors_origins`
       G3  HEAD is GET without the body
       G4  a request's token says who asks; what his role doesn't allow is refused before anything is looked up
"""

from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker.brain.domain.access import Caller
from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.live.control import ControlPlane
from stoker.live.http.answers import CALLER, problem_answer
from stoker.live.http.roles import NOBODY, check_role, is_open

_HEAD: Final = "stoker.head"


def is_head(request: Request) -> bool:
    """Was only the head asked for? A handler whose body has no end must know."""
    return _HEAD in request.scope


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, control: ControlPlane) -> None:
        self._app = app
        self._access = control.access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            scope[CALLER] = self._admitted(scope)
        except StokerError as fault:
            await problem_answer(fault.refusal)(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            await self._app({**scope, "method": "GET", _HEAD: True}, receive, _without_body(send))
        else:
            await self._app(scope, receive, send)

    def _admitted(self, scope: Scope) -> Caller:
        """Who asks, once it is known that he may. Raises: StokerError."""
        host = authorization = ""
        origin: str | None = None
        for name, value in scope["headers"]:
            if name == b"host":
                host = value.decode("latin-1")
            elif name == b"authorization":
                authorization = value.decode("latin-1")
            elif name == b"origin":
                origin = value.decode("latin-1")
        refusal = self._foreign(host, origin)
        if refusal is not None:
            raise StokerError(refusal)
        if is_open(scope["method"], scope["path"]):
            return NOBODY
        caller = self._access.caller(authorization)
        # rates of callers, and of wrong tokens, go here
        check_role(caller, scope["method"], scope["path"])
        return caller

    def _foreign(self, host: str, origin: str | None) -> Refusal | None:
        if self._access.open_to_owner and not is_loopback(host):
            return _refused("Host", host)
        if origin is not None and not _is_same(origin, host):
            return _refused("Origin", origin)
        return None


def is_loopback(host: str) -> bool:
    """Does a `Host` header name the loopback, with whatever port?"""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _is_same(origin: str, host: str) -> bool:
    try:
        parts, asked = urlsplit(origin), urlsplit(f"//{host}")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return parts.scheme in ("http", "https") and (parts.hostname, port) == (asked.hostname, asked.port or 80)
    except ValueError:
        return False


def _refused(header: str, value: str) -> Refusal:
    shown = value[:80]
    return refuse(
        "foreign_origin",
        f"`{header}: {shown}` is not this control plane's own loopback address",
        "ask it as 127.0.0.1 or localhost; other names and pages are refused while it wants no token",
        header=header,
        value=shown,
    )


def _without_body(send: Send) -> Send:
    async def forward(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return forward
