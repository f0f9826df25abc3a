"""The same job by REST and by gRPC: the same job comes of it, or the same refusal."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stoker.adapters.entropy import SystemEntropy
from stoker.wire.gen import job_pb2 as pb
from stoker.wire.token import fresh_token
from tests.real.job_apis import JOBS, JobApis, job_apis, message_of, problem_from, problem_in
from tests.real.rpc_stage import shows

OWN = ("id", "job_id", "uid", "submitted_at", "status", "message", "reason", "state", "attempts", "started_at")
"""What two jobs of one body don't share."""

GOOD: tuple[dict[str, Any], ...] = (
    {"command": "echo hi"},
    {"command": ["python", "train.py", "--lr", "0.1"], "name": "train", "gpu_count": 2, "priority": "high"},
    {"command": "x", "priority": -7, "class": "online", "cpus": 2, "memory_mb": 512, "retries": 3, "requeue": False},
    {"command": "x", "gpu_share": 0.25, "gpu_memory_mb": 2048},
    {"command": "x", "gpu_share": 1},
    {"command": "x", "tasks": 2, "tasks_per_node": 2, "gpu_count": 1, "gpu_memory_mb": 1024, "gpu_model": "V100"},
    {"command": "x", "env": {"A": "ä", "B": ""}, "workdir": "/w", "time_limit": "2h", "visible": "index"},
    {"command": "x", "array": "0-9%3", "hold": True, "comment": "ü", "output": "/o/%j", "error": "/e/%j"},
    {"command": "x", "where": "zone=a,!slow", "exclude": ["n1"], "tolerate": ["gpu", "*"], "hold": True},
    {"command": "x", "tenant": "mine", "user": "anna", "begin": "2020-01-01T00:00:00Z"},
    {"command": "x", "cpus": 0, "tasks": 1},
)

BAD: tuple[dict[str, Any], ...] = (
    {},
    {"command": ""},
    {"command": [""]},
    {"command": "a\0b"},
    {"command": "x" * 200_000},
    {"command": "x", "priority": "huge"},
    {"command": "x", "priority": 10**12},
    {"command": "x", "priority": 2**60},
    {"command": "x", "gpu_count": -1},
    {"command": "x", "gpu_share": 1.5},
    {"command": "x", "gpu_share": 0},
    {"command": "x", "gpu_share": -0.5},
    {"command": "x", "gpu_share": 0.0005},
    {"command": "x", "gpu_share": 0.5, "gpu_count": 2},
    {"command": "x", "gpu_count": 5},
    {"command": "x", "gpu_count": 2**40},
    {"command": "x", "gpu_count": 2**60},
    {"command": "x", "gpu_memory_mb": 10**9, "gpu_count": 1},
    {"command": "x", "gpu_model": "H100"},
    {"command": "x", "gpu_model": "H100", "gpu_count": 1},
    {"command": "x", "cpus": 10**6},
    {"command": "x", "memory_mb": -5},
    {"command": "x", "tasks": 0},
    {"command": "x", "tasks": 10**6},
    {"command": "x", "tasks_per_node": -1},
    {"command": "x", "retries": 10**6},
    {"command": "x", "time_limit": "soon"},
    {"command": "x", "time_limit": "100000h"},
    {"command": "x", "array": "9-0"},
    {"command": "x", "array": "0-9999999"},
    {"command": "x", "after": "nope:1"},
    {"command": "x", "after": "ok:1_5"},
    {"command": "x", "begin": "yesterday or so"},
    {"command": "x", "begin": "2099-01-01T00:00:00Z"},
    {"command": "x", "where": "zone=="},
    {"command": "x", "exclude": ["ghost"]},
    {"command": "x", "tolerate": ["a b:c"]},
    {"command": "x", "partition": "ghost"},
    {"command": "x", "tenant": "ghost"},
    {"command": "x", "tenant": "theirs"},
    {"command": "x", "tenant": ""},
    {"command": "x", "user": "root"},
    {"command": "x", "user": "no such; account"},
    {"command": "x", "env": {"A=B": "x"}},
    {"command": "x", "env": {"A": "x" * 200_000}},
    {"command": "x", "workdir": "here"},
    {"command": "x", "image": "ubuntu"},
    {"command": "x", "name": "n" * 5_000},
    {"command": "x", "comment": "c" * 5_000},
    {"command": "x", "output": "relative\0"},
    {"command": "x", "class": "gold"},
    {"command": "x", "visible": "none"},
)


