"""REST for usage, and what lists and single jobs answer about jobs that the state has forgotten."""

from pathlib import Path

import pytest

from stoker.brain.domain.access import Role
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import PolicySettings
from tests.api.http.people import People
from tests.api.http.plane import Agent, Plane, plane_in
from tests.api.http.tokens import token_of

USAGE = "/api/v1/usage"
JOBS = "/api/v1/jobs"
FORGETFUL = ControlSettings(policy=PolicySettings(ended_jobs_max=1))


async def run_one(plane: Plane, agent: Agent, **fields: object) -> str:
    reply = await plane.ask("POST", JOBS, {"command": "true", "gpu_count": 1, **fields})
    start = await agent.run()
    await agent.end(start)
    return str(reply.json["id"])


async def test_a_report_has_lines_a_total_and_the_cluster_in_whole_milliseconds(plane: Plane) -> None:
    agent = await plane.join("n")
    job = await run_one(plane, agent, gpu_count=2)
    await plane.ask("POST", JOBS, {"command": "true", "gpu_count": 1})
    await agent.run()
    found = (await plane.get(f"{USAGE}?by=job")).json
    assert {line["key"] for line in found["lines"]} == {job, "2"}
    assert found["total"]["gpu_ms"] == sum(line["gpu_ms"] for line in found["lines"]) > 0
    assert found["total"]["jobs"] == 2
    cluster = found["cluster"]
    assert cluster["allocated_gpu_ms"] + cluster["idle_gpu_ms"] == cluster["capacity_gpu_ms"]
    assert 0 < cluster["used_percent"] <= 100
    assert (found["by"], found["more"]) == ("job", False)
    assert found["from"] < found["to"]


async def test_nothing_used_of_nothing_is_no_share_and_no_error(plane: Plane) -> None:
    found = (await plane.get(USAGE)).json
    assert (found["lines"], found["cluster"]["used_percent"], found["by"]) == ([], None, "tenant")


@pytest.mark.parametrize(
    ("query", "code", "said"),
    [
        ("from=soon", "bad_moment", "soon"),
        ("to=25:99", "bad_moment", "25:99"),
        ("from=1h&to=2h", "bad_moment", "isn't before"),
        ("from=2999-01-01", "bad_moment", "isn't before"),
        ("from=now", "bad_moment", "isn't before"),
        ("by=gpu", "bad_parameter", "tenant, user, job, node"),
        ("frm=1h", "unknown_parameter", "frm"),
        ("from=1h&from=2h", "bad_parameter", "twice"),
    ],
)
async def test_bad_input_is_one_clear_refusal(plane: Plane, query: str, code: str, said: str) -> None:
    reply = await plane.get(f"{USAGE}?{query}")
    assert (reply.status, reply.json["code"]) == (400, code)
    assert said in reply.json["message"]
    assert reply.json["hint"]


@pytest.mark.parametrize("tree", ["", "&tree=true"])
async def test_the_use_of_a_tenant_that_never_was_is_no_empty_report(plane: Plane, tree: str) -> None:
    reply = await plane.get(f"{USAGE}?tenant=defualt{tree}")
    assert (reply.status, reply.json["code"]) == (422, "unknown_tenant")
    assert "`default`" in reply.json["hint"]
    assert (await plane.get(f"{USAGE}?tenant=default{tree}")).json["lines"] == []


async def test_an_end_in_the_future_means_now(plane: Plane) -> None:
    now = plane.control.clock.now()
    found = (await plane.get(f"{USAGE}?to=2999-01-01")).json
    assert found["to"] < "2999"
    assert plane.control.clock.now() - now < 60_000


async def test_a_job_that_was_forgotten_is_shown_as_it_was_and_says_why_it_ended(tmp_path: Path) -> None:
    async with plane_in(tmp_path, FORGETFUL) as plane:
        agent = await plane.join("n")
        first = await run_one(plane, agent)
        shown = (await plane.get(f"{JOBS}/{first}")).json
        for _ in range(3):
            await run_one(plane, agent)
        await plane.until(lambda: len(plane.control.committer.state.jobs) == 1)
        assert (await plane.get(f"{JOBS}/{first}")).json == shown
        assert (await plane.get(f"{JOBS}/{first}/why")).json["code"] == "exited"
        assert (await plane.get(f"/api/v1/tasks/{first}")).json["status"] == "success"
        rows = (await plane.get(f"{JOBS}?limit=2")).json
        assert [job["id"] for job in rows["jobs"]] == ["4", "3"]
        more = (await plane.get(f"{JOBS}?limit=2&full=true&after={rows['next']}")).json
        assert [job["id"] for job in more["jobs"]] == ["2", "1"]
        assert more["jobs"][1] == shown
        assert more["next"] is None
        assert len((await plane.get("/api/v1/tasks?status=success")).json["tasks"]) == 4
        assert (await plane.get(f"{JOBS}/99")).json["code"] == "job_unknown"
        refused = await plane.ask("DELETE", f"{JOBS}/{first}")
        assert (refused.status, refused.json["code"]) == (404, "job_forgotten")


