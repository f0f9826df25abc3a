"""What people see of a node that was silent for too long: its GPUs in quarantine, its lost job, and why."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stoker.brain.domain.ids import CONTROL, NodeName
from stoker.brain.domain.policy import surely_over_ms
from stoker.brain.state.commands import LoseSilent, NodeSilent
from stoker.live.settings.control import AgentsSettings, ControlSettings
from tests.api.http.people import People
from tests.api.http.plane import Plane, plane_in

API = "/api/v1"
LOST = NodeName("gone")


@pytest.fixture
async def leased(tmp_path: Path) -> AsyncIterator[Plane]:
    settings = ControlSettings(agents=AgentsSettings(attempt_lease_s=600))
    async with plane_in(tmp_path, settings) as plane:
        yield plane


async def lose(plane: Plane) -> None:
    await plane.control.committer.ask(NodeSilent(by=CONTROL, node=LOST))
    silent_ms = surely_over_ms(600_000)
    assert await plane.control.committer.ask(LoseSilent(by=CONTROL, node=LOST, silent_ms=silent_ms))


async def lost_job(plane: Plane, **body: Any) -> str:  # noqa: ANN401  # a body of JSON
    agent = await plane.join(LOST, leases=True)
    job = str((await plane.ask("POST", f"{API}/jobs", {"command": "x", "gpu_count": 2, **body})).json["id"])
    await agent.run()
    await plane.until(lambda: any(job.state == "running" for job in plane.control.committer.state.jobs.values()))
    await lose(plane)
    return job


async def test_gpus_in_quarantine_have_a_state_of_their_own_and_say_why_and_what_ends_it(leased: Plane) -> None:
    job = await lost_job(leased)
    shown = (await leased.get(f"{API}/gpus")).json
    counts = {word: shown[word] for word in ("total", "idle", "busy", "offline", "quarantined")}
    assert counts == {"total": 4, "idle": 0, "busy": 0, "offline": 2, "quarantined": 2}
    for gpu in shown["gpus"]:
        if gpu["status"] == "quarantined":
            assert gpu["current_task"] is None
            assert gpu["note"].startswith(f"job {job} was on it until ")
            assert "offered again once the agent there is back" in gpu["note"]
        else:
            assert gpu["note"] == ""
    status = (await leased.get(f"{API}/cluster/status")).json
    assert (status["offline_gpus"], status["quarantined_gpus"]) == (2, 2)
    metrics = (await leased.get("/metrics")).body.decode()
    assert 'stoker_gpus{status="quarantined"} 2' in metrics
    assert "stoker_gpu_quarantined_total 2" in metrics
    assert "stoker_agent_lost_total 1" in metrics
    node = (await leased.get(f"{API}/nodes/{LOST}")).json
    (stray,) = node["strays"]
    assert (stray["job"], len(stray["gpus"]), node["keeps_leases"]) == (job, 2, True)
    assert stray["quarantined_since"].endswith("Z")


async def test_a_node_that_comes_back_clean_has_its_gpus_back(leased: Plane) -> None:
    await lost_job(leased)
    await leased.join(LOST, leases=True)
    await leased.until(lambda: not leased.control.committer.state.nodes[LOST].strays)
    shown = (await leased.get(f"{API}/gpus")).json
    assert shown["quarantined"] == 0
    assert shown["idle"] + shown["busy"] == 4


async def test_the_job_tells_how_its_attempt_was_lost(leased: Plane) -> None:
    job = await lost_job(leased)
    shown = (await leased.get(f"{API}/jobs/{job}")).json
    (attempt,) = shown["attempts"]
    assert (shown["state"], shown["requeues_used"]) == ("pending", 1)
    assert (attempt["outcome"], attempt["lease_ms"], attempt["tasks"][0]["cause"]) == ("lost", 600_000, "silent")
    assert "was not heard of for 10m 27s" in attempt["tasks"][0]["error"]
    events = (await leased.get(f"{API}/jobs/{job}/events")).json["events"]
    (ended,) = (event for event in events if event["event"] == "ended")
    assert ended["details"].startswith(f"node {LOST} was not heard of for 10m 27s")
    assert [event["event"] for event in events][-1] == "requeued"


async def test_a_running_job_whose_node_is_silent_says_what_becomes_of_it(leased: Plane) -> None:
    agent = await leased.join(LOST, leases=True)
    job = (await leased.ask("POST", f"{API}/jobs", {"command": "x"})).json["id"]
    await agent.run()
    await leased.until(lambda: any(job.state == "running" for job in leased.control.committer.state.jobs.values()))
    assert (await leased.get(f"{API}/jobs/{job}")).json["reason"] is None
    await leased.control.committer.ask(NodeSilent(by=CONTROL, node=LOST))
    why = (await leased.get(f"{API}/jobs/{job}/why")).json
    assert (why["state"], why["code"], why["facts"]["over_ms"]) == ("running", "node_silent", 627_000)
    assert "if that lasts 10m 27s" in why["message"]
    (row,) = (await leased.get(f"{API}/jobs")).json["jobs"]
    assert row["reason"]["code"] == "node_silent"


async def test_a_job_that_is_not_requeued_says_why_it_ended(leased: Plane) -> None:
    job = await lost_job(leased, requeue=False)
    why = (await leased.get(f"{API}/jobs/{job}/why")).json
    assert (why["state"], why["code"]) == ("node_failed", "node_failed")
    assert "was not heard of for 10m 27s" in why["message"]


async def test_a_wish_of_its_own_is_kept_and_shown(leased: Plane) -> None:
    made = (await leased.ask("POST", f"{API}/jobs", {"command": "x", "lost_after": "never"})).json
    assert made["lost_after_ms"] == 0
    made = (await leased.ask("POST", f"{API}/jobs", {"command": "x", "array": "0-1", "lost_after": "1h"})).json
    assert made["lost_after_ms"] == 3_600_000
    plain = (await leased.ask("POST", f"{API}/jobs", {"command": "x"})).json
    assert "lost_after_ms" not in plain


async def test_a_wish_that_is_too_short_is_refused_with_the_range(leased: Plane) -> None:
    reply = await leased.ask("POST", f"{API}/jobs", {"command": "x", "lost_after": "5s"})
    assert (reply.status, reply.json["code"]) == (422, "bad_lost_after")
    assert "from 30s to 30d" in reply.json["message"]
    assert "0 for never" in reply.json["hint"]


async def test_strangers_see_that_a_gpu_is_in_quarantine_and_not_because_of_whom(people: People) -> None:
    agent = await people.plane.join(LOST, leases=True)
    job = await people.anna.submit(command="x", gpu_count=1, lost_after="10m")
    await agent.run()
    await lose(people.plane)
    for person, named in ((people.anna, True), (people.bert, False)):
        gpus = (await person.get(f"{API}/gpus")).json["gpus"]
        (note,) = (gpu["note"] for gpu in gpus if gpu["status"] == "quarantined")
        assert note.startswith(f"job {job} was" if named else "a job was")
        (row,) = (await person.get(f"{API}/nodes")).json["nodes"]
        assert len(row["strays"]) == int(named)
