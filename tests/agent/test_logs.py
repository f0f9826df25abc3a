"""Rules L1 to L6 of `agent/logs.py`: many readers of output on one stream, and waiting for more of it."""

import asyncio
from collections.abc import Sequence

from stoker.agent.logs import WAIT_MS_MAX, WAITS_MAX
from stoker.agent.ports import LogSlice
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.report import LogChunk, LogRequest
from tests.agent.twins import Node, TwinControl, TwinRunner, TwinSession, exited, key, on_virtual_time, running

LONG_MS = 20_000
LIMIT = 1 << 18


class CountingRunner(TwinRunner):
    """Notes every read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[TaskKey, int]] = []

    async def read_log(self, key: TaskKey, offset: int, limit: int) -> LogSlice:
        self.reads.append((key, limit))
        return await super().read_log(key, offset, limit)


def ask(node: Node, number: int, *, job: int = 1, offset: int = 0, limit: int = LIMIT, wait_ms: int = LONG_MS) -> None:
    request = LogRequest(request=number, key=key(job), offset=offset, limit=limit, wait_ms=wait_ms)
    node.control.session.wanted.put_nowait(request)


async def answered(node: Node, numbers: Sequence[int], within_s: float = 0.05) -> list[LogChunk]:
    await node.until(lambda: {chunk.request for chunk in node.control.chunks} >= set(numbers), within_s)
    return [chunk for number in numbers for chunk in node.control.chunks if chunk.request == number]


def now_s() -> float:
    return asyncio.get_running_loop().time()


@on_virtual_time
async def test_a_read_that_need_not_wait_is_answered_while_others_wait() -> None:
    """L1."""
    async with Node() as node:
        await node.connected()
        node.runner.outputs |= {key(1): b"", key(2): b"hello"}
        ask(node, 1)
        ask(node, 2, job=2)
        ask(node, 3, wait_ms=0)
        there, nothing = await answered(node, (2, 3))
        assert (there.data, nothing.data, nothing.ended) == (b"hello", b"", False)
        assert len(node.control.chunks) == 2, "the first still waits"


@on_virtual_time
async def test_a_waiting_read_is_answered_once_there_are_bytes_beyond_its_offset() -> None:
    """L2."""
    async with Node() as node:
        await node.connected()
        node.runner.outputs[key(1)] = b"one\n"
        ask(node, 1, offset=4)
        await asyncio.sleep(10)
        assert not node.control.chunks
        node.runner.outputs[key(1)] += b"two\n"
        (chunk,) = await answered(node, (1,), within_s=0.3)
        assert (chunk.offset, chunk.data, chunk.ended) == (4, b"two\n", False)


@on_virtual_time
async def test_a_read_from_the_end_waits_only_while_nothing_was_written() -> None:
    """L2. `logs --tail` of a job that hasn't said anything yet."""
    async with Node() as node:
        await node.connected()
        node.runner.outputs[key(1)] = b""
        ask(node, 1, offset=-3)
        await asyncio.sleep(1)
        assert not node.control.chunks
        node.runner.outputs[key(1)] = b"hello"
        (chunk,) = await answered(node, (1,), within_s=0.3)
        assert chunk.data == b"llo"


@on_virtual_time
async def test_a_waiting_read_is_answered_when_the_output_ends() -> None:
    """L2. Without bytes: the reader learns that none will come."""
    async with Node() as node:
        await node.connected()
        await running(node)
        node.runner.outputs[key(1)] = b"all\n"
        ask(node, 1, offset=4)
        await asyncio.sleep(5)
        node.runner.end(key(1), exited())
        (chunk,) = await answered(node, (1,), within_s=0.3)
        assert (chunk.data, chunk.ended) == (b"", True)
        ask(node, 2, offset=4)
        await answered(node, (2,))


@on_virtual_time
async def test_a_wait_is_over_when_its_time_is_up_and_never_longer_than_the_bound() -> None:
    """L2."""
    async with Node() as node:
        await node.connected()
        node.runner.outputs[key(1)] = b""
        began_s = now_s()
        ask(node, 1, wait_ms=1_500)
        ask(node, 2, wait_ms=1 << 40)
        (chunk,) = await answered(node, (1,), within_s=2)
        assert (chunk.data, chunk.ended, chunk.error) == (b"", False, "")
        assert 1.5 <= now_s() - began_s < 1.6
        await answered(node, (2,), within_s=60)
        assert WAIT_MS_MAX <= (now_s() - began_s) * 1_000 < WAIT_MS_MAX + 100


