"""Tunnels to ports of this node's tasks and to sessions in them: many connections on one stream to the control plane.

Rules: U1  a connection is made only to a port on which a process of that very task listens, on the loopback (`Dialer`)
           or to a session that the runner holds
       U2  at most TUNNELS_MAX are open; one more is refused
       U3  when the stream breaks, or the daemon is cut off, every connection ends
       U4  what is no tunnel of a known kind is refused by its name: a newer control plane may know more
"""

import asyncio
from contextlib import aclosing, suppress
from typing import Final

from stoker.agent.ports import Dialer, LinkDown, LinkSession
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.report import FrameKind, TunnelFrame
from stoker.wire.tunnel import PIECE_BYTES, SESSION, TCP, TunnelBroken, TunnelEnd

TUNNELS_MAX: Final = 256
"""Of one node: a browser has six connections to a notebook."""


class NodeTunnels:
    """All tunnels of one stream."""

    def __init__(self, session: LinkSession, dialer: Dialer) -> None:
        self._session = session
        self._dialer = dialer
        self._open: dict[int, TunnelEnd] = {}
        self._frames: asyncio.Queue[TunnelFrame] = asyncio.Queue()
        # Bounded by the windows of TUNNELS_MAX tunnels.

    async def serve(self) -> None:
        """Serve until the stream breaks. Raises: LinkDown."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send())
                async with aclosing(self._session.tunnel_frames()) as frames:
                    async for frame in frames:
                        self._take(frame, group)
                raise LinkDown("the control plane closed the stream of tunnels")
        except ExceptionGroup as faults:  # not by `except*`: Python 3.11.2 makes a group of what is raised there
            down, others = faults.split(LinkDown)
            if down is None or others is not None:
                raise
            raise LinkDown(str(down.exceptions[0])) from None

    async def _send(self) -> None:
        while True:
            await self._session.send_frame(await self._frames.get())

    def _take(self, frame: TunnelFrame, group: asyncio.TaskGroup) -> None:
        tunnel = self._open.get(frame.tunnel)
        if tunnel is not None:
            tunnel.take(frame)
        elif frame.what is FrameKind.OPEN and frame.key is not None:
            made = TunnelEnd(frame.tunnel, self._frames.put_nowait)
            if frame.kind not in (TCP, SESSION) or (frame.kind == SESSION) != (frame.opening is not None):
                made.break_off(f"the agent of this node knows no tunnel of kind {frame.kind[:20]!r}")
            elif len(self._open) >= TUNNELS_MAX:
                made.break_off(f"{TUNNELS_MAX} connections to tasks of this node are open already")
            else:
                self._open[frame.tunnel] = made
                group.create_task(self._serve(made, frame.key, frame))

    async def _serve(self, tunnel: TunnelEnd, key: TaskKey, frame: TunnelFrame) -> None:
        try:
            if frame.opening is not None:
                reader, writer = await self._dialer.enter(key, frame.opening)
            else:
                reader, writer = await self._dialer.dial(key, frame.port)
        except OSError as fault:
            tunnel.break_off(fault.strerror or str(fault))
            del self._open[tunnel.number]
            return
        try:
            self._frames.put_nowait(TunnelFrame(tunnel=tunnel.number, what=FrameKind.OPENED))
            async with asyncio.TaskGroup() as both:
                both.create_task(_up(reader, tunnel))
                both.create_task(_down(tunnel, writer))
        except* (TunnelBroken, OSError) as faults:
            tunnel.break_off(str(faults.exceptions[0]) or "the connection broke")
        finally:
            del self._open[tunnel.number]
            writer.close()


async def _up(reader: asyncio.StreamReader, tunnel: TunnelEnd) -> None:
    while data := await reader.read(PIECE_BYTES):
        await tunnel.write(data)
    tunnel.end()


async def _down(tunnel: TunnelEnd, writer: asyncio.StreamWriter) -> None:
    while data := await tunnel.read():
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()
