"""REST for tokens, and the pace of those who show one."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stoker.brain.domain.access import OWNER, Role
from stoker.brain.state.commands import CreateToken
from stoker.control.rate_limit import WRONG_MAX
from stoker.control.settings import HttpSettings
from stoker.live.settings.control import ControlSettings
from stoker.wire.rest.token import NewTokenBody, token_of
from stoker.wire.token import bearer, digest_of, fresh_token, id_of, is_token
from tests.api.http.plane import Plane, Reply, plane_in

TOKENS = "/api/v1/tokens"


async def made(plane: Plane, role: Role, tenant: str | None = None) -> str:
    """The text of a token, made past REST."""
    control = plane.control
    text = fresh_token(control.entropy)
    token = token_of(NewTokenBody(role=role, tenant=tenant), text, control.committer.now())
    await control.committer.ask(CreateToken(by=OWNER.principal, token=token))
    return text


async def asked(plane: Plane, text: str, method: str = "GET", path: str = TOKENS, body: object = None) -> Reply:
    return await plane.ask(method, path, body, {"authorization": bearer(text)})


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Plane]:
    """One that wants tokens."""
    async with plane_in(tmp_path, open_to_owner=False) as plane:
        yield plane


async def test_a_token_is_shown_once_to_whoever_made_it_and_no_cache_keeps_it(plane: Plane) -> None:
    reply = await plane.ask("POST", TOKENS, {"role": "admin", "comment": "for Ada"})
    text = reply.json["token"]
    assert reply.status == 201
    assert is_token(text)
    assert reply.headers["cache-control"] == "no-store"
    assert reply.json["id"] == id_of(text)
    listed = (await plane.get(TOKENS)).body.decode()
    assert id_of(text) in listed
    assert "for Ada" in listed
    assert text not in listed
    assert digest_of(text) not in listed


async def test_what_a_token_is_bound_to_is_listed(plane: Plane) -> None:
    body = {"role": "user", "tenant": "default", "user": "ada", "expires": "30d"}
    made_view = (await plane.ask("POST", TOKENS, body)).json
    (shown,) = (await plane.get(TOKENS)).json["tokens"]
    assert {**shown, "token": made_view["token"]} == made_view
    assert (shown["role"], shown["tenant"], shown["user"]) == ("user", "default", "ada")
    assert shown["principal"] == "user:ada"
    assert shown["created_by"] == "user:local"
    assert shown["expires_at"] > shown["created_at"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "missing_field"),
        ({"role": "root"}, 400, "bad_field"),
        ({"role": "user"}, 400, "bad_token"),
        ({"role": "agent", "user": "ada"}, 400, "bad_token"),
        ({"role": "user", "tenant": "nix"}, 422, "unknown_tenant"),
        ({"role": "user", "tenant": "default", "user": "a b"}, 400, "bad_user"),
        ({"role": "admin", "expires": "soon"}, 400, "bad_token"),
        ({"role": "admin", "expires": "0"}, 400, "bad_token"),
        ({"role": "admin", "expires": 30}, 400, "bad_field"),
        ({"role": "admin", "comment": "x" * 70_000}, 413, "text_too_long"),
        ({"role": "admin", "digest": "x"}, 400, "unknown_field"),
        (b"{", 400, "bad_json"),
    ],
)
async def test_a_token_that_can_not_be_made_is_refused_with_a_hint(
    plane: Plane, body: object, status: int, code: str
) -> None:
    reply = await plane.ask("POST", TOKENS, body)
    assert (reply.status, reply.json["code"]) == (status, code)
    assert reply.json["hint"]
    assert (await plane.get(TOKENS)).json["total"] == 0


async def test_a_token_that_is_not_there_is_not_revoked(plane: Plane) -> None:
    reply = await plane.ask("DELETE", f"{TOKENS}/aaaaaaaa")
    assert (reply.status, reply.json["code"]) == (404, "token_not_found")


async def test_a_revoked_token_is_refused_by_the_very_next_request(guarded: Plane) -> None:
    admin, other = await made(guarded, Role.ADMIN), await made(guarded, Role.ADMIN)
    assert (await asked(guarded, other)).status == 200
    assert (await asked(guarded, admin, "DELETE", f"{TOKENS}/{id_of(other)}")).status == 200
    reply = await asked(guarded, other)
    assert (reply.status, reply.json["code"]) == (401, "token_unknown")
    assert (await asked(guarded, admin)).json["total"] == 1


@pytest.mark.parametrize("role", [Role.VIEWER, Role.USER, Role.AGENT])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_only_admins_see_and_make_tokens(guarded: Plane, role: Role, method: str) -> None:
    text = await made(guarded, role, "default" if role is Role.USER else None)
    reply = await asked(guarded, text, method, body={"role": "admin"} if method == "POST" else None)
    assert (reply.status, reply.json["code"]) == (403, "not_allowed")


async def test_no_answer_repeats_a_wrong_token(guarded: Plane) -> None:
    text = fresh_token(guarded.control.entropy)
    for path in (TOKENS, "/api/v1/jobs", "/metrics", "/nowhere"):
        reply = await asked(guarded, text, path=path)
        assert reply.status == 401
        assert text not in reply.body.decode() + json.dumps(reply.headers)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", f"{TOKENS}/%s", None),
        ("GET", "/api/v1/jobs/%s", None),
        ("GET", "/nowhere/%s", None),
        ("POST", "/api/v1/nodes/%s/drain", {}),
        ("POST", "/api/v1/jobs", {"command": "true", "tenant": "%s"}),
        ("POST", "/api/v1/jobs", {"command": "true", "after": "ok:%s"}),
        ("POST", TOKENS, {"role": "user", "tenant": "default", "user": "%s"}),
        ("GET", "/api/v1/jobs?%s=1", None),
    ],
)
async def test_no_answer_repeats_a_token_that_was_typed_in_the_place_of_something_else(
    guarded: Plane, method: str, path: str, body: dict[str, str] | None
) -> None:
    """As in `stoker token revoke $(cat ada.token)`: what CI prints is read by many."""
    admin, typed = await made(guarded, Role.ADMIN), await made(guarded, Role.VIEWER)
    filled = body and {name: value.replace("%s", typed) for name, value in body.items()}
    reply = await asked(guarded, admin, method, path.replace("%s", typed), filled)
    assert 400 <= reply.status < 500
    assert typed[-20:] not in reply.body.decode() + json.dumps(reply.headers)


async def test_after_ten_thousand_wrong_tokens_in_a_minute_they_are_told_to_wait_and_good_ones_go_on(
    guarded: Plane,
) -> None:
    good, bad = await made(guarded, Role.ADMIN), fresh_token(guarded.control.entropy)
    for _ in range(WRONG_MAX - 1):
        with pytest.raises(Exception, match="not known"):
            guarded.control.access.caller(bearer(bad))
    assert (await asked(guarded, bad)).status == 401
    reply = await asked(guarded, bad)
    assert (reply.status, reply.json["code"]) == (429, "too_many_wrong_tokens")
    assert 0 < int(reply.headers["retry-after"]) <= 60
    assert (await asked(guarded, good)).status == 200


async def test_whoever_asks_too_often_is_told_when_to_come_back_and_nobody_else_is(tmp_path: Path) -> None:
    settings = ControlSettings(http=HttpSettings(rate_per_principal=1))
    async with plane_in(tmp_path, settings, open_to_owner=False) as plane:
        often, seldom = await made(plane, Role.ADMIN), await made(plane, Role.ADMIN)
        replies = [await asked(plane, often) for _ in range(3)]
        assert [reply.status for reply in replies] == [200, 200, 429]
        assert replies[2].json["code"] == "rate_limited"
        assert replies[2].headers["retry-after"] == "1"
        assert (await asked(plane, seldom)).status == 200
        assert (await plane.get("/health")).status == 200
        assert (await asked(plane, often, path="/metrics")).status == 200


async def test_there_is_a_rate_unless_settings_say_otherwise(tmp_path: Path) -> None:
    async with plane_in(tmp_path, ControlSettings(), open_to_owner=False) as plane:
        often = await made(plane, Role.VIEWER)
        statuses = [(await asked(plane, often, path="/api/v1/nodes")).status for _ in range(1_000)]
        assert statuses[:400] == [200] * 400
        assert 429 in statuses


@pytest.mark.parametrize("public", [False, True])
async def test_the_meters_want_a_token_unless_they_are_public(tmp_path: Path, public: bool) -> None:
    settings = ControlSettings(http=HttpSettings(metrics_public=public))
    async with plane_in(tmp_path, settings, open_to_owner=False) as plane:
        assert (await plane.get("/metrics")).status == (200 if public else 401)
        assert (await asked(plane, await made(plane, Role.VIEWER), path="/metrics")).status == 200
        assert (await plane.get("/api/v1/jobs")).status == 401
