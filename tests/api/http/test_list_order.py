"""Orders of a list: S1 to S4 of `control.queries.job_order`, L5 and L6 of `job_listing`, on virtual time."""

import pytest
from msgspec.structs import replace

from stoker.brain.domain.access import OWNER, Caller, Role
from stoker.brain.domain.array import parse_array
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Epoch, JobId, Principal, TenantName
from stoker.brain.domain.job import Attempt, Job
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.cluster import ClusterState
from stoker.control.access import Sights
from stoker.control.queries.job_listing import Found, filter_of, page_of, select
from stoker.control.queries.job_order import Order
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import PolicySettings
from stoker.wire.rest.job import JobListQuery
from tests.api.http.test_listing import worker
from tests.builders import NOW, job
from tests.control.stage import Stage, stage, virtual

FORGETFUL = ControlSettings(policy=PolicySettings(ended_jobs_max=3))


async def listed(s: Stage, caller: Caller = OWNER, **asked: object) -> Found:
    query = JobListQuery(**asked)  # type: ignore[arg-type]  # given by name
    sees = Sights(s.state, caller)
    return await select(s.control, filter_of(query, Instant(0), caller, sees), await page_of(s.control, query, sees))


async def ids(s: Stage, caller: Caller = OWNER, **asked: object) -> list[str]:
    """All pages, one after the other."""
    rows: list[str] = []
    after = ""
    for _ in range(100):
        found = await listed(s, caller, after=after, **asked)
        rows += [job.label for job in found.jobs]
        if found.last is None:
            return rows
        after = found.cursor(found.last)
    raise AssertionError("the pages never end")


async def refused(s: Stage, **asked: object) -> tuple[str, str]:
    with pytest.raises(StokerError) as fault:
        await listed(s, **asked)
    return fault.value.refusal.code, fault.value.refusal.hint


@virtual
async def test_s1_what_runs_stands_before_what_waits_and_that_before_what_ended_each_newest_first() -> None:
    async with stage() as s:
        ended = [await s.submit(hold=True) for _ in range(2)]
        await s.join("n1", 1)
        runs = await s.submit(gpus=1)
        waits = [await s.submit(gpus=1), await s.submit(hold=True)]
        for job in ended:
            await s.cancel(job)
        await s.until(lambda: s.job(runs).attempts != ())
        expected = [str(job) for job in (runs, *waits[::-1], *ended[::-1])]
        for limit in range(1, 7):
            for wanted in ({}, {"tenant": "default"}, {"members": True}):
                assert await ids(s, sort="live", limit=limit, **wanted) == expected, (limit, wanted)
        found = await listed(s, sort="live", limit=2)
        assert (found.total, found.cursor(found.last or JobId(0))) == (5, f"waiting.{waits[1]}")
        assert await ids(s) == sorted(expected, key=int, reverse=True), "programs get what they always got"
        assert await ids(s, sort="live", state="held,cancelled") == [str(waits[1]), str(ended[1]), str(ended[0])]


@virtual
async def test_s1_jobs_of_the_history_stand_among_those_that_ended() -> None:
    async with stage(settings=FORGETFUL) as s, worker(s):
        jobs = [await s.submit() for _ in range(7)]
        held = await s.submit(hold=True)
        await s.until(lambda: len(s.state.jobs) <= 4)
        await s.pause(1)
        for limit in (1, 2, 5, 50):
            assert await ids(s, sort="live", limit=limit) == [str(held), *map(str, jobs[::-1])]


@virtual
async def test_a_column_sorts_in_both_directions_and_pages_go_on_where_they_were() -> None:
    async with stage() as s:
        sizes = {await s.submit(gpus=gpus, hold=True): gpus for gpus in (3, 1, 2, 1, 3, 2)}
        rising = [str(job) for job in sorted(sizes, key=lambda job: (sizes[job], job))]
        for limit in (1, 2, 4, 9):
            assert await ids(s, sort="gpus", limit=limit) == rising
            assert await ids(s, sort="-gpus", limit=limit) == rising[::-1]
        array = await s.submit(array=parse_array("0-2"), hold=True)
        assert await ids(s, sort="id", array=str(array), limit=2) == [f"{array}_{index}" for index in range(3)]


