"""What of a job do people of other tenants see, and what can they do to it?"""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stoker.brain.domain.access import Role
from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.node import OrphanTask
from stoker.brain.state.events.access import TokenCreated
from stoker.brain.state.events.job import JobHeld, JobsEligible, JobsPruned, JobSubmitted
from stoker.brain.state.events.node import NodeRegistered, OrphanTasksFound
from stoker.brain.state.events.tenant import TenantDefined
from stoker.brain.state.events.union import Event
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import PolicySettings
from stoker.wire.endpoints import API_PREFIX
from tests.api.http.people import People, Person, heard_by, people_in
from tests.api.http.plane import Agent

JOBS, TASKS = f"{API_PREFIX}/jobs", f"{API_PREFIX}/tasks"
SECRET = "s3cret"
BODY: dict[str, Any] = {
    "name": f"name-{SECRET}",
    "command": ["python", SECRET],
    "env": {"KEY": SECRET},
    "workdir": f"/home/{SECRET}",
    "comment": SECRET,
    "output": f"/out/{SECRET}",
    "error": f"/err/{SECRET}",
    "where": f"zone!={SECRET}",
    "tolerate": [SECRET],
    "gpu_count": 1,
    "retries": 3,
    "time_limit": 60,
    "memory_mb": 7_919,
}
ORDERS = [("DELETE", ""), ("POST", "/hold"), ("POST", "/release"), ("POST", "/requeue"), ("POST", "/signal")]


@pytest.fixture
async def node(people: People) -> Agent:
    return await people.plane.join("node-7")


@pytest.fixture
async def job(people: People, node: Agent) -> str:
    """Anna's, running."""
    job = await people.anna.submit(**BODY)
    await node.run()
    return job


async def reduced_alone(person: Person, job: str) -> dict[str, Any]:
    return dict((await person.get(f"{JOBS}/{job}")).json)


async def test_a_stranger_sees_that_a_job_is_there_and_what_it_takes(people: People, job: str) -> None:
    shown = await reduced_alone(people.bert, job)
    told = {name: value for name, value in shown.items() if value not in ("", None, 0, [], {}, False)}
    assert told.pop("submitted_at")
    assert told.pop("started_at")
    assert told == {
        "id": job,
        "job_id": job,
        "tenant": "red",
        "tenant_id": "red",
        "state": "running",
        "priority": 500,
        "class": "batch",
        "gpu_count": 1,
        "tasks": 1,
        "total_gpus": 1,
        "time_limit_ms": 3_600_000,
        "reduced": True,
        # What every record has, whatever was asked for.
        "cpus": 1,
        "cpu_cores": 1,
        "requeue": True,
        "visible": "uuid",
    }


@pytest.mark.parametrize(
    "target", ["jobs", "jobs/1", "jobs?members=true", "jobs?state=running", "tasks", "tasks/1", "nodes", "gpus"]
)
async def test_nothing_that_a_stranger_reads_tells_what_a_job_is_about(people: People, job: str, target: str) -> None:
    for person in (people.bert, await people.person(Role.VIEWER, "blue")):
        reply = await person.get(f"{API_PREFIX}/{target}")
        assert reply.status == 200
        for hidden in (SECRET, "anna", 'mb":7919'):
            assert hidden.encode() not in reply.body, (target, hidden)
        if "nodes" not in target and "gpus" not in target:
            assert b"node-7" not in reply.body


@pytest.mark.parametrize("target", ["jobs", "jobs/1", "tasks", "tasks/1"])
async def test_whose_it_is_and_the_lead_and_admins_see_it_whole(people: People, job: str, target: str) -> None:
    for person in (people.anna, people.lead, people.admin):
        assert SECRET.encode() in (await person.get(f"{API_PREFIX}/{target}")).body


async def test_the_list_of_one_caller_is_never_shown_to_another(people: People, job: str) -> None:
    for person, whole in ((people.anna, True), (people.bert, False), (people.anna, True), (people.bert, False)):
        (row,) = (await person.get(JOBS)).json["jobs"]
        assert (row["name"] != "") is whole
        assert row.get("reduced", False) is not whole


