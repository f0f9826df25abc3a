"""Messages of a session in a task, as they are on a WebSocket and on the tunnel to the node's runner.

A message is one byte that names a channel, then content: of the standard streams as it is, of CONTROL one JSON object
with a `type`. On a tunnel four bytes of length, big-endian, go before each. `agent/runner/session/frames.py` is the
other end. docs/reference/terminal.md says what each control message means.
"""

import json
from collections.abc import Iterator
from typing import Final, NamedTuple

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
CONTROL: Final = 3
SUBPROTOCOL: Final = "stoker.session.v1"
MAIN: Final = "main"
"""Name of the session that is a task's own terminal."""
MESSAGE_MAX: Final = 256 << 10
INPUT_MAX: Final = 64 << 10
"""Bytes of input that a client may send beyond those that the program has taken (`taken`)."""
GOT_STEP: Final = 16 << 10
"""After so many bytes of output a client acknowledges them (`got`)."""
SIDE_MAX: Final = 9_999
"""Columns or rows of a terminal."""


class MessageBroken(Exception):
    """Bytes that are no message of a session. The text says why."""


class SessionMessage(NamedTuple):
    """One message of a session."""

    channel: int
    content: bytes

    def encoded(self) -> bytes:
        """Return it as a WebSocket carries it."""
        return bytes((self.channel,)) + self.content

    def framed(self) -> bytes:
        """Return it as a tunnel carries it."""
        return (len(self.content) + 1).to_bytes(4, "big") + self.encoded()

    def control(self) -> dict[str, object]:
        """Return the fields of a control message. Raises: MessageBroken."""
        try:
            fields = json.loads(self.content)
        except ValueError as fault:
            raise MessageBroken(f"a control message holds no JSON: {fault}") from fault
        if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
            raise MessageBroken("a control message is no JSON object with a type")
        return fields


def control(kind: str, **fields: object) -> SessionMessage:
    """Return a control message."""
    return SessionMessage(CONTROL, json.dumps({"type": kind, **fields}, separators=(",", ":")).encode())


def message_of(data: bytes) -> SessionMessage:
    """Return what a WebSocket carried. Raises: MessageBroken."""
    if not data or data[0] > CONTROL:
        raise MessageBroken("a message begins with no channel" if data else "a message is empty")
    return SessionMessage(data[0], data[1:])


class SessionFrames:
    """Decoder of the bytes of a tunnel into messages, which holds at most one that isn't whole yet."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[SessionMessage]:
        """Yield the messages that are whole now. Raises: MessageBroken."""
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start > 4:
                length = int.from_bytes(self._buffer[start : start + 4], "big")
                if not 1 <= length <= MESSAGE_MAX:
                    raise MessageBroken(f"a message of a session has {length} bytes, of at most {MESSAGE_MAX}")
                if len(self._buffer) - start - 4 < length:
                    break
                body, start = start + 4, start + 4 + length
                yield message_of(bytes(self._buffer[body:start]))
        finally:
            del self._buffer[:start]
