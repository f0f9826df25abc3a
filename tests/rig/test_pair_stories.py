"""What is promised of two control planes under one fault at a time, told as stories: seeds show that it holds, these
show what it is."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from stoker.brain.domain.audit import NOBODY, AuditQuery
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import EndCause, Job, JobSpec
from stoker.brain.domain.lifecycle import JobState, NodeState
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import LabelNode
from stoker.control.audit_actions import AuditAction
from stoker.control.history import Recorder
from tests.rig.pair_cluster import PairCluster
from tests.rig.pair_control import PairControl
from tests.rig.pair_run import watched
from tests.rig.people import BOB, FOR_EVER_S, cancel, release_all, submit
from tests.rig.process import within
from tests.rig.virtual_loop import on_virtual_time

ONE = JobId(1)


@asynccontextmanager
async def pair(nodes: int = 2, *, shared: bool = False, profile: str = "default") -> AsyncIterator[PairCluster]:
    """At the end every promise must have held; what still runs is cancelled."""
    cluster = PairCluster(1, nodes, shared=shared, profile=profile)
    try:
        with watched(cluster):
            await cluster.start()
            await cluster.clock.sleep(1)
            yield cluster
            await cluster.until(lambda: cluster.active is not None, 30, "nobody is active")
            for job in cluster.oracle.acknowledged:
                await cancel(cluster, job)
            await cluster.peace(release_all)
            await cluster.reckon()
    finally:
        await cluster.close()


def both(cluster: PairCluster) -> tuple[PairControl, PairControl]:
    """The active one and the standby."""
    active = cluster.active
    assert active is not None
    (standby,) = (control for control in cluster.controls.values() if control is not active)
    return active, standby


def ledger(cluster: PairCluster) -> ClusterState:
    state = cluster.ledger()
    assert state is not None, "nobody is active"
    return state


def job_of(cluster: PairCluster, job: JobId = ONE) -> Job:
    return ledger(cluster).jobs[job]


def has(cluster: PairCluster, state: JobState, job: JobId = ONE) -> Callable[[], bool]:
    def holds() -> bool:
        seen = cluster.ledger()
        return seen is not None and job in seen.jobs and seen.jobs[job].state is state

    return holds


async def begin(cluster: PairCluster, command: str, lost_after_s: int | None = None, limit_s: int = 0) -> None:
    """A job that runs."""
    jobs = len(cluster.oracle.acknowledged)
    lost_after_ms = None if lost_after_s is None else lost_after_s * 1_000
    spec = JobSpec(
        name="j",
        demand=Demand(gpu_count=1),
        command=command,
        priority=500,
        time_limit_ms=limit_s * 1_000,
        lost_after_ms=lost_after_ms,
    )
    await submit(cluster, spec)
    assert len(cluster.oracle.acknowledged) == jobs + 1, "it wasn't acknowledged"
    await cluster.until(has(cluster, JobState.RUNNING, JobId(jobs + 1)), 30, "it didn't start")


def all_are_back(cluster: PairCluster) -> bool:
    """Does every node get new work?"""
    return all(node.takes_work for node in ledger(cluster).nodes.values())


async def writes_resume(cluster: PairCluster, within_s: float) -> None:
    """A person gets an answer."""
    began = cluster.clock.mono()
    await submit(cluster, JobSpec(name="j", demand=Demand(), command="0 0", priority=500, time_limit_ms=0))
    assert cluster.clock.mono() - began <= within_s


@on_virtual_time
class TestTakeOver:
    @pytest.mark.parametrize(("profile", "within_s"), [("default", 6.5), ("fast", 1.5)])
    async def test_a_killed_active_is_replaced_in_time_and_what_runs_goes_on(
        self, profile: str, within_s: float
    ) -> None:
        async with pair(profile=profile) as cluster:
            await begin(cluster, "60 7")
            active, standby = both(cluster)
            await active.kill()
            await writes_resume(cluster, within_s)
            assert cluster.active is standby
            await cluster.until(has(cluster, JobState.FAILED), 120, "it didn't end")
            assert (len(job_of(cluster).attempts), job_of(cluster).exit_code) == (1, 7)

    @pytest.mark.parametrize("shared", [False, True])
    async def test_one_that_is_told_to_stop_is_replaced_at_once(self, shared: bool) -> None:
        async with pair(shared=shared) as cluster:
            active, _ = both(cluster)
            active.terminate()
            await writes_resume(cluster, 2.0)

    @pytest.mark.parametrize("shared", [False, True])
    async def test_a_stopped_active_that_goes_on_says_and_does_nothing_more(self, shared: bool) -> None:
        async with pair(shared=shared) as cluster:
            active, standby = both(cluster)
            cluster.network.stop_at_message = active.process
            cluster.ask(begin(cluster, f"{FOR_EVER_S} 0"))
            await cluster.until(lambda: cluster.active is standby, 20, "nobody took over")
            await begin(cluster, f"{FOR_EVER_S} 0")
            active.go_on()
            await cluster.clock.sleep(10)
            assert cluster.active is standby
            assert active.life is not None
            assert not active.leads

    async def test_a_standby_that_lost_its_disk_gets_all_of_it_and_may_take_over(self) -> None:
        async with pair() as cluster:
            await begin(cluster, "60 7")
            active, standby = both(cluster)
            await cluster.restart(standby, 0.0, wipe=True)
            await cluster.until(lambda: cluster.in_sync, 30, "it didn't come back")
            await active.kill()
            await writes_resume(cluster, 6.5)
            assert has(cluster, JobState.RUNNING)()

    async def test_who_is_not_in_sync_does_not_take_over(self) -> None:
        async with pair() as cluster:
            active, standby = both(cluster)
            await standby.kill()
            await begin(cluster, f"{FOR_EVER_S} 0")
            await active.kill()
            standby.start()
            await cluster.clock.sleep(120)
            assert cluster.active is None
            active.start()
            await cluster.until(lambda: cluster.active is active, 10, "it didn't go on")

    async def test_a_submit_whose_answer_was_lost_is_carried_out_once(self) -> None:
        async with pair() as cluster:
            cluster.client.lossy = 1.0
            cluster.ask(begin(cluster, "1 0"))
            await cluster.clock.sleep(3)
            active, _ = both(cluster)
            await active.kill()
            cluster.client.lossy = 0.0
            await cluster.until(lambda: bool(cluster.oracle.acknowledged), 60, "it was never answered")
            assert list(ledger(cluster).jobs) == [ONE]


@on_virtual_time
class TestNodes:
    """Of a take-over."""

    @pytest.mark.parametrize("profile", ["default", "fast"])
    async def test_they_are_back_within_two_seconds_of_an_active_however_long_there_was_none(
        self, profile: str
    ) -> None:
        """And again when that one dies before its first heartbeat."""
        async with pair(nodes=5, profile=profile) as cluster:
            for control in cluster.controls.values():
                await control.kill()
            await cluster.clock.sleep(300)
            for control in cluster.controls.values():
                control.start()
            await cluster.until(lambda: cluster.active is not None, 20, "nobody is active")
            await cluster.until(lambda: all_are_back(cluster), 2.5, "a node isn't back")
            active, standby = both(cluster)
            await cluster.until(lambda: cluster.in_sync, 4, "they aren't in sync")
            await active.kill()
            await cluster.until(lambda: cluster.active is standby, 8, "nobody took over")
            await cluster.until(lambda: all_are_back(cluster), 2.5, "a node isn't back")

    async def test_no_work_is_given_to_one_that_died_with_the_active(self) -> None:
        """Its silence isn't its own yet, and on it the job would wait for as long as a lease while others are free."""
        async with pair(nodes=3) as cluster:
            active, _ = both(cluster)
            dead = cluster.agents[0]
            await dead.kill()
            await active.kill()
            for job in (1, 2):
                await begin(cluster, f"{FOR_EVER_S} 0")
                (task,) = job_of(cluster, JobId(job)).attempts[0].tasks
                assert task.placement.node != dead.node
            assert ledger(cluster).node_state(dead.node) is NodeState.READY
            dead.start()

    async def test_work_of_one_that_does_not_come_back_is_held_as_ever(self) -> None:
        async with pair() as cluster:
            await begin(cluster, f"{FOR_EVER_S} 0", lost_after_s=0)
            node = job_of(cluster).attempts[0].tasks[0].placement.node
            (agent,) = (agent for agent in cluster.agents if agent.node == node)
            active, standby = both(cluster)
            await agent.kill()
            await active.kill()
            await cluster.until(lambda: cluster.active is standby, 8, "nobody took over")
            await cluster.clock.sleep(600)
            assert has(cluster, JobState.RUNNING)()
            agent.start()
            await cluster.until(lambda: all_are_back(cluster), 5, "it isn't back")
            assert (job_of(cluster).state, len(job_of(cluster).attempts)) == (JobState.RUNNING, 1)


