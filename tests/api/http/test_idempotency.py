"""REST for submits under a key: however often the same request comes, its jobs are submitted once."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import PolicySettings
from tests.api.http.plane import Plane, Reply, plane_in

JOBS, TASKS = "/api/v1/jobs", "/api/v1/tasks"
KEY = {"idempotency-key": "8e03978e-40d5-43e8-bc93-6894a57f9324"}
TASK = {"priority": "high", "gpu_count": 1, "command": "x"}


async def submit(plane: Plane, body: object, headers: dict[str, str] = KEY, path: str = JOBS) -> Reply:
    return await plane.ask("POST", path, body, headers)


async def total(plane: Plane) -> int:
    return int((await plane.get(JOBS)).json["total"])


async def test_a_repeat_is_answered_with_the_same_job_as_it_is_now(plane: Plane) -> None:
    first = await submit(plane, {"command": "true"})
    assert "idempotency-replayed" not in first.headers
    await plane.ask("DELETE", f"{JOBS}/{first.json['id']}")
    again = await submit(plane, {"command": "true"})
    assert (again.status, again.headers["idempotency-replayed"]) == (201, "true")
    assert (again.json["id"], again.json["uid"]) == (first.json["id"], first.json["uid"])
    assert (again.json["state"], again.json["status"]) == ("cancelled", "submitted")
    assert await total(plane) == 1


async def test_a_repeat_of_many_is_answered_with_all_of_them_in_order(plane: Plane) -> None:
    body = {"jobs": [{"command": "true", "name": f"j{i}"} for i in range(20)]}
    first, again = await submit(plane, body), await submit(plane, body)
    assert [job["id"] for job in again.json["jobs"]] == [job["id"] for job in first.json["jobs"]]
    assert (again.json["total"], await total(plane)) == (20, 20)


async def test_a_repeat_of_an_array_is_one_array(plane: Plane) -> None:
    body = {"command": "true", "array": "0-99"}
    first, again = await submit(plane, body), await submit(plane, body)
    assert (again.json["id"], again.json["members"]["total"]) == (first.json["id"], 100)
    assert await total(plane) == 1


async def test_another_body_under_the_same_key_is_refused(plane: Plane) -> None:
    await submit(plane, {"command": "true"})
    for other in ({"command": "false"}, {"command": "true", "name": "x"}, {"jobs": [{"command": "true"}]}):
        reply = await submit(plane, other)
        assert (reply.status, reply.json["code"]) == (409, "idempotency_key_reused")
        assert reply.json["facts"]["job_id"] == "1"
    assert await total(plane) == 1


async def test_the_other_dialect_under_the_same_key_is_refused_even_with_the_same_bytes(plane: Plane) -> None:
    body = json.dumps({"command": "x", "priority": "high", "gpu_count": 1}).encode()
    assert (await submit(plane, body)).status == 201
    reply = await submit(plane, body, path=TASKS)
    assert (reply.status, reply.json["code"]) == (409, "idempotency_key_reused")


async def test_a_task_is_submitted_once_too(plane: Plane) -> None:
    first, again = await submit(plane, TASK, path=TASKS), await submit(plane, TASK, path=TASKS)
    assert again.json == first.json
    assert again.headers["idempotency-replayed"] == "true"
    assert await total(plane) == 1


async def test_the_same_body_under_another_key_or_none_is_another_job(plane: Plane) -> None:
    for headers in (KEY, {"idempotency-key": "other"}, {}, {}):
        await submit(plane, {"command": "true"}, headers)
    assert await total(plane) == 4


async def test_repeats_that_come_at_the_same_time_are_one_submit_and_each_answer_is_durable(plane: Plane) -> None:
    committer = plane.control.committer

    async def once() -> tuple[str, bool]:
        reply = await submit(plane, {"command": "true"})
        return str(reply.json["id"]), committer.durable >= 2

    assert await asyncio.gather(*(once() for _ in range(20))) == [("1", True)] * 20
    assert await total(plane) == 1


async def test_a_submit_that_was_refused_leaves_its_key_unused(plane: Plane) -> None:
    assert (await submit(plane, {"command": ""})).status == 400
    assert (await submit(plane, {"command": "true"})).status == 201


async def test_keys_survive_a_restart(tmp_path: Path) -> None:
    async with plane_in(tmp_path) as plane:
        first = await submit(plane, {"command": "true"})
    async with plane_in(tmp_path) as plane:
        again = await submit(plane, {"command": "true"})
        assert (again.json["uid"], again.headers["idempotency-replayed"]) == (first.json["uid"], "true")
        assert (await submit(plane, {"command": "false"})).json["code"] == "idempotency_key_reused"


async def test_a_repeat_after_the_jobs_were_forgotten_is_answered_from_the_history(tmp_path: Path) -> None:
    async with forgetful(tmp_path) as plane:
        many = (await submit(plane, MANY)).json
        assert ([job["id"] for job in many["jobs"]], many["total"], "forgotten" in many) == (["1", "2"], 2, False)
        one = await submit(plane, {"command": "true"}, {"idempotency-key": "one"})
        assert (one.status, one.json["id"], one.json["state"]) == (201, "3", "cancelled")
        task = await submit(plane, TASK, {"idempotency-key": "task"}, TASKS)
        assert (task.status, task.json["task_id"], task.json["status"]) == (201, "4", "failed")


async def test_what_the_history_has_lost_too_is_answered_by_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with forgetful(tmp_path) as plane:

        async def nothing(*_: object) -> None:
            return None

        monkeypatch.setattr(type(plane.control.history), "recall", nothing)
        many = (await submit(plane, MANY)).json
        assert ([job["id"] for job in many["jobs"]], many["forgotten"], many["total"]) == (["2"], ["1"], 2)
        one = await submit(plane, {"command": "true"}, {"idempotency-key": "one"})
        assert (one.status, one.json["id"], one.json["forgotten"]) == (201, "3", True)
        task = await submit(plane, TASK, {"idempotency-key": "task"}, TASKS)
        assert (task.status, task.json["task_id"], task.json["status"]) == (201, "4", "forgotten")


MANY = {"jobs": [{"command": "true"}, {"command": "false"}]}


@asynccontextmanager
async def forgetful(folder: Path) -> AsyncIterator[Plane]:
    """Jobs 1, 3 and 4 were submitted under keys, have ended and are forgotten."""
    settings = ControlSettings(policy=PolicySettings(ended_jobs_max=1))
    async with plane_in(folder, settings) as plane:
        await submit(plane, MANY)
        await submit(plane, {"command": "true"}, {"idempotency-key": "one"})
        await submit(plane, TASK, {"idempotency-key": "task"}, TASKS)
        await submit(plane, {"command": "true"}, {})
        for job in (1, 3, 4, 5):
            await plane.ask("DELETE", f"{JOBS}/{job}")
        await plane.until(lambda: list(plane.control.committer.state.jobs) == [2, 5])
        yield plane


@pytest.mark.parametrize("key", ["", "a\tb", "\x7f", "x" * 256, "\xe9" * 128])
async def test_a_key_that_is_none_is_refused(plane: Plane, key: str) -> None:
    reply = await submit(plane, {"command": "true"}, {"idempotency-key": key})
    assert (reply.status, reply.json["code"]) == (400, "bad_idempotency_key")
    assert reply.json["hint"]


async def test_a_key_of_the_longest_length_is_taken(plane: Plane) -> None:
    assert (await submit(plane, {"command": "true"}, {"idempotency-key": "x" * 255})).status == 201
