"""Replays of recorded logs: what comes in again, how long jobs run, and what is compared (R1 to R3, P1 to P4)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import msgspec
import pytest

from stoker.brain.domain.array import JobRef, parse_array
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import JobId, Position
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.policy import Policy
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact, decode_fact, snapshot_chunks
from stoker.brain.state.commands import DrainNode, ForgetNode, Hold, Release
from stoker.brain.state.invariants import violations
from stoker.sim import virtual_cluster
from stoker.sim.recording import recorded, recorded_state
from stoker.sim.replay import Replay, replay
from tests.control.stage import ANNA, Player, Stage, stage, virtual
from tests.rig.cluster import Cluster
from tests.rig.run import Course, play
from tests.rig.sim_log import SimDisk
from tests.rig.virtual_loop import run_virtual


def same(policy: Policy) -> Policy:
    return policy


@contextmanager
def every_event_checked() -> Iterator[list[int]]:
    """The brain's invariants hold after each event of a simulated cluster; yields how many there were."""
    real, checked = virtual_cluster.apply, [0]

    def seen(state: ClusterState, fact: Fact, position: Position) -> None:
        real(state, fact, position)
        checked[0] += 1
        assert violations(state) == []

    with mock.patch.object(virtual_cluster, "apply", seen):
        yield checked


def log_of(disk: SimDisk) -> list[tuple[Position, bytes]]:
    assert disk.first == 1, "nothing was trimmed"
    return [(Position(at), record) for at, record in enumerate(disk.records, 1)]


def again(disk: SimDisk, change: Callable[[Policy], Policy] = same) -> Replay:
    return replay(recorded("log", (), log_of(disk)), change, lambda _: None)


async def joined(s: Stage, name: str) -> Player:
    """A node that is heard of as long as the stage is there."""
    player = await s.join(name, 1)
    s.duties.begin(f"beat {name}", player.keep_beating())
    return player


async def run_for(s: Stage, player: Player, job: JobId, seconds: float, exit_code: int = 0) -> None:
    """Start what is placed next, let it run, end it."""
    await s.until(lambda: any(start.key.job == job for start in player.starts))
    (*_, start) = (start for start in player.starts if start.key.job == job)
    await player.say_started(start.key)
    await s.pause(seconds)
    await player.end(start.key, exit_code)


@virtual
async def test_each_job_runs_as_long_as_it_did_and_ends_as_it_did() -> None:
    """R1, P3: the second failed once, and was retried."""
    async with stage() as s:
        player = await joined(s, "n")
        first, second = await s.submit(), await s.submit(retries_max=1)
        await run_for(s, player, first, 100)
        await run_for(s, player, second, 30, exit_code=3)
        await s.pause(2)
        await run_for(s, player, second, 50)
    told = again(s.disk)
    assert (told.jobs, told.compared, told.earlier, told.later) == (2, 2, 0, 0)
    assert told.now.jct_mean_s == pytest.approx(told.then.jct_mean_s, abs=1)
    assert told.now.makespan_s == pytest.approx(183, abs=2)


@virtual
async def test_another_policy_makes_other_decisions_on_the_same_jobs() -> None:
    """P4: with much aging the old job of low priority goes before the younger normal one."""
    async with stage() as s:
        player = await joined(s, "n")
        running = await s.submit(time_limit_ms=10**8)
        await s.until(lambda: bool(player.starts))
        await player.say_started(player.starts[0].key)
        low = await s.submit(priority=100)
        await s.pause(3_600)
        normal = await s.submit(priority=500)
        await s.pause(3_000)
        await player.end(player.starts[0].key)
        await run_for(s, player, normal, 1_000)
        await run_for(s, player, low, 10)
    assert running != low
    told = again(s.disk, lambda policy: msgspec.structs.replace(policy, aging_per_hour=1_000, aging_max=100_000))
    assert (told.compared, told.earlier, told.later) == (3, 1, 1)
    assert told.now.wait_mean_s < told.then.wait_mean_s - 300
    assert again(s.disk).earlier == 0


@virtual
async def test_orders_of_people_are_given_at_their_times() -> None:
    """P2: one job is held for a while, one is cancelled while it waits and one while it runs."""
    async with stage() as s:
        player = await joined(s, "n")
        runs, held, waits = await s.submit(), await s.submit(), await s.submit()
        await s.until(lambda: bool(player.starts))
        await player.say_started(player.starts[0].key)
        await s.committer.ask(Hold(by=ANNA, target=JobRef(held)))
        await s.pause(50)
        await s.cancel(waits)
        await s.cancel(runs)
        await player.end(player.starts[0].key, cause=EndCause.STOPPED)
        await s.pause(70)
        await s.committer.ask(Release(by=ANNA, target=JobRef(held)))
        await run_for(s, player, held, 10)
    told = again(s.disk)
    assert (told.jobs, told.compared, told.cancelled) == (3, 1, 2)
    assert (told.orders, told.orders_refused) == (4, 0)
    assert told.now.wait_mean_s == pytest.approx(120, abs=1)


