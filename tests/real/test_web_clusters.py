"""The page of several clusters of real control planes, of which some are away, refuse, or are hostile."""

import asyncio
import json
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from stoker.adapters.entropy import SystemEntropy
from stoker.brain.domain.access import Role
from stoker.live.settings.control import OtherClusterSettings, WebSettings
from stoker.wire.client import Client, JobBody
from stoker.wire.client.cluster_status import SAID_MAX, ask_cluster
from stoker.wire.client.trust import Credentials
from stoker.wire.rest.token import NewTokenBody
from stoker.wire.token import fresh_token
from tests.real.hostile_servers import FIGURES, SAID, HostileServers, answering
from tests.real.pages import PATIENCE_MS, SHAPES, Visitor, findings
from tests.real.serving import Served, free_port, serving
from tests.real.tokens import token_in

TOKEN = fresh_token(SystemEntropy())

expect.set_options(timeout=PATIENCE_MS)


class Site:
    """A control plane whose page has another one, `rome`, and others that are no good."""

    def __init__(self, folder: Path, hostile: HostileServers) -> None:
        self.folder, self.rome_port = folder, free_port()
        (folder / "rome").mkdir()
        self.rome_token = token_in(folder / "rome", NewTokenBody(role=Role.VIEWER))
        url = f"https://127.0.0.1:{self.rome_port}"
        self._file("rome", self.rome_token)
        self._file("unknown", TOKEN)
        self._file("open", TOKEN, 0o644)
        good = {
            "rome": OtherClusterSettings(servers=(url,), token_file=str(folder / "rome.token"), ca_file=self.ca),
            "unknown": OtherClusterSettings(servers=(url,), token_file=str(folder / "unknown.token"), ca_file=self.ca),
            "other-ca": OtherClusterSettings(servers=(url,), token_file=str(folder / "unknown.token")),
            "open": OtherClusterSettings(servers=(url,), token_file=str(folder / "open.token")),
            "away": OtherClusterSettings(servers=(f"http://127.0.0.1:{free_port()}",)),
            "evil": OtherClusterSettings(servers=(hostile.urls["evil"],)),
        }
        self.web = WebSettings(clusters=good)

    @property
    def ca(self) -> str:
        return str(self.folder / "rome" / "ca" / "ca.pem")

    def _file(self, name: str, text: str, mode: int = 0o600) -> None:
        path = self.folder / f"{name}.token"
        path.write_text(f"{text}\n")
        path.chmod(mode)


@pytest.fixture(scope="module")
def hostile() -> Iterator[HostileServers]:
    kinds = {name: pieces for name, (pieces, _) in SAID.items()}
    with HostileServers({**kinds, "evil": answering(json.dumps(FIGURES).encode())}) as made:
        yield made


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, hostile: HostileServers) -> Site:
    return Site(tmp_path_factory.mktemp("clusters"), hostile)


@pytest.fixture(scope="module")
def here(site: Site) -> Iterator[Served]:
    with serving(site.folder / "here", free_port(), web=site.web) as made:
        yield made


def row(page: Page, name: str) -> Locator:
    return page.locator("table.stack tbody tr", has=page.locator("a.row", has_text=name))


def test_what_no_control_plane_answers_is_one_line_within_bounds(hostile: HostileServers) -> None:
    """Ten megabytes, figures without end, a slow drip, the token itself."""
    before_kb = peak_kb()

    async def asked() -> dict[str, str]:
        told = await asyncio.gather(*(ask_cluster(hostile.urls[name], Credentials(TOKEN)) for name in SAID))
        assert [each.cluster for each in told] == [None] * len(SAID)
        return dict(zip(SAID, (each.unanswered for each in told), strict=True))

    said = asyncio.run(asked())
    for name, (_, words) in SAID.items():
        assert words in said[name] or "no answer within" in said[name], (name, said[name])  # of a slow machine
        assert TOKEN not in said[name]
        assert len(said[name]) <= SAID_MAX
        assert said[name].isprintable()
    assert peak_kb() - before_kb < 40_000, "nothing was read whole"


def peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_the_page_shows_who_answers_and_why_others_do_not_and_goes_on_while_one_dies_and_returns(
    browser: Browser, site: Site, here: Served
) -> None:
    made = Visitor(browser, here.url, **SHAPES["wide"])
    folder = site.folder / "rome"
    with serving(folder, site.rome_port, secure=True) as rome:
        with Client(rome.url, token=rome.token, ca_file=site.ca) as client:
            client.submit(JobBody(name="waits", command="true", hold=True))
        made.sign_in(here.token)
        made.page.keyboard.press("g")
        made.page.keyboard.press("o")
        made.page.wait_for_url(f"{here.url}/clusters")
        page = made.page
        page.evaluate("window.kept = 1")
        expect(row(page, "rome")).to_contain_text("answers")
        expect(row(page, "rome").locator("[data-label=wait]")).to_contain_text("1")
        for name, words in {
            "unknown": "token_unknown",
            "other-ca": "isn't signed by an authority that this system trusts",
            "open": "its token_file is open to every account (mode 0644)",
            "away": "no control plane answers",
        }.items():
            expect(row(page, name)).to_contain_text(words)
        expect(row(page, "evil")).to_contain_text("<script>window.hacked")
        assert page.evaluate("window.hacked") is None
    expect(row(page, "rome")).to_contain_text("Old:")
    expect(row(page, "rome").locator("[data-label=wait]")).to_contain_text("1")
    with serving(folder, site.rome_port, secure=True):
        expect(row(page, "rome").locator(".s-ready")).to_be_visible()
        expect(row(page, "rome")).not_to_contain_text("Old:")
    assert page.evaluate("window.kept") == 1, "the page was never loaded anew"
    assert site.rome_token not in page.content()
    made.close()
    assert made.complaints == []


@pytest.mark.parametrize(("shape", "scheme"), [("wide", "dark"), ("phone", "light")])
def test_it_is_without_grave_faults_of_access_and_fits_beside_hostile_names(
    browser: Browser, here: Served, shape: str, scheme: str
) -> None:
    made = Visitor(browser, here.url, color_scheme=scheme, **SHAPES[shape])
    made.sign_in(here.token)
    page = made.goto("/clusters")
    expect(row(page, "evil")).to_contain_text("<script>window.hacked")
    expect(row(page, "away")).to_contain_text("no control plane answers")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is wider than its window"
    assert findings(page) == []
    made.close()
    assert made.complaints == []
