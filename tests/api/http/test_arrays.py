"""REST for arrays: one row with exact counts, members under ids of their own, records or not."""

from pathlib import Path

import pytest

from stoker.brain.domain.units import DAY_MS, later
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import PolicySettings
from stoker.ports import HistoryFailed
from stoker.wire.rest.view import iso
from tests.api.http.plane import Plane, plane_in

JOBS = "/api/v1/jobs"


async def array(plane: Plane, members: str, **fields: object) -> str:
    reply = await plane.ask("POST", JOBS, {"command": "true", "array": members, **fields})
    assert reply.status == 201, reply.body
    return str(reply.json["id"])


async def counts(plane: Plane, array_id: str) -> dict[str, int]:
    shown = (await plane.get(f"{JOBS}/{array_id}")).json["members"]
    return {name: count for name, count in shown.items() if count}


async def test_an_array_is_one_job_that_tells_how_far_its_members_are(plane: Plane) -> None:
    reply = await plane.ask("POST", JOBS, {"command": "true", "array": "0-9998:2%3"})
    job = reply.json
    assert (job["id"], job["array"], job["message"]) == ("1", "0-9998:2%3", "job 1 submitted")
    assert (job["members"]["total"], job["members"]["pending"], job["state"]) == (5_000, 5_000, "pending")
    assert "array_of" not in job
    assert (await plane.get(JOBS)).json["total"] == 1


async def test_counts_and_state_of_an_array_follow_its_members_also_in_a_list_that_was_drawn_before(
    plane: Plane,
) -> None:
    """Rows are kept between requests, and the record of an array may stay the very same while its members move."""
    agent = await plane.join("n", gpus=2)
    array_id = await array(plane, "0-3", gpu_count=1)

    async def same() -> dict[str, int]:
        shown = (await plane.get(f"{JOBS}/{array_id}")).json
        rows = {job["id"]: job for job in (await plane.get(JOBS)).json["jobs"]}
        assert rows[array_id] == {**shown, "command": "", "env": {}}
        return await counts(plane, array_id)

    first, second = await agent.run(), await agent.run()
    assert await same() == {"total": 4, "running": 2, "pending": 2}
    assert (await plane.get(f"{JOBS}/{array_id}")).json["state"] == "running"
    await agent.end(first)
    assert (await same())["succeeded"] == 1
    third = await agent.run()
    await agent.end(second, exit_code=3)
    fourth = await agent.run()
    assert await same() == {"total": 4, "running": 2, "succeeded": 1, "failed": 1}
    await agent.end(third)
    await agent.end(fourth)
    await plane.until(lambda: plane.control.committer.state.jobs[first.key.job].is_final)
    await plane.until(lambda: all(job.is_final for job in plane.control.committer.state.jobs.values()))
    ended = (await plane.get(f"{JOBS}/{array_id}")).json
    assert (ended["state"], ended["reason"]["code"]) == ("failed", "members_ended")
    assert await same() == {"total": 4, "succeeded": 3, "failed": 1}


async def test_a_member_answers_to_its_own_id_whether_it_is_a_record_or_not(plane: Plane) -> None:
    agent = await plane.join("n", gpus=1)
    await array(plane, "0-9", gpu_count=1, comment="c")
    await agent.run()
    running = (await plane.get(f"{JOBS}/1_0")).json
    assert (running["id"], running["job_id"], running["state"]) == ("1_0", "1_0", "running")
    assert (running["array_of"], running["array_index"], running["comment"]) == ("1", 0, "c")
    waiting = (await plane.get(f"{JOBS}/1_7")).json
    assert (waiting["id"], waiting["state"], waiting["array_index"]) == ("1_7", "pending", 7)
    assert waiting["reason"]["code"] in ("awaiting_pass", "insufficient_gpus")
    assert "array" not in waiting
    assert (await plane.get(f"{JOBS}/1_7/why")).json["id"] == "1_7"
    assert (await plane.get(f"{JOBS}/1_7/logs")).json["code"] == "not_started"
    assert (await plane.get("/api/v1/tasks/1_7")).json["task_id"] == "1_7"
    assert (await plane.get(f"{JOBS}/9")).json["id"] == "1_7", "its bare id leads to it"


