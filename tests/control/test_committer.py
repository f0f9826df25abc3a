"""The single writer: W1 to W4 of `control.committer`."""

import asyncio

import pytest

from stoker.brain.domain.array import JobRef
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import CONTROL, Epoch, JobId
from stoker.brain.domain.job import StopCause
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.policy import Policy
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import decode_fact
from stoker.brain.state.commands import BeginEpoch, Cancel, RunDeadlines, Submit
from stoker.brain.state.events.job import AttemptStopping, JobFinished, JobSubmitted
from stoker.control.committer import Committer
from stoker.control.control_ports import ControlPorts, NoReplicas, NotActive
from stoker.control.supervisor import DutyEnded
from tests.control.stage import ANNA, GatedLog, running, spec, stage, virtual
from tests.rig.sim_log import SimDisk
from tests.rig.sim_ports import Notes, SimClock, SimEntropy


@virtual
async def test_an_answer_comes_only_once_its_facts_are_on_disk() -> None:
    async with stage() as s:
        s.log.gate.clear()
        asking = asyncio.ensure_future(s.submit())
        await s.pause()
        assert not asking.done()
        assert JobId(1) in s.state.jobs  # reads may be ahead of the disk, answers never
        s.log.gate.set()
        job = await asking
        stored = [decode_fact(record).event for record in s.disk.records]
        assert [event.job for event in stored if isinstance(event, JobSubmitted)] == [job]


@virtual
async def test_commands_that_come_while_the_disk_is_busy_share_one_transaction() -> None:
    async with stage() as s:
        await s.pause()
        s.log.gate.clear()
        first = asyncio.ensure_future(s.submit())
        await s.pause(0.1)
        rest = [asyncio.ensure_future(s.submit()) for _ in range(50)]
        await s.pause(0.1)
        in_flight = len(s.log.appends)
        s.log.gate.set()
        await asyncio.gather(first, *rest)
        assert s.log.appends[in_flight - 1] == 1
        assert s.log.appends[in_flight] == 50


@virtual
async def test_at_most_one_append_is_in_flight() -> None:
    async with stage() as s:
        s.log.gate.clear()
        asking = []
        for _ in range(5):
            asking.append(asyncio.ensure_future(s.submit()))
            await s.pause(0.1)
        assert s.log.appends[-1] == 1
        under_way = len(s.log.appends)
        s.log.gate.set()
        await asyncio.gather(*asking)
        assert s.log.appends[under_way] == 4


@virtual
async def test_a_refusal_waits_for_nothing() -> None:
    async with stage() as s:
        s.log.gate.clear()
        asking = asyncio.ensure_future(s.submit())
        await asyncio.sleep(0)
        with pytest.raises(StokerError) as refused:
            await s.cancel(JobId(99))
        assert refused.value.refusal.code == "job_unknown"
        assert not asking.done()
        s.log.gate.set()
        await asking


@virtual
async def test_an_answer_without_news_waits_for_the_facts_it_was_decided_on() -> None:
    """A repeated end is acknowledged because the first one is known; so the first must be on disk."""
    async with stage() as s:
        player = await s.join("n1")
        await s.submit()
        start = await player.next_start()
        s.log.gate.clear()
        first = asyncio.ensure_future(player.end(start.key))
        await s.pause(0.1)
        repeated = asyncio.ensure_future(player.end(start.key))
        await s.pause(0.1)
        assert not first.done()
        assert not repeated.done()
        s.log.gate.set()
        await asyncio.gather(first, repeated)