async def test_members_of_an_array_that_was_forgotten_are_shown_records_or_not(tmp_path: Path) -> None:
    async with plane_in(tmp_path, FORGETFUL) as plane:
        agent = await plane.join("n")
        await plane.ask("POST", JOBS, {"command": "true", "gpu_count": 4, "array": "0-2"})
        start = await agent.run()
        await plane.ask("DELETE", f"{JOBS}/1_[1-2]")
        await agent.end(start)
        await plane.until(lambda: plane.control.committer.state.jobs[start.key.job - 1].is_final)
        for _ in range(3):
            await run_one(plane, agent)
        await plane.until(lambda: len(plane.control.committer.state.jobs) == 1)
        shown = [(await plane.get(f"{JOBS}/{name}")).json for name in ("1", "1_0", "1_1", "1_2")]
        assert [job["state"] for job in shown] == ["cancelled", "succeeded", "cancelled", "cancelled"]
        members = {name: count for name, count in shown[0]["members"].items() if count}
        assert members == {"total": 3, "succeeded": 1, "cancelled": 2}
        assert [job["id"] for job in shown] == ["1", "1_0", "1_1", "1_2"]
        assert (await plane.get(f"{JOBS}/1_7")).status == 404
        rows = (await plane.get(f"{JOBS}?members=true&state=cancelled")).json
        assert [job["id"] for job in rows["jobs"]] == ["1_2", "1_1"]
        usage = (await plane.get(f"{USAGE}?by=job")).json
        assert {line["key"]: line["jobs"] for line in usage["lines"]}["1"] == 1


async def test_lists_are_narrowed_by_time_and_refuse_what_is_none(plane: Plane) -> None:
    await plane.ask("POST", JOBS, {"command": "true", "hold": True})
    assert (await plane.get(f"{JOBS}?since=1h")).json["total"] == 1
    assert (await plane.get(f"{JOBS}?until=1h")).json["total"] == 0
    for query in ("since=soon", "until=25:99"):
        refused = await plane.get(f"{JOBS}?{query}")
        assert (refused.status, refused.json["code"]) == (400, "bad_moment")
    assert (await plane.get(f"{JOBS}?members=maybe")).json["code"] == "bad_parameter"


async def run_in_tree(plane: Plane) -> None:
    """One job in each of three tenants, of 1, 2 and 1 GPUs."""
    agent = await plane.join("n")
    for name, parent in (("org", None), ("vision", "org"), ("other", None)):
        await plane.ask("POST", "/api/v1/tenants", {"name": name, "parent": parent})
    for tenant, gpus in (("org", 1), ("vision", 2), ("other", 1)):
        await run_one(plane, agent, tenant=tenant, gpu_count=gpus)


async def test_a_tree_sums_each_tenant_up_with_all_beneath_it_and_tells_its_own_part(plane: Plane) -> None:
    await run_in_tree(plane)
    flat = {line["key"]: line["gpu_ms"] for line in (await plane.get(USAGE)).json["lines"]}
    found = (await plane.get(f"{USAGE}?by=tenant&tree=true")).json
    lines = {line["path"]: line for line in found["lines"]}
    assert set(lines) == {"org", "org/vision", "other"}
    assert lines["org"]["gpu_ms"] == flat["org"] + flat["vision"]
    assert (lines["org"]["own"]["gpu_ms"], lines["org"]["jobs"], lines["org"]["own"]["jobs"]) == (flat["org"], 2, 1)
    assert lines["org/vision"]["gpu_ms"] == lines["org/vision"]["own"]["gpu_ms"] == flat["vision"]
    paths = [line["path"] for line in found["lines"]]
    assert paths.index("org/vision") == paths.index("org") + 1
    assert found["total"]["gpu_ms"] == sum(flat.values()) == lines["org"]["gpu_ms"] + lines["other"]["gpu_ms"]
    below = (await plane.get(f"{USAGE}?tree=true&tenant=org")).json
    assert [line["path"] for line in below["lines"]] == ["org", "org/vision"]
    assert below["total"]["gpu_ms"] == lines["org"]["gpu_ms"]


