"""Templates mark no text as safe, policies allow no inline script, vendored files are those that their list names."""

import re
from hashlib import sha256

import pytest

from stoker.web.assets import STATIC
from stoker.web.templates import TEMPLATES
from tests.api.http.plane import Plane
from tests.web.browsers import Browser

PAGES = sorted(TEMPLATES.glob("*.html"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_template_escapes_all_and_holds_no_script_style_or_address_elsewhere(path: object) -> None:
    text = (TEMPLATES / str(path)).read_text()
    assert not re.search(r"\|\s*safe|autoescape|Markup", text)
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=|javascript:", text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), "no page needs the internet"


def test_vendored_files_are_those_of_the_list_with_their_licences() -> None:
    vendor = STATIC / "vendor"
    listed = dict(reversed(line.split()) for line in (vendor / "SHA256SUMS").read_text().splitlines())
    found = {
        path.name: sha256(path.read_bytes()).hexdigest() for path in vendor.iterdir() if path.suffix in (".js", ".css")
    }
    assert listed == found
    assert all((vendor / f"{name}.LICENSE").exists() for name in ("htmx", "uPlot", "xterm", "xterm-addon-fit"))
    for name in found:
        assert "sourceMappingURL" not in (vendor / name).read_text(), "a map isn't there"


async def test_files_are_kept_for_ever_under_the_digest_of_all_and_not_found_under_another(plane: Plane) -> None:
    browser = Browser(plane)
    page = await browser.page("/")
    path = re.findall(r'href="(/static/[^"]+\.css)"', page)[0]
    reply = await browser.ask("GET", path)
    assert (reply.status, reply.headers["content-type"]) == (200, "text/css; charset=utf-8")
    assert "immutable" in reply.headers["cache-control"]
    zipped = await browser.ask("GET", path, accept_encoding="gzip")
    assert zipped.headers["content-encoding"] == "gzip"
    assert len(zipped.body) < len(reply.body) / 2
    old = path.replace(path.split("/")[2], "0" * 16)
    assert (await browser.ask("GET", old)).status == 404
    assert (await browser.ask("GET", path.replace("app.css", "../templates.py"))).status == 404


async def test_a_page_allows_no_script_but_files_of_this_server_and_no_frame(plane: Plane) -> None:
    reply = await Browser(plane).ask("GET", "/", accept="text/html")
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


async def test_reports_of_browsers_are_counted_and_long_ones_refused(plane: Plane) -> None:
    browser = Browser(plane)
    assert (await browser.ask("POST", "/csp-report", b'{"csp-report": {}}')).status == 204
    assert (await browser.ask("POST", "/csp-report", b"x" * 9_000)).status == 413
    assert "csp_report" in plane.log_text()
    assert b"stoker_csp_reports_total 1" in (await plane.get("/metrics")).body