@on_virtual_time
class TestCuts:
    @pytest.mark.parametrize("ways", ["both", "to the standby", "to the active"])
    async def test_between_two_that_reach_the_marker_the_active_goes_on_alone(self, ways: str) -> None:
        async with pair() as cluster:
            active, standby = both(cluster)
            if ways != "to the active":
                cluster.cut(active.name, standby.name)
            if ways != "to the standby":
                cluster.cut(standby.name, active.name)
            await writes_resume(cluster, 5.0)
            await cluster.clock.sleep(60)
            assert cluster.active is active
            assert not cluster.in_sync
            cluster.network.mend_all()
            await cluster.until(lambda: cluster.in_sync, 30, "it didn't come back into the set")

    @pytest.mark.parametrize("shared", [False, True])
    async def test_an_active_that_loses_the_marker_steps_down_and_is_replaced(self, shared: bool) -> None:
        async with pair(shared=shared) as cluster:
            active, standby = both(cluster)
            cluster.place.cut.add(active.name)
            if cluster.database is not None:
                cluster.database.cut_off.add(active.name)
            await cluster.until(lambda: cluster.active is standby, 8, "nobody took over")
            await writes_resume(cluster, 5.0)

    async def test_without_a_marker_nobody_is_active_and_reads_go_on(self) -> None:
        async with pair() as cluster:
            await begin(cluster, f"{FOR_EVER_S} 0")
            cluster.place.down = True
            await cluster.until(lambda: cluster.active is None, 6, "it goes on")
            await cluster.clock.sleep(300)
            for control in cluster.controls.values():
                assert control.life is not None
                assert ONE in control.life.control.committer.state.jobs
            cluster.place.down = False
            await cluster.until(lambda: cluster.active is not None, 8, "nobody took over")
            assert has(cluster, JobState.RUNNING)()


