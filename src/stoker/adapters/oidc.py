"""An OpenID provider, as a client of it sees it: discovery, keys, authorization codes and ID tokens.

Rules: D1  the provider is spoken to over TLS with checked certificates, or in clear on this machine's loopback alone
       D2  the document of discovery must be that of the issuer in the settings; it and the keys are kept for CACHE_S,
           and keys are asked for anew when a token isn't signed by them, at most every KEYS_AGAIN_S
       D3  an ID token counts only with a signature of the provider's by an asymmetric algorithm, for this client, with
           the nonce of this sign-in, and within its times
       D4  no answer of more than ANSWER_MAX is read, and none is waited for longer than CALL_S
       D5  a redirect isn't followed: it would lead a code or a secret elsewhere
Source: OpenID Connect Core 1.0, section 3.1; OpenID Connect Discovery 1.0; RFC 7636 (PKCE); RFC 9207.
"""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from authlib.common.errors import AuthlibBaseError
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from stoker.adapters.bounded_thread import BoundedThread, TookTooLong
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.sign_in import PersonIdentity, SignIn
from stoker.ports import Clock

CALL_S: Final = 10.0
ANSWER_MAX: Final = 512 << 10
CACHE_S: Final = 3_600.0
KEYS_AGAIN_S: Final = 30.0
LEEWAY_S: Final = 30
"""By how much two clocks may differ."""
ALGORITHMS: Final = ("RS256", "ES256", "PS256", "RS384", "ES384", "RS512", "ES512", "EdDSA")
"""D3: never `none`, and none whose key is the client's secret."""
GROUPS_MAX: Final = 1_000
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_FAULTS: Final = (OSError, ValueError, urllib.error.URLError)
Answer = TypeVar("Answer")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:  # noqa: ANN401  # as urllib declares it
        return None  # D5


class OidcClient(NamedTuple):
    """A client of a provider, as it is registered there."""

    issuer: str
    client_id: str
    secret: str
    """Empty = a public client."""
    scopes: tuple[str, ...]
    user_claim: str
    groups_claim: str


