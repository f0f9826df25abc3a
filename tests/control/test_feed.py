"""Following what became durable: F1 to F4 of `control.feed`."""

import asyncio

import pytest

from stoker.brain.domain.ids import CONTROL, Epoch, JobId, Position
from stoker.brain.domain.units import Instant
from stoker.brain.state.codec import Fact
from stoker.brain.state.events.job import JobSubmitted
from stoker.brain.state.events.leadership import EpochBegan
from stoker.control.feed import Entry, Feed, FeedLost
from tests.brain.state.story import spec
from tests.control.stage import stage, virtual


def entries(first: int, last: int) -> list[Entry]:
    return [
        (Position(at), Fact(at=Instant(at), by=CONTROL, event=EpochBegan(epoch=Epoch(at))))
        for at in range(first, last + 1)
    ]


async def test_a_subscriber_sees_every_fact_once_and_in_order() -> None:
    feed = Feed(Position(10), feed_max=100)
    following = feed.subscribe(None)
    feed.publish(entries(11, 13))
    feed.publish(entries(14, 14))
    feed.close()
    assert [position async for position, _ in following] == [11, 12, 13, 14]


async def test_a_subscriber_resumes_after_the_position_it_names() -> None:
    feed = Feed(Position(0), feed_max=100)
    feed.publish(entries(1, 9))
    feed.close()
    assert [position async for position, _ in feed.subscribe(Position(6))] == [7, 8, 9]


async def test_a_subscriber_that_falls_behind_is_told_so_and_slows_nobody() -> None:
    feed = Feed(Position(0), feed_max=5)
    slow = feed.subscribe(None)
    feed.publish(entries(1, 1))
    assert (await anext(slow))[0] == 1
    feed.publish(entries(2, 8))
    with pytest.raises(FeedLost) as lost:
        await anext(slow)
    assert lost.value.oldest == 4


async def test_a_position_before_the_feed_or_beyond_it_is_lost_at_once() -> None:
    feed = Feed(Position(10), feed_max=5)
    for position in (Position(3), Position(11)):
        with pytest.raises(FeedLost):
            await anext(feed.subscribe(position))


async def test_a_waiting_subscriber_wakes_for_news_and_ends_on_close() -> None:
    feed = Feed(Position(0), feed_max=5)
    following = feed.subscribe(None)
    waiting = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0)
    feed.publish(entries(1, 1))
    assert (await waiting)[0] == 1
    ending = asyncio.ensure_future(anext(following, None))
    await asyncio.sleep(0)
    feed.close()
    assert await ending is None


def test_f4_a_ring_of_large_jobs_is_bounded_by_their_memory() -> None:
    large = spec(env={"A": "x" * 100_000})
    facts = [
        (Position(at), Fact(at=Instant(at), by=CONTROL, event=JobSubmitted(job=JobId(at), uid="", spec=large)))
        for at in range(1, 31)
    ]
    feed = Feed(Position(0), bytes_max=1 << 20)
    feed.publish(facts[:20])
    assert feed.entries() == facts[10:20]
    feed.publish([*facts[20:], *entries(31, 40)])
    assert [position for position, _ in feed.entries()] == list(range(21, 41))


@virtual
async def test_only_durable_facts_are_announced() -> None:
    async with stage() as s:
        following = s.committer.feed.subscribe(None)
        s.log.gate.clear()
        asking = asyncio.ensure_future(s.submit())
        news = asyncio.ensure_future(anext(following))
        await s.pause()
        assert not news.done()
        s.log.gate.set()
        await asking
        assert (await news)[0] == s.committer.durable


@virtual
async def test_who_followed_before_a_restart_resumes_after_it() -> None:
    async with stage() as s:
        disk = s.disk
        await s.submit()
        seen = s.committer.durable
        await s.submit()
        s.control.snapshots._saved = s.state.position  # as after a crash: no snapshot is taken on the way out
    async with stage(disk) as s:
        following = s.committer.feed.subscribe(seen)
        assert (await anext(following))[0] == seen + 1
