"""REST for output."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stoker.brain.domain.access import Role
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import PolicySettings
from tests.api.http.plane import Agent, Plane, Reply, plane_in
from tests.api.http.tokens import token_of

LOGS = "/api/v1/jobs/1/logs"


@asynccontextmanager
async def written(plane: Plane, output: bytes) -> AsyncIterator[Agent]:
    """A job that wrote `output` on a node that can be asked."""
    agent = await plane.join("n")
    await plane.ask("POST", "/api/v1/jobs", {"command": "x"})
    await agent.run()
    serving = asyncio.create_task(agent.serve_log(output))
    try:
        yield agent
    finally:
        serving.cancel()


def place(reply: Reply) -> tuple[int, int, str]:
    names = ("x-stoker-log-offset", "x-stoker-log-size", "x-stoker-log-ended")
    offset, size, ended = (reply.headers[name] for name in names)
    return int(offset), int(size), ended


async def test_output_is_read_from_an_offset_with_its_place_in_the_headers(plane: Plane) -> None:
    async with written(plane, b"one\ntwo\nthree\n"):
        whole = await plane.get(LOGS)
        assert (whole.status, whole.body, place(whole)) == (200, b"one\ntwo\nthree\n", (0, 14, "true"))
        part = await plane.get(f"{LOGS}?offset=4&limit=4")
        assert (part.body, place(part)) == (b"two\n", (4, 14, "true"))
        end = await plane.get(f"{LOGS}?offset=-6")
        assert (end.body, place(end)) == (b"three\n", (8, 14, "true"))
        beyond = await plane.get(f"{LOGS}?offset=100")
        assert beyond.body == b""


@pytest.mark.parametrize("name", ["1", "2_1"])
async def test_output_of_a_job_that_the_state_has_forgotten_is_read_from_its_node(tmp_path: Path, name: str) -> None:
    async with plane_in(tmp_path, ControlSettings(policy=PolicySettings(ended_jobs_max=1))) as plane:
        agent, last = await plane.join("n"), {"command": "x", "array": "0-2"}
        for submitted in ({"command": "x"}, last, {"command": "x"}):
            await plane.ask("POST", "/api/v1/jobs", submitted)
            for _ in range(3 if submitted is last else 1):
                await agent.end(await agent.run())
        await plane.until(lambda: len(plane.control.committer.state.jobs) == 1)
        logs = f"/api/v1/jobs/{name}/logs"
        serving = asyncio.create_task(agent.serve_log(b"one\ntwo\n"))
        whole = await plane.get(logs)
        assert (whole.status, whole.body, place(whole)) == (200, b"one\ntwo\n", (0, 8, "true"))
        assert (await plane.get(f"{logs}?follow=true")).body == b"one\ntwo\n"
        assert (await plane.get(f"{logs}?attempt=2")).json["code"] == "attempt_unknown"
        assert (await plane.get(f"{logs}?attempt=2&wait_s=20")).json["code"] == "attempt_unknown", "at once"
        assert (await plane.get("/api/v1/jobs/2/logs")).json["code"] == "several_jobs"
        serving.cancel()


async def test_output_of_a_forgotten_job_is_for_those_who_may_read_the_job(tmp_path: Path) -> None:
    async with plane_in(tmp_path, ControlSettings(policy=PolicySettings(ended_jobs_max=1))) as plane:
        agent = await plane.join("n")
        for _ in range(2):
            await plane.ask("POST", "/api/v1/jobs", {"command": "x"})
            await agent.end(await agent.run())
        await plane.until(lambda: len(plane.control.committer.state.jobs) == 1)
        await plane.ask("POST", "/api/v1/tenants", {"name": "other"})
        refused = await plane.ask("GET", LOGS, headers=await token_of(plane, Role.USER, "other"))
        assert (refused.status, refused.json["code"]) == (403, "not_allowed")


async def test_bytes_that_are_no_text_pass_through(plane: Plane) -> None:
    output = bytes(range(256)) + b"\xff\xfe\n"
    async with written(plane, output):
        reply = await plane.get(LOGS)
        assert reply.body == output
        assert reply.headers["content-type"].startswith("text/plain")
        assert reply.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(("lines", "expected"), [(1, b"c"), (2, b"b\nc"), (3, b"a\nb\nc"), (9, b"a\nb\nc")])
async def test_a_tail_is_the_last_lines_also_where_the_last_is_unfinished(
    plane: Plane, lines: int, expected: bytes
) -> None:
    """Fault 117: a cut kept the head and dropped the traceback."""
    for output, wanted in ((b"a\nb\nc", expected), (b"a\nb\nc\n", expected + b"\n")):
        async with written(plane, output):
            reply = await plane.get(f"/api/v1/jobs/{plane.control.committer.state.next_job_id - 1}/logs?tail={lines}")
            assert reply.body == wanted
            assert place(reply)[0] == len(output) - len(wanted)


async def test_a_tail_of_long_lines_is_fetched_and_bounded(plane: Plane) -> None:
    output = b"".join(b"%05d" % i + b"x" * 994 + b"\n" for i in range(3_000))
    async with written(plane, output):
        assert (await plane.get(f"{LOGS}?tail=100")).body == output[-100_000:]
        most = await plane.get(f"{LOGS}?tail=1000000")
        assert len(most.body) == 1 << 20
        assert most.body == output[-(1 << 20) :]


async def test_a_limit_above_the_bound_is_read_as_the_bound(plane: Plane) -> None:
    async with written(plane, b"x" * (3 << 20)):
        assert len((await plane.get(f"{LOGS}?limit=999999999")).body) == 1 << 20


@pytest.mark.parametrize("offset", [2**53, 2**63, -(2**63) - 1, 10**30])
async def test_an_offset_that_no_message_could_carry_is_refused(plane: Plane, offset: int) -> None:
    """It would end the stream to the node, and with it everything that is asked there."""
    async with written(plane, b"x"):
        answer = await plane.get(f"{LOGS}?offset={offset}")
        assert (answer.status, answer.json["code"]) == (400, "bad_parameter")
        assert (await plane.get(LOGS)).body == b"x"


async def test_a_job_that_has_not_started_has_no_output(plane: Plane) -> None:
    await plane.ask("POST", "/api/v1/jobs", {"command": "x"})
    reply = await plane.get(LOGS)
    assert (reply.status, reply.json["code"]) == (409, "not_started")
    assert "why 1" in reply.json["hint"]


@pytest.mark.parametrize("query", ["rank=1", "attempt=2", "rank=99&attempt=1"])
async def test_a_rank_or_attempt_that_is_not_there_is_404(plane: Plane, query: str) -> None:
    async with written(plane, b""):
        reply = await plane.get(f"{LOGS}?{query}")
        assert (reply.status, reply.json["code"]) == (404, "attempt_unknown")


async def test_output_on_a_node_without_a_stream_says_where_it_is(plane: Plane) -> None:
    async with written(plane, b"x") as agent:
        plane.control.sessions.detach(agent.stream)
        reply = await plane.get(LOGS)
        assert (reply.status, reply.json["code"], reply.json["facts"]["node"]) == (503, "node_unreachable", "n")
