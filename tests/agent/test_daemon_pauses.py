"""How soon `agent/daemon.py` comes back to a single control plane, on virtual time. Of several: `test_daemon_pair`."""

import asyncio
from itertools import pairwise

from tests.agent.twins import Node, TwinControl, on_virtual_time


@on_virtual_time
async def test_pauses_grow_from_two_to_thirty_seconds_while_nobody_answers() -> None:
    control = TwinControl()
    control.reachable = False
    async with Node(control) as node:
        await node.until(lambda: len(control.tries_at) == 8, within_s=300)
        pauses = [round(b - a) for a, b in zip(control.tries_at, control.tries_at[1:], strict=False)]
        assert pauses == [2, 4, 8, 16, 30, 30, 30]


@on_virtual_time
async def test_a_control_plane_that_drops_every_stream_at_once_is_not_hammered() -> None:
    control = TwinControl()
    control.answers_beats = False
    async with Node(control) as node:
        for streams in range(1, 7):
            await node.connected(streams)
            node.control.break_stream()
        tries = node.control.tries_at
        assert round(tries[-1] - tries[-2]) == 30


@on_virtual_time
async def test_after_a_stream_that_worked_the_next_pause_is_short_again() -> None:
    control = TwinControl()
    control.reachable = False
    async with Node(control) as node:
        await asyncio.sleep(120)
        control.reachable = True
        await node.connected()
        await asyncio.sleep(6)
        broke_at = asyncio.get_running_loop().time()
        control.reachable = False
        control.break_stream()
        tries = len(control.tries_at)
        await asyncio.sleep(16)
        pauses = [round(b - a, 1) for a, b in pairwise([broke_at, *control.tries_at[tries:]])]
        assert pauses == [0.5, 1.0, 1.0, 1.0, 2.0, 4.0], "quick at first, then the usual ones from the shortest"


@on_virtual_time
async def test_one_that_answered_and_went_again_at_once_is_tried_again_soon_however_long_it_was_away_before() -> None:
    """A crash on start, say: it is less than a heartbeat old when it dies."""
    control = TwinControl()
    control.reachable = False
    async with Node(control) as node:
        await asyncio.sleep(600)
        control.reachable = True
        await node.connected()
        await asyncio.sleep(1)
        broke_at = asyncio.get_running_loop().time()
        control.reachable = False
        control.break_stream()
        tries = len(control.tries_at)
        await asyncio.sleep(15)
        pauses = [round(b - a, 1) for a, b in pairwise([broke_at, *control.tries_at[tries:]])]
        assert pauses == [2.0, 4.0, 8.0]


@on_virtual_time
async def test_one_that_answers_and_drops_us_each_time_is_not_hammered_either() -> None:
    async with Node() as node:
        for streams in range(1, 12):
            await node.connected(streams)
            await asyncio.sleep(0.5)
            node.control.break_stream()
        tries = node.control.tries_at
        assert min(b - a for a, b in pairwise(tries)) >= 2
