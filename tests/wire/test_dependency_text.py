"""What a job waits for, as people write it."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.domain.dependency import Dependency, DependencyKind
from stoker.brain.domain.errors import Refusal, StokerError
from stoker.brain.domain.ids import JobId
from stoker.wire.dependency_text import parse_dependencies

OK, ANY, NOT_OK, AFTER = DependencyKind.OK, DependencyKind.ANY, DependencyKind.NOT_OK, DependencyKind.AFTER


def on(kind: DependencyKind, job: int, index: int | None = None) -> Dependency:
    return Dependency(kind=kind, job=JobId(job), index=index)


def refused(*texts: str) -> Refusal:
    with pytest.raises(StokerError) as caught:
        parse_dependencies(texts)
    assert caught.value.refusal.code == "bad_dependency"
    return caught.value.refusal


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("ok:12", (on(OK, 12),)),
        ("ok:12,any:7_3", (on(OK, 12), on(ANY, 7, 3))),
        ("notok:1, after:2", (on(NOT_OK, 1), on(AFTER, 2))),
        ("after:#0", (Dependency(kind=AFTER, sibling=0),)),
        ("OK:5", (on(OK, 5),)),
    ],
)
def test_kinds_and_ids_are_read(text: str, meant: tuple[Dependency, ...]) -> None:
    assert parse_dependencies([text]) == meant


def test_slurms_words_mean_the_same() -> None:
    assert parse_dependencies(["afterok:1:2,afterany:3,afternotok:4,after:5"]) == (
        *(on(OK, 1), on(OK, 2), on(ANY, 3)),
        *(on(NOT_OK, 4), on(AFTER, 5)),
    )


def test_a_bare_id_means_ok() -> None:
    assert parse_dependencies(["12"]) == parse_dependencies(["ok:12"]) == (on(OK, 12),)
    assert parse_dependencies(["12,13_2,#1"]) == (on(OK, 12), on(OK, 13, 2), Dependency(kind=OK, sibling=1))
    assert parse_dependencies(["ok:1,2"]) == (on(OK, 1), on(OK, 2))


def test_a_bare_id_behind_another_kind_is_refused_because_it_could_mean_either() -> None:
    refusal = refused("any:1,2")
    assert "any:1,any:2" in refusal.hint


def test_a_list_of_texts_is_one_list_of_conditions_each_once() -> None:
    assert parse_dependencies(["ok:1", "any:2,ok:1"]) == (on(OK, 1), on(ANY, 2))
    assert parse_dependencies([]) == ()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "missing"),
        ("ok:", "missing"),
        ("ok:1,", "missing"),
        ("ok", "missing"),
        ("okay:1", "no kind"),
        ("singleton", "no kind"),
        ("ok:x", "not a job's id"),
        ("ok:0", "not a job's id"),
        ("ok:-1", "not a job's id"),
        ("ok:1_", "not a job's id"),
        ("ok:99999999999999999", "not a job's id"),
        ("ok:7_[0-3]", "one by one"),
        ("after:1+5", "delay"),
        ("ok:1?any:2", "?"),
        ("ok:\u0663", "not a job's id"),
        ("ok:1" + ",ok:1" * 20_000, "longer"),
    ],
)
def test_what_can_not_be_read_is_refused_with_why_and_what_to_write(text: str, word: str) -> None:
    refusal = refused(text)
    assert word in refusal.message
    assert "`" in refusal.hint
    assert len(refusal.message) < 250


@given(st.lists(st.text(alphabet="okanyfter:,#_0123456789[]-+? "), max_size=3))
def test_any_texts_are_conditions_or_a_refusal(texts: list[str]) -> None:
    found: tuple[Dependency, ...] = ()
    with contextlib.suppress(StokerError):
        found = parse_dependencies(texts)
    assert parse_dependencies([str(each) for each in found]) == found, "as they are shown, they can be read again"
