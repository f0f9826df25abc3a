"""REST for orders: cancel, hold, release, requeue, signal, to one job, some members or a whole array."""

import pytest

from stoker.brain.domain.job import EndCause
from tests.api.http.plane import Plane, Reply

JOBS = "/api/v1/jobs"


async def submit(plane: Plane, **fields: object) -> str:
    reply = await plane.ask("POST", JOBS, {"command": "true", **fields})
    assert reply.status == 201, reply.body
    return str(reply.json["id"])


async def tell(plane: Plane, order: str, job_id: str, body: object = None) -> Reply:
    return await plane.ask("POST", f"{JOBS}/{job_id}/{order}", body)


async def state_of(plane: Plane, job_id: str) -> str:
    return str((await plane.get(f"{JOBS}/{job_id}")).json["state"])


async def test_what_is_held_does_not_start_until_it_is_released(plane: Plane) -> None:
    held = await submit(plane)
    reply = await tell(plane, "hold", held)
    assert (reply.status, reply.json["state"], reply.json["reason"]["code"]) == (200, "held", "held")
    agent = await plane.join("n")
    other = await submit(plane)
    assert str((await agent.run()).key.job) == other
    assert (await tell(plane, "release", held)).json["state"] == "pending"
    assert str((await agent.run()).key.job) == held


async def test_a_hold_and_a_release_may_be_repeated(plane: Plane) -> None:
    job = await submit(plane)
    for _ in range(2):
        assert (await tell(plane, "hold", job)).status == 200
    for _ in range(2):
        assert (await tell(plane, "release", job)).status == 200


async def test_what_has_ended_is_requeued_under_its_own_id_with_its_history(plane: Plane) -> None:
    agent = await plane.join("n")
    job = await submit(plane)
    await agent.end(await agent.run(), exit_code=1)
    reply = await tell(plane, "requeue", job)
    assert (reply.json["state"], reply.json["id"], len(reply.json["attempts"])) == ("pending", job, 1)
    await agent.end(await agent.run())
    assert await state_of(plane, job) == "succeeded"
    assert len((await plane.get(f"{JOBS}/{job}")).json["attempts"]) == 2


async def test_a_running_job_is_stopped_first_when_it_is_requeued(plane: Plane) -> None:
    agent = await plane.join("n")
    job = await submit(plane)
    start = await agent.run()
    assert (await tell(plane, "requeue", job)).json["state"] == "stopping"
    await agent.next_stop()
    await agent.end(start, cause=EndCause.STOPPED)
    assert (await agent.run()).key.attempt == 2


async def test_a_running_job_that_is_requeued_with_hold_is_held_once_it_has_stopped(plane: Plane) -> None:
    agent = await plane.join("n")
    job = await submit(plane)
    start = await agent.run()
    assert (await tell(plane, "requeue", job, {"hold": True})).json["state"] == "stopping"
    await agent.next_stop()
    await agent.end(start, cause=EndCause.STOPPED)
    assert await state_of(plane, job) == "held"
    assert (await tell(plane, "release", job)).json["state"] == "pending"
    assert (await agent.run()).key.attempt == 2


@pytest.mark.parametrize("name", ["USR1", "SIGUSR1", "usr1", 10, "10"])
async def test_a_signal_goes_by_name_or_number_to_what_runs(plane: Plane, name: object) -> None:
    agent = await plane.join("n")
    job = await submit(plane)
    await agent.run()
    reply = await tell(plane, "signal", job, {"signal": name})
    assert (reply.status, reply.json["id"], reply.json["state"]) == (200, job, "running")
    assert (await agent.next_signal()).signal == 10


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"signal": "USR9"}, "bad_signal"),
        ({"signal": 0}, "bad_signal"),
        ({"signal": 99}, "bad_signal"),
        ({"signal": None}, "bad_field"),
        ({}, "missing_field"),
        ({"signal": 9, "to": "all"}, "unknown_field"),
        (b"", "bad_json"),
    ],
)
async def test_a_signal_that_is_none_is_refused(plane: Plane, body: object, code: str) -> None:
    job = await submit(plane)
    reply = await tell(plane, "signal", job, body)
    assert (reply.status, reply.json["code"]) == (400, code)