@on_virtual_time
class TestClocks:
    @pytest.mark.parametrize("step_s", [-3_600.0, 3_600.0])
    async def test_a_wall_clock_that_jumps_by_an_hour_changes_nothing(self, step_s: float) -> None:
        async with pair() as cluster:
            await begin(cluster, "60 7")
            _, standby = both(cluster)
            for control in cluster.controls.values():
                control.wall_offset_s = step_s
            await cluster.restart(standby, 0.0)
            await cluster.until(lambda: cluster.in_sync, 30, "it didn't come back")
            active, _ = both(cluster)
            active.terminate()
            await writes_resume(cluster, 2.0)
            await cluster.until(has(cluster, JobState.FAILED), 90, "it didn't end")
            assert len(job_of(cluster).attempts) == 1

    async def test_a_take_over_by_a_clock_that_is_an_hour_ahead_shortens_no_time_limit(self) -> None:
        async with pair() as cluster:
            _, standby = both(cluster)
            standby.wall_offset_s = 3_600.0
            await cluster.restart(standby, 0.0)
            await cluster.until(lambda: cluster.in_sync, 30, "it didn't come back")
            await begin(cluster, f"{FOR_EVER_S} 0", limit_s=1_800)
            active, _ = both(cluster)
            active.terminate()
            await cluster.until(lambda: cluster.active is standby, 8, "nobody took over")
            await cluster.clock.sleep(1_600)
            assert has(cluster, JobState.RUNNING)()
            await cluster.until(has(cluster, JobState.TIMEOUT), 250, "its limit is never over")


@on_virtual_time
class TestDisk:
    async def test_with_a_full_disk_the_active_answers_reads_and_the_standby_takes_over(self) -> None:
        async with pair() as cluster:
            await begin(cluster, f"{FOR_EVER_S} 0")
            active, standby = both(cluster)
            active.disk.full = True
            assert active.life is not None
            label = LabelNode(by=BOB, node=cluster.agents[0].node, labels={"zone": "a"})
            with pytest.raises(StokerError) as caught:
                await within(active.process, active.life.control.committer.ask(label))
            assert caught.value.refusal.code == "log_failed"
            assert "no space left on device" in caught.value.refusal.message
            await cluster.until(lambda: cluster.active is standby, 8, "nobody took over")
            await writes_resume(cluster, 5.0)
            await cluster.clock.sleep(60)
            assert active.life is not None
            assert ONE in active.life.control.committer.state.jobs, "reads go on"
            active.disk.full = False
            await cluster.until(lambda: cluster.in_sync, 30, "it didn't come back")


