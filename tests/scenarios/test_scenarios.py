"""Every scenario says what the engine answers; and the loader can be trusted to notice when one doesn't."""

from pathlib import Path

import pytest

from tests.scenarios.loader import FOLDER, BadScenario, answered

_FILES = sorted(FOLDER.glob("*.txt"))
_TINY = "cluster:\n  a: gpus=2\njobs:\n  1: gpus=1\nplan:\n  1 -> a[0]\n"


@pytest.mark.parametrize("path", _FILES, ids=[path.stem for path in _FILES])
def test_the_engine_answers_as_the_scenario_says(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text(encoding="utf-8")
    answer = answered(text)
    if request.config.getoption("--rewrite"):
        path.write_text(answer, encoding="utf-8")
    else:
        assert answer == text, f"{path.name} expects something else; `pytest tests/scenarios --rewrite` would update it"


def test_there_are_scenarios_and_each_has_a_plan() -> None:
    assert len(_FILES) >= 8
    assert all("\nplan:\n" in path.read_text(encoding="utf-8") for path in _FILES)


def test_a_wrong_expectation_is_noticed() -> None:
    assert answered(_TINY) == _TINY
    assert answered(_TINY.replace("a[0]", "a[1]")) == _TINY


def test_answering_twice_changes_nothing() -> None:
    empty = _TINY.replace("  1 -> a[0]\n", "")
    assert answered(empty) == answered(answered(empty)) == _TINY


def test_prose_between_blocks_is_kept() -> None:
    told = (
        "# Title\n\nSome prose: with a colon.\n\n" + _TINY + "\nAnd then it ends.\n\nend: 1\nplan:\n  nothing to do\n"
    )
    assert answered(told) == told


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("cluster:\n  a: gpu=2\n", "line 2: 'a: gpu=2': unknown word 'gpu'"),
        ("cluster:\n  a: gpus=2\n\njobs:\n  1: gpus=x\n", "line 5: '1: gpus=x': invalid literal"),
        ("policy: speed=3\n", "line 1: 'speed=3': unknown word 'speed'"),
        ("end: one\n", "line 1: 'one': invalid literal"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(line: str, complaint: str) -> None:
    with pytest.raises(BadScenario, match=complaint):
        answered(line)
