"""What must every History do? Inherit this, give a `store`, and the rules run on it.

A store outlives the histories opened on it: `store.history()` is the next process. Tests cite the rules of the port (H1
to H4); what a filter, a key or a span means is compared with the brain's own words for it.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.array import ArraySpec, CancelledMembers, Members
from stoker.brain.domain.demand import Demand, JobClass
from stoker.brain.domain.ids import JOB_ID_MAX, Epoch, GpuUuid, JobId, NodeName, Position, Principal, TenantName
from stoker.brain.domain.job import Attempt, Job, JobSpec, Task
from stoker.brain.domain.job_filter import JobFilter
from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.units import Instant
from stoker.brain.domain.usage import (
    CapacityChange,
    Holding,
    NodeInterval,
    UsageBy,
    UsageQuery,
    UsageSum,
    gpu_ms_within,
    overlap_ms,
)
from stoker.brain.domain.where import parse_selector
from stoker.ports import History, HistoryBatch, HistoryFailed, HistoryMark

ALL = JobId(JOB_ID_MAX)
END = Position(1_000_000)
CLUSTER = "cluster-1"
_OF_SPEC = ("tenant", "job_class", "name", "labels", "user", "array")


class HistoryStore(Protocol):
    """Where a history keeps things."""

    def history(self) -> History:
        """A history on this store that nobody has opened yet."""
        ...

    def of_copy(self, content: bytes) -> "HistoryStore":
        """Another store, that holds what a copy of this one does."""
        ...

    def break_it(self) -> None:
        """From now on nothing can be read or written."""
        ...

    def mend_it(self) -> None: ...


@asynccontextmanager
async def opened(store: HistoryStore) -> AsyncIterator[History]:
    history = store.history()
    try:
        await history.open()
        yield history
    finally:
        await history.close()


def at(position: int) -> HistoryMark:
    return HistoryMark(cluster_id=CLUSTER, position=Position(position))


def ended(job: int, ended_at: int = 1_000, **fields: object) -> Job:
    """A job that ended, on one GPU of `n1`."""
    of_spec = {name: fields.pop(name) for name in _OF_SPEC if name in fields}
    demand = Demand(gpu_count=1)
    spec = JobSpec(**{"name": "j", **of_spec}, demand=demand, command="true", priority=1, time_limit_ms=1)  # type: ignore[arg-type]  # given by name
    attempt = Attempt(
        number=1,
        epoch=Epoch(1),
        tasks=(Task(placement=TaskPlacement(rank=0, node=NodeName("n1"), gpus=(GpuUuid("g"),), cpus=1, memory_mb=0)),),
        placed_at=Instant(ended_at - 100),
        outcome=Outcome.SUCCEEDED,
        ended_at=Instant(ended_at),
    )
    given: dict[str, object] = {
        "state": JobState.SUCCEEDED,
        "reason": Reason(ReasonCode.EXITED, {"exit_code": 0}),
        "attempts": (attempt,),
        "submitted_at": Instant(ended_at - 200),
        "by": Principal("user:anna"),
        **fields,
    }
    return Job(id=JobId(job), uid=f"uid-{job}", spec=spec, ended_at=Instant(ended_at), **given)  # type: ignore[arg-type]  # given by name


def held(job: int, since: int, until: int, **fields: object) -> Holding:
    given: dict[str, object] = {
        "attempt": 1,
        "rank": 0,
        "array": JobId(0),
        "tenant": TenantName("default"),
        "user": "anna",
        "node": NodeName("n1"),
        "gpus": (GpuUuid("g1"), GpuUuid("g2")),
        "cpus": 3,
        "position": Position(1),
        **fields,
    }
    return Holding(job=JobId(job), since=Instant(since), until=Instant(until), **given)  # type: ignore[arg-type]  # given by name


def offer(node: str, at_ms: int, gpus: int, position: int = 1) -> CapacityChange:
    return CapacityChange(node=NodeName(node), at=Instant(at_ms), gpus=gpus, position=Position(position))


def query(since: int = 0, until: int = 10_000, by: UsageBy | None = None, **fields: object) -> UsageQuery:
    given = {"through": END, **fields}
    return UsageQuery(since=Instant(since), until=Instant(until), by=by, **given)  # type: ignore[arg-type]  # given by name


def batch(position: int, *jobs: Job, **fields: object) -> HistoryBatch:
    return HistoryBatch(mark=at(position), jobs=[(Position(position), job) for job in jobs], **fields)  # type: ignore[arg-type]  # given by name


async def all_jobs(history: History) -> list[Job]:
    return await history.jobs(await history.ids(None, ALL, 10_000))


FOUR = ArraySpec(indexes=((0, 3, 1),))
SOME_JOBS = (
    ended(1, 1_000, labels={"team": "nlp"}),
    ended(
        2, 2_000, tenant=TenantName("vision"), state=JobState.FAILED, name="train", labels={"team": "cv", "x.y/Z": ""}
    ),
    ended(3, 1_500, job_class=JobClass.ONLINE, user="bob", state=JobState.CANCELLED, attempts=()),
    ended(
        4, 9_000, array=ArraySpec(indexes=((0, 3, 1),)), attempts=(), members=Members(lazy=(), waiting=0), name="train"
    ),
    ended(5, 8_000, array=FOUR, array_of=JobId(4), array_index=0, name="train"),
    ended(
        9,
        5_000,
        array=ArraySpec(indexes=((0, 9, 1),)),
        state=JobState.CANCELLED,
        attempts=(),
        members=Members(
            lazy=(), waiting=0, cancelled=(CancelledMembers(indexes=((0, 9, 1),), at=Instant(5_000), by="user:anna"),)
        ),
    ),
)
AMONG = st.sampled_from([None, frozenset(), frozenset({"vision", "nobody"}), frozenset({"default", "vision"})])
FILTERS = st.builds(
    JobFilter,
    states=st.lists(st.sampled_from(list(JobState)), max_size=3, unique=True).map(tuple),
    tenant=st.sampled_from(["", "default", "vision"]),
    job_class=st.sampled_from([None, *JobClass]),
    user=st.sampled_from(["", "anna", "bob"]),
    name=st.sampled_from(["", "train", "j", "t*n", "T*", "?", "[a-z]*", "tr%", "t_ain"]),
    labels=st.sampled_from(
        [
            "",
            "team",
            "!team",
            "team=nlp",
            "team!=nlp",
            "team in (nlp,cv)",
            "team notin (cv,x)",
            "tea",
            "x.y/Z=",
            "team=n",
        ]
    ).map(parse_selector),
    array=st.sampled_from([0, 4, 9]).map(JobId),
    since=st.sampled_from([0, 1_000, 1_500, 1_501, 9_001]).map(Instant),
    until=st.sampled_from([0, 800, 801, 1_800, 9_000]).map(Instant),
    members=st.booleans(),
    among=AMONG,
)
HOLDINGS = (
    held(1, 0, 1_000),
    held(2, 500, 1_500, tenant=TenantName("vision"), node=NodeName("n2"), position=Position(2)),
    held(2, 1_500, 2_500, attempt=2, tenant=TenantName("vision"), node=NodeName("n1"), position=Position(3)),
    held(3, 0, 4_000, user="bob", gpus=(), position=Position(4)),
    held(6, 100, 200, array=JobId(5), position=Position(5)),
    held(7, 100, 300, array=JobId(5), rank=1, position=Position(6)),
)
SPAN_ENDS = st.sampled_from([0, 1, 150, 500, 1_000, 1_500, 2_499, 5_000])


def summed(asked: UsageQuery, holdings: Sequence[Holding]) -> list[UsageSum]:
    found: dict[str, UsageSum] = {}
    for key in sorted({asked.key(each) for each in holdings if asked.counts(each)}):
        mine = [each for each in holdings if asked.counts(each) and asked.key(each) == key]
        lengths = [overlap_ms(each, asked.since, asked.until) for each in mine]
        found[key] = UsageSum(
            key=key,
            jobs=len({each.job for each in mine}),
            gpu_ms=sum(ms * len(each.gpus) for ms, each in zip(lengths, mine, strict=True)),
            cpu_ms=sum(ms * each.cpus for ms, each in zip(lengths, mine, strict=True)),
        )
    return sorted(found.values(), key=lambda line: (-line.gpu_ms, -line.cpu_ms, line.key))


class HistoryContract:
    @pytest.fixture
    def store(self) -> HistoryStore:
        raise NotImplementedError("the implementation under test")

    async def test_an_empty_store_has_no_mark_and_nothing_to_tell(self, store: HistoryStore) -> None:
        history = store.history()
        assert await history.open() == HistoryMark()
        assert await all_jobs(history) == []
        assert await history.usage(query(), 10) == []
        assert await history.offers(Instant(0), Instant(9)) == []
        assert await history.held([NodeInterval(NodeName("n1"), Instant(0), Instant(9))], END) == 0
        assert await history.trim(Instant(9), 1) == 0
        await history.close()

    async def test_h1_what_was_recorded_is_there_for_the_next_process_with_its_mark(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            await history.record(batch(7, *SOME_JOBS, holdings=HOLDINGS, offers=[offer("n1", 5, 8)]))
        history = store.history()
        assert await history.open() == at(7)
        assert await all_jobs(history) == sorted(SOME_JOBS, key=lambda job: -job.id)
        assert await history.usage(query(), 10) == summed(query(), HOLDINGS)
        assert await history.offers(Instant(0), Instant(9)) == [offer("n1", 5, 8)]
        await history.close()

    async def test_h2_the_same_batch_again_changes_nothing(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            for _ in range(2):
                await history.record(batch(7, *SOME_JOBS, holdings=HOLDINGS, offers=[offer("n1", 5, 8)]))
            assert await all_jobs(history) == sorted(SOME_JOBS, key=lambda job: -job.id)
            assert await history.usage(query(), 10) == summed(query(), HOLDINGS)
            assert await history.offers(Instant(0), Instant(9)) == [offer("n1", 5, 8)]

    async def test_h2_a_job_that_ended_anew_replaces_what_it_was(self, store: HistoryStore) -> None:
        again = ended(1, 3_000, state=JobState.FAILED, name="other")
        async with opened(store) as history:
            await history.record(batch(1, ended(1, 1_000)))
            await history.record(batch(2, again))
            assert await all_jobs(history) == [again]
            assert await history.ids(JobFilter(states=(JobState.SUCCEEDED,)), ALL, 9) == []
            assert await history.ids(JobFilter(name="other"), ALL, 9) == [1]

    async def test_h3_a_broken_store_says_so_and_works_again_once_it_is_mended(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            await history.record(batch(1, ended(1)))
            store.break_it()
            for attempt in (history.record(batch(2, ended(2))), history.open()):
                with pytest.raises(HistoryFailed):
                    await attempt
            with pytest.raises(HistoryFailed):
                await history.ids(None, ALL, 9)
            store.mend_it()
            assert await history.open() == at(1)
            await history.record(batch(2, ended(2)))
            assert await history.ids(None, ALL, 9) == [2, 1]

    async def test_a_history_that_was_never_opened_fails_as_a_broken_one_does(self, store: HistoryStore) -> None:
        history = store.history()
        with pytest.raises(HistoryFailed):
            await history.record(batch(1))
        with pytest.raises(HistoryFailed):
            await history.ids(None, ALL, 1)
        await history.close()

    async def test_a_rewind_drops_what_came_after_the_mark(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            await history.record(batch(1, ended(1), holdings=[held(1, 0, 9)], offers=[offer("n1", 1, 8)]))
            late = [held(2, 0, 9, position=Position(2))]
            await history.record(batch(2, ended(2), holdings=late, offers=[offer("n1", 5, 0, 2)]))
            await history.rewind(at(1))
            assert [job.id for job in await all_jobs(history)] == [1]
            assert await history.usage(query(), 9) == summed(query(), [held(1, 0, 9)])
            assert await history.offers(Instant(0), Instant(99)) == [offer("n1", 1, 8)]

    async def test_after_a_rewind_the_mark_says_whether_ends_may_be_missing_before_it(
        self, store: HistoryStore
    ) -> None:
        """A job that ended anew had replaced what it was."""
        async with opened(store) as history:
            await history.record(batch(1, ended(1), ended(2)))
            await history.record(batch(2))
            assert await history.rewind(at(1)) == at(1)
            await history.record(batch(2, ended(2, 2_000)))
            assert await history.rewind(at(1)) == at(0)
            assert [job.id for job in await all_jobs(history)] == [1]
            assert await history.open() == at(0)

    async def test_a_filter_means_what_the_brain_says(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            await history.record(batch(7, *SOME_JOBS))
            for wanted in _drawn(FILTERS, 80):
                matching = [job.id for job in SOME_JOBS if wanted.matches(job, job.state)]
                assert await history.ids(wanted, ALL, 10_000) == sorted(matching, reverse=True), wanted

    async def test_pages_follow_each_other_by_id(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            await history.record(batch(7, *(ended(job) for job in range(1, 8))))
            assert await history.ids(None, ALL, 3) == [7, 6, 5]
            assert await history.ids(None, JobId(5), 3) == [4, 3, 2]
            assert await history.ids(None, JobId(2), 3) == [1]

    async def test_jobs_are_answered_newest_first_and_those_that_are_not_there_left_out(
        self, store: HistoryStore
    ) -> None:
        async with opened(store) as history:
            await history.record(batch(7, *(ended(job) for job in range(1, 1_203))))
            wanted = [JobId(job) for job in (5, 2, 99_999, 1_202, 5)]
            assert [job.id for job in await history.jobs(wanted)] == [1_202, 5, 2]
            assert len(await history.jobs([JobId(job) for job in range(1, 2_000)])) == 1_202

    async def test_only_arrays_with_members_that_never_became_records_are_told_apart(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            await history.record(batch(7, *SOME_JOBS))
            assert [job.id for job in await history.arrays(ALL, 9)] == [9]
            assert await history.arrays(JobId(9), 9) == []

    async def test_sums_are_those_of_the_brain_for_every_span_and_key(self, store: HistoryStore) -> None:
        asked = st.builds(
            query,
            since=SPAN_ENDS,
            until=SPAN_ENDS,
            by=st.sampled_from([None, *UsageBy]),
            tenant=st.sampled_from(["", "vision", "nobody"]),
            user=st.sampled_from(["", "anna", "bob"]),
            through=st.sampled_from([0, 3, 6]).map(Position),
            among=AMONG,
        )
        async with opened(store) as history:
            await history.record(batch(7, holdings=HOLDINGS))
            for one in _drawn(asked, 80):
                assert await history.usage(one, 100) == summed(one, HOLDINGS), one

    async def test_the_largest_sums_come_first_and_those_of_certain_keys_can_be_had(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            await history.record(batch(7, holdings=HOLDINGS))
            by_job = query(by=UsageBy.JOB)
            assert [line.key for line in await history.usage(by_job, 2)] == ["2", "1"]
            assert [line.key for line in await history.usage(by_job, 1, ["5", "8"])] == ["5"]
            assert await history.usage(by_job, 1, []) == []

    async def test_a_job_is_found_under_each_key_that_it_is_charged_to(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            await history.record(batch(7, holdings=HOLDINGS))
            wanted = [JobId(2), JobId(6), JobId(8)]
            assert sorted(await history.charged(query(by=UsageBy.NODE), wanted)) == [("n1", 2), ("n1", 6), ("n2", 2)]
            assert await history.charged(query(until=100, by=UsageBy.NODE), wanted) == []

    async def test_offers_of_a_span_come_with_the_newest_before_it(self, store: HistoryStore) -> None:
        made = [offer("n1", 10, 8), offer("n2", 20, 4), offer("n1", 30, 0), offer("n1", 50, 8), offer("n3", 60, 2)]
        async with opened(store) as history:
            await history.record(batch(7, offers=made))
            assert await history.offers(Instant(40), Instant(60)) == [made[1], made[2], made[3]]
            assert await history.offers(Instant(30), Instant(61)) == [made[1], made[2], made[3], made[4]]

    async def test_a_later_offer_of_the_same_moment_replaces_the_earlier_one(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            await history.record(batch(7, offers=[offer("n1", 10, 8), offer("n1", 10, 0)]))
            assert await history.offers(Instant(0), Instant(60)) == [offer("n1", 10, 0)]

    async def test_what_was_held_on_a_node_for_a_while_is_summed(self, store: HistoryStore) -> None:
        spans = [
            NodeInterval(NodeName("n1"), Instant(100), Instant(1_600)),
            NodeInterval(NodeName("n2"), Instant(0), Instant(600)),
        ]
        async with opened(store) as history:
            await history.record(batch(7, holdings=HOLDINGS))
            assert await history.held(spans, END) == gpu_ms_within(HOLDINGS, spans)
            assert await history.held(spans, Position(1)) == gpu_ms_within(HOLDINGS[:1], spans)
            assert await history.held([], END) == 0

    async def test_what_is_too_old_goes_from_every_table(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            holdings = [held(1, 0, 1_000), held(2, 900, 2_000)]
            offers = [offer("n1", 100, 8), offer("n1", 900, 4), offer("n2", 100, 8), offer("n2", 950, 0)]
            await history.record(batch(7, ended(1, 1_000), ended(2, 2_000), holdings=holdings, offers=offers))
            assert await history.trim(Instant(1_001), 100) == 1
            assert [job.id for job in await all_jobs(history)] == [2]
            assert await history.usage(query(), 9) == summed(query(), holdings[1:])
            assert await history.offers(Instant(1_001), Instant(1_002)) == [offers[1]]
            assert await history.offers(Instant(0), Instant(1_002)) == [offers[1]]

    async def test_beyond_the_bound_the_oldest_go(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            for start in range(1, 2_001, 500):
                await history.record(batch(start, *(ended(job, 5_000 - job) for job in range(start, start + 500))))
            assert await history.trim(Instant(0), 1_234) == 766
            assert await history.ids(None, ALL, 10_000) == list(range(1_234, 0, -1))

    async def test_a_text_is_kept_as_it_is(self, store: HistoryStore) -> None:
        job = ended(1, name="naïve \x00 'quoted' %s ? \N{PILE OF POO}", tenant=TenantName("a,b"))
        async with opened(store) as history:
            await history.record(batch(1, job, holdings=[held(1, 0, 9, user="o'neil")]))
            assert await all_jobs(history) == [job]
            assert await history.ids(JobFilter(name=job.spec.name, tenant="a,b"), ALL, 9) == [1]
            assert [line.key for line in await history.usage(query(by=UsageBy.USER), 9)] == ["o'neil"]

    async def test_a_closed_history_may_be_closed_again(self, store: HistoryStore) -> None:
        history = store.history()
        await history.open()
        await history.close()
        await history.close()


def _drawn(strategy: st.SearchStrategy[msgspec.Struct], count: int) -> list[msgspec.Struct]:
    """Examples of a strategy, drawn outside of the event loop's tests."""
    found: list[msgspec.Struct] = []

    @settings(max_examples=count, database=None, derandomize=True, deadline=None)
    @given(strategy)
    def draw(example: msgspec.Struct) -> None:
        found.append(example)

    draw()
    return found
