"""REST for events: server-sent, durable, resumable."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from stoker.api.http import events
from stoker.api.http.events import STREAMS_MAX, MessageCache, messages
from stoker.api.http.responses import StreamLimit
from stoker.brain.domain.access import OWNER, Caller
from stoker.brain.domain.ids import Position
from stoker.control.feed import Entry, Feed
from stoker.control.queries.event_visibility import VisibleEvents
from tests.api.http.plane import Plane

EVENTS = "/api/v1/events"


def following(plane: Plane, entries: AsyncIterator[Entry], caller: Caller = OWNER) -> AsyncGenerator[bytes, None]:
    """The stream of one reader."""
    access = plane.control.access
    return messages(VisibleEvents(plane.control, caller, entries), lambda: access.watch(caller), MessageCache().message)


async def told(stream: AsyncIterator[bytes]) -> dict[str, Any]:
    """The next message that is no comment."""
    async with asyncio.timeout(30):
        while True:
            text = (await anext(stream)).decode()
            if not text.startswith(":"):
                return dict(line.split(": ", 1) for line in text.strip().split("\n"))


async def test_a_reader_hears_each_durable_fact_with_its_position_as_id(plane: Plane) -> None:
    heard = VisibleEvents(plane.control, OWNER, plane.control.committer.feed.subscribe(None))
    stream = messages(heard, lambda: plane.control.access.watch(OWNER), MessageCache().message)
    assert await anext(stream) == b": stoker\n\n"
    await plane.ask("POST", "/api/v1/jobs", {"command": "echo a\nb", "name": "n\n"})
    message = await told(stream)
    shown = json.loads(message["data"])
    assert message["event"] == "job_submitted"
    assert int(message["id"]) == shown["position"] == plane.control.committer.durable
    assert shown["event"]["type"] == "job_submitted"
    assert shown["event"]["spec"]["command"] == "echo a\nb"
    assert (shown["by"], shown["at"][-1]) == ("user:local", "Z")
    await stream.aclose()


async def test_a_large_event_is_encoded_once_for_all_who_hear_it(plane: Plane) -> None:
    await plane.ask("POST", "/api/v1/jobs", {"command": "x", "env": {"A": "x" * 100_000}})
    feed, cache = plane.control.committer.feed, MessageCache()
    entries = [entry for entry in feed.entries() if len(cache.message(entry)) > 100_000]
    assert len(entries) == 1
    assert cache.message(entries[0]) is cache.message(entries[0])
    for entry in feed.entries():
        assert cache.message(entry).startswith(b"id: %d\n" % entry[0])


async def test_a_reader_that_comes_back_misses_nothing_and_hears_nothing_twice(plane: Plane) -> None:
    await plane.ask("POST", "/api/v1/jobs", {"jobs": [{"command": "x"}] * 5})
    feed = plane.control.committer.feed
    last = plane.control.committer.durable
    stream = following(plane, feed.subscribe(Position(last - 3)))
    assert [int((await told(stream))["id"]) for _ in range(3)] == [last - 2, last - 1, last]
    await stream.aclose()


async def test_a_reader_that_fell_behind_is_told_so_once_and_where_it_may_go_on(plane: Plane) -> None:
    small = Feed(Position(0), feed_max=2)
    stream = following(plane, small.subscribe(None))
    await anext(stream)
    await plane.ask("POST", "/api/v1/jobs", {"jobs": [{"command": "x"}] * 5})
    first = plane.control.committer.feed
    entries = [first._at(Position(p)) for p in range(first.oldest, first.newest + 1)]
    small.publish([(Position(i + 1), fact) for i, (_, fact) in enumerate(entries)])
    message = await told(stream)
    problem = json.loads(message["data"])
    assert (message["event"], problem["code"], problem["status"]) == ("lost", "feed_lost", 410)
    assert int(message["id"]) == problem["facts"]["oldest"] - 1
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_an_id_from_another_log_is_lost_not_silent(plane: Plane) -> None:
    reply = await plane.ask("GET", EVENTS, headers={"last-event-id": "999999"})
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert b"event: lost" in reply.body


async def test_a_quiet_stream_beats(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BEAT_S", 0.01)
    stream = following(plane, plane.control.committer.feed.subscribe(None))
    async with asyncio.timeout(30):
        assert [await anext(stream) for _ in range(3)] == [b": stoker\n\n", b": beat\n\n", b": beat\n\n"]
    await stream.aclose()


async def test_a_stream_ends_when_the_control_plane_stops(plane: Plane) -> None:
    feed = Feed(Position(0))
    stream = following(plane, feed.subscribe(None))
    await anext(stream)
    feed.close()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


@pytest.mark.parametrize("text", ["x", "-1", "1.5", "9" * 30])
async def test_an_id_that_is_no_position_is_refused(plane: Plane, text: str) -> None:
    by_header = await plane.ask("GET", EVENTS, headers={"last-event-id": text})
    by_query = await plane.get(f"{EVENTS}?after={text}")
    assert (by_header.status, by_query.status) == (400, 400)


async def test_streams_are_bounded(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamLimit, "count", STREAMS_MAX)
    reply = await plane.get(EVENTS)
    assert (reply.status, reply.json["code"], reply.headers["retry-after"]) == (503, "too_many_streams", "1")


async def test_the_head_of_the_endless_stream_ends(plane: Plane) -> None:
    async with asyncio.timeout(30):
        reply = await plane.ask("HEAD", EVENTS)
    assert (reply.status, reply.body) == (200, b"")
