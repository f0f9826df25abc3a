"""Who used how much: R1 to R3 of `control.queries.usage`, on virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from stoker.brain.domain.array import JobRef, parse_array
from stoker.brain.domain.ids import JobId, NodeName, Position
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.units import Instant
from stoker.brain.domain.usage import UsageBy, UsageQuery, UsageSum
from stoker.brain.state.commands import DrainNode, Requeue, ResumeNode
from stoker.control.queries.usage import UsageReport, usage_report
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import PolicySettings
from tests.control.stage import ANNA, Player, Stage, stage, virtual

NODE = NodeName("n1")


async def report(
    s: Stage, by: UsageBy = UsageBy.TENANT, *, since: int = 1, until: int = 0, lines_max: int = 1_000, **fields: object
) -> UsageReport:
    now = s.committer.now()
    asked = UsageQuery(since=Instant(since), until=Instant(until or now), by=by, through=Position(0), **fields)  # type: ignore[arg-type]  # given by name
    return await usage_report(s.control, asked, now, lines_max=lines_max)


def gpu_ms(found: UsageReport) -> dict[str, int]:
    return {line.key: line.gpu_ms for line in found.lines}


def jobs(found: UsageReport) -> dict[str, int]:
    return {line.key: line.jobs for line in found.lines}


@asynccontextmanager
async def beating(player: Player) -> AsyncIterator[None]:
    task = asyncio.ensure_future(player.keep_beating())
    try:
        yield
    finally:
        task.cancel()


async def start_one(s: Stage, player: Player, **fields: object) -> JobId:
    already = len(player.starts)
    job = await s.submit(**fields)
    start = await player.next_start(already + 1)
    await player.say_started(start.key)
    return job


@virtual
async def test_an_empty_cluster_has_used_nothing_of_nothing() -> None:
    async with stage() as s:
        await s.pause()
        found = await report(s)
        assert found.lines == []
        assert found.total == UsageSum(key="", jobs=0, gpu_ms=0, cpu_ms=0)
        assert (found.capacity_gpu_ms, found.allocated_gpu_ms) == (0, 0)


@virtual
async def test_r1_a_job_counts_up_to_now_while_it_runs_and_up_to_its_end_afterwards_and_never_twice() -> None:
    async with stage() as s:
        player = await s.join("n1", 4)
        async with beating(player):
            job = await start_one(s, player, gpus=2, user="")
            placed = s.job(job).attempts[0].placed_at
            await s.pause(100)
            asked_at = s.committer.now()
            assert gpu_ms(await report(s)) == {"default": 2 * (asked_at - placed)}
            await player.end(player.starts[0].key)
            held_ms = 2 * (s.job(job).ended_at - placed)
            for _ in range(100):  # before it is written, while it is, and after
                found = await report(s, UsageBy.JOB)
                assert found.lines == [UsageSum(key=str(job), jobs=1, gpu_ms=held_ms, cpu_ms=held_ms // 2)]
                assert found.total.gpu_ms == found.allocated_gpu_ms == held_ms
                await s.pause(0.007)
            assert s.control.history.holdings()[1] == []


@virtual
async def test_r1_each_millisecond_is_counted_once_whatever_is_asked_while_jobs_come_and_go() -> None:
    """The report at any moment against a sum over the records, with the history at random stages of being written."""
    dice = random.Random(5)
    async with stage() as s:
        player = await s.join("n1", 8)
        async with beating(player):
            ended = 0
            for _ in range(150):
                action = dice.random()
                if action < 0.4:
                    await s.submit(gpus=dice.choice([1, 2, 4]), tenant="default", user="")
                elif action < 0.7 and len(player.starts) > ended:
                    key = player.starts[ended].key
                    await player.say_started(key)
                    await player.end(key, exit_code=dice.choice([0, 0, 1]))
                    ended += 1
                await s.pause(dice.choice([0.001, 0.01, 0.1, 1.0]))
                now = s.committer.now()
                held = [
                    (len(task.placement.gpus), job.attempts[0].placed_at, job.attempts[0].ended_at or now)
                    for job in s.state.jobs.values()
                    for attempt in job.attempts
                    for task in attempt.tasks
                ]
                since, until = sorted(dice.choices([now - 20_000, now - 3_000, now - 100, now], k=2))
                if since < until:
                    expected = sum(gpus * max(0, min(until, end) - max(since, begin)) for gpus, begin, end in held)
                    found = await report(s, dice.choice(list(UsageBy)), since=since, until=until)
                    assert sum(line.gpu_ms for line in found.lines) == found.total.gpu_ms == expected
                    assert found.allocated_gpu_ms <= found.capacity_gpu_ms


@virtual
async def test_r2_a_job_is_counted_once_however_many_attempts_and_ranks_it_had() -> None:
    async with stage() as s:
        player = await s.join("n1", 4)
        async with beating(player):
            job = await s.submit(tasks=2)
            for rank in (1, 2):
                await player.say_started((await player.next_start(rank)).key)
            await s.committer.ask(Requeue(by=ANNA, target=JobRef(job)))
            for start in player.starts[:2]:
                await player.end(start.key, cause=EndCause.STOPPED)
            for rank in (3, 4):
                await player.say_started((await player.next_start(rank)).key)
            await s.pause(5)
            assert jobs(await report(s)) == {"default": 1}
            await player.end(player.starts[2].key)
            await s.pause(5)
            assert jobs(await report(s)) == {"default": 1}
            await player.end(player.starts[3].key)
            await s.pause(5)
            for by in UsageBy:
                found = await report(s, by)
                assert [line.jobs for line in found.lines] == [1]
                assert found.total.jobs == 1


@virtual
async def test_members_of_an_array_are_one_line_and_as_many_jobs() -> None:
    async with stage() as s:
        player = await s.join("n1", 2)
        async with beating(player):
            array = await s.submit(array=parse_array("0-4"))
            for count in range(1, 4):
                start = await player.next_start(count)
                await player.say_started(start.key)
                await s.pause(2)
                await player.end(start.key)
            await player.next_start(5)
            assert jobs(await report(s, UsageBy.JOB)) == {str(array): 5}


@virtual
async def test_lines_are_narrowed_by_tenant_and_user_and_the_cluster_is_not() -> None:
    async with stage() as s:
        player = await s.join("n1", 4)
        async with beating(player):
            await start_one(s, player)
            await s.pause(10)
            await player.end(player.starts[0].key)
            await s.pause(1)
            for fields in ({"tenant": "nobody"}, {"user": "nobody"}):
                found = await report(s, **fields)
                assert (found.lines, found.total.gpu_ms) == ([], 0)
                assert found.allocated_gpu_ms > 0
            assert gpu_ms(await report(s, UsageBy.USER, user="anna", tenant="default"))["anna"] > 0


@virtual
async def test_spans_that_meet_add_up() -> None:
    async with stage() as s:
        player = await s.join("n1", 4)
        async with beating(player):
            begin = s.committer.now()
            await start_one(s, player, gpus=3)
            await s.pause(60)
            middle = s.committer.now()
            await s.pause(60)
            await player.end(player.starts[0].key)
            await s.pause(10)
            end = s.committer.now()
            whole = await report(s, since=begin, until=end)
            parts = [await report(s, since=begin, until=middle), await report(s, since=middle, until=end)]
            assert whole.total.gpu_ms == sum(part.total.gpu_ms for part in parts) > 0
            assert whole.capacity_gpu_ms == sum(part.capacity_gpu_ms for part in parts)


@virtual
async def test_r3_capacity_is_what_was_offered_and_what_was_held_on_a_node_that_was_drained() -> None:
    async with stage() as s:
        player = await s.join("n1", 4)
        async with beating(player):
            await start_one(s, player, gpus=1)
            begin = s.committer.now()
            await s.pause(10)
            span = s.committer.now() - begin
            offered = await report(s, since=begin)
            assert (offered.capacity_gpu_ms, offered.allocated_gpu_ms) == (4 * span, span)
            await s.committer.ask(DrainNode(by=ANNA, node=NODE, reason="fans"))
            drained_at = s.committer.now()
            await s.pause(10)
            drained = await report(s, since=drained_at)
            assert drained.capacity_gpu_ms == drained.allocated_gpu_ms > 0
            await player.end(player.starts[0].key)
            ended_at = s.committer.now()
            await s.pause(10)
            assert (await report(s, since=ended_at)).capacity_gpu_ms == 0
            await s.committer.ask(ResumeNode(by=ANNA, node=NODE))
            resumed_at = s.committer.now()
            await s.pause(10)
            span = s.committer.now() - resumed_at
            assert (await report(s, since=resumed_at)).capacity_gpu_ms == 4 * span


@virtual
async def test_what_an_unreachable_node_holds_is_used_and_what_it_does_not_hold_is_not_to_be_had() -> None:
    async with stage() as s:
        player = await s.join("n1", 4)
        await start_one(s, player, gpus=3)
        player.leave()
        await s.pause(60)
        silent_at = s.committer.now()
        await s.pause(100)
        span = s.committer.now() - silent_at
        found = await report(s, since=silent_at)
        assert found.capacity_gpu_ms == found.allocated_gpu_ms == 3 * span


@virtual
async def test_a_restart_changes_no_sum() -> None:
    async with stage() as s:
        disk, player = s.disk, await s.join("n1", 4)
        await start_one(s, player, gpus=2)
        await s.pause(5)
        await player.end(player.starts[0].key)
        await start_one(s, player, gpus=1)
        await s.pause(5)
        until = s.committer.now()
        before = await report(s, UsageBy.JOB, until=until)
    async with stage(disk) as s:
        after = await report(s, UsageBy.JOB, until=until)
        assert after == before


@virtual
async def test_only_the_largest_lines_are_answered_and_the_total_is_of_all() -> None:
    async with stage() as s:
        player = await s.join("n1", 8)
        async with beating(player):
            small = [await start_one(s, player, gpus=1) for _ in range(5)]
            await s.pause(10)
            for start in player.starts:
                await player.end(start.key)
            # Small in the store, and the largest by what still runs.
            await s.committer.ask(Requeue(by=ANNA, target=JobRef(small[4])))
            await player.say_started((await player.next_start(6)).key)
            await s.pause(100)
            found = await report(s, UsageBy.JOB, lines_max=3)
            assert [line.key for line in found.lines] == [str(job) for job in (small[4], small[0], small[1])]
            assert found.lines[0].gpu_ms > 105_000
            assert (found.more, found.total.jobs) == (True, 5)


def written_after_the_cut(s: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything noted becomes part of the store after the report took its cut and before it asks the store."""
    store = s.control.history.store
    for name in ("charged", "usage", "offers", "held"):
        asked = getattr(store, name)

        async def after_a_write(*args: object, asked: Callable[..., Awaitable[object]] = asked) -> object:
            assert await s.control.history.flush(None)
            return await asked(*args)

        monkeypatch.setattr(store, name, after_a_write)


