"""Signing in through an identity provider that says whom the test wants: O1 to O4 of `web.identity`."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stoker.api.http.app import create_app
from stoker.brain.domain.access import SESSIONS_PER_TOKEN_MAX
from stoker.brain.domain.sign_in import PersonIdentity, SignIn
from stoker.control.settings import OidcSettings
from stoker.web.app import WebPages
from stoker.web.identity import rule_for
from tests.api.http.people import People, people_in
from tests.api.http.plane import Reply
from tests.web.browsers import Browser, code_of

OIDC = OidcSettings(
    issuer="https://id.example",
    client_id="stoker",
    rules={"gpu-admins": "admin", "gpu-users": "user default", "readers": "viewer"},
)


class Provider:
    """A provider that knows one person."""

    def __init__(self) -> None:
        self.person = PersonIdentity(subject="1", user="ada", groups=("staff", "gpu-users"))
        self.asked: list[SignIn] = []

    async def address(self, sign_in: SignIn) -> str:
        self.asked.append(sign_in)
        return f"https://id.example/auth?state={sign_in.state}"

    async def identity(self, sign_in: SignIn, code: str, issuer: str) -> PersonIdentity:
        assert sign_in in self.asked
        assert code == "good"
        return self.person


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
async def people(tmp_path: Path, provider: Provider) -> AsyncIterator[People]:
    async with people_in(tmp_path) as made:
        made.plane.app = create_app(made.plane.control, WebPages(made.plane.control, provider, OIDC))
        yield made


async def came_back(people: People, provider: Provider, browser: Browser, path: str = "") -> Reply:
    there = await browser.ask("GET", f"/login/oidc?next={path}", accept="text/html")
    assert there.status == 303
    mark = there.headers["set-cookie"].partition(";")[0]
    assert "SameSite=Lax" in there.headers["set-cookie"]
    state = provider.asked[-1].state
    reply = await people.plane.ask(
        "GET", f"/login/oidc/back?state={state}&code=good", None, {"cookie": mark, "accept": "text/html"}
    )
    if "set-cookie" in reply.headers:
        browser.cookie = reply.headers["set-cookie"].partition(";")[0]
    return reply


async def test_a_group_gives_a_session_of_its_role_tenant_and_account(people: People, provider: Provider) -> None:
    browser = Browser(people.plane)
    reply = await came_back(people, provider, browser, "/queue")
    assert (reply.status, reply.headers["location"]) == (303, "/login?next=%2Fqueue")
    said = (await browser.ask("GET", "/api/v1/whoami")).json
    assert (said["principal"], said["role"], said["tenant"]) == ("user:ada", "user", "default")
    assert code_of(await browser.change("POST", "/api/v1/nodes/n1/drain", {})) == "not_allowed"
    assert "organisation" in await Browser(people.plane).page("/login")


async def test_who_is_in_no_group_gets_no_session_and_is_told(people: People, provider: Provider) -> None:
    provider.person = provider.person._replace(groups=("staff",))
    reply = await came_back(people, provider, Browser(people.plane))
    assert reply.status == 403
    assert b"no group that this cluster lets in" in reply.body
    assert "set-cookie" not in reply.headers


async def test_a_way_back_counts_once_and_only_where_it_was_begun(people: People, provider: Provider) -> None:
    browser = Browser(people.plane)
    await came_back(people, provider, browser)
    state = provider.asked[-1].state
    again = await people.plane.ask("GET", f"/login/oidc/back?state={state}&code=good", None, {"accept": "text/html"})
    assert again.status == 403
    await browser.ask("GET", "/login/oidc", accept="text/html")
    state = provider.asked[-1].state
    for cookie in ("", "stoker-oidc-x=1", browser.cookie):
        headers = {"cookie": cookie, "accept": "text/html"}
        elsewhere = await people.plane.ask("GET", f"/login/oidc/back?state={state}&code=good", None, headers)
        assert (elsewhere.status, "set-cookie" in elsewhere.headers) == (403, False)
    assert len({each for asked in provider.asked for each in asked[:3]}) == 3 * len(provider.asked)


async def test_a_person_has_one_record_that_ends_all_sessions_and_other_groups_replace(
    people: People, provider: Provider
) -> None:
    browsers = [Browser(people.plane) for _ in range(3)]
    for each in browsers:
        await came_back(people, provider, each)
    tokens = people.plane.control.committer.state.tokens
    (person,) = [each for each in tokens.values() if each.created_by == "oidc" and not each.session_of]
    assert [each.session_of for each in tokens.values() if each.session_of] == [person.id] * 3
    reply = await browsers[0].change("POST", "/logout-everywhere")
    assert reply.status == 200
    assert [(await each.ask("GET", "/session")).status for each in browsers] == [401] * 3
    await came_back(people, provider, browsers[0])
    provider.person = provider.person._replace(groups=("gpu-admins",))
    await came_back(people, provider, browsers[1])
    assert code_of(await browsers[0].ask("GET", "/session")) == "session_ended"
    assert (await browsers[1].ask("GET", "/api/v1/whoami")).json["role"] == "admin"
    await people.admin.ask("DELETE", f"/api/v1/tokens/{_person(people)}")
    assert code_of(await browsers[1].ask("GET", "/session")) == "session_ended"
    more = [Browser(people.plane) for _ in range(SESSIONS_PER_TOKEN_MAX + 1)]
    for each in more:
        await came_back(people, provider, each)
    assert code_of(await more[0].ask("GET", "/session")) == "session_ended"


def _person(people: People) -> str:
    tokens = people.plane.control.committer.state.tokens.values()
    return str(next(each.id for each in tokens if each.created_by == "oidc" and not each.session_of))


async def test_the_way_on_leads_to_no_other_server(people: People, provider: Provider) -> None:
    for path in ("//evil.example", "https://evil.example", "/%5Cevil.example", ""):
        reply = await came_back(people, provider, Browser(people.plane), path)
        assert reply.headers["location"] == "/login?next=%2F"


def test_the_first_rule_that_fits_counts_and_a_star_is_everybody() -> None:
    both = PersonIdentity(subject="1", user="", groups=("gpu-users", "gpu-admins"))
    found = rule_for(OIDC.rows, both)
    assert found is not None
    assert (found.role, found.tenant) == ("admin", "")
    everybody = OidcSettings(rules={"*": "viewer"}).rows
    assert rule_for(everybody, both._replace(groups=())) == everybody[0]
    assert rule_for(OIDC.rows, both._replace(groups=())) is None


def test_settings_that_let_nobody_or_anybody_in_by_mistake_are_refused() -> None:
    assert OIDC.faults() == []
    assert OidcSettings().faults() == []
    wrong = OidcSettings(issuer="http://id.example", rules={"a": "user", "b": "root"}, client_secret_file="x")
    assert len(wrong.faults()) == 5
    assert OidcSettings(issuer="https://id.example", client_id="s").faults() == [
        "rules: there are none, so nobody would be let in"
    ]