@virtual
async def test_one_command_too_many_for_the_disk_is_refused_as_overloaded() -> None:
    async with stage() as s:
        s.committer._commands_max = 3
        await s.pause()
        s.log.gate.clear()
        asking = [asyncio.ensure_future(s.submit()) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(StokerError) as refused:
            await s.submit()
        assert refused.value.refusal.code == "overloaded"
        assert len(s.state.jobs) == 3
        s.log.gate.set()
        await asyncio.gather(*asking)
        await s.submit()


@virtual
async def test_a_failed_append_acknowledges_nothing_and_stops_the_control_plane() -> None:
    async with stage(fails=True) as s:
        s.log.gate.clear()
        asking = [asyncio.ensure_future(s.submit()) for _ in range(3)]
        await s.pause(0.1)
        later = asyncio.ensure_future(s.submit())
        s.disk.full = True
        s.log.gate.set()
        answers = await asyncio.gather(*asking, later, return_exceptions=True)
        answers += await asyncio.gather(s.submit(), return_exceptions=True)
        assert [answer.refusal.code for answer in answers if isinstance(answer, StokerError)] == ["log_failed"] * 5
        assert s.committer.failed.is_set()
        assert not s.control.ready
        with pytest.raises(DutyEnded, match="committer"):
            await s.duties.until(asyncio.Event())


class EndingLease(NoReplicas):
    """The right to be active, which ends when the test says so."""

    over = False

    def check_lease(self) -> None:
        if self.over:
            raise NotActive("the lease is over")


@virtual
async def test_what_is_on_disk_when_the_lease_has_ended_is_not_acknowledged_and_nobody_hears_of_it() -> None:
    """Another control plane may have begun behind what it knows, while this one's disk took its time."""
    clock, entropy, lease = SimClock(), SimEntropy(1), EndingLease()
    log = GatedLog(SimDisk(), clock, entropy)
    await log.open()
    ports = ControlPorts(clock=clock, entropy=entropy, telemetry=Notes(clock, "control"))
    committer = Committer(ClusterState(), log, ports, replicas=lease)
    heard: list[object] = []
    committer.on_durable(heard.append)
    writing = asyncio.ensure_future(committer.run())
    await committer.ask(BeginEpoch(by=CONTROL, epoch=Epoch(1), policy=Policy()))
    heard.clear()
    log.gate.clear()
    asking = asyncio.ensure_future(committer.ask(Submit(by=ANNA, specs=(spec(),))))
    await clock.sleep(0.1)
    lease.over = True
    log.gate.set()
    with pytest.raises(StokerError) as fault:
        await asking
    assert fault.value.refusal.code == "lease_lost"
    assert heard == []
    with pytest.raises(NotActive):
        await writing


@virtual
async def test_what_was_not_acknowledged_is_gone_after_a_failed_append_and_what_was_is_not() -> None:
    async with stage() as s:
        disk = s.disk
        kept = await s.submit()
    async with stage(disk, fails=True) as s:
        disk.full = True
        with pytest.raises(StokerError):
            await s.submit()
        assert len(s.state.jobs) == 2
    disk.full = False
    async with stage(disk) as s:
        assert list(s.state.jobs) == [kept]


@virtual
async def test_an_event_that_cannot_be_applied_never_reaches_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(fails=True) as s:
        await s.submit()
        # A defect of the brain, put in by hand: an end for a job that has none to give.
        broken = JobFinished(job=JobId(77), state=s.job(JobId(1)).state)
        before = len(s.disk.records)
        monkeypatch.setattr("stoker.control.committer.admit", lambda *_: (broken,))
        with pytest.raises(KeyError):
            await s.cancel(JobId(1))
        assert s.committer.failed.is_set()
        await s.pause()
        assert len(s.disk.records) == before


@virtual
async def test_after_a_half_applied_command_no_agent_hears_what_the_state_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The placement on its way to the disk becomes durable, but what the state says of that job by then never will."""
    async with stage(fails=True) as s:
        player = await s.join("n1")
        await s.pause()
        s.log.let_through(1)
        job = await s.submit()
        await s.until(lambda: s.job(job).state is JobState.STARTING)
        before = len(s.disk.records)
        stopping = AttemptStopping(job=job, attempt=1, cause=StopCause.CANCELLED)
        monkeypatch.setattr(
            "stoker.control.committer.admit", lambda *_: (stopping, JobFinished(job=JobId(77), state=JobState.FAILED))
        )
        with pytest.raises(KeyError):
            await s.cancel(job)
        s.log.gate.set()
        await s.pause()
        assert len(s.disk.records) == before + 1
        assert player.stops == player.starts == []


@virtual
async def test_whoever_gives_up_waiting_takes_nothing_back() -> None:
    async with stage() as s:
        s.log.gate.clear()
        asking = asyncio.ensure_future(s.submit())
        await s.pause(0.1)
        asking.cancel()
        s.log.gate.set()
        await s.submit()
        assert len(s.state.jobs) == 2
        assert s.committer.durable == s.state.position


@virtual
async def test_time_in_the_log_never_runs_backwards() -> None:
    disk_times: list[int] = []
    async with stage() as s:
        await s.submit()
        ahead = s.state.last_at + 3_600_000
        s.state.last_at = type(s.state.last_at)(ahead)  # as if an earlier process had a clock an hour ahead
        await s.submit()
        disk_times = [decode_fact(record).at for record in s.disk.records]
        assert s.committer.now() >= ahead
    assert disk_times == sorted(disk_times)


@virtual
async def test_a_clock_set_back_by_an_hour_between_two_processes_delays_a_time_limit_by_no_more_than_itself() -> None:
    async with stage() as s:
        disk = s.disk
        player = await s.join("n1")
        await s.submit(time_limit_ms=60_000)
        start = await player.next_start()
        await player.say_started(start.key)
        await s.pause(10)
        newest = s.state.last_at
    async with stage(disk, clock=SimClock(wall_offset_s=-3_600)) as s:
        player = await s.join("n1", 8, running(start.key, *start.gpus))
        began = s.control.clock.mono()
        await s.until(lambda: bool(player.stops), within_s=125)
        assert 59 < s.control.clock.mono() - began < 121
        times = [decode_fact(record).at for record in s.disk.records]
        assert times == sorted(times)
        assert times[-1] < newest + 130_000


@virtual
async def test_time_that_was_ahead_is_caught_up_with_by_the_wall_clock() -> None:
    async with stage() as s:
        disk = s.disk
        await s.pause(100)
        await s.submit()
    async with stage(disk, clock=SimClock(wall_offset_s=-60)) as s:
        assert s.committer.now() > s.control.clock.now()
        await s.pause(125)
        assert s.committer.now() == s.control.clock.now()


@virtual
async def test_a_stopping_control_plane_keeps_what_it_took_and_takes_no_more() -> None:
    async with stage() as s:
        s.log.gate.clear()
        asking = asyncio.ensure_future(s.submit())
        await asyncio.sleep(0)
        s.committer.close()
        with pytest.raises(StokerError) as refused:
            await s.committer.ask(RunDeadlines(by=ANNA))
        assert refused.value.refusal.code == "stopping"
        s.log.gate.set()
        assert await asking == JobId(1)


@virtual
async def test_a_bulk_submit_is_all_or_nothing() -> None:
    async with stage() as s:
        good, bad = spec(), spec(command="")
        with pytest.raises(StokerError):
            await s.committer.ask(Submit(by=ANNA, specs=(good, bad)))
        assert not s.state.jobs
        events = await s.committer.ask(Submit(by=ANNA, specs=(good, good)))
        assert len(events) == len(s.state.jobs) == 2


@virtual
async def test_a_cancelled_pending_job_never_runs() -> None:
    async with stage() as s:
        job = await s.submit()
        await s.committer.ask(Cancel(by=ANNA, target=JobRef(job)))
        player = await s.join("n1")
        await s.pause(20)
        assert not player.starts
