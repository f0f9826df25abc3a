"""Who may ask over REST, and what?"""

import asyncio
from typing import Any

import pytest

from stoker.api.requests import OPEN, role_for
from stoker.brain.domain.access import Role
from stoker.brain.domain.units import HOUR_MS
from stoker.control import access
from stoker.wire.endpoints import API_PREFIX
from stoker.wire.token import digest_of
from tests.api.http.people import People, Person
from tests.api.http.plane import asgi_ask_in, scope_of

JOBS = f"{API_PREFIX}/jobs"
RANKS = {"none": 0, Role.AGENT: 0, Role.METRICS: 0.5, Role.VIEWER: 1, Role.USER: 2, Role.ADMIN: 3}


def operations(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Every method and path that there is, with something in place of each parameter."""
    return [
        (method.upper(), path.replace("{job_id}", "1").replace("{name}", "x").replace("{token_id}", "x"))
        for path, item in document["paths"].items()
        for method in item
    ]


def pass_time(people: People, monkeypatch: pytest.MonkeyPatch, by_ms: int) -> None:
    committer = people.plane.control.committer
    now = committer.now
    monkeypatch.setattr(committer, "now", lambda: now() + by_ms)


# -- tokens --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [None, "", "Basic YTpi", "Bearer", "stoker_aaaaaaaa_x"])
async def test_whoever_sends_no_token_is_told_how_to_send_one(people: People, header: str | None) -> None:
    reply = await people.plane.ask("GET", JOBS, headers={} if header is None else {"authorization": header})
    assert (reply.status, reply.json["code"]) == (401, "token_missing")
    assert reply.headers["www-authenticate"] == "Bearer"
    assert "STOKER_TOKEN" in reply.json["hint"]


async def test_a_wrong_a_revoked_and_an_expired_token_are_refused_alike(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    expired = await people.person(Role.ADMIN, lives_ms=HOUR_MS)
    pass_time(people, monkeypatch, HOUR_MS)
    await people.anna.revoke()
    wrong = Person(people.plane, people.bert.text[:-1] + ("A" if people.bert.text[-1] != "A" else "B"))
    none_of_ours = Person(people.plane, "eyJhbGciOiJub25lIn0.e30.")
    replies = [await person.get(JOBS) for person in (expired, people.anna, wrong, none_of_ours)]
    assert {reply.status for reply in replies} == {401}
    assert len({reply.body for reply in replies}) == 1
    assert replies[0].json["code"] == "token_unknown"
    assert replies[0].headers["www-authenticate"] == "Bearer"


async def test_two_tokens_in_one_request_are_none(people: People) -> None:
    headers = people.admin.headers["authorization"]
    reply = await people.plane.ask("GET", JOBS, headers={"authorization": f"{headers}, {headers}"})
    assert reply.status == 401


async def test_two_headers_with_a_token_are_none_whichever_comes_first(people: People) -> None:
    good, none = people.admin.headers["authorization"], "Bearer x"
    for pair in ((good, none), (none, good), (good, good)):
        scope = scope_of("GET", JOBS, b"", {"host": "127.0.0.1"})
        scope["headers"] += [(b"authorization", each.encode()) for each in pair]
        reply = await asgi_ask_in(people.plane.app, scope)
        assert (reply.status, reply.json["code"]) == (401, "token_unknown")


async def test_a_token_may_be_sent_with_any_case_of_the_scheme(people: People) -> None:
    reply = await people.plane.ask("GET", JOBS, headers={"authorization": f"bEARER  {people.anna.text}"})
    assert reply.status == 200


async def test_health_and_the_document_want_no_token(people: People) -> None:
    for path in sorted(OPEN):
        assert (await people.nobody.get(path)).status == 200
        assert (await people.nobody.ask("HEAD", path)).status == 200


async def test_metrics_are_for_those_who_scrape_and_for_those_who_read_the_whole_cluster(people: People) -> None:
    assert (await people.nobody.get("/metrics")).status == 401
    for bound in (people.agent, people.anna, people.guest):
        reply = await bound.get("/metrics")
        assert (reply.status, reply.json["code"]) == (403, "not_allowed")
    assert "--role metrics" in reply.json["hint"]
    for scrapes in (people.prometheus, people.viewer, people.admin):
        assert (await scrapes.get("/metrics")).status == 200
        assert (await scrapes.ask("HEAD", "/metrics")).status == 200


async def test_a_metrics_token_opens_the_metrics_and_nothing_else(people: People) -> None:
    for method, path in operations(await people.plane.document()):
        reply = await people.prometheus.ask(method, path, {} if method in ("POST", "PUT") else None)
        opens = path in OPEN or path == "/metrics"
        assert (reply.status == 403) is not opens, (method, path)
    for near in ("/metrics/", "/api/v1/metrics", "/api/v1/jobs?limit=1", "/api/v1/whoami"):
        assert (await people.prometheus.get(near)).status == 403, near


async def test_an_unknown_path_tells_nothing_to_who_has_no_token(people: People) -> None:
    assert (await people.nobody.get("/api/v1/nothing")).status == 401
    assert (await people.viewer.get("/api/v1/nothing")).status == 404


# -- roles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["none", Role.AGENT, Role.METRICS, Role.VIEWER, Role.USER])
async def test_no_operation_is_open_to_a_lower_role_than_its_own(people: People, role: str) -> None:
    person = {
        "none": people.nobody,
        Role.AGENT: people.agent,
        Role.METRICS: people.prometheus,
        Role.VIEWER: people.viewer,
        Role.USER: people.anna,
    }[role]
    refused = 0
    for method, path in operations(await people.plane.document()):
        if path in OPEN or RANKS[role] >= RANKS[role_for(method, path)]:
            continue
        reply = await person.ask(method, path, {} if method in ("POST", "PUT") else None)
        expected = (401, "token_missing") if role == "none" else (403, "not_allowed")
        assert (reply.status, reply.json["code"]) == expected, (method, path)
        refused += 1
    assert refused >= {"none": 40, Role.AGENT: 40, Role.METRICS: 40, Role.VIEWER: 20, Role.USER: 10}[role]


async def test_the_table_of_roles_is_what_the_design_says(people: People) -> None:
    wanted = {f"{method} {path}": role_for(method, path) for method, path in operations(await people.plane.document())}
    users = {operation for operation, role in wanted.items() if role is Role.USER}
    assert {operation.split()[1].split("/")[3] for operation in users} == {"jobs", "secrets", "tasks"}
    admins = {operation for operation, role in wanted.items() if role is Role.ADMIN}
    assert {operation.split()[1].split("/")[3] for operation in admins if operation.startswith("GET")} == {
        "tokens",
        "audit",
        "backup",
    }
    assert "PUT /api/v1/quota" in admins
    assert "POST /api/v1/nodes/x/drain" in admins


async def test_an_admin_may_ask_everything(people: People) -> None:
    for method, path in operations(await people.plane.document()):
        if path.endswith("/events"):
            continue
        reply = await people.admin.ask(method, path, {} if method in ("POST", "PUT") else None)
        assert reply.status not in (401, 403), (method, path, reply.body)


async def test_what_is_refused_for_a_role_names_it(people: People) -> None:
    reply = await people.viewer.ask("POST", JOBS, {"command": "true"})
    assert "role user" in reply.json["message"]
    assert "--role user" in reply.json["hint"]


async def test_the_document_says_which_role_each_operation_wants(people: People) -> None:
    document = await people.plane.document()
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert operation["security"] == ([] if path in OPEN else [{"token": []}]), (method, path)
            assert path in OPEN or "Least role: " in operation["description"]
            assert {"401", "403", "429"} <= operation["responses"].keys()


# -- what a body may say -------------------------------------------------------------------------------------------


async def test_a_job_that_names_no_tenant_is_of_the_tokens_and_runs_as_its_user(people: People) -> None:
    job = await people.anna.submit()
    shown = (await people.anna.get(f"{JOBS}/{job}")).json
    assert (shown["tenant"], shown["user"], shown["submitted_by"]) == ("red", "anna", "user:anna")
    task = (await people.bert.ask("POST", "/api/v1/tasks", {"priority": "low", "gpu_count": 1, "command": "x"})).json
    shown = (await people.bert.get(f"{JOBS}/{task['task_id']}")).json
    assert (shown["tenant"], shown["user"], shown["submitted_by"]) == ("blue", "bert", "user:bert")


async def test_an_admins_job_may_name_any_tenant_and_any_account(people: People) -> None:
    job = await people.admin.submit(tenant="blue", user="bert")
    shown = (await people.bert.get(f"{JOBS}/{job}")).json
    assert (shown["tenant"], shown["user"]) == ("blue", "bert")


async def test_a_job_may_name_a_tenant_beneath_the_tokens(people: People) -> None:
    job = await people.anna.submit(tenant="red-lab")
    assert (await people.anna.get(f"{JOBS}/{job}")).json["tenant"] == "red-lab"


@pytest.mark.parametrize("tenant", ["blue", "default"])
async def test_a_job_may_name_no_tenant_of_others(people: People, tenant: str) -> None:
    for body in ({"command": "true", "tenant": tenant}, {"command": "true", "tenant_id": tenant}):
        reply = await people.anna.ask("POST", JOBS, body)
        assert (reply.status, reply.json["code"]) == (403, "not_allowed")
    many = await people.anna.ask("POST", JOBS, {"jobs": [{"command": "true"}, {"command": "true", "tenant": tenant}]})
    assert (many.status, many.json["facts"]["index"]) == (403, 1)
    assert (await people.admin.get(JOBS)).json["total"] == 0


async def test_an_unknown_tenant_is_unknown_and_not_forbidden(people: People) -> None:
    reply = await people.anna.ask("POST", JOBS, {"command": "true", "tenant": "rad"})
    assert (reply.status, reply.json["code"]) == (422, "unknown_tenant")
    assert "red" in reply.json["hint"]


async def test_a_job_under_another_account_is_refused(people: People) -> None:
    for user in ("bert", "root"):
        reply = await people.anna.ask("POST", JOBS, {"command": "true", "user": user})
        assert (reply.status, reply.json["code"]) == (403, "user_not_yours")
    assert await people.anna.submit(user="anna")


PRIORITY_BODIES: tuple[dict[str, object], ...] = ({"priority": "urgent"}, {"priority": 1001}, {"priority": 1_000_000})


@pytest.mark.parametrize("body", PRIORITY_BODIES)
async def test_k5_without_a_tier_only_an_admin_asks_for_more_than_high(people: People, body: dict[str, object]) -> None:
    for sent in ({"command": "x", **body}, {"jobs": [{"command": "x"}, {"command": "x", **body}]}):
        reply = await people.anna.ask("POST", JOBS, sent)
        assert (reply.status, reply.json["code"]) == (403, "priority_above_tier")
        assert "1000" in reply.json["message"]
        assert reply.json["facts"]["priority_max"] == 1_000
    assert (await people.admin.get(JOBS)).json["total"] == 0
    assert await people.admin.submit(tenant="red", **body)
    await people.admin.ask("PUT", "/api/v1/tenants/red", {"priority_tier": "critical"})
    allowed = body["priority"] == "urgent" or body["priority"] == 1001
    assert (await people.anna.ask("POST", JOBS, {"command": "x", **body})).status == (201 if allowed else 403)
    assert (await people.bert.ask("POST", JOBS, {"command": "x", **body})).status == 403


async def test_k5_what_the_seeds_ask_for_is_still_taken(people: People) -> None:
    for priority in ("low", "normal", "high", 1_000, 1, -5):
        assert await people.anna.submit(priority=priority)
    for priority in ("high", "low"):
        task = {"priority": priority, "gpu_count": 1, "command": "x"}
        assert (await people.anna.ask("POST", "/api/v1/tasks", task)).status == 201


async def test_a_priority_that_is_not_named_is_that_of_the_tenant(people: People) -> None:
    job = await people.anna.submit()
    assert (await people.anna.get(f"{JOBS}/{job}")).json["priority"] == 500


async def test_an_idempotency_key_is_of_whoever_sent_it(people: People) -> None:
    headers, body = {"idempotency-key": "k"}, {"command": "true", "tenant": "red"}
    first = await people.anna.ask("POST", JOBS, body, headers)
    again = await people.anna.ask("POST", JOBS, body, headers)
    other = await people.admin.ask("POST", JOBS, body, headers)
    assert again.headers["idempotency-replayed"] == "true"
    assert first.json["id"] == again.json["id"] != other.json["id"]


async def test_a_repeat_by_the_same_user_of_another_tenant_shows_no_more_than_strangers_see(people: People) -> None:
    other_anna = await people.person(Role.USER, "blue", "anna")
    headers, body = {"idempotency-key": "k"}, {"command": "secret", "name": "secret"}
    first = await people.anna.ask("POST", JOBS, body, headers)
    again = await other_anna.ask("POST", JOBS, body, headers)
    assert again.json["id"] == first.json["id"]
    assert again.json["reduced"] is True
    assert b"secret" not in again.body


# -- at once -------------------------------------------------------------------------------------------------------


async def test_a_token_revoked_while_its_body_was_on_its_way_changes_nothing(people: People) -> None:
    sending, finish = asyncio.Event(), asyncio.Event()
    app, text = people.plane.app, people.anna.headers["authorization"]
    answered: list[Any] = []
    parts = iter([b'{"command":', b'"true"}'])

    async def receive() -> dict[str, Any]:
        part = next(parts)
        sending.set()
        if part.endswith(b"}"):
            await finish.wait()
        return {"type": "http.request", "body": part, "more_body": not part.endswith(b"}")}

    async def send(message: Any) -> None:  # noqa: ANN401  # an ASGI message
        answered.append(message)

    scope = scope_of("POST", JOBS, b"", {"host": "127.0.0.1", "authorization": text})
    asked = asyncio.ensure_future(app(scope, receive, send))
    await sending.wait()
    await people.anna.revoke()
    finish.set()
    await asked
    assert answered[0]["status"] == 401
    assert (await people.admin.get(JOBS)).json["total"] == 0


@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_an_open_event_stream_ends_at_once_when_its_token_does(
    people: People, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "LOOK_MAX_S", 0.02)
    person = await people.person(Role.USER, "red", lives_ms=HOUR_MS)
    stream = person.open("/api/v1/events")
    await people.plane.until(lambda: b": stoker" in stream.body)
    if how == "revoked":
        await person.revoke()
    else:
        pass_time(people, monkeypatch, HOUR_MS)
    async with asyncio.timeout(30):
        await stream.reading
    assert b"event: refused" in stream.body
    assert b"token_unknown" in stream.body
    assert person.text.encode() not in stream.body


async def test_nothing_is_heard_after_the_revocation(people: People) -> None:
    stream = people.anna.open("/api/v1/events")
    await people.plane.until(lambda: b": stoker" in stream.body)
    await people.anna.revoke()
    await people.admin.submit(tenant="red", name="later", user="anna")
    async with asyncio.timeout(30):
        await stream.reading
    assert b"later" not in stream.body


async def test_a_wait_for_output_ends_at_once_when_its_token_is_revoked(people: People) -> None:
    job = await people.anna.submit()
    waiting = people.anna.open(f"{JOBS}/{job}/logs?wait_s=30")
    await people.plane.until(lambda: True)
    await asyncio.wait({waiting.reading}, timeout=0.05)
    assert not waiting.reading.done()
    await people.anna.revoke()
    async with asyncio.timeout(30):
        await waiting.reading
    assert waiting.status == 401


async def test_output_that_is_followed_ends_at_once_when_its_token_is_revoked(people: People) -> None:
    agent = await people.plane.join("n")
    job = await people.anna.submit()
    await agent.run()
    serving = asyncio.ensure_future(agent.serve_log(b"written\n", ended=False))
    following = people.anna.open(f"{JOBS}/{job}/logs?follow=true")
    await people.plane.until(lambda: following.body == b"written\n")
    await people.anna.revoke()
    async with asyncio.timeout(30):
        await following.broken.wait()
    assert b"token_unknown" in following.body
    serving.cancel()
    following.close()


# -- pages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:9999", "file://"])
async def test_a_page_of_another_origin_is_refused_even_with_a_token(people: People, origin: str) -> None:
    reply = await people.anna.ask("POST", JOBS, {"command": "true"}, {"origin": origin})
    assert (reply.status, reply.json["code"]) == (403, "foreign_origin")
    assert (await people.admin.get(JOBS)).json["total"] == 0


async def test_where_tokens_are_wanted_it_may_be_asked_under_any_name(people: People) -> None:
    assert (await people.anna.ask("GET", JOBS, headers={"host": "stoker.example.org"})).status == 200


async def test_a_page_of_its_own_behind_a_proxy_with_tls_may_ask(people: People) -> None:
    headers = {"host": "stoker.example.org", "origin": "https://stoker.example.org"}
    assert (await people.anna.ask("GET", JOBS, headers=headers)).status == 200


# -- secrets -------------------------------------------------------------------------------------------------------


async def test_no_answer_log_line_or_meter_holds_a_token_or_its_digest(people: People) -> None:
    job = await people.anna.submit()
    targets = ["jobs", f"jobs/{job}", f"jobs/{job}/why", "tokens", "audit", "nodes", "tenants", "quota", "usage"]
    bodies = [(await people.admin.get(f"{API_PREFIX}/{target}")).body for target in targets]
    stream = people.admin.open("/api/v1/events?after=0")
    await people.plane.until(lambda: b"job_submitted" in stream.body)
    stream.close()
    wrong = Person(people.plane, people.anna.text + "x")
    bodies += [stream.body, (await people.viewer.get("/metrics")).body, (await wrong.get(JOBS)).body]
    log = people.plane.log_text()
    for person in (people.anna, people.admin, people.viewer):
        for secret in (person.text, person.text.split("_", 2)[2], digest_of(person.text)):
            assert not any(secret.encode() in body for body in bodies)
            assert secret not in log
    assert b"token_created" in stream.body


async def test_who_sees_which_tenants_is_the_same_one_by_one_and_all_at_once(people: People) -> None:
    control = people.plane.control
    state, known = control.committer.state, control.access
    for person in (people.anna, people.bert, people.guest, people.lead, people.agent, people.prometheus):
        caller = known.caller(person.headers["authorization"])
        seen = [name for name in state.tenants if access.reaches(state, caller, name)]
        assert access.Sights(state, caller).tenants() == frozenset(seen)
    for person in (people.viewer, people.admin):
        assert access.Sights(state, known.caller(person.headers["authorization"])).tenants() is None