@on_virtual_time
class TestSilence:
    """Of a node whose attempt has a lease of 40 s."""

    @pytest.mark.parametrize("what", ["cut", "one way up", "one way down", "agent away", "agent stopped", "suspended"])
    @pytest.mark.parametrize(("silent_s", "attempts"), [(20.0, 1), (90.0, 2)])
    async def test_shorter_than_the_lease_ends_nothing_and_longer_moves_the_work(
        self, what: str, silent_s: float, attempts: int
    ) -> None:
        async with pair() as cluster:
            await begin(cluster, f"{FOR_EVER_S} 0")
            node = job_of(cluster).attempts[0].tasks[0].placement.node
            (agent,) = (agent for agent in cluster.agents if agent.node == node)
            for name in cluster.controls:
                if what in ("cut", "one way up"):
                    cluster.cut(node, name)
                if what in ("cut", "one way down"):
                    cluster.cut(name, node)
            if what == "agent away":
                await agent.kill()
            if what in ("agent stopped", "suspended"):
                agent.gate.shut()
            if what == "suspended":
                agent.machine.suspend()
            await cluster.clock.sleep(silent_s)
            agent.machine.resume()
            agent.gate.open()
            agent.start()
            cluster.network.mend_all()
            await cluster.clock.sleep(30)
            job = job_of(cluster)
            assert (job.state, len(job.attempts)) == (JobState.RUNNING, attempts)
            if attempts > 1:
                end = job.attempts[0].tasks[0].end
                assert end is not None
                assert end.cause in (EndCause.SILENT, EndCause.LEASE_ENDED)

    async def test_a_job_that_wants_to_wait_for_its_node_does(self) -> None:
        async with pair() as cluster:
            await begin(cluster, f"{FOR_EVER_S} 0", lost_after_s=0)
            node = job_of(cluster).attempts[0].tasks[0].placement.node
            for name in cluster.controls:
                cluster.cut(node, name)
                cluster.cut(name, node)
            await cluster.clock.sleep(300)
            assert has(cluster, JobState.RUNNING)()
            assert len(job_of(cluster).attempts) == 1

    async def test_a_take_over_gives_every_node_its_time_anew(self) -> None:
        async with pair() as cluster:
            await begin(cluster, f"{FOR_EVER_S} 0")
            for _ in range(4):
                active, _ = both(cluster)
                await cluster.restart(active, 0.5)
                await cluster.until(lambda: cluster.in_sync, 30, "they didn't come to be in sync")
                assert cluster.active is not None
            assert len(job_of(cluster).attempts) == 1


def _refused_at(control: PairControl) -> None:
    assert control.life is not None
    parts = control.life.control
    refusal = refuse("token_unknown", "nobody knows it", "show another one")
    parts.audit_trail.refused(NOBODY, AuditAction("submit"), refusal, parts.committer.now())


def _recorder(control: PairControl) -> Recorder:
    assert control.life is not None
    return control.life.control.history


@on_virtual_time
class TestOneHistory:
    """Of two on one database: R6 of `control.history`."""

    async def test_a_standby_drops_what_the_active_one_wrote_writes_its_own_refusals_and_gives_backups(self) -> None:
        async with pair(shared=True) as cluster:
            assert cluster.database is not None
            archive, (active, standby) = cluster.database.archive, both(cluster)
            await begin(cluster, "1 0")
            await cluster.until(has(cluster, JobState.SUCCEEDED), 30, "it didn't end")
            for control in (active, standby):
                _refused_at(control)
            await cluster.clock.sleep(5)
            recorder = _recorder(standby)
            assert not recorder.ended(), "the active one has written it"
            assert not recorder.trail.waiting
            rows = [row for row in archive.audit.values() if row.number]
            assert len({row.key for row in rows}) == len(rows) == 2, "neither replaced the other"
            assert await recorder.flush(ledger(cluster).position), "a backup of the standby may be taken"
            assert archive.mark.position == ledger(cluster).position
            everything = AuditQuery()
            assert await recorder.audit(everything, 0, 99) == await _recorder(active).audit(everything, 0, 99)

    async def test_what_the_active_one_could_not_write_for_long_is_written_by_who_takes_over(self) -> None:
        async with pair(shared=True) as cluster:
            assert cluster.database is not None
            archive, (active, standby) = cluster.database.archive, both(cluster)
            archive.fault = "permission denied"
            await begin(cluster, "1 0")
            await cluster.until(has(cluster, JobState.SUCCEEDED), 30, "it didn't end")
            await cluster.clock.sleep(300)
            assert (_recorder(active).fault, ONE in archive.jobs) == ("permission denied", False)
            assert not await _recorder(standby).flush(ledger(cluster).position)
            await active.kill()
            await cluster.until(lambda: cluster.active is standby, 20, "nobody took over")
            archive.fault = ""
            await cluster.until(lambda: ONE in archive.jobs, 120, "it wasn't written")
            assert [row.action for row in archive.audit.values() if row.job == ONE and not row.number] == ["submit"]

    async def test_a_standby_that_could_not_keep_all_notes_begins_anew_once_the_active_one_has_written_them(
        self,
    ) -> None:
        async with pair(shared=True) as cluster:
            assert cluster.database is not None
            archive, (_, standby) = cluster.database.archive, both(cluster)
            recorder = _recorder(standby)
            recorder._notes_max = 1
            archive.fault = "permission denied"
            for job in (1, 2):
                await begin(cluster, "1 0")
                await cluster.until(has(cluster, JobState.SUCCEEDED, JobId(job)), 30, "it didn't end")
            assert recorder._gap
            archive.fault = ""
            await cluster.until(lambda: not recorder._gap, 120, "it doesn't see what was written")
            assert {ONE, JobId(2)} <= set(archive.jobs)
