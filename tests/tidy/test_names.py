"""Rules 3, 4 and 5: names that say what is inside, prose that says what isn't."""

import pytest

from tests.tidy.caught import caught, caught_in
from tools.tidy_rules.names import no_drawer_names, one_noun_one_file_name, packages_open_with_prose


@pytest.mark.parametrize(
    "path",
    [
        "src/stoker/utils.py",
        "src/stoker/common/job.py",
        "src/stoker/live/job_manager.py",
        "src/stoker/agent/helpers.py",
        "tests/rig/base.py",
        "src/stoker/engine_v2.py",
        "tools/new_tidy.py",
    ],
)
def test_a_drawer_is_caught_by_its_name(path: str) -> None:
    assert len(caught(no_drawer_names, path, "")) == 1


@pytest.mark.parametrize("path", ["src/stoker/brain/engine/fit.py", "proto/stoker/v1/agent.proto", "src/database.py"])
def test_a_name_that_says_something_passes(path: str) -> None:
    assert caught(no_drawer_names, path, "") == []


def test_a_package_with_one_sentence_is_caught() -> None:
    assert caught(packages_open_with_prose, "src/stoker/live/__init__.py", '"""The control plane."""') == [
        "1: a package says what lives here and what never does: two sentences"
    ]


def test_a_package_with_two_sentences_passes() -> None:
    assert caught(packages_open_with_prose, "src/stoker/live/__init__.py", '"""It decides. It never sleeps."""') == []


def test_a_module_without_a_docstring_is_caught() -> None:
    assert len(caught(packages_open_with_prose, "src/stoker/control/loop.py", "x = 1")) == 1


def test_a_module_needs_only_one_sentence() -> None:
    assert (
        caught(packages_open_with_prose, "src/stoker/control/loop.py", '"""Passes run when work wakes them."""') == []
    )


def test_a_noun_that_has_another_name_in_another_room_is_caught() -> None:
    room = "src/stoker/brain/state"
    files = {f"{room}/apply/jobs.py": "", f"{room}/apply/dispatch.py": "", f"{room}/events/job.py": ""}
    assert caught_in(one_noun_one_file_name, files) == [
        f"1: no {room}/events/jobs.py: a noun keeps one name in every room"
    ]


def test_a_noun_with_one_name_in_every_room_passes() -> None:
    room = "src/stoker/brain/state"
    assert caught_in(one_noun_one_file_name, {f"{room}/apply/job.py": "", f"{room}/events/job.py": ""}) == []