@virtual
async def test_s2_a_job_without_a_value_is_last_in_both_directions() -> None:
    async with stage() as s, worker(s):
        done = await s.submit()
        await s.until(lambda: s.job(done).is_final)
        held = await s.submit(hold=True)
        for sort in ("started", "-started", "exit_code", "-ran"):
            assert await ids(s, sort=sort) == [str(done), str(held)]


@virtual
async def test_s2_a_hidden_name_is_not_told_by_the_place_of_its_job() -> None:
    stranger = Caller(principal=Principal("user:eve"), role=Role.METRICS, tenant=TenantName(""), user="eve")
    async with stage() as s:
        jobs = [await s.submit(name=name, hold=True) for name in ("c", "a", "b")]
        assert await ids(s, sort="name") == [str(jobs[1]), str(jobs[2]), str(jobs[0])]
        assert await ids(s, stranger, sort="name") == [str(job) for job in jobs]
        assert await ids(s, stranger, name="a*") == []
        assert await ids(s, stranger, label="!team") == []


@virtual
async def test_s4_a_column_that_is_not_there_is_refused_with_those_that_are() -> None:
    async with stage() as s:
        code, hint = await refused(s, sort="colour")
        assert (code, "gpus, priority" in hint) == ("bad_parameter", True)
        assert (await refused(s, sort="live", offset=3))[0] == "bad_parameter"
        assert (await refused(s, sort="live", after="7"))[0] == "bad_parameter"
        assert (await refused(s, name="*" * 9))[0] == "bad_parameter"
        assert (await refused(s, label="team=a=b"))[0] == "bad_selector"


@virtual
async def test_members_of_one_array_are_listed_and_of_what_is_none_it_is_said() -> None:
    async with stage() as s:
        one, other = [await s.submit(array=parse_array("0-2")) for _ in range(2)]
        plain = await s.submit()
        assert await ids(s, array=str(one)) == [f"{one}_2", f"{one}_1", f"{one}_0"]
        assert await ids(s, array=str(other), sort="live", limit=2) == [f"{other}_2", f"{other}_1", f"{other}_0"]
        assert (await refused(s, array=str(plain)))[0] == "not_an_array"
        assert (await refused(s, array="99"))[0] == "job_unknown"
        assert (await refused(s, array=f"{one}_1"))[0] == "bad_parameter"


@virtual
async def test_mine_are_the_jobs_of_the_callers_account_whatever_token_submitted_them() -> None:
    anna = Caller(principal=Principal("user:anna"), role=Role.ADMIN, tenant=TenantName(""), user="")
    async with stage() as s:
        mine = await s.submit()
        await s.submit(user="bob")
        assert await ids(s, anna, mine=True) == [str(mine)]
        with pytest.raises(StokerError, match="user"):
            await listed(s, anna, mine=True, user="bob")


@virtual
async def test_a_list_is_sorted_by_the_titles_that_people_see_above_its_columns() -> None:
    async with stage() as s:
        jobs = {await s.submit(hold=True, priority=priority): priority for priority in (500, 900, 100)}
        rising = [str(job) for job in sorted(jobs, key=lambda job: jobs[job])]
        assert await ids(s, sort="prio", limit=2) == rising
        assert await ids(s, sort="-prio", limit=2) == rising[::-1]
        assert await ids(s, sort="exit") == await ids(s, sort="exit_code")


def test_by_waiting_who_was_requeued_counts_from_then() -> None:
    def tried(number: int, *ends: int) -> Job:
        attempts = [
            Attempt(
                number=at, epoch=Epoch(1), tasks=(), placed_at=NOW, started_at=Instant(end - 2), ended_at=Instant(end)
            )
            for at, end in enumerate(ends, 1)
        ]
        started = Instant(ends[0] - 2) if ends else NEVER
        return replace(job(number), submitted_at=Instant(1), started_at=started, attempts=tuple(attempts))

    order = Order("waited", False, Instant(50), Sights(ClusterState(), OWNER))
    again, twice, never = tried(1, 40), tried(2, 20, 45), tried(3)
    over = replace(tried(4, 20, 45), ended_at=Instant(45))
    waits = {each.id: order.key(each, each.state)[1] for each in (again, twice, never, over)}
    assert waits == {1: 50 - 40, 2: 50 - 45, 3: 49, 4: 43 - 20}
