"""When decisions are made: P1 to P6 of `control.loop`, and family 2 of faults.md."""

import asyncio
import itertools

import pytest
from msgspec.structs import replace

from stoker.brain import cycle
from stoker.brain.domain.array import parse_array
from stoker.brain.domain.dependency import Dependency, DependencyKind
from stoker.brain.domain.errors import refuse
from stoker.brain.domain.ids import NodeName, TenantName
from stoker.brain.domain.job import EndCause, JobSpec
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.quota import Limits, Quota
from stoker.brain.domain.reason import ReasonCode
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import Instant
from stoker.brain.engine import gang
from stoker.brain.state.admit import deadlines
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import DrainNode, PutTenant, ResumeNode, Submit
from stoker.control.loop import SET_ASIDE_S_MAX
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import PolicySettings
from tests.control.stage import ANNA, spec, stage, virtual


@virtual
async def test_a_submit_is_decided_at_once_and_an_idle_loop_only_every_period() -> None:
    async with stage() as s:
        await s.pause(1)
        before = s.control.loop.passes
        await s.pause(50)
        assert 9 <= s.control.loop.passes - before <= 11
        job = await s.submit()
        await s.pause(0.1)
        assert s.why(job).code is ReasonCode.NO_NODES


@virtual
async def test_what_arrives_during_a_commit_is_answered_by_one_more_pass() -> None:
    async with stage() as s:
        await s.pause()
        s.log.gate.clear()
        asking = [asyncio.ensure_future(s.submit()) for _ in range(200)]
        await s.pause(0.1)
        before = s.control.loop.passes
        s.log.gate.set()
        await asyncio.gather(*asking)
        await s.pause(1)
        assert s.control.loop.passes - before <= 3


@virtual
async def test_every_waiting_job_has_a_reason_from_the_first_moment() -> None:
    async with stage() as s:
        s.log.gate.clear()
        submitting = asyncio.ensure_future(s.submit())
        await asyncio.sleep(0)
        (job,) = s.state.jobs.values()
        assert s.why(job.id).code is ReasonCode.AWAITING_PASS
        s.log.gate.set()
        await submitting
        await s.join("n1", 1)
        await s.submit(gpus=1)
        waiting = await s.submit(gpus=1)
        await s.pause(1)
        assert s.why(waiting).code is ReasonCode.INSUFFICIENT_GPUS


@virtual
async def test_a_pause_between_tries_is_its_own_reason_and_ends_on_time() -> None:
    async with stage() as s:
        player = await s.join("n1")
        job = await s.submit(retries_max=3)
        start = await player.next_start()
        await player.say_started(start.key)
        await player.end(start.key, exit_code=1)
        assert s.why(job).code is ReasonCode.RETRY_BACKOFF
        began = s.control.clock.mono()
        again = await player.next_start(2)
        assert again.key.attempt == 2
        assert 0.99 < s.control.clock.mono() - began < 1.5


@virtual
async def test_a_job_whose_start_always_fails_does_not_starve_a_later_one() -> None:
    """faults.md 19: it backs off, and the other starts within two passes."""
    async with stage() as s:
        player = await s.join("n1", 1)
        bad = await s.submit(retries_max=5, priority=900)
        await player.end((await player.next_start()).key, cause=EndCause.START_FAILED)
        passes = s.control.loop.passes
        good = await s.submit()
        start = await player.next_start(2)
        assert start.key.job == good
        assert s.control.loop.passes - passes <= 2
        assert s.job(bad).state is JobState.PENDING