async def test_a_throttled_array_and_its_members_say_that_their_own_limit_keeps_them(plane: Plane) -> None:
    """Fault 138: others showed no reason."""
    agent = await plane.join("n", gpus=8)
    await array(plane, "0-9%2", gpu_count=1)
    await agent.run()
    await agent.run()
    for name in ("1", "1_9"):
        reason = (await plane.get(f"{JOBS}/{name}")).json["reason"]
        assert (reason["code"], reason["facts"]) == ("array_limit", {"running": 2, "running_max": 2})
    assert (await plane.get(f"{JOBS}/1_0")).json["reason"] is None
    assert (await plane.get(f"{JOBS}/1/why")).json["state"] == "running"


async def test_several_members_are_shown_at_once(plane: Plane) -> None:
    await array(plane, "0-9")
    several = (await plane.get(f"{JOBS}/1_[2-4,7]")).json
    assert [job["id"] for job in several["jobs"]] == ["1_2", "1_3", "1_4", "1_7"]
    assert several["total"] == 4
    assert (await plane.get(f"{JOBS}/1_[5]")).json["id"] == "1_5"


async def test_of_very_many_members_the_first_thousand_are_shown_and_all_are_counted(plane: Plane) -> None:
    await array(plane, "0-99999")
    several = (await plane.get(f"{JOBS}/1_[0-99999]")).json
    assert (len(several["jobs"]), several["total"]) == (1_000, 100_000)


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("1_10", 404, "member_unknown"),
        ("1_[5-10]", 404, "member_unknown"),
        ("9_1", 409, "not_an_array"),
        ("99_[1-3]", 404, "job_unknown"),
        ("12_0", 409, "not_an_array"),
        ("12_[0-1]", 409, "not_an_array"),
        ("1_", 400, "bad_job_id"),
        ("1_x", 400, "bad_job_id"),
        ("_1", 400, "bad_job_id"),
        ("1_[]", 400, "bad_array"),
        ("1_[3-1]", 400, "bad_array"),
        ("1_[1,1]", 400, "bad_array"),
        ("1_[0-99999999999]", 400, "bad_array"),
    ],
)
async def test_a_member_that_is_none_gives_one_clear_error(plane: Plane, name: str, status: int, code: str) -> None:
    await array(plane, "0-9")
    await plane.ask("POST", JOBS, {"command": "true"})
    for method, tail in (("GET", ""), ("DELETE", ""), ("POST", "/hold")):
        reply = await plane.ask(method, f"{JOBS}/{name}{tail}")
        assert (reply.status, reply.json["code"]) == (status, code), (method, reply.body)
        assert reply.json["hint"]


async def test_where_one_job_is_wanted_several_are_refused_with_one_of_them_as_a_hint(plane: Plane) -> None:
    await array(plane, "0-9")
    for path in (f"{JOBS}/1_[3-4]/why", f"{JOBS}/1_[3-4]/logs", "/api/v1/tasks/1_[3-4]"):
        reply = await plane.get(path)
        assert (reply.status, reply.json["code"]) == (400, "several_jobs")
        assert "1_3" in reply.json["hint"]


@pytest.mark.parametrize("text", ["5-1", "0-9999999", "1,1", "", "a-b", "0-3%0", "-1"])
async def test_a_bad_array_is_refused_and_says_why(plane: Plane, text: str) -> None:
    reply = await plane.ask("POST", JOBS, {"command": "true", "array": text})
    assert (reply.status, reply.json["code"] in ("bad_array", "array_too_large")) == (400, True)
    assert reply.json["hint"]
    assert (await plane.get(JOBS)).json["total"] == 0


async def test_in_a_bulk_a_bad_text_is_named_with_its_place(plane: Plane) -> None:
    good = {"command": "true"}
    for field, wrong in (
        *(("array", "5-1"), ("after", "okay:1"), ("begin", "25:99"), ("where", "a=(")),
        *(("tolerate", ["=x"]), ("priority", "hight"), ("time_limit", "25:99")),
    ):
        reply = await plane.ask("POST", JOBS, {"jobs": [good, {**good, field: wrong}]})
        assert reply.status == 400
        assert reply.json["facts"]["path"] == f"jobs[1].{field}"
        assert reply.json["message"].startswith("jobs[1]: ")
    assert (await plane.get(JOBS)).json["total"] == 0


