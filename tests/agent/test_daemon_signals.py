"""Rule A10 of `agent/daemon.py`, A3 for signals, and the warnings before an end, on virtual time."""

import asyncio
import json

from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.instruction import Signal, Stop, StopNotice, Warn
from stoker.brain.domain.job import EndCause, StopCause
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


NOTICE = StopNotice(cause=StopCause.PREEMPTED, lead_ms=90_000, signal=10, for_job="17")


@on_virtual_time
async def test_a_stop_with_a_notice_tells_the_task_why_for_whom_and_until_when() -> None:
    async with Node() as node:
        await node.connected()
        await running(node)
        node.control.tell(Stop(key=key(1), epoch=Epoch(1), grace_ms=10_000, cause=StopCause.PREEMPTED, notice=NOTICE))
        await node.until(lambda: bool(node.runner.warnings))
        ((task, warning),) = node.runner.warnings
        assert (task, warning.signal, warning.lead_ms) == (key(1), 10, 90_000)
        told = json.loads(warning.text)
        assert (told["cause"], told["for_job"]) == ("preempted", "17")
        assert told["deadline"] - told["terminate_at"] == 10
        assert told["deadline_text"].endswith(" UTC")
        assert warning.text.endswith("}\n"), "one line"


@on_virtual_time
async def test_a_warning_of_a_time_limit_is_no_stop() -> None:
    async with Node() as node:
        await node.connected()
        await running(node)
        notice = StopNotice(cause=StopCause.TIMEOUT, lead_ms=60_000, signal=12)
        for job in (1, 2):
            node.control.tell(Warn(key=key(job), epoch=Epoch(1), notice=notice, grace_ms=10_000, limit_ms=3_600_000))
        await node.until(lambda: bool(node.runner.warnings))
        await asyncio.sleep(60)
        assert [(task, warning.signal) for task, warning in node.runner.warnings] == [(key(1), 12)]
        assert node.runner.stops == []