@pytest.mark.parametrize(("number_of_jobs", "pauses"), [(9, 3), pytest.param(40, 6, marks=pytest.mark.heavy)])
@virtual
async def test_a_sick_node_swallows_no_jobs_while_another_has_room(number_of_jobs: int, pauses: int) -> None:
    """It fits every job best, and fails every start."""
    async with stage() as s:
        sick, well = await s.join("sick", 2), await s.join("well", 8)
        beating = [asyncio.ensure_future(each.keep_beating()) for each in (sick, well)]

        async def fail_all() -> None:
            for count in itertools.count(1):
                await sick.end((await sick.next_start(count, within_s=1e6)).key, cause=EndCause.NEVER_STARTED)

        failing = asyncio.ensure_future(fail_all())
        jobs = []
        for number in range(1, number_of_jobs + 1):
            jobs.append(await s.submit())
            await well.run_to_end(jobs[-1])
            assert len(well.starts) == number
            await s.pause(60)
        assert all(s.job(job).state is JobState.SUCCEEDED for job in jobs)
        assert max(len(s.job(job).attempts) for job in jobs) == 2, "each job fails there once at most"
        assert len(sick.starts) <= 3 + pauses, "then after pauses of 1, 2, 4, 8, 16 and 32 minutes"
        assert [line for line in s.notes.lines if " agent_paused " in line]
        for task in (failing, *beating):
            task.cancel()


@virtual
async def test_a_job_that_only_a_node_in_a_pause_could_run_starts_there_when_the_pause_is_over() -> None:
    # So that a job of which nothing ran ends too, where it may not be requeued.
    async with stage(settings=ControlSettings(policy=PolicySettings(attempts_max=1))) as s:
        player = await s.join("n1", 4)
        beating = asyncio.ensure_future(player.keep_beating())
        for number in range(1, 4):
            await s.submit(gpus=4, requeue=False)
            await player.end((await player.next_start(number)).key, cause=EndCause.NEVER_STARTED)
        began = s.control.clock.mono()
        job = await s.submit()
        await s.pause(1)
        assert s.why(job).code is ReasonCode.NODES_PAUSED
        await player.run_to_end(job)
        assert 59 < s.control.clock.mono() - began < 62
        beating.cancel()


@virtual
async def test_a_job_blocked_for_long_starts_when_the_blocking_ends() -> None:
    """faults.md 15: looked at again however often it was refused before."""
    async with stage() as s:
        player = await s.join("n1")
        await s.committer.ask(DrainNode(by=ANNA, node=NodeName("n1"), reason="disk"))
        job = await s.submit()
        beating = asyncio.ensure_future(player.keep_beating())
        await s.pause(600)
        assert s.job(job).state is JobState.PENDING
        await s.committer.ask(ResumeNode(by=ANNA, node=NodeName("n1")))
        await player.next_start()
        beating.cancel()


@virtual
async def test_a_hundred_jobs_on_four_gpus_all_finish() -> None:
    """faults.md 22."""
    async with stage() as s:
        player = await s.join("n1", 4)
        jobs = [await s.submit() for _ in range(100)]
        for count in range(1, 101):
            start = await player.next_start(count)
            await player.say_started(start.key)
            await player.end(start.key)
        assert all(s.job(job).state is JobState.SUCCEEDED for job in jobs)
        assert [start.key.job for start in player.starts] == jobs


@virtual
async def test_a_bulk_larger_than_one_pass_may_place_is_placed_without_waiting_for_the_period() -> None:
    async with stage() as s:
        for i in range(150):
            await s.join(f"n{i}", 24)
        began = s.control.clock.mono()
        await s.committer.ask(Submit(by=ANNA, specs=(spec(),) * 3_600))
        await s.until(lambda: len(s.state.indexes.by_state[JobState.STARTING]) == 3_600)
        assert s.control.clock.mono() - began < 1


@virtual
async def test_a_loop_that_cannot_commit_is_stuck_and_says_so_and_goes_on_afterwards() -> None:
    """faults.md 14: a slow store shows in the age of the last pass, and scheduling resumes by itself."""
    async with stage() as s:
        player = await s.join("n1")
        await s.pause()
        assert s.control.loop.last_pass_age_s() < 15
        s.log.gate.clear()
        submitting = asyncio.ensure_future(s.submit())
        await s.pause(30)
        assert s.control.loop.stuck
        assert not s.control.ready
        assert s.control.loop.last_pass_age_s() > 15
        assert s.notes.counts["loop_stuck"] >= 1
        s.log.gate.set()
        await submitting
        await player.beat()
        await player.next_start()
        assert s.control.ready


