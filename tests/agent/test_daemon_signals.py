"""Rule A10 of `agent/daemon.py`, and A3 for signals, on virtual time."""

import asyncio

from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.instruction import Signal
from stoker.brain.domain.job import EndCause
from tests.agent.twins import Node, TwinControl, exited, key, on_virtual_time, running, start


@on_virtual_time
async def test_a_signal_reaches_the_runner_once_for_each_request() -> None:
    async with Node() as node:
        await node.connected()
        await running(node)
        for number in (10, 10, 12):
            node.control.tell(Signal(key=key(1), epoch=Epoch(1), signal=number))
        await node.until(lambda: len(node.runner.signals) == 3)
        assert node.runner.signals == [(key(1), 10), (key(1), 10), (key(1), 12)]


@on_virtual_time
async def test_a_signal_for_what_is_not_open_here_is_ignored() -> None:
    """A10."""
    async with Node() as node:
        await node.connected()
        await running(node)
        node.runner.end(key(1), exited())
        for job in (1, 2):
            node.control.tell(Signal(key=key(job), epoch=Epoch(1), signal=10))
        await asyncio.sleep(60)
        assert node.runner.signals == []
        assert node.finished() == [(key(1), EndCause.EXITED)], "it's no stop: nothing is said to be gone"


@on_virtual_time
async def test_a_signal_of_an_older_epoch_is_ignored_and_counted() -> None:
    """A3."""
    control = TwinControl()
    control.epoch = Epoch(7)
    async with Node(control) as node:
        await node.connected()
        node.control.tell(start(key(1), epoch=7))
        node.control.tell(Signal(key=key(1), epoch=Epoch(6), signal=10))
        await asyncio.sleep(1)
        assert node.runner.signals == []
        assert node.notes.counts["stale_instructions_total"] == 1