async def test_only_tenants_form_a_tree(plane: Plane) -> None:
    refused = await plane.get(f"{USAGE}?by=user&tree=true")
    assert (refused.status, refused.json["code"]) == (400, "bad_parameter")
    assert "only tenants" in refused.json["message"]


async def test_a_token_bound_to_a_tenant_sees_what_that_one_and_those_beneath_it_used(plane: Plane) -> None:
    """No sum of one above it either, which would tell what the others there used."""
    await run_in_tree(plane)
    whole = {line["key"]: line["gpu_ms"] for line in (await plane.get(f"{USAGE}?tree=true")).json["lines"]}
    for role in (Role.VIEWER, Role.USER):
        org, vision = await token_of(plane, role, "org"), await token_of(plane, role, "vision")
        for query, headers, keys in (
            ("", org, {"org", "vision"}),
            ("?tree=true", org, {"org", "vision"}),
            ("?by=job", org, {"1", "2"}),
            ("?by=node", org, {"n"}),
            ("", vision, {"vision"}),
            ("?tree=true", vision, {"vision"}),
            ("?tenant=vision", org, {"vision"}),
        ):
            found = (await plane.ask("GET", USAGE + query, headers=headers)).json
            assert {line["key"] for line in found["lines"]} == keys, (role, query)
            expected = whole["vision"] if keys == {"vision"} else whole["org"]
            assert found["total"]["gpu_ms"] == expected, (role, query)
        for query in ("?tenant=other", "?tenant=org&tree=true", "?tenant=nope"):
            refused = await plane.ask("GET", USAGE + query, headers=vision)
            assert (refused.status, refused.json["code"]) == (403, "not_allowed"), query
    everybody = await plane.ask("GET", USAGE, headers=await token_of(plane, Role.VIEWER))
    assert len(everybody.json["lines"]) == 3


async def test_shares_tell_of_each_tenant_what_it_is_entitled_to_and_who_is_next(plane: Plane) -> None:
    for name, weight in (("lab", 1), ("club", 3)):
        await plane.ask("POST", "/api/v1/tenants", {"name": name, "weight": weight})
        await plane.ask("POST", JOBS, {"command": "true", "gpu_count": 1, "tenant_id": name})
    assert (await plane.get(USAGE)).json["shares"] is None
    found = (await plane.get(f"{USAGE}?shares=true")).json["shares"]
    assert [(line["tenant"], line["weight"], line["entitled_percent"]) for line in found["lines"]] == [
        ("club", 3, 75.0),
        ("default", 1, 20.0),
        ("lab", 1, 25.0),
    ]
    assert [line["fair_share"] for line in found["lines"]] == [99, None, 99]
    assert (found["points"], found["half_life_s"], found["more"]) == (99, 7 * 86_400, False)
    assert (found["next"]["job_id"], found["next"]["tenant"], found["next"]["priority"]["effective"]) == (
        "1",
        "lab",
        599,
    )
    assert "used equally much for their weight" in found["message"]


async def test_shares_are_those_of_the_tree_that_is_asked_for(plane: Plane) -> None:
    await plane.ask("POST", "/api/v1/tenants", {"name": "lab"})
    await plane.ask("POST", "/api/v1/tenants", {"name": "team", "parent": "lab"})
    found = (await plane.get(f"{USAGE}?shares=true&tenant=lab")).json["shares"]
    assert [line["path"] for line in found["lines"]] == ["lab", "lab/team"]
    assert (found["next"], found["message"]) == (None, "nothing waits")


async def test_a_person_sees_the_shares_of_their_own_tenant_and_those_beneath_it(people: People) -> None:
    await people.bert.submit(gpu_count=1)
    found = (await people.anna.get(f"{USAGE}?shares=true")).json["shares"]
    assert {line["tenant"] for line in found["lines"]} == {"red", "red-lab"}
    assert found["next"] is None, "it is nobody's business here"
