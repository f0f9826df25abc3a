"""The story of one job, over REST: what happened to it and who told it what, in order."""

from pathlib import Path
from typing import Any

import pytest

from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.lifecycle import JobState
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import PolicySettings
from stoker.wire.endpoints import API_PREFIX
from tests.api.http.people import People
from tests.api.http.plane import Plane, plane_in

JOBS = f"{API_PREFIX}/jobs"


async def story(plane: Plane, job: str, query: str = "") -> list[dict[str, Any]]:
    reply = await plane.get(f"{JOBS}/{job}/events?{query}")
    assert reply.status == 200, reply.json
    events: list[dict[str, Any]] = reply.json["events"]
    assert [event["number"] for event in events] == list(range(events[0]["number"], events[0]["number"] + len(events)))
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    return events


async def submit(plane: Plane, **body: object) -> str:
    reply = await plane.ask("POST", JOBS, {"command": "true", "gpu_count": 1, **body})
    assert reply.status == 201, reply.json
    return str(reply.json["id"])


async def order(plane: Plane, job: str, word: str) -> None:
    method, tail = ("DELETE", "") if word == "cancel" else ("POST", f"/{word}")
    assert (await plane.ask(method, f"{JOBS}/{job}{tail}")).status == 200


async def running(plane: Plane, job: str) -> None:
    """Since a millisecond at least: what comes now comes after."""
    state = plane.control.committer.state
    await plane.until(lambda: state.jobs[JobId(int(job))].state is JobState.RUNNING)
    await plane.control.clock.sleep(0.002)


def words(events: list[dict[str, Any]]) -> list[str]:
    return [event["event"] for event in events]


async def test_a_job_that_ran_is_told_from_its_submit_to_its_end(plane: Plane) -> None:
    agent = await plane.join("n1")
    job = await submit(plane)
    await agent.end(await agent.run())
    events = await story(plane, job)
    assert words(events) == ["submitted", "placed", "started", "ended", "finished"]
    assert [event["by"] for event in events] == ["user:local", "control", "control", "control", "control"]
    assert (events[1]["nodes"], events[1]["gpus"], events[1]["attempt"]) == (["n1"], 1, 1)
    assert (events[3]["outcome"], events[3]["exit_code"]) == ("succeeded", 0)
    assert (events[4]["state"], events[4]["exit_code"]) == ("succeeded", 0)


async def test_retries_are_told_one_by_one(plane: Plane) -> None:
    agent = await plane.join("n1")
    job = await submit(plane, retries=1)
    await agent.end(await agent.run(), exit_code=3)
    await plane.until(lambda: plane.control.committer.state.jobs[JobId(int(job))].attempts[0].outcome is not None)
    first = await story(plane, job)
    assert words(first) == ["submitted", "placed", "started", "ended", "requeued"]
    assert (first[3]["outcome"], first[3]["exit_code"], first[4]["attempt"]) == ("failed", 3, 1)


async def test_a_requeue_and_a_cancel_are_told_with_who_wanted_them(plane: Plane) -> None:
    agent = await plane.join("n1")
    job = await submit(plane)
    start = await agent.run()
    await running(plane, job)
    await order(plane, job, "requeue")
    await agent.end(start, cause=EndCause.STOPPED)
    again = await agent.run()
    await running(plane, job)
    await order(plane, job, "cancel")
    await agent.end(again, cause=EndCause.STOPPED)
    events = await story(plane, job)
    assert words(events) == [
        *("submitted", "placed", "started", "requeue", "stopping", "ended", "requeued"),
        *("placed", "started", "cancel", "stopping", "ended", "finished"),
    ]
    stops = [(event["by"], event["cause"], event["attempt"]) for event in events if event["event"] == "stopping"]
    assert stops == [("user:local", "requeued", 1), ("user:local", "cancelled", 2)]
    assert events[-1]["state"] == "cancelled"


async def test_a_job_that_had_ended_and_was_wanted_once_more_had_finished(plane: Plane) -> None:
    agent = await plane.join("n1")
    job = await submit(plane)
    await agent.end(await agent.run())
    await plane.control.clock.sleep(0.005)
    await order(plane, job, "requeue")
    await agent.end(await agent.run(), exit_code=1)
    assert words(await story(plane, job)) == [
        *("submitted", "placed", "started", "ended", "finished", "requeue"),
        *("placed", "started", "ended", "finished"),
    ]


