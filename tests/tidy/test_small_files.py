"""Rule 6: a small file with one importer belongs into that importer, unless it says why not."""

import pytest

from tests.tidy.caught import caught_in
from tools.tidy_rules.small_files import SMALL_FILES, small_files_have_a_reason

SMALL = "src/stoker/live/notes.py"
IMPORTER = "src/stoker/live/history.py"
IMPORTS = "from stoker.live.notes import Note"
FILES = {SMALL: "x = 1\n" * 59, IMPORTER: IMPORTS}


def test_a_small_file_with_one_importer_is_caught() -> None:
    assert caught_in(small_files_have_a_reason, FILES) == [
        f"1: under 60 lines, imported by {IMPORTER} alone: move it there, or give {SMALL_FILES} a reason"
    ]


@pytest.mark.parametrize(
    "imports",
    [
        "import stoker.live.notes",
        "from stoker.live import notes",
        "from . import notes",
        "def f():\n    from .notes import x",
    ],
)
def test_every_way_to_import_a_module_counts(imports: str) -> None:
    assert len(caught_in(small_files_have_a_reason, FILES | {IMPORTER: imports})) == 1


def test_a_file_of_60_lines_passes() -> None:
    assert caught_in(small_files_have_a_reason, FILES | {SMALL: "x = 1\n" * 60}) == []


def test_two_importers_and_none_pass() -> None:
    assert caught_in(small_files_have_a_reason, FILES | {"src/stoker/live/loop.py": IMPORTS}) == []
    assert caught_in(small_files_have_a_reason, FILES | {IMPORTER: "x = 1"}) == []


def test_tests_and_the_file_itself_are_no_importers() -> None:
    files = FILES | {SMALL: IMPORTS, "tests/live/test_notes.py": IMPORTS}
    assert len(caught_in(small_files_have_a_reason, files)) == 1


@pytest.mark.parametrize(
    "path",
    [
        "src/stoker/brain/domain/usage.py",
        "src/stoker/brain/state/events/job.py",
        "src/stoker/brain/state/admit/job.py",
        "src/stoker/brain/state/apply/job.py",
        "src/stoker/wire/rest/job.py",
        "src/stoker/adapters/postgres/schema.py",
        "src/stoker/cli/commands/job.py",
        "src/stoker/api/http/job.py",
        "src/stoker/agent/ports.py",
        "src/stoker/agent/__init__.py",
        "src/stoker/agent/runner/__main__.py",
    ],
)
def test_nouns_ports_and_adapters_may_be_small(path: str) -> None:
    module = path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    assert caught_in(small_files_have_a_reason, {path: "x = 1", IMPORTER: f"import {module}"}) == []


def test_a_row_with_a_reason_forgives_and_one_without_does_not() -> None:
    assert caught_in(small_files_have_a_reason, FILES | {SMALL_FILES: f"# why\n{SMALL}  the noun of notes\n"}) == []
    assert len(caught_in(small_files_have_a_reason, FILES | {SMALL_FILES: f"{SMALL}\n"})) == 1


def test_a_row_that_forgives_nothing_must_go() -> None:
    files = {SMALL: "x = 1", SMALL_FILES: f"# why\n{SMALL}  a noun\nsrc/stoker/gone.py  a noun\n"}
    assert caught_in(small_files_have_a_reason, files) == [
        f"2: {SMALL} has grown or has other importers: delete its row",
        "3: src/stoker/gone.py is gone: delete its row",
    ]
