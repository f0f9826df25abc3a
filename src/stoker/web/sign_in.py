"""Signing in with a token and out again, and the reports of browsers that had to keep a page from something.

Rules: I1  a session is opened by showing a token, once; its text goes into a cookie, and the token is forgotten
       I2  signing out ends the session in the cluster's log, so a copy of the cookie is worth nothing any more;
           everywhere means every session that was opened with the same token
       I3  where no token is wanted there is nothing to sign in to, and the page says so
       I4  a page that is asked for by a link on another site comes without the cookie (SameSite=Strict): the form looks
           whether there is a session before it shows itself
"""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stoker.api.http.responses import caller_of, json_response, read_body
from stoker.api.http.session_cookie import set_cookie
from stoker.brain.domain.access import NO_TOKEN_ID, TokenId
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.units import HOUR_MS, SECOND_MS, Instant
from stoker.brain.state.commands import OpenSession, RevokeToken
from stoker.control.failover_control import not_active
from stoker.web.site import Site
from stoker.web.templates import HEADERS
from stoker.wire.token import digest_of, fresh_token, id_of

SESSION_MS: Final = 12 * HOUR_MS
"""A working day: whoever comes back next morning signs in again."""
REPORT_BYTES_MAX: Final = 8_192
REPORTS_NOTED_MAX: Final = 100
"""Of one tenure, in the log: who sends more of them only fills it. The meter counts on."""
_REPORT_CHARS: Final = 1_000

OPEN: Final = frozenset({"/login", "/csp-report"})
"""Paths for which nobody has to be signed in."""
EVERYWHERE: Final = "/logout-everywhere"
OWN: Final = frozenset({"/logout", EVERYWHERE})
_UNKEPT: Final = {"Cache-Control": "no-store"}


class SignInBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of the form."""

    token: str


class SignedIn(msgspec.Struct, frozen=True, kw_only=True):
    """The principal that is signed in."""

    principal: str


def routes(site: Site) -> list[Route]:
    """Return the routes of signing in and out."""
    sessions, reports = BrowserSessions(site), PolicyReports(site)
    return [
        Route("/login", sessions.form, methods=["GET"]),
        Route("/login", sessions.sign_in, methods=["POST"]),
        *(Route(path, sessions.sign_out, methods=["POST"]) for path in sorted(OWN)),
        Route("/session", sessions.show, methods=["GET"]),
        Route("/csp-report", reports.take, methods=["POST"]),
    ]


class BrowserSessions:
    """Sessions of browsers, each a record of the cluster's log."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._control = site.control

    async def form(self, request: Request) -> Response:
        """Show the form; where no token is wanted, that there is nothing to sign in to (I3)."""
        return self._site.open_page(request, "login.html", wants_token=not self._control.access.open_to_owner)

    async def sign_in(self, request: Request) -> Response:
        """Open a session for a token that is shown (I1)."""
        control = self._control
        body = await read_body(request, SignInBody)
        if control.pair is not None and control.pair.follows:
            raise StokerError(not_active(control.pair.view()))
        shown = control.access.caller(f"Bearer {body.token.strip()}")
        if shown.token == NO_TOKEN_ID:
            return json_response(SignedIn(principal=shown.principal))
        control.rate_limit.take(shown.principal)
        text = fresh_token(control.entropy, control.committer.state.tokens)
        until = Instant(control.committer.now() + SESSION_MS)
        await control.committer.ask(
            OpenSession(by=shown.principal, shown=shown.token, id=id_of(text), digest=digest_of(text), expires_at=until)
        )
        return json_response(SignedIn(principal=shown.principal), headers=self._cookie(request, text))

    async def sign_out(self, request: Request) -> Response:
        """End the session of a request, or with it all others of its token (I2)."""
        caller, tokens = caller_of(request), self._control.committer.state.tokens
        held = tokens.get(caller.token)
        everywhere = request.scope["path"] == EVERYWHERE
        ended: list[TokenId] = []
        if held is not None:
            of = held.session_of or held.id
            ended = [each.id for each in tokens.values() if each.session_of == of and (everywhere or each is held)]
        for session in ended:
            if session in tokens:
                await self._control.committer.ask(RevokeToken(by=caller.principal, id=session))
        return json_response(SignedIn(principal=caller.principal), headers=self._cookie(request, ""))

    async def show(self, request: Request) -> Response:
        """Say who is signed in, to a form that was asked for without the cookie (I4)."""
        return json_response(SignedIn(principal=caller_of(request).principal), headers=_UNKEPT)

    def _cookie(self, request: Request, text: str) -> dict[str, str]:
        secure = request.scope["scheme"] == "https"
        cluster_id = self._control.committer.state.cluster_id
        return {"Set-Cookie": set_cookie(cluster_id, text, SESSION_MS // SECOND_MS, secure=secure), **_UNKEPT}


class PolicyReports:
    """Reports of browsers that kept a page from something which its policy doesn't allow."""

    def __init__(self, site: Site) -> None:
        self._telemetry = site.control.telemetry
        self._noted = 0

    async def take(self, request: Request) -> Response:
        """Count a report, and note the first ones in the log."""
        data = b""
        async for chunk in request.stream():
            data += chunk
            if len(data) > REPORT_BYTES_MAX:
                return Response(status_code=413, headers=HEADERS)
        self._telemetry.count("csp_reports")
        self._noted += 1
        if self._noted <= REPORTS_NOTED_MAX:
            self._telemetry.warn("csp_report", report=data.decode("utf-8", "replace")[:_REPORT_CHARS])
        return Response(status_code=204, headers=HEADERS)
