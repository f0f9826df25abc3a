"""REST for secrets: whose they are, who may do what, and that no answer has a value."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stoker.brain.domain.access import Role
from tests.api.http.people import People, Person, people_in
from tests.api.http.plane import Plane, asgi_ask_in, scope_of

SECRETS = "/api/v1/secrets"
VALUE = "correct-horse-battery-staple"


@pytest.fixture
async def people(tmp_path: Path) -> AsyncIterator[People]:
    async with people_in(tmp_path) as found:
        yield found


async def put(person: Person, name: str = "HF_TOKEN", **body: object) -> tuple[int, Any]:
    reply = await person.ask("PUT", f"{SECRETS}/{name}", {"value": VALUE, **body})
    return reply.status, reply.json


async def names(person: Person, query: str = "") -> list[str]:
    reply = await person.get(SECRETS + query)
    assert reply.status == 200, reply.json
    return [f"{each['owner'] or 'shared'} {each['name']}" for each in reply.json["secrets"]]


async def test_a_secret_is_set_replaced_listed_and_deleted_and_never_shown(plane: Plane, tmp_path: Path) -> None:
    replies = [
        await plane.ask("PUT", f"{SECRETS}/HF_TOKEN", {"value": VALUE}),
        await plane.ask("PUT", f"{SECRETS}/HF_TOKEN", {"value": f"{VALUE}2"}),
        await plane.get(SECRETS),
        await plane.ask("DELETE", f"{SECRETS}/HF_TOKEN"),
    ]
    assert [reply.status for reply in replies] == [200] * 4
    (listed,) = replies[2].json["secrets"]
    assert listed == replies[1].json == replies[3].json
    assert (listed["name"], listed["tenant"], listed["owner"]) == ("HF_TOKEN", "default", "user:local")
    assert set(listed) == {"name", "tenant", "owner", "set_at", "set_by"}
    assert (await plane.get(SECRETS)).json == {"secrets": [], "total": 0}
    said = b"".join(reply.body for reply in replies) + plane.log_text().encode()
    assert VALUE.encode() not in said
    assert VALUE.encode() not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


async def test_secrets_are_a_persons_own_unless_they_are_shared(people: People) -> None:
    anja = await people.person(Role.USER, "red", "anja")
    await put(people.anna, "MINE")
    await put(people.anna, "OURS", shared=True)
    assert await names(people.anna) == ["shared OURS", "user:anna MINE"]
    assert await names(anja) == ["shared OURS"]
    assert await names(people.bert) == []
    assert await names(people.admin) == ["shared OURS", "user:anna MINE"]
    assert await names(people.admin, "?tenant=blue") == []


async def test_only_who_set_a_shared_secret_and_admins_replace_and_delete_it(people: People) -> None:
    anja = await people.person(Role.USER, "red", "anja")
    assert (await put(people.anna, shared=True))[0] == 200
    status, problem = await put(anja, shared=True)
    assert (status, problem["code"]) == (403, "not_allowed")
    assert "user:anna" in problem["message"]
    assert (await anja.ask("DELETE", f"{SECRETS}/HF_TOKEN?shared=true")).status == 403
    assert (await put(people.anna, shared=True))[0] == 200
    assert (await people.admin.ask("DELETE", f"{SECRETS}/HF_TOKEN?shared=true&tenant=red")).status == 200


async def test_a_persons_secret_is_deleted_by_that_person_and_by_admins(people: People) -> None:
    anja = await people.person(Role.USER, "red", "anja")
    for name in ("A", "B"):
        await put(people.anna, name)
    theirs = f"{SECRETS}/A?owner=user:anna"
    assert (await anja.ask("DELETE", theirs)).json["code"] == "not_allowed"
    assert (await anja.ask("DELETE", f"{SECRETS}/A")).json["code"] == "secret_unknown"
    assert (await people.admin.ask("DELETE", f"{theirs}&tenant=red")).status == 200
    assert (await people.anna.ask("DELETE", f"{SECRETS}/B")).status == 200


async def test_a_secret_is_set_for_tenants_that_one_submits_to_alone(people: People) -> None:
    status, problem = await put(people.anna, tenant="blue")
    assert (status, problem["code"]) == (403, "not_allowed")
    assert (await put(people.anna, tenant="red-lab"))[0] == 200
    assert (await put(people.admin, tenant="nowhere"))[1]["code"] == "unknown_tenant"


@pytest.mark.parametrize("who", ["viewer", "guest", "agent", "nobody"])
async def test_who_submits_nothing_neither_sees_nor_sets_secrets(people: People, who: str) -> None:
    person: Person = getattr(people, who)
    await put(people.anna)
    for method in ("GET", "PUT", "DELETE"):
        target = SECRETS if method == "GET" else f"{SECRETS}/HF_TOKEN"
        reply = await person.ask(method, target, {"value": VALUE} if method == "PUT" else None)
        assert reply.json["code"] in ("not_allowed", "token_missing"), (method, reply.json)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "missing_field"),
        ({"value": ""}, "bad_secret"),
        ({"value": f"{VALUE}\0"}, "bad_secret"),
        ({"value": VALUE * 4_000}, "text_too_long"),
        ({"value": [VALUE]}, "bad_field"),
        ({"value": VALUE, "valeu": VALUE}, "unknown_field"),
        (f'{{"value": "{VALUE}'.encode(), "bad_json"),
        (f'{{"value": "{VALUE}\\ud800"}}'.encode(), "bad_json"),
    ],
)
async def test_a_value_that_can_not_be_kept_is_refused_and_never_repeated(
    plane: Plane, body: object, code: str
) -> None:
    reply = await plane.ask("PUT", f"{SECRETS}/HF_TOKEN", body)
    assert reply.json["code"] == code
    assert VALUE.encode() not in reply.body
    assert VALUE not in plane.log_text()


async def test_a_value_that_came_over_plain_http_from_another_machine_is_not_kept(plane: Plane) -> None:
    for client, scheme, status in (("192.0.2.7", "http", 403), ("192.0.2.7", "https", 200), ("127.0.0.1", "http", 200)):
        body = f'{{"value": "{VALUE}"}}'.encode()
        scope = scope_of("PUT", f"{SECRETS}/HF_TOKEN", body, {"host": "127.0.0.1:8080"})
        reply = await asgi_ask_in(plane.app, {**scope, "client": (client, 50_000), "scheme": scheme}, body)
        assert reply.status == status, (client, scheme, reply.json)
        if status != 200:
            assert reply.json["code"] == "secret_in_clear"
            assert plane.control.committer.state.secrets == {}


async def test_a_key_file_that_others_may_read_is_told_and_nothing_is_kept_under_it(
    plane: Plane, tmp_path: Path
) -> None:
    await plane.ask("PUT", f"{SECRETS}/A", {"value": VALUE})
    key = tmp_path / "keys" / "secrets.key"
    key.chmod(0o644)
    reply = await plane.ask("PUT", f"{SECRETS}/B", {"value": VALUE})
    assert (reply.status, reply.json["code"]) == (409, "secret_key_unusable")
    assert f"chmod 600 {key}" in reply.json["hint"]
    assert [each.name for each in plane.control.committer.state.secrets] == ["A"]


async def test_the_audit_trail_names_the_secret_and_whose_it_is(people: People) -> None:
    await put(people.anna)
    await put(people.bert, tenant="red")
    rows = (await people.admin.get("/api/v1/audit?limit=2")).json["rows"]
    assert [(each["by"], each["action"], each["outcome"], each["target"]) for each in rows] == [
        ("user:bert", "secret_set", "not_allowed", "HF_TOKEN"),
        ("user:anna", "secret_set", "ok", "HF_TOKEN"),
    ]
    assert rows[1]["details"] == "of user:anna in tenant red"


async def test_a_lead_sees_and_deletes_the_secrets_of_its_tenant_and_of_no_other(people: People) -> None:
    lead = await people.person(Role.LEAD, "red", "lea")
    await put(people.anna, "MINE")
    await put(people.anna, "OURS", shared=True)
    await put(people.bert, "THEIRS")
    assert await names(lead) == ["shared OURS", "user:anna MINE"]
    for target in ("MINE?owner=user:anna", "OURS?shared=true"):
        assert (await lead.ask("DELETE", f"{SECRETS}/{target}")).status == 200
    assert (await lead.ask("DELETE", f"{SECRETS}/THEIRS?tenant=blue&owner=user:bert")).status == 403
