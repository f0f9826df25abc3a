"""A real Chromium that looks at the pages of a real cluster, through Playwright."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

from stoker.wire.client import Client
from tests.real.browser import find_browser
from tests.real.up_process import UpProcess, until
from tools import web_screenshots

PATIENCE_MS: Final = 30_000
"""A browser on a busy machine with two cores."""
SHAPES: Final[dict[str, dict[str, Any]]] = {
    "wide": {"viewport": {"width": 1280, "height": 800}},
    "phone": {"viewport": {"width": 390, "height": 800}, "has_touch": True},
}
_AXE: Final = Path(__file__).parent / "vendor" / "axe.min.js"


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser of the system, for as long as the tests of a file need it."""
    with web_screenshots.chromium(find_browser()) as browser:
        yield browser


class Visitor:
    """Somebody with a browser profile of his own, and what the browser complained of."""

    def __init__(self, browser: Browser, url: str, **given: Any) -> None:  # noqa: ANN401  # Playwright's own options
        self.url = url
        self.complaints: list[str] = []
        self.context: BrowserContext = browser.new_context(**{"timezone_id": "Asia/Tokyo", "locale": "en-GB", **given})
        self.context.set_default_timeout(PATIENCE_MS)
        self.page = self.opened()

    def opened(self) -> Page:
        """One more page."""
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._heard)
        return page

    def _heard(self, message: ConsoleMessage) -> None:
        # Answers with a status of refusal are noted by the browser too, and are no fault of a page.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def goto(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def sign_in(self, token: str) -> None:
        page = self.goto("/login")
        page.fill("#token", token)
        page.click("#sign-in button")
        page.wait_for_url(f"{self.url}/")

    def close(self) -> None:
        self.context.close()


@contextmanager
def visiting(browser: Browser, url: str) -> Iterator[Visitor]:
    """Somebody with a wide window, whose browser complains of nothing."""
    made = Visitor(browser, url, **SHAPES["wide"])
    yield made
    made.close()
    assert made.complaints == []


@contextmanager
def shown_cluster(folder: Path, nodes: int) -> Iterator[UpProcess]:
    """A cluster of nodes with two GPUs each, all of which have joined."""
    with UpProcess(folder, "--nodes", str(nodes), "--gpus-per-node", "2", "--stop-grace", "0") as up:
        with Client(up.url) as client:
            until(lambda: client.status().online_nodes == nodes, what=f"{nodes} nodes")
        yield up


def findings(page: Page) -> list[str]:
    """What axe-core calls serious or critical of a page."""
    page.evaluate(_AXE.read_text())
    told = page.evaluate(
        """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations
             .filter((each) => ["serious", "critical"].includes(each.impact))
             .map((each) => [each.id, each.help, each.nodes.slice(0, 3).map((node) => node.html.slice(0, 150))])"""
    )
    return [json.dumps(each) for each in told]