@virtual
async def test_nodes_drain_and_are_lost_as_they_were_and_what_they_lost_runs_again() -> None:
    """P1: the drained node takes nothing, the forgotten one loses its job, which goes elsewhere later."""
    async with stage() as s:
        first, second = await joined(s, "n1"), await joined(s, "n2")
        await s.committer.ask(DrainNode(by=ANNA, node=second.node, reason="disk"))
        job = await s.submit()
        await s.until(lambda: bool(first.starts))
        await first.say_started(first.starts[0].key)
        await s.pause(40)
        await s.committer.ask(ForgetNode(by=ANNA, node=first.node, force=True))
        third = await joined(s, "n3")
        await run_for(s, third, job, 60)
    told = again(s.disk)
    assert (told.compared, told.then.requeues, told.now.requeues) == (1, 1, 1)
    assert told.now.jct_mean_s == pytest.approx(told.then.jct_mean_s, abs=2)


@virtual
async def test_what_has_not_ended_takes_part_and_what_never_ran_does_not() -> None:
    """R2, R3: only the first is compared."""
    async with stage() as s:
        player = await joined(s, "n")
        ended, runs = await s.submit(), await s.submit()
        for _ in range(3):
            await s.submit(array=parse_array("0-1"))
        await s.submit()
        await run_for(s, player, ended, 20)
        await s.until(lambda: len(player.starts) == 2)
        await player.say_started(player.starts[1].key)
        await s.pause(30)
    told = again(s.disk)
    assert runs > ended
    assert (told.jobs, told.compared, told.unfinished, told.left_out) == (9, 1, 1, 7)


@virtual
async def test_members_of_an_array_that_ran_run_again() -> None:
    async with stage() as s:
        player = await joined(s, "n")
        array = await s.submit(array=parse_array("0-2"))
        for member in (1, 2):
            await run_for(s, player, JobId(array + member), 10)
        await s.until(lambda: len(player.starts) == 3)
    told = again(s.disk)
    assert (told.compared, told.unfinished, told.later) == (2, 1, 0)


async def _two_jobs(s: Stage) -> tuple[list[bytes], Position]:
    """One job ends, one runs, a snapshot is taken, both have ended."""
    player = await joined(s, "n")
    first, second = await s.submit(), await s.submit()
    await run_for(s, player, first, 20)
    await s.until(lambda: len(player.starts) == 2)
    await player.say_started(player.starts[1].key)
    await s.pause(15)
    chunks, position = list(snapshot_chunks(s.state)), s.state.position
    await s.pause(15)
    await player.end(player.starts[1].key)
    third = await s.submit()
    await run_for(s, player, third, 5)
    assert second < third
    return chunks, position


@virtual
async def test_a_log_that_was_trimmed_goes_on_from_its_snapshot() -> None:
    """What ran then ends when it did; what had ended before is over."""
    async with stage() as s:
        chunks, position = await _two_jobs(s)
    told = replay(recorded("log", chunks, log_of(s.disk)[position:]), same, lambda _: None)
    assert (told.jobs, told.compared, told.earlier, told.later) == (2, 2, 0, 0)
    assert told.now.jct_mean_s == pytest.approx(told.then.jct_mean_s, abs=1)


@virtual
async def test_the_state_of_a_backup_is_enough_for_the_jobs_that_it_remembers() -> None:
    async with stage() as s:
        await _two_jobs(s)
        chunks = list(snapshot_chunks(s.state))
    told = replay(recorded_state("backup", chunks), same, lambda _: None)
    assert (told.jobs, told.compared, told.earlier, told.later) == (3, 3, 0, 0)
    assert told.now.jct_mean_s == pytest.approx(told.then.jct_mean_s, abs=1)


def refusal(records: Sequence[tuple[Position, bytes]], chunks: Sequence[bytes] = ()) -> tuple[str, str]:
    with pytest.raises(StokerError) as caught:
        recorded("folder", chunks, records)
    assert caught.value.refusal.hint
    assert "folder" in caught.value.refusal.message
    return caught.value.refusal.code, caught.value.refusal.message


@virtual
async def test_a_log_that_cannot_be_replayed_says_which_record_it_is_and_why() -> None:
    async with stage() as s:
        await _two_jobs(s)
    log = log_of(s.disk)
    newer = msgspec.json.encode({**msgspec.json.decode(log[7][1]), "v": 99})
    assert refusal([*log[:7], (Position(8), newer)])[0] == "store_too_new"
    assert "record 8" in refusal([*log[:7], (Position(8), b'{"v":2,"ev')])[1]
    code, message = refusal(log[20:])
    assert (code, "record 21" in message) == ("log_damaged", True)
    assert refusal(log[:4]) == ("bad_trace", "folder: no job in it ran to its end")
    assert refusal([], [b"{}"])[0] == "store_too_new"


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.heavy)])
def test_logs_full_of_faults_are_replayed_and_break_no_promise(seed: int) -> None:
    """Lost messages, silent nodes, dead control planes and orders of every kind, out of the rig."""
    cluster: list[Cluster] = []

    async def live() -> None:
        cluster.append(Cluster(seed, 3))
        await play(cluster[0], seed, Course(25))

    run_virtual(live)
    log = log_of(cluster[0].disk)
    with every_event_checked() as checked:
        told = replay(recorded("rig", (), log), same, lambda _: None)
    assert checked[0] > 100
    assert told.compared > 15
    assert told.never_ended <= 3
    assert replay(recorded("rig", (), log), same, lambda _: None) == told


@virtual
async def test_a_replay_changes_nothing_of_what_it_was_made_of() -> None:
    async with stage() as s:
        await _two_jobs(s)
    before = list(s.disk.records)
    recording = recorded("log", (), log_of(s.disk))
    assert replay(recording, same, lambda _: None) == replay(recording, same, lambda _: None)
    assert s.disk.records == before
    assert decode_fact(before[0]).at == recording.facts[0].at
