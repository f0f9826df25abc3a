"""REST for tenants: the MVP's own bytes, limits that are none and never zero, changes of only what they say."""

import pytest

from stoker.brain.domain.access import Role
from tests.api.http.plane import Plane
from tests.api.http.tokens import token_of

TENANTS, JOBS = "/api/v1/tenants", "/api/v1/jobs"
MVP = (
    b'{"name":"ml-team","email":"ml@example.org","organization":"Lab","max_gpus":10,"max_gpu_memory_mb":640000,'
    b'"max_cpu_cores":64,"max_memory_mb":256000,"max_concurrent_jobs":5,"priority_tier":"high"}'
)
LIMITS = (
    *("max_gpus", "max_gpu_memory_mb", "max_cpu_cores", "max_memory_mb", "max_concurrent_jobs", "max_pending_jobs"),
    *("max_runtime_minutes", "max_runtime_ms"),
)


async def make(plane: Plane, name: str, **fields: object) -> None:
    reply = await plane.ask("POST", TENANTS, {"name": name, **fields})
    assert reply.status == 201, reply.json


async def test_the_mvps_own_bytes_make_a_tenant_that_is_shown_by_its_names(plane: Plane) -> None:
    made = await plane.ask("POST", TENANTS, MVP)
    assert made.status == 201
    assert (made.json["id"], made.json["tenant_id"], made.json["name"]) == ("ml-team",) * 3
    assert [made.json[name] for name in LIMITS[:5]] == [10, 640_000, 64, 256_000, 5]
    assert (made.json["email"], made.json["organization"]) == ("ml@example.org", "Lab")
    assert (made.json["priority_tier"], made.json["priority_default"], made.json["priority_max"]) == (
        "high",
        1000,
        1000,
    )
    assert (await plane.get(f"{TENANTS}/ml-team")).json == made.json
    assert [each["name"] for each in (await plane.get(TENANTS)).json["tenants"]] == ["default", "ml-team"]


@pytest.mark.parametrize("body", [{}, dict.fromkeys((*LIMITS[:7], "max_time"))])
async def test_a_limit_that_is_left_out_or_null_is_none_and_never_zero(plane: Plane, body: dict[str, None]) -> None:
    """The MVP's command line left out GPU memory and jobs, its server took zero, and every job was refused."""
    await plane.join("n")
    if "max_time" in body:
        del body["max_runtime_minutes"]
    await make(plane, "ml", **body)
    shown = (await plane.get(f"{TENANTS}/ml")).json
    assert [shown[name] for name in LIMITS] == [None] * len(LIMITS)
    reply = await plane.ask("POST", JOBS, {"tenant_id": "ml", "command": "x", "gpu_count": 4, "gpu_memory_mb": 16_000})
    assert reply.status == 201


async def test_the_default_tenant_is_there_before_anybody_makes_one(plane: Plane) -> None:
    """The MVP's answered 500 for it."""
    shown = (await plane.get(f"{TENANTS}/default")).json
    assert (shown["name"], shown["max_gpus"], shown["priority_default"], shown["priority_max"]) == (
        *("default", None),
        *(500, None),
    )
    refused = await plane.ask("DELETE", f"{TENANTS}/default")
    assert (refused.status, refused.json["code"]) == (409, "tenant_in_use")


async def test_a_change_changes_only_what_it_says_and_null_takes_a_limit_off(plane: Plane) -> None:
    await plane.ask("POST", TENANTS, MVP)
    before = (await plane.get(f"{TENANTS}/ml-team")).json
    after = (await plane.ask("PUT", f"{TENANTS}/ml-team", {"max_gpus": 12, "comment": "larger"})).json
    assert after == {**before, "max_gpus": 12, "limit_gpus": 12, "comment": "larger"}
    change = {"max_gpus": None, "priority_tier": None, "max_time": "2d", "lend": False}
    again = (await plane.ask("PUT", f"{TENANTS}/ml-team", change)).json
    off = {"max_gpus": None, "limit_gpus": None, "priority_tier": None, "priority_default": 500, "priority_max": None}
    assert again == {**after, **off, "max_runtime_minutes": 2_880, "max_runtime_ms": 172_800_000, "lend": False}


