"""What do people of one tenant see of each other's jobs, and viewers of anybody's? Through every face the same."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from stoker.brain.domain.access import Role
from stoker.brain.domain.job import EndCause, TaskEnd
from stoker.brain.domain.report import TaskFinished
from stoker.brain.domain.sight import Sight
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import PolicySettings
from stoker.wire.endpoints import API_PREFIX
from tests.api.http.people import People, Person, heard_by, people_in
from tests.api.http.plane import Agent

JOBS, TASKS = f"{API_PREFIX}/jobs", f"{API_PREFIX}/tasks"
PRIVATE: Final = "pr1vate"
"""In all that only its owner, a lead or an admin may read."""
NAMED: Final = "its-name"
BODY: dict[str, Any] = {
    "name": NAMED,
    "command": ["python", PRIVATE],
    "env": {"KEY": PRIVATE},
    "workdir": f"/home/{PRIVATE}",
    "comment": PRIVATE,
    "output": f"/out/{PRIVATE}",
    "error": f"/err/{PRIVATE}",
    "gpu_count": 1,
}
ERROR: Final = f"/home/{PRIVATE}/train.py: no such file"
ORDERS: Final = [("DELETE", ""), *(("POST", f"/{order}") for order in ("hold", "release", "requeue", "signal"))]
NAMES: Final = ("arno", "lead", "guest", "viewer", "carl", "bert", "stranger", "admin", "anna")
"""Everybody who may look. Carl is of `red-lab` beneath `red`, the stranger a viewer of `blue`."""


class Scene:
    """A cluster on which Anna has a job that runs (1), one whose start failed (2) and one that is to be retried (3)."""

    def __init__(self, people: People, tenant: str, *, shared: bool) -> None:
        self.people, self.tenant, self.shared = people, tenant, shared

    async def settle(self) -> None:
        people = self.people
        self.carl = await people.person(Role.USER, "red-lab", "carl")
        self.stranger = await people.person(Role.VIEWER, "blue")
        if self.shared:
            await people.shared(self.tenant)
        node = await people.plane.join("node-7")
        for retries in (0, 0, 3):
            body = {"command": "x", **BODY, "tenant": self.tenant, "retries": retries}
            key = {"Idempotency-Key": f"{PRIVATE}-{retries}-{len(people.plane.control.committer.state.jobs)}"}
            reply = await people.anna.ask("POST", JOBS, body, key)
            assert reply.status == 201, reply.json
        await node.run()
        for _ in range(2):
            await self._refuse(node)
        state = people.plane.control.committer.state
        assert [job.state.value for job in state.jobs.values()] == ["running", "failed", "pending"]

    async def _refuse(self, node: Agent) -> None:
        """The next start fails, and its node says what it was that is not there."""
        start, control = await node.next_start(), self.people.plane.control
        end = TaskEnd(cause=EndCause.START_FAILED, at=control.clock.now(), error=ERROR)
        await control.sessions.finished(TaskFinished(node=node.node, key=start.key, end=end))

    def person(self, name: str) -> Person:
        found = getattr(self, name, None) or getattr(self.people, name)
        assert isinstance(found, Person)
        return found

    def sight(self, name: str) -> Sight:
        """What he should see, as the documents say."""
        if name in ("admin", "lead", "anna"):
            return Sight.FULL
        if name in ("bert", "stranger") or (name == "carl" and self.tenant == "red"):
            return Sight.REDUCED
        return Sight.FULL if self.shared and name != "viewer" else Sight.OUTLINE

    def changes(self, name: str) -> bool:
        return self.sight(name) is Sight.FULL and name not in ("guest", "viewer", "stranger")


@asynccontextmanager
async def scene_in(folder: Path, tenant: str = "red", *, shared: bool = False) -> AsyncIterator[Scene]:
    # A job of the scene waits for its next try, and mustn't begin it while a busy machine is still asking.
    async with people_in(folder, ControlSettings(policy=PolicySettings(backoff_first_s=60))) as people:
        scene = Scene(people, tenant, shared=shared)
        await scene.settle()
        yield scene


def told(text: str) -> Sight:
    """How much somebody knows who has read this."""
    if PRIVATE in text:
        return Sight.FULL
    return Sight.OUTLINE if NAMED in text or "anna" in text or "node-7" in text else Sight.REDUCED


FACES: Final = (
    *("jobs", "jobs?full=true", "jobs?members=true", "jobs?state=failed", "jobs/1", "jobs/2", "jobs/3"),
    *("tasks", "tasks?status=running", "tasks/1"),
)


@pytest.mark.parametrize("shared", [False, True], ids=["owner", "tenant"])
@pytest.mark.parametrize("tenant", ["red", "red-lab"])
async def test_k6_every_face_shows_each_as_much_as_he_may_see(tmp_path: Path, tenant: str, shared: bool) -> None:
    async with scene_in(tmp_path, tenant, shared=shared) as scene:
        for name in NAMES:
            person, sight = scene.person(name), scene.sight(name)
            for face in FACES:
                reply = await person.get(f"{API_PREFIX}/{face}")
                assert (reply.status, told(reply.body.decode())) == (200, sight), (name, face)
            for about in ("why", "events"):
                reply = await person.get(f"{JOBS}/2/{about}")
                assert reply.status == (403 if sight is Sight.REDUCED else 200), (name, about)
                assert (PRIVATE in reply.body.decode()) is (sight is Sight.FULL), (name, about)
            assert (PRIVATE in (await person.get(f"{JOBS}/3/why")).body.decode()) is (sight is Sight.FULL), name
            heard = [event for event in await heard_by(scene.people, person) if "job" in str(type(event)).lower()]
            assert told(str(heard)) is sight, name
            for query in ("name=" + NAMED, "user=anna"):
                found = (await person.get(f"{JOBS}?{query}")).json["total"]
                assert found == (0 if sight is Sight.REDUCED else 3), (name, query)
            for what in ("user", "job", "node"):
                lines = (await person.get(f"{API_PREFIX}/usage?by={what}")).json["lines"]
                assert bool(lines) is (sight is not Sight.REDUCED), (name, what)
            shown = (await person.get(f"{API_PREFIX}/nodes/node-7")).json
            assert shown["jobs"] == ([] if sight is Sight.REDUCED else ["1"]), name


@pytest.mark.parametrize("shared", [False, True], ids=["owner", "tenant"])
async def test_k6_the_output_is_for_those_who_see_the_job_in_full(tmp_path: Path, shared: bool) -> None:
    async with people_in(tmp_path) as people:
        scene = Scene(people, "red", shared=shared)
        scene.carl, scene.stranger = await people.person(Role.USER, "red-lab", "carl"), people.bert
        if shared:
            await people.shared("red")
        node = await people.plane.join("node-7")
        job = await people.anna.submit(**BODY)
        await node.end(await node.run())
        serving = asyncio.ensure_future(node.serve_log(PRIVATE.encode()))
        for name in NAMES:
            for query in ("", "?tail=1", "?follow=true", "?wait_s=1"):
                reply = await scene.person(name).get(f"{JOBS}/{job}/logs{query}")
                full = scene.sight(name) is Sight.FULL
                assert reply.status == (200 if full else 403), (name, query)
                assert (PRIVATE in reply.body.decode()) is full
        serving.cancel()


@pytest.mark.parametrize("query", ["follow=true", "wait_s=30&offset=4"])
async def test_w5_whoever_follows_output_is_sent_no_more_once_the_tenant_shares_no_longer(
    people: People, query: str
) -> None:
    await people.shared("red")
    node = await people.plane.join("node-7")
    job = await people.anna.submit(**BODY)
    await node.run()
    serving = asyncio.ensure_future(node.serve_log(b"one\n", ended=False))
    following = people.arno.open(f"{JOBS}/{job}/logs?{query}")
    await asyncio.wait({following.reading}, timeout=0.2)
    assert not following.reading.done()
    await people.admin.ask("PUT", f"{API_PREFIX}/tenants/red", {"visibility": "owner"})
    serving.cancel()
    serving = asyncio.ensure_future(node.serve_log(f"one\n{PRIVATE}".encode(), ended=True))
    async with asyncio.timeout(40):
        await people.plane.until(lambda: following.reading.done() or following.broken.is_set())
    assert b"not_allowed" in following.body
    assert PRIVATE.encode() not in following.body
    following.close()
    serving.cancel()


@pytest.mark.parametrize("shared", [False, True], ids=["owner", "tenant"])
async def test_k6_jobs_are_changed_by_those_who_see_them_in_full_and_may_change_any(
    tmp_path: Path, shared: bool
) -> None:
    async with scene_in(tmp_path, shared=shared) as scene:
        before = (await scene.people.admin.get(f"{JOBS}/1")).json
        for name in NAMES:
            if scene.changes(name):
                reply = await scene.person(name).ask("POST", f"{JOBS}/1/signal", {"signal": "USR1"})
                assert reply.status == 200, name
                assert told(reply.body.decode()) is Sight.FULL
                continue
            for method, order in ORDERS:
                body = {"signal": "TERM"} if order == "/signal" else None
                reply = await scene.person(name).ask(method, f"{JOBS}/1{order}", body)
                assert (reply.status, reply.json["code"]) == (403, "not_allowed"), (name, order)
            refused = await scene.person(name).ask("DELETE", f"{TASKS}/1")
            assert (refused.status, refused.json["code"]) == (403, "not_allowed"), name
        assert (await scene.people.admin.get(f"{JOBS}/1")).json == before


async def test_k6_whom_to_ask_stands_in_the_refusal(tmp_path: Path) -> None:
    async with scene_in(tmp_path) as scene:
        reply = await scene.people.arno.ask("DELETE", f"{JOBS}/1")
        assert "job 1 is of anna" in reply.json["message"]
        assert "ask anna, a lead of red or an admin" in reply.json["hint"]
        assert "--visibility tenant" in reply.json["hint"]


async def test_k6_members_of_an_array_are_as_private_as_the_array(people: People) -> None:
    array = await people.anna.submit(**{**BODY, "array": "0-9"})
    assert (await people.anna.ask("POST", f"{JOBS}/{array}_4/hold")).status == 200
    for target in (array, f"{array}_1", f"{array}_4", f"{array}_[3-5]", str(int(array) + 5)):
        for person, sight in ((people.arno, Sight.OUTLINE), (people.viewer, Sight.OUTLINE), (people.bert, 0)):
            assert told((await person.get(f"{JOBS}/{target}")).body.decode()) == sight
        for method, order in ORDERS:
            body = {"signal": "TERM"} if order == "/signal" else None
            assert (await people.arno.ask(method, f"{JOBS}/{target}{order}", body)).status == 403


async def test_k6_an_admins_job_for_somebody_is_that_persons(people: People) -> None:
    job = await people.admin.submit(**{**BODY, "tenant": "red", "user": "arno"})
    assert told((await people.arno.get(f"{JOBS}/{job}")).body.decode()) is Sight.FULL
    assert told((await people.anna.get(f"{JOBS}/{job}")).body.decode()) is Sight.OUTLINE
    assert (await people.arno.ask("DELETE", f"{JOBS}/{job}")).status == 200


async def test_k6_tokens_without_an_account_are_people_of_their_own(people: People) -> None:
    one, other = await people.person(Role.USER, "red"), await people.person(Role.USER, "red")
    job = await one.submit(**BODY)
    assert told((await one.get(f"{JOBS}/{job}")).body.decode()) is Sight.FULL
    assert told((await other.get(f"{JOBS}/{job}")).body.decode()) is Sight.OUTLINE
    assert (await other.ask("DELETE", f"{JOBS}/{job}")).status == 403


async def test_k6_the_same_account_in_another_tenant_is_a_stranger_there(people: People) -> None:
    job = await people.anna.submit(**BODY)
    elsewhere = await people.person(Role.USER, "blue", "anna")
    assert told((await elsewhere.get(f"{JOBS}/{job}")).body.decode()) is Sight.REDUCED
    assert (await elsewhere.ask("DELETE", f"{JOBS}/{job}")).status == 403


async def test_k6_a_lead_acts_on_its_tenant_and_beneath_it_and_administers_nothing(people: People) -> None:
    carl = await people.person(Role.USER, "red-lab", "carl")
    beneath, theirs = await carl.submit(**BODY), await people.bert.submit(**BODY)
    assert told((await people.lead.get(f"{JOBS}/{beneath}")).body.decode()) is Sight.FULL
    assert (await people.lead.ask("POST", f"{JOBS}/{beneath}/hold")).status == 200
    assert await people.lead.submit(tenant="red-lab")
    assert told((await people.lead.get(f"{JOBS}/{theirs}")).body.decode()) is Sight.REDUCED
    assert (await people.lead.ask("DELETE", f"{JOBS}/{theirs}")).status == 403
    for method, target, body in (
        ("PUT", "tenants/red", {"max_gpus": 99}),
        ("POST", "tokens", {"role": "user", "tenant": "red"}),
        ("POST", "tenants", {"name": "red-new", "parent": "red"}),
        ("POST", "nodes/node-7/drain", {}),
        ("GET", "tokens", None),
        ("GET", "audit", None),
    ):
        assert (await people.lead.ask(method, f"{API_PREFIX}/{target}", body)).status == 403, target


async def test_nothing_that_is_read_without_full_sight_tells_what_a_job_runs(tmp_path: Path) -> None:
    """Every GET that the document has, so that one which is added is looked at too."""
    async with scene_in(tmp_path) as scene:
        document = await scene.people.plane.document()
        paths = [path for path, item in document["paths"].items() if "get" in item and not path.endswith("v1/events")]
        looked = 0
        for path in paths:
            for job in ("1", "2", "3"):
                target = path.replace("{job_id}", job).replace("{name}", "red" if "tenants" in path else "node-7")
                for name in NAMES:
                    if scene.sight(name) is not Sight.FULL:
                        reply = await scene.person(name).get(target)
                        assert PRIVATE not in reply.body.decode(errors="replace"), (name, target)
                        looked += reply.status == 200
        assert looked > 200


async def test_where_no_token_is_wanted_everything_is_the_owners(plane: Any) -> None:  # noqa: ANN401  # a fixture
    reply = await plane.ask("POST", JOBS, BODY)
    shown = json.dumps((await plane.get(f"{JOBS}/{reply.json['id']}")).json)
    assert told(shown) is Sight.FULL
    assert "outline" not in shown


async def test_a_tenant_says_who_sees_its_jobs_and_of_old_it_is_their_owners(people: People) -> None:
    for name in ("default", "red"):
        assert (await people.anna.get(f"{API_PREFIX}/tenants/{name}")).json["visibility"] == "owner"
    changed = await people.admin.ask("PUT", f"{API_PREFIX}/tenants/red", {"visibility": "tenant"})
    assert changed.json["visibility"] == "tenant"
    again = await people.admin.ask("PUT", f"{API_PREFIX}/tenants/red", {"max_gpus": 5})
    assert again.json["visibility"] == "tenant"
    back = await people.admin.ask("PUT", f"{API_PREFIX}/tenants/red", {"visibility": None})
    assert back.json["visibility"] == "owner"
    bad = await people.admin.ask("PUT", f"{API_PREFIX}/tenants/red", {"visibility": "everybody"})
    assert (bad.status, bad.json["code"]) == (400, "bad_field")
    made = await people.admin.ask("POST", f"{API_PREFIX}/tenants", {"name": "open", "visibility": "tenant"})
    assert made.json["visibility"] == "tenant"
