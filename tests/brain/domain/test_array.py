"""Which members does a text name, and how are they counted without being written out?"""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.domain import array
from stoker.brain.domain.array import JobRef, Spans, parse_array, parse_job_ref
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import JobId

indexes = st.lists(st.integers(0, 60), unique=True, min_size=1, max_size=40).map(sorted)


@pytest.mark.parametrize(
    ("text", "members", "most"),
    [
        ("0-3", [0, 1, 2, 3], 0),
        ("0-9%3", list(range(10)), 3),
        ("1,3,7", [1, 3, 7], 0),
        ("0-98:49", [0, 49, 98], 0),
        ("0-5:2", [0, 2, 4], 0),
        ("7", [7], 0),
        ("5,0-2", [0, 1, 2, 5], 0),
        ("0-8:4,2-6:4", [0, 2, 4, 6, 8], 0),
    ],
)
def test_a_spec_names_its_members_in_order(text: str, members: list[int], most: int) -> None:
    spec = parse_array(text)
    assert (list(array.indexes_of(spec.indexes)), spec.running_max, spec.count) == (members, most, len(members))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("5-1", "runs backwards"),
        ("1,1", "named twice"),
        ("0-9,5", "named twice"),
        ("", "neither an index nor a range"),
        ("a-b", "neither an index nor a range"),
        ("1-", "neither an index nor a range"),
        ("-1", "neither an index nor a range"),
        ("0-9%0", "above 0"),
        ("0-9%x", "above 0"),
        ("0-9:0", "step"),
        ("0-999999999", "above 99999999"),
        ("0-99999999:2,1-99999999:1", "overlap"),
        ("٣", "neither an index nor a range"),
        ("1," * 40_000, "longer than"),
    ],
)
def test_a_spec_that_names_no_members_is_refused_with_the_part_at_fault(text: str, why: str) -> None:
    with pytest.raises(StokerError) as fault:
        parse_array(text)
    assert fault.value.refusal.code == "bad_array"
    assert why in fault.value.refusal.message
    assert "0-9" in fault.value.refusal.hint


def test_a_reference_names_a_job_a_member_or_several() -> None:
    assert parse_job_ref("123") == JobRef(JobId(123))
    assert parse_job_ref("123_4") == JobRef(JobId(123), ((4, 4, 1),))
    assert parse_job_ref("123_[0-4,7]") == JobRef(JobId(123), ((0, 4, 1), (7, 7, 1)))
    assert [str(parse_job_ref(text)) for text in ("9", "9_0", "9_[1-3]")] == ["9", "9_0", "9_[1-3]"]


@pytest.mark.parametrize("text", ["", "x", "1_", "1_a", "1_[", "1_[]", "_1", "0_1", "1_2_3", "1__2", "-1", "1_-2"])
def test_what_names_no_job_is_refused(text: str) -> None:
    with pytest.raises(StokerError) as fault:
        parse_job_ref(text)
    assert fault.value.refusal.code in ("bad_job_id", "bad_array")


@given(indexes, st.integers(0, 60))
def test_taking_one_out_leaves_the_others(members: list[int], index: int) -> None:
    spans = array.spans_of(members)
    left = list(array.indexes_of(array.without(spans, index)))
    assert left == [each for each in members if each != index]
    assert array.contains(spans, index) is (index in members)


@given(indexes, indexes)
def test_common_and_difference_are_those_of_sets(one: list[int], other: list[int]) -> None:
    a, b = array.spans_of(one), array.spans_of(other)
    assert list(array.indexes_of(array.common(a, b))) == sorted(set(one) & set(other))
    assert list(array.indexes_of(array.difference(a, b))) == sorted(set(one) - set(other))


stepped = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 6)), max_size=4)
"""Gap before it, further members, step."""


def spans_with(parts: list[tuple[int, int, int]]) -> array.Spans:
    spans: list[array.Span] = []
    at = 0
    for gap, more, step in parts:
        spans.append((at + gap, at + gap + more * step, step))
        at = spans[-1][1] + 1
    return tuple(spans)


@given(stepped, stepped)
def test_common_and_difference_are_those_of_sets_for_every_step(
    one: list[tuple[int, int, int]], other: list[tuple[int, int, int]]
) -> None:
    a, b = spans_with(one), spans_with(other)
    in_a, in_b = set(array.indexes_of(a)), set(array.indexes_of(b))
    for found, wanted in ((array.common(a, b), in_a & in_b), (array.difference(a, b), in_a - in_b)):
        assert list(array.indexes_of(found)) == sorted(wanted)
        assert all(first <= last for first, last, _ in found), "S1"
        assert all(before[1] < after[0] for before, after in pairwise(found)), "S2"


def test_half_of_a_large_array_is_a_matter_of_spans_and_not_of_indexes() -> None:
    whole = parse_array("0-99999999").indexes
    assert array.difference(whole, ((0, 49_999_999, 1),)) == ((50_000_000, 99_999_999, 1),)
    assert array.difference(whole, ((0, 99_999_998, 2),)) == ((1, 99_999_999, 2),)
    assert array.common(((1, 99_999_999, 2),), ((0, 99_999_999, 3),)) == ((3, 99_999_999, 6),)


@given(indexes)
def test_text_is_read_back_as_the_same_members(members: list[int]) -> None:
    spec = array.ArraySpec(indexes=array.spans_of(members), running_max=2)
    assert parse_array(array.array_text(spec)) == spec


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(1, 5)), min_size=1, max_size=4))
def test_ids_of_members_follow_the_arrays_and_lead_back_to_their_index(spans: list[tuple[int, int, int]]) -> None:
    text = ",".join(f"{min(a, b)}-{max(a, b)}:{step}" for a, b, step in spans)
    try:
        spec = parse_array(text)
    except StokerError:
        return  # two of them share an index
    ids = [array.member_id(JobId(10), spec, index) for index in array.indexes_of(spec.indexes)]
    assert ids == list(range(11, 11 + spec.count))
    assert [array.index_of(JobId(10), spec, each) for each in ids] == list(array.indexes_of(spec.indexes))
    assert spec.count == len(ids)
    for left in (spec.indexes, array.spans_of(list(array.indexes_of(spec.indexes))[1::2])):
        each = [array.member_id(JobId(10), spec, index) for index in array.indexes_of(left)]
        assert list(array.member_ids(JobId(10), spec, left)) == each
    assert array.ids_taken(spec) == 1 + spec.count


def test_a_hundred_thousand_members_are_one_span() -> None:
    spans: Spans = parse_array("0-99999").indexes
    assert spans == ((0, 99_999, 1),)
    assert array.without(spans, 0) == ((1, 99_999, 1),)
