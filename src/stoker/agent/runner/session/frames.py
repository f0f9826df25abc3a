"""Frames of a session, on the socket between agent and runner and, unchanged, on their way to the control plane.

Four bytes of length, big-endian, then one byte that names a channel, then bytes: of the three standard streams as they
are, of the control channel one JSON object with a `type`. `stoker.wire.terminal` writes the same for the other end.
"""

from __future__ import annotations

import json

from stoker.agent.runner.protocol import BadFrame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

SOCKET_NAME: Final = "session.sock"
STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
CONTROL: Final = 3
FRAME_MAX: Final = 256 * 1024
"""An opening with the longest command that a request can bring is a quarter of it."""
_HEAD_BYTES: Final = 5


def encode_frame(channel: int, content: bytes) -> bytes:
    """Return the frame of some bytes of a stream."""
    return (len(content) + 1).to_bytes(4, "big") + bytes((channel,)) + content


def encode_control(**fields: object) -> bytes:
    """Return the frame of a control message."""
    return encode_frame(CONTROL, json.dumps(fields, separators=(",", ":")).encode())


def read_control(content: bytes) -> dict[str, object]:
    """Return the fields of a control message. Raises BadFrame."""
    try:
        fields = json.loads(content)
    except ValueError as error:
        raise BadFrame(f"a control message holds no JSON: {error}") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        raise BadFrame("a control message is no JSON object with a type")
    return fields


class FrameDecoder:
    """Decoder of a byte stream into frames, which holds at most one that isn't whole yet."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, received: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield channel and content of the frames that are whole now. Raises BadFrame."""
        self._buffer += received
        start = 0
        try:
            while len(self._buffer) - start >= _HEAD_BYTES:
                length = int.from_bytes(self._buffer[start : start + 4], "big")
                if not 1 <= length <= FRAME_MAX:
                    raise BadFrame(f"a frame of a session has {length} bytes, of at most {FRAME_MAX}")
                if len(self._buffer) - start - 4 < length:
                    break
                body = start + 4
                start = body + length
                yield self._buffer[body], bytes(self._buffer[body + 1 : start])
        finally:
            del self._buffer[:start]
