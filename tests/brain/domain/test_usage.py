"""Sums of what was held and offered: U1 to U4 of `brain.domain.usage`, and F1, F2 of `brain.domain.job_filter`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.brain.domain.array import Members, parse_array
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName, Position, TenantName
from stoker.brain.domain.job import Job
from stoker.brain.domain.job_filter import JobFilter, narrows
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.domain.usage import (
    CapacityChange,
    Holding,
    NodeInterval,
    UsageBy,
    UsageQuery,
    UsageSum,
    gpu_ms_within,
    merged,
    offered,
    overlap_ms,
)
from tests.builders import job as build_job

N1, N2 = NodeName("n1"), NodeName("n2")


def holding(since: int, until: int, **fields: object) -> Holding:
    given: dict[str, object] = {
        "job": JobId(7),
        "attempt": 1,
        "rank": 0,
        "array": JobId(0),
        "tenant": TenantName("vision"),
        "user": "anna",
        "node": N1,
        "gpus": (GpuUuid("a"), GpuUuid("b")),
        "cpus": 4,
        "position": Position(5),
        **fields,
    }
    return Holding(since=Instant(since), until=Instant(until), **given)  # type: ignore[arg-type]  # given by name


def asked(since: int, until: int, **fields: object) -> UsageQuery:
    given: dict[str, object] = {"by": None, "through": Position(9), **fields}
    return UsageQuery(since=Instant(since), until=Instant(until), **given)  # type: ignore[arg-type]  # given by name


@pytest.mark.parametrize(
    ("since", "until", "ms"), [(0, 100, 50), (20, 30, 10), (0, 10, 0), (60, 99, 0), (55, 99, 5), (0, 11, 1)]
)
def test_u3_a_span_holds_its_beginning_and_not_its_end(since: int, until: int, ms: int) -> None:
    one = holding(10, 60)
    assert overlap_ms(one, Instant(since), Instant(until)) == ms
    assert asked(since, until).counts(one) == (ms > 0)


@given(st.integers(0, 100), st.integers(1, 100), st.lists(st.integers(0, 200), min_size=2, max_size=6, unique=True))
def test_u3_spans_that_meet_add_up_to_the_whole(begin: int, length: int, cuts: list[int]) -> None:
    one, ends = holding(begin, begin + length), [Instant(cut) for cut in sorted(cuts)]
    parts = [overlap_ms(one, ends[at], ends[at + 1]) for at in range(len(ends) - 1)]
    assert sum(parts) == overlap_ms(one, ends[0], ends[-1])


def test_u2_a_member_is_charged_to_its_array_and_each_line_has_its_key() -> None:
    member = holding(0, 9, array=JobId(3))
    keys = {by: asked(0, 9, by=by).key(member) for by in UsageBy}
    assert keys == {UsageBy.TENANT: "vision", UsageBy.USER: "anna", UsageBy.JOB: "3", UsageBy.NODE: "n1"}
    assert asked(0, 9).key(member) == ""
    assert asked(0, 9, by=UsageBy.JOB).key(holding(0, 9)) == "7"


def test_a_query_counts_only_what_it_was_narrowed_to_and_what_ended_before_its_position() -> None:
    one = holding(0, 9)
    assert asked(0, 9, tenant="vision", user="anna").counts(one)
    assert not asked(0, 9, tenant="speech").counts(one)
    assert not asked(0, 9, user="bob").counts(one)
    assert not asked(0, 9, through=Position(4)).counts(one)


def test_u4_an_offer_holds_until_the_next_and_before_the_first_there_was_nothing() -> None:
    steps = [
        CapacityChange(node=N1, at=Instant(20), gpus=8, position=Position(1)),
        CapacityChange(node=N2, at=Instant(30), gpus=2, position=Position(2)),
        CapacityChange(node=N1, at=Instant(50), gpus=0, position=Position(3)),
        CapacityChange(node=N1, at=Instant(70), gpus=4, position=Position(4)),
    ]
    total, closed = offered(steps, Instant(10), Instant(100))
    assert total == 8 * 30 + 4 * 30 + 2 * 70
    assert closed == [
        NodeInterval(N1, Instant(10), Instant(20)),
        NodeInterval(N1, Instant(50), Instant(70)),
        NodeInterval(N2, Instant(10), Instant(30)),
    ]
    assert offered(steps, Instant(60), Instant(65)) == (2 * 5, [NodeInterval(N1, Instant(60), Instant(65))])
    assert offered([], Instant(0), Instant(9)) == (0, [])


def test_what_was_held_in_spans_is_counted_on_its_own_node_only() -> None:
    held = [holding(0, 50), holding(40, 90, node=N2, gpus=(GpuUuid("c"),))]
    spans = [
        NodeInterval(N1, Instant(10), Instant(20)),
        NodeInterval(N1, Instant(45), Instant(60)),
        NodeInterval(N2, Instant(0), Instant(50)),
    ]
    assert gpu_ms_within(held, spans) == 2 * 10 + 2 * 5 + 1 * 10


def test_lines_are_merged_by_key_and_the_largest_comes_first() -> None:
    stored = [UsageSum(key="b", jobs=1, gpu_ms=5, cpu_ms=9), UsageSum(key="a", jobs=1, gpu_ms=5, cpu_ms=9)]
    more = {"c": UsageSum(key="c", jobs=2, gpu_ms=5, cpu_ms=10), "a": UsageSum(key="a", jobs=1, gpu_ms=1, cpu_ms=0)}
    assert [(line.key, line.jobs, line.gpu_ms) for line in merged(stored, more)] == [
        ("a", 2, 6),
        ("c", 2, 5),
        ("b", 1, 5),
    ]


def submitted(at: int, ended_at: int = NEVER, **fields: object) -> Job:
    return replace(build_job(1), submitted_at=Instant(at), ended_at=Instant(ended_at), **fields)


def test_f1_a_span_holds_what_was_submitted_before_its_end_and_had_not_ended_before_its_beginning() -> None:
    wanted = JobFilter(since=Instant(100), until=Instant(200))
    inside = [submitted(50), submitted(50, 100), submitted(150, 160), submitted(199), submitted(50, 900)]
    outside = [submitted(50, 99), submitted(200), submitted(201, 300)]
    assert all(wanted.matches(job, job.state) for job in inside)
    assert not any(wanted.matches(job, job.state) for job in outside)


def test_f2_an_array_or_its_members_are_rows_and_never_both() -> None:
    spec = replace(build_job(1).spec, array=parse_array("0-2"))
    array = replace(build_job(1), spec=spec, members=Members(lazy=((0, 2, 1),), waiting=3))
    member = replace(build_job(2), spec=spec, array_of=JobId(1), array_index=0)
    rows = [
        [JobFilter(members=members).is_row(job) for job in (array, member, build_job(9))] for members in (False, True)
    ]
    assert rows == [[True, False, True], [False, True, True]]


def test_a_filter_says_whether_there_is_anything_to_find_among_the_ended_and_whether_states_are_all_it_asks_for() -> (
    None
):
    assert JobFilter().may_have_ended
    assert JobFilter(states=(JobState.PENDING, JobState.FAILED)).may_have_ended
    assert not JobFilter(states=(JobState.PENDING, JobState.HELD)).may_have_ended
    assert not narrows(JobFilter(states=(JobState.HELD,)))
    assert narrows(JobFilter(user="anna"))
    assert narrows(JobFilter(members=True))