async def test_every_wish_comes_back_as_it_was_understood(plane: Plane) -> None:
    await plane.join("n1")
    await plane.join("n2")
    await plane.ask("POST", JOBS, {"command": "true"})
    tomorrow = iso(later(plane.control.clock.now(), DAY_MS))
    wishes = {
        "after": "afterok:1:1,any:1",
        "hold": True,
        "begin": tomorrow,
        "comment": "for the paper",
        "output": "logs/%j.out",
        "error": "logs/%j.err",
        "where": "!slow, zone notin (b,a)",
        "exclude": "n1",
        "tolerate": ["gpu=x"],
        "tasks_per_node": 2,
    }
    job = (await plane.ask("POST", JOBS, {"command": "true", **wishes})).json
    assert job.get("state") == "held", job
    shown = {name: job[name] for name in wishes if name != "hold"}
    assert shown == {
        "after": ["ok:1", "any:1"],
        "begin": tomorrow,
        "comment": "for the paper",
        "output": "logs/%j.out",
        "error": "logs/%j.err",
        "where": "!slow,zone notin (a,b)",
        "exclude": ["n1"],
        "tolerate": ["gpu=x"],
        "tasks_per_node": 2,
    }


async def test_jobs_of_one_list_may_wait_for_each_other_but_not_in_a_circle(plane: Plane) -> None:
    jobs = [{"command": "true"}, {"command": "true", "after": "ok:#0"}, {"command": "true", "after": ["any:#0", "#1"]}]
    reply = await plane.ask("POST", JOBS, {"jobs": jobs})
    assert [job.get("after", []) for job in reply.json["jobs"]] == [[], ["ok:1"], ["any:1", "ok:2"]]
    assert reply.json["jobs"][1]["reason"]["code"] == "dependency"
    circle = await plane.ask("POST", JOBS, {"jobs": [{"command": "x", "after": "#1"}, {"command": "x", "after": "#0"}]})
    assert (circle.status, circle.json["code"]) == (422, "dependency_cycle")
    itself = await plane.ask("POST", JOBS, {"command": "x", "after": "#0"})
    assert (itself.status, itself.json["code"]) == (422, "dependency_cycle")
    beyond = await plane.ask("POST", JOBS, {"jobs": [{"command": "x", "after": "#1"}]})
    assert (beyond.status, beyond.json["code"]) == (400, "bad_dependency")
    assert (await plane.get(JOBS)).json["total"] == 3


