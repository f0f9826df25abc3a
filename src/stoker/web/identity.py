"""Signing in through an OpenID provider: the way there, the way back, and what somebody's groups give.

Rules: O1  each sign-in has a state, a nonce and a verifier of its own, which are good once and for SIGN_IN_S
       O2  the answer counts only in the browser that was sent there: a cookie of its own has the digest of the state,
           so nobody is signed in as somebody else by a link
       O3  the first rule whose group somebody is in says role and tenant; who is in none is refused
       O4  a person has one record, a token whose text nobody knows, which sessions are of: revoking it ends them all at
           once, and signing in with other rights replaces it
Limits: SIGN_INS_MAX at once, in memory: the oldest of more, and those under way at a take-over, are begun anew.
"""

from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from stoker.brain.domain.access import Role, Token, TokenId
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.ids import Principal, TenantName
from stoker.brain.domain.sign_in import PersonIdentity, SignIn
from stoker.brain.domain.units import Instant, Mono
from stoker.brain.state.commands import CreateToken, OpenSession, RevokeToken
from stoker.control.failover_control import not_active
from stoker.control.settings import OidcRule, OidcSettings
from stoker.web.sign_in import SESSION_MS, session_headers
from stoker.web.site import Site
from stoker.web.templates import HEADERS
from stoker.wire.token import digest_of, fresh_token, id_of, random_text

SIGN_IN_S: Final = 600.0
SIGN_INS_MAX: Final = 1_000
BEGIN: Final = "/login/oidc"
BACK: Final = "/login/oidc/back"
BY: Final = Principal("oidc")
"""Who makes the records of people, in the audit trail."""
_COMMENT: Final = "signs in as "


class IdentityProvider(Protocol):
    """An OpenID provider."""

    async def address(self, sign_in: SignIn) -> str:
        """Return where a browser is sent to. Raises: StokerError `oidc_unavailable`."""
        ...

    async def identity(self, sign_in: SignIn, code: str, issuer: str) -> PersonIdentity:
        """Return who came back with a code. Raises: StokerError `oidc_unavailable` or `oidc_failed`."""
        ...


class _Begun(NamedTuple):
    sign_in: SignIn
    next: str
    until: Mono


def rule_for(rules: Sequence[OidcRule], identity: PersonIdentity) -> OidcRule | None:
    """Return the rule that says what somebody may do (O3); None = none does."""
    return next((rule for rule in rules if rule.group == "*" or rule.group in identity.groups), None)