async def test_a_signal_to_what_does_not_run_is_refused(plane: Plane) -> None:
    job = await submit(plane)
    reply = await tell(plane, "signal", job, {"signal": "USR1"})
    assert (reply.status, reply.json["code"]) == (409, "not_running")


@pytest.mark.parametrize("order", ["hold", "release", "requeue"])
async def test_a_body_that_would_mean_something_is_refused_and_an_empty_one_taken(plane: Plane, order: str) -> None:
    job = await submit(plane, hold=order == "release")
    reply = await tell(plane, order, job, {"signal": "USR1"})
    assert (reply.status, reply.json["code"]) == (400, "unknown_field")
    assert (await tell(plane, order, job, {})).status == (409 if order == "requeue" else 200)


async def test_what_stands_in_the_way_of_an_order_is_said(plane: Plane) -> None:
    job = await submit(plane)
    assert (await tell(plane, "requeue", job)).json["code"] == "job_waits"
    agent = await plane.join("n")
    start = await agent.run()
    assert (await tell(plane, "hold", job)).json["code"] == "job_live"
    assert (await tell(plane, "release", job)).json["code"] == "not_held"
    await agent.end(start)
    assert (await tell(plane, "hold", job)).json["code"] == "job_ended"
    assert (await tell(plane, "hold", "77")).status == 404


async def test_cancel_of_half_an_array_is_exact(plane: Plane) -> None:
    await submit(plane, array="0-9999%3")
    reply = await plane.ask("DELETE", f"{JOBS}/1_[0-9998:2]")
    told = reply.json
    assert (reply.status, told["total"], told["changed"], len(told["jobs"])) == (200, 5_000, 5_000, 1_000)
    assert {job["state"] for job in told["jobs"]} == {"cancelled"}
    members = (await plane.get(f"{JOBS}/1")).json["members"]
    assert (members["cancelled"], members["pending"], members["total"]) == (5_000, 5_000, 10_000)
    again = (await plane.ask("DELETE", f"{JOBS}/1_[0-2]")).json
    assert (again["total"], again["changed"]) == (3, 1), "two of these were cancelled before"


async def test_an_order_to_several_members_counts_those_that_it_changed_at_that_very_moment(plane: Plane) -> None:
    agent = await plane.join("n", gpus=2)
    await submit(plane, array="0-5", gpu_count=1)
    first, _ = await agent.run(), await agent.run()
    held = (await tell(plane, "hold", "1_[0-3]")).json
    assert (held["total"], held["changed"]) == (4, 2), "two of them run"
    assert [job["state"] for job in held["jobs"]] == ["running", "running", "held", "held"]
    cancelled = (await plane.ask("DELETE", f"{JOBS}/1_[0-3]")).json
    assert (cancelled["total"], cancelled["changed"]) == (4, 4)
    assert [job["state"] for job in cancelled["jobs"]] == ["stopping", "stopping", "cancelled", "cancelled"]
    await agent.end(first, cause=EndCause.STOPPED)
    requeued = (await tell(plane, "requeue", "1_[2-3]")).json
    assert (requeued["total"], requeued["changed"]) == (2, 2)
    released = await tell(plane, "release", "1_[0-1]")
    assert (released.status, released.json["code"]) == (409, "not_held")


async def test_a_whole_array_takes_an_order_as_one_job(plane: Plane) -> None:
    await submit(plane, array="0-9")
    held = (await tell(plane, "hold", "1")).json
    assert (held["id"], held["state"], held["members"]["held"]) == ("1", "held", 10)
    assert (await tell(plane, "release", "1")).json["members"]["pending"] == 10
    gone = (await plane.ask("DELETE", f"{JOBS}/1")).json
    assert gone["members"]["cancelled"] == 10
    assert (await tell(plane, "requeue", "1")).json["code"] == "nothing_failed"


async def test_the_last_waiting_member_that_is_cancelled_ends_the_array(plane: Plane) -> None:
    """Fault 139."""
    await submit(plane, array="0-1")
    await plane.ask("DELETE", f"{JOBS}/1_[0]")
    await plane.ask("DELETE", f"{JOBS}/1_1")
    await plane.until(lambda: all(job.is_final for job in plane.control.committer.state.jobs.values()))
    assert (await state_of(plane, "1")) in ("failed", "cancelled")


