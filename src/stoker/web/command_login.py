"""Signing in commands on a person's machine through the browser that is signed in: `stoker login --browser`.

Rules: L1  a signed-in person says yes on a page, in a request that only our pages can make; then the page takes a code
           to a port of the loopback of that person's machine, and nowhere else
       L2  the code is good once, for CODE_S, and only with the verifier whose digest came with the request for it: who
           sees the code can do nothing with it
       L3  what commands get is a session of the same token, so it ends with it, and after SESSION_MS
Source: RFC 8252 (native applications and loopback redirects); RFC 7636 (PKCE).
"""

import base64
from hashlib import sha256
from hmac import compare_digest
from typing import Final, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stoker.api.http.responses import caller_of, json_response, read_body
from stoker.brain.domain.access import NO_TOKEN_ID, TokenId
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.units import Instant, Mono
from stoker.brain.state.commands import OpenSession
from stoker.control.failover_control import not_active
from stoker.web.sign_in import SESSION_MS
from stoker.web.site import Context, Site
from stoker.wire.token import digest_of, fresh_token, id_of, random_text, with_fingerprint

PAGE: Final = "/command-login"
EXCHANGE: Final = "/command-login/token"
CODE_S: Final = 60.0
CODES_MAX: Final = 1_000
_UNKEPT: Final = {"Cache-Control": "no-store"}


class ChallengeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of the request that the page makes when somebody says yes."""

    challenge: str
    """SHA-256 of the verifier, in URL-safe base64 without padding."""


class CodeView(msgspec.Struct, frozen=True, kw_only=True):
    """The code that the page takes to the command."""

    code: str


class CodeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of the request of the command."""

    code: str
    verifier: str


class CommandTokenView(msgspec.Struct, frozen=True, kw_only=True):
    """Token of the command."""

    token: str


class _Given(NamedTuple):
    shown: TokenId
    challenge: str
    until: Mono


class CommandLogins:
    """Codes of one control plane, in memory: one that is under way at a take-over is begun anew."""

    def __init__(self, site: Site) -> None:
        self._site, self._control = site, site.control
        self._given: dict[str, _Given] = {}

    async def show(self, request: Request) -> Context:
        """Ask whether commands on this machine may be signed in."""
        query = request.query_params
        port = query.get("port", "")
        good = port.isascii() and port.isdigit() and 0 < int(port) < 65_536 and len(query.get("challenge", "")) == 43
        return {"good": good, "port": port, "signed_in": caller_of(request).token != NO_TOKEN_ID}

    async def give(self, request: Request) -> Response:
        """Give a code to the page of a signed-in person (L1)."""
        caller, body = caller_of(request), await read_body(request, ChallengeBody)
        held = self._control.committer.state.tokens.get(caller.token)
        if held is None:
            raise refusal_error("bad_request", "no token is wanted here", "leave `stoker login` out")
        now = self._control.clock.mono()
        self._given = {code: each for code, each in self._given.items() if each.until > now}
        while len(self._given) >= CODES_MAX:
            del self._given[next(iter(self._given))]
        code = random_text(self._control.entropy)
        self._given[_digest(code)] = _Given(held.session_of or held.id, body.challenge, Mono(now + CODE_S))
        return json_response(CodeView(code=code), headers=_UNKEPT)

    async def exchange(self, request: Request) -> Response:
        """Give a command its token for a code (L2, L3)."""
        control, body = self._control, await read_body(request, CodeBody)
        if control.pair is not None and control.pair.follows:
            raise StokerError(not_active(control.pair.view()))
        given = self._given.pop(_digest(body.code), None)
        told = base64.urlsafe_b64encode(sha256(body.verifier.encode()).digest()).rstrip(b"=")
        if given is None or given.until <= control.clock.mono() or not compare_digest(told, given.challenge.encode()):
            message = "this code isn't good: it was used already, is older than a minute, or is somebody else's"
            raise refusal_error("token_unknown", message, "run `stoker login --browser` again")
        text = fresh_token(control.entropy, control.committer.state.tokens)
        shown = control.committer.state.tokens.get(given.shown)
        until = Instant(control.committer.now() + SESSION_MS)
        command = OpenSession(
            by=shown.principal if shown else caller_of(request).principal,
            shown=given.shown,
            id=id_of(text),
            digest=digest_of(text),
            expires_at=until,
            for_commands=True,
        )
        await control.committer.ask(command)
        whole = with_fingerprint(text, control.access.fingerprint())
        return json_response(CommandTokenView(token=whole), headers=_UNKEPT)


def routes(site: Site) -> list[Route]:
    """Return the page, and what it and the command ask."""
    logins = CommandLogins(site)
    return [
        site.page(PAGE, "command_login.html", "", logins.show),
        Route(PAGE, logins.give, methods=["POST"]),
        Route(EXCHANGE, logins.exchange, methods=["POST"]),
    ]


def _digest(code: str) -> str:
    return sha256(code.encode()).hexdigest()
