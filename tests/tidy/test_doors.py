"""Rule 8: each third-party library enters through its door, and one that nobody listed through none."""

import pytest

from tests.tidy.caught import caught_in
from tools.tidy_rules.doors import THIRD_PARTY, Door, libraries_enter_through_their_doors

ADAPTER = "src/stoker/adapters/yaml_lines.py"
ROWS = "# LIBRARY  MODULE\nyaml     stoker.adapters.yaml_lines\n"
FILES = {THIRD_PARTY: ROWS, ADAPTER: "import yaml"}


def test_a_library_without_a_row_is_caught_with_what_to_do() -> None:
    files = FILES | {"src/stoker/live/loop.py": "def f():\n    from requests import get"}
    (fault,) = caught_in(libraries_enter_through_their_doors, files)
    assert fault.startswith("2: requests has no door: add its one door in tools/third_party.txt")
    assert "`requests stoker.live.loop`" in fault


def test_a_second_door_is_caught_and_the_first_one_named() -> None:
    assert caught_in(libraries_enter_through_their_doors, FILES | {"src/stoker/live/loop.py": "import yaml.nodes"}) == [
        "1: yaml enters through stoker.adapters.yaml_lines: call that, or move its door in tools/third_party.txt"
    ]


def test_the_listed_door_the_standard_library_and_the_package_itself_pass() -> None:
    files = FILES | {"src/stoker/live/loop.py": "import json, os.path\nimport stoker.wire\nfrom . import feed"}
    assert caught_in(libraries_enter_through_their_doors, files) == []


def test_a_library_of_the_standard_library_with_a_row_keeps_to_its_door() -> None:
    files = {
        THIRD_PARTY: "sqlite3  stoker.adapters.sqlite_*\n",
        "src/stoker/adapters/sqlite_store.py": "import sqlite3",
        "src/stoker/live/loop.py": "import sqlite3",
    }
    assert len(caught_in(libraries_enter_through_their_doors, files)) == 1


def test_a_row_that_lets_nothing_in_must_go() -> None:
    files = FILES | {THIRD_PARTY: f"{ROWS}yaml  stoker.wire.**\nnumpy  stoker.brain.engine.fragmentation\n"}
    assert caught_in(libraries_enter_through_their_doors, files) == [
        "3: yaml isn't imported by stoker.wire.** any more: delete the row",
        "4: numpy isn't imported by stoker.brain.engine.fragmentation any more: delete the row",
    ]


def test_tests_and_tools_may_import_what_they_need() -> None:
    files = FILES | {"tests/live/test_loop.py": "import pytest", "tools/tidy.py": "import yaml"}
    assert caught_in(libraries_enter_through_their_doors, files) == []


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("stoker.ports", "stoker.ports", "stoker.ports.clock"),
        ("stoker.agent.*", "stoker.agent.daemon", "stoker.agent.runner.loop"),
        ("stoker.adapters.sqlite_*", "stoker.adapters.sqlite_store", "stoker.adapters.log_sqlite"),
        ("stoker.cli.**", "stoker.cli", "stoker.client"),
        ("stoker.*.http.**", "stoker.api.http.jobs.list", "stoker.api.rpc.http"),
    ],
)
def test_a_pattern_means_parts_of_names_and_whole_packages(pattern: str, inside: str, outside: str) -> None:
    door = Door(1, "yaml", pattern)
    assert door.admits(inside)
    assert not door.admits(outside)
