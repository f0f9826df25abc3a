"""Messages of sessions: both ends, which share no code, write the same bytes."""

import asyncio
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.agent.runner.protocol import BadFrame
from stoker.agent.runner.session import frames
from stoker.wire import exec_session as wire
from stoker.wire.client.exec_session import SessionBroken, SessionConnection
from stoker.wire.websocket import BINARY, close_frame, encode

contents = st.binary(max_size=300)
channels = st.integers(0, 3)


@given(st.lists(st.tuples(channels, contents), max_size=5), st.integers(1, 40))
def test_what_either_end_frames_the_other_reads_however_it_is_cut(told: list[tuple[int, bytes]], step: int) -> None:
    ours = b"".join(wire.SessionMessage(*each).framed() for each in told)
    assert ours == b"".join(frames.encode_frame(*each) for each in told)
    here, there = wire.SessionFrames(), frames.FrameDecoder()
    pieces = [ours[at : at + step] for at in range(0, len(ours), step)]
    assert [tuple(each) for piece in pieces for each in here.feed(piece)] == told
    assert [each for piece in pieces for each in there.feed(piece)] == told


def test_control_messages_are_the_same_on_both_sides() -> None:
    told = wire.control("resize", columns=80, rows=24)
    assert told.framed() == frames.encode_control(type="resize", columns=80, rows=24)
    assert told.control() == frames.read_control(told.content) == {"type": "resize", "columns": 80, "rows": 24}
    assert wire.message_of(told.encoded()) == told
    assert (wire.MESSAGE_MAX, wire.MAIN) == (frames.FRAME_MAX, "main")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"type":1}', b"\xff"])
def test_what_is_no_control_message_is_told_by_both(content: bytes) -> None:
    with pytest.raises(wire.MessageBroken):
        wire.SessionMessage(wire.CONTROL, content).control()
    with pytest.raises(BadFrame):
        frames.read_control(content)


@pytest.mark.parametrize("data", [b"", b"\x04x", b"\xff"])
def test_a_message_without_a_channel_is_none(data: bytes) -> None:
    with pytest.raises(wire.MessageBroken):
        wire.message_of(data)


@pytest.mark.parametrize("length", [0, wire.MESSAGE_MAX + 1, 0xFFFFFFFF])
def test_a_length_that_no_message_has_is_told_before_anything_is_kept(length: int) -> None:
    data = length.to_bytes(4, "big") + b"\x01"
    with pytest.raises(wire.MessageBroken):
        list(wire.SessionFrames().feed(data))
    with pytest.raises(BadFrame):
        list(frames.FrameDecoder().feed(data))


async def test_what_came_before_a_close_is_read_before_it() -> None:
    reader = asyncio.StreamReader()
    exit_message = wire.control("exit", code=0)
    reader.feed_data(encode(BINARY, exit_message.encoded()) + close_frame(1000, "over"))
    connection = SessionConnection(reader, cast("asyncio.StreamWriter", None))
    assert await connection.read() == exit_message
    with pytest.raises(SessionBroken, match="over"):
        await connection.read()