@virtual
async def test_a_pass_that_fails_is_counted_and_the_next_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage() as s:
        await s.join("n1")
        await s.pause()
        propose = cycle.propose
        broken = iter([True, True])

        def sometimes(*args: object) -> object:
            if next(broken, False):
                raise ZeroDivisionError("a defect in the engine")
            return propose(*args)  # type: ignore[arg-type]  # passed through

        monkeypatch.setattr(cycle, "propose", sometimes)
        job = await s.submit()
        await s.pause(4)
        assert s.job(job).state is JobState.STARTING
        assert s.notes.counts["pass_faults"] == 2


@virtual
async def test_a_job_that_breaks_the_engine_is_set_aside_and_the_rest_is_scheduled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One fault stopped all scheduling: the same pass was tried for ever."""
    async with stage() as s:
        player = await s.join("n1", 8)
        beating = asyncio.ensure_future(player.keep_beating())
        sound, broken = gang.choose_port, True

        def sometimes(*args: object) -> object:
            return 1 // 0 if broken else sound(*args)  # type: ignore[arg-type]  # passed through

        monkeypatch.setattr(gang, "choose_port", sometimes)
        bad = await s.submit(gpus=2, priority=900)
        others = [await s.submit(gpus=1), await s.submit()]
        await s.until(lambda: all(s.job(job).state is JobState.STARTING for job in others))
        reason = s.why(bad)
        assert reason.code is ReasonCode.SET_ASIDE
        assert reason.facts["error"] == "ZeroDivisionError('integer division or modulo by zero')"
        await s.pause(3_600)
        faults = s.notes.counts["pass_faults"]
        assert 12 < faults < 24  # the pause between two tries grows to five minutes
        assert not s.control.loop.stuck
        broken = False
        await s.pause(SET_ASIDE_S_MAX + s.control.loop.period_s)
        assert s.job(bad).state is JobState.STARTING
        assert s.notes.counts["pass_faults"] - faults <= 1
        beating.cancel()


@virtual
async def test_an_action_that_breaks_the_writer_is_set_aside_and_the_others_are_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage() as s:
        await s.join("n1", 8)
        sound = cycle.lease_for

        def broken(state: ClusterState, spec: JobSpec, tasks: object) -> object:
            return 1 // 0 if spec.priority == 900 else sound(state, spec, tasks)  # type: ignore[arg-type]  # passed on

        monkeypatch.setattr(cycle, "lease_for", broken)
        bad, good = await s.submit(gpus=1, priority=900), await s.submit(gpus=2)
        await s.until(lambda: s.job(good).state is JobState.STARTING)
        assert s.why(bad).code is ReasonCode.SET_ASIDE


@virtual
async def test_a_plan_that_was_refused_in_part_is_followed_by_another_and_one_refused_whole_by_the_next_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is refused for a fault of ours would be refused again and again."""
    refused: set[int] = set()
    admit = cycle.admit_place
    fault = refuse("not_pending", "it isn't", "wait")
    monkeypatch.setattr(cycle, "admit_place", lambda state, act: fault if act.job in refused else admit(state, act))
    async with stage() as s:
        await s.join("n1")
        await s.pause()
        before = s.control.loop.passes
        refused.add(s.state.next_job_id)
        whole = await s.submit()
        await s.pause(3)
        assert s.control.loop.passes == before + 1, "refused altogether"
        refused.add(s.state.next_job_id)
        await s.committer.ask(Submit(by=ANNA, specs=(spec(), spec())))
        await s.pause(1)
        assert s.control.loop.passes == before + 3, "refused in part, so looked at once more, and then altogether"
        refused.clear()
        await s.until_state(whole, JobState.STARTING)


@virtual
async def test_a_deadline_that_breaks_keeps_no_job_from_being_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage() as s:
        await s.join("n1", 8)

        def broken(state: ClusterState, now: Instant) -> object:
            raise ZeroDivisionError("a defect in the deadlines")

        monkeypatch.setattr(deadlines, "run", broken)
        first = await s.submit(time_limit_ms=1_000)
        await s.pause(5)
        assert s.job(first).state is JobState.STARTING
        second = await s.submit()
        await s.pause(5)
        assert s.job(second).state is JobState.STARTING


