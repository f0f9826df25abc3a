"""Rules W1 to W5 of node selection, and the grammar of Kubernetes' label selectors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.label import Taint, labels_of, taint_text, taints_of
from stoker.brain.domain.where import (
    ANYWHERE,
    SELECTOR_MAX,
    Operator,
    Requirement,
    Toleration,
    Where,
    admits,
    both,
    make_where,
    names_and_labels_admit,
    parse_selector,
    parse_toleration,
    selector_text,
    selects,
    toleration_text,
    where_text,
    why_not,
)
from tests.builders import node

IN, NOT_IN, EXISTS, ABSENT = Operator.IN, Operator.NOT_IN, Operator.EXISTS, Operator.ABSENT
N1 = NodeName("n1")


def _admits(selector: str, **labels: str) -> bool:
    return admits(make_where(selector), N1, labels, ())


# -- the grammar ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("zone=a", Requirement("zone", IN, ("a",))),
        ("zone==a", Requirement("zone", IN, ("a",))),
        ("zone!=a", Requirement("zone", NOT_IN, ("a",))),
        ("zone in (b, a,b)", Requirement("zone", IN, ("a", "b"))),
        ("zone notin(a)", Requirement("zone", NOT_IN, ("a",))),
        ("zone", Requirement("zone", EXISTS)),
        ("!zone", Requirement("zone", ABSENT)),
        ("! zone", Requirement("zone", ABSENT)),
        (" zone = a ", Requirement("zone", IN, ("a",))),
        ("example.com/zone=a", Requirement("example.com/zone", IN, ("a",))),
        ("zone=", Requirement("zone", IN, ("",))),
        ("zone!=", Requirement("zone", NOT_IN, ("",))),
        ("zone in (a,)", Requirement("zone", IN, ("", "a"))),
        ("zone in (,)", Requirement("zone", IN, ("",))),
        ("in in (in,notin)", Requirement("in", IN, ("in", "notin"))),
        ("notin", Requirement("notin", EXISTS)),
        ("\tzone\n=\ra", Requirement("zone", IN, ("a",))),
    ],
)
def test_each_form_of_a_condition_is_read_as_kubernetes_reads_it(text: str, found: Requirement) -> None:
    assert parse_selector(text) == (found,)


def test_commas_join_conditions_and_an_empty_selector_has_none() -> None:
    assert parse_selector("a=1,b,c=") == (
        Requirement("a", IN, ("1",)),
        Requirement("b", EXISTS),
        Requirement("c", IN, ("",)),
    )
    assert parse_selector("") == parse_selector("  ") == ()


@pytest.mark.parametrize(
    ("text", "column", "why"),
    [
        ("zone=a,,b", 8, "',' stands where the key of a label is wanted"),
        ("zone=a,", 8, "the end stands where the key of a label is wanted"),
        (",zone", 1, "',' stands where the key"),
        ("zone a", 6, "'a' stands where `=`, `!=`, `in`, `notin` or a comma is wanted"),
        ("zone IN (a)", 6, "'IN' stands where"),
        ("zone=a b", 8, "'b' stands where a comma between conditions is wanted"),
        ("zone in a", 9, "'a' stands where `(` and values is wanted"),
        ("zone in ()", 10, "')' stands where a value between the brackets is wanted"),
        ("zone in (a", 11, "the end stands where a comma or `)` is wanted"),
        ("zone in (a b)", 12, "'b' stands where a comma or `)` is wanted"),
        ("zone in (a))", 12, "')' stands where a comma between conditions"),
        ("zone in", 8, "the end stands where `(`"),
        ("cards>3", 6, "'>' compares numbers, which selectors can't do here"),
        ("!zone=a", 6, "'=' stands where a comma between conditions is wanted"),
        ("!!zone", 2, "'!' stands where the key"),
        ("!", 2, "the end stands where the key"),
        ("=a", 1, "'=' stands where the key"),
        ("zone=a=b", 7, "'=' stands where a comma between conditions is wanted"),
        ("zone=!a", 6, "'!' stands where a value is wanted"),
        ("zone=a/b", 7, "'/' may not stand in a value"),
        ("ok,zo*ne=a", 6, "'*' may not stand in a key"),
        ("zone in (ok,-a)", 13, "begins and ends with a letter or digit"),
        ("zone=" + "v" * 64, 69, "at most 63"),
        ("(zone)", 1, "'(' stands where the key"),
        ("zone='a'", 6, "may not stand in a value"),
        ("zone && disk", 6, "'&&' stands where"),
        ("z\u00f6ne=a", 2, "'\u00f6' may not stand in a key"),
        ("zone\0=a", 5, "'\\x00' may not stand in a key"),
    ],
)
def test_what_is_no_selector_is_refused_at_the_column_of_the_fault(text: str, column: int, why: str) -> None:
    with pytest.raises(StokerError) as refused:
        parse_selector(text)
    refusal = refused.value.refusal
    assert (refusal.code, refusal.facts["column"]) == ("bad_selector", column)
    assert f"column {column}: " in refusal.message
    assert why in refusal.message
    assert refusal.hint


def test_a_selector_longer_than_the_bound_is_refused_unread() -> None:
    with pytest.raises(StokerError, match="longer than"):
        parse_selector("a," * SELECTOR_MAX)


def test_the_longest_selector_is_read_in_a_moment() -> None:
    """Its cost grows with its length, not with the square of it."""
    assert len(parse_selector(f"a in ({','.join(f'v{number}' for number in range(9_000))})")[0].values) == 9_000


@given(st.text("ab=!(),<> in", max_size=14))
def test_whatever_the_text_is_the_answer_is_conditions_or_a_refusal_within_the_text(text: str) -> None:
    try:
        found = parse_selector(text)
    except StokerError as refused:
        column = refused.refusal.facts["column"]
        assert isinstance(column, int)
        assert 1 <= column <= len(text) + 1
    else:
        assert parse_selector(selector_text(found)) == found


_keys = st.sampled_from(["a", "b", "in", "notin", "x.io/c"])
_values = st.sampled_from(["", "1", "2", "in"])
_several = st.lists(_values, min_size=1, max_size=3, unique=True).map(lambda found: tuple(sorted(found)))
_requirements = st.one_of(
    st.builds(Requirement, _keys, st.sampled_from([IN, NOT_IN]), _several),
    st.builds(Requirement, _keys, st.sampled_from([EXISTS, ABSENT])),
)


@given(st.lists(_requirements, max_size=5))
def test_a_selector_that_is_written_is_read_back_in_its_one_order(requirements: list[Requirement]) -> None:
    read = parse_selector(selector_text(requirements))
    assert set(read) == set(requirements)
    assert read == parse_selector(selector_text(reversed(requirements)))
    assert parse_selector(selector_text(read)) == read


# -- which nodes ---------------------------------------------------------------------------------------------------


def test_a_condition_that_denies_also_holds_on_a_node_without_the_key() -> None:
    assert _admits("zone!=a")
    assert _admits("zone notin (a,b)")
    assert not _admits("zone!=a", zone="a")
    assert _admits("zone!=a", zone="b")


def test_a_condition_that_asks_for_a_value_needs_the_key() -> None:
    assert not _admits("zone=a")
    assert not _admits("zone=")
    assert _admits("zone=", zone="")
    assert _admits("zone in (a,b)", zone="b")


def test_a_key_alone_asks_that_it_be_there_and_with_an_exclamation_mark_that_it_not_be() -> None:
    assert _admits("zone", zone="")
    assert not _admits("zone")
    assert _admits("!zone")
    assert not _admits("!zone", zone="a")


def test_every_condition_must_hold() -> None:
    assert _admits("zone=a,disk=ssd", zone="a", disk="ssd")
    assert not _admits("zone=a,disk=ssd", zone="a")


def test_an_excluded_name_is_not_admitted_whatever_its_labels_are() -> None:
    where = make_where("zone=a", exclude=["n1"])
    assert not admits(where, N1, {"zone": "a"}, ())
    assert admits(where, NodeName("n2"), {"zone": "a"}, ())


def test_a_taint_keeps_away_whoever_does_not_tolerate_it() -> None:
    taints = (Taint("gpu", "old"), Taint("team"))
    assert not admits(ANYWHERE, N1, {}, taints)
    assert not admits(make_where(tolerate=["gpu"]), N1, {}, taints)
    assert admits(make_where(tolerate=["gpu", "team"]), N1, {}, taints)
    assert admits(make_where(tolerate=["gpu=old", "team="]), N1, {}, taints)
    assert not admits(make_where(tolerate=["gpu=new", "team"]), N1, {}, taints)
    assert admits(make_where(tolerate=["*"]), N1, {}, taints)


def _oracle_admits(where: Where, labels: dict[str, str], taints: list[Taint]) -> bool:
    """After the prose of Kubernetes' documents, one sentence each; shares nothing with `admits`."""
    for key, operator, values in ((r.key, r.operator.value, r.values) for r in where.require):
        there = key in labels
        if operator == "in" and not (there and any(labels[key] == value for value in values)):
            return False
        if operator == "notin" and there and any(labels[key] == value for value in values):
            return False
        if (operator == "exists" and not there) or (operator == "absent" and there):
            return False
    for taint in taints:
        matching = [t for t in where.tolerate if t == Toleration() or t == Toleration(taint.key)]
        matching += [t for t in where.tolerate if t == Toleration(taint.key, taint.value)]
        if not matching:
            return False
    return "n1" not in where.exclude


