"""An output that grows, is dropped or ends, and followers who read it as fast as they do, on virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.report import LogChunk
from stoker.control.control_ports import LogPlace
from stoker.control.output_reader import LogTails
from tests.rig.sim_ports import SimClock

LINE = b"%099d\n"
KIB = 1_024


def place(job: int = 1) -> LogPlace:
    return LogPlace(NodeName("n1"), TaskKey(JobId(job), 1, 0))


class Node:
    """Keeps one output, which every place shares, and answers as an agent does."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.kept_from = 0
        self.ended = False
        self.refusal = ""
        self.is_over = False
        self.asked: list[tuple[int, int]] = []
        """Offset, and milliseconds to wait, of each read."""
        self.waiting = 0
        self._news = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.written += data
        self._tell()

    def drop(self, to: int) -> None:
        self.kept_from = to

    def end(self) -> None:
        self.ended = True
        self._tell()

    def refuse(self, code: str) -> None:
        """From now on, and whoever waits is told too."""
        self.refusal = code
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def read(self, place: LogPlace, offset: int, limit: int, wait_ms: int) -> LogChunk:
        self.asked.append((offset, wait_ms))
        await asyncio.sleep(0.005)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1_000):
                while wait_ms and not (self.refusal or self.ended or len(self.written) > offset):
                    self.waiting += 1
                    try:
                        await self._news.wait()
                    finally:
                        self.waiting -= 1
        if self.refusal:
            raise StokerError(refuse(self.refusal, "it can't", "wait"))
        size = len(self.written)
        begin = max(self.kept_from, max(0, size + offset) if offset < 0 else min(offset, size))
        return LogChunk(
            request=0, offset=begin, data=bytes(self.written[begin : begin + limit]), size=size, ended=self.ended
        )


@asynccontextmanager
async def followed() -> AsyncIterator[tuple[Node, LogTails]]:
    node = Node()
    tails = LogTails(node.read, lambda key: node.is_over, SimClock())
    try:
        yield node, tails
    finally:
        tails.close()


class Follower:
    """Reads on and on, with a pause between, and notes what it is given."""

    def __init__(self, tails: LogTails, *, pause_s: float = 0.0, limit: int = 64 * KIB, job: int = 1) -> None:
        self.got = bytearray()
        self.gaps: list[tuple[int, int]] = []
        self._tails, self._pause_s, self._limit, self._place = tails, pause_s, limit, place(job)
        self.reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        offset = 0
        while True:
            chunk = await self._tails.read(self._place, offset, self._limit, 20.0)
            assert chunk.offset >= offset, "nothing comes twice"
            if chunk.offset > offset:
                self.gaps.append((offset, chunk.offset))
            self.got += chunk.data
            offset = chunk.offset + len(chunk.data)
            if chunk.ended and offset >= chunk.size:
                return
            await asyncio.sleep(self._pause_s)


async def write_for(node: Node, seconds: float, bytes_per_s: int) -> None:
    for number in range(round(seconds / 0.05)):
        node.write((LINE % number) * (bytes_per_s // 20 // 100))
        await asyncio.sleep(0.05)
