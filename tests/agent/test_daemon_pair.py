"""Rules A3, A11, A14 and A15 of `agent/daemon.py`: several control planes, of which one is active; on virtual time."""

import asyncio
import errno
from itertools import pairwise

import pytest

from stoker.agent.ports import NoFence, Obeyed
from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.report import Beat, TaskInventory, TaskPhase, TaskStatus
from tests.agent.twins import (
    BrokenFence,
    Node,
    TwinControl,
    TwinRunner,
    exited,
    key,
    on_virtual_time,
    registration,
    running,
    start,
)
from tests.rig.sim_ports import SimClock
from tests.rig.virtual_loop import run_virtual

# --- which control plane is obeyed ------------------------------------------------------------------------------


@on_virtual_time
async def test_a_restarted_agent_obeys_no_older_control_plane_than_before() -> None:
    control, fence = TwinControl(), NoFence()
    control.epoch = Epoch(7)
    async with Node(control, fence=fence) as node:
        await node.connected()
    control.epoch = Epoch(6)
    async with Node(control, fence=fence) as node:
        await asyncio.sleep(60)
        assert control.session.reports == [], "it isn't even told what runs here"
        assert node.notes.counts["stale_epoch_ignored"] > 1
        control.epoch = Epoch(8)
        await node.until(lambda: control.session.reports)
    assert fence.read() == Obeyed("cluster-1", Epoch(8))


@on_virtual_time
async def test_nothing_is_said_or_done_under_an_epoch_that_cannot_be_kept() -> None:
    fence = BrokenFence(errno.ENOSPC)
    fence.is_broken = True
    async with Node(fence=fence) as node:
        await asyncio.sleep(60)
        assert all(session.reports == [] for session in node.control.sessions)
        assert node.notes.counts["epoch_not_kept"] > 1
        fence.is_broken = False
        await node.connected()
        assert fence.read().epoch == node.control.epoch


@on_virtual_time
async def test_an_agent_that_is_sent_to_another_cluster_begins_anew_and_says_so() -> None:
    control, fence = TwinControl(), NoFence()
    await fence.keep(Obeyed("cluster-0", Epoch(1_044)))
    async with Node(control, fence=fence) as node:
        await node.connected()
        assert node.notes.counts["cluster_changed"] == 1
        control.tell(start(key(1)))
        await node.until(lambda: node.runner.starts)
    assert fence.read() == Obeyed("cluster-1", Epoch(1))


@on_virtual_time
async def test_nothing_that_is_known_of_one_cluster_is_told_to_another() -> None:
    """Both begin to count their jobs at 1: an old end would be taken for that of a job which never ran."""
    control, runner, fence = TwinControl(), TwinRunner(), NoFence()
    async with Node(control, runner, fence=fence) as node:
        await node.connected()
        for job in (1, 2, 3):
            await running(node, job=job)
        runner.end(key(1), exited(7))
        await node.until(lambda: key(1) in runner.settled)
        control.loses_ends = True
        runner.end(key(2), exited(8))
        await asyncio.sleep(1)
        control.cluster_id, control.loses_ends, streams = "cluster-2", False, len(control.sessions)
        control.finished.clear()
        control.break_stream()
        await node.until(lambda: len(control.sessions) > streams and control.session.reports)
        inventory = control.session.reports[0]
        assert isinstance(inventory, TaskInventory)
        assert (inventory.tasks, inventory.kept, runner.renounced) == ((), (), 1)
        control.tell(start(key(1)))
        await node.until(lambda: key(1) in runner.records)
        runner.end(key(1), exited(0))
        await node.until(lambda: control.finished)
        assert [(one.key, one.end.exit_code) for one in control.finished] == [(key(1), 0)]
    assert fence.read().cluster_id == "cluster-2"


@on_virtual_time
async def test_a_control_plane_that_names_no_cluster_is_told_from_others_by_its_epoch_alone() -> None:
    """One of an older version."""
    control, fence = TwinControl(), NoFence()
    control.cluster_id = ""
    await fence.keep(Obeyed("cluster-0", Epoch(5)))
    async with Node(control, fence=fence) as node:
        await asyncio.sleep(20)
        assert control.session.reports == []
        control.epoch = Epoch(6)
        await node.until(lambda: control.session.reports)
    assert fence.read() == Obeyed("cluster-0", Epoch(6))


# --- whom to go to ----------------------------------------------------------------------------------------------


