"""A real browser, and the pages of somebody who means harm."""

import http.client
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import pytest

from tools.web_screenshots import CHROMIUMS

REPORT_S_MAX: Final = 60.0


def find_browser() -> str:
    """Chromium's program, which .ci/run installs where it isn't there."""
    found = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if found is None:
        pytest.skip("NOT TRIED: what pages of other origins may do needs Chromium (Debian: apt-get install chromium)")
    return found


class Got(NamedTuple):
    """A request that reached a server which lets everything in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Site(ThreadingHTTPServer):
    """Serves one page at `/`, hears what the page reports at `/report`, and notes whatever else comes.

    As a proxy it is the network of somebody whose name was bound to his own machine, and is bound to another once the
    page is there: all but the page and its report goes to `rebound`.
    """

    daemon_threads = True

    def __init__(self, page: str = "", rebound: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.page, self.rebound = page, rebound
        self.got: list[Got] = []
        self.report: dict[str, Any] = {}
        self.reported = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that is ended hangs up in the middle."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    server: Site
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *words: object) -> None:
        pass

    def _any(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.command == "GET" and parts.path == "/":
            self._say(200, self.server.page.encode(), "text/html")
        elif parts.path == "/report":
            self.server.report = json.loads(body)
            self.server.reported.set()
            self._say(200, b"{}", "application/json")
        elif self.server.rebound:
            self._forward(parts.path, body)
        else:
            self.server.got.append(Got(self.command, parts.path, dict(self.headers.items()), body))
            self._say(200, b"{}", "application/json")

    do_GET = do_POST = do_DELETE = do_OPTIONS = do_PUT = _any  # the library's names

    def _say(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _forward(self, path: str, body: bytes) -> None:
        """Head and body as the browser sent them."""
        line = http.client.HTTPConnection("127.0.0.1", self.server.rebound, timeout=20)
        line.putrequest(self.command, path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if not name.lower().startswith("proxy-"):
                line.putheader(name, value)
        line.endheaders(body or None)
        answer = line.getresponse()
        self._say(answer.status, answer.read(), "application/json")
        line.close()


@contextmanager
def site(page: str = "", rebound: int = 0) -> Iterator[Site]:
    made = Site(page, rebound)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        thread.join(10)
        made.server_close()


def visited(folder: Path, url: str, owner: Site, *flags: str) -> dict[str, Any]:
    """What the page at `url` reported to its owner, shown in a browser with a profile of its own."""
    words = [
        *(find_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions"),
        *("--disable-background-networking", "--disable-dev-shm-usage", f"--user-data-dir={folder / 'profile'}"),
        *(*flags, url),
    ]
    log = folder / "browser.log"
    with log.open("wb") as said:
        # In a session of its own, to be ended with the processes that it starts.
        browser = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
    try:
        assert owner.reported.wait(REPORT_S_MAX), log.read_text(errors="replace")[-2_000:]
    finally:
        os.killpg(browser.pid, 9)
        browser.wait(10)
    return owner.report