async def test_a_dependency_on_a_forgotten_job_is_judged_by_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later `--after ok:A` failed while `status A` said how it ended."""
    settings = ControlSettings(policy=PolicySettings(ended_jobs_max=1))
    async with plane_in(tmp_path, settings) as plane:
        for _ in range(3):
            job = (await plane.ask("POST", JOBS, {"command": "true"})).json["id"]
            await plane.ask("DELETE", f"{JOBS}/{job}")
        await plane.until(lambda: 1 not in plane.control.committer.state.jobs)
        met = (await plane.ask("POST", JOBS, {"command": "true", "after": ["notok:1", "any:2"]})).json
        await plane.until(lambda: not plane.control.committer.state.jobs[int(met["id"])].blocked)
        never = (await plane.ask("POST", JOBS, {"command": "true", "after": "ok:1"})).json
        assert (never["state"], never["reason"]["code"]) == ("failed", "dependency_never_satisfied")
        assert "it ended cancelled" in never["reason"]["message"]

        async def broken(*_: object) -> None:
            raise HistoryFailed("disk full")

        monkeypatch.setattr(type(plane.control.history), "recall", broken)
        refused = await plane.ask("POST", JOBS, {"command": "true", "after": "ok:1"})
        assert (refused.status, refused.json["code"]) == (503, "history_unavailable")
        here = await plane.ask("POST", JOBS, {"command": "true", "after": f"any:{met['id']}"})
        assert here.status == 201, "of what is known without it, a history that is broken isn't asked"
        nowhere = await plane.ask("POST", JOBS, {"command": "true", "after": "ok:77"})
        assert (nowhere.status, nowhere.json["code"]) == (400, "bad_dependency")


async def test_a_dependency_on_a_member_that_a_forgotten_job_never_had_is_refused(tmp_path: Path) -> None:
    """It was accepted, since only of jobs that the state knows it was looked which members they have."""
    settings = ControlSettings(policy=PolicySettings(ended_jobs_max=1))
    async with plane_in(tmp_path, settings) as plane:
        for body in ({}, {"array": "0-2"}, {}):
            job = (await plane.ask("POST", JOBS, {"command": "true", **body})).json["id"]
            await plane.ask("DELETE", f"{JOBS}/{job}")
        known = plane.control.committer.state.jobs
        await plane.until(lambda: 1 not in known and 2 not in known)
        for member, why in (("1_1", "job 1 has no member 1"), ("2_3", "job 2 has no member 3")):
            refused = await plane.ask("POST", JOBS, {"command": "true", "after": f"ok:{member}"})
            assert (refused.status, refused.json["code"]) == (400, "bad_dependency")
            assert why in refused.json["message"]
        was = await plane.ask("POST", JOBS, {"command": "true", "after": "any:2_1"})
        assert was.status == 201, "that member was"


async def test_a_job_that_waits_for_what_never_was_is_refused(plane: Plane) -> None:
    reply = await plane.ask("POST", JOBS, {"command": "true", "after": "ok:77"})
    assert (reply.status, reply.json["code"]) == (400, "bad_dependency")
    assert "there is no job 77" in reply.json["message"]
    assert (await plane.get(JOBS)).json["total"] == 0


async def test_a_job_may_be_told_to_begin_later_and_says_when(plane: Plane) -> None:
    job = (await plane.ask("POST", JOBS, {"command": "true", "begin": "now+2h"})).json
    assert job["reason"]["code"] == "begin_time"
    assert job["begin"] > job["submitted_at"]
    at_once = (await plane.ask("POST", JOBS, {"command": "true", "begin": "1969-01-01"})).json
    assert at_once["reason"]["code"] != "begin_time"
    far = await plane.ask("POST", JOBS, {"command": "true", "begin": "9999-12-31T23:59:59-12:00"})
    assert (far.status, far.json["code"]) == (400, "begin_too_late")


async def test_a_requeue_of_an_array_is_advised_only_while_its_record_is_kept(tmp_path: Path) -> None:
    """It was advised for one that only the history knew, and refused as `job_forgotten`."""
    settings = ControlSettings(policy=PolicySettings(ended_jobs_max=1))
    async with plane_in(tmp_path, settings) as plane:
        agent = await plane.join("n", gpus=1)
        await array(plane, "0-1", gpu_count=1)
        for exit_code in (0, 1):
            await agent.end(await agent.run(), exit_code)
        known = plane.control.committer.state.jobs
        await plane.until(lambda: known[1].is_final)

        async def hints() -> tuple[str, str]:
            shown, why = (await plane.get(f"{JOBS}/1")).json, (await plane.get(f"{JOBS}/1/why")).json
            return shown["reason"]["hint"], why["hint"]

        assert all("`stoker requeue 1`" in hint for hint in await hints())
        for _ in range(2):
            job = (await plane.ask("POST", JOBS, {"command": "true", "hold": True})).json["id"]
            await plane.ask("DELETE", f"{JOBS}/{job}")
        await plane.until(lambda: 1 not in known)
        assert (await plane.ask("POST", f"{JOBS}/1/requeue", {})).json["code"] == "job_forgotten"
        assert all("list --members" in hint and "requeue" not in hint for hint in await hints())


async def test_a_forgotten_member_that_is_requeued_runs_under_a_new_number_and_counts_once(tmp_path: Path) -> None:
    settings = ControlSettings(policy=PolicySettings(ended_jobs_max=1))
    async with plane_in(tmp_path, settings) as plane:
        agent = await plane.join("n", gpus=1)
        await array(plane, "0-2", gpu_count=1)
        for exit_code in (0, 1, 0):
            await agent.end(await agent.run(), exit_code)
        jobs = plane.control.committer.state.jobs
        await plane.until(lambda: len(jobs) == 1 and jobs[1].is_final)
        assert (await plane.ask("POST", f"{JOBS}/1/requeue", {})).status == 200
        start = await agent.run()
        assert (start.key.job, start.key.attempt) == (3, 2)
        assert await counts(plane, "1") == {"total": 3, "running": 1, "succeeded": 2}

        async def used() -> dict[str, int]:
            lines = (await plane.get("/api/v1/usage?by=job")).json["lines"]
            return {line["key"]: line["jobs"] for line in lines}

        assert await used() == {"1": 3}
        await agent.end(start)
        await plane.until(lambda: len(jobs) == 1 and jobs[1].is_final)
        assert await used() == {"1": 3}
        assert await counts(plane, "1") == {"total": 3, "succeeded": 3}
        assert [each["number"] for each in (await plane.get(f"{JOBS}/1_1")).json["attempts"]] == [2]
        assert (await plane.get("/api/v1/jobs/1/why")).json["facts"]["succeeded"] == 3
