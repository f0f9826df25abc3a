"""What must every History do with the audit trail? Inherit this beside `HistoryContract`: the rules are the port's.

What a query means is compared with `AuditQuery.matches`, the brain's own words for it.
"""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.brain.domain.array import JobRef
from stoker.brain.domain.audit import NUMBERS, AuditQuery, AuditRow
from stoker.brain.domain.ids import JobId, Position, Principal, TenantName
from stoker.brain.domain.units import Instant
from stoker.ports import HistoryBatch, HistoryFailed
from tests.contracts.history import HistoryStore, at, opened

EVERY = AuditQuery()


def row(position: int, at_ms: int | None = None, **fields: object) -> AuditRow:
    given_fields: dict[str, object] = {"by": Principal("user:anna"), "action": "cancel", "job": JobId(1), **fields}
    when = Instant(position * 10 if at_ms is None else at_ms)
    return AuditRow(position=Position(position), at=when, **given_fields)  # type: ignore[arg-type]  # given by name


def told(position: int, *rows: AuditRow) -> HistoryBatch:
    return HistoryBatch(mark=at(position), audit=rows)


def refused(position: int, number: int, **fields: object) -> AuditRow:
    return row(position, number=number, outcome="job_ended", **fields)


ROWS = (
    row(1, action="submit", job=JobId(1), count=1, tenant=TenantName("vision")),
    row(2, action="submit", job=JobId(2), last_job=JobId(4), count=3),
    row(3, action="submit", job=JobId(5), count=1, by=Principal("user:bob")),
    row(4, job=JobId(5), members="3", count=1),
    row(4, number=1, job=JobId(5), members="0-2,7", count=4, outcome="unchanged"),
    refused(4, 2, at_ms=40, job=JobId(3)),
    row(5, at_ms=40, job=JobId(3), tenant=TenantName("vision")),
    row(6, job=JobId(5), members="~0-9", count=5),
    row(7, job=JobId(5), by=Principal("token:k3j5h7x2")),
    row(8, action="node_drain", job=JobId(0), target="n1", details="fans 'quoted' \x00 %s ? \N{PILE OF POO}"),
)
MEMBERS = st.sampled_from([None, ((3, 3, 1),), ((7, 7, 1),), ((9, 9, 1),)])
QUERIES = st.builds(
    AuditQuery,
    since=st.sampled_from([0, 1, 20, 40, 41, 81]).map(Instant),
    until=st.sampled_from([0, 1, 20, 40, 41, 81]).map(Instant),
    by=st.sampled_from(["", "user:anna", "user:bob", "token:k3j5h7x2", "nobody"]),
    action=st.sampled_from(["", "submit", "cancel", "node_drain"]),
    outcome=st.sampled_from(["", "ok", "unchanged", "refused", "job_ended"]),
    tenant=st.sampled_from(["", "vision", "default"]),
    job=st.one_of(st.none(), st.builds(JobRef, st.integers(1, 6).map(JobId), MEMBERS)),
)


