"""What is promised under one fault at a time, told as stories: seeds show that it holds, these show what it is."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.job import EndCause, Job, JobSpec
from stoker.brain.domain.lifecycle import JobState, NodeState
from stoker.brain.state.cluster import ClusterState
from stoker.control.supervisor import DutyEnded
from stoker.ports import LogFailed
from tests.rig.cluster import Cluster
from tests.rig.faults import disk_full
from tests.rig.people import FOR_EVER_S, cancel, release_all, submit
from tests.rig.run import watched
from tests.rig.virtual_loop import on_virtual_time

N1 = NodeName("n1")
ONE = JobId(1)


@asynccontextmanager
async def cluster_of(nodes: int = 1) -> AsyncIterator[Cluster]:
    """At the end every promise must have held; what still runs is cancelled."""
    cluster = Cluster(seed=1, nodes=nodes)
    try:
        with watched(cluster):
            await cluster.start()
            await cluster.clock.sleep(1)
            yield cluster
            for job in cluster.oracle.acknowledged:
                await cancel(cluster, job)
            await cluster.peace(release_all)
            await cluster.reckon()
    finally:
        await cluster.close()


def state_of(cluster: Cluster) -> ClusterState:
    return cluster.control.parts.committer.state


def job_of(cluster: Cluster, job: JobId = ONE) -> Job:
    return state_of(cluster).jobs[job]


async def until(cluster: Cluster, holds: Callable[[], bool], within_s: float = 60.0) -> float:
    """Seconds waited."""
    began = cluster.clock.mono()
    while not holds():
        assert cluster.clock.mono() - began < within_s, "it never came to hold"
        await cluster.clock.sleep(0.01)
    return cluster.clock.mono() - began


async def running(cluster: Cluster, command: str, *, limit_s: int = 0, retries: int = 0) -> None:
    """The first job, running."""
    demand = Demand(gpu_count=1)
    limit_ms = limit_s * 1000
    spec = JobSpec(name="j", demand=demand, command=command, priority=500, time_limit_ms=limit_ms, retries_max=retries)
    await submit(cluster, spec)
    await until(cluster, lambda: job_of(cluster).state is JobState.RUNNING)


@on_virtual_time
class TestSilence:
    async def test_a_stopped_agent_makes_its_node_unreachable_and_ends_nothing(self) -> None:
        async with cluster_of() as cluster:
            await running(cluster, "90 7")
            gate = cluster.agents[0].gate
            gate.shut()
            await until(cluster, lambda: state_of(cluster).node_state(N1) is NodeState.UNREACHABLE, within_s=25)
            await cluster.clock.sleep(30)
            assert job_of(cluster).state is JobState.RUNNING
            gate.open()
            await until(cluster, lambda: state_of(cluster).node_state(N1) is NodeState.READY, within_s=6)
            await until(cluster, lambda: job_of(cluster).is_final, within_s=60)
            assert (len(job_of(cluster).attempts), job_of(cluster).exit_code) == (1, 7)

    async def test_an_end_during_an_hour_without_control_plane_is_told_when_it_is_back(self) -> None:
        async with cluster_of() as cluster:
            await running(cluster, "600 7")
            await cluster.restart_control(3_600.0)
            await until(cluster, lambda: job_of(cluster).is_final, within_s=60)
            assert (len(job_of(cluster).attempts), job_of(cluster).exit_code) == (1, 7)


@on_virtual_time
class TestDisk:
    async def test_a_full_disk_stops_the_process_and_with_room_again_nothing_is_lost(self) -> None:
        async with cluster_of() as cluster:
            await running(cluster, f"{FOR_EVER_S} 0")
            cluster.disk.full = True
            await cancel(cluster, ONE)
            await cluster.clock.sleep(0.1)
            (ended,) = cluster.control.tasks.crashes()
            assert isinstance(ended, DutyEnded)
            assert isinstance(ended.__cause__, LogFailed)
            assert cluster.reach() is None
            cluster.disk.full = False
            await cluster.restart_control(1.0, crashed=True)
            assert job_of(cluster).state is JobState.RUNNING, "the cancel was refused, so it never happened"

    async def test_a_process_that_starts_on_a_full_disk_ends_at_once(self) -> None:
        async with cluster_of() as cluster:
            await running(cluster, "3 0")
            await disk_full(cluster)
            await until(cluster, lambda: job_of(cluster).state is JobState.SUCCEEDED)

    async def test_while_the_disk_stalls_nothing_is_acknowledged_and_then_everything(self) -> None:
        async with cluster_of() as cluster:
            await running(cluster, f"{FOR_EVER_S} 0")
            cluster.disk.stall_s = 8.0
            began = cluster.clock.mono()
            await cancel(cluster, ONE)
            assert cluster.clock.mono() - began >= 8
            cluster.disk.stall_s = 0.0
            await until(cluster, lambda: job_of(cluster).state is JobState.CANCELLED)


@on_virtual_time
class TestWallClock:
    """Limits are kept in the log's time, since no other clock outlives the process and the machine.

    Promised: time in the log never runs backwards; while one process lives no step reaches it; a step forward between
    two processes counts like the same time spent down; after a step back limits take at most twice what was left.
    """

    async def test_a_step_forward_between_two_processes_counts_like_time_spent_down(self) -> None:
        async with cluster_of() as cluster:
            await running(cluster, f"{FOR_EVER_S} 0", limit_s=1_800)
            cluster.wall_offset_s = 3_600.0
            await cluster.restart_control(0.0)
            await until(cluster, lambda: job_of(cluster).state is JobState.TIMEOUT, within_s=10)

    async def test_a_step_back_between_two_processes_at_most_doubles_what_was_left(self) -> None:
        async with cluster_of() as cluster:
            await running(cluster, f"{FOR_EVER_S} 0", limit_s=100)
            cluster.wall_offset_s = -3_600.0
            await cluster.restart_control(0.0)
            waited_s = await until(cluster, lambda: job_of(cluster).state is JobState.TIMEOUT, within_s=220)
            assert waited_s >= 95

    async def test_a_step_back_does_not_hold_up_a_retry_for_as_long_as_the_step(self) -> None:
        async with cluster_of() as cluster:
            await running(cluster, "1 3", retries=3)
            await until(cluster, lambda: job_of(cluster).retries_used == 1)
            cluster.wall_offset_s = -3_600.0
            await cluster.restart_control(0.0)
            await until(cluster, lambda: job_of(cluster).is_final, within_s=60)
            assert len(job_of(cluster).attempts) == 4


@on_virtual_time
class TestNodes:
    async def test_a_reboot_ends_what_ran_there_as_rebooted_and_runs_it_again(self) -> None:
        async with cluster_of() as cluster:
            await running(cluster, "5 0")
            agent = cluster.agents[0]
            await agent.kill()
            agent.machine.reboot()
            await cluster.clock.sleep(30)
            agent.start()
            await until(cluster, lambda: job_of(cluster).is_final)
            first, second = job_of(cluster).attempts
            assert [task.end and task.end.cause for task in (*first.tasks, *second.tasks)] == [
                EndCause.NODE_REBOOTED,
                EndCause.EXITED,
            ]

    async def test_a_gpu_that_vanishes_ends_nothing_and_is_used_again_once_it_is_back(self) -> None:
        async with cluster_of() as cluster:
            await running(cluster, "20 0")
            agent = cluster.agents[0]
            agent.show_gpus(*(gpu.uuid for gpu in agent.gpus()))
            await until(cluster, lambda: not state_of(cluster).nodes[N1].inventory.gpus)
            assert job_of(cluster).state is JobState.RUNNING
            agent.show_gpus()
            await until(cluster, lambda: len(state_of(cluster).indexes.free[N1].gpus) == 3)
            await until(cluster, lambda: job_of(cluster).state is JobState.SUCCEEDED)


@on_virtual_time
class TestPeople:
    async def test_a_cancel_that_is_repeated_stops_once(self) -> None:
        async with cluster_of() as cluster:
            await running(cluster, f"{FOR_EVER_S} 0 trap")
            await cancel(cluster, ONE, times=3)
            await until(cluster, lambda: job_of(cluster).state is JobState.CANCELLED)
            end = job_of(cluster).attempts[0].tasks[0].end
            assert end is not None
            assert (end.cause, end.signal) == (EndCause.STOPPED, 9)
