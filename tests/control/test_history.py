"""What becomes history, and when: R1 of `control.history`, and how long it is kept."""

import asyncio

from stoker.brain.domain.array import JobRef, parse_array
from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.brain.domain.units import HOUR_MS
from stoker.brain.state.commands import DrainNode, ForgetNode, Requeue, ResumeNode
from stoker.control.settings import HistorySettings
from stoker.live.settings.control import ControlSettings
from tests.control.history_stage import FORGETFUL, FULL, archive_of, run_one
from tests.control.stage import ANNA, running, stage, virtual


@virtual
async def test_r1_nothing_is_written_before_it_is_durable() -> None:
    async with stage() as s:
        job = await s.submit()
        await s.pause()
        s.log.gate.clear()
        cancelling = asyncio.ensure_future(s.cancel(job))
        await s.pause(5)
        assert s.job(job).state is JobState.CANCELLED
        assert not archive_of(s).jobs
        s.log.gate.set()
        await cancelling
        await s.pause()
        assert archive_of(s).jobs[job][1] == s.job(job)
        assert archive_of(s).mark.position <= s.committer.durable


@virtual
async def test_r1_of_two_ends_only_the_one_that_is_durable_is_written() -> None:
    async with stage() as s:
        first, second = await s.submit(), await s.submit()
        await s.pause()
        await s.cancel(first)
        s.log.gate.clear()
        cancelling = asyncio.ensure_future(s.cancel(second))
        await s.pause(5)
        assert list(archive_of(s).jobs) == [first]
        assert list(s.control.history.ended()) == [second]
        s.log.gate.set()
        await cancelling


@virtual
async def test_a_job_that_ran_is_written_with_its_attempts_and_exactly_what_it_held() -> None:
    async with stage() as s:
        player = await s.join("n1", 4)
        job = await run_one(s, player, 10.0, gpus=2)
        await s.pause()
        archive, record = archive_of(s), s.job(job)
        assert archive.jobs[job][1] == record
        assert archive.attempts[job, 1][1].outcome is Outcome.SUCCEEDED
        holding = archive.holdings[job, 1, 0]
        assert (holding.since, holding.until) == (record.attempts[0].placed_at, record.attempts[0].ended_at)
        assert (holding.node, len(holding.gpus), holding.cpus, holding.user) == ("n1", 2, 1, "anna")


@virtual
async def test_a_rank_of_a_gang_holds_until_its_own_end_was_told_and_not_when_its_node_says_it_was() -> None:
    async with stage() as s:
        player = await s.join("n1", 2)
        job = await s.submit(tasks=2)
        start = await player.next_start()
        await player.say_started(start.key)
        other = await player.next_start(2)
        await player.say_started(other.key)
        await s.pause(10)
        await player.end(start.key)
        told = s.state.last_at
        await s.pause(10)
        await player.end(other.key)
        await s.pause()
        holdings = [archive_of(s).holdings[job, 1, rank] for rank in (start.key.rank, other.key.rank)]
        assert holdings[0].until == told
        assert holdings[1].until - holdings[0].until >= 10_000


@virtual
async def test_an_attempt_that_was_requeued_is_written_before_its_job_ends() -> None:
    async with stage() as s:
        player = await s.join("n1", 1)
        job = await s.submit()
        start = await player.next_start()
        await player.say_started(start.key)
        await s.committer.ask(Requeue(by=ANNA, target=JobRef(job)))
        await player.end(start.key)
        await s.pause()
        assert job not in archive_of(s).jobs
        assert archive_of(s).attempts[job, 1][1].outcome is Outcome.REQUEUED
        assert (job, 1, 0) in archive_of(s).holdings


@virtual
async def test_a_job_that_ran_once_more_after_its_end_replaces_what_was_written() -> None:
    async with stage() as s:
        player = await s.join("n1", 1)
        job = await run_one(s, player)
        await s.pause()
        await s.committer.ask(Requeue(by=ANNA, target=JobRef(job)))
        again = await player.next_start(2)
        await player.say_started(again.key)
        await player.end(again.key, exit_code=3)
        await s.pause()
        assert archive_of(s).jobs[job][1].state is JobState.FAILED
        assert sorted(archive_of(s).attempts) == [(job, 1), (job, 2)]
        assert sorted(archive_of(s).holdings) == [(job, 1, 0), (job, 2, 0)]


