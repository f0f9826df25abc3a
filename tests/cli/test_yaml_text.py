"""`-o yaml` is YAML: a reader gets back what the server answered."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.display.yaml_text import yaml_text

# JSON texts hold no lone surrogates.
TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_reading_gives_the_value_back(value: object) -> None:
    assert yaml.safe_load(yaml_text(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        "yes",
        "No",
        "null",
        "~",
        "1",
        "1.5",
        "0x10",
        "1e3",
        "2026-11-28",
        "12:30:45",
        "- a",
        "a: b",
        "#x",
        "",
        " a",
        "a ",
        "=",
    ],
)
def test_a_text_that_looks_like_something_else_stays_a_text(text: str) -> None:
    assert yaml.safe_load(yaml_text({"key": text, text: 1})) == {"key": text, text: 1}


@pytest.mark.parametrize("text", ["a\nb", "\x1b[31m", "\u2028", "\x85", "😀", "é", '"quoted"', "back\\slash", "\ufeff"])
def test_hard_texts_survive(text: str) -> None:
    assert yaml.safe_load(yaml_text([text])) == [text]
    assert "\x1b" not in yaml_text([text])


def test_blocks_are_indented_as_people_write_them() -> None:
    value = {"name": "train", "tasks": [{"rank": 0, "gpus": ["a"]}, {"rank": 1, "gpus": []}], "empty": {}}
    assert yaml_text(value) == (
        "name: train\ntasks:\n  - rank: 0\n    gpus:\n      - a\n  - rank: 1\n    gpus: []\nempty: {}\n"
    )
