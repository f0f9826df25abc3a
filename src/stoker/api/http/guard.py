"""Middleware that checks who may ask, and knows the methods of every path.

Rules: G1  where no token is wanted, `Host` must name this machine's loopback: a page that rebinds its own name to
           127.0.0.1 is refused
       G2  an `Origin`, where there is one, must be the very host and port that is asked: no other page may ask, but
           those of `http.cors_origins` where tokens are wanted. Where none is wanted, `Sec-Fetch-Site` mustn't name
           another site either: images, scripts and frames come without an `Origin`, and whether they load tells a page
           which jobs there are. Nor may it ever where something is to be changed. Whoever follows a link may still
           arrive
       G3  HEAD is GET without the body
       G4  a request's token says who asks; what his role doesn't allow is refused before anything is looked up
       G6  a standby answers reads and says so; what only the active can do, or tell, it refuses, and so it does any
           request that wants no stale answer
       G5  what comes over the socket in the data folder is the owner's; over TCP, where no token is wanted, another
           account of this machine is refused
       O1  only web pages of the origins in `http.cors_origins` may ask, letter by letter; each answer names the one
           that asked, never `*`
       O2  a preflight request is answered here: it carries no token and asks for nothing
       O3  the cookie of a session (`session_cookie`) says who asks only where no token was sent, and only to a page of
           ours: never to one of another origin, of `http.cors_origins` neither; a WebSocket names its origin. What
           changes something wants the header `Stoker-CSRF` too, which only a page of ours can know. So no page rides on
           what a browser remembers
       O4  what is refused to somebody who looks at a page is said by a page
       S1  every answer of a standby bears `Stoker-Role: standby`, and in `Stoker-Lag-Ms` how old it may be; also a
           refusal, for its copy may not hold a new token yet. Those of an active one bear `Stoker-Role: active`
       S2  a standby shows what is in its copy of the log. What changes something, what only the active knows (why a job
           waits, what the nodes say) and any request with `Stoker-Stale: no` is refused with the active's address
Source: the W3C's Fetch Metadata Request Headers, which browsers send to the loopback without TLS too; the Fetch
standard, section 3.2 (CORS protocol).
"""

from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker.api.http.connections import came_by_socket, check_peer
from stoker.api.http.pages import Pages, refusal_response
from stoker.api.http.responses import CALLER
from stoker.api.http.session_cookie import CSRF_HEADER, is_csrf_of, session_in
from stoker.api.requests import NOBODY, OPEN, audit_action_of, check_role
from stoker.brain.domain.access import OWNER, Caller
from stoker.brain.domain.errors import Refusal, StokerError, refusal_error, refuse
from stoker.control.control_plane import ControlPlane
from stoker.control.failover_control import PairView, not_active
from stoker.control.settings import is_loopback as is_loopback_address
from stoker.wire.endpoints import API_PREFIX, KEY_HEADER, METRICS, PROMOTE, REPLAYED_HEADER
from stoker.wire.rest.log import ATTEMPT_HEADER, ENDED_HEADER, OFFSET_HEADER, SIZE_HEADER

_HEAD: Final = "stoker.head"
_ELSEWHERE: Final = ("cross-site", "same-site")
"""What `Sec-Fetch-Site` may be beside `same-origin` and `none`, which is a person who typed the address."""
_PORTS: Final = {"http": 80, "https": 443}
_MAX_AGE_S: Final = 600
"""How long a browser needn't ask again; Chromium forgets after two hours anyway."""
_METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE"
_SENT: Final = ", ".join(("Authorization", "Content-Type", KEY_HEADER, "Last-Event-ID"))
_SHOWN: Final = ", ".join((ATTEMPT_HEADER, ENDED_HEADER, OFFSET_HEADER, SIZE_HEADER, REPLAYED_HEADER, "Retry-After"))
_ASKS: Final = b"access-control-request-method"
_STALE_HEADER: Final = b"stoker-stale"
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_ACTIVE_KNOWS: Final = ("/logs", "/why", "/exec", "/attach")
"""How paths end under which the active tells what isn't in the log."""


def is_head(request: Request) -> bool:
    """Return whether only the head was asked for, which a handler whose body has no end must know."""
    return _HEAD in request.scope


class _Said(NamedTuple):
    """Headers of a request that the middleware reads; empty = not sent."""

    host: str
    origin: str
    authorization: str
    site: str
    """Whose page a browser says that asks; of one who follows a link nothing."""
    cookies: str = ""
    csrf: str = ""
    upgrades: bool = False


