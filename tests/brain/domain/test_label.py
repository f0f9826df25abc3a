"""Rules B1 to B5 of labels and taints."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.label import (
    GPU_MODEL,
    HOSTNAME,
    Taint,
    check_label,
    key_fault,
    label_value,
    labels_of,
    parse_label_changes,
    parse_taint,
    parse_taint_changes,
    taint_text,
    taints_of,
    value_fault,
)
from stoker.brain.domain.node import Node
from tests.builders import A100, H100, node

# As Kubernetes spells them: apimachinery, pkg/util/validation.
_QUALIFIED_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def _is_qualified_name(text: str) -> bool:
    parts = text.split("/")
    if len(parts) > 2:
        return False
    if len(parts) == 2 and not (len(parts[0]) <= 253 and _DNS_SUBDOMAIN.fullmatch(parts[0])):
        return False
    return len(parts[-1]) <= 63 and bool(_QUALIFIED_NAME.fullmatch(parts[-1]))


@given(st.text("aZ9-_./\u00e9", max_size=12))
def test_keys_are_those_of_kubernetes_and_a_fault_lies_within_the_text(text: str) -> None:
    fault = key_fault(text)
    assert (fault is None) == _is_qualified_name(text)
    assert fault is None or 0 <= fault[0] <= len(text)


@given(st.text("aZ9-_./\u00e9", max_size=8))
def test_values_are_those_of_kubernetes_and_a_fault_lies_within_the_text(text: str) -> None:
    fault = value_fault(text)
    assert (fault is None) == (not text or ("/" not in text and _is_qualified_name(text)))
    assert fault is None or 0 <= fault[0] < len(text)


def test_a_name_has_at_most_63_characters_and_a_prefix_253() -> None:
    assert key_fault("a" * 63) is None
    assert key_fault("a" * 64) == (63, "a key has 64 characters; at most 63 are taken")
    assert key_fault("a" * 253 + "/b") is None
    assert (key_fault("a" * 254 + "/b") or (0,))[0] == 253
    assert (value_fault("v" * 64) or (0,))[0] == 63


@pytest.mark.parametrize(
    ("word", "column", "why"),
    [
        ("gpu model=x", 4, "' ' may not stand in a key"),
        ("zone", 5, "`=` and a value are missing"),
        ("zone=a b", 7, "' ' may not stand in a value"),
        ("zone=-a", 6, "begins and ends with a letter or digit, not with '-'"),
        ("=a", 1, "a key is missing"),
        ("a/b/c=d", 4, "a key has at most one `/`"),
        ("Example.com/a=b", 1, "'E' spoils it"),
        ("example..com/a=b", 8, "'.' spoils it"),
        ("example.com/=b", 13, "nothing stands behind the `/`"),
        ("zone=a,disk=b", 7, "',' may not stand in a value"),
        ("", 1, "missing"),
    ],
)
def test_what_is_no_label_is_refused_at_the_column_of_the_fault(word: str, column: int, why: str) -> None:
    with pytest.raises(StokerError) as refused:
        parse_label_changes([word])
    refusal = refused.value.refusal
    assert (refusal.code, refusal.facts["column"]) == ("bad_label", column)
    assert why in refusal.message
    assert refusal.hint


def test_labels_are_set_with_an_equals_sign_and_taken_off_with_a_dash() -> None:
    assert parse_label_changes(["zone=a", "disk-", "empty=", "e.com/x=1"]) == (
        {"zone": "a", "empty": "", "e.com/x": "1"},
        ("disk",),
    )


@pytest.mark.parametrize("words", [["a=1", "a=2"], ["a=1", "a-"], ["a-", "a-"]])
def test_a_label_that_is_named_twice_is_refused(words: list[str]) -> None:
    with pytest.raises(StokerError, match="named twice"):
        parse_label_changes(words)


@pytest.mark.parametrize("word", ["stoker.io/hostname=x", "stoker.io/zone=a", "stoker.io/hostname-"])
def test_nobody_sets_a_key_of_stokers_own(word: str) -> None:
    with pytest.raises(StokerError, match=r"bad_label.*Stoker's own"):
        parse_label_changes([word])


def test_a_prefix_that_only_looks_like_stokers_is_anyones() -> None:
    check_label("my.stoker.io/x", "1")
    check_label("stoker.iox/x", "1")


def test_a_taint_is_read_with_and_without_a_value() -> None:
    assert parse_taint("gpu=old:NoSchedule") == Taint("gpu", "old")
    assert parse_taint("example.com/gpu:NoSchedule") == Taint("example.com/gpu")
    assert parse_taint("gpu=:NoSchedule") == Taint("gpu")


_keys = st.from_regex(r"([a-z]{1,3}\.io/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,5}[A-Za-z0-9])?", fullmatch=True)
_values = st.from_regex(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,5}[A-Za-z0-9])?)?", fullmatch=True)


@given(st.builds(Taint, _keys, _values))
def test_a_taint_that_is_written_is_read_back(taint: Taint) -> None:
    assert parse_taint(taint_text(taint)) == taint


@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        ("gpu", 4, "`:NoSchedule` is missing"),
        ("gpu=old", 8, "`:NoSchedule` is missing"),
        ("gpu=o d:NoSchedule", 6, "' ' may not stand in a value"),
        (":NoSchedule", 1, "a key is missing"),
        ("gpu=old:noschedule", 9, "the effect 'noschedule' is not known"),
        ("gpu:NoSchedule:x", 5, "is not known"),
        ("gpu:", 5, "is not known"),
    ],
)
def test_what_is_no_taint_is_refused_at_the_column_of_the_fault(text: str, column: int, said: str) -> None:
    with pytest.raises(StokerError) as refused:
        parse_taint(text)
    assert (refused.value.refusal.code, refused.value.refusal.facts["column"]) == ("bad_taint", column)
    assert said in refused.value.refusal.message


@pytest.mark.parametrize(("effect", "hint"), [("NoExecute", "stoker cancel"), ("PreferNoSchedule", "--tolerate")])
def test_another_effect_of_kubernetes_is_refused_with_what_to_do_instead(effect: str, hint: str) -> None:
    with pytest.raises(StokerError) as refused:
        parse_taint(f"gpu=old:{effect}")
    assert hint in refused.value.refusal.hint


def test_taints_are_put_on_as_they_are_and_taken_off_by_key() -> None:
    assert parse_taint_changes(["a=1:NoSchedule", "b-", "c:NoSchedule-", "d=x:NoSchedule-"]) == (
        (Taint("a", "1"),),
        ("b", "c", "d"),
    )


@pytest.mark.parametrize("words", [["a:NoSchedule", "a=1:NoSchedule"], ["a:NoSchedule", "a-"], ["a-", "a-"]])
def test_a_taint_that_is_named_twice_is_refused(words: list[str]) -> None:
    with pytest.raises(StokerError, match="named twice"):
        parse_taint_changes(words)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("Tesla V100-SXM2-32GB", "Tesla-V100-SXM2-32GB"),
        ("  (odd)  ", "odd"),
        ("\u00e9\u00e9", ""),
        ("x" * 62 + " y", "x" * 62),
    ],
)
def test_any_text_has_a_value_that_stands_for_it(text: str, value: str) -> None:
    assert label_value(text) == value
    assert value_fault(label_value(text)) is None


@given(st.text(max_size=80))
def test_what_stands_for_a_text_is_always_a_value(text: str) -> None:
    assert value_fault(label_value(text)) is None


def _labelled(agent: dict[str, str], people: dict[str, str | None], models: tuple[str, ...] = ()) -> Node:
    made = node("n1", models=models)
    return replace(made, inventory=replace(made.inventory, labels=agent), labels=people)


def test_what_people_set_wins_over_what_the_agent_says_and_what_they_took_off_stays_off() -> None:
    found = labels_of(_labelled({"zone": "a", "disk": "ssd", "rack": "1"}, {"zone": "b", "disk": None, "team": "x"}))
    assert found == {"zone": "b", "rack": "1", "team": "x", HOSTNAME: "n1"}


def test_a_node_has_a_label_for_its_name_and_one_for_its_gpus_where_they_are_of_one_model() -> None:
    assert labels_of(_labelled({}, {}, (H100, H100))) == {HOSTNAME: "n1", GPU_MODEL: "NVIDIA-H100-80GB-HBM3"}
    assert labels_of(_labelled({}, {}, (H100, A100))) == {HOSTNAME: "n1"}


def test_nobody_can_make_a_node_pass_for_another() -> None:
    found = labels_of(_labelled({HOSTNAME: "n2", GPU_MODEL: "X"}, {HOSTNAME: None, GPU_MODEL: "Y"}))
    assert found == {HOSTNAME: "n1"}


def test_a_taint_put_on_by_people_replaces_that_of_the_agent_and_one_they_took_off_stays_off() -> None:
    made = node("n1")
    inventory = replace(made.inventory, taints=("b=1:NoSchedule", "a:NoSchedule", "c:NoSchedule"))
    tainted = replace(made, inventory=inventory, taints=("b=2:NoSchedule", "d:NoSchedule"), taints_off=("c",))
    assert taints_of(tainted) == (Taint("a"), Taint("b", "2"), Taint("d"))
    assert taints_of(made) == ()