@virtual
async def test_what_nodes_offer_is_written_when_it_changes() -> None:
    async with stage() as s:
        player = await s.join("n1", 4)
        node = NodeName("n1")
        await s.pause()
        await s.committer.ask(DrainNode(by=ANNA, node=node, reason="fans"))
        await s.pause()
        await s.committer.ask(ResumeNode(by=ANNA, node=node))
        await s.pause()
        player.leave()
        await s.pause(60)
        await s.committer.ask(ForgetNode(by=ANNA, node=node, force=True))
        await s.pause()
        offers = [archive_of(s).offers[place].gpus for place in sorted(archive_of(s).offers, key=lambda each: each[1])]
        # Registered but not yet compared, ready, drained, ready, silent. That it is forgotten then changes nothing.
        assert offers == [0, 4, 0, 4, 0]


@virtual
async def test_gpus_of_orphan_tasks_are_not_offered() -> None:
    async with stage() as s:
        start = await (await s.join("n1", 4)).next_start() if await s.submit(gpus=2) else None
        assert start is not None
        await s.committer.ask(ForgetNode(by=ANNA, node=NodeName("n1"), force=True))
        await s.join("n1", 4, running(start.key, *start.gpus))
        await s.pause()
        newest = max(archive_of(s).offers, key=lambda place: place[1])
        assert archive_of(s).offers[newest].gpus == 2


@virtual
async def test_what_is_older_than_the_days_kept_and_beyond_the_rows_kept_goes() -> None:
    settings = ControlSettings(history=HistorySettings(keep_days=1, rows_max=3))
    async with stage(settings=settings) as s:
        player = await s.join("n1", 1)
        jobs = [await run_one(s, player) for _ in range(5)]
        await s.pause(600)
        assert list(archive_of(s).jobs) == jobs[2:]
        s.control.history._settings = HistorySettings(keep_days=0)
        await s.pause(600)
        assert archive_of(s).jobs == {}
        assert archive_of(s).holdings == {}
        assert any("history_trimmed jobs=2" in line for line in s.notes.lines)


@virtual
async def test_a_trim_that_fails_is_told_and_ends_nothing() -> None:
    async with stage() as s:
        await s.pause()
        archive_of(s).fault = FULL
        await s.pause(1_300)
        assert s.notes.counts["history_not_trimmed"] == 2
        job = await s.submit()
        archive_of(s).fault = ""
        await s.cancel(job)
        await s.pause(70)
        assert job in archive_of(s).jobs


@virtual
async def test_a_quiet_cluster_writes_nothing() -> None:
    async with stage() as s:
        await s.pause(40)
        batches = archive_of(s).batches
        await s.pause(HOUR_MS / 1_000)
        assert archive_of(s).batches == batches


@virtual
async def test_the_newest_job_that_was_forgotten_is_known_also_after_a_restart() -> None:
    async with stage(settings=FORGETFUL) as s:
        disk, player = s.disk, await s.join("n1", 1)
        jobs = [await run_one(s, player, 1) for _ in range(5)]
        await s.until(lambda: len(s.state.jobs) == 1)
        assert s.control.history.newest_pruned == jobs[-2]
    async with stage(disk, settings=FORGETFUL) as s:
        assert s.control.history.newest_pruned == jobs[-2]
    async with stage() as s:
        assert s.control.history.newest_pruned == 0


@virtual
async def test_a_recorder_that_never_met_its_store_knows_of_no_job_that_it_was_not_forgotten() -> None:
    async with stage() as s:
        disk = s.disk
        await s.submit()
    disk.archive.fault = FULL
    async with stage(disk) as s:
        assert s.control.history.newest_pruned > 1 << 50


@virtual
async def test_an_array_is_written_whole_once_all_its_members_have_ended() -> None:
    async with stage() as s:
        player = await s.join("n1", 1)
        job = await s.submit(array=parse_array("0-1"))
        for count in (1, 2):
            start = await player.next_start(count)
            await player.say_started(start.key)
            await player.end(start.key)
        await s.until(lambda: s.job(job).is_final)
        await s.pause()
        archive = archive_of(s)
        assert sorted(archive.jobs) == [job, job + 1, job + 2]
        assert {holding.array for holding in archive.holdings.values()} == {job}
