"""Signing in and out of the pages: the rules of `web.sign_in`, of the cookie and of the guard (O3, O4)."""

import base64
from hashlib import sha256
from html import unescape

import pytest

from stoker.brain.domain.access import SESSIONS_PER_TOKEN_MAX
from tests.api.http.people import People, Person
from tests.api.http.plane import Plane, Reply
from tests.web.browsers import Browser, code_of, signed_in


async def test_whoever_is_not_signed_in_gets_to_the_form_and_back(people: People) -> None:
    reply = await Browser(people.plane).ask("GET", "/queue?state=running", accept="text/html")
    assert reply.status == 303
    assert reply.headers["location"] == "/login?next=%2Fqueue%3Fstate%3Drunning"
    assert "Sign in" in await Browser(people.plane).page("/login")


async def test_a_program_without_a_token_gets_a_problem_and_no_page(people: People) -> None:
    assert code_of(await Browser(people.plane).ask("GET", "/api/v1/jobs", accept="text/html")) == "token_missing"
    assert code_of(await Browser(people.plane).ask("GET", "/session", accept="application/json")) == "token_missing"


async def test_a_token_that_is_shown_opens_a_session_whose_cookie_no_script_can_read(people: People) -> None:
    reply = await Browser(people.plane).sign_in(people.anna)
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert people.anna.text not in cookie
    assert people.anna.text.encode() not in reply.body


async def test_a_session_reads_and_changes_what_its_token_does_and_no_more(people: People) -> None:
    job = await people.anna.submit(hold=True)
    theirs = await people.bert.submit(hold=True)
    browser = await signed_in(people.anna)
    assert (await browser.ask("GET", f"/api/v1/jobs/{job}")).json["user"] == "anna"
    assert (await browser.change("DELETE", f"/api/v1/jobs/{job}")).status == 200
    assert code_of(await browser.change("DELETE", f"/api/v1/jobs/{theirs}")) == "not_allowed"
    assert code_of(await browser.change("POST", "/api/v1/nodes/n1/drain", {})) == "not_allowed"


async def test_a_session_changes_nothing_without_the_header_that_only_its_pages_know(people: People) -> None:
    job = await people.anna.submit(hold=True)
    browser, other = await signed_in(people.anna), await signed_in(people.anna)
    for given in ("", "0" * 32, other.csrf, "é"):
        assert code_of(await browser.change("DELETE", f"/api/v1/jobs/{job}", stoker_csrf=given)) == "csrf_missing"
    assert (await browser.change("DELETE", f"/api/v1/jobs/{job}")).status == 200


@pytest.mark.parametrize(
    "foreign",
    [
        {"origin": "http://127.0.0.1:9999", "sec_fetch_site": "same-site"},
        {"origin": "https://evil.example", "sec_fetch_site": "cross-site"},
        {"origin": "null"},
    ],
)
async def test_no_page_of_another_origin_rides_on_a_session(people: People, foreign: dict[str, str]) -> None:
    job = await people.anna.submit(hold=True)
    browser = await signed_in(people.anna)
    assert code_of(await browser.change("DELETE", f"/api/v1/jobs/{job}", **foreign)) == "foreign_origin"
    assert code_of(await browser.ask("GET", "/api/v1/jobs", **foreign)) == "foreign_origin"


async def test_a_websocket_of_a_session_names_its_origin(people: People) -> None:
    job = await people.anna.submit(hold=True)
    browser = await signed_in(people.anna)
    path = f"/api/v1/jobs/{job}/attach"
    assert code_of(await browser.ask("GET", path, upgrade="websocket")) == "foreign_origin"
    assert (
        code_of(await browser.ask("GET", path, upgrade="websocket", origin="http://127.0.0.1:8080")) != "foreign_origin"
    )


async def test_the_text_of_a_session_is_no_token_and_that_of_a_token_no_session(people: People) -> None:
    browser = await signed_in(people.anna)
    name, _, text = browser.cookie.partition("=")
    assert code_of(await people.plane.ask("GET", "/api/v1/jobs", headers={"authorization": f"Bearer {text}"})) == (
        "token_unknown"
    )
    browser.cookie = f"{name}={people.anna.text}"
    assert code_of(await browser.ask("GET", "/api/v1/jobs")) == "session_ended"


async def test_a_cookie_of_another_cluster_or_a_second_one_is_none(people: People) -> None:
    browser = await signed_in(people.anna)
    kept = browser.cookie
    browser.cookie = f"stoker-ffffffffffff={kept.partition('=')[2]}; odd=a b{{}}"
    assert code_of(await browser.ask("GET", "/api/v1/jobs")) == "token_missing"
    browser.cookie = f"{kept}; {kept}"
    assert code_of(await browser.ask("GET", "/api/v1/jobs")) == "token_missing"
    browser.cookie = f'weird="; {kept}; x'
    assert (await browser.ask("GET", "/api/v1/jobs")).status == 200


