"""Rules 29 and 45: a silenced check says which and why, and only supervisors catch everything."""

import pytest

from tests.tidy.caught import caught
from tools.tidy_rules.silence import (
    SUPERVISORS,
    groups_are_raised_by_except_alone,
    only_supervisors_catch_everything,
    open_ends_have_an_issue,
    silenced_checks_say_why,
)

HERE = "src/stoker/control/loop.py"


@pytest.mark.parametrize(
    "comment",
    [
        "# type: ignore",
        "# type: ignore[arg-type]",
        "# type: ignore  # because",
        "# noqa",
        "# noqa: E501",
        "# noqa because",
        "# ruff: noqa: E501  # long",
    ],
)
def test_a_silenced_check_without_code_or_reason_is_caught(comment: str) -> None:
    assert len(caught(silenced_checks_say_why, HERE, f"x = 1  {comment}")) == 1


@pytest.mark.parametrize(
    "comment",
    [
        "# type: ignore[arg-type]  # a class, not a value",
        "# noqa: ANN401  # a type form",
        "# what a type ignores is its own business",
    ],
)
def test_a_silenced_check_with_code_and_reason_passes(comment: str) -> None:
    assert caught(silenced_checks_say_why, HERE, f"x = 1  {comment}") == []


def test_a_string_that_speaks_of_silence_is_no_comment() -> None:
    assert caught(silenced_checks_say_why, HERE, "x = '# noqa'") == []


@pytest.mark.parametrize("comment", ["# TODO: later", "# FIXME", "# XXX what?"])
def test_an_open_end_without_an_issue_is_caught(comment: str) -> None:
    assert len(caught(open_ends_have_an_issue, HERE, comment)) == 1


def test_an_open_end_with_an_issue_passes() -> None:
    assert caught(open_ends_have_an_issue, HERE, "# TODO(#12): a standby answers too") == []


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    try: g()\n    except Exception: pass",
        "def f():\n    try: g()\n    except: pass",
        "def f():\n    try: g()\n    except (ValueError, BaseException) as e: log(e)",
        "def f():\n    with contextlib.suppress(Exception): g()",
    ],
)
def test_whoever_catches_everything_is_caught(text: str) -> None:
    (fault,) = caught(only_supervisors_catch_everything, HERE, text)
    assert "f catches everything" in fault


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    try: g()\n    except ValueError: pass",
        "def f():\n    try: g()\n    except BaseException:\n        close()\n        raise",
        "with suppress(KeyError): g()",
    ],
)
def test_catching_by_name_and_cleaning_up_pass(text: str) -> None:
    assert caught(only_supervisors_catch_everything, HERE, text) == []


def test_every_supervisor_is_listed_with_a_reason() -> None:
    assert all(reason for reason in SUPERVISORS.values())
    place = next(iter(SUPERVISORS))
    path, _, name = place.partition("::")
    body = "def {}(self):\n    try: g()\n    except Exception: pass"
    owner, _, method = name.rpartition(".")
    text = body.format(method) if not owner else f"class {owner}:\n    " + body.format(method).replace("\n", "\n    ")
    assert caught(only_supervisors_catch_everything, path, text) == []


def test_what_is_raised_under_except_star_is_caught() -> None:
    """Of it Python 3.11.2 makes a group, which whoever waits for that exception doesn't catch: an agent ended so."""
    text = "def f():\n    try: g()\n    except* OSError as faults:\n        raise LinkDown(str(faults)) from None"
    assert len(caught(groups_are_raised_by_except_alone, HERE, text)) == 1
    plain = "def f():\n    try: g()\n    except* OSError as faults:\n        note(faults)"
    assert caught(groups_are_raised_by_except_alone, HERE, plain) == []