class OpenIdProvider:
    """The provider of one client."""

    def __init__(self, settings: OidcClient, clock: Clock) -> None:
        self._settings, self._secret, self._clock = settings, settings.secret, clock
        self._issuer = settings.issuer.rstrip("/")
        self._thread = BoundedThread("oidc", _FAULTS)
        self._open = urllib.request.build_opener(_NoRedirect)
        self._document: dict[str, Any] = {}
        self._keys = KeySet([])
        self._known_at = self._keys_at = float("-inf")

    async def address(self, sign_in: SignIn) -> str:
        """Return where a browser is sent to. Raises: StokerError `oidc_unavailable`."""
        await self._discover()
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": sign_in.redirect_uri,
            "scope": " ".join(dict.fromkeys(("openid", *self._settings.scopes))),
            "state": sign_in.state,
            "nonce": sign_in.nonce,
            "code_challenge": create_s256_code_challenge(sign_in.verifier),  # type: ignore[no-untyped-call]  # in its stubs
            "code_challenge_method": "S256",
        }
        endpoint = str(self._document["authorization_endpoint"])
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(query)}"

    async def identity(self, sign_in: SignIn, code: str, issuer: str) -> PersonIdentity:
        """Return who came back with this code.

        Raises: StokerError `oidc_unavailable`, or `oidc_failed` where what it says isn't good.
        """
        await self._discover()
        if issuer and issuer.rstrip("/") != self._issuer:  # RFC 9207
            raise _failed(f"the answer is of {issuer[:120]!r}, not of {self._issuer}")
        answer = await self._call(lambda: self._exchange(sign_in, code))
        token = answer.get("id_token")
        if not isinstance(token, str):
            error = str(answer.get("error_description") or answer.get("error") or "it has no ID token")
            raise _failed(f"the provider gave no identity for this code: {error[:200]}")
        claims = await self._checked(token, sign_in)
        groups = claims.get(self._settings.groups_claim) or []
        user = claims.get(self._settings.user_claim)
        return PersonIdentity(
            subject=str(claims["sub"])[:255],
            user=str(user) if isinstance(user, str) else "",
            groups=tuple(str(each) for each in groups[:GROUPS_MAX]) if isinstance(groups, list) else (str(groups),),
        )

    # -- the ID token ----------------------------------------------------------------------------------------------

    async def _checked(self, token: str, sign_in: SignIn) -> Mapping[str, Any]:
        """Return the claims of an ID token (D3)."""
        try:
            decoded = jwt.decode(token, self._keys, algorithms=list(ALGORITHMS))
        except (JoseError, ValueError, KeyError) as first:
            if self._clock.mono() - self._keys_at < KEYS_AGAIN_S:
                raise _failed(f"the ID token isn't signed as it should be: {first}") from first
            await self._read_keys()
            try:
                decoded = jwt.decode(token, self._keys, algorithms=list(ALGORITHMS))
            except (JoseError, ValueError, KeyError) as fault:
                raise _failed(f"the ID token isn't signed as it should be: {fault}") from fault
        must = {
            "iss": {"essential": True, "values": [self._settings.issuer, self._issuer, f"{self._issuer}/"]},
            "aud": {"essential": True, "value": self._settings.client_id},
        }
        params = {"nonce": sign_in.nonce, "client_id": self._settings.client_id}
        claims = CodeIDToken(decoded.claims, decoded.header, must, params)
        try:
            claims.validate(now=self._clock.now() // 1_000, leeway=LEEWAY_S)
        except (AuthlibBaseError, JoseError, ValueError) as fault:
            raise _failed(f"the ID token isn't good: {fault}") from fault
        if claims.get("nonce") != sign_in.nonce:
            raise _failed("the ID token has the nonce of another sign-in")
        return dict(claims)

    # -- the network -----------------------------------------------------------------------------------------------

    async def _discover(self) -> None:
        if self._clock.mono() - self._known_at < CACHE_S:
            return
        document = await self._call(lambda: self._read(f"{self._issuer}/.well-known/openid-configuration"))
        if str(document.get("issuer", "")).rstrip("/") != self._issuer:
            raise _unavailable(f"its document is of {str(document.get('issuer'))[:120]!r}")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not is_safe(str(document.get(name, ""))):
                raise _unavailable(f"{name} in its document is {str(document.get(name))[:120]!r}")
        self._document = document
        await self._read_keys()
        self._known_at = self._clock.mono()

    async def _read_keys(self) -> None:
        told = await self._call(lambda: self._read(str(self._document["jwks_uri"])))
        try:
            self._keys = KeySet.import_key_set({"keys": list(told["keys"])})
        except (JoseError, KeyError, TypeError, ValueError) as fault:
            raise _unavailable(f"its keys can't be read: {fault}") from fault
        self._keys_at = self._clock.mono()

    def _exchange(self, sign_in: SignIn, code: str) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": sign_in.redirect_uri,
            "code_verifier": sign_in.verifier,
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if self._secret:
            pair = f"{quote(self._settings.client_id, safe='')}:{quote(self._secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form["client_id"] = self._settings.client_id
        return self._read(str(self._document["token_endpoint"]), urlencode(form).encode(), headers)

    def _read(self, url: str, data: bytes | None = None, headers: Mapping[str, str] = {}) -> dict[str, Any]:
        request = urllib.request.Request(url, data, {"Accept": "application/json", **headers})
        try:
            with self._open.open(request, timeout=CALL_S) as answer:
                content = answer.read(ANSWER_MAX + 1)
        except urllib.error.HTTPError as fault:
            content = fault.read(ANSWER_MAX + 1)
            if data is None or not 400 <= fault.code < 500:  # what is wrong with a code is said so
                raise
        if len(content) > ANSWER_MAX:
            raise ValueError(f"an answer of more than {ANSWER_MAX} bytes")
        told = json.loads(content)
        if not isinstance(told, dict):
            raise ValueError("no JSON object")
        return told

    async def _call(self, work: Callable[[], Answer]) -> Answer:
        try:
            return await self._thread.ask(work, 2 * CALL_S)
        except (*_FAULTS, TookTooLong) as fault:
            raise _unavailable(str(fault)) from fault


def is_safe(url: str) -> bool:
    """Return whether a provider may be spoken to there (D1)."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)


def _failed(why: str) -> StokerError:
    return refusal_error("oidc_failed", why, "sign in again from the start; an admin looks at section `oidc`")


def _unavailable(why: str) -> StokerError:
    message = f"the identity provider can't be asked: {why[:300]}"
    return refusal_error("oidc_unavailable", message, "try again in a moment, or sign in with a token")