@virtual
async def test_r1_what_is_written_while_a_report_is_made_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage() as s:
        player = await s.join("n1", 4)
        async with beating(player):
            job = await start_one(s, player, gpus=1)
            await s.pause(10)
            begin = s.committer.now()
            await s.pause(10)
            written_after_the_cut(s, monkeypatch)
            await player.end(player.starts[0].key)
            for _ in range(3):
                await s.committer.ask(DrainNode(by=ANNA, node=NODE, reason="fans"))
                await s.pause(0.01)
                await s.committer.ask(ResumeNode(by=ANNA, node=NODE))
                await s.pause(0.01)
            assert len(s.control.history.offers()) >= 6
            until = s.committer.now()
            found = await report(s, UsageBy.JOB, since=begin, until=until)
            assert s.control.history.offers() == []
            assert found == await report(s, UsageBy.JOB, since=begin, until=until)
            found = await report(s, UsageBy.JOB)
            record = s.job(job)
            assert gpu_ms(found) == {str(job): record.ended_at - record.attempts[0].placed_at}
            assert jobs(found) == {str(job): 1}
            assert s.control.history.holdings()[1] == []


@virtual
async def test_r2_a_job_that_the_state_has_forgotten_and_the_store_has_in_part_is_one() -> None:
    async with stage(settings=ControlSettings(policy=PolicySettings(ended_jobs_max=1))) as s:
        player = await s.join("n1", 4)
        async with beating(player):
            await start_one(s, player)
            await s.committer.ask(Requeue(by=ANNA, target=JobRef(JobId(1))))
            await player.end(player.starts[0].key, cause=EndCause.STOPPED)
            again = await player.next_start(2)
            await player.say_started(again.key)
            await s.pause(5)
            s.disk.archive.fault = "no space left on device"
            await player.end(again.key)
            for _ in range(2):
                await s.cancel(await s.submit(hold=True))
            await s.until(lambda: JobId(1) not in s.state.jobs)
            s.disk.archive.fault = ""
            assert len(s.control.history.holdings()[1]) == 1
            assert jobs(await report(s)) == {"default": 1}


@virtual
async def test_r3_nothing_is_ever_more_than_used_up_whatever_is_known_of_nodes_that_are_gone() -> None:
    async with stage() as s:
        player = await s.join("n1", 4)
        async with beating(player):
            await start_one(s, player)
            await s.pause(5)
            s.disk.archive.offers.clear()
            found = await report(s)
            assert found.capacity_gpu_ms == found.allocated_gpu_ms > 0