async def test_what_a_tenant_uses_holds_all_that_is_used_beneath_it_and_goes_back_once(plane: Plane) -> None:
    """Quota leaked in the MVP, where only a start and a cancel counted, and dgpu gave it back at each repeat."""
    agent = await plane.join("n")
    await make(plane, "org", guaranteed_gpus=1)
    await make(plane, "team", parent="org", max_gpus=3)
    job = {"tenant": "team", "command": "x", "gpu_count": 2, "gpu_memory_mb": 1_000, "cpus": 3, "memory_mb": 500}
    await plane.ask("POST", JOBS, job)
    start = await agent.run()
    await plane.ask("POST", JOBS, job)
    org, team = [(await plane.get(f"{TENANTS}/{name}")).json for name in ("org", "team")]
    used = {"gpus": 2, "gpu_memory_mb": 2_000, "cpu_cores": 3, "memory_mb": 500, "jobs": 1}
    assert org["used"] == team["used"] == used
    assert (org["pending_jobs"], team["pending_jobs"]) == (1, 1)
    assert (org["borrowed_gpus"], team["borrowed_gpus"], team["limit_gpus"], team["path"]) == (1, 2, 3, "org/team")
    assert (await plane.get(f"{TENANTS}/default")).json["used"]["gpus"] == 0
    await agent.end(start)
    for _ in range(3):  # repeated, as until it is acknowledged
        await agent.end(start)
    second = await agent.run()
    assert (await plane.get(f"{TENANTS}/org")).json["used"] == used
    await agent.end(second)
    for name in ("org", "team"):
        shown = (await plane.get(f"{TENANTS}/{name}")).json
        assert (set(shown["used"].values()), shown["pending_jobs"]) == ({0}, 0)


async def test_jobs_that_wait_use_nothing_and_start_only_as_far_as_the_limit_goes(plane: Plane) -> None:
    """The MVP counted none of what was queued, and started it all."""
    agent = await plane.join("n")
    await make(plane, "ml", max_gpus=2)
    await plane.ask("POST", JOBS, {"jobs": [{"tenant": "ml", "command": "x", "gpu_count": 1}] * 4})
    starts = [await agent.run(), await agent.run()]
    shown = (await plane.get(f"{TENANTS}/ml")).json
    assert (shown["used"]["gpus"], shown["pending_jobs"]) == (2, 2)
    why = (await plane.get(f"{JOBS}/4/why")).json
    assert (why["code"], why["facts"]["limit"], why["facts"]["tenant"]) == ("tenant_limit", 2, "ml")
    await agent.end(starts[0])
    assert (await agent.run()).key.job == 3


async def test_the_list_shows_each_tenant_followed_by_those_beneath_it(plane: Plane) -> None:
    for name, parent in (("b", None), ("a", None), ("z", "a"), ("y", "z"), ("c", "a")):
        await make(plane, name, parent=parent)
    found = (await plane.get(TENANTS)).json
    assert [each["path"] for each in found["tenants"]] == ["a", "a/c", "a/z", "a/z/y", "b", "default"]
    assert found["total"] == 6


async def test_a_tenant_that_something_names_is_not_deleted_and_nothing_of_it_is_lost(plane: Plane) -> None:
    await make(plane, "org")
    await make(plane, "team", parent="org")
    reply = await plane.ask("POST", JOBS, {"tenant": "team", "command": "x", "hold": True})
    for name, said in (("org", "team"), ("team", "job 1")):
        refused = await plane.ask("DELETE", f"{TENANTS}/{name}")
        assert (refused.status, refused.json["code"]) == (409, "tenant_in_use")
        assert said in refused.json["message"]
    await plane.ask("DELETE", f"{JOBS}/{reply.json['id']}")
    was = (await plane.get(f"{TENANTS}/team")).json
    gone = await plane.ask("DELETE", f"{TENANTS}/team")
    assert (gone.status, gone.json) == (200, was)
    assert (await plane.ask("DELETE", f"{TENANTS}/org")).status == 200
    assert (await plane.get(f"{TENANTS}/team")).status == 404


