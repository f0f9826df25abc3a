"""Pages of a list go from the state into the history: L1 to L4 of `control.queries.job_listing`, on virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from stoker.brain.domain.access import OWNER
from stoker.brain.domain.array import JobRef, parse_array
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job_filter import JobFilter
from stoker.brain.domain.lifecycle import FINAL, JobState
from stoker.brain.domain.units import Instant
from stoker.brain.state.commands import Cancel, Requeue
from stoker.control.access import Sights
from stoker.control.queries.job_listing import OFFSET_MAX, Found, JobPage, page_of, select
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import PolicySettings
from stoker.wire.rest.job import JobListQuery
from tests.control.stage import ANNA, Player, Stage, stage, virtual

FORGETFUL = ControlSettings(policy=PolicySettings(ended_jobs_max=3))
ENDED = JobFilter(states=tuple(FINAL))
FULL = "no space left on device"


async def page(s: Stage, wanted: JobFilter, limit: int, after: str = "", offset: int = 0) -> Found:
    return await select(s.control, wanted, await bounds(s, limit=limit, offset=offset, after=after))


async def bounds(s: Stage, **asked: Any) -> JobPage:  # noqa: ANN401  # each field of the query has its own type
    return await page_of(s.control, JobListQuery(**asked), Sights(s.state, OWNER))


async def every(s: Stage, wanted: JobFilter, limits: list[int]) -> list[JobId]:
    """All pages, one after the other."""
    rows: list[JobId] = []
    after: str | None = ""
    for limit in limits * 1_000:
        found = await page(s, wanted, limit, after or "")
        assert len(found.jobs) <= limit
        rows += [job.id for job in found.jobs]
        if found.last is None:
            return rows
        after = str(found.last)
        await s.pause(0.05)
    raise AssertionError("the pages never end")


@asynccontextmanager
async def worker(s: Stage) -> AsyncIterator[Player]:
    """A node whose tasks end as soon as they start."""
    player = await s.join("n1", 4)
    tasks = [asyncio.ensure_future(player.keep_beating()), asyncio.ensure_future(_work(s, player))]
    try:
        yield player
    finally:
        for task in tasks:
            task.cancel()


async def _work(s: Stage, player: Player) -> None:
    done = 0
    while True:
        while len(player.starts) <= done:
            await s.pause(0.01)
        key = player.starts[done].key
        done += 1
        await player.say_started(key)
        await s.pause(0.02)
        await player.end(key, exit_code=done % 5 == 0)


async def all_ended(s: Stage) -> None:
    await s.until(lambda: all(job.is_final for job in s.state.jobs.values()))
    await s.until(lambda: len(s.state.jobs) <= 3)
    await s.pause(1)


def ids_of(found: Found) -> list[JobId]:
    return [job.id for job in found.jobs]


@virtual
async def test_l1_the_list_goes_on_into_the_history_newest_first() -> None:
    async with stage(settings=FORGETFUL) as s, worker(s):
        jobs = [await s.submit() for _ in range(10)]
        await all_ended(s)
        found = await page(s, JobFilter(), 7)
        assert ids_of(found) == jobs[:2:-1]
        assert ids_of(await page(s, JobFilter(), 7, str(found.last))) == jobs[2::-1]
        assert found.total == len(s.state.jobs) == 3
        assert ids_of(await page(s, JobFilter(), 3, offset=5)) == jobs[4:1:-1]


@virtual
async def test_jobs_that_wait_stand_among_older_and_newer_ones_that_were_forgotten() -> None:
    async with stage(settings=FORGETFUL) as s, worker(s):
        before = [await s.submit() for _ in range(4)]
        waits = await s.submit(hold=True)
        after = [await s.submit() for _ in range(4)]
        await s.until(lambda: len(s.state.jobs) <= 4)
        await s.pause(1)
        expected = sorted((*before, waits, *after), reverse=True)
        for limit in range(1, 11):
            assert await every(s, JobFilter(), [limit]) == expected
        assert await every(s, ENDED, [2]) == sorted((*before, *after), reverse=True)
        assert ids_of(await page(s, JobFilter(states=(JobState.HELD,)), 5)) == [waits]


@pytest.mark.parametrize("seed", range(6))
def test_l2_no_row_comes_twice_or_is_missing_while_jobs_come_end_are_requeued_and_are_forgotten(seed: int) -> None:
    @virtual
    async def story() -> None:
        dice = random.Random(seed)
        async with stage(settings=FORGETFUL) as s, worker(s):
            for _ in range(dice.randrange(25)):
                await _something(s, dice)
            for _ in range(6):
                churn = asyncio.ensure_future(_churn(s, dice))
                for wanted in (JobFilter(), JobFilter(members=True), JobFilter(tenant="default"), ENDED):
                    there = _rows(s, wanted)
                    newest = s.state.next_job_id
                    rows = await every(s, wanted, dice.choices(range(1, 8), k=5))
                    assert rows == sorted(set(rows), reverse=True)
                    assert set(there) <= set(rows) | _returned(s, wanted, there), (seed, wanted)
                    if wanted is not ENDED:
                        assert [row for row in rows if row < newest] == there, (seed, wanted)
                assert not churn.done()
                churn.cancel()

    story()


async def _churn(s: Stage, dice: random.Random) -> None:
    while True:
        await s.pause(dice.choice([0.001, 0.02, 0.2]))
        with suppress(StokerError):  # what it was about has changed meanwhile
            await _something(s, dice)


async def _something(s: Stage, dice: random.Random) -> None:
    roll = dice.random()
    known = list(s.state.jobs.values())
    if roll < 0.5 or not known:
        await s.submit()
    elif roll < 0.7:
        await s.submit(array=parse_array(dice.choice(["0-3", "0-8:2%1", "5", "0-5%2"])))
    elif roll < 0.85:
        arrays = [job for job in known if job.members is not None and job.members.lazy]
        members = dice.choice(arrays).members if arrays else None
        if members is not None:
            array = next(job for job in arrays if job.members is members)
            await s.committer.ask(Cancel(by=ANNA, target=JobRef(array.id, members.lazy[:1])))
    else:
        ended = [job for job in known if job.is_final and job.members is None and not job.array_of]
        if ended:
            await s.committer.ask(Requeue(by=ANNA, target=JobRef(dice.choice(ended).id)))


def _rows(s: Stage, wanted: JobFilter) -> list[JobId]:
    """Every row there is to see, from the log itself: ids are given out in order and never again."""
    ended = {job for job, _ in s.disk.archive.jobs.items() if job not in s.state.jobs}
    ended |= {job for job in s.control.history.ended() if job not in s.state.jobs}
    ended |= {job.id for job in s.state.jobs.values() if job.is_final}
    rows: list[JobId] = []
    job_id = JobId(1)
    while job_id < s.state.next_job_id:
        record = _record(s, job_id)
        count = record.spec.array.count if record.spec.array is not None and not record.array_of else 0
        rows += [JobId(job_id + 1 + at) for at in range(count)] if count and wanted.members else [job_id]
        job_id = JobId(job_id + 1 + count)
    return sorted((row for row in rows if wanted is not ENDED or row in ended), reverse=True)


def _record(s: Stage, job_id: JobId) -> object:
    found = s.state.jobs.get(job_id) or s.control.history.ended().get(job_id)
    return found or s.disk.archive.jobs[job_id][1]


def _returned(s: Stage, wanted: JobFilter, there: list[JobId]) -> set[JobId]:
    """Jobs that had ended when the list was begun and were requeued since: whether they are met is a matter of luck."""
    if wanted is not ENDED:
        return set()
    return {job for job in there if job in s.state.jobs and s.state.jobs[job].attempts[1:]}


@virtual
async def test_l4_members_are_rows_of_their_own_whether_or_not_they_ever_became_records() -> None:
    async with stage(settings=FORGETFUL) as s:
        array = await s.submit(array=parse_array("0-9:3%1"))
        found = await page(s, JobFilter(members=True), 9)
        assert [job.label for job in found.jobs] == [f"{array}_{index}" for index in (9, 6, 3, 0)]
        assert (found.total, found.last) == (4, None)
        assert [job.label for job in (await page(s, JobFilter(members=True), 2, f"{array}_6")).jobs] == ["1_3", "1_0"]
        assert ids_of(await page(s, JobFilter(), 9)) == [array]
        await s.committer.ask(Cancel(by=ANNA, target=JobRef(array, ((3, 6, 3),))))
        cancelled = await page(s, JobFilter(members=True, states=(JobState.CANCELLED,)), 9)
        assert [job.label for job in cancelled.jobs] == ["1_6", "1_3"]
        assert cancelled.total == 2
        waiting = await page(s, JobFilter(members=True, states=(JobState.PENDING,)), 9)
        assert [job.label for job in waiting.jobs] == ["1_9", "1_0"]


@virtual
async def test_l4_the_same_of_an_array_that_was_forgotten() -> None:
    async with stage(settings=FORGETFUL) as s:
        array = await s.submit(array=parse_array("0-4"))
        await s.cancel(array)
        for _ in range(6):
            await s.cancel(await s.submit())
        await s.until(lambda: array not in s.state.jobs)
        await s.pause(1)
        rows = await every(s, JobFilter(members=True), [2, 3])
        assert rows[-5:] == [array + place for place in (5, 4, 3, 2, 1)]
        found = await page(s, JobFilter(members=True, states=(JobState.CANCELLED,)), 2, f"{array}_3")
        assert [job.label for job in found.jobs] == ["1_2", "1_1"]
        assert await every(s, JobFilter(), [3]) == [12, 11, 10, 9, 8, 7, array]


@virtual
async def test_a_big_array_costs_a_page_of_members_and_not_all_of_them() -> None:
    async with stage() as s:
        array = await s.submit(array=parse_array("0-99999"))
        found = await page(s, JobFilter(members=True), 2, f"{array}_50000")
        assert [job.array_index for job in found.jobs] == [49_999, 49_998]
        assert found.total == 100_000


@virtual
async def test_a_running_array_is_found_as_running_and_its_members_are_not_rows() -> None:
    async with stage() as s:
        await s.join("n1", 1)
        array = await s.submit(array=parse_array("0-2"))
        await s.until(lambda: bool(s.state.indexes.arrays[array].live))
        assert ids_of(await page(s, JobFilter(states=(JobState.RUNNING,)), 9)) == [array]
        assert ids_of(await page(s, JobFilter(states=(JobState.STARTING,)), 9)) == []
        assert ids_of(await page(s, JobFilter(states=(JobState.STARTING,), members=True), 9)) == [array + 1]


@virtual
async def test_a_span_holds_what_was_there_in_it_in_the_state_and_in_the_history() -> None:
    async with stage(settings=FORGETFUL) as s, worker(s):
        moments: list[Instant] = []
        jobs: list[JobId] = []
        for _ in range(6):
            moments.append(s.committer.now())
            jobs.append(await s.submit())
            await s.pause(10)
        held = await s.submit(hold=True)
        await s.pause(1)
        assert ids_of(await page(s, JobFilter(since=moments[2]), 9)) == [held, *jobs[:1:-1]]
        assert ids_of(await page(s, JobFilter(until=moments[2]), 9)) == jobs[1::-1]
        assert ids_of(await page(s, JobFilter(since=moments[1], until=moments[4]), 9)) == jobs[3:0:-1]


@virtual
async def test_while_the_history_cannot_be_read_only_pages_that_need_it_are_refused() -> None:
    async with stage(settings=FORGETFUL) as s, worker(s):
        for _ in range(6):
            await s.submit()
        await all_ended(s)
        s.disk.archive.fault = FULL
        assert len((await page(s, JobFilter(), 2)).jobs) == 2
        assert (await page(s, JobFilter(states=(JobState.PENDING, JobState.RUNNING)), 9)).jobs == []
        with pytest.raises(StokerError) as refused:
            await page(s, JobFilter(), 9)
        assert refused.value.refusal.code == "history_unavailable"
        assert FULL in refused.value.refusal.message


@virtual
async def test_a_job_that_ended_and_is_not_yet_written_is_listed_though_the_state_has_forgotten_it() -> None:
    async with stage(settings=FORGETFUL) as s, worker(s):
        await s.pause(1)
        s.disk.archive.fault = FULL
        jobs = [await s.submit() for _ in range(6)]
        await all_ended(s)
        assert len(s.control.history.ended()) == 6
        s.disk.archive.fault = ""
        assert await every(s, JobFilter(), [4]) == jobs[::-1]


@virtual
async def test_an_offset_beyond_all_reason_is_refused_with_the_other_way() -> None:
    async with stage() as s:
        with pytest.raises(StokerError, match="after"):
            await bounds(s, limit=5, offset=OFFSET_MAX + 1)
        assert (await page(s, JobFilter(), 5, offset=OFFSET_MAX)).jobs == []


@pytest.mark.parametrize("after", ["1_9", "1_[0-3]", "2_0", "99_1"])
def test_a_member_that_is_none_is_no_place_to_go_on_from(after: str) -> None:
    @virtual
    async def story() -> None:
        async with stage() as s:
            await s.submit(array=parse_array("0-3"))
            with pytest.raises(StokerError) as refused:
                await page(s, JobFilter(), 5, after)
            assert refused.value.refusal.code == "job_unknown"

    story()


@virtual
async def test_a_job_that_was_requeued_is_no_longer_among_the_ended_though_the_history_has_its_end() -> None:
    settings = ControlSettings(policy=PolicySettings(ended_jobs_max=4))
    async with stage(settings=settings) as s:
        jobs = [await s.submit() for _ in range(8)]
        for at in (4, 7, 5, 6):
            await s.cancel(jobs[at])
            await s.pause(0.1)
        for job in jobs[5:7]:
            await s.committer.ask(Requeue(by=ANNA, target=JobRef(job)))
        for job in jobs[:4]:
            await s.cancel(job)
        await s.until(lambda: len(s.state.jobs) == 6)
        await s.pause(1)
        assert s.control.history.newest_pruned == jobs[7]
        for limit in range(1, 8):
            assert await every(s, ENDED, [limit]) == [jobs[at] for at in (7, 4, 3, 2, 1, 0)]
