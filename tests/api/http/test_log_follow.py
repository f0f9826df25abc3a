"""Following output over HTTP: G1 to G3 of `api.http.logs`, and W1 to W4."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stoker.api.http import logs
from stoker.brain.domain.instruction import Start
from stoker.brain.domain.job import EndCause
from tests.api.http.following import LOGS, Node, Reader, asgi_stuck, node_of, stream
from tests.api.http.plane import Plane, Reply, plane_in


@asynccontextmanager
async def writing(plane: Plane, **fields: object) -> AsyncIterator[tuple[Node, Start]]:
    """A job that runs and has written nothing yet."""
    async with node_of(plane) as node:
        await plane.ask("POST", "/api/v1/jobs", {"command": "x", **fields})
        yield node, await node.agent.run()


def asking(plane: Plane, query: str) -> "asyncio.Task[Reply]":
    return asyncio.ensure_future(plane.get(f"{LOGS}?{query}"))


async def waits(asked: "asyncio.Task[Any]", seconds: float = 0.3) -> bool:
    await asyncio.wait({asked}, timeout=seconds)
    return not asked.done()


async def ended(asked: "asyncio.Task[Any]") -> Any:  # noqa: ANN401  # whatever it answers
    async with asyncio.timeout(30):
        return await asked


# --- a wait --------------------------------------------------------------------------------------------------------


async def test_an_answer_comes_as_soon_as_there_is_more(plane: Plane) -> None:
    async with writing(plane) as (node, _):
        node.write(b"one\n")
        assert (await plane.get(f"{LOGS}?offset=0&wait_s=20")).body == b"one\n"
        asked = asking(plane, "offset=4&wait_s=20")
        assert await waits(asked)
        node.write(b"two\n")
        reply = await ended(asked)
        assert (reply.status, reply.body) == (200, b"two\n")
        assert {name: reply.headers[f"x-stoker-log-{name}"] for name in ("attempt", "offset", "size", "ended")} == {
            "attempt": "1",
            "offset": "4",
            "size": "8",
            "ended": "false",
        }


async def test_an_end_is_told_at_once_and_a_wait_that_brought_nothing_is_empty(plane: Plane) -> None:
    async with writing(plane) as (node, _):
        empty = await plane.get(f"{LOGS}?wait_s=1")
        assert (empty.status, empty.body, empty.headers["x-stoker-log-ended"]) == (200, b"", "false")
        asked = asking(plane, "wait_s=20")
        assert await waits(asked)
        node.end()
        assert (await ended(asked)).headers["x-stoker-log-ended"] == "true"


async def test_an_attempt_that_may_yet_begin_is_waited_for(plane: Plane) -> None:
    await plane.ask("POST", "/api/v1/jobs", {"command": "x"})
    asked, second = asking(plane, "wait_s=20"), asking(plane, "attempt=2&wait_s=20")
    assert await waits(asked)
    async with node_of(plane) as node:
        start = await node.agent.run()
        node.write(b"one\n")
        assert (await ended(asked)).body == b"one\n"
        assert not second.done()
        await node.agent.end(start)
        reply = await ended(second)
        assert (reply.status, reply.json["code"]) == (404, "attempt_unknown")


async def test_a_job_that_ends_unborn_is_waited_for_no_longer(plane: Plane) -> None:
    await plane.ask("POST", "/api/v1/jobs", {"command": "x"})
    asked = asking(plane, "wait_s=20")
    assert await waits(asked)
    await plane.ask("DELETE", "/api/v1/jobs/1")
    reply = await ended(asked)
    assert (reply.status, reply.json["code"]) == (409, "not_started")
    assert (await ended(asking(plane, "wait_s=20"))).status == 409


async def test_a_node_that_comes_back_within_the_wait_is_waited_for(plane: Plane) -> None:
    async with writing(plane) as (node, _):
        plane.control.sessions.detach(node.agent.stream)
        asked = asking(plane, "wait_s=20")
        assert await waits(asked)
        async with node_of(plane) as again:
            again.write(b"here\n")
            assert (await ended(asked)).body == b"here\n"
            short = await plane.get(f"{LOGS}?wait_s=1&offset=5")
            assert (short.status, short.body) == (200, b"")


async def test_whoever_hangs_up_waits_no_longer(plane: Plane) -> None:
    async with writing(plane) as (node, _):
        sent: list[Any] = []
        gone = asyncio.Event()
        asked = asyncio.ensure_future(stream(plane, f"{LOGS}?wait_s=20", sent, gone))
        assert await waits(asked)
        gone.set()
        await ended(asked)
        assert not any(message.get("body") for message in sent)
        node.write(b"late\n")


async def test_an_array_says_that_its_members_write(plane: Plane) -> None:
    await plane.ask("POST", "/api/v1/jobs", {"command": "x", "array": "2-5"})
    reply = await plane.get(f"{LOGS}?wait_s=5")
    assert (reply.status, reply.json["code"]) == (400, "several_jobs")
    assert "`1_2`" in reply.json["hint"], "a member that there is"
    assert (await plane.get("/api/v1/jobs/1_2/logs")).json["code"] == "not_started"


async def test_the_more_is_held_for_readers_the_less_an_answer_brings_but_never_nothing(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "UNTAKEN_BYTES_MAX", 300_000)
    async with writing(plane) as (node, _):
        node.write(b"x" * 2_000_000)
        stuck = [asyncio.ensure_future(asgi_stuck(plane, f"{LOGS}?limit=200000")) for _ in range(3)]
        assert await waits(stuck[-1])
        assert len((await plane.get(f"{LOGS}?limit=200000")).body) == logs.PIECE_BYTES
        for each in stuck:
            each.cancel()
        await asyncio.wait(stuck)
        assert len((await plane.get(f"{LOGS}?limit=200000")).body) == 200_000


# --- a stream ------------------------------------------------------------------------------------------------------


async def test_a_stream_brings_everything_and_ends_with_the_job(plane: Plane) -> None:
    async with writing(plane) as (node, start):
        reader = Reader(plane)
        node.write(b"one\n")
        await plane.until(lambda: reader.body == b"one\n")
        node.write(b"two\n")
        node.end()
        await plane.until(lambda: reader.body == b"one\ntwo\n")
        assert await waits(reader.reading), "the job may yet be requeued"
        await node.agent.end(start)
        await ended(reader.reading)
        assert (reader.is_whole, reader.body) == (True, b"one\ntwo\n")


async def test_a_stream_begun_before_its_job_waits_for_it(plane: Plane) -> None:
    await plane.ask("POST", "/api/v1/jobs", {"command": "x"})
    reader = Reader(plane)
    assert await waits(reader.reading)
    assert reader.sent[0]["status"] == 200, "whoever connects sees that it is connected"
    async with node_of(plane) as node:
        start = await node.agent.run()
        node.write(b"one\n")
        node.end()
        await node.agent.end(start)
        await ended(reader.reading)
        assert (reader.is_whole, reader.body) == (True, b"one\n")


async def test_a_stream_goes_on_after_an_attempt_that_never_had_a_process(plane: Plane) -> None:
    """As where its image could not be pulled: its node keeps no output of it, not even an empty one (G4)."""
    async with node_of(plane) as node:
        await plane.ask("POST", "/api/v1/jobs", {"command": "x"})
        start = await node.agent.next_start()
        node.refuse("none is kept there any more")
        whole, asked = Reader(plane), asking(plane, "attempt=1&wait_s=20")
        assert await waits(asked)
        await node.agent.end(start, cause=EndCause.NEVER_STARTED)
        reply = await ended(asked)
        assert (reply.status, reply.body, reply.headers["x-stoker-log-ended"]) == (200, b"", "true")
        assert (await plane.get(f"{LOGS}?attempt=1&tail=3")).body == b""
        start = await node.agent.run()
        await plane.until(lambda: whole.body == b"[stoker: attempt 2]\n")
        node.begin()
        node.write(b"two\n")
        node.end()
        await plane.until(lambda: whole.body.endswith(b"two\n"))
        await node.agent.end(start)
        await ended(whole.reading)
        assert (whole.is_whole, whole.body) == (True, b"[stoker: attempt 2]\ntwo\n")


async def test_a_stream_goes_on_with_the_next_attempt_unless_one_was_asked_for(plane: Plane) -> None:
    async with writing(plane, retries=1) as (node, start):
        whole, first = Reader(plane), Reader(plane, "&attempt=1")
        node.write(b"one")
        node.end()
        await plane.until(lambda: whole.body == first.body == b"one")
        await node.agent.end(start, exit_code=1)
        await ended(first.reading)
        assert (first.is_whole, first.body) == (True, b"one")
        node.begin()
        start = await node.agent.run()
        node.write(b"two\n")
        node.end()
        await node.agent.end(start)
        await ended(whole.reading)
        assert (whole.is_whole, whole.body) == (True, b"one\n[stoker: attempt 2]\ntwo\n")


async def test_a_stream_may_begin_with_the_last_lines_or_at_an_offset(plane: Plane) -> None:
    async with writing(plane) as (node, start):
        node.write(b"a\nb\nc\n")
        node.end()
        await node.agent.end(start)
        for query, expected in (("&tail=2", b"b\nc\n"), ("&offset=4", b"c\n"), ("&offset=-2", b"c\n")):
            reader = Reader(plane, query)
            await ended(reader.reading)
            assert (reader.is_whole, reader.body) == (True, expected)


async def test_bytes_that_were_not_kept_are_said_in_a_line_of_its_own(plane: Plane) -> None:
    async with writing(plane) as (node, start):
        reader = Reader(plane)
        node.write(b"head")
        await plane.until(lambda: reader.body == b"head")
        node.write(b"x" * 996 + b"tail\n", drop_to=1_000)
        node.end()
        await node.agent.end(start)
        await ended(reader.reading)
        assert (reader.is_whole, reader.body) == (True, b"head\n[stoker: 996 bytes were not kept]\ntail\n")


async def test_a_reader_who_takes_nothing_is_waited_for_by_nobody(plane: Plane) -> None:
    async with writing(plane) as (node, start):
        stuck = asyncio.ensure_future(asgi_stuck(plane, f"{LOGS}?follow=true"))
        reader = Reader(plane)
        expected = bytearray()
        for number in range(12):
            line = b"%09d\n" % number * 6_000
            node.write(line)
            expected += line
            await reader.until(len(expected))
        node.end()
        await node.agent.end(start)
        await ended(reader.reading)
        assert (reader.is_whole, reader.body) == (True, expected)
        assert not stuck.done()
        stuck.cancel()
        await asyncio.wait({stuck})


async def test_a_stream_that_cannot_go_on_is_broken_off_with_the_reason(plane: Plane) -> None:
    async with writing(plane) as (node, _):
        reader = Reader(plane)
        node.write(b"half a line")
        await plane.until(lambda: reader.body == b"half a line")
        plane.control.close_streams()
        await plane.until(reader.broken.is_set)
        assert reader.body == b"half a line\n[stoker: this control plane stops [stopping]]\n"
        assert not reader.is_whole
        reader.reading.cancel()
        await asyncio.wait({reader.reading})


async def test_streams_beyond_the_bound_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "STREAMS_MAX", 2)
    async with plane_in(tmp_path) as plane, writing(plane) as (node, start):
        readers = [Reader(plane) for _ in range(2)]
        assert await waits(readers[1].reading)
        refused = await plane.get(f"{LOGS}?follow=true")
        assert (refused.status, refused.json["code"], refused.headers["retry-after"]) == (503, "too_many_streams", "1")
        node.end()
        await node.agent.end(start)
        for reader in readers:
            await ended(reader.reading)
        assert (await plane.get(f"{LOGS}?follow=true")).status == 200


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/api/v1/jobs/9/logs?follow=true", 404, "job_unknown"),
        (f"{LOGS}?follow=true&attempt=7", 404, "attempt_unknown"),
        (f"{LOGS}?follow=true&rank=3", 404, "attempt_unknown"),
        (f"{LOGS}?follow=perhaps", 400, "bad_parameter"),
        (f"{LOGS}?wait_s=-1", 400, "bad_parameter"),
        (f"{LOGS}?wait_s=soon", 400, "bad_parameter"),
    ],
)
async def test_what_cannot_be_followed_is_refused_at_once(plane: Plane, target: str, status: int, code: str) -> None:
    async with writing(plane) as (node, start):
        await node.agent.end(start, cause=EndCause.EXITED)
        reply = await ended(asyncio.ensure_future(plane.get(target)))
        assert (reply.status, reply.json["code"]) == (status, code)


async def test_the_head_of_a_stream_ends(plane: Plane) -> None:
    async with writing(plane):
        reply = await ended(asyncio.ensure_future(plane.ask("HEAD", f"{LOGS}?follow=true")))
        assert (reply.status, reply.body) == (200, b"")
        reply = await ended(asyncio.ensure_future(plane.ask("HEAD", f"{LOGS}?wait_s=20")))
        assert reply.status == 200
