"""Signing in to the pages through a certified OpenID provider, npm's `oidc-provider`, in a real Chromium."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from stoker.brain.domain.access import Role
from stoker.cli.wiring.token_store import FolderTokens
from stoker.wire.client import Client
from stoker.wire.rest.token import NewTokenBody
from tests.real.control_process import free_port
from tests.real.moved_clocks import MovedClocks
from tests.real.pages import PATIENCE_MS, SHAPES, Visitor, visiting
from tests.real.pair_process import Half, until

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]
PROVIDER = Path(__file__).parent / "oidc" / "provider.mjs"
VERSION = "oidc-provider@8.8.1"

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> MovedClocks:
    return MovedClocks(tmp_path_factory.mktemp("clocks"))


@pytest.fixture(scope="module")
def stoker(browser: Browser, clocks: MovedClocks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Half]:
    """A control plane whose people sign in at a provider beside it."""
    folder = tmp_path_factory.mktemp("oidc")
    half, port = Half(folder, "a"), free_port()
    half.environ = clocks.environ
    provider = _provider(folder, port, f"{half.url}/login/oidc/back")
    secret = folder / "secret"
    secret.write_text("between-the-two\n")
    half.write(
        {
            "data_dir": str(half.folder),
            "http": {"port": half.http_port},
            "grpc": {"port": half.grpc_port, "node_port": 0},
            "tls": {"mode": "off"},
            "oidc": {
                "issuer": f"http://127.0.0.1:{port}",
                "client_id": "stoker",
                "client_secret_file": str(secret),
                "rules": {"gpu-admins": "admin", "gpu-users": "user default"},
            },
        }
    )
    half.start()
    try:
        until(lambda: half.is_active, half.output)
        half.token = FolderTokens(half.folder).create_token(NewTokenBody(role=Role.ADMIN, user="root")).token
        yield half
    finally:
        half.close()
        with provider:
            provider.kill()


def _provider(folder: Path, port: int, redirect: str) -> "subprocess.Popen[bytes]":
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("NOT TRIED: signing in through an OpenID provider needs node and npm")
    place = folder / "provider"
    place.mkdir()
    done = subprocess.run(
        [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(place), VERSION],
        capture_output=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"NOT TRIED: npm can't install {VERSION}: {done.stderr.decode()[-200:]}")
    shutil.copy(PROVIDER, place)
    started = subprocess.Popen([node, place / PROVIDER.name, str(port), redirect], stdout=subprocess.PIPE)
    assert started.stdout is not None, "its output is a pipe"
    for line in started.stdout:
        if line == b"READY\n":
            return started
    with started:
        started.kill()
    raise AssertionError("the provider did not start")


@pytest.fixture
def visitor(browser: Browser, stoker: Half) -> Iterator[Visitor]:
    with visiting(browser, stoker.url) as made:
        yield made


def sign_in(made: Visitor, who: str, path: str = "/queue") -> Page:
    """Until the provider has sent the browser back."""
    page = made.goto(path)
    page.click("#oidc")
    page.fill("[name=login]", who)
    page.fill("[name=password]", "any")
    page.click("button[type=submit]")
    page.click("button[type=submit]")  # what is told to whom
    page.wait_for_url(f"{made.url}/**")
    return page


def test_groups_say_what_somebody_may_do_and_a_page_that_was_asked_for_is_shown(
    browser: Browser, stoker: Half, visitor: Visitor
) -> None:
    page = sign_in(visitor, "ada", "/queue?state=failed")
    page.wait_for_url("**/queue?state=failed")
    expect(page.locator(".menu")).to_contain_text("ada")
    cookies = {each["name"]: each for each in visitor.context.cookies()}
    session = next(each for name, each in cookies.items() if name.startswith("stoker-") and "oidc" not in name)
    assert (session["httpOnly"], session["sameSite"]) == (True, "Strict")
    page.goto(f"{stoker.url}/activity")
    expect(page.locator("main")).to_contain_text("Audit trail")
    other = Visitor(browser, stoker.url, **SHAPES["wide"])
    page = sign_in(other, "bob")
    page.wait_for_url("**/queue")
    page.goto(f"{stoker.url}/activity")
    expect(page.locator("main")).to_contain_text("The audit trail is for admins")
    other.close()


def test_somebody_in_no_group_is_told_so_and_gets_no_session(visitor: Visitor) -> None:
    page = sign_in(visitor, "eve")
    expect(page.locator("main")).to_contain_text("eve is in no group that this cluster lets in")
    page = visitor.goto("/queue")
    page.wait_for_url("**/login?next=**")


def test_a_code_counts_once_and_in_the_browser_that_asked_for_it_alone(
    browser: Browser, stoker: Half, visitor: Visitor
) -> None:
    ways_back: list[str] = []
    visitor.page.on("request", lambda asked: ways_back.append(asked.url) if "/login/oidc/back" in asked.url else None)
    sign_in(visitor, "bob").wait_for_url("**/queue")
    page = visitor.goto(ways_back[0].removeprefix(stoker.url))
    expect(page.locator("main")).to_contain_text("was used already")
    victim, thief = (Visitor(browser, stoker.url, **SHAPES["wide"]) for _ in range(2))
    page = thief.goto("/queue")
    page.click("#oidc")
    page.fill("[name=login]", "bob")
    page.fill("[name=password]", "any")
    page.click("button[type=submit]")
    mark = next(each for each in thief.context.cookies() if each["name"].startswith("stoker-oidc-"))
    thief.context.clear_cookies(name=mark["name"])
    page.click("button[type=submit]")  # so that his way back stays good
    page.wait_for_url("**/login/oidc/back?**")
    expect(page.locator("main")).to_contain_text("was not begun in this browser")
    way_back = page.url.removeprefix(stoker.url)
    expect(victim.goto(way_back).locator("main")).to_contain_text("was not begun in this browser")
    victim.goto("/queue").wait_for_url("**/login?next=**")
    thief.context.add_cookies([mark])  # type: ignore[list-item]  # as it was
    thief.goto(way_back).wait_for_url("**/queue")
    victim.close()
    thief.close()


def test_who_signs_out_or_is_revoked_is_out_at_once_everywhere(
    browser: Browser, stoker: Half, visitor: Visitor
) -> None:
    others = [Visitor(browser, stoker.url, **SHAPES["wide"]) for _ in range(2)]
    for made in (visitor, *others):
        sign_in(made, "bob").wait_for_url("**/queue")
    visitor.page.click(".menu summary")
    visitor.page.click("[data-post='/logout']")
    visitor.page.wait_for_url("**/login")
    expect(others[0].goto("/queue").locator("h1")).to_have_text("Queue")
    with Client(stoker.url, token=stoker.token) as client:
        (person,) = [each for each in client.tokens().tokens if each.created_by == "oidc" and each.user == "bob"]
        client.revoke_token(person.id)
    for made in others:
        expect(made.page.locator("#stale")).to_contain_text("Your session is over")
    page = visitor.goto("/queue")
    page.click("#oidc")  # the provider still knows him, and asks nothing
    page.wait_for_url("**/queue")
    page.click(".menu summary")
    page.click("[data-post='/logout-everywhere']")
    page.wait_for_url("**/login")
    for made in others:
        made.close()


def test_no_page_of_another_origin_rides_on_such_a_session(browser: Browser, stoker: Half, visitor: Visitor) -> None:
    sign_in(visitor, "ada").wait_for_url("**/queue")
    foreign = visitor.opened()
    foreign.goto(f"http://localhost:{stoker.http_port}/login")  # another origin of the same machine
    ask = "async (url) => fetch(url, {credentials: 'include'}).then((answer) => answer.status, () => 'kept from it')"
    said = foreign.evaluate(ask, f"{stoker.url}/api/v1/jobs")
    assert said in ("kept from it", 403), said
    visitor.complaints.clear()  # the browser tells what it kept the page from


def test_a_session_ends_after_twelve_hours_with_a_way_back_to_what_was_looked_at(
    stoker: Half, visitor: Visitor, clocks: MovedClocks
) -> None:
    page = sign_in(visitor, "ada", "/queue?state=failed&name=train-*")
    page.wait_for_url("**/queue?state=failed**")
    other = visitor.opened()
    other.goto(f"{stoker.url}/submit")
    other.fill("[name=command]", "typed before")
    clocks.correct(12 * 3_600 + 60)
    try:
        for each in (page, other):
            each.bring_to_front()
            # A clock that jumps is followed by an hour every few seconds.
            expect(each.locator("#stale")).to_contain_text("Your session is over", timeout=300_000)
        page.bring_to_front()
        page.click("#stale a")
        page.click("#oidc")
        page.wait_for_url("**/queue?state=failed&name=train-*")
        expect(page.locator("[name=name]")).to_have_value("train-*")
        other.bring_to_front()
        expect(other.locator("#stale")).not_to_contain_text("Your session is over")
        expect(other.locator("[name=command]")).to_have_value("typed before")
    finally:
        clocks.correct(0)