@on_virtual_time
async def test_while_only_standbys_answer_it_is_said_once_and_pauses_stay_short() -> None:
    control = TwinControl()
    control.is_standby = True
    async with Node(control) as node:
        await asyncio.sleep(60)
        pauses = [round(b - a, 1) for a, b in pairwise(control.tries_at)]
        assert max(pauses) <= 2.1
        assert len([line for line in node.notes.lines if "control_plane_standby" in line]) == 1
        assert "control_plane_standby" not in node.notes.counts, "it is no warning"
        control.is_standby = False
        await node.connected()


@pytest.mark.parametrize("what", ["nobody answers", "a standby answers", "an older epoch", "a stream breaks at once"])
def test_where_there_are_several_no_pause_is_long_whatever_happened_before(what: str) -> None:
    """After an hour of it, whoever becomes active has this node back within two seconds."""
    run_virtual(lambda: back_after_an_hour_of(what))


async def back_after_an_hour_of(what: str) -> None:
    control, fence = TwinControl(), NoFence()
    control.has_alternatives, control.answers_beats = True, False
    await fence.keep(Obeyed("cluster-1", Epoch(5)))
    control.reachable, control.is_standby = what != "nobody answers", what == "a standby answers"
    control.epoch = Epoch(4 if what == "an older epoch" else 6)
    async with Node(control, fence=fence) as node:
        until = asyncio.get_running_loop().time() + 3_600
        while asyncio.get_running_loop().time() < until:
            await asyncio.sleep(1)
            if control.sessions:
                control.break_stream()
        streams = len(control.sessions)
        control.reachable, control.is_standby, control.answers_beats, control.epoch = True, False, True, Epoch(7)
        active_at = asyncio.get_running_loop().time()
        await node.connected(streams + 1)
        assert asyncio.get_running_loop().time() - active_at <= 2.1


@on_virtual_time
async def test_a_refusal_is_not_repeated_often_where_there_are_several_either() -> None:
    control = TwinControl()
    control.has_alternatives, control.refusal = True, "no"
    async with Node(control):
        await asyncio.sleep(3_600)
        assert control.tries_at[-1] - control.tries_at[-2] >= 29


@on_virtual_time
async def test_that_nobody_answers_is_said_once() -> None:
    control = TwinControl()
    control.has_alternatives, control.reachable = True, False
    async with Node(control) as node:
        await asyncio.sleep(600)
        assert node.notes.counts["control_plane_unreachable"] == 1
        control.reachable = True
        await node.connected()
        control.reachable = False
        control.break_stream()
        await asyncio.sleep(60)
        assert node.notes.counts["control_plane_unreachable"] == 2


@on_virtual_time
async def test_after_a_stream_that_worked_broke_the_first_tries_come_quickly() -> None:
    control = TwinControl()
    async with Node(control) as node:
        await node.connected()
        await asyncio.sleep(30)
        broke_at = asyncio.get_running_loop().time()
        control.is_standby = True
        control.break_stream()
        tries = len(control.tries_at)
        await asyncio.sleep(5)
        times = [at - broke_at for at in control.tries_at[tries:]]
        assert times[0] <= 0.51
        assert len(times) >= 4


@on_virtual_time
async def test_a_control_plane_that_leaves_beats_unanswered_is_left_where_there_is_another() -> None:
    control = TwinControl()
    control.has_alternatives = True
    async with Node(control) as node:
        await node.connected()
        await asyncio.sleep(21)
        assert len(control.sessions) == 1
        control.answers_beats = False
        stopped_at = asyncio.get_running_loop().time()
        await node.until(lambda: control.session.broken.is_set(), within_s=30)
        assert control.heartbeat_s <= asyncio.get_running_loop().time() - stopped_at <= 2.1 * control.heartbeat_s
        control.answers_beats = True
        await node.connected(streams=2)
        await asyncio.sleep(60)
        assert len(control.sessions) == 2


@on_virtual_time
async def test_a_control_plane_that_leaves_beats_unanswered_is_kept_where_there_is_no_other() -> None:
    control = TwinControl()
    control.answers_beats = False
    async with Node(control) as node:
        await node.connected()
        await asyncio.sleep(300)
        assert len(control.sessions) == 1


# --- what the runner is told of answers -------------------------------------------------------------------------


