"""WebSocket frames as bytes, of both ends, without the connection that carries them.

It speaks what a terminal needs: whole messages up to a bound, in one frame or several, with pings and a close. No
extension is offered or taken: output of a terminal is small, and compressing it would mix a person's keys with secrets.
Source: RFC 6455.
"""

import base64
import hashlib
from collections.abc import Iterator
from typing import Final, NamedTuple

VERSION: Final = "13"
TEXT: Final = 1
BINARY: Final = 2
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10
NORMAL: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
POLICY: Final = 1008
TOO_BIG: Final = 1009
TRY_AGAIN: Final = 1013
_MORE: Final = 0
_FIN: Final = 0x80
_MASKED: Final = 0x80
_RESERVED: Final = 0x70
_CONTROL_MAX: Final = 125
_REASON_MAX: Final = 120
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class WebSocketFault(Exception):
    """Bytes that break the protocol. `code` is the close code that says so."""

    def __init__(self, why: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(why)
        self.code = code


class WebSocketFrame(NamedTuple):
    """One whole message, or one control frame."""

    opcode: int
    data: bytes


def accept_of(key: str) -> str:
    """Return the `Sec-WebSocket-Accept` that answers a `Sec-WebSocket-Key`."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()


def is_key(text: str) -> bool:
    """Return whether a `Sec-WebSocket-Key` is one: 16 bytes in base64."""
    try:
        return len(base64.b64decode(text, validate=True)) == 16
    except ValueError:
        return False


def encode(opcode: int, data: bytes, mask: bytes = b"") -> bytes:
    """Return a frame. `mask`: four bytes, by which a client masks; empty = a server's frame."""
    size, bit = len(data), _MASKED if mask else 0
    if size <= _CONTROL_MAX:
        head = bytes((_FIN | opcode, bit | size))
    elif size < 1 << 16:
        head = bytes((_FIN | opcode, bit | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((_FIN | opcode, bit | 127)) + size.to_bytes(8, "big")
    return head + mask + (masked(data, mask) if mask else data)


def close_frame(code: int, reason: str = "", mask: bytes = b"") -> bytes:
    """Return the frame that ends a connection."""
    return encode(CLOSE, code.to_bytes(2, "big") + reason.encode()[:_REASON_MAX], mask)


def masked(data: bytes, mask: bytes) -> bytes:
    """Return data with a mask of four bytes put on it, or taken off."""
    size = len(data)
    keys = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "little") ^ int.from_bytes(keys, "little")).to_bytes(size, "little")


class WebSocketDecoder:
    """Decoder of what one side sends, which holds at most one message that isn't whole yet."""

    def __init__(self, message_max: int, *, of_client: bool) -> None:
        """`of_client`: the frames are masked, as those of a client are, else none is."""
        self._message_max = message_max
        self._of_client = of_client
        self._buffer = bytearray()
        self._parts = bytearray()
        self._opcode = _MORE

    def feed(self, data: bytes) -> Iterator[WebSocketFrame]:
        """Yield what is whole now. Raises: WebSocketFault."""
        self._buffer += data
        while (found := self._frame()) is not None:
            final, opcode, content = found
            if opcode >= CLOSE:
                if not final or opcode > PONG:
                    raise WebSocketFault(f"opcode {opcode} is unknown, or a control frame comes in parts")
                yield WebSocketFrame(opcode, content)
                continue
            if (opcode == _MORE) == (self._opcode == _MORE) or opcode > BINARY:
                raise WebSocketFault("a frame goes on with nothing, or begins before the last message ended")
            self._opcode = opcode or self._opcode
            self._parts += content
            if len(self._parts) > self._message_max:
                raise WebSocketFault(f"a message is longer than {self._message_max} bytes", TOO_BIG)
            if final:
                whole, self._opcode, opcode = bytes(self._parts), _MORE, self._opcode
                self._parts.clear()
                yield WebSocketFrame(opcode, whole)

    def _frame(self) -> tuple[bool, int, bytes] | None:
        """Take one frame from the buffer; None = it isn't whole. Raises: WebSocketFault."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, second = buffer[0], buffer[1]
        if first & _RESERVED or bool(second & _MASKED) != self._of_client:
            raise WebSocketFault("a frame has reserved bits, or is masked as it mustn't be")
        size, at = second & 0x7F, 2
        if size > _CONTROL_MAX:
            if first & 0x0F >= CLOSE:
                raise WebSocketFault("a control frame is longer than 125 bytes")
            wide = 2 if size == 126 else 8
            if len(buffer) < at + wide:
                return None
            size, at = int.from_bytes(buffer[at : at + wide], "big"), at + wide
        if size > self._message_max:
            raise WebSocketFault(f"a frame is longer than {self._message_max} bytes", TOO_BIG)
        begin = at + (4 if self._of_client else 0)
        if len(buffer) < begin + size:
            return None
        content, mask = bytes(buffer[begin : begin + size]), bytes(buffer[at:begin])
        del buffer[: begin + size]
        return bool(first & _FIN), first & 0x0F, masked(content, mask) if mask else content
