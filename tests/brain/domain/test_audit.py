"""How the rows of the audit trail are shared where there are too many of them."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.domain.audit import surplus_of
from stoker.brain.domain.ids import Principal

ROWS = st.dictionaries(st.sampled_from("abcdef").map(Principal), st.integers(1, 60), max_size=6)


@given(ROWS, st.integers(0, 100))
def test_as_many_stay_as_there_is_room_for_and_who_loses_any_keeps_no_fewer_than_anybody_else(
    rows: dict[Principal, int], most: int
) -> None:
    surplus = surplus_of(rows, most)
    left = {by: count - surplus.get(by, 0) for by, count in rows.items()}
    assert sum(left.values()) == min(most, sum(rows.values()))
    assert all(count > 0 for count in surplus.values())
    for by in surplus:
        assert left[by] >= max(left.values()) - 1


def test_who_has_few_loses_none_however_much_others_have() -> None:
    rows = {Principal("few"): 10, Principal("many"): 1_000, Principal("more"): 5_000}
    assert surplus_of(rows, 100) == {"many": 955, "more": 4_955}
    assert surplus_of(rows, 10_000) == {}
