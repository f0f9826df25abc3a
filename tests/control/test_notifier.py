"""Sending of notifications: durable before it is made, never twice, bounded, and no trouble to anybody else."""

import asyncio

import pytest

from stoker.brain.domain.dependency import Dependency, DependencyKind
from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.notify import PAUSES_MS, TRIES_MAX, DeliveryResult, Message, NoticeState, Notify, NotifyEvent
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import HOUR_MS
from stoker.brain.state.commands import PutTenant
from stoker.control import notifier
from stoker.control.submission import check_targets
from tests.control.stage import ANNA, Stage, stage, virtual
from tests.rig.sim_log import SimDisk

SENT = DeliveryResult(NoticeState.SENT)
TEAM = "webhook:team"


class Target:
    """A target that answers what the test says, when it says."""

    def __init__(self, *answers: DeliveryResult, hangs: bool = False) -> None:
        self.told: list[Message] = []
        self.answers = list(answers)
        self.gate = asyncio.Event()
        if not hangs:
            self.gate.set()
        self.defects = 0

    def fault(self, target: str) -> Refusal | None:
        return None if target == TEAM else refuse("notify_not_allowed", f"{target} isn't allowed", "name another")

    async def send(self, target: str, message: Message) -> DeliveryResult:
        self.told.append(message)
        await self.gate.wait()
        if self.defects:
            self.defects -= 1
            raise RuntimeError("a defect")
        return self.answers.pop(0) if self.answers else SENT


def wanted(*on: NotifyEvent, to: str = TEAM, wait_ms: int = 0) -> Notify:
    return Notify(on=on, to=(to,), wait_ms=wait_ms)


async def ended(s: Stage, *on: NotifyEvent, **fields: object) -> JobId:
    """A job that was cancelled before it started."""
    job = await s.submit(notify=wanted(*(on or (NotifyEvent.END,))), **fields)
    await s.cancel(job)
    return job


def state_of(s: Stage, job: JobId) -> list[NoticeState]:
    return [notice.state for notice in s.job(job).notices]


async def settled(s: Stage, job: JobId, state: NoticeState) -> None:
    await s.until(lambda: state_of(s, job) == [state])


@virtual
async def test_a_failure_is_told_in_one_line_with_rank_node_and_how_to_look_further() -> None:
    target = Target()
    async with stage(messenger=target) as s:
        player = await s.join("gpu-4", 1)
        job = await s.submit(name="train\nBcc: x", notify=wanted(NotifyEvent.FAIL), env={"TOKEN": "hunter2"})
        await player.run_to_end(job, exit_code=3)
        await settled(s, job, NoticeState.SENT)
        (message,) = target.told
        assert message.text == f"job {job} train Bcc: x failed after 0ms: rank 0 on gpu-4 exited with code 3"
        assert (message.hint, message.exit_code) == (f"stoker logs {job}", 3)
        assert "hunter2" not in str(message)


@virtual
async def test_a_job_that_waits_too_long_is_told_with_its_reason() -> None:
    target = Target()
    async with stage(messenger=target) as s:
        job = await s.submit(notify=wanted(NotifyEvent.WAIT, wait_ms=HOUR_MS))
        await s.pause(HOUR_MS / 1000 - 1)
        assert target.told == []
        await s.pause(2)
        (message,) = target.told
        assert message.text == f"job {job} j has waited for 1h: no node has registered with this cluster yet"
        assert message.hint == f"stoker why {job}"


@virtual
async def test_n1_a_try_is_on_disk_before_it_is_made() -> None:
    target = Target()
    async with stage(messenger=target) as s:
        job = await s.submit(notify=wanted(NotifyEvent.END))
        s.log.let_through(1)
        s.log.gate.clear()
        cancelled = asyncio.ensure_future(s.cancel(job))
        await s.pause(5)
        assert target.told == []
        s.log.let_through(1)  # the cancel alone
        await s.until(lambda: state_of(s, job) == [NoticeState.TRYING])
        await s.pause(5)
        assert target.told == []
        s.log.let_through(1)
        await s.until(lambda: len(target.told) == 1)
        s.log.gate.set()
        s.log.let_through(0)
        await cancelled


@virtual
async def test_n2_what_was_on_its_way_when_the_control_plane_ended_is_not_sent_again_and_noted() -> None:
    disk, hangs = SimDisk(), Target(hangs=True)
    async with stage(disk, messenger=hangs) as s:
        job = await ended(s)
        await s.until(lambda: len(hangs.told) == 1)
    target = Target()
    async with stage(disk, messenger=target) as s:
        await settled(s, job, NoticeState.UNKNOWN)
        await s.pause(3_600)
        assert target.told == []
        assert "ended while" in s.job(job).notices[0].error


@virtual
async def test_n2_what_surely_failed_is_tried_again_after_a_restart() -> None:
    disk = SimDisk()
    async with stage(disk, messenger=Target(DeliveryResult(NoticeState.RETRYING, "it answered 500"))) as s:
        job = await ended(s)
        await settled(s, job, NoticeState.RETRYING)
    target = Target()
    async with stage(disk, messenger=target) as s:
        await s.until(lambda: state_of(s, job) == [NoticeState.SENT], within_s=PAUSES_MS[0])
        assert len(target.told) == 1