async def both(at: JobApis, token: str, body: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What REST and gRPC say to the same job: two jobs as REST shows them, or two problems."""
    reply = await at.rest(token, "POST", JOBS, body)
    if reply.status != 201:
        return problem_in(reply), await problem_from(at.submit(token, message_of(body)))
    answer = await at.submit(token, message_of(body))
    shown = await at.rest(token, "GET", f"{JOBS}/{answer.ids[0]}")
    return reply.json, shown.json


async def test_a_good_body_becomes_the_same_job_by_either_face(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        for body in GOOD:
            rest, rpc = await both(at, at.user, body)
            assert "code" not in rest, rest
            assert {**rest, **dict.fromkeys(OWN)} == {**rpc, **dict.fromkeys(OWN)}, body


async def test_a_bad_body_is_refused_in_the_same_words_by_either_face(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        taken = []
        for body in BAD:
            rest, rpc = await both(at, at.user, body)
            if "code" in rest:
                assert rest == rpc, body
            else:
                taken.append(body)
        assert taken == [{"command": "x", "tenant": ""}]  # as if it were left out, by either
        assert at.stage.control.committer.state.jobs.keys() == {1, 2}


async def test_a_bulk_is_refused_whole_and_names_the_job(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        for bad in ({"command": "x", "gpu_count": -1}, {"command": "x", "tenant": "theirs"}, {"command": ""}):
            bodies = [{"command": "true"}, bad]
            rest = problem_in(await at.rest(at.user, "POST", JOBS, {"jobs": bodies}))
            rpc = await problem_from(at.submit(at.user, *map(message_of, bodies)))
            assert rest == rpc
            assert "jobs[1]" in rpc["message"]
        rest = problem_in(await at.rest(at.user, "POST", JOBS, {"jobs": []}))
        assert rest == await problem_from(at.submit(at.user))
        assert not at.stage.control.committer.state.jobs


async def test_each_role_may_do_the_same_by_either_face(tmp_path: Path) -> None:
    wrong = fresh_token(SystemEntropy())
    async with job_apis(tmp_path) as at:
        job = (await at.submit(at.user, pb.NewJob(shell="true", hold=True))).ids[0]
        for token in (at.admin, at.user, at.viewer, at.stranger, at.agent, "", wrong):
            metadata = shows(token)
            calls = {
                ("POST", JOBS): at.stub.Submit(pb.SubmitRequest(jobs=[pb.NewJob(shell="true")]), metadata=metadata),
                ("GET", f"{JOBS}/{job}"): at.stub.Get(pb.GetRequest(id=job), metadata=metadata),
                ("GET", JOBS): at.stub.List(pb.ListRequest(), metadata=metadata),
            }
            for (method, path), call in calls.items():
                reply = await at.rest(token, method, path, {"command": "true"} if method == "POST" else None)
                if reply.status >= 400:
                    assert code_and_text(problem_in(reply)) == code_and_text(await problem_from(call)), (method, path)
                else:
                    await call
        for token in (at.viewer, at.stranger, at.agent):
            reply = problem_in(await at.rest(token, "DELETE", f"{JOBS}/{job}"))
            assert code_and_text(reply) == code_and_text(await problem_from(at.cancel(token, job)))


def code_and_text(problem: Mapping[str, Any]) -> tuple[str, int, str]:
    """Without the path, of which REST's has an id."""
    return problem["code"], problem["status"], problem["message"].replace("/1 ", " ")


@pytest.mark.parametrize("job_id", ["", "x", "99", "1_", "1_5", "0", "1_[0-", "99999999999999999999", "1_[0-3]"])
async def test_an_id_that_names_nothing_is_refused_in_the_same_words(tmp_path: Path, job_id: str) -> None:
    async with job_apis(tmp_path) as at:
        await at.submit(at.user, pb.NewJob(shell="true"))
        if job_id:  # REST lists at the empty one
            reply = problem_in(await at.rest(at.user, "GET", f"{JOBS}/{job_id}"))
            assert reply == await problem_from(at.get(at.user, job_id))
            reply = problem_in(await at.rest(at.user, "DELETE", f"{JOBS}/{job_id}"))
            assert reply == await problem_from(at.cancel(at.user, job_id))
        assert (await problem_from(at.get(at.user, job_id)))["status"] in (400, 404, 409)


@pytest.mark.parametrize(
    "wanted",
    [
        {"state": "asleep"},
        {"limit": 0},
        {"limit": -1},
        {"offset": -1},
        {"offset": 10**9},
        {"since": "some day"},
        {"after": "x"},
        {"after": "7_3"},
        {"job_class": "gold"},
    ],
    ids=str,
)
async def test_a_list_that_cannot_be_is_refused_in_the_same_words(tmp_path: Path, wanted: dict[str, Any]) -> None:
    async with job_apis(tmp_path) as at:
        query = "&".join(f"{name.replace('job_class', 'class')}={value}" for name, value in wanted.items())
        reply = problem_in(await at.rest(at.user, "GET", f"{JOBS}?{query.replace(' ', '%20')}"))
        assert reply == await problem_from(at.list(at.user, **wanted))


async def test_a_key_of_one_face_is_not_one_of_the_other(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        await at.rest(at.user, "POST", JOBS, {"command": "true"}, idempotency_key="k")
        problem = await problem_from(at.submit(at.user, pb.NewJob(shell="true"), key="k"))
        assert problem["code"] == "idempotency_key_reused"


async def test_a_crowd_of_calls_by_both_faces_gives_each_job_one_id(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        rpc = [at.submit(at.user, pb.NewJob(shell="true")) for _ in range(100)]
        rest = [at.rest(at.user, "POST", JOBS, {"command": "true"}) for _ in range(100)]
        answers = await asyncio.gather(*rpc)
        replies = await asyncio.gather(*rest)
        ids = [answer.ids[0] for answer in answers] + [reply.json["id"] for reply in replies]
        assert len(dict.fromkeys(ids)) == 200
