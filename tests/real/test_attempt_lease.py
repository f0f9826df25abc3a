"""The attempt lease on real processes: who ends what no control plane answers for, whoever else is dead or stopped?

Rule R8 of the Runner port, and G1 to G4 of `agent/runner/guard.py`.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stoker.agent.ports import LeasesUnkept, RunnerGone, StartTask
from stoker.agent.runner.guard import LOOK_S, STUCK_S
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.policy import LEASE_KILL_MS
from stoker.cli.doctor.finding import Level
from stoker.cli.doctor.node import leases
from tests.contracts.runner import LONG_S, Listener, agent_on, key
from tests.real.runner_node import RealNode, is_alive, node_in

LEASE_MS = 1_000
KILL_S = LEASE_KILL_MS / 1_000


@pytest.fixture(params=["auto", "scan"])
async def node(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[RealNode]:
    async with node_in(tmp_path, tree=request.param) as node:
        yield node


def family(node: RealNode, of: TaskKey, lease_ms: int = LEASE_MS) -> StartTask:
    """A leader that ignores being terminated, a child, and a grandchild that left session and environment behind."""
    away = "setsid env -i /bin/sh -c 'echo $$ > away; exec sleep 300' &"
    return node.shell(of, f"trap '' TERM; (sleep 300; true) & {away} echo started; sleep 300", lease_ms=lease_ms)


async def answered(node: RealNode, agent: Listener) -> None:
    """A beat was sent just now, and has been answered."""
    await agent.runner.answered(node.clock.mono())


async def begun(node: RealNode, agent: Listener, task: StartTask) -> int:
    """It runs with all its family; answers the pid of the one that went away."""
    await answered(node, agent)
    await agent.runner.start(task)
    await agent.running(task.start.key)
    return await asyncio.to_thread(node.pid_in, "away")


async def soon(gone: list[int], within_s: float = KILL_S) -> None:
    """None of these processes lives any more, before the bound."""
    until = time.monotonic() + within_s
    while any(map(is_alive, gone)):
        assert time.monotonic() < until, f"still there after {within_s} s: {[pid for pid in gone if is_alive(pid)]}"
        await asyncio.sleep(0.01)


async def test_a_task_is_killed_with_its_whole_tree_when_its_lease_is_over(node: RealNode) -> None:
    async with agent_on(node) as agent:
        away = await begun(node, agent, family(node, key(1)))
        began = time.monotonic()
        end = await agent.end(key(1))
        assert time.monotonic() - began < LEASE_MS / 1_000 + KILL_S
        assert (end.cause, end.exit_code, end.oom) == (EndCause.LEASE_ENDED, None, False)
        assert "no active control plane has answered this node for 1 s" in end.error
        assert not is_alive(away)
        assert not node.lives(key(1))


async def test_answered_beats_keep_it_alive_and_the_last_one_counts_from_when_it_was_sent(node: RealNode) -> None:
    async with agent_on(node) as agent:
        await begun(node, agent, family(node, key(1), lease_ms=4_000))
        for _ in range(5):
            await asyncio.sleep(1)
            await answered(node, agent)
        assert node.lives(key(1)), "it has outlived its lease"
        sent_at = node.clock.mono()
        await asyncio.sleep(3)
        await agent.runner.answered(sent_at)  # the answer took its time
        heard_at = node.clock.mono()
        assert (await agent.end(key(1))).cause is EndCause.LEASE_ENDED
        assert node.clock.mono() - heard_at < 4, "counted from the sending, not from the answer"


async def test_a_task_without_a_lease_waits_for_ever(node: RealNode) -> None:
    async with agent_on(node) as agent:
        await answered(node, agent)
        await agent.runner.start(node.task(key(2), lasts_s=LONG_S))
        await agent.runner.start(node.shell(key(1), "sleep 300", lease_ms=300))
        assert (await agent.end(key(1))).cause is EndCause.LEASE_ENDED
        assert node.lives(key(2))


async def test_a_start_that_comes_when_its_lease_is_over_never_runs(node: RealNode) -> None:
    async with agent_on(node) as agent:
        await agent.inventory()  # and nothing was ever answered
        task = node.shell(key(1), f"touch {node.folder}/ran; sleep 300", lease_ms=60_000)
        await agent.runner.start(task)
        assert (await agent.end(key(1))).cause is EndCause.LEASE_ENDED
        assert not (node.folder / "ran").exists()


async def test_a_lease_that_is_over_leaves_no_grace_to_what_was_told_to_stop(node: RealNode) -> None:
    async with agent_on(node) as agent:
        away = await begun(node, agent, family(node, key(1)))
        await agent.runner.stop(key(1), 300_000)
        await soon([away], LEASE_MS / 1_000 + KILL_S)
        assert (await agent.end(key(1))).cause is EndCause.STOPPED


async def test_the_runner_ends_it_alone_when_the_agent_is_dead(node: RealNode) -> None:
    async with agent_on(node) as agent:
        away = await begun(node, agent, family(node, key(1)))
    await soon([away, *node.living(key(1))], LEASE_MS / 1_000 + KILL_S)
    async with agent_on(node) as agent:
        (over,) = (await agent.inventory()).ends
        assert over.end.cause is EndCause.LEASE_ENDED


async def test_two_hundred_leases_that_end_together_are_over_in_time_and_the_runner_serves_on(node: RealNode) -> None:
    """One by one they would take longer than the guard is patient."""
    async with agent_on(node) as agent:
        for job in range(1, 201):
            await answered(node, agent)
            await agent.runner.start(node.shell(key(job), "sleep 300 & sleep 300", lease_ms=4_000))
        for job in range(1, 201):
            await agent.running(key(job))
            await answered(node, agent)
        runner = node.runner_pid
        ends = [await agent.end(key(job)) for job in range(1, 201)]
        assert node.runner_pid == runner, "no guard had to take over"
        assert {end.cause for end in ends} == {EndCause.LEASE_ENDED}
        assert [pid for job in (1, 100, 200) for pid in node.living(key(job))] == []
        await agent.runner.start(node.shell(key(201), "exit 5"))
        assert (await agent.end(key(201))).exit_code == 5


async def test_a_runner_that_was_stopped_past_the_lease_kills_before_it_says_or_starts_anything(node: RealNode) -> None:
    async with agent_on(node) as agent:
        away = await begun(node, agent, family(node, key(1)))
        os.kill(node.runner_pid, signal.SIGSTOP)
        await asyncio.sleep(LEASE_MS / 1_000 + 0.5)
        late = node.shell(key(2), f"touch {node.folder}/ran", lease_ms=LEASE_MS)
        await agent.runner.start(late)
        assert is_alive(away), "nobody else was to end it so soon"
        os.kill(node.runner_pid, signal.SIGCONT)
        assert (await agent.end(key(2))).cause is EndCause.LEASE_ENDED
        assert (await agent.end(key(1))).cause is EndCause.LEASE_ENDED
        assert not is_alive(away)
        assert not (node.folder / "ran").exists()


async def test_a_runner_that_stays_stopped_past_the_lease_is_ended_by_its_guard_with_all_it_started(
    node: RealNode,
) -> None:
    """It might as well hang on a disk."""
    async with agent_on(node) as agent:
        away = await begun(node, agent, family(node, key(1)))
        runner, family_pids = node.runner_pid, node.living(key(1))
        os.kill(runner, signal.SIGSTOP)
        await soon([runner, away, *family_pids], LEASE_MS / 1_000 + STUCK_S + LOOK_S + 2)
        await agent.hear(RunnerGone)
    async with agent_on(node) as agent:
        assert (await agent.known_end(key(1))).cause is EndCause.RUNNER_LOST


async def test_the_guard_leaves_a_stopped_runner_alone_while_no_lease_is_over(node: RealNode) -> None:
    async with agent_on(node) as agent:
        await begun(node, agent, family(node, key(1), lease_ms=60_000))
        os.kill(node.runner_pid, signal.SIGSTOP)
        await asyncio.sleep(STUCK_S + 2 * LOOK_S)
        os.kill(node.runner_pid, signal.SIGCONT)
        await agent.runner.stop(key(1), 0)
        assert (await agent.end(key(1))).cause is EndCause.STOPPED


async def test_when_runner_and_agent_are_killed_the_guard_ends_everything_at_once(node: RealNode) -> None:
    async with agent_on(node) as agent:
        away = await begun(node, agent, family(node, key(1), lease_ms=600_000))
        unleased = node.shell(key(2), "sleep 300")
        await agent.runner.start(unleased)
        await agent.running(key(2))
    runner, guard = node.runner_pid, node.guard_pid
    pids = [runner, guard, away, *node.living(key(1)), *node.living(key(2))]
    os.kill(runner, signal.SIGKILL)
    await soon(pids, 2.0)
    async with agent_on(node) as agent:
        assert (await agent.known_end(key(1))).cause is EndCause.RUNNER_LOST
        assert (await agent.known_end(key(2))).cause is EndCause.RUNNER_LOST
        assert (await agent.inventory()).keeps_leases


async def test_a_tree_that_forks_and_forks_does_not_outrun_the_guard(node: RealNode) -> None:
    """Each of its processes begets the next and ends."""
    line = "f() { (sleep 0.01; f) & }; f; f; f; echo $$ > away; sleep 300"
    async with agent_on(node) as agent:
        await begun(node, agent, node.shell(key(1), line))
        runner, guard = node.runner_pid, node.guard_pid
        os.kill(runner, signal.SIGKILL)
        await soon([guard], KILL_S)
        assert node.living(key(1)) == []


async def test_a_runner_whose_guard_was_killed_says_so_and_makes_room_for_another_once_it_is_idle(
    node: RealNode,
) -> None:
    async with agent_on(node) as agent:
        assert (await agent.inventory()).keeps_leases
        await agent.runner.start(node.shell(key(1), "while [ ! -e go ]; do sleep 0.01; done; exit 6"))
        await agent.running(key(1))
        first = node.runner_pid
        os.kill(node.guard_pid, signal.SIGKILL)
        await agent.hear(LeasesUnkept)
        (node.folder / "go").touch()
        assert (await agent.end(key(1))).exit_code == 6, "the work goes on"
        await agent.hear(RunnerGone)
    async with agent_on(node) as agent:
        assert (await agent.inventory()).keeps_leases
        assert node.runner_pid != first


async def test_when_guard_and_runner_are_killed_leaders_die_and_the_next_runner_ends_the_rest(node: RealNode) -> None:
    async with agent_on(node) as agent:
        away = await begun(node, agent, family(node, key(1)))
        leader = (await agent.running(key(1))).pid
        runner, guard = node.runner_pid, node.guard_pid
        os.kill(guard, signal.SIGSTOP)  # so that the order of the two kills doesn't matter
        os.kill(runner, signal.SIGKILL)
        os.kill(guard, signal.SIGKILL)
        await soon([leader], 2.0)
    async with agent_on(node) as agent:
        assert (await agent.known_end(key(1))).cause is EndCause.RUNNER_LOST
        await soon(node.living(key(1)), 2.0)
    if not node.cgroups:
        os.kill(away, signal.SIGKILL)  # nothing says whose it is: no cgroup, no mark, another session
    await soon([away], 2.0)


async def test_an_end_that_had_arrived_is_recalled_with_its_exit_code_also_by_a_later_runner(node: RealNode) -> None:
    async with agent_on(node) as agent:
        await agent.runner.start(node.shell(key(1), "exit 7"))
        await agent.end(key(1))
        await agent.runner.settle(key(1))
        await agent.runner.start(node.shell(key(2), "true"))
        await agent.end(key(2))
        os.kill(node.runner_pid, signal.SIGKILL)
        await agent.hear(RunnerGone)
    async with agent_on(node) as agent:
        inventory = await agent.inventory()
        assert key(1) in [status.key for status in inventory.tasks]
        assert key(1) not in [over.key for over in inventory.ends]
        await agent.runner.recall(key(1))
        assert (await agent.end(key(1))).exit_code == 7


def test_what_this_module_waits_for_is_within_what_the_control_plane_allows() -> None:
    assert STUCK_S + LOOK_S <= KILL_S / 2


async def test_the_doctor_tells_a_runner_with_a_guard_from_one_without(node: RealNode) -> None:
    data_dir = node.folder / "agent"
    assert [said.level for said in leases(data_dir)] == [Level.OK], "none runs yet"
    async with agent_on(node) as agent:
        await agent.runner.start(node.shell(key(1), "sleep 300"))
        await agent.running(key(1))
        (said,) = leases(data_dir)
        assert (said.level, str(node.runner_pid) in said.what) == (Level.OK, True)
        os.kill(node.guard_pid, signal.SIGKILL)
        await agent.hear(LeasesUnkept)
        (said,) = leases(data_dir)
        assert (said.level, "never starts its jobs elsewhere" in said.what) == (Level.WARNING, True)
        await agent.runner.stop(key(1), 0)
        await agent.end(key(1))