class AuditContract:
    @pytest.fixture
    def store(self) -> HistoryStore:
        raise NotImplementedError("the implementation under test")

    async def test_rows_are_answered_newest_first_as_they_were(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            assert await history.audit(EVERY, 0, 9) == []
            await history.record(told(8, *ROWS))
            assert await history.audit(EVERY, 0, 100) == list(reversed(ROWS))

    async def test_h2_the_same_row_again_changes_nothing_and_one_that_counts_more_replaces_it(
        self, store: HistoryStore
    ) -> None:
        once = row(2, number=1, outcome="token_unknown", times=1)
        async with opened(store) as history:
            await history.record(told(2, row(1), once))
            await history.record(told(2, row(1), msgspec.structs.replace(once, times=7)))
            assert [each.times for each in await history.audit(EVERY, 0, 9)] == [7, 1]

    async def test_h1_rows_are_there_for_the_next_process(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            await history.record(told(8, *ROWS))
        async with opened(store) as history:
            assert await history.audit(EVERY, 0, 100) == list(reversed(ROWS))

    async def test_h3_a_broken_store_says_that_it_cannot_be_asked(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            store.break_it()
            for attempt in (history.record(told(1, row(1))), history.audit(EVERY, 0, 9)):
                with pytest.raises(HistoryFailed):
                    await attempt

    async def test_a_query_means_what_the_brain_says(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            await history.record(told(8, *ROWS))
            for query in _drawn(200):
                matching = [each for each in reversed(ROWS) if query.matches(each)]
                assert await history.audit(query, 0, 100) == matching, query

    async def test_a_span_of_time_has_every_row_of_it_though_one_that_lags_keys_its_own_by_an_older_position(
        self, store: HistoryStore
    ) -> None:
        late = refused(5, 1, at_ms=90)
        async with opened(store) as history:
            await history.record(told(9, row(9, at_ms=50), late))
            for since, until, found in ((40, 99, [50, 90]), (60, 99, [90]), (40, 60, [50]), (91, 99, [])):
                query = AuditQuery(since=Instant(since), until=Instant(until))
                assert sorted(each.at for each in await history.audit(query, 0, 9)) == found

    async def test_pages_follow_each_other_by_key(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            await history.record(told(8, *ROWS))
            found: list[AuditRow] = []
            while page := await history.audit(EVERY, found[-1].key if found else 0, 3):
                assert len(page) <= 3
                found += page
            assert found == list(reversed(ROWS))

    async def test_a_page_of_one_member_passes_over_rows_about_others(self, store: HistoryStore) -> None:
        rows = [row(at_ms, members="0-2,7" if at_ms % 40 else "3-5,9", count=4) for at_ms in range(1, 401)]
        member = AuditQuery(job=JobRef(JobId(1), ((4, 4, 1),)))
        async with opened(store) as history:
            await history.record(told(400, *rows))
            assert [each.position for each in await history.audit(member, 0, 5)] == [400, 360, 320, 280, 240]

    async def test_a_rewind_drops_rows_after_the_mark(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            await history.record(told(8, *ROWS))
            await history.rewind(at(4))
            assert await history.audit(EVERY, 0, 100) == list(reversed(ROWS[:6]))

    async def test_rows_too_old_go(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            await history.record(told(8, *ROWS))
            assert await history.trim_audit(Instant(40), 1_000) == (3, {})
            assert await history.audit(EVERY, 0, 100) == list(reversed(ROWS[3:]))
            assert await history.trim_audit(Instant(40), 1_000) == (0, {})

    async def test_beyond_the_bound_the_oldest_rows_go(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            await history.record(told(1_500, *map(row, range(1, 1_501))))
            assert await history.trim_audit(Instant(0), 700) == (800, {"user:anna": 800})
            assert [each.position for each in await history.audit(EVERY, 0, 2_000)] == list(range(1_500, 800, -1))

    async def test_whoever_is_refused_often_cannot_push_out_what_was_done(self, store: HistoryStore) -> None:
        done = [row(position) for position in range(1, 101)]
        noise = [refused(100, number) for number in range(1, 1_001)]
        async with opened(store) as history:
            await history.record(told(100, *done, *noise))
            assert (await history.trim_audit(Instant(0), 400)).rows == 900
            left = await history.audit(EVERY, 0, 2_000)
            assert left[100:] == done[::-1]
            assert left[:100] == noise[:-101:-1]

    async def test_whoever_submits_much_cannot_push_out_who_changed_the_cluster(self, store: HistoryStore) -> None:
        made = [row(position, action="token_create", job=JobId(0)) for position in range(1, 51)]
        jobs = [row(position, action="submit", job=JobId(position)) for position in range(51, 1_001)]
        async with opened(store) as history:
            await history.record(told(1_000, *made, *jobs))
            assert (await history.trim_audit(Instant(0), 100)).rows == 900
            left = await history.audit(EVERY, 0, 2_000)
            assert left == [*jobs[:-51:-1], *made[::-1]]
            assert (await history.trim_audit(Instant(0), 20)).rows == 80
            assert await history.audit(EVERY, 0, 2_000) == made[:-21:-1]

    async def test_whoever_has_the_most_rows_loses_theirs_and_nobody_else_any(self, store: HistoryStore) -> None:
        few = [row(position, by=Principal("user:few")) for position in range(1, 51)]
        refusals = [refused(50, number, by=Principal("user:few")) for number in range(1, 21)]
        noise = [refused(50, number, by=Principal("user:mallory")) for number in range(21, 1_021)]
        jobs = [row(position, by=Principal("user:much")) for position in range(51, 1_051)]
        async with opened(store) as history:
            await history.record(told(1_050, *few, *refusals, *noise, *jobs))
            trimmed = await history.trim_audit(Instant(0), 400)
            assert trimmed.rows == 2_070 - 400
            assert trimmed.beyond == {"user:mallory": 1_000 - 80, "user:much": 1_000 - (400 - 70 - 80)}
            left = await history.audit(EVERY, 0, 2_000)
            assert [each for each in left if each.by == "user:few"] == [*refusals[::-1], *few[::-1]]
            assert [each for each in left if each.by == "user:much"] == jobs[:-251:-1]

    async def test_a_key_tells_the_position(self, store: HistoryStore) -> None:
        last = row(2**38, number=NUMBERS - 1, at_ms=5)
        async with opened(store) as history:
            await history.record(told(2**38, last))
            assert await history.audit(EVERY, 0, 9) == [last]
            assert await history.audit(EVERY, last.key, 9) == []


def _drawn(count: int) -> list[AuditQuery]:
    found: list[AuditQuery] = []

    @settings(max_examples=count, database=None, derandomize=True, deadline=None)
    @given(QUERIES)
    def draw(query: AuditQuery) -> None:
        found.append(query)

    draw()
    return found