@virtual
async def test_an_index_of_deadlines_that_breaks_does_not_end_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage() as s:
        await s.join("n1", 8)

        def broken(_: object) -> object:
            raise KeyError("job 7")

        monkeypatch.setattr(type(s.state.indexes), "next_deadline", broken)
        job = await s.submit()
        await s.until_state(job, JobState.STARTING)
        assert s.notes.counts["pass_faults"] >= 1


@virtual
async def test_a_fault_while_the_clock_is_followed_does_not_end_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage() as s:
        await s.join("n1", 8)
        await s.pause()

        def broken() -> bool:
            raise ZeroDivisionError("a defect in what follows the clock")

        monkeypatch.setattr(s.committer, "follow_clock", broken)
        await s.pause(1.5 * s.control.loop.period_s)
        assert s.notes.counts["pass_faults"] >= 1
        monkeypatch.undo()
        job = await s.submit()
        await s.until_state(job, JobState.STARTING)


@virtual
async def test_a_throttled_array_says_that_its_own_limit_keeps_it() -> None:
    """Fault 138: throttled tasks had no reason."""
    async with stage() as s:
        await s.join("n1", 8)
        array = await s.submit(array=parse_array("0-5%2"))
        await s.until(lambda: s.state.indexes.arrays[array].live == 2)
        reason = s.why(array)
        assert (reason.code, reason.facts) == (ReasonCode.ARRAY_LIMIT, {"running": 2, "running_max": 2})


@virtual
async def test_what_waits_for_others_or_is_held_or_begins_later_says_so() -> None:
    async with stage() as s:
        await s.join("n1", 8)
        held = await s.submit(hold=True)
        after = (Dependency(kind=DependencyKind.OK, job=held),)
        dependent = await s.submit(after=after)
        later_one = await s.submit(begin=Instant(s.committer.now() + 60_000))
        await s.pause(1)
        reasons = [s.why(job) for job in (held, dependent, later_one)]
        assert [reason.code for reason in reasons] == [
            ReasonCode.HELD,
            ReasonCode.DEPENDENCY,
            ReasonCode.BEGIN_TIME,
        ]
        assert reasons[1].facts["waits"] == f"ok:{held}"


@virtual
async def test_a_dependent_starts_by_itself_when_what_it_waits_for_has_ended() -> None:
    async with stage() as s:
        player = await s.join("n1", 8)
        first = await s.submit()
        second = await s.submit(after=(Dependency(kind=DependencyKind.OK, job=first),))
        third = await s.submit(after=(Dependency(kind=DependencyKind.NOT_OK, job=first),))
        await s.until_state(first, JobState.STARTING)
        await player.run_to_end(first)
        await s.until_state(second, JobState.STARTING)
        await s.until_state(third, JobState.FAILED)


@virtual
async def test_an_array_goes_on_member_by_member_and_ends_by_itself() -> None:
    async with stage() as s:
        player = await s.join("n1", 8)
        array = await s.submit(array=parse_array("0-9%3"))
        for _ in range(10):
            await s.until(lambda: bool(s.state.indexes.arrays[array].open))
            await player.run_to_end(min(s.state.indexes.arrays[array].open))
        await s.until_state(array, JobState.SUCCEEDED)


@virtual
async def test_a_tenant_at_its_limit_is_told_so_also_on_a_full_cluster_and_goes_on_once_it_is_raised() -> None:
    async with stage() as s:
        await s.join("n1", 2)
        ml = Tenant(name=TenantName("ml"), quota=Quota(limits=Limits(gpus=1)))
        await s.control.committer.ask(PutTenant(by=ANNA, tenant=ml, create=True))
        wish = replace(spec(gpus=1), tenant=ml.name)
        await s.control.committer.ask(Submit(by=ANNA, specs=(wish, wish)))
        await s.pause(0.1)
        _, second = s.state.jobs.values()
        assert s.why(second.id).code is ReasonCode.TENANT_LIMIT
        await s.submit(gpus=1)
        await s.pause(0.1)
        assert s.why(second.id).facts["used"] == 1, "now no GPU is free either"
        await s.join("n2", 1)
        await s.control.committer.ask(PutTenant(by=ANNA, tenant=replace(ml, quota=Quota()), create=False))
        await s.pause(0.1)
        assert s.job(second.id).state is JobState.STARTING
