"""REST for tasks: the dgpu dialect, by its own bytes."""

import pytest

from stoker.api.http.responses import ANSWER_BYTES_MAX
from stoker.brain.domain.job import EndCause
from tests.api.http.plane import Plane

TASKS = "/api/v1/tasks"
BODY = b'{"priority":"high","gpu_count":2,"command":"python train.py"}'


async def test_a_task_is_submitted_by_the_seeds_own_bytes(plane: Plane) -> None:
    reply = await plane.ask("POST", TASKS, BODY, {"content-type": "application/x-www-form-urlencoded"})
    assert reply.status == 201
    assert reply.json.keys() == {"task_id", "status", "created_at"}
    assert (reply.json["task_id"], reply.json["status"]) == ("1", "pending")


async def test_a_task_is_the_same_job_under_other_words(plane: Plane) -> None:
    await plane.ask("POST", TASKS, BODY)
    job = (await plane.get("/api/v1/jobs/1")).json
    assert (job["class"], job["priority"], job["gpu_count"], job["command"]) == ("online", 1000, 2, "python train.py")


async def test_a_task_shows_every_field_of_the_dialect(plane: Plane) -> None:
    agent = await plane.join("gpu-node-1-a")
    await plane.ask(
        "POST", TASKS, {"priority": "low", "gpu_count": 2, "gpu_model": "V100", "command": "x", "env": {"A": "1"}}
    )
    start = await agent.run()
    running = (await plane.get(f"{TASKS}/1")).json
    assert running["id"] == running["task_id"] == "1"
    assert (running["priority"], running["gpu_count"], running["gpu_model"]) == ("low", 2, "V100")
    assert (running["command"], running["env"], running["status"]) == ("x", {"A": "1"}, "running")
    assert (running["error"], running["finished_at"]) == ("", None)
    known = {gpu["id"] for gpu in (await plane.get("/api/v1/gpus")).json["gpus"]}
    assert len(running["assigned_gpus"]) == 2
    assert set(running["assigned_gpus"]) <= known
    await agent.end(start, exit_code=9)
    ended = (await plane.get(f"{TASKS}/1")).json
    assert ended["status"] == "failed"
    assert "9" in ended["error"]
    assert ended["created_at"] <= ended["started_at"] <= ended["finished_at"]


async def test_list_filters_really_filter(plane: Plane) -> None:
    """The seed ignored every one of them."""
    agent = await plane.join("n", gpus=4)
    for priority in ("high", "low", "low"):
        await plane.ask("POST", TASKS, {"priority": priority, "gpu_count": 1, "command": "x"})
    starts = [await agent.run() for _ in range(3)]
    await agent.end(starts[0])
    await agent.end(starts[1], exit_code=1)

    async def found(query: str) -> tuple[list[str], int]:
        reply = (await plane.get(f"{TASKS}?{query}")).json
        return sorted(task["task_id"] for task in reply["tasks"]), reply["total"]

    assert await found("") == (["1", "2", "3"], 3)
    assert await found("status=running") == ([str(starts[2].key.job)], 1)
    assert await found("status=success") == ([str(starts[0].key.job)], 1)
    assert await found("status=failed") == ([str(starts[1].key.job)], 1)
    assert await found("priority=high") == (["1"], 1)
    assert await found("priority=low") == (["2", "3"], 2)
    assert (await found("status=&priority=&limit=2"))[1] == 3
    assert len((await found("limit=2"))[0]) == 2
    assert await found("status=pending&priority=high") == ([], 0)


async def test_failed_means_every_end_but_success(plane: Plane) -> None:
    await plane.ask("POST", TASKS, BODY)
    await plane.ask("DELETE", f"{TASKS}/1")
    reply = (await plane.get(f"{TASKS}?status=failed")).json
    assert [(task["task_id"], task["status"]) for task in reply["tasks"]] == [("1", "failed")]
    assert "cancelled" in reply["tasks"][0]["error"]


async def test_a_waiting_task_that_is_deleted_never_runs(plane: Plane) -> None:
    """The seed answered `cancelled` and ran it."""
    await plane.ask("POST", TASKS, BODY)
    reply = await plane.ask("DELETE", f"{TASKS}/1")
    assert (reply.status, list(reply.json)) == (200, ["message"])
    agent = await plane.join("n")
    await plane.ask("POST", TASKS, BODY)
    assert (await agent.next_start()).key.job == 2


async def test_a_running_task_can_be_deleted(plane: Plane) -> None:
    agent = await plane.join("n")
    await plane.ask("POST", TASKS, BODY)
    start = await agent.run()
    assert (await plane.ask("DELETE", f"{TASKS}/1")).status == 200
    await agent.next_stop()
    assert (await plane.get(f"{TASKS}/1")).json["status"] == "running", "until its processes are proved gone"
    await agent.end(start, cause=EndCause.STOPPED)
    assert (await plane.get(f"{TASKS}/1")).json["status"] == "failed"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"gpu_count": 1, "command": "x"}, "missing_field"),
        ({"priority": "high", "command": "x"}, "missing_field"),
        ({"priority": "high", "gpu_count": 1}, "missing_field"),
        ({"priority": "medium", "gpu_count": 1, "command": "x"}, "bad_field"),
        ({"priority": "high", "gpu_count": 0, "command": "x"}, "bad_field"),
        ({"priority": "high", "gpu_count": -1, "command": "x"}, "bad_field"),
        ({"priority": "high", "gpu_count": 1, "command": ["x"]}, "bad_field"),
        ({"priority": "high", "gpu_count": 1, "command": ""}, "empty_command"),
        ({"priority": "high", "gpu_count": 1, "command": "x", "gpus": 1}, "unknown_field"),
        (b"not json", "bad_json"),
    ],
)
async def test_a_wrong_body_is_refused_with_error_for_the_dialects_clients(
    plane: Plane, body: object, code: str
) -> None:
    reply = await plane.ask("POST", TASKS, body)
    assert (reply.status, reply.json["code"]) == (400, code)
    assert reply.json["error"] == reply.json["message"]


async def test_a_task_that_is_not_there_is_404(plane: Plane) -> None:
    for method in ("GET", "DELETE"):
        assert (await plane.ask(method, f"{TASKS}/5")).status == 404


async def test_an_argv_of_a_job_is_shown_as_a_line_that_a_shell_would_read_back(plane: Plane) -> None:
    await plane.ask("POST", "/api/v1/jobs", {"command": ["echo", "a b"]})
    assert (await plane.get(f"{TASKS}/1")).json["command"] == "echo 'a b'"


async def test_a_list_of_large_tasks_is_bounded_in_bytes_and_says_how_many_there_are(plane: Plane) -> None:
    large = {"priority": "low", "gpu_count": 1, "command": "x", "env": {"A": "x" * 100_000}}
    for _ in range(60):
        await plane.ask("POST", TASKS, large)
    reply = await plane.get(f"{TASKS}?limit=1000")
    assert len(reply.body) < ANSWER_BYTES_MAX + 200_000
    assert reply.headers["content-length"] == str(len(reply.body))
    ids = [int(task["id"]) for task in reply.json["tasks"]]
    assert ids == list(range(60, 60 - len(ids), -1))
    assert reply.json["total"] == 60
