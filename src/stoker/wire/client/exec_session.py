"""Client's end of a session in a job: its messages over a WebSocket, on a connection that was made already."""

import asyncio
import base64
from collections import deque
from typing import Final

from stoker.wire.client.backoff import fresh_key
from stoker.wire.exec_session import MESSAGE_MAX, SUBPROTOCOL, MessageBroken, SessionMessage, message_of
from stoker.wire.websocket import (
    BINARY,
    CLOSE,
    NORMAL,
    PING,
    PONG,
    VERSION,
    WebSocketDecoder,
    WebSocketFault,
    close_frame,
    encode,
)

QUIET_S: Final = 45.0
"""The server asks every 20 s whether the client is there; one of which nothing is heard for so long is gone."""
_READ_BYTES: Final = 64 << 10


def handshake_key() -> str:
    """Return a key for the handshake of a WebSocket."""
    return base64.b64encode(bytes.fromhex(fresh_key())).decode()


def handshake(key: str) -> dict[str, str]:
    """Return the headers that ask for a WebSocket."""
    return {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": VERSION,
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Protocol": SUBPROTOCOL,
    }


class SessionBroken(Exception):
    """The connection to a session is gone before the session said its end. The message says why."""


class SessionConnection:
    """One connection to one session."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = WebSocketDecoder(MESSAGE_MAX, of_client=False)
        self._came: deque[SessionMessage] = deque()
        self._closed = ""
        # Why the server has closed; what came before is read first.

    async def read(self) -> SessionMessage:
        """Return the next message. Raises: SessionBroken."""
        while not self._came:
            if self._closed:
                raise SessionBroken(self._closed)
            try:
                async with asyncio.timeout(QUIET_S):
                    data = await self._reader.read(_READ_BYTES)
                if not data:
                    raise SessionBroken("the server hung up")
                for frame in self._decoder.feed(data):
                    if frame.opcode == PING:
                        self._send(encode(PONG, frame.data, _mask()))
                    elif frame.opcode == CLOSE:
                        why = frame.data[2:].decode("utf-8", "replace")
                        self._closed = why or "the server ended the connection"
                    elif frame.opcode == BINARY:
                        self._came.append(message_of(frame.data))
            except TimeoutError:
                raise SessionBroken(f"nothing came for {QUIET_S:.0f} s") from None
            except (OSError, WebSocketFault, MessageBroken) as fault:
                raise SessionBroken(str(fault) or type(fault).__name__) from fault
        return self._came.popleft()

    async def write(self, message: SessionMessage) -> None:
        """Send a message, as the other side takes it. Raises: SessionBroken."""
        self._send(encode(BINARY, message.encoded(), _mask()))
        try:
            await self._writer.drain()
        except OSError as fault:
            raise SessionBroken(str(fault) or type(fault).__name__) from fault

    def _send(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    async def close(self) -> None:
        """Say that it is over, and hang up."""
        self._send(close_frame(NORMAL, mask=_mask()))
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return

    def abort(self) -> None:
        """Hang up at once."""
        self._writer.transport.abort()


def _mask() -> bytes:
    """Four bytes that nobody can foresee, as a client's frames want them."""
    return bytes.fromhex(fresh_key()[:8])
