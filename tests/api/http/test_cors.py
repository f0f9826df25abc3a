"""Pages of other origins: O1 to O3 of `api.http.cors`, and that nobody else is let in."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stoker.control.settings import HttpSettings
from stoker.live.settings.control import ControlSettings
from tests.api.http.plane import Plane, Reply, plane_in

PORTAL, OTHER = "https://portal.example.org", "https://evil.example.org"
JOBS = "/api/v1/jobs"


@pytest.fixture
async def listed(tmp_path: Path) -> AsyncIterator[Plane]:
    """One that lists the portal, and wants tokens."""
    settings = ControlSettings(http=HttpSettings(cors_origins=(PORTAL,)))
    async with plane_in(tmp_path, settings, open_to_owner=False) as plane:
        yield plane


async def preflight(plane: Plane, origin: str) -> Reply:
    asks = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    return await plane.ask("OPTIONS", JOBS, headers=asks)


async def test_a_listed_origin_is_answered_its_preflight(listed: Plane) -> None:
    reply = await preflight(listed, PORTAL)
    assert reply.status == 204
    assert reply.headers["access-control-allow-origin"] == PORTAL
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert "Authorization" in reply.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in reply.headers


async def test_each_answer_to_a_listed_origin_names_it_also_a_refusal(listed: Plane) -> None:
    reply = await listed.ask("GET", JOBS, headers={"origin": PORTAL})
    assert reply.status == 401
    assert reply.headers["access-control-allow-origin"] == PORTAL
    assert reply.headers["vary"] == "Origin"


@pytest.mark.parametrize(
    "origin", [OTHER, "null", f"{PORTAL}.evil.example.org", f"{PORTAL}:8443", "http://portal.example.org"]
)
async def test_an_origin_that_is_not_listed_letter_by_letter_gets_neither(listed: Plane, origin: str) -> None:
    for reply in (await preflight(listed, origin), await listed.ask("POST", JOBS, {}, {"origin": origin})):
        assert (reply.status, reply.json["code"]) == (403, "foreign_origin")
        assert "access-control-allow-origin" not in reply.headers


async def test_without_tokens_no_origin_is_let_in_though_it_is_listed(tmp_path: Path) -> None:
    settings = ControlSettings(http=HttpSettings(cors_origins=(PORTAL,)))
    async with plane_in(tmp_path, settings) as plane:
        assert (await preflight(plane, PORTAL)).status == 403
        assert (await plane.ask("GET", JOBS, headers={"origin": PORTAL})).status == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("dest", ["image", "script", "object", "iframe", "empty"])
async def test_where_no_token_is_wanted_nothing_is_loaded_into_the_page_of_another_site(
    plane: Plane, site: str, dest: str
) -> None:
    """These come without an `Origin`, and whether they load tells the page which jobs there are."""
    for path in (JOBS, "/health"):
        reply = await plane.ask("GET", path, headers={"sec-fetch-site": site, "sec-fetch-dest": dest})
        assert (reply.status, reply.json["code"]) == (403, "foreign_origin")


@pytest.mark.parametrize(("site", "dest"), [("same-origin", "empty"), ("none", "document"), ("cross-site", "document")])
async def test_a_page_of_ours_and_a_person_who_follows_a_link_are_answered(plane: Plane, site: str, dest: str) -> None:
    reply = await plane.ask("GET", JOBS, headers={"sec-fetch-site": site, "sec-fetch-dest": dest})
    assert reply.status == 200


async def test_a_listed_page_is_answered_from_its_own_site(listed: Plane) -> None:
    reply = await listed.ask("GET", "/health", headers={"origin": PORTAL, "sec-fetch-site": "cross-site"})
    assert reply.status == 200