async def test_nodes_and_gpus_name_the_jobs_only_to_those_who_see_them(people: People, job: str) -> None:
    seen = {}
    for name, person in (("anna", people.anna), ("bert", people.bert), ("admin", people.admin)):
        (row,) = (await person.get(f"{API_PREFIX}/nodes")).json["nodes"]
        gpus = (await person.get(f"{API_PREFIX}/gpus")).json["gpus"]
        busy = [gpu["current_task"] for gpu in gpus if gpu["status"] == "busy"]
        alone = (await person.get(f"{API_PREFIX}/nodes/node-7")).json
        seen[name] = (row["jobs"], busy, alone["jobs"], [gpu["current_task"] for gpu in alone["gpus"]].count(job))
    assert seen["anna"] == seen["admin"] == ([job], [job], [job], 1)
    assert seen["bert"] == ([], [None], [], 0)


@pytest.mark.parametrize("what", ["logs", "why", "events", "logs?follow=true", "logs?wait_s=5", "logs?tail=1"])
async def test_a_stranger_reads_no_output_and_no_story(people: People, job: str, what: str) -> None:
    for person in (people.bert, await people.person(Role.VIEWER, "blue")):
        reply = await person.get(f"{JOBS}/{job}/{what}")
        assert (reply.status, reply.json["code"]) == (403, "not_allowed")
        assert SECRET.encode() not in reply.body


@pytest.mark.parametrize(("method", "order"), ORDERS)
async def test_a_stranger_tells_a_job_nothing(people: People, job: str, method: str, order: str) -> None:
    before = (await people.anna.get(f"{JOBS}/{job}")).json
    body = {"signal": "TERM"} if order == "/signal" else None
    reply = await people.bert.ask(method, f"{JOBS}/{job}{order}", body)
    assert (reply.status, reply.json["code"]) == (403, "not_allowed")
    assert "tenant red" in reply.json["message"]
    assert (await people.anna.get(f"{JOBS}/{job}")).json == before


async def test_a_stranger_cancels_nothing_as_a_task_either(people: People, job: str) -> None:
    reply = await people.bert.ask("DELETE", f"{TASKS}/{job}")
    assert (reply.status, reply.json["code"]) == (403, "not_allowed")


@pytest.mark.parametrize("target", ["{id}", "{id}_1", "{id}_[0-2]", "{member}"])
@pytest.mark.parametrize(("method", "order"), ORDERS)
async def test_a_stranger_tells_members_nothing_however_he_names_them(
    people: People, method: str, order: str, target: str
) -> None:
    array = await people.anna.submit(array="0-9", name=SECRET)
    await people.anna.ask("POST", f"{JOBS}/{array}_4/hold")  # a record of its own
    named = target.format(id=array, member=int(array) + 7)
    body = {"signal": "TERM"} if order == "/signal" else None
    reply = await people.bert.ask(method, f"{JOBS}/{named}{order}", body)
    assert (reply.status, reply.json["code"]) == (403, "not_allowed")


async def test_members_are_shown_reduced_too(people: People) -> None:
    array = await people.anna.submit(array="0-9", name=SECRET)
    await people.anna.ask("POST", f"{JOBS}/{array}_4/hold")
    for target in (array, f"{array}_1", f"{array}_4", f"{array}_[3-5]", str(int(array) + 5)):
        reply = await people.bert.get(f"{JOBS}/{target}")
        assert reply.status == 200
        assert SECRET.encode() not in reply.body
        assert b'"reduced":true' in reply.body
    shown = (await people.bert.get(f"{JOBS}/{array}")).json
    assert (shown["members"]["pending"], shown["members"]["held"]) == (9, 1)


