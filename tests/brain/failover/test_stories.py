"""Every story says what the machine answers; and the loader can be trusted to notice when one doesn't."""

from pathlib import Path

import pytest

from tests.brain.failover.loader import FOLDER, BadStory, answered

_FILES = sorted(FOLDER.glob("*.txt"))
_TINY = "machine: b\ntold:\n  0.0 tick\n      look\n  0.1 seen 4 a e=3 in=a,b\n      follow 3\n"


@pytest.mark.parametrize("path", _FILES, ids=[path.stem for path in _FILES])
def test_the_machine_answers_as_the_story_says(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text(encoding="utf-8")
    answer = answered(text)
    if request.config.getoption("--rewrite"):
        path.write_text(answer, encoding="utf-8")
    else:
        assert answer == text, f"{path.name} expects something else; `pytest {FOLDER.name} --rewrite` would update it"


def test_there_are_stories_and_each_is_answered() -> None:
    assert len(_FILES) >= 10
    assert all("\n      " in path.read_text(encoding="utf-8") for path in _FILES)


def test_a_wrong_expectation_is_noticed() -> None:
    assert answered(_TINY) == _TINY
    assert answered(_TINY.replace("follow 3", "follow 4")) == _TINY
    assert answered(_TINY.replace("      look\n", "")) == _TINY


def test_prose_between_blocks_is_kept() -> None:
    told = "# Title\n\nProse: with a colon.\n\n" + _TINY + "\nAnd on it goes.\n\ntold:\n  0.2 ?\n"
    assert answered(told) == told + "      standby 3: its log isn't open yet\n"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("machine: b\ntold:\n  now tick\n", "line 3: 'now tick': write"),
        ("told:\n  0.0 sung\n", "line 2: '0.0 sung': not known"),
        ("told:\n  0.0 tick\n  0.1 seen x a e=1\n", "line 3: '0.1 seen x a e=1': invalid literal"),
        ("told:\n  0.0 won\n", "line 2: '0.0 won': no put is under way"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(line: str, complaint: str) -> None:
    with pytest.raises(BadStory, match=complaint):
        answered(line)