class IdentitySignIn:
    """Sign-ins through the provider of one control plane."""

    def __init__(self, site: Site, provider: IdentityProvider, settings: OidcSettings) -> None:
        self._site, self._provider, self._settings = site, provider, settings
        self._begun: dict[str, _Begun] = {}

    def routes(self) -> list[Route]:
        """Return the ways there and back."""
        return [Route(BEGIN, self.begin, methods=["GET"]), Route(BACK, self.back, methods=["GET"])]

    async def begin(self, request: Request) -> Response:
        """Send a browser to the provider (O1)."""
        control = self._site.control
        if control.pair is not None and control.pair.follows:
            raise StokerError(not_active(control.pair.view()))
        state, nonce, verifier = (random_text(control.entropy) for _ in range(3))
        sign_in = SignIn(state=state, nonce=nonce, verifier=verifier, redirect_uri=self._redirect_uri(request))
        address = await self._provider.address(sign_in)
        now = control.clock.mono()
        self._begun = {name: each for name, each in self._begun.items() if each.until > now}
        while len(self._begun) >= SIGN_INS_MAX:
            del self._begun[next(iter(self._begun))]
        self._begun[state] = _Begun(sign_in, _own_path(request.query_params.get("next", "")), Mono(now + SIGN_IN_S))
        # The way back is a link of another site, with which a browser sends no cookie that is strict.
        secure = "; Secure" if request.scope["scheme"] == "https" else ""
        flags = f"; Path={BACK}; Max-Age={int(SIGN_IN_S)}; HttpOnly; SameSite=Lax{secure}"
        return RedirectResponse(address, 303, {**HEADERS, "Set-Cookie": f"{self._cookie}={_digest(state)}{flags}"})

    async def back(self, request: Request) -> Response:
        """Take somebody who comes back, and open a session."""
        query = request.query_params
        state = query.get("state", "")
        begun = self._begun.get(state)
        if begun is None or not compare_digest(request.cookies.get(self._cookie, ""), _digest(state)):  # O2
            message = "this sign-in was not begun in this browser, was used already, or is older than ten minutes"
            raise refusal_error("oidc_failed", message, "begin anew at /login")
        del self._begun[state]  # O1
        if begun.until <= self._site.control.clock.mono():
            raise refusal_error("oidc_failed", "this sign-in took longer than ten minutes", "begin anew at /login")
        if "error" in query:
            said = (query.get("error_description") or query["error"])[:200]
            raise refusal_error("oidc_failed", f"the identity provider says: {said}", "begin anew at /login")
        identity = await self._provider.identity(begun.sign_in, query.get("code", ""), query.get("iss", ""))
        rule = rule_for(self._settings.rows, identity)
        if rule is None:
            message = f"{identity.user or identity.subject} is in no group that this cluster lets in"
            raise refusal_error("oidc_no_group", message, "ask an admin: section `oidc`, `rules` names the groups")
        text = await self._open(identity, rule)
        # To the form, which sees that there is a session: the browser doesn't send its cookie on this way here.
        location = f"/login?next={begun.next}"
        return RedirectResponse(location, 303, {**HEADERS, **session_headers(self._site, request, text)})

    async def _open(self, identity: PersonIdentity, rule: OidcRule) -> str:
        """Open a session of the record of a person, which is made where it isn't there (O4); return its text."""
        control = self._site.control
        ask, tokens = control.committer.ask, control.committer.state.tokens
        person, until = None, Instant(control.committer.now() + SESSION_MS)
        comment = f"{_COMMENT}{sha256(f'{self._settings.issuer} {identity.subject}'.encode()).hexdigest()[:32]}"
        wanted = (Role(rule.role), TenantName(rule.tenant), identity.user)
        for held in [each for each in tokens.values() if each.created_by == BY and each.comment == comment]:
            if (held.role, held.tenant, held.user) == wanted:
                person = held.id
            else:
                await ask(RevokeToken(by=BY, id=held.id))
        if person is None:
            person = await self._person(wanted, comment)
        text = fresh_token(control.entropy, control.committer.state.tokens)
        by = control.committer.state.tokens[person].principal
        await ask(OpenSession(by=by, shown=person, id=id_of(text), digest=digest_of(text), expires_at=until))
        return text

    async def _person(self, wanted: tuple[Role, TenantName, str], comment: str) -> TokenId:
        control = self._site.control
        unknown = fresh_token(control.entropy, control.committer.state.tokens)  # told to nobody
        role, tenant, user = wanted
        token = Token(
            id=id_of(unknown), digest=digest_of(unknown), role=role, tenant=tenant, user=user, comment=comment
        )
        await control.committer.ask(CreateToken(by=BY, token=token))
        return token.id

    @property
    def _cookie(self) -> str:
        return f"stoker-oidc-{self._site.control.committer.state.cluster_id[-12:]}"

    def _redirect_uri(self, request: Request) -> str:
        if self._settings.public_url:
            return f"{self._settings.public_url.rstrip('/')}{BACK}"
        return f"{request.scope['scheme']}://{request.headers.get('host', '')}{BACK}"


def _digest(state: str) -> str:
    return sha256(b"stoker oidc\0" + state.encode()).hexdigest()


def _own_path(wanted: str) -> str:
    """Return a path of this server to go on at, as a query's value: `//elsewhere` and `/\\elsewhere` lead away."""
    own = wanted.startswith("/") and not wanted.startswith(("//", "/\\"))
    return quote(wanted[:2_000] if own else "/", safe="")
