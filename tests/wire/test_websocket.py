"""Frames of a WebSocket: what one side sends the other reads, however it is cut; what breaks the protocol is told."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.wire.websocket import (
    BINARY,
    CLOSE,
    PING,
    TEXT,
    TOO_BIG,
    WebSocketDecoder,
    WebSocketFault,
    WebSocketFrame,
    accept_of,
    close_frame,
    encode,
    is_key,
)

MASK = b"\x01\x80\xff\x7e"
contents = st.one_of(st.binary(max_size=200), st.sampled_from([125, 126, 65_535, 65_536]).map(bytes))


def decoded(data: bytes, *, of_client: bool, message_max: int = 1 << 20) -> list[WebSocketFrame]:
    return list(WebSocketDecoder(message_max, of_client=of_client).feed(data))


@given(st.lists(contents, max_size=4), st.booleans(), st.integers(1, 50))
def test_messages_arrive_whole_however_their_bytes_are_cut(parts: list[bytes], of_client: bool, step: int) -> None:
    data = b"".join(encode(BINARY, part, MASK if of_client else b"") for part in parts)
    decoder, found = WebSocketDecoder(1 << 20, of_client=of_client), list[WebSocketFrame]()
    cuts = [*range(0, min(len(data), 500), step), len(data)]
    for begin, end in pairwise(cuts):
        found += decoder.feed(data[begin:end])
    assert found == [WebSocketFrame(BINARY, part) for part in parts]


def test_a_message_in_several_frames_is_one_and_a_ping_may_come_between() -> None:
    first = bytes((TEXT, 2)) + b"ab"
    last = bytes((0x80, 1)) + b"c"
    frames = decoded(first + encode(PING, b"p") + last, of_client=False)
    assert frames == [WebSocketFrame(PING, b"p"), WebSocketFrame(TEXT, b"abc")]


@pytest.mark.parametrize(
    "data",
    [
        encode(BINARY, b"x"),  # a client that doesn't mask
        encode(BINARY, b"x", MASK)[:1].replace(b"\x82", b"\xc2") + encode(BINARY, b"x", MASK)[1:],  # a reserved bit
        encode(0, b"x", MASK),  # nothing goes on
        encode(3, b"x", MASK),  # an opcode that there isn't
        encode(11, b"x", MASK),
        bytes((TEXT, 0x80)) + MASK + encode(TEXT, b"x", MASK),  # begins before the other has ended
        bytes((PING, 0x80)) + MASK,  # a control frame in parts
        encode(CLOSE, bytes(126), MASK),
    ],
)
def test_what_breaks_the_protocol_is_a_fault(data: bytes) -> None:
    with pytest.raises(WebSocketFault):
        decoded(data, of_client=True)


def test_a_message_that_is_too_long_is_refused_before_it_is_kept_in_one_frame_or_many() -> None:
    for data in (encode(BINARY, bytes(101))[:10], bytes((BINARY, 60)) + bytes(60) + bytes((0x80, 60)) + bytes(60)):
        with pytest.raises(WebSocketFault) as fault:
            decoded(data, of_client=False, message_max=100)
        assert fault.value.code == TOO_BIG


def test_the_handshake_is_that_of_the_standard() -> None:
    """The example of RFC 6455, section 1.3."""
    assert accept_of("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert [is_key(text) for text in ("dGhlIHNhbXBsZSBub25jZQ==", "", "x", "AAAA", "ü")] == [True, *[False] * 4]
    assert decoded(close_frame(1000, "over"), of_client=False) == [WebSocketFrame(CLOSE, b"\x03\xe8over")]
