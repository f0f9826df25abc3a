"""Who told the cluster what, over REST: the rows, their filters and pages, and who may read them."""

from typing import Any

import pytest

from stoker.adapters.sqlite.history import SqliteHistory
from stoker.api.requests import audit_action_of
from stoker.brain.domain.audit import AuditQuery
from stoker.control.audit_actions import ACTIONS
from stoker.ports import HistoryFailed
from stoker.wire.endpoints import API_PREFIX
from stoker.wire.token import id_of
from tests.api.http.people import People, Person
from tests.api.http.plane import Plane
from tests.api.http.test_access import operations

AUDIT = f"{API_PREFIX}/audit"
JOBS = f"{API_PREFIX}/jobs"


async def rows(person: Person | Plane, query: str = "") -> list[dict[str, Any]]:
    """Newest first."""
    reply = await person.get(f"{AUDIT}?{query}")
    assert reply.status == 200, reply.json
    found: list[dict[str, Any]] = reply.json["rows"]
    return found


async def test_a_command_is_shown_at_once_with_who_when_and_what_came_of_it(people: People) -> None:
    job = await people.anna.submit()
    await people.anna.ask("DELETE", f"{JOBS}/{job}")
    cancelled, submitted = await rows(people.admin, "limit=2")
    assert (submitted["by"], submitted["action"], submitted["job"]) == ("user:anna", "submit", job)
    assert cancelled == {
        "id": cancelled["id"],
        "at": cancelled["at"],
        "by": "user:anna",
        "action": "cancel",
        "outcome": "ok",
        "job": job,
        "last_job": None,
        "count": 1,
        "tenant": "red",
        "target": None,
        "details": "",
        "times": 1,
    }


@pytest.mark.parametrize("who", ["anna", "viewer", "guest", "agent"])
async def test_only_admins_read_the_trail_and_whoever_else_tries_is_in_it(people: People, who: str) -> None:
    person: Person = getattr(people, who)
    reply = await person.get(AUDIT)
    assert (reply.status, reply.json["code"]) == (403, "not_allowed")
    (row, *_) = await rows(people.admin)
    principal = "user:anna" if who == "anna" else f"token:{id_of(person.text)}"
    assert (row["by"], row["action"], row["outcome"], row["target"]) == (principal, "read", "not_allowed", "/audit")


async def test_whoever_would_touch_a_job_of_another_tenant_is_in_the_trail(people: People) -> None:
    job = await people.anna.submit()
    for method, tail in (("DELETE", ""), ("POST", "/hold"), ("GET", "/logs"), ("GET", "/why"), ("GET", "/events")):
        assert (await people.bert.ask(method, f"{JOBS}/{job}{tail}")).status == 403
    denied = await rows(people.admin, "outcome=not_allowed")
    assert [row["action"] for row in denied] == ["read_events", "read_why", "read_logs", "hold", "cancel"]
    assert {(row["by"], row["job"], row["tenant"]) for row in denied} == {("user:bert", job, "red")}


async def test_a_job_under_another_account_is_refused_once_in_the_trail(people: People) -> None:
    await people.anna.ask("POST", JOBS, {"command": "true", "user": "root"})
    (row,) = await rows(people.admin, "outcome=user_not_yours")
    assert (row["by"], row["action"]) == ("user:anna", "submit")


async def test_what_the_brain_refuses_is_in_the_trail_once(people: People) -> None:
    await people.anna.ask("DELETE", f"{JOBS}/999")
    assert [row["outcome"] for row in await rows(people.admin, "action=cancel")] == ["job_unknown"]


async def test_wrong_tokens_are_counted_in_one_row(people: People) -> None:
    for _ in range(20):
        await people.nobody.get(JOBS)
        await Person(people.plane, people.anna.text[:-1] + "~").get(JOBS)
    found = await rows(people.admin, "by=nobody")
    assert sum(row["times"] for row in found) == 40
    assert len(found) <= 4  # two codes, and a minute may have turned


async def test_a_page_of_another_origin_is_counted(plane: Plane) -> None:
    reply = await plane.ask("POST", JOBS, {"command": "true"}, {"origin": "https://evil.example"})
    assert reply.status == 403
    (row,) = await rows(plane, "outcome=foreign_origin")
    assert (row["by"], row["times"]) == ("nobody", 1)


async def test_filters_narrow_it_down_together(people: People) -> None:
    one, other = await people.anna.submit(), await people.bert.submit()
    await people.anna.ask("DELETE", f"{JOBS}/{one}")
    assert [row["job"] for row in await rows(people.admin, "by=user:anna&action=submit")] == [one]
    assert [row["job"] for row in await rows(people.admin, "tenant=blue&action=submit")] == [other]
    assert [row["action"] for row in await rows(people.admin, f"job={one}")] == ["cancel", "submit"]
    assert await rows(people.admin, "until=1d") == []
    assert len(await rows(people.admin, "since=1h&action=submit")) == 2
    assert await rows(people.admin, f"job={one}&outcome=refused") == []