_tolerations = st.sampled_from(["*", "a", "b", "a=1", "a=", "b=2"])
_taints = st.builds(Taint, st.sampled_from(["a", "b"]), st.sampled_from(["", "1", "2"]))
_wheres = st.builds(
    lambda require, exclude, tolerate: make_where(selector_text(require), exclude, tolerate),
    st.lists(_requirements, max_size=3),
    st.lists(st.sampled_from(["n1", "n2"]), max_size=2),
    st.lists(_tolerations, max_size=3),
)
_labels = st.dictionaries(_keys, _values, max_size=3)


@given(_wheres, _labels, st.lists(_taints, max_size=2))
def test_a_node_is_admitted_exactly_when_the_prose_says_so_and_else_there_is_a_why(
    where: Where, labels: dict[str, str], taints: list[Taint]
) -> None:
    expected = _oracle_admits(where, labels, taints)
    assert admits(where, N1, labels, taints) is expected
    assert (why_not(where, N1, labels, taints) == "") is expected


@given(
    _wheres, _labels, st.dictionaries(_keys, st.one_of(st.none(), _values), max_size=2), st.lists(_taints, max_size=1)
)
def test_a_look_at_the_node_itself_gives_the_same_answer(
    where: Where, agents: dict[str, str], peoples: dict[str, str | None], taints: list[Taint]
) -> None:
    made = node("n1")
    inventory = replace(made.inventory, labels=agents, taints=tuple(map(taint_text, taints)))
    there = replace(made, inventory=inventory, labels=peoples)
    assert selects(where, there) is admits(where, N1, labels_of(there), taints_of(there))
    assert names_and_labels_admit(where, there) is admits(where, N1, labels_of(there), ())


