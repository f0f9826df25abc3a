"""A client of one session of a real runner, over the runner's own socket."""

import asyncio
import os
from collections.abc import Callable
from typing import Self

from stoker.agent.runner.session.frames import (
    CONTROL,
    SOCKET_NAME,
    STDIN,
    FrameDecoder,
    encode_control,
    encode_frame,
    read_control,
)
from tests.real.runner_node import RealNode

WAIT_S = 20.0


class SessionClient:
    """A client of one session, which acknowledges what it reads."""

    def __init__(self, node: RealNode, session: str, *argv: str, at: int = -1, tty: bool = False) -> None:
        self._path = node.folder / "agent" / SOCKET_NAME
        self._open = {"key": "1.1.0", "session": session, "argv": argv, "tty": tty, "columns": 90, "rows": 20, "at": at}
        self.out = bytearray()
        self.told: list[dict[str, object]] = []
        self._decoder = FrameDecoder()

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_unix_connection(os.path.relpath(self._path))
        self.say("open", **self._open)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await asyncio.wait({asyncio.ensure_future(self._writer.wait_closed())}, timeout=WAIT_S)

    def say(self, kind: str, **fields: object) -> None:
        self._writer.write(encode_control(type=kind, **fields))

    def type(self, text: bytes) -> None:
        self._writer.write(encode_frame(STDIN, text))

    async def until_taken(self, count: int) -> None:
        """The program, or what stands for it, has said that it took so many bytes of input."""
        await self._until(lambda: self.taken >= count, f"{count} bytes are taken")

    async def until(self, kind: str = "", words: bytes = b"", since: int = 0) -> dict[str, object]:
        """The first control message of this type, or what was told last once these words came out after `since`."""
        await self._until(
            lambda: any(each["type"] == kind for each in self.told) or bool(words and self.out.find(words, since) >= 0),
            f"{kind or words!r}",
        )
        return next((each for each in self.told if each["type"] == kind), {})

    @property
    def taken(self) -> int:
        return max((int(str(each["bytes"])) for each in self.told if each["type"] == "taken"), default=0)

    async def _until(self, reached: Callable[[], bool], what: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while not reached():
                data = await self._reader.read(65_536)
                assert data, f"hung up before {what}: {self.told} {self.out[-200:]!r}"
                for channel, content in self._decoder.feed(data):
                    if channel == CONTROL:
                        self.told.append(read_control(content))
                    else:
                        self.out += content
                        self.say("got", bytes=len(self.out))