class AccessMiddleware:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, control: ControlPlane, pages: Pages | None = None) -> None:
        self._app = app
        self._pages = pages
        self._control = control
        self._access = control.access
        self._rate_limit = control.rate_limit
        http = control.settings.http
        self._names_loopback = control.access.open_to_owner and is_loopback_address(http.host)
        # Where no token is wanted, a page that may ask could do whatever the owner can.
        self._origins = frozenset(() if control.access.open_to_owner else http.cors_origins)
        self._pair = control.pair
        self._open = OPEN | {METRICS.path} if http.metrics_public else OPEN

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        said = _said(scope)
        if said.origin in self._origins:
            if _is_preflight(scope):
                await _answer_preflight(send, said.origin)
                return
            send = _naming(said.origin, send)
        standby = self._pair.view() if self._pair is not None and self._pair.follows else None
        if self._pair is not None:
            send = _marked(send, standby)
        try:
            scope[CALLER] = self._admitted(scope, said)
        except StokerError as fault:
            self._note(scope, said, fault.refusal)
            await refusal_response(self._pages, scope, fault.refusal)(scope, receive, send)
            return
        if standby is not None and _must_be_active(scope):
            await refusal_response(self._pages, scope, not_active(standby))(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            await self._app({**scope, "method": "GET", _HEAD: True}, receive, _without_body(send))
        else:
            await self._app(scope, receive, send)

    def _admitted(self, scope: Scope, said: _Said) -> Caller:
        """Who asks, once it is known that he may. Raises: StokerError."""
        check_peer(scope)
        if came_by_socket(scope):
            return OWNER
        method, path = scope["method"], scope["path"]
        refusal = self._foreign(said, changes=method not in _READS)
        if refusal is not None:
            raise StokerError(refusal)
        own = self._pages is not None and self._pages.is_open(path)
        if path in self._open or own or method == "OPTIONS":  # OPTIONS only says which methods there are
            return NOBODY
        caller = self._caller(said, secure=scope["scheme"] == "https", changes=method not in _READS)
        if path != METRICS.path:  # a scrape that is refused leaves a hole in every picture
            self._rate_limit.take(caller.principal)
        if self._pages is None or not self._pages.asks_itself(method, path):
            check_role(caller, method, path)
        return caller

    def _caller(self, said: _Said, *, secure: bool, changes: bool) -> Caller:
        """Return who sent the token, or else whose browser sent the cookie of a session (O3)."""
        if said.authorization or self._access.open_to_owner:
            return self._access.caller(said.authorization)
        text = session_in(said.cookies, self._control.committer.state.cluster_id, secure=secure)
        if not text:
            return self._access.caller("")
        caller = self._access.session(text)
        if caller is None:
            raise _session_ended()
        own = _is_same(said.origin, said.host, proxied=True) if said.origin else not said.upgrades
        if not own or said.site in _ELSEWHERE:
            header = "Origin" if not own else "Sec-Fetch-Site"
            raise StokerError(_refused(header, said.origin if not own else said.site, _ORIGIN_HINT))
        if changes and not is_csrf_of(said.csrf, text):
            raise _csrf_missing()
        return caller

    def _note(self, scope: Scope, said: _Said, refusal: Refusal) -> None:
        """Whoever is refused for his role or his pace has shown a good token."""
        known = refusal.code in ("not_allowed", "rate_limited")
        secure = scope["scheme"] == "https"
        caller = self._caller(said, secure=secure, changes=False) if known else NOBODY
        self._control.audit_trail.refused(
            caller.principal, audit_action_of(scope["method"], scope["path"]), refusal, self._control.committer.now()
        )

    def _foreign(self, said: _Said, *, changes: bool) -> Refusal | None:
        if self._names_loopback and not is_loopback(said.host):
            return _refused("Host", said.host, _HOST_HINT)
        if said.origin and not self._is_let_in(said):
            return _refused("Origin", said.origin, _ORIGIN_HINT)
        # Forms come without an `Origin` from some pages; one that is let in has been looked at.
        if said.site in _ELSEWHERE and (self._access.open_to_owner or (changes and not said.origin)):
            return _refused("Sec-Fetch-Site", said.site, _ORIGIN_HINT)
        return None

    def _is_let_in(self, said: _Said) -> bool:
        return said.origin in self._origins or _is_same(said.origin, said.host, proxied=not self._names_loopback)


def _said(scope: Scope) -> _Said:
    host = origin = authorization = site = cookies = csrf = ""
    follows_link = upgrades = False
    for name, value in scope["headers"]:
        if name == b"host":
            host = value.decode("latin-1")
        elif name == b"origin":
            origin = value.decode("latin-1") or "null"
        elif name == b"authorization":
            # Two of them make none that anybody could have meant.
            authorization = f"{authorization}, {value!r}" if authorization else value.decode("latin-1")
        elif name == b"sec-fetch-site":
            site = value.decode("latin-1")
        elif name == b"sec-fetch-dest":
            follows_link = value == b"document" and scope["method"] in _READS
        elif name == b"cookie":
            cookies = f"{cookies}; {value.decode('latin-1')}" if cookies else value.decode("latin-1")
        elif name == CSRF_HEADER.lower().encode():
            csrf = value.decode("latin-1")
        elif name == b"upgrade":
            upgrades = True
    return _Said(host, origin, authorization, "" if follows_link else site, cookies, csrf, upgrades)


def check_inner(control: ControlPlane, caller: Caller, method: str, path: str) -> None:
    """Check a request that a page makes of REST for its reader, as one that came from outside (G4, S2).

    Raises: StokerError `not_allowed` or `not_active`.
    """
    check_role(caller, method, path)
    pair = control.pair
    if pair is not None and pair.follows and path.endswith(_ACTIVE_KNOWS):
        raise StokerError(not_active(pair.view()))


def is_loopback(host: str) -> bool:
    """Return whether a `Host` header names the loopback, with any port."""
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


def _is_same(origin: str, host: str, *, proxied: bool) -> bool:
    """Is that page of ours? `proxied`: a proxy with TLS may stand before us, so `Host` without a port may mean 443."""
    try:
        parts, asked = urlsplit(origin), urlsplit(f"//{host}")
        default = _PORTS.get(parts.scheme)
        asked_port = asked.port or (default if proxied else _PORTS["http"])
        return default is not None and (parts.hostname, parts.port or default) == (asked.hostname, asked_port)
    except ValueError:
        return False


_HOST_HINT: Final = "ask it as 127.0.0.1 or localhost: other names are refused while it wants no token"
_ORIGIN_HINT: Final = "only pages that it serves itself may ask; `http.cors_origins` lets others in"


def _refused(header: str, value: str, hint: str) -> Refusal:
    shown = value[:80]
    message = f"`{header}: {shown}` is not this control plane's own address"
    return refuse("foreign_origin", message, hint, header=header, value=shown)


def _session_ended() -> StokerError:
    message = "the session of this browser is over: it was signed out, has expired, or its token was revoked"
    return refusal_error("session_ended", message, "sign in again at /login")


def _csrf_missing() -> StokerError:
    message = f"a session in a cookie changes nothing without the header {CSRF_HEADER}, which pages of Stoker send"
    return refusal_error("csrf_missing", message, "load the page anew; programs send `Authorization: Bearer TOKEN`")


def _without_body(send: Send) -> Send:
    async def forward(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return forward


# -- pages of other origins, and answers of a standby -----------------------------------------------------------------


def _is_preflight(scope: Scope) -> bool:
    return scope["method"] == "OPTIONS" and any(name == _ASKS for name, _ in scope["headers"])


async def _answer_preflight(send: Send, origin: str) -> None:
    """Answer a preflight request, which carries no token and asks for nothing (O2)."""
    headers = {
        **_named(origin),
        "Access-Control-Allow-Methods": _METHODS,
        "Access-Control-Allow-Headers": _SENT,
        "Access-Control-Max-Age": str(_MAX_AGE_S),
    }
    await send({"type": "http.response.start", "status": 204, "headers": _encoded(headers)})
    await send({"type": "http.response.body", "body": b""})


def _naming(origin: str, send: Send) -> Send:
    """Name the origin that asked, which is allowed, in the headers of the answer (O1)."""
    return _with_headers(send, _encoded({**_named(origin), "Access-Control-Expose-Headers": _SHOWN}))


def _named(origin: str) -> dict[str, str]:
    return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


def _must_be_active(scope: Scope) -> bool:
    """Return whether a request must be refused by a standby, since only the active one can answer it (S2)."""
    path: str = scope["path"]
    if scope["method"] not in _READS:
        return path != PROMOTE.path
    if path.endswith(_ACTIVE_KNOWS) and path.startswith(API_PREFIX):
        return True
    return any(name == _STALE_HEADER and value.strip().lower() == b"no" for name, value in scope["headers"])


def _marked(send: Send, standby: PairView | None) -> Send:
    """Say in the answer that it is a standby's, or with None the active one's (S1)."""
    role = {"Stoker-Role": "active"}
    if standby is not None:
        role = {"Stoker-Role": "standby", "Stoker-Lag-Ms": str(standby.lag_ms)}
    return _with_headers(send, _encoded(role))


def _with_headers(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    async def forward(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return forward