async def test_the_bare_id_of_a_member_takes_orders_for_it(plane: Plane) -> None:
    await submit(plane, array="0-3")
    assert (await plane.ask("DELETE", f"{JOBS}/3")).json["id"] == "1_1"
    assert (await plane.get(f"{JOBS}/1")).json["members"]["cancelled"] == 1


async def test_a_task_of_the_other_dialect_is_deleted_by_the_id_of_a_member_too(plane: Plane) -> None:
    await submit(plane, array="0-9")
    one = await plane.ask("DELETE", "/api/v1/tasks/1_4")
    assert (one.status, one.json["message"]) == (200, "task 1_4 is cancelled")
    some = await plane.ask("DELETE", "/api/v1/tasks/1_[4-6]")
    assert some.json["message"] == "2 of the 3 tasks 1_[4-6] are cancelled or being stopped"


async def test_an_answer_to_an_order_is_durable(plane: Plane) -> None:
    job = await submit(plane)
    for order in ("hold", "release"):
        await tell(plane, order, job)
        assert plane.control.committer.durable == plane.control.committer.state.position


async def test_a_job_is_changed_by_a_patch_that_says_only_what_is_to_change(plane: Plane) -> None:
    await plane.join("n")
    job = await submit(plane, hold=True, comment="old", gpu_count=1, cpus=2)
    changes = {"time_limit": "2h", "comment": "", "priority": "high", "gpu_count": 0, "retries": 3, "requeue": False}
    reply = await plane.ask("PATCH", f"{JOBS}/{job}", changes)
    assert (reply.status, reply.json["time_limit_ms"], reply.json["priority"]) == (200, 7_200_000, 1000)
    assert (reply.json["gpu_count"], reply.json["cpus"], reply.json["retries"]) == (0, 2, 3)
    assert (reply.json["requeue"], "comment" in reply.json) == (False, False)
    events = (await plane.get(f"{JOBS}/{job}/events")).json["events"]
    assert "time limit 1d -> 2h" in events[-1]["details"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "no_changes"),
        ({"time_limit": "soon"}, "bad_time"),
        ({"command": "true"}, "unknown_field"),
        ({"gpu_count": -1}, "bad_field"),
        ({"begin": "whenever"}, "bad_begin"),
        ({"priority": "utmost"}, "bad_priority"),
    ],
)
async def test_a_patch_that_can_not_be_read_is_refused(plane: Plane, body: object, code: str) -> None:
    job = await submit(plane, hold=True)
    reply = await plane.ask("PATCH", f"{JOBS}/{job}", body)
    assert (reply.status in (400, 422), reply.json["code"]) == (True, code), reply.json


async def test_what_has_ended_is_not_changed(plane: Plane) -> None:
    agent = await plane.join("n")
    job = await submit(plane)
    await agent.end(await agent.run())
    reply = await plane.ask("PATCH", f"{JOBS}/{job}", {"time_limit": "2h"})
    assert (reply.status, reply.json["code"]) == (409, "job_ended")


async def test_the_script_of_a_job_is_shown_apart_from_the_job(plane: Plane) -> None:
    job = await submit(plane, command=["train.sh", "3"], script="echo $1\n", hold=True)
    shown = (await plane.get(f"{JOBS}/{job}")).json
    assert (shown["command"], shown["script_bytes"], "script" in shown) == (["train.sh", "3"], 8, False)
    script = (await plane.get(f"{JOBS}/{job}/script")).json
    assert (script["name"], script["script"]) == ("train.sh", "echo $1\n")


async def test_a_query_that_must_name_something_and_names_nothing_is_refused(plane: Plane) -> None:
    job = await submit(plane)
    for query in ("", "?rank=0"):
        reply = await tell(plane, f"forward{query}", job)
        assert (reply.status, reply.json["code"]) == (400, "bad_parameter")
        assert reply.json["message"] == "no port is given, which is from 1 to 65535"
