"""Rule 33a: one word names one thing, and retired words come back neither as modules nor as classes nor as aliases."""

import pytest

from tests.tidy.caught import caught
from tools.tidy_rules.retired import no_retired_words, retired_word, split
from tools.tidy_rules.words import WHOLE_NAMES, WORDS, WORDS_WITHIN

HERE = "src/stoker/brain/state/job.py"
ENGINE = "src/stoker/brain/engine"


@pytest.mark.parametrize(
    ("path", "word", "instead"),
    [
        ("src/stoker/brain/engine/room.py", "room", "capacity"),
        ("src/stoker/brain/engine/gpu_room.py", "room", "capacity"),
        ("src/stoker/adapters/marker_folder.py", "marker", "lease_record"),
        ("src/stoker/adapters/log_way_out.py", "way_out", "recovery_hints"),
        ("src/stoker/shelf/__init__.py", "shelf", "output_retention"),
        ("src/stoker/wire/after.py", "after", "dependency_text"),
    ],
)
def test_a_module_or_package_of_a_retired_name_is_caught_with_its_replacement(
    path: str, word: str, instead: str
) -> None:
    (fault,) = caught(no_retired_words, path, "")
    assert f"'{word}' is retired; write {instead}" in fault


@pytest.mark.parametrize(
    "text",
    [
        "class Room: ...",
        "class _GpuRoom: ...",
        "class LoneThread: ...",
        "class UsageAsked: ...",
        "def f():\n    class Wishes: ...",
        "import stoker.brain.engine.capacity as room",
        "from stoker.brain.engine.capacity import Capacity as _Room",
        "from stoker.wire import formatting as words",
    ],
)
def test_a_class_or_alias_of_a_retired_name_is_caught(text: str) -> None:
    assert len(caught(no_retired_words, HERE, text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        '"""The room that a lane leaves beside a wall."""',
        "room = 'marker'",
        "def asked(lane: int, *, who: str) -> None: ...",
        "class Free:\n    room: int\n    def walls(self): ...",
        "class Headroom: ...",
        "class StateWords: ...",
        "class NewLife: ...",
        "class TaskEnding: ...",
        "from stoker.brain.engine.capacity import room",
    ],
)
def test_prose_fields_functions_strings_and_longer_words_pass(text: str) -> None:
    assert caught(no_retired_words, HERE, text) == []


@pytest.mark.parametrize(
    "path", ["src/stoker/brain/engine/order.py", "src/stoker/cli/commands/wait.py", "src/room.txt"]
)
def test_a_name_that_only_looks_like_a_retired_one_passes(path: str) -> None:
    assert caught(no_retired_words, path, "") == []


def test_a_pool_is_retired_in_the_engine_and_a_noun_of_quotas() -> None:
    assert len(caught(no_retired_words, f"{ENGINE}/pool.py", "class NodePool: ...")) == 2
    assert caught(no_retired_words, "src/stoker/brain/domain/quota.py", "class Pools: ...\nclass PoolShare: ...") == []


def test_names_outside_the_package_are_free() -> None:
    assert caught(no_retired_words, "tests/rig/world.py", "class World: ...") == []
    assert caught(no_retired_words, "tools/tidy_rules/words.py", "") == []


def test_a_replacement_is_never_retired_itself() -> None:
    names = {
        name.strip("`,;:*")
        for table in (WORDS, WHOLE_NAMES, *WORDS_WITHIN.values())
        for instead in table.values()
        for name in instead.split()
        if "_" in name or name[0].isupper()
    }
    assert {name: retired_word(name) for name in sorted(names) if retired_word(name)} == {}


def test_a_word_stands_in_one_table_only() -> None:
    tables = [WORDS, WHOLE_NAMES, *WORDS_WITHIN.values()]
    words = [word for table in tables for word in table]
    assert len(words) == len(set(words))


def test_names_split_into_their_words() -> None:
    assert split("_GpuRoom") == split("gpu_room") == ["gpu", "room"]
    assert split("HTTPRows2") == ["http", "rows2"]
