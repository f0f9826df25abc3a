"""Reads of output on an agent's stream: what is asked for at a time, and what is left behind."""

import asyncio

import pytest

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.report import LogChunk, LogRequest
from stoker.live import streams
from stoker.live.streams import LOG_READS_SENT_MAX, LogChannel

KEY = TaskKey(JobId(1), 1, 0)


class Bench:
    """A channel whose requests reach `sent`."""

    def __init__(self, requests_max: int = 64) -> None:
        self.channel = LogChannel(requests_max)
        self.sent: list[LogRequest] = []
        self._pump = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        async for request in self.channel.requests():
            self.sent.append(request)

    def ask(self, offset: int = 0, wait_ms: int = 0) -> "asyncio.Task[LogChunk | None]":
        return asyncio.ensure_future(self.channel.read(KEY, offset, 100, wait_ms))

    def answer(self, request: LogRequest) -> None:
        chunk = LogChunk(request=request.request, offset=request.offset, data=b"x", size=1, ended=False)
        self.channel.answer(chunk)

    async def close(self) -> None:
        self.channel.close()
        await self._pump


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_few_reads_lie_on_the_stream_at_a_time_and_a_wait_passes_those_that_queue() -> None:
    bench = Bench()
    reads = [bench.ask(offset) for offset in range(20)]
    await settled()
    assert [request.offset for request in bench.sent] == list(range(LOG_READS_SENT_MAX))
    wait = bench.ask(500, wait_ms=15_000)
    await settled()
    assert [request.offset for request in bench.sent][LOG_READS_SENT_MAX:] == [500]
    bench.answer(bench.sent[0])
    await settled()
    assert bench.sent[-1].offset == LOG_READS_SENT_MAX, "the next in line"
    await bench.close()
    assert [await each for each in (*reads[1:], wait)] == [None] * 20


async def test_whoever_gives_up_leaves_nothing_behind_on_a_stream_that_nobody_reads() -> None:
    channel = LogChannel(64)
    for _ in range(200):
        read = asyncio.ensure_future(channel.read(KEY, 0, 100, 0))
        await settled()
        read.cancel()
        await asyncio.wait({read})
    late = asyncio.ensure_future(channel.read(KEY, 7, 100, 0))
    await settled()
    assert (await anext(channel.requests())).offset == 7
    late.cancel()
    await asyncio.wait({late})


async def test_bytes_that_are_on_their_way_count_also_when_nobody_waits_for_them_any_more() -> None:
    """Whoever asks and hangs up, again and again, doesn't fill the stream that others follow on."""
    bench = Bench()
    for _ in range(50):
        read = bench.ask()
        await settled()
        read.cancel()
        await asyncio.wait({read})
    assert len(bench.sent) == LOG_READS_SENT_MAX
    for request in bench.sent:
        bench.answer(request)
    read = bench.ask(7)
    await settled()
    assert bench.sent[-1].offset == 7
    await bench.close()
    assert await read is None


async def test_reads_and_waits_each_have_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LOG_WAITS_MAX", 2)
    bench = Bench(requests_max=3)
    waits = [bench.ask(wait_ms=1_000) for _ in range(2)]
    reads = [bench.ask() for _ in range(3)]
    await settled()
    for wait_ms in (0, 1_000):
        with pytest.raises(StokerError) as refused:
            await bench.channel.read(KEY, 0, 100, wait_ms)
        assert refused.value.refusal.code == "too_many_streams"
    bench.answer(bench.sent[0])
    await settled()
    waits.append(bench.ask(wait_ms=1_000))
    await settled()
    assert not waits[-1].done()
    await bench.close()
    await asyncio.wait([*waits, *reads])
