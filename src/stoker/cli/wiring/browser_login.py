"""A token for commands from the browser in which somebody is signed in.

Rules: L4  the browser comes back to a port of this machine's loopback with a code, and with the state that was sent
       L5  the code goes to the server with a verifier that nobody else has; what the browser shows then is no secret
"""

import base64
import json
import ssl
import urllib.error
import urllib.request
import webbrowser
from hashlib import sha256
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Final
from urllib.parse import parse_qs, urlencode, urlsplit

import click

from stoker.adapters.entropy import SystemEntropy
from stoker.brain.domain.errors import refusal_error
from stoker.wire.token import random_text

WAIT_S: Final = 300.0
_SAID: Final = (
    b"<!doctype html><meta charset=utf-8><title>Stoker</title><p>Commands are signed in. This page can be closed.</p>"
)


class _Loopback(HTTPServer):
    """Waits for one browser."""

    timeout = WAIT_S
    code = ""

    def __init__(self, state: str) -> None:
        super().__init__(("127.0.0.1", 0), _Back)
        self.state = state

    def handle_timeout(self) -> None:
        raise refusal_error(
            "token_missing", f"no browser came back within {WAIT_S:g} s", "run it again, or give --token"
        )


class _Back(BaseHTTPRequestHandler):
    server: _Loopback

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        is_ours = compare_digest(query.get("state", [""])[0].encode(), self.server.state.encode())
        if is_ours:
            self.server.code = query.get("code", [""])[0]
        content = _SAID if is_ours else b"not asked for"
        self.send_response(200 if is_ours else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing: the path has the code."""


def token_by_browser(server: str, ca_file: str) -> str:
    """Return the token that somebody gives in the web page of a server.

    Raises: StokerError `token_missing` when nobody comes back, `no_answer`, or as the server refuses the code.
    """
    entropy = SystemEntropy()
    state, verifier = random_text(entropy), random_text(entropy)
    challenge = base64.urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    url = server.rstrip("/")
    with _Loopback(state) as waiting:
        asked = urlencode({"port": waiting.server_address[1], "challenge": challenge, "state": state})
        address = f"{url}/command-login?{asked}"
        click.echo(f"open {address}", err=True)
        webbrowser.open(address)
        while not waiting.code:
            waiting.handle_request()
        code = waiting.code
    body = json.dumps({"code": code, "verifier": verifier}).encode()
    request = urllib.request.Request(f"{url}/command-login/token", body, {"Content-Type": "application/json"})
    context = ssl.create_default_context(cafile=ca_file or None)
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return str(json.loads(answer.read())["token"])
    except urllib.error.HTTPError as fault:
        told = json.loads(fault.read() or b"{}")
        message = told.get("message", f"refused with status {fault.code}")
        raise refusal_error(told.get("code", "token_unknown"), message, told.get("hint", "run it again")) from fault
    except OSError as fault:
        hint = "give the authority that signs its certificate: --ca FILE"
        raise refusal_error("no_answer", f"{url} can't be asked: {fault}", hint) from fault