async def test_orders_that_were_refused_or_changed_nothing_are_in_the_audit_trail_alone(plane: Plane) -> None:
    job = await submit(plane)
    await order(plane, job, "hold")
    await order(plane, job, "hold")
    await order(plane, job, "cancel")
    for _ in range(20):
        assert (await plane.ask("DELETE", f"{JOBS}/{job}")).status == 409
    assert words(await story(plane, job)) == ["submitted", "hold", "cancel", "finished"]
    rows = (await plane.get(f"{API_PREFIX}/audit?job={job}")).json["rows"]
    assert [(row["action"], row["outcome"], row["times"]) for row in rows] == [
        ("cancel", "job_ended", 20),
        ("cancel", "ok", 1),
        ("hold", "unchanged", 1),
        ("hold", "ok", 1),
        ("submit", "ok", 1),
    ]


async def test_a_member_is_told_what_was_told_to_it_and_to_its_whole_array(plane: Plane) -> None:
    array = await submit(plane, array="0-5")
    await order(plane, array, "hold")
    await order(plane, f"{array}_[1-3]", "release")
    await order(plane, f"{array}_2", "cancel")
    told = {index: words(await story(plane, f"{array}_{index}")) for index in (0, 1, 2)}
    assert told == {
        0: ["submitted", "hold"],
        1: ["submitted", "hold", "release"],
        2: ["submitted", "hold", "release", "cancel", "finished"],
    }
    assert words(await story(plane, array)) == ["submitted", "hold", "release", "cancel"]
    assert (await story(plane, f"{array}_1"))[2]["details"] == f"to {array}_[1-3]"


async def test_a_job_that_the_state_has_forgotten_has_its_story_from_the_history(tmp_path: Path) -> None:
    settings = ControlSettings(policy=PolicySettings(ended_jobs_max=1))
    async with plane_in(tmp_path, settings) as plane:
        jobs = [await submit(plane) for _ in range(4)]
        for job in jobs:
            await order(plane, job, "cancel")
        await plane.until(lambda: JobId(int(jobs[0])) not in plane.control.committer.state.jobs)
        assert words(await story(plane, jobs[0])) == ["submitted", "cancel", "finished"]


async def test_pages_go_on_where_the_last_one_ended(plane: Plane) -> None:
    job = await submit(plane)
    for word in ("hold", "release") * 3:
        await order(plane, job, word)
    whole = await story(plane, job)
    paged: list[dict[str, Any]] = []
    after: str | None = "0"
    while after is not None:
        page = (await plane.get(f"{JOBS}/{job}/events?limit=3&after={after}")).json
        assert (page["total"], page["limit"], page["partial"]) == (7, 3, False)
        paged += page["events"]
        after = page["next"]
    assert paged == whole
    assert (await plane.get(f"{JOBS}/{job}/events?after=99")).json["events"] == []


async def test_the_story_is_for_those_who_see_the_outline_of_the_job(people: People) -> None:
    job = await people.anna.submit()
    statuses = {
        name: (await getattr(people, name).get(f"{JOBS}/{job}/events")).status
        for name in ("anna", "arno", "lead", "admin", "viewer", "guest", "bert", "agent", "nobody")
    }
    assert statuses == {
        **dict.fromkeys(("anna", "arno", "lead", "admin", "viewer", "guest"), 200),
        **dict.fromkeys(("bert", "agent"), 403),
        "nobody": 401,
    }


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("999/events", "job_unknown"),
        ("x/events", "bad_job_id"),
        ("1_[0-2]/events", "several_jobs"),
        ("1/events?after=x", "bad_parameter"),
        ("1/events?limit=0", "bad_parameter"),
        ("1/events?since=1d", "unknown_parameter"),
    ],
)
async def test_bad_input_is_refused_with_a_hint(plane: Plane, target: str, code: str) -> None:
    await submit(plane)
    reply = await plane.get(f"{JOBS}/{target}")
    assert (reply.status // 100, reply.json["code"]) == (4, code)
    assert reply.json["hint"]