@virtual
async def test_a_webhook_that_always_answers_500_is_given_up_and_counted() -> None:
    answer = DeliveryResult(NoticeState.RETRYING, "it answered 500")
    target = Target(*[answer] * TRIES_MAX)
    async with stage(messenger=target) as s:
        job = await ended(s)
        await s.until(lambda: state_of(s, job) == [NoticeState.FAILED], within_s=sum(PAUSES_MS))
        await s.pause(7_200)
        assert len(target.told) == TRIES_MAX
        assert len({message.id for message in target.told}) == 1
        assert s.notes.counts["notifications"] == TRIES_MAX
        assert s.job(job).notices[0].error == "it answered 500"


@virtual
async def test_n3_a_target_that_hangs_holds_up_its_own_tenant_alone() -> None:
    target = Target(hangs=True)
    async with stage(messenger=target) as s:
        await s.committer.ask(PutTenant(by=ANNA, tenant=Tenant(name="lab"), create=True))  # type: ignore[arg-type]  # a name
        for _ in range(3 * notifier.TENANT_SENDS_MAX):
            await ended(s)
        await s.until(lambda: len(target.told) == notifier.TENANT_SENDS_MAX)
        await s.pause(60)
        assert len(target.told) == notifier.TENANT_SENDS_MAX
        await ended(s, tenant="lab")
        await s.until(lambda: target.told[-1].tenant == "lab")
        target.gate.set()
        await s.until(lambda: len(target.told) == 3 * notifier.TENANT_SENDS_MAX + 1)


@virtual
async def test_n4_beyond_so_many_a_tenants_latest_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "WAITING_MAX", 10)
    target = Target(hangs=True)
    async with stage(messenger=target) as s:
        jobs = [await ended(s) for _ in range(20)]
        await s.until(lambda: sum(state_of(s, job) == [NoticeState.DROPPED] for job in jobs) >= 6)
        assert state_of(s, jobs[0]) == [NoticeState.TRYING]
        target.gate.set()
        await s.until(lambda: all(state_of(s, job) not in ([], [NoticeState.TRYING]) for job in jobs))
        dropped = sum(state_of(s, job) == [NoticeState.DROPPED] for job in jobs)
        assert len(target.told) == 20 - dropped


@virtual
async def test_n5_a_defect_in_one_notification_ends_nothing_else() -> None:
    target = Target()
    target.defects = 1
    async with stage(messenger=target) as s:
        first = await ended(s)
        await s.until(lambda: s.notes.counts.get("notification_faults") == 1)
        second = await ended(s)
        await settled(s, second, NoticeState.SENT)
        assert state_of(s, first) == [NoticeState.TRYING]


@virtual
async def test_a_target_that_is_no_longer_allowed_is_told_nothing() -> None:
    target = Target()
    async with stage(messenger=target) as s:
        job = await s.submit(notify=wanted(NotifyEvent.END, to="webhook:gone"))
        await s.cancel(job)
        await settled(s, job, NoticeState.FAILED)
        assert target.told == []
        assert "isn't allowed" in s.job(job).notices[0].error


@virtual
async def test_an_array_is_told_of_once() -> None:
    from stoker.brain.domain.array import parse_array

    target = Target()
    async with stage(messenger=target) as s:
        player = await s.join("n1", 2)
        array = await s.submit(array=parse_array("0-1"), notify=wanted(NotifyEvent.END, NotifyEvent.FAIL))
        await player.run_to_end(JobId(array + 1), exit_code=1)
        await s.until(lambda: len(target.told) == 1)
        await player.run_to_end(JobId(array + 2), exit_code=1)
        await s.until_state(array, JobState.FAILED)
        await s.until(lambda: len(target.told) == 2)
        await s.pause(60)
        failed, over = target.told
        assert failed.text.startswith(f"array {array} j has a failed member: 1 of 2")
        assert "0 succeeded, 2 failed" in over.text


@virtual
async def test_a_target_that_may_not_be_told_is_refused_before_anything_is_submitted() -> None:
    async with stage(messenger=Target()) as s:
        check_targets(s.control, wanted(NotifyEvent.END))
        with pytest.raises(StokerError) as refused:
            check_targets(s.control, wanted(NotifyEvent.END, to="webhook:other"))
        assert refused.value.refusal.code == "notify_not_allowed"
    async with stage() as s:
        with pytest.raises(StokerError) as refused:
            check_targets(s.control, wanted(NotifyEvent.END))
        assert refused.value.refusal.code == "notify_not_allowed"


@virtual
async def test_the_failure_of_a_gang_leads_to_its_rank_and_says_how_long_it_ran_also_below_a_second() -> None:
    target = Target()
    async with stage(messenger=target) as s:
        player = await s.join("gpu-4", 2)
        job = await s.submit(tasks=2, notify=wanted(NotifyEvent.FAIL))
        first = (await player.next_start()).key
        await player.say_started(first)
        second = (await player.next_start(2)).key
        await player.say_started(second)
        await s.pause(0.4)
        await player.end(second, exit_code=7)
        await player.end(first, cause=EndCause.STOPPED)
        await settled(s, job, NoticeState.SENT)
        (message,) = target.told
        assert message.hint == f"stoker logs {job}.1"
        assert " failed after 4" in message.text
        assert "ms: rank 1 on gpu-4 exited with code 7" in message.text


@virtual
async def test_nobody_is_sent_to_the_output_of_a_job_that_never_started() -> None:
    target = Target()
    async with stage(messenger=target) as s:
        first = await s.submit()
        job = await s.submit(notify=wanted(NotifyEvent.FAIL), after=(Dependency(kind=DependencyKind.OK, job=first),))
        await s.cancel(first)
        await settled(s, job, NoticeState.SENT)
        assert target.told[0].hint == f"stoker status {job}"