async def test_orders_to_members_are_found_under_array_and_member(people: People) -> None:
    array = await people.anna.submit(array="0-9")
    await people.anna.ask("POST", f"{JOBS}/{array}_[2-4]/hold")
    await people.anna.ask("DELETE", f"{JOBS}/{array}_7")
    asked = {text: [row["job"] for row in await rows(people.admin, f"job={text}")] for text in (array, f"{array}_3")}
    assert asked == {
        array: [f"{array}_7", f"{array}_[2-4]", array],
        f"{array}_3": [f"{array}_[2-4]", array],
    }
    bare = str(int(array) + 1 + 7)
    assert [row["job"] for row in await rows(people.admin, f"job={bare}")] == [f"{array}_7", array]


async def test_jobs_submitted_together_are_one_row_which_each_of_them_is_found_by(people: People) -> None:
    reply = await people.anna.ask("POST", JOBS, {"jobs": [{"command": "true"}] * 5})
    ids = [job["id"] for job in reply.json["jobs"]]
    for job in ids:
        (row,) = await rows(people.admin, f"job={job}")
        assert (row["job"], row["last_job"], row["count"]) == (ids[0], ids[-1], 5)


async def test_pages_go_back_in_time_without_gap_or_repetition(people: People) -> None:
    for _ in range(7):
        await people.anna.submit()
    whole = await rows(people.admin, "by=user:anna")
    paged: list[dict[str, Any]] = []
    after = ""
    while True:
        page = (await people.admin.get(f"{AUDIT}?by=user:anna&limit=3&after={after}")).json
        paged += page["rows"]
        if page["next"] is None:
            break
        after = page["next"]
        await people.anna.submit()  # what comes meanwhile is no page of ours
    assert [row["id"] for row in paged] == [row["id"] for row in whole]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("outcome=refusd", "unknown_outcome"),
        ("action=cancle", "unknown_action"),
        ("action=%00", "unknown_action"),
        ("tenant=defualt", "unknown_tenant"),
        ("after=x", "bad_parameter"),
        ("after=-1", "bad_parameter"),
        ("after=99999999999999999999", "bad_parameter"),
        ("limit=0", "bad_parameter"),
        ("since=yesterday", "bad_moment"),
        ("until=32d17x", "bad_moment"),
        ("job=x", "bad_job_id"),
        ("job=1_[0-3]", "several_jobs"),
        ("job=1_[3-0]", "bad_array"),
        ("who=anna", "unknown_parameter"),
    ],
)
async def test_a_query_that_means_nothing_is_refused_with_a_hint(plane: Plane, query: str, code: str) -> None:
    reply = await plane.get(f"{AUDIT}?{query}")
    assert (reply.status // 100, reply.json["code"]) == (4, code)
    assert reply.json["hint"]


@pytest.mark.parametrize("field", ["outcome", "action"])
async def test_a_refused_query_names_what_was_asked_for_to_programs_and_cuts_it_short(plane: Plane, field: str) -> None:
    reply = await plane.get(f"{AUDIT}?{field}={'x' * 100}")
    assert (reply.json["code"], reply.json["facts"]) == (f"unknown_{field}", {"got": "x" * 80})


async def test_the_secret_of_a_token_that_is_typed_in_the_place_of_its_id_is_not_kept(people: People) -> None:
    await people.admin.ask("DELETE", f"{API_PREFIX}/tokens/{people.anna.text}")
    await people.bert.ask("DELETE", f"{API_PREFIX}/tokens/{people.anna.text}")
    refused = await rows(people.admin, "outcome=refused&action=token_revoke")
    assert [row["target"] for row in refused] == [f"stoker_{id_of(people.anna.text)}_..."] * 2
    # Behind the id; letters of a secret may be `_` too.
    secret = people.anna.text.removeprefix(f"stoker_{id_of(people.anna.text)}_")[-20:]
    assert len(secret) == 20
    kept = await people.plane.control.history.audit(AuditQuery(), 0, 1_000)
    assert not any(secret in str(row) for row in kept)


async def test_a_history_that_cannot_be_read_is_told_as_that(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise HistoryFailed("disk I/O error")

    monkeypatch.setattr(SqliteHistory, "audit", broken)
    job = await people.anna.submit()
    for target in (AUDIT, f"{JOBS}/{job}/events"):
        reply = await people.admin.get(target)
        assert (reply.status, reply.json["code"]) == (503, "history_unavailable")


async def test_every_route_that_changes_something_has_an_action_of_the_trail(plane: Plane) -> None:
    """But for a promotion by force: what that leads to, an epoch and ids left out, is told under its principal."""
    operated = operations(await plane.document())
    changes = [(method, path) for method, path in operated if method != "GET" and not path.endswith("/promote")]
    actions = {f"{method} {path}": audit_action_of(method, path).action for method, path in changes}
    assert len(changes) > 15
    assert {name: action for name, action in actions.items() if action not in ACTIONS.values()} == {}
    attach, sign_in = audit_action_of("GET", "/api/v1/jobs/7/attach"), "sign_in"  # the latter of `web`
    by_others = {"node_join", attach.action, sign_in}
    assert sorted({*actions.values(), *by_others}) == sorted(ACTIONS.values())
