"""Rule 33a: a class name stands for one thing, private ones too."""

from tests.tidy.caught import caught_in
from tools.tidy_rules.classes import one_class_name_one_thing


def test_a_class_name_in_two_modules_is_caught_with_both_places() -> None:
    files = {"src/stoker/a.py": "x = 1\nclass Draft: ...", "src/stoker/b.py": "class Draft: ..."}
    assert caught_in(one_class_name_one_thing, files) == [
        "1: class Draft is defined in src/stoker/a.py:2 too: give each the name of what only it is"
    ]


def test_a_private_or_inner_class_is_a_second_thing_too() -> None:
    files = {"src/stoker/a.py": "class _Line: ...", "src/stoker/b.py": "class Log:\n    class _Line: ..."}
    assert len(caught_in(one_class_name_one_thing, files)) == 1


def test_an_underscore_makes_no_other_name() -> None:
    files = {"src/stoker/a.py": "class Clock: ...", "src/stoker/b.py": "class _Clock: ..."}
    assert len(caught_in(one_class_name_one_thing, files)) == 1


def test_every_further_place_is_named() -> None:
    files = {f"src/stoker/{name}.py": "class Said: ..." for name in "abc"}
    assert len(caught_in(one_class_name_one_thing, files)) == 2


def test_two_names_and_two_definitions_in_one_module_pass() -> None:
    one = "if x:\n    class Clock: ...\nelse:\n    class Clock: ..."
    assert caught_in(one_class_name_one_thing, {"src/stoker/a.py": one, "src/stoker/b.py": "class Timer: ..."}) == []


def test_tests_tools_and_generated_code_may_repeat_a_name() -> None:
    paths = ("src/stoker/a.py", "tests/rig/a.py", "tools/a.py", "src/stoker/wire/gen/agent_pb2.py")
    assert caught_in(one_class_name_one_thing, dict.fromkeys(paths, "class Job: ...")) == []