async def test_where_jobs_are_shared_a_parents_people_may_tell_those_beneath_and_not_the_other_way(
    people: People,
) -> None:
    for tenant in ("red", "red-lab"):
        await people.shared(tenant)
    child = await people.person(Role.USER, "red-lab", "carl")
    above, beneath = await people.anna.submit(name=SECRET), await child.submit(name=SECRET)
    assert (await people.anna.ask("DELETE", f"{JOBS}/{beneath}")).status == 200
    assert (await child.ask("DELETE", f"{JOBS}/{above}")).status == 403
    assert (await child.get(f"{JOBS}/{above}")).json["reduced"] is True


# -- filters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", [f"name=name-{SECRET}", "user=anna", f"name=name-{SECRET}&tenant=red"])
async def test_a_filter_by_what_is_hidden_finds_nothing_of_others(people: People, job: str, query: str) -> None:
    assert (await people.anna.get(f"{JOBS}?{query}")).json["total"] == 1
    assert (await people.viewer.get(f"{JOBS}?{query}")).json["total"] == 1
    strangers = await people.bert.get(f"{JOBS}?{query}")
    assert (strangers.json["total"], strangers.json["jobs"]) == (0, [])


async def test_a_filter_by_what_is_shown_finds_jobs_of_others(people: People, job: str) -> None:
    for query in ("tenant=red", "state=running", "class=batch", "tenant_id=red&state=running"):
        assert (await people.bert.get(f"{JOBS}?{query}")).json["total"] == 1


async def test_a_filter_finds_what_is_of_tenants_beneath(people: People) -> None:
    await people.anna.submit(name="n", tenant="red-lab")
    assert (await people.anna.get(f"{JOBS}?name=n")).json["total"] == 1
    assert (await people.anna.get(f"{JOBS}?user=anna")).json["total"] == 1


# -- events --------------------------------------------------------------------------------------------------------


def tag_of(event: Event) -> str:
    return str(type(event).__struct_config__.tag)


async def test_each_hears_of_the_jobs_that_he_sees_and_of_the_cluster(people: People, job: str) -> None:
    array = await people.anna.submit(array="0-3", begin="now+1h")
    await people.anna.ask("POST", f"{JOBS}/{array}_1/hold")
    held = await people.anna.submit(begin="now+1h")
    await people.anna.ask("POST", f"{JOBS}/{held}/hold")
    await people.anna.ask("DELETE", f"{JOBS}/{array}_[2-3]")
    await people.anna.ask("DELETE", f"{JOBS}/{job}")
    own = await people.bert.submit()
    tags: dict[str, list[str]] = {}
    for name in ("anna", "bert", "viewer", "admin"):
        events = await heard_by(people, getattr(people, name))
        tags[name] = [tag_of(event) for event in events]
        if name == "bert":
            assert not any(SECRET in str(event) or "anna" in str(event) for event in events)
            assert [str(event.job) for event in events if isinstance(event, JobSubmitted)] == [own]
    of_jobs = {"job_submitted", "job_placed", "member_made", "members_cancelled", "attempt_stopping", "job_held"}
    assert of_jobs <= set(tags["anna"])
    assert of_jobs & set(tags["bert"]) == {"job_submitted"}
    assert "node_registered" in tags["bert"]
    assert "tenant_defined" in tags["bert"]
    assert {"token_created"} & set(tags["viewer"] + tags["bert"] + tags["anna"]) == set()
    assert "token_created" in tags["admin"]


async def test_of_a_fact_about_several_jobs_each_hears_what_concerns_his(people: People) -> None:
    annas, berts = JobId(int(await people.anna.submit())), JobId(int(await people.bert.submit()))
    eligible = JobsEligible(jobs=(annas, berts))
    strays = OrphanTasksFound(
        node=NodeName("n"), strays=tuple(OrphanTask(job=job, attempt=1, rank=0, gpus=()) for job in (annas, berts))
    )
    assert await heard_by(people, people.anna, [eligible]) == [JobsEligible(jobs=(annas,))]
    assert await heard_by(people, people.anna, [JobsEligible(jobs=(berts,))]) == []
    assert await heard_by(people, people.viewer, [eligible, strays]) == [eligible, strays]
    (own,) = await heard_by(people, people.anna, [strays])
    assert isinstance(own, OrphanTasksFound)
    assert [stray.job for stray in own.strays] == [annas]