BAD = (
    ("POST", "", {"name": "a b"}, 400, "bad_tenant_name"),
    ("POST", "", {"name": ""}, 400, "bad_tenant_name"),
    ("POST", "", {"name": "org"}, 409, "tenant_exists"),
    ("POST", "", {"name": "x", "parent": "nope"}, 422, "unknown_tenant"),
    ("POST", "", {"name": "x", "max_gpus": -1}, 400, "bad_field"),
    ("POST", "", {"name": "x", "max_gpus": 1.5}, 400, "bad_field"),
    ("POST", "", {"name": "x", "max_gpus": True}, 400, "bad_field"),
    ("POST", "", {"name": "x", "max_gpus": "10"}, 400, "bad_field"),
    ("POST", "", {"name": "x", "max_gpus": 2**60}, 400, "bad_field"),
    ("POST", "", {"name": "x", "maxgpus": 1}, 400, "unknown_field"),
    ("POST", "", {"max_gpus": 1}, 400, "missing_field"),
    ("POST", "", {"name": "x", "priority_tier": "urgent"}, 400, "bad_field"),
    ("POST", "", {"name": "x", "max_time": "25:99"}, 400, "bad_time"),
    ("POST", "", {"name": "x", "max_time": 0}, 400, "bad_field"),
    ("POST", "", {"name": "x", "max_runtime_minutes": 0}, 400, "bad_field"),
    ("POST", "", {"name": "x", "max_time": "1h", "max_runtime_minutes": 60}, 400, "conflicting_fields"),
    ("POST", "", {"name": "x", "guaranteed_gpus": 3, "max_gpus": 2}, 422, "guarantee_above_limit"),
    ("POST", "", {"name": "x", "guaranteed_gpus": 3, "parent": "org"}, 422, "guarantees_exceed_parent"),
    ("POST", "", {"name": "x", "weight": 0}, 400, "out_of_range"),
    ("POST", "", {"name": "x", "weight": 1_001}, 400, "out_of_range"),
    ("POST", "", {"name": "x", "weight": -1}, 400, "bad_field"),
    ("POST", "", {"name": "x", "weight": 1.5}, 400, "bad_field"),
    ("PUT", "/team", {"weight": 0}, 400, "out_of_range"),
    ("POST", "", {"name": "x", "parent": "x"}, 422, "unknown_tenant"),
    ("PUT", "/org", {"parent": "org"}, 409, "tenant_place"),
    ("POST", "", {"name": "x", "comment": "x" * 5_000}, 413, "text_too_long"),
    ("POST", "", b"{", 400, "bad_json"),
    ("PUT", "/nope", {"max_gpus": 1}, 404, "tenant_unknown"),
    ("PUT", "/org", {"guaranteed_gpus": 1}, 422, "guarantees_exceed_parent"),
    ("PUT", "/org", {"parent": "team"}, 409, "tenant_place"),
    ("PUT", "/org", {"name": "other"}, 400, "unknown_field"),
    ("GET", "/nope", None, 404, "tenant_unknown"),
    ("DELETE", "/nope", None, 404, "tenant_unknown"),
)
"""Method, path, body, status and code."""


async def test_bad_input_is_one_refusal_with_a_hint_and_changes_nothing(plane: Plane) -> None:
    await make(plane, "org", guaranteed_gpus=2)
    await make(plane, "team", parent="org", guaranteed_gpus=2)
    before = (await plane.get(TENANTS)).json
    for method, path, body, status, code in BAD:
        reply = await plane.ask(method, f"{TENANTS}{path}", body)
        assert (reply.status, reply.json["code"]) == (status, code), (method, path, body, reply.json)
        assert reply.json["hint"], body
    assert (await plane.get(TENANTS)).json == before


async def test_everybody_reads_tenants_and_only_admins_change_them(plane: Plane) -> None:
    await make(plane, "ml")
    admin = await token_of(plane, Role.ADMIN)
    for headers in (await token_of(plane, Role.VIEWER), await token_of(plane, Role.USER, "ml")):
        assert (await plane.ask("GET", TENANTS, headers=headers)).json["total"] == 2
        for method, path, body in (
            ("POST", TENANTS, {"name": "mine"}),
            ("PUT", f"{TENANTS}/ml", {"max_gpus": None}),
            ("DELETE", f"{TENANTS}/ml", None),
        ):
            refused = await plane.ask(method, path, body, headers)
            assert (refused.status, refused.json["code"]) == (403, "not_allowed")
    assert (await plane.ask("PUT", f"{TENANTS}/ml", {"max_gpus": 1}, admin)).json["max_gpus"] == 1


async def test_a_question_that_takes_no_parameter_says_so(plane: Plane) -> None:
    reply = await plane.get(f"{TENANTS}?limit=1")
    assert (reply.status, reply.json["code"]) == (400, "unknown_parameter")
    assert reply.json["hint"] == "no parameter is taken here: leave it out"


async def test_a_name_in_a_change_is_not_taken_for_a_misspelt_time(plane: Plane) -> None:
    await make(plane, "a")
    reply = await plane.ask("PUT", f"{TENANTS}/a", {"name": "b"})
    assert (reply.status, reply.json["code"]) == (400, "unknown_field")
    assert reply.json["hint"].startswith("known are: ")