async def test_a_revoked_token_ends_its_sessions_at_once(people: People) -> None:
    browser = await signed_in(people.anna)
    await people.anna.revoke()
    assert code_of(await browser.ask("GET", "/api/v1/jobs")) == "session_ended"
    assert (await browser.ask("GET", "/queue", accept="text/html")).status == 303
    assert not any(each.session_of for each in people.plane.control.committer.state.tokens.values())


async def test_signing_out_ends_one_session_and_everywhere_all_of_its_token(people: People) -> None:
    one, two, three = [await signed_in(people.anna) for _ in range(3)]
    others = await signed_in(people.arno)
    reply = await one.change("POST", "/logout")
    assert "Max-Age=0" in reply.headers["set-cookie"]
    assert code_of(await one.ask("GET", "/api/v1/jobs")) == "session_ended"
    assert (await two.ask("GET", "/api/v1/jobs")).status == 200
    assert code_of(await two.change("POST", "/logout-everywhere", stoker_csrf="")) == "csrf_missing"
    assert (await two.change("POST", "/logout-everywhere")).status == 200
    assert code_of(await three.ask("GET", "/api/v1/jobs")) == "session_ended"
    assert (await others.ask("GET", "/api/v1/jobs")).status == 200


async def test_one_session_too_many_of_a_token_ends_the_oldest(people: People) -> None:
    browsers = [await signed_in(people.anna) for _ in range(SESSIONS_PER_TOKEN_MAX + 1)]
    assert code_of(await browsers[0].ask("GET", "/session")) == "session_ended"
    assert [(await each.ask("GET", "/session")).status for each in browsers[1:]] == [200] * SESSIONS_PER_TOKEN_MAX


async def test_tokens_of_programs_open_no_session(people: People) -> None:
    for person in (people.prometheus, people.agent, people.joiner):
        assert code_of(await Browser(people.plane).sign_in(person)) == "not_allowed"
    people.nobody.text = "stoker_aaaaaaaa_" + "a" * 43
    assert code_of(await Browser(people.plane).sign_in(people.nobody)) == "token_unknown"


async def test_a_session_acts_as_the_token_that_was_shown_and_the_audit_trail_says_so(people: People) -> None:
    browser = await signed_in(people.admin)
    job = await people.anna.submit(hold=True)
    await browser.change("DELETE", f"/api/v1/jobs/{job}")
    rows = (await people.admin.get("/api/v1/audit")).json["rows"]
    by = {row["action"]: row["by"] for row in rows}
    token = next(each for each in people.plane.control.committer.state.tokens.values() if each.session_of)
    assert by["sign_in"] == by["cancel"] == f"token:{token.session_of}"


async def test_where_no_token_is_wanted_there_is_nothing_to_sign_in_to(plane: Plane) -> None:
    browser = Browser(plane)
    assert "No token is wanted here" in await browser.page("/login")
    assert "Cluster" in await browser.page("/")
    assert (await browser.ask("GET", "/queue", accept="text/html", host="evil.example")).status == 403


async def test_commands_are_signed_in_by_a_page_for_a_code_that_is_good_once_with_its_verifier(people: People) -> None:
    browser, verifier = await signed_in(people.anna), "v" * 43
    challenge = base64.urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    page = await browser.page(f"/command-login?port=4000&challenge={challenge}&state=s")
    assert "waits at port 4000" in page
    assert "isn't whole" in unescape(await browser.page("/command-login?port=x"))
    asked = {"challenge": challenge}
    assert code_of(await browser.change("POST", "/command-login", asked, stoker_csrf="")) == "csrf_missing"
    assert code_of(await Browser(people.plane).ask("POST", "/command-login", asked)) == "token_missing"

    async def exchange(code: str, shown: str) -> Reply:
        return await people.plane.ask("POST", "/command-login/token", {"code": code, "verifier": shown})

    stolen = (await browser.change("POST", "/command-login", asked)).json["code"]
    assert code_of(await exchange(stolen, "w" * 43)) == "token_unknown"
    assert code_of(await exchange(stolen, verifier)) == "token_unknown", "one wrong try is the only one"
    code = (await browser.change("POST", "/command-login", asked)).json["code"]
    token = (await exchange(code, verifier)).json["token"]
    assert code_of(await exchange(code, verifier)) == "token_unknown"
    command = Person(people.plane, token)
    assert (await command.get("/api/v1/whoami")).json["principal"] == (await people.anna.get("/api/v1/whoami")).json[
        "principal"
    ]
    assert (await command.submit(hold=True)).isdigit()
    browser.cookie = f"{browser.cookie.partition('=')[0]}={token}"
    assert code_of(await browser.ask("GET", "/session")) == "session_ended", "it is good in no cookie"
    assert code_of(await Browser(people.plane).ask("POST", "/login", {"token": token})) == "token_unknown"
    await people.anna.revoke()
    assert code_of(await command.get("/api/v1/whoami")) == "token_unknown"
