"""Queues of messages between the control plane and an agent.

They are bounded, one pair per session. Both ends are in this process; nothing here knows what a message means.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.brain.domain.gpu_telemetry import FigureWatch
from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.instruction import Instruction, TaskKey
from stoker.brain.domain.report import FrameKind, LogChunk, LogRequest, SessionOpening, TunnelFrame
from stoker.wire.tunnel import TunnelEnd

INSTRUCTIONS_MAX: Final = 4_096
"""Several passes' worth for one node; an agent this far behind is better compared anew."""
LOG_REQUESTS_MAX: Final = 64
"""Reads of output that wait for one node's answer."""
LOG_READS_SENT_MAX: Final = 8
"""Of them on the stream at a time: each brings up to a MiB, and what is followed comes on the same stream."""
LOG_WAITS_MAX: Final = 1_000
"""Tasks of one node whose next bytes are waited for; as many as an agent takes."""


class BeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to the beat of this number, from an active control plane of this epoch."""

    sequence: int
    epoch: Epoch


Message = Instruction | BeatAnswer | FigureWatch


class Outgoing:
    """Instructions in order, and the newest answer to a beat and watch, each instead of an older one that waits."""

    def __init__(self) -> None:
        self._instructions: deque[Instruction] = deque()
        self._beat: BeatAnswer | None = None
        self._watch: FigureWatch | None = None
        self._news = asyncio.Event()
        self.closed = False
        self.why: Refusal | None = None

    def push(self, instruction: Instruction) -> None:
        """Queue an instruction. At the bound the stream is closed instead: the next one is told all that is due."""
        if self.closed:
            return
        if len(self._instructions) >= INSTRUCTIONS_MAX:
            message = f"{INSTRUCTIONS_MAX} instructions wait for this agent"
            hint = "it reconnects and is told what is still due; is its node overloaded?"
            self.close(refuse("stream_overflow", message, hint, instructions_max=INSTRUCTIONS_MAX))
            return
        self._instructions.append(instruction)
        self._news.set()

    def answer(self, sequence: int, epoch: Epoch) -> None:
        self._beat = BeatAnswer(sequence=sequence, epoch=epoch)
        self._news.set()

    def watch(self, watch: FigureWatch) -> None:
        self._watch = watch
        self._news.set()

    def close(self, why: Refusal | None) -> None:
        if not self.closed:
            self.closed, self.why = True, why
            self._instructions.clear()
            self._news.set()

    async def messages(self, check: Callable[[], None]) -> AsyncIterator[Message]:
        """Return the messages in order; `check` is called right before each leaves, and what it raises ends them."""
        while not self.closed:
            if self._instructions:
                check()
                yield self._instructions.popleft()
            elif self._beat is not None:
                check()
                beat, self._beat = self._beat, None
                yield beat
            elif self._watch is not None:
                check()
                watch, self._watch = self._watch, None
                yield watch
            else:
                self._news.clear()
                await self._news.wait()
        if self.why is not None:
            raise StokerError(self.why)

    def waiting(self, most: int) -> list[Instruction]:
        """Take instructions that wait now, to leave together with the message that was returned last."""
        return [self._instructions.popleft() for _ in range(min(most, len(self._instructions)))]


class LogChannel:
    """Reads of output: requests go down, each is answered by the chunk of its number.

    A request is a credit: the agent sends what was asked for and nothing else. Reads that answer at once lie on the
    stream a few at a time, in order, so that whoever waits for news is behind a few of them and never behind many.
    """

    def __init__(self, requests_max: int) -> None:
        self._requests_max = requests_max
        self._unsent: dict[int, LogRequest] = {}
        self._reads_sent: set[int] = set()
        """Reads whose answers are on their way, also if nobody waits for them any more."""
        self._waiting: dict[int, asyncio.Future[LogChunk | None]] = {}
        self._asked: Counter[bool] = Counter()
        """Reads under way: those that answer at once (False), and those that wait for news (True)."""
        self._news = asyncio.Event()
        self._next = 1
        self._closed = False

    async def read(self, key: TaskKey, offset: int, limit: int, wait_ms: int) -> LogChunk | None:
        """Read output; return None when the stream ended first. Raises: StokerError `too_many_streams`."""
        if self._closed:
            return None
        request = LogRequest(request=self._next, key=key, offset=offset, limit=limit, wait_ms=wait_ms)
        self._next += 1
        with self._counted(request):
            answered: asyncio.Future[LogChunk | None] = asyncio.get_running_loop().create_future()
            self._waiting[request.request] = answered
            self._unsent[request.request] = request
            self._news.set()
            try:
                return await answered
            finally:
                self._waiting.pop(request.request, None)
                self._unsent.pop(request.request, None)

    def answer(self, chunk: LogChunk) -> None:
        """Take the answer to a read; one that nobody waits for any more is dropped."""
        self._reads_sent.discard(chunk.request)
        self._news.set()
        waiting = self._waiting.get(chunk.request)
        if waiting is not None and not waiting.done():
            waiting.set_result(chunk)

    def close(self) -> None:
        self._closed = True
        self._news.set()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)

    async def requests(self) -> AsyncIterator[LogRequest]:
        while not self._closed:
            request = self._next_to_send()
            if request is not None:
                yield request
            else:
                self._news.clear()
                await self._news.wait()

    def _next_to_send(self) -> LogRequest | None:
        for number, request in self._unsent.items():
            if request.wait_ms or len(self._reads_sent) < LOG_READS_SENT_MAX:
                del self._unsent[number]
                if not request.wait_ms:
                    self._reads_sent.add(number)
                return request
        return None

    @contextmanager
    def _counted(self, request: LogRequest) -> Iterator[None]:
        """Within the bounds while it is asked and answered."""
        waits = bool(request.wait_ms)
        most = LOG_WAITS_MAX if waits else self._requests_max
        if self._asked[waits] >= most:
            message = f"{most} reads of output wait for this node"
            if waits:
                message = f"the output of {most} tasks of this node is followed"
            raise StokerError(refuse("too_many_streams", message, "try again in a second", log_requests_max=most))
        self._asked[waits] += 1
        try:
            yield
        finally:
            self._asked[waits] -= 1


class TunnelChannel:
    """Tunnels to ports of one node's tasks and to sessions in them: many on one stream, with credits."""

    def __init__(self) -> None:
        self._open: dict[int, TunnelEnd] = {}
        self._frames: asyncio.Queue[TunnelFrame | None] = asyncio.Queue()
        # Bounded by the windows of TUNNELS_MAX tunnels.
        self._next = 1
        self.attached = False
        """Whether the agent has opened the stream."""

    @property
    def count(self) -> int:
        """Tunnels that are open."""
        return len(self._open)

    @contextmanager
    def opening(
        self, key: TaskKey, kind: str, *, port: int = 0, session: SessionOpening | None = None
    ) -> Iterator[TunnelEnd]:
        """Have a tunnel from entry to exit, to which the agent answers first (`until_open`)."""
        tunnel = TunnelEnd(self._next, self._frames.put_nowait)
        self._next += 1
        self._open[tunnel.number] = tunnel
        asked = TunnelFrame(tunnel=tunnel.number, what=FrameKind.OPEN, key=key, port=port, kind=kind, opening=session)
        self._frames.put_nowait(asked)
        try:
            yield tunnel
        finally:
            tunnel.break_off("the other side has left")
            del self._open[tunnel.number]

    def take(self, frame: TunnelFrame) -> None:
        """Take a frame of the agent; one of a tunnel that is over is dropped."""
        tunnel = self._open.get(frame.tunnel)
        if tunnel is not None:
            tunnel.take(frame)

    def close(self) -> None:
        self.attached = False
        for tunnel in self._open.values():
            tunnel.lose("the stream of its node ended")
        self._frames.put_nowait(None)

    async def frames(self) -> AsyncIterator[TunnelFrame]:
        """Yield what goes to the agent, until the stream ends."""
        while (frame := await self._frames.get()) is not None:
            yield frame