async def test_nobody_hears_of_jobs_that_nobody_knows(people: People) -> None:
    unknown = JobHeld(job=JobId(999))
    assert await heard_by(people, people.anna, [unknown, JobsPruned(jobs=(JobId(1),))]) == []
    assert await heard_by(people, people.viewer, [unknown]) == [unknown]


async def test_admins_hear_of_tokens_without_their_digests(people: People) -> None:
    made = [event for event in await heard_by(people, people.admin) if isinstance(event, TokenCreated)]
    assert len(made) >= 6
    assert {event.token.digest for event in made} == {""}


async def test_nobody_hears_by_what_an_agent_is_known_again(people: People, node: Agent) -> None:
    """Who knew it could take the node's name with the token of any other agent, and end what runs there."""
    inventory = people.plane.control.committer.state.nodes[NodeName("node-7")].inventory
    joined = NodeRegistered(node=NodeName("node-7"), inventory=replace(inventory, agent_uid="its-own"))
    untold = NodeRegistered(node=NodeName("node-7"), inventory=replace(inventory, agent_uid=""))
    for person in (people.anna, people.bert, people.viewer, people.admin):
        assert await heard_by(people, person, [joined]) == [untold]


CONTACT = {"email": f"{SECRET}@example.org", "organization": f"Lab {SECRET}", "comment": f"pays {SECRET}"}


async def test_k4_whom_to_write_to_of_a_tenant_is_shown_to_its_own_people_and_admins_alone(people: People) -> None:
    tenant = f"{API_PREFIX}/tenants/red-lab"
    changed = await people.admin.ask("PUT", tenant, CONTACT)
    assert {name: changed.json[name] for name in CONTACT} == CONTACT
    carl = await people.person(Role.USER, "red-lab", "carl")
    for person, told in (
        *((people.admin, True), (carl, True), (people.anna, True), (people.guest, True)),
        *((people.bert, False), (people.viewer, False)),
    ):
        for target in (f"{API_PREFIX}/tenants", tenant):
            reply = await person.get(target)
            assert reply.status == 200
            assert (SECRET.encode() in reply.body) is told
        heard = [event for event in await heard_by(people, person) if isinstance(event, TenantDefined)]
        assert [str(event.tenant.name) for event in heard] == ["red", "red-lab", "blue", "red-lab"]
        assert (SECRET in str(heard)) is told


# -- what the state has forgotten ----------------------------------------------------------------------------------


async def test_of_jobs_that_only_the_history_knows_strangers_see_no_more(tmp_path: Path) -> None:
    settings = ControlSettings(policy=PolicySettings(ended_jobs_max=1))
    async with people_in(tmp_path, settings) as people:
        known = people.plane.control.committer.state.jobs
        jobs = [await people.anna.submit(name=SECRET, command=SECRET) for _ in range(3)]
        for job in jobs:
            await people.anna.ask("DELETE", f"{JOBS}/{job}")
        await people.plane.until(lambda: len(known) == 1)
        assert (await people.anna.get(f"{JOBS}?name={SECRET}")).body.count(b'"job_id"') == 3
        assert (await people.anna.get(f"{JOBS}?user=anna")).body.count(b'"job_id"') == 3
        for query in (f"name={SECRET}", "user=anna"):
            assert (await people.bert.get(f"{JOBS}?{query}")).json["jobs"] == []
        for target in ("jobs", f"jobs/{jobs[0]}", "tasks", f"tasks/{jobs[0]}"):
            reply = await people.bert.get(f"{API_PREFIX}/{target}")
            assert reply.status == 200
            assert SECRET.encode() not in reply.body
        for what in ("why", "events"):
            assert (await people.bert.get(f"{JOBS}/{jobs[0]}/{what}")).status == 403
            assert (await people.anna.get(f"{JOBS}/{jobs[0]}/{what}")).status == 200
        gone = JobHeld(job=JobId(int(jobs[0])))
        assert await heard_by(people, people.anna, [gone]) == [gone]
        assert await heard_by(people, people.bert, [gone]) == []
