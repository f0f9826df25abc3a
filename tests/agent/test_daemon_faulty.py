"""Rules A17, A18 and A20 of the agent: what keeps the runner from its work is a fault of the node; on virtual time."""

import asyncio
import errno

from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.job import EndCause
from tests.agent.twins import BrokenFence, Node, TwinRunner, key, on_virtual_time, registration, running, start

FULL = "the runner's journal can't be written: No space left on device"


def _told(node: Node) -> list[str]:
    """The fault in each registration, in order."""
    return [each.inventory.fault for each in node.control.registered]


@on_virtual_time
async def test_what_the_runner_says_of_its_disk_is_the_nodes_fault_until_it_is_over() -> None:
    async with Node() as node:
        await node.connected()
        await running(node)
        node.runner.fault = FULL
        await node.connected(streams=2)
        await asyncio.sleep(60)
        node.runner.fault = ""
        await node.connected(streams=3)
        assert _told(node) == ["", FULL, ""]
        said = " ".join(node.notes.lines)
        assert (said.count("node_faulty"), said.count("node_works_again")) == (1, 1)
        assert key(1) in {status.key for status in node.control.session.reports[0].tasks}, "its job runs on"


@on_virtual_time
async def test_a_runner_that_is_stopped_is_a_fault_within_twelve_seconds_and_asked_once_only() -> None:
    async with Node() as node:
        await node.connected()
        await asyncio.sleep(60)
        node.runner.stopped, asked = True, node.runner.asked
        await asyncio.sleep(12.1)
        assert _told(node)[-1].startswith("the runner hasn't answered for 10 s")
        await asyncio.sleep(600)
        assert node.runner.asked == asked + 1, "what waits for it stays bounded"
        assert node.notes.counts["node_faulty"] == 1
        node.runner.answer()
        await node.connected(streams=3)
        assert _told(node)[-1] == ""


@on_virtual_time
async def test_a_fault_outlives_what_else_changes_of_the_node() -> None:
    runner = TwinRunner()
    runner.fault = FULL
    async with Node(runner=runner) as node:
        await node.connected()
        node.daemon.amend(registration(6))
        await node.connected(streams=2)
        assert _told(node) == [FULL, FULL]


@on_virtual_time
async def test_a_runner_of_an_older_version_is_not_asked_and_no_fault() -> None:
    runner = TwinRunner()
    runner.fault, runner.stopped = None, True
    async with Node(runner=runner) as node:
        await node.connected()
        await asyncio.sleep(600)
        assert (_told(node), runner.asked) == ([""], 0)


@on_virtual_time
async def test_a_start_that_a_stopped_runner_has_not_begun_is_given_up_and_a_later_one_is_refused_at_once() -> None:
    async with Node() as node:
        await node.connected()
        await running(node)
        node.runner.stopped = True
        node.control.tell(start(key(2), gpus=(1,)))
        await node.connected(streams=2)
        await node.until(lambda: node.control.finished)
        node.control.tell(start(key(3), gpus=(2,)))
        await node.until(lambda: len(node.control.finished) == 2)
        assert node.finished() == [(key(2), EndCause.NEVER_STARTED), (key(3), EndCause.NEVER_STARTED)]
        assert node.control.finished[0].end.error.startswith("the runner hasn't answered")
        assert node.runner.revoked == [key(2)], "what runs is left alone"


@on_virtual_time
async def test_a_start_that_a_stopped_runner_may_have_begun_is_left_to_it() -> None:
    async with Node() as node:
        await node.connected()
        node.runner.stopped = True
        node.control.tell(start(key(1)))
        await node.until(lambda: key(1) in node.daemon._observed.open)
        node.runner.records[key(1)] = node.daemon._observed.open[key(1)]
        await asyncio.sleep(60)
        assert node.control.finished == []


@on_virtual_time
async def test_a_node_without_a_runner_says_why_once_and_serves_again_with_the_next() -> None:
    async with Node() as node:
        await node.connected()
        node.runner.can_start = False
        node.runner.die()
        await asyncio.sleep(600)
        assert _told(node) == ["", "it has no runner that works: twin: no runner can be started"]
        assert node.control.session.broken.is_set()
        assert node.control.session.reports == [], "nothing is said of tasks that nobody looks after"
        node.runner.can_start = True
        await node.connected(streams=3)
        assert _told(node)[-1] == ""
        assert node.control.session.reports


@on_virtual_time
async def test_a_node_that_cannot_keep_an_epoch_says_so_and_obeys_once_it_can() -> None:
    fence = BrokenFence(errno.EROFS)
    async with Node(fence=fence) as node:
        await node.connected()
        fence.is_broken, node.control.epoch = True, Epoch(2)
        node.control.break_stream()
        await asyncio.sleep(120)
        assert _told(node)[-1] == "the epoch of its control plane can't be kept: Read-only file system"
        assert all(not session.reports for session in node.control.sessions[1:]), "it isn't obeyed"
        assert node.notes.counts["node_faulty"] == 1
        fence.is_broken = False
        await node.until(lambda: node.control.session.reports)
        assert _told(node)[-1] == ""