@on_virtual_time
async def test_output_that_is_not_there_is_no_reason_to_wait() -> None:
    async with Node() as node:
        await node.connected()
        ask(node, 1)
        (chunk,) = await answered(node, (1,))
        assert "no output" in chunk.error


@on_virtual_time
async def test_a_hundred_idle_waits_for_one_task_cost_four_looks_a_second() -> None:
    """L3."""
    runner = CountingRunner()
    async with Node(runner=runner) as node:
        await node.connected()
        runner.outputs[key(1)] = b""
        for number in range(100):
            ask(node, number)
        await asyncio.sleep(1)
        runner.reads.clear()
        await asyncio.sleep(10)
        assert len(runner.reads) <= 41


@on_virtual_time
async def test_a_task_that_writes_again_and_again_is_looked_at_often() -> None:
    """L3. A follower of a busy job isn't a quarter of a second behind."""
    async with Node() as node:
        await node.connected()
        node.runner.outputs[key(1)] = b""
        ask(node, 0)
        await asyncio.sleep(5)
        for number in range(20):
            node.runner.outputs[key(1)] += b"x"
            await answered(node, (number,), within_s=0.3 if number == 0 else 0.06)
            ask(node, number + 1, offset=number + 1)


class SlowSession(TwinSession):
    """Takes one answer and then no more."""

    async def send_log(self, chunk: LogChunk) -> None:
        await super().send_log(chunk)
        await self.broken.wait()


class SlowControl(TwinControl):
    def session_of(self) -> TwinSession:
        return SlowSession(self, self.epoch)


@on_virtual_time
async def test_what_a_slow_stream_has_not_taken_is_not_read() -> None:
    """L4. A thousand followers who fall due together would hold a gigabyte."""
    runner = CountingRunner()
    async with Node(SlowControl(), runner) as node:
        await node.connected()
        runner.outputs[key(1)] = b""
        for number in range(100):
            ask(node, number)
        await asyncio.sleep(1)
        runner.outputs[key(1)] = b"hello"
        await asyncio.sleep(1)
        assert [limit for _, limit in runner.reads if limit] == [LIMIT]


@on_virtual_time
async def test_when_the_stream_breaks_every_wait_ends() -> None:
    """L5."""
    async with Node() as node:
        await node.connected()
        for job in range(1, 50):
            node.runner.outputs[key(job)] = b""
            ask(node, job, job=job)
        await asyncio.sleep(1)
        assert looking() == 49
        node.control.break_stream()
        await node.connected(streams=2)
        assert looking() == 0
        node.runner.outputs[key(1)] = b"hello"
        await asyncio.sleep(1)
        assert not node.control.chunks


def looking() -> int:
    return sum("look for output" in task.get_name() for task in asyncio.all_tasks())


@on_virtual_time
async def test_beyond_the_bound_of_waits_a_read_is_answered_at_once() -> None:
    async with Node() as node:
        await node.connected()
        node.runner.outputs[key(1)] = b""
        for number in range(WAITS_MAX):
            ask(node, number)
        await asyncio.sleep(1)
        assert not node.control.chunks
        ask(node, WAITS_MAX)
        (chunk,) = await answered(node, (WAITS_MAX,))
        assert not chunk.ended
        assert len(node.control.chunks) == 1


@on_virtual_time
async def test_followers_of_a_task_that_goes_on_writing_are_fed_together_fifty_times_a_second() -> None:
    """L6. Twenty who ask again as soon as they are answered would be answered thousands of times a second."""
    async with Node() as node:
        await node.connected()
        node.runner.outputs[key(1)] = b""
        answers: list[LogChunk] = []
        for reader in range(20):
            ask(node, reader)
        for _ in range(1_000):
            node.runner.outputs[key(1)] += b"a line of output\n"
            await asyncio.sleep(0.001)
            for chunk in node.control.chunks:
                ask(node, chunk.request, offset=chunk.offset + len(chunk.data))
            answers.extend(node.control.chunks)
            node.control.chunks.clear()
        assert 20 * 40 <= len(answers) <= 20 * 51


@on_virtual_time
async def test_a_follower_that_is_far_behind_need_not_wait_for_the_others() -> None:
    """L6."""
    async with Node() as node:
        await node.connected()
        node.runner.outputs[key(1)] = bytes(10_000)
        for number in range(100):
            ask(node, number, offset=100 * number, limit=100)
            await answered(node, (number,), within_s=0.015)
