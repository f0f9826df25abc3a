"""Rules D1 to D5 of `adapters/oidc.py`, against a provider that lies. `test_web_oidc` has a certified one."""

import base64
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from stoker.adapters.clock import SystemClock
from stoker.adapters.oidc import OidcClient, OpenIdProvider, is_safe
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.sign_in import SignIn

KEY = RSAKey.generate_key(2048, {"kid": "one"})
OTHER = RSAKey.generate_key(2048, {"kid": "two"})
SIGN_IN = SignIn(state="s", nonce="n", verifier="v" * 43, redirect_uri="http://127.0.0.1/back")


class Liar(ThreadingHTTPServer):
    """A provider that says whatever a test wants."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.document: dict[str, Any] = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/auth",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
        }
        self.keys = {"keys": [KEY.as_dict(private=False)]}
        self.token: dict[str, Any] = {}
        self.status = 200
        self.asked: list[tuple[str, bytes]] = []


class _Answer(BaseHTTPRequestHandler):
    server: Liar

    def do_GET(self) -> None:
        found = {"/.well-known/openid-configuration": self.server.document, "/keys": self.server.keys}
        self._say(200, found[self.path])

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.headers.get("Authorization", ""), body))
        self._say(self.server.status, self.server.token)

    def _say(self, status: int, told: object) -> None:
        content = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if status == 302:
            self.send_header("Location", f"{self.server.url}/elsewhere")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def liar() -> Iterator[Liar]:
    with Liar() as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def provider(liar: Liar, secret: str = "secret") -> OpenIdProvider:
    client = OidcClient(liar.url, "stoker", secret, ("groups",), "preferred_username", "groups")
    return OpenIdProvider(client, SystemClock())


def claims(liar: Liar, **other: object) -> dict[str, Any]:
    now = int(SystemClock().now() / 1_000)
    told = {"iss": liar.url, "sub": "1", "aud": "stoker", "nonce": "n", "iat": now, "exp": now + 60}
    return {**told, "preferred_username": "ada", "groups": ["a", "b"], **other}


async def refused(of: OpenIdProvider, issuer: str = "") -> str:
    with pytest.raises(StokerError) as caught:
        await of.identity(SIGN_IN, "code", issuer)
    return caught.value.refusal.code


async def test_a_good_token_tells_who_it_is_and_the_code_goes_with_verifier_and_secret(liar: Liar) -> None:
    liar.token = {"id_token": jwt.encode({"alg": "RS256", "kid": "one"}, claims(liar), KEY)}
    found = await provider(liar).identity(SIGN_IN, "the-code", liar.url)
    assert (found.user, found.subject, found.groups) == ("ada", "1", ("a", "b"))
    ((authorization, body),) = liar.asked
    assert authorization == "Basic c3Rva2VyOnNlY3JldA=="
    assert b"code_verifier=vvvv" in body
    assert b"code=the-code" in body
    await provider(liar, "").identity(SIGN_IN, "the-code", "")
    assert (liar.asked[1][0], b"client_id=stoker" in liar.asked[1][1]) == ("", True)
    address = await provider(liar).address(SIGN_IN)
    assert "code_challenge_method=S256" in address
    assert SIGN_IN.verifier not in address


@pytest.mark.parametrize(
    "other",
    [
        {"aud": "somebody-else"},
        {"iss": "https://evil.example"},
        {"nonce": "of another sign-in"},
        {"nonce": None},
        {"exp": 1_000_000},
        {"aud": ["stoker", "other"], "azp": "other"},
    ],
)
async def test_a_token_for_somebody_else_or_of_another_time_is_none(liar: Liar, other: dict[str, Any]) -> None:
    told = {name: value for name, value in claims(liar, **other).items() if value is not None}
    liar.token = {"id_token": jwt.encode({"alg": "RS256", "kid": "one"}, told, KEY)}
    assert await refused(provider(liar)) == "oidc_failed"


async def test_a_token_that_others_signed_or_nobody_is_none(liar: Liar) -> None:
    good = jwt.encode({"alg": "RS256", "kid": "one"}, claims(liar), KEY)
    head, payload, _ = good.split(".")
    none = "eyJhbGciOiJub25lIn0"  # {"alg":"none"}
    by_secret = _by_secret(claims(liar), KEY.as_pem(private=False))
    for token in (
        jwt.encode({"alg": "RS256", "kid": "two"}, claims(liar), OTHER),
        jwt.encode({"alg": "RS256", "kid": "one"}, claims(liar), OTHER),
        by_secret,
        f"{none}.{payload}.",
        f"{head}.{payload}.{'A' * 342}",
        "no token",
    ):
        liar.token = {"id_token": token}
        assert await refused(provider(liar)) == "oidc_failed", token[:40]
    liar.token = {"error": "invalid_grant"}
    liar.status = 400
    assert await refused(provider(liar)) == "oidc_failed"


def _by_secret(told: dict[str, Any], public: bytes) -> str:
    """A token by HS256 whose secret is the provider's public key, which everybody has."""
    parts = [b'{"alg":"HS256","kid":"one"}', json.dumps(told).encode()]
    text = b".".join(base64.urlsafe_b64encode(each).rstrip(b"=") for each in parts)
    mark = base64.urlsafe_b64encode(hmac.digest(public, text, "sha256")).rstrip(b"=")
    return f"{text.decode()}.{mark.decode()}"


async def test_a_new_key_is_asked_for_once(liar: Liar) -> None:
    of = provider(liar)
    await of.address(SIGN_IN)
    of._keys_at -= 60  # the last look was a minute ago
    liar.keys = {"keys": [OTHER.as_dict(private=False)]}
    liar.token = {"id_token": jwt.encode({"alg": "RS256", "kid": "two"}, claims(liar), OTHER)}
    assert (await of.identity(SIGN_IN, "code", "")).user == "ada"


async def test_another_issuer_a_redirect_and_a_clear_connection_are_refused(liar: Liar) -> None:
    liar.token = {"id_token": jwt.encode({"alg": "RS256", "kid": "one"}, claims(liar), KEY)}
    assert await refused(provider(liar), "https://evil.example") == "oidc_failed"
    liar.status = 302
    assert await refused(provider(liar)) in ("oidc_failed", "oidc_unavailable")
    liar.status = 200
    liar.document["token_endpoint"] = "http://elsewhere.example/token"
    assert await refused(provider(liar)) == "oidc_unavailable"
    liar.document["issuer"] = "https://evil.example"
    assert await refused(provider(liar)) == "oidc_unavailable"
    assert not is_safe("ftp://127.0.0.1")
    assert not is_safe("http://127.0.0.1.evil.example")


async def test_a_provider_that_is_gone_is_told_as_that(liar: Liar) -> None:
    of = provider(liar)
    liar.shutdown()
    liar.server_close()
    assert await refused(of) == "oidc_unavailable"
