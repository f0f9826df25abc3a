"""Both ends of a tunnel over a stream that the test moves: credits, ends, and what breaks it."""

import asyncio

import pytest

from stoker.brain.domain.report import FrameKind, TunnelFrame
from stoker.wire.tunnel import PIECE_BYTES, WINDOW_BYTES, TunnelBroken, TunnelEnd
from tests.control.stage import virtual
from tests.rig.sim_ports import SimClock


class Pair:
    """Two ends; what one sends waits until `move`."""

    def __init__(self) -> None:
        self.up: list[TunnelFrame] = []
        self.down: list[TunnelFrame] = []
        self.here = TunnelEnd(1, self.down.append)
        self.there = TunnelEnd(1, self.up.append)

    def move(self) -> None:
        for frames, end in ((self.up, self.here), (self.down, self.there)):
            while frames:
                end.take(frames.pop(0))


@virtual
async def test_bytes_arrive_in_order_and_each_direction_ends_by_itself() -> None:
    pair = Pair()
    await pair.here.write(b"ask")
    pair.here.end()
    pair.move()
    assert (await pair.there.read(), await pair.there.read()) == (b"ask", b"")
    await pair.there.write(b"answer")
    pair.there.end()
    pair.move()
    assert (await pair.here.read(), await pair.here.read()) == (b"answer", b"")


@virtual
async def test_t1_who_takes_nothing_is_sent_no_more_than_a_window() -> None:
    pair = Pair()
    writing = asyncio.ensure_future(pair.here.write(b"x" * (2 * WINDOW_BYTES)))
    await SimClock().sleep(1)
    assert not writing.done()
    assert sum(len(frame.data) for frame in pair.down) == WINDOW_BYTES
    assert max(len(frame.data) for frame in pair.down) == PIECE_BYTES
    got = 0
    while got < 2 * WINDOW_BYTES:
        pair.move()
        got += len(await pair.there.read())
        await SimClock().sleep(0.01)
    await writing


@virtual
async def test_t3_whoever_sends_more_than_his_credit_is_broken_off() -> None:
    pair = Pair()
    for _ in range(WINDOW_BYTES // PIECE_BYTES + 1):
        pair.there.take(TunnelFrame(tunnel=1, what=FrameKind.DATA, data=b"x" * PIECE_BYTES))
    assert pair.up[-1].what is FrameKind.BROKEN
    with pytest.raises(TunnelBroken):
        await pair.there.read()


@virtual
async def test_t2_a_tunnel_that_is_broken_off_ends_whoever_waits_on_either_side() -> None:
    pair = Pair()
    reading = asyncio.ensure_future(pair.here.read())
    await SimClock().sleep(1)
    pair.there.break_off("the task ended")
    pair.move()
    with pytest.raises(TunnelBroken, match="the task ended"):
        await reading
    with pytest.raises(TunnelBroken):
        await pair.here.write(b"late")