@on_virtual_time
async def test_the_runner_is_told_when_each_answered_beat_was_sent() -> None:
    async with Node() as node:
        await node.connected()
        began = SimClock().mono()
        await asyncio.sleep(20.5)
        told = [round(at - began, 1) for at in node.runner.answered_at]
        assert told == [0.0, 5.0, 10.0, 15.0, 20.0]
        node.control.answers_beats = False
        await asyncio.sleep(60)
        assert len(node.runner.answered_at) == 5, "an unanswered beat counts for nothing"


@on_virtual_time
async def test_before_the_first_start_of_a_stream_the_runner_knows_that_somebody_is_active() -> None:
    """Else a lease would be over before its task began: no beat has been answered yet."""
    control = TwinControl()
    control.answers_beats = False
    told: list[int] = []

    class Runner(TwinRunner):
        async def start(self, task: object) -> None:
            told.append(len(self.answered_at))

    async with Node(control, Runner()) as node:
        await node.connected()
        opened = SimClock().mono()
        await asyncio.sleep(3)
        control.tell(start(key(1)))
        await node.until(lambda: told)
        assert told == [1]
        assert abs(node.runner.answered_at[0] - opened) < 0.1, "it counts from the inventory, not from the start"


@on_virtual_time
async def test_an_answer_of_an_older_epoch_counts_for_nothing() -> None:
    control = TwinControl()
    control.epoch = Epoch(4)
    async with Node(control) as node:
        await node.connected()
        await asyncio.sleep(1)
        told = len(node.runner.answered_at)
        control.answer_epoch = Epoch(3)
        await asyncio.sleep(20)
        assert len(node.runner.answered_at) == told


# --- whether leases are kept ------------------------------------------------------------------------------------


@on_virtual_time
async def test_a_node_says_that_it_keeps_leases_as_long_as_its_runner_has_a_guard() -> None:
    runner = TwinRunner()
    runner.keeps_leases = True
    async with Node(runner=runner) as node:
        await node.connected()
        assert node.control.registered[-1].inventory.keeps_leases
        runner.lose_guard()
        await node.connected(streams=2)
        assert not node.control.registered[-1].inventory.keeps_leases
        node.daemon.amend(registration(6))
        await node.connected(streams=3)
        assert not node.control.registered[-1].inventory.keeps_leases, "that is the runner's to say"


# --- ends that an older log lacks -------------------------------------------------------------------------------


@on_virtual_time
async def test_an_end_that_a_new_control_plane_lacks_is_named_and_given_when_asked_for() -> None:
    async with Node() as node:
        await node.connected()
        await running(node)
        node.runner.end(key(1), exited(7))
        await node.until(lambda: key(1) in node.runner.settled)
        node.control.epoch = Epoch(1_002)
        node.control.break_stream()
        await node.connected(streams=2)
        inventory = node.control.session.reports[0]
        assert isinstance(inventory, TaskInventory)
        assert (inventory.tasks, inventory.kept) == ((), (key(1),))
        node.control.finished.clear()
        node.control.tell(start(key(1), epoch=1_002))
        await node.until(lambda: node.control.finished)
        assert [(one.key, one.end.exit_code) for one in node.control.finished] == [(key(1), 7)]
        assert len(node.runner.starts) == 1
        await node.until(lambda: len(node.runner.settled) == 2)


@on_virtual_time
async def test_a_restarted_agent_gives_the_end_that_only_its_runner_has() -> None:
    control, runner = TwinControl(), TwinRunner()
    runner.records[key(1)] = TaskStatus(key=key(1), phase=TaskPhase.RUNNING)
    runner.end(key(1), exited(9))
    runner.settled.append(key(1))
    async with Node(control, runner) as node:
        await node.connected()
        inventory = control.session.reports[0]
        assert isinstance(inventory, TaskInventory)
        assert inventory.kept == (key(1),)
        control.tell(start(key(1)))
        await node.until(lambda: control.finished)
        assert [one.end.exit_code for one in control.finished] == [9]
        assert runner.recalled == [key(1)]
        assert runner.starts == []


@on_virtual_time
async def test_an_end_of_which_no_record_is_kept_is_answered_as_gone() -> None:
    control, runner = TwinControl(), TwinRunner()
    runner.records[key(1)] = TaskStatus(key=key(1), phase=TaskPhase.ENDED)
    async with Node(control, runner) as node:
        await node.connected()
        for _ in range(2):
            control.tell(start(key(1)))
            await node.until(lambda: control.finished)
        assert {cause for _, cause in node.finished()} == {EndCause.GONE}
        assert runner.starts == []
        await asyncio.sleep(20)
        assert isinstance(control.session.reports[-1], Beat)
