"""One end of a tunnel: bytes both ways over frames of a shared stream, with credits.

Both the control plane and the agent of a node use it for a connection to a port of a task.

Rules: T1  a side sends no more than the other has given credit for, so one tunnel holds WINDOW_BYTES in each direction,
           and a reader that takes nothing holds up nobody else on the stream
       T2  each direction ends by itself (END), as in TCP; a tunnel is over when both have, or when it is broken off
       T3  whoever sends more than his credit is broken off
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, assert_never

from stoker.brain.domain.report import FrameKind, TunnelFrame

WINDOW_BYTES: Final = 256 << 10
PIECE_BYTES: Final = 32 << 10
TCP: Final = "tcp"
"""Kind of a tunnel to a port on which a task listens."""
SESSION: Final = "session"
"""Kind of a tunnel to a session in a task: a program that is executed there, or its terminal."""


class TunnelBroken(Exception):
    """The tunnel was broken off. The message says why."""


class TunnelEnd:
    """One end of one tunnel."""

    def __init__(self, number: int, send: Callable[[TunnelFrame], None]) -> None:
        self.number = number
        self._send = send
        self._credit = WINDOW_BYTES
        self._came: deque[bytes] = deque()
        self._came_bytes = 0
        self._taken = 0
        self._ended = False
        self._news = asyncio.Event()
        self.opened = False
        self.broken: str | None = None

    def take(self, frame: TunnelFrame) -> None:
        """Take a frame of the other end."""
        match frame.what:
            case FrameKind.OPENED:
                self.opened = True
            case FrameKind.DATA:
                self._came.append(frame.data)
                self._came_bytes += len(frame.data)
                if self._came_bytes > WINDOW_BYTES:
                    self.break_off("the other side sent more than it may")  # T3
            case FrameKind.CREDIT:
                self._credit += frame.credit
            case FrameKind.END:
                self._ended = True
            case FrameKind.BROKEN:
                self._break(frame.error)
            case FrameKind.OPEN:
                self.break_off("it is open already")
            case _:
                assert_never(frame.what)
        self._news.set()

    async def until_open(self) -> None:
        """Wait until the other end has connected. Raises: TunnelBroken."""
        while not self.opened:
            await self._changed()

    async def read(self) -> bytes:
        """Return the next bytes, at most PIECE_BYTES or so; none at the end. Raises: TunnelBroken."""
        while not self._came:
            if self._ended:
                return b""
            await self._changed()
        data = self._came.popleft()
        self._came_bytes -= len(data)
        self._taken += len(data)
        if self._taken >= WINDOW_BYTES // 2:
            self._send(TunnelFrame(tunnel=self.number, what=FrameKind.CREDIT, credit=self._taken))
            self._taken = 0
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes, as the other end has room for them. Raises: TunnelBroken."""
        view = memoryview(data)
        while view:
            while self._credit <= 0:
                await self._changed()
            if self.broken is not None:
                raise TunnelBroken(self.broken)
            piece = bytes(view[: min(PIECE_BYTES, self._credit)])
            self._credit -= len(piece)
            self._send(TunnelFrame(tunnel=self.number, what=FrameKind.DATA, data=piece))
            view = view[len(piece) :]

    def end(self) -> None:
        """Say that nothing more comes from here."""
        if self.broken is None:
            self._send(TunnelFrame(tunnel=self.number, what=FrameKind.END))

    def break_off(self, why: str) -> None:
        """End both directions at once, and tell the other end why."""
        if self.broken is None:
            self._send(TunnelFrame(tunnel=self.number, what=FrameKind.BROKEN, error=why))
            self._break(why)

    def lose(self, why: str) -> None:
        """Note that the stream between both ends is gone."""
        self._break(why)

    def _break(self, why: str) -> None:
        if self.broken is None:
            self.broken = why or "it was broken off"
        self._came.clear()
        self._news.set()

    async def _changed(self) -> None:
        if self.broken is not None:
            raise TunnelBroken(self.broken)
        self._news.clear()
        await self._news.wait()
        if self.broken is not None:
            raise TunnelBroken(self.broken)