@given(_wheres, _wheres, _labels)
def test_two_selections_together_admit_where_both_do(one: Where, other: Where, labels: dict[str, str]) -> None:
    together = both(one, other)
    assert together == both(other, one)
    assert admits(together, N1, labels, ()) == (admits(one, N1, labels, ()) and admits(other, N1, labels, ()))
    assert both(one, ANYWHERE) == both(ANYWHERE, one) == both(one, one) == one


def test_what_either_selection_tolerates_both_together_tolerate() -> None:
    partition, mine = make_where("pool=big", tolerate=["pool"]), make_where(tolerate=["gpu=old"])
    assert admits(both(partition, mine), N1, {"pool": "big"}, (Taint("pool", "big"), Taint("gpu", "old")))


@pytest.mark.parametrize(
    ("where", "labels", "taints", "said"),
    [
        (make_where("zone=a"), {"zone": "b"}, (), "its label zone is 'b', and zone=a is wanted"),
        (make_where("zone in (a,c)"), {}, (), "it has no label zone, and zone in (a,c) is wanted"),
        (make_where("!slow"), {"slow": ""}, (), "its label slow is '', and !slow is wanted"),
        (make_where(exclude=["n1"]), {}, (), "it is excluded by name"),
        (ANYWHERE, {}, (Taint("gpu", "old"),), "its taint gpu=old:NoSchedule isn't tolerated"),
        (ANYWHERE, {}, (), ""),
    ],
)
def test_a_node_that_is_not_selected_says_why(
    where: Where, labels: dict[str, str], taints: tuple[Taint, ...], said: str
) -> None:
    assert why_not(where, N1, labels, taints) == said


# -- equal selections are equal values -----------------------------------------------------------------------------


def test_equal_selections_are_equal_whatever_order_and_form_they_were_written_in() -> None:
    one = make_where("b==2,a in (x,y),b=2", ["n2", "n1", "n2", ""], ["gpu=old", "gpu", "k:NoSchedule"])
    other = make_where("a in (y,x,y) , b in (2)", ["n1", "n2"], ["k", "gpu"])
    assert one == other
    assert hash(one) == hash(other)
    assert make_where(tolerate=["a", "*"]) == make_where(tolerate=["*:NoSchedule"])


def test_a_selection_is_said_in_words() -> None:
    where = make_where("zone=a,!slow", ["n2", "n1"], ["gpu=old", "k"])
    assert where_text(where) == "!slow,zone=a; not n1, n2; tolerates gpu=old, k"
    assert where_text(ANYWHERE) == ""


def test_the_terms_of_a_selection_are_its_values_names_and_tolerations() -> None:
    assert make_where("a in (x,y),b,!c", ["n1"], ["k"]).terms == 6


@pytest.mark.parametrize(
    ("text", "toleration"),
    [
        ("gpu", Toleration("gpu")),
        ("gpu=old", Toleration("gpu", "old")),
        ("gpu=", Toleration("gpu", "")),
        ("*", Toleration()),
        ("gpu:NoSchedule", Toleration("gpu")),
        ("gpu=old:NoSchedule", Toleration("gpu", "old")),
    ],
)
def test_a_toleration_names_a_key_with_or_without_a_value_or_every_taint(text: str, toleration: Toleration) -> None:
    assert parse_toleration(text) == toleration
    assert parse_toleration(toleration_text(toleration)) == toleration


@pytest.mark.parametrize(
    ("text", "column"), [("", 1), ("=old", 1), ("gpu:NoExecute", 5), ("a b", 2), ("gpu=o/d", 6), ("*=x", 1)]
)
def test_what_tolerates_nothing_is_refused_at_the_column_of_the_fault(text: str, column: int) -> None:
    with pytest.raises(StokerError) as refused:
        parse_toleration(text)
    assert (refused.value.refusal.code, refused.value.refusal.facts["column"]) == ("bad_toleration", column)
